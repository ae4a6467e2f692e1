//! Square roots.
#![allow(unsafe_code)]

/// The correctly rounded square root.
#[inline(always)]
pub(crate) fn sqrt(x: f32) -> f32 {
    #[cfg(all(target_arch = "arm", target_abi = "eabihf", target_os = "none"))]
    {
        let root;
        // `libm` would compute it with integers. SAFETY: processors with this ABI have the instruction.
        unsafe {
            core::arch::asm!(
                "vsqrt.f32 {}, {}",
                lateout(sreg) root,
                in(sreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        root
    }
    #[cfg(not(all(target_arch = "arm", target_abi = "eabihf", target_os = "none")))]
    libm::sqrtf(x)
}
