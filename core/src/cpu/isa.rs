//! The instruction set of the kernels, detected at run time and without `std`.
#![allow(unsafe_code)]

use crate::error::{Error, Result};

/// An instruction set that this machine supports. No other can be constructed, so holding an `Isa` proves
/// that its kernels can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Scalar,
    /// Table lookup in memory.
    #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
    Tables,
    /// The DSP extension of Cortex-M.
    #[cfg(all(target_arch = "arm", feature = "dsp"))]
    Dsp,
    #[cfg(all(target_arch = "arm", feature = "helium"))]
    Helium,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// As [`Kind::Avx2`], with dot products of bytes: in laptops without AVX-512.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// As [`Kind::Avx512Vnni`], for processors that permute 16-bit integers as fast as bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512Words,
    /// With AMX tiles of 8-bit integers.
    #[cfg(target_arch = "x86_64")]
    Avx512Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// As [`Kind::NeonDot`], with matrix products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
    /// With the dot products of relaxed SIMD.
    #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
    RelaxedDot,
}

impl Kind {
    /// Slowest first.
    pub(super) const ALL: &[Kind] = &[
        Kind::Scalar,
        #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
        Kind::Tables,
        #[cfg(all(target_arch = "arm", feature = "dsp"))]
        Kind::Dsp,
        #[cfg(all(target_arch = "arm", feature = "helium"))]
        Kind::Helium,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2,
        #[cfg(target_arch = "x86_64")]
        Kind::AvxVnni,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Words,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Amx,
        #[cfg(target_arch = "aarch64")]
        Kind::Neon,
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDot,
        #[cfg(target_arch = "aarch64")]
        Kind::NeonI8mm,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Kind::Simd128,
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot,
    ];

    fn supported(self) -> bool {
        match self {
            Kind::Scalar => true,
            #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
            Kind::Tables => true,
            // The kernels would not have assembled for a processor without it.
            #[cfg(all(target_arch = "arm", feature = "dsp"))]
            Kind::Dsp => true,
            #[cfg(all(target_arch = "arm", feature = "helium"))]
            Kind::Helium => true,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::features().0,
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => x86::features().0 && x86::vnni(),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::Avx512Words => x86::features().1,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Amx => x86::features().1 && x86::tiles(),
            // Part of the base architecture of every target with an operating system.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => cfg!(target_feature = "neon"),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => cfg!(target_feature = "neon") && arm::dotprod(),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => cfg!(target_feature = "neon") && arm::dotprod() && arm::i8mm(),
            // A module with simd128 instructions does not even load where they are missing.
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => true,
            #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
            Kind::RelaxedDot => relaxed::multiplies_fast(),
        }
    }

    /// Whether it is not slower on this machine than those before it.
    fn is_fast(self) -> bool {
        match self {
            // Processors of Intel permute 16-bit integers in two or three steps.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Words => x86::is_of_amd(),
            _ => true,
        }
    }
}

impl Isa {
    /// Plain Rust: the reference, available everywhere.
    pub const SCALAR: Isa = Isa(Kind::Scalar);

    /// The fastest instruction set of this machine.
    pub fn detect() -> Isa {
        Isa::available().filter(|isa| isa.0.is_fast()).last().unwrap_or(Isa::SCALAR)
    }

    /// Every instruction set of this machine, slower ones first as a rule. If the processor has AMX, Linux is asked to let
    /// this process use it; from then on Linux refuses alternate signal stacks that are too small for the
    /// tile state.
    pub fn available() -> impl Iterator<Item = Isa> {
        Kind::ALL.iter().copied().filter(|k| k.supported()).map(Isa)
    }

    /// The instruction set called `name`, if this machine has it.
    pub fn named(name: &str) -> Result<Isa> {
        Isa::available().find(|isa| isa.name() == name).ok_or(error!(Unsupported {
            key: crate::Name::new("instruction set"),
            found: crate::Name::new(name),
            expected: "scalar, tables, dsp, helium, avx2, avxvnni, avx512vnni, avx512words, avx512amx, neon, neondot, neoni8mm, simd128, relaxed or relaxeddot, as far as the machine has it",
        }))
    }

    /// The name accepted by [`Isa::named`].
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
            Kind::Tables => "tables",
            #[cfg(all(target_arch = "arm", feature = "dsp"))]
            Kind::Dsp => "dsp",
            #[cfg(all(target_arch = "arm", feature = "helium"))]
            Kind::Helium => "helium",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Words => "avx512words",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Amx => "avx512amx",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => "neondot",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => "neoni8mm",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 if cfg!(target_feature = "relaxed-simd") => "relaxed",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => "simd128",
            #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
            Kind::RelaxedDot => "relaxeddot",
        }
    }

    /// The registers in which it multiplies and adds floats in one rounding.
    pub fn fused(self) -> Fused {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni if x86::fma() => Fused::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => Fused::Avx512,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::NeonDot | Kind::NeonI8mm => Fused::Neon,
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Kind::Simd128 => Fused::Simd128,
            #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
            Kind::RelaxedDot => Fused::Simd128,
            _ => Fused::Software,
        }
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0
    }
}

/// What [`Isa::fused`] answers: a proof that these instructions can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fused {
    /// By `libm`, one number at a time.
    Software,
    /// 8 floats; AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16 floats.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 4 floats.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// 4 floats, of which product and sum are rounded separately: WebAssembly has no other instruction with the same result
    /// everywhere.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// Whether the processor has (AVX2 and F16C, AVX-512 F, BW, VL and VNNI) and the operating system saves
    /// their registers.
    pub(super) fn features() -> (bool, bool) {
        let bit = |word: u32, n: u32| word >> n & 1 == 1;
        if __cpuid(0).eax < 7 {
            return (false, false);
        }
        let one = __cpuid(1).ecx;
        let (osxsave, avx, f16c) = (bit(one, 27), bit(one, 28), bit(one, 29));
        if !(osxsave && avx && f16c) {
            return (false, false);
        }
        // SAFETY: OSXSAVE states that XGETBV may be executed.
        let saved = unsafe { xcr0() };
        let seven = __cpuid_count(7, 0);
        let avx2 = saved & 0x06 == 0x06 && bit(seven.ebx, 5);
        let avx512 = saved & 0xe6 == 0xe6
            && [16, 30, 31].into_iter().all(|n| bit(seven.ebx, n)) // F, BW, VL
            && bit(seven.ecx, 11); // VNNI
        (avx2, avx2 && avx512)
    }

    /// Whether a processor with AVX2 has FMA, too.
    pub(super) fn fma() -> bool {
        __cpuid(1).ecx >> 12 & 1 == 1
    }

    /// Whether a processor with AVX2 has AVX-VNNI, too.
    pub(super) fn vnni() -> bool {
        __cpuid_count(7, 0).eax >= 1 && __cpuid_count(7, 1).eax >> 4 & 1 == 1
    }

    pub(super) fn is_of_amd() -> bool {
        let vendor = __cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }

    /// Whether a processor with AVX-512 also has AMX with 8-bit tiles, and this process may use them: Linux
    /// grants it per process, on request. Other systems are not supported.
    pub(super) fn tiles() -> bool {
        let seven = __cpuid_count(7, 0).edx;
        // SAFETY: AVX-512 is only there with OSXSAVE.
        let saved = unsafe { xcr0() };
        let there = seven >> 24 & 3 == 3 && saved >> 17 & 3 == 3; // AMX-TILE, AMX-INT8; configuration, data
        there && permitted()
    }

    #[cfg(target_os = "linux")]
    fn permitted() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        let answer: i64;
        // SAFETY: a system call that reads and writes no memory of ours; it changes RCX and R11.
        unsafe {
            core::arch::asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => answer,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") TILE_DATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        answer == 0
    }

    #[cfg(not(target_os = "linux"))]
    fn permitted() -> bool {
        false
    }

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the caller has checked OSXSAVE.
        unsafe { _xgetbv(0) }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    /// Whether the processor has SDOT.
    pub(super) fn dotprod() -> bool {
        if cfg!(target_feature = "dotprod") {
            return true;
        }
        // Linux (4.11 on) answers reads of this register from user space; elsewhere they may trap.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let features: u64;
            // SAFETY: reads a register that the kernel emulates.
            unsafe {
                core::arch::asm!("mrs {}, ID_AA64ISAR0_EL1", out(reg) features, options(pure, nomem, nostack));
            }
            features >> 44 & 15 != 0
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        false
    }

    /// Whether the processor has SMMLA.
    pub(super) fn i8mm() -> bool {
        if cfg!(target_feature = "i8mm") {
            return true;
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let features: u64;
            // SAFETY: as in `dotprod`.
            unsafe {
                core::arch::asm!("mrs {}, ID_AA64ISAR1_EL1", out(reg) features, options(pure, nomem, nostack));
            }
            features >> 52 & 15 != 0
        }
        #[cfg(target_vendor = "apple")]
        {
            unsafe extern "C" {
                fn sysctlbyname(
                    name: *const core::ffi::c_char,
                    old: *mut i32,
                    old_len: *mut usize,
                    new: *const i32,
                    new_len: usize,
                ) -> i32;
            }
            let (mut there, mut len) = (0i32, size_of::<i32>());
            let name = c"hw.optional.arm.FEAT_I8MM";
            // SAFETY: the C library of every Apple system has this function; it writes `there`, which is as long as it says.
            let answer = unsafe { sysctlbyname(name.as_ptr(), &mut there, &mut len, core::ptr::null(), 0) };
            answer == 0 && there == 1
        }
        #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
        false
    }
}

#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
mod relaxed {
    use core::arch::wasm32::*;

    /// Whether the dot product takes one instruction, as on x86. Elsewhere it takes three, and table lookups
    /// are faster. Only the x86 instruction treats codes above 127 as unsigned.
    pub(super) fn multiplies_fast() -> bool {
        let (activations, codes) = core::hint::black_box((i8x16_splat(1), u8x16_splat(128)));
        i16x8_extract_lane::<0>(i16x8_relaxed_dot_i8x16_i7x16(activations, codes)) == 256
    }
}
