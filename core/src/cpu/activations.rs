//! Activations as 8-bit integers, the left side of every integer dot product.
#![allow(unsafe_code)]

use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Kind;
use crate::error::{Error, Result};
use crate::magnitude::largest_bits;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use simd128 as group;

/// Activations in one [`Q8Block`].
pub const Q8_LEN: usize = 64;

/// 64 quantized activations: `x[i] = q[i] * factor[i / 32] * step`.
///
/// Every 32 activations have their own scale, but all scales of a token are integers times one step. So a dot
/// product stays exact in integers for a whole block of weights, which is faster than a float scale per
/// group.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct Q8Block {
    /// The integers, each in -127..=127.
    pub q: [i8; 64],
    /// The factor, 0 to 32767, of each 32 activations.
    pub factor: [i32; 2],
    /// The same factors.
    pub float_factor: [f32; 2],
    /// The sum of each 16 integers.
    pub sums: [i16; 4],
    /// Minus the sum of `q * factor`: the initial value of a dot product with codes of zero point 1.
    pub start: i32,
    /// The step: the same for all activations of a token.
    pub step: f32,
}

// SAFETY: integers, floats and arrays of them, without padding (64 + 8 + 8 + 8 + 4 + 4 = 96), so that every bit
// pattern, zero included, is a value.
unsafe impl bytemuck::Zeroable for Q8Block {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Q8Block {}

impl Default for Q8Block {
    fn default() -> Self {
        bytemuck::Zeroable::zeroed()
    }
}

/// Blocks per row of `cols` activations; the last one is padded with zeros.
pub const fn q8_blocks(cols: usize) -> usize {
    cols.div_ceil(Q8_LEN)
}

/// Quantizes `x` of shape `(tokens, cols)` into `out` of shape `(tokens, q8_blocks(cols))`.
///
/// Factors are scaled so that the largest magnitude of a token has 32767. Per 32 activations, `q` is rounded
/// half away from zero with the smallest factor that keeps `|q| <= 127`; then the factor is fitted to that
/// `q` by least squares. A token with an infinity or NaN gets step NaN, so that it shows in every output; one
/// whose magnitudes are all below 2^-90 counts as zero. The bits are the same on every ISA.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes.
pub fn quantize(isa: Isa, x: &[f32], cols: usize, out: &mut [Q8Block]) -> Result<()> {
    let tokens = x.len().checked_div(cols).unwrap_or(0);
    if tokens.checked_mul(cols) != Some(x.len()) {
        return Err(error!(Length {
            what: "activations (a multiple of the columns)",
            expected: cols as u64,
            found: x.len() as u64,
        }));
    }
    let blocks = q8_blocks(cols);
    if out.len() != tokens * blocks {
        return Err(error!(Length {
            what: "quantized activations",
            expected: (tokens * blocks) as u64,
            found: out.len() as u64,
        }));
    }
    if cols == 0 {
        return Ok(());
    }
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(blocks)) {
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind exists only where AVX2 does.
            Kind::Avx2 | Kind::AvxVnni | Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => unsafe {
                quantize_avx2(x, out)
            },
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

/// The factor of the group with the largest magnitude.
const LARGEST: f32 = 32767.0;

#[inline(always)]
fn quantize_row(x: &[f32], out: &mut [Q8Block]) {
    const TINY: u32 = (127 - 90) << 23; // 2^-90
    const INFINITE: u32 = 0xff << 23;
    let max = largest_bits(x);
    if !(TINY..INFINITE).contains(&max) {
        let step = if max < INFINITE { 0.0 } else { f32::NAN };
        for block in out {
            *block = bytemuck::Zeroable::zeroed();
            block.step = step;
        }
        return;
    }
    let step = f32::from_bits(max) / (127.0 * LARGEST);
    let to_factor = LARGEST / f32::from_bits(max);
    let (whole, rest) = x.as_chunks::<Q8_LEN>();
    for (x, out) in whole.chunks(BLOCKS).zip(out.chunks_mut(BLOCKS)) {
        quantize_blocks(x, step, to_factor, out);
    }
    if let (false, Some(out)) = (rest.is_empty(), out.get_mut(whole.len())) {
        let mut last = [0.0; Q8_LEN];
        last[..rest.len()].copy_from_slice(rest);
        quantize_blocks(&[last], step, to_factor, core::slice::from_mut(out));
    }
}

/// Blocks whose groups are quantized side by side: a vector division takes as long as a scalar one.
const BLOCKS: usize = 8;
const GROUPS: usize = 2 * BLOCKS;

/// Up to [`BLOCKS`] blocks.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn quantize_blocks(x: &[[f32; 64]], step: f32, to_factor: f32, out: &mut [Q8Block]) {
    let groups = x.as_flattened().as_chunks::<32>().0;
    let mut largest = [0.0; GROUPS];
    for (largest, x) in largest.iter_mut().zip(groups) {
        *largest = group::largest(x);
    }
    let (mut factors, mut inverses) = ([0; GROUPS], [0.0; GROUPS]);
    for g in 0..GROUPS {
        // Rounded up, so that |q| <= 127, unless it is so close above an integer that |q| < 127.5.
        let exact = largest[g] * to_factor - 0.002;
        // SAFETY: no magnitude is above the token's largest, which gives 32767 or a little more.
        let floor = unsafe { exact.to_int_unchecked::<i32>() };
        let factor = (floor + i32::from((floor as f32) < exact)).min(LARGEST as i32);
        factors[g] = factor;
        inverses[g] = if factor > 0 { 1.0 / (factor as f32 * step) } else { 0.0 };
    }
    let (mut sums, mut squares, mut products) = ([[0; 2]; GROUPS], [0; GROUPS], [0.0; GROUPS]);
    for (g, x) in groups.iter().enumerate() {
        let q = &mut out[g / 2].q.as_chunks_mut::<32>().0[g % 2];
        (sums[g], squares[g], products[g]) = group::round(x, inverses[g], q);
    }
    for g in 0..GROUPS {
        // The factor that brings q closest to x, by least squares.
        let fit = products[g] / squares[g].max(1) as f32;
        // SAFETY: q is x rounded, so that the factor changes by half at most.
        let factor = unsafe { (factors[g] as f32 * fit + 0.5).to_int_unchecked::<i32>() };
        factors[g] = factor.min(LARGEST as i32);
    }
    for (i, out) in out.iter_mut().enumerate() {
        let [[a, b], [c, d]] = [sums[2 * i], sums[2 * i + 1]];
        out.factor = [factors[2 * i], factors[2 * i + 1]];
        out.float_factor = out.factor.map(|factor| factor as f32);
        out.sums = [a, b, c, d].map(|sum: i32| sum as i16);
        out.start = -((a + b) * out.factor[0]) - (c + d) * out.factor[1];
        out.step = step;
    }
}

/// The loops over a group of 32 activations, which compilers vectorize for most targets.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod group {
    use crate::cpu::op::finish;
    use crate::magnitude::largest_bits;

    /// The largest magnitude.
    #[inline(always)]
    pub(super) fn largest(x: &[f32; 32]) -> f32 {
        f32::from_bits(largest_bits(x))
    }

    /// Writes `x * inverse`, rounded half away from zero, to `q`. Returns the sums of its halves, the sum of its
    /// squares, and the sum of its products with `x * inverse`, whose magnitudes are below 127.5.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(super) fn round(x: &[f32; 32], inverse: f32, q: &mut [i8; 32]) -> ([i32; 2], i32, f32) {
        let (mut sum, mut square, mut product) = ([[0; 8]; 2], [0; 8], [0.0f32; 8]);
        for (k, (q, x)) in q.as_chunks_mut::<8>().0.iter_mut().zip(x.as_chunks::<8>().0).enumerate() {
            for i in 0..8 {
                let v = x[i] * inverse;
                // The largest float below 1/2, or 0.49999997 would round to 1.
                let half = f32::from_bits(0x3eff_ffff).copysign(v);
                // SAFETY: |v| < 127.5, since no |x| is above 127 * 1.003 factors of steps.
                let rounded = unsafe { (v + half).to_int_unchecked::<i32>() };
                q[i] = rounded as i8;
                sum[k / 2][i] += rounded;
                square[i] += rounded * rounded;
                product[i] += v * rounded as f32;
            }
        }
        (sum.map(|sum| sum.iter().sum()), square.iter().sum(), finish(&product))
    }
}
