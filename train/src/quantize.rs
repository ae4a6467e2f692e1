//! Weights that are multiplied in place of their masters: ternary or 1-bit, in groups of [`GROUP`] along a row.
//!
//! ```text
//! d = bf16(mean |w|)
//! ternary   v = d q    q = clamp(round(w / max(d, 1e-12)), -1, 1)
//! 1-bit     v = d q    q = 1 if w >= 0, else -1
//! ```
//! `round` rounds halves to even, so that q is 0 at half a scale. It is not computed: q is 1 where w > max(d, 1e-12) / 2 and -1
//! where -w is, which is the same for every w, as no quotient of floats above 1/2 rounds to 1/2. A 0 of ternary weights is never
//! negative; the -0 of 1-bit weights counts as 0.
//!
//! A scale in bf16 is exact in the f16 of blocks, unless it is outside of the range of f16: [`pack`] stores the bits that
//! [`fake`] computes.
//!
//! The mean has a fixed order, and so the same bits everywhere: sum `i` of sixteen is that of |w| at i, 16 + i, .., 112 + i, in
//! this order; then sums i and i + 8 are added, i and i + 4, i and i + 2, and the last two; the result is divided by 128. The sum
//! of a group of numbers near the largest float overflows. Its scale is infinite then, and the weights are not finite, as they
//! are if a master is not.
#![forbid(unsafe_code)]

use half::{bf16, f16};
use shohin_core::Format;
use shohin_core::cpu::Isa;
use shohin_core::cpu::simd::{SimdOp, dispatch};

use crate::error::{Error, Result};

/// Weights that share a scale.
pub const GROUP: usize = 128;
/// Smaller scales count as this one when weights are compared with them.
const LEAST: f32 = 1e-12;

/// Ternary or 1-bit weights in groups of [`GROUP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fake {
    /// -1, 0 or 1 times the scale.
    Ternary,
    /// -1 or 1 times the scale.
    OneBit,
}

impl Fake {
    /// The format that holds what is multiplied.
    pub fn format(self) -> Format {
        match self {
            Fake::Ternary => Format::Pq2_0,
            Fake::OneBit => Format::Q1_0,
        }
    }
}

/// `bf16(mean |w|)`, in the order of the module's documentation.
#[inline(always)]
fn scale(w: &[f32; GROUP]) -> f32 {
    let mut sums = [0.0f32; 16];
    for i in 0..16 {
        let a = |j: usize| w[16 * j + i].abs();
        sums[i] = a(0) + a(1) + a(2) + a(3) + a(4) + a(5) + a(6) + a(7);
    }
    for i in 0..8 {
        sums[i] += sums[i + 8];
    }
    for i in 0..4 {
        sums[i] += sums[i + 4];
    }
    let sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    bf16::from_f32_const(sum / GROUP as f32).to_f32_const()
}

/// Writes what is multiplied in place of a group; returns its scale.
#[inline(always)]
fn group(kind: Fake, w: &[f32; GROUP], out: &mut [f32; GROUP]) -> f32 {
    let d = scale(w);
    match kind {
        Fake::Ternary => {
            let half = d.max(LEAST) / 2.0;
            // Not finite if d is not.
            let zero = d * 0.0;
            for i in 0..GROUP {
                let positive = if w[i] > half { d } else { zero };
                out[i] = if w[i] < -half { -d } else { positive };
            }
        }
        Fake::OneBit => {
            for i in 0..GROUP {
                out[i] = if w[i] >= 0.0 { d } else { -d };
            }
        }
    }
    d
}

struct Groups<'a> {
    kind: Fake,
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for Groups<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let groups = self.weights.as_chunks::<GROUP>().0.iter().zip(self.out.as_chunks_mut::<GROUP>().0);
        // A loop for each kind, and not `for_each`, which compilers leave in a function of its own.
        match self.kind {
            Fake::Ternary => {
                for (w, out) in groups {
                    group(Fake::Ternary, w, out);
                }
            }
            Fake::OneBit => {
                for (w, out) in groups {
                    group(Fake::OneBit, w, out);
                }
            }
        }
    }
}

/// Writes what is multiplied in place of `weights`, whole groups, to `out`, which is as long.
pub fn fake(isa: Isa, kind: Fake, weights: &[f32], out: &mut [f32]) {
    debug_assert!(weights.len() == out.len() && weights.len().is_multiple_of(GROUP));
    dispatch(isa, Groups { kind, weights, out });
}

/// The scale of a block whose weights are `values`; none if f16 does not hold it.
#[inline(always)]
fn stored(d: f32, values: &[f32; GROUP]) -> Option<f16> {
    let stored = f16::from_f32_const(d);
    if stored.is_finite() && stored.to_f32_const() == d {
        return Some(stored);
    }
    // Weights that are all +0 need none.
    values.iter().all(|v| v.to_bits() == 0).then_some(f16::ZERO)
}

struct Blocks<'a> {
    kind: Fake,
    weights: &'a [f32],
    bytes: &'a mut [u8],
}

impl SimdOp for Blocks<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        let format = self.kind.format();
        let blocks = self.bytes.chunks_exact_mut(format.block_bytes());
        let mut values = [0.0; GROUP];
        for (number, (w, block)) in self.weights.as_chunks::<GROUP>().0.iter().zip(blocks).enumerate() {
            let found = group(self.kind, w, &mut values);
            let Some(d) = stored(found, &values) else {
                return Err(Error::Scale { found, group: number, format: format.name() });
            };
            let (head, codes) = block.split_at_mut(2);
            head.copy_from_slice(&d.to_le_bytes());
            match self.kind {
                Fake::Ternary => {
                    for (byte, v) in codes.iter_mut().zip(values.as_chunks::<4>().0) {
                        let code = |j: usize| (1 + u8::from(v[j] > 0.0) - u8::from(v[j] < 0.0)) << (2 * j);
                        *byte = code(0) | code(1) | code(2) | code(3);
                    }
                }
                Fake::OneBit => {
                    for (byte, w) in codes.iter_mut().zip(w.as_chunks::<8>().0) {
                        *byte = (0..8).fold(0, |bits, j| bits | u8::from(w[j] >= 0.0) << j);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Packs what is multiplied in place of `weights`, whole groups: unpacked, `bytes`, blocks of [`Fake::format`], are what [`fake`]
/// computes, to the bit.
///
/// # Errors
/// [`Error::Scale`] for a scale that f16 does not hold: over 65,504, below 2^-24 or not a multiple of it, infinite, or not a
/// number, as of a group with a weight that is none. [`Error::Core`] for other lengths.
pub fn pack(isa: Isa, kind: Fake, weights: &[f32], bytes: &mut [u8]) -> Result<()> {
    let length = |what, expected: usize, found: usize| {
        let (expected, found) = (expected as u64, found as u64);
        Err(Error::Core(shohin_core::Error::Length { what, expected, found }))
    };
    match kind.format().row_bytes(weights.len()) {
        None => length("weights to pack", weights.len().next_multiple_of(GROUP), weights.len()),
        Some(expected) if expected != bytes.len() => length("bytes of packed weights", expected, bytes.len()),
        Some(_) => dispatch(isa, Blocks { kind, weights, bytes }),
    }
}

struct Masters<'a> {
    kind: Fake,
    weights: &'a mut [f32],
}

impl SimdOp for Masters<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut values = [0.0; GROUP];
        for w in self.weights.as_chunks_mut::<GROUP>().0 {
            let d = w.iter().fold(0.0f32, |most, w| most.max(w.abs()));
            if !w.iter().all(|w| *w == 0.0 || w.abs() == d) {
                continue;
            }
            let nonzero = w.iter().filter(|w| **w != 0.0).count().max(1);
            let factor = GROUP as f32 / nonzero as f32;
            let masters = w.map(|w| w * factor);
            group(self.kind, &masters, &mut values);
            if values.map(f32::to_bits) == w.map(f32::to_bits) {
                *w = masters;
            }
        }
    }
}

/// Makes masters of unpacked weights, whole groups: [`fake`] of them is the same weights, to the bit.
///
/// In a group of n weights of magnitude d and zeros, the mean of magnitudes is d n / 128: the weights become w 128 / n. A group
/// that this does not preserve is left as it is: one with other weights than that, or with a d that is not a bf16 number.
pub fn masters(isa: Isa, kind: Fake, weights: &mut [f32]) {
    debug_assert!(weights.len().is_multiple_of(GROUP));
    dispatch(isa, Masters { kind, weights });
}
