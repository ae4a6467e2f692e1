//! Plain loops compiled once for each instruction set.
//!
//! Rust adds and multiplies floats exactly in the order written, so every compilation of a loop gives the
//! same bits; the wider ones are only faster.
#![allow(unsafe_code)]

use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Kind;

/// A computation in plain loops. Mark `run`, and the functions it calls in its loops, `#[inline(always)]`:
/// code that is not inlined is compiled for the target's baseline.
pub trait SimdOp {
    /// The result of the computation.
    type Output;
    /// The computation.
    fn run(self) -> Self::Output;
}

/// Runs `op`, compiled for `isa`.
#[inline]
pub fn dispatch<W: SimdOp>(isa: Isa, op: W) -> W::Output {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the processor has these features.
        Kind::Avx2 | Kind::AvxVnni => unsafe { x86::avx2(op) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => unsafe { x86::avx512(op) },
        // If NEON and simd128 are used at all, they are part of the baseline.
        _ => op.run(),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::SimdOp;

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2<W: SimdOp>(op: W) -> W::Output {
        op.run()
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
    pub(super) fn avx512<W: SimdOp>(op: W) -> W::Output {
        op.run()
    }
}
