//! Building the lookup tables of activations, for the instruction sets whose kernels use them.
#![allow(unsafe_code)]

use crate::cpu::activation_lut::{ActivationLut, LUT_COLS};
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::isa::{Isa, Kind};
use crate::error::{Error, Result};

/// Number of lookup tables that the kernels of `isa` use in a product of `(tokens, cols)` with matrices in
/// [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8); 0 if they use none. Without tables the reference
/// computes.
pub const fn lut_len(isa: Isa, tokens: usize, cols: usize) -> usize {
    cols.div_ceil(LUT_COLS).saturating_mul(lut_tokens(isa, tokens))
}

/// How many of `tokens` the kernels of `isa` compute by table lookup.
const fn lut_tokens(isa: Isa, tokens: usize) -> usize {
    let _ = tokens;
    match isa.kind() {
        Kind::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512Vnni => tokens,
        // AMX multiplies, whatever the format.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Amx => {
            if tokens < super::amx::TOKENS {
                tokens
            } else {
                0
            }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon | Kind::NeonDot => 0,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Kind::Simd128 => tokens,
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => tokens,
    }
}

/// Fills `out`, of [`lut_len`] elements, from `q8` of shape `(tokens, q8_blocks(cols))`.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes.
pub fn build_lut(isa: Isa, q8: &[Q8Block], cols: usize, out: &mut [ActivationLut]) -> Result<()> {
    let (blocks, each) = (q8_blocks(cols), cols.div_ceil(LUT_COLS));
    let tokens = q8.len().checked_div(blocks).unwrap_or(0);
    let lengths = [
        ("quantized activations (a multiple of the columns)", tokens * blocks, q8.len()),
        ("lookup tables", lut_len(isa, tokens, cols), out.len()),
    ];
    for (what, expected, found) in lengths {
        if expected != found {
            return Err(Error::Length { what, expected: expected as u64, found: found as u64 });
        }
    }
    if out.is_empty() {
        return Ok(());
    }
    let Some(build) = builder(isa.kind()) else { return Ok(()) };
    for (q8, out) in q8.chunks_exact(blocks).zip(out.chunks_exact_mut(each)) {
        // SAFETY: an `Isa` of this kind exists only where its instructions do.
        unsafe { build(q8, out) };
    }
    Ok(())
}

/// Builds the tables of one token. Safety: the processor has the instruction set.
type Builder = unsafe fn(&[Q8Block], &mut [ActivationLut]);

fn builder(kind: Kind) -> Option<Builder> {
    match kind {
        Kind::Scalar => None,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512Vnni | Kind::Avx512Amx => Some(super::avx2_panel::build_lut),
        #[cfg(target_arch = "aarch64")]
        Kind::Neon | Kind::NeonDot => None,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Kind::Simd128 => Some(super::simd128_lut::build_lut),
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => Some(super::simd128_lut::build_lut),
    }
}
