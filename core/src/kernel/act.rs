//! Activations as 8-bit integers, the left side of every integer dot product.
#![allow(unsafe_code)]

use super::isa::{Isa, Kind};
use crate::error::{Error, Result};

/// Activations in one [`Q8Block`].
pub const Q8_LEN: usize = 64;

/// 64 activations in one order, with what a kernel needs beside them in the same two cache lines.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Q8Order {
    /// The integers, each in -127..=127.
    pub q: [i8; 64],
    /// The scale of activations `16 g .. 16 g + 16` at `[g]`.
    pub scale: [f32; 4],
    /// Minus the sum of `q[4 j .. 4 j + 4]` at `[j]`: what an unsigned weight code of zero point 1
    /// starts from.
    pub minus_sum: [i16; 16],
    pad: [u32; 4],
}

/// 64 quantized activations: `x[i] = q[i] * scale[i / 16]`.
///
/// A scale covers 16 activations, half of llama.cpp's Q8_0, because that costs the kernels nothing
/// more than 32 would and lowers the error of the logits by about an eighth.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Q8Block {
    /// Activation `i` at `[i]`.
    pub natural: Q8Order,
    /// Activation `4 i + s` at `[16 s + i]`: the order in which shifting a vector of 2-bit codes by
    /// 0, 2, 4 and 6 bits brings out the weights.
    pub strided: Q8Order,
}

// SAFETY: integers, floats and arrays of them, without padding (64 + 16 + 32 + 16 = 128 = 2 x 64), so
// that every bit pattern, zero included, is a value.
unsafe impl bytemuck::Zeroable for Q8Order {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Q8Order {}
// SAFETY: two `Q8Order`s without padding.
unsafe impl bytemuck::Zeroable for Q8Block {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Q8Block {}

impl Default for Q8Block {
    fn default() -> Self {
        bytemuck::Zeroable::zeroed()
    }
}

/// Blocks that a row of `cols` activations takes; the last one is filled up with zeros.
pub const fn q8_blocks(cols: usize) -> usize {
    cols.div_ceil(Q8_LEN)
}

/// Quantizes `x` of shape `(tokens, cols)` into `out` of shape `(tokens, q8_blocks(cols))`.
///
/// Per 16 activations: `scale = max|x| / 127`, `q = x / scale` rounded half away from zero. A group
/// holding an infinity or NaN gets scale NaN, so that it shows in every output; one whose magnitudes
/// are all below 2^-100 counts as zero. The bits are the same on every ISA.
pub fn quantize(isa: Isa, x: &[f32], cols: usize, out: &mut [Q8Block]) -> Result<()> {
    let tokens = x.len().checked_div(cols).unwrap_or(0);
    if tokens.checked_mul(cols) != Some(x.len()) {
        return Err(Error::Length {
            what: "activations (a multiple of the columns)",
            expected: cols as u64,
            found: x.len() as u64,
        });
    }
    let blocks = q8_blocks(cols);
    if out.len() != tokens * blocks {
        return Err(Error::Length {
            what: "quantized activations",
            expected: (tokens * blocks) as u64,
            found: out.len() as u64,
        });
    }
    if cols == 0 {
        return Ok(());
    }
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(blocks)) {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind exists only where AVX2 does.
            Kind::Avx2 | Kind::Avx512Vnni => unsafe { quantize_avx2(x, out) },
            #[allow(unreachable_patterns, reason = "the kinds differ by target")]
            _ => quantize_row(x, out),
        }
    }
    Ok(())
}

/// The same code as [`quantize_row`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_avx2(x: &[f32], out: &mut [Q8Block]) {
    quantize_row(x, out);
}

#[inline(always)]
fn quantize_row(x: &[f32], out: &mut [Q8Block]) {
    let (whole, rest) = x.as_chunks::<Q8_LEN>();
    for (x, out) in whole.iter().zip(&mut *out) {
        quantize_block(x, out);
    }
    if let (false, Some(out)) = (rest.is_empty(), out.get_mut(whole.len())) {
        let mut last = [0.0; Q8_LEN];
        last[..rest.len()].copy_from_slice(rest);
        quantize_block(&last, out);
    }
}

#[inline(always)]
fn quantize_block(x: &[f32; 64], out: &mut Q8Block) {
    const TINY: u32 = (127 - 100) << 23; // 2^-100
    const INFINITE: u32 = 0xff << 23;
    let Q8Block { natural, strided } = out;
    for (g, (x, q)) in x.as_chunks::<16>().0.iter().zip(natural.q.as_chunks_mut::<16>().0).enumerate() {
        // Magnitudes compare like their bits, with NaN above infinity.
        let mut max = 0;
        for v in x {
            max = max.max(v.to_bits() & 0x7fff_ffff);
        }
        let (scale, inverse) = if max >= INFINITE {
            (f32::NAN, 0.0)
        } else if max < TINY {
            (0.0, 0.0)
        } else {
            (f32::from_bits(max) / 127.0, 127.0 / f32::from_bits(max))
        };
        natural.scale[g] = scale;
        for (q, &v) in q.iter_mut().zip(x) {
            let v = v * inverse;
            // The largest float below 1/2, or 0.49999997 would round to 1.
            let half = f32::from_bits(0x3eff_ffff).copysign(v);
            // SAFETY: |v| <= 127.00002 for finite x, 0 or NaN otherwise; NaN is dealt with below.
            *q = if max >= INFINITE { 0 } else { unsafe { (v + half).to_int_unchecked::<i32>() as i8 } };
        }
    }
    for (i, four) in natural.q.as_chunks::<4>().0.iter().enumerate() {
        for s in 0..4 {
            strided.q[16 * s + i] = four[s];
        }
    }
    strided.scale = natural.scale;
    for order in [natural, strided] {
        for (sum, q) in order.minus_sum.iter_mut().zip(order.q.as_chunks::<4>().0) {
            *sum = -(i16::from(q[0]) + i16::from(q[1]) + i16::from(q[2]) + i16::from(q[3]));
        }
    }
}
