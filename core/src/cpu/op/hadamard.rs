//! Rotations by Hadamard matrices, as fast transforms.
#![forbid(unsafe_code)]

use super::LANES;
use crate::cpu::context::Context;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::model::hadamard::{Basis, HeadOrder};
use crate::model::program::Hadamard;
use crate::model::weights::ModelBytes;

/// [`Op::Hadamard`](crate::model::program::Op::Hadamard), of `n` rows.
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    op: Hadamard,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    rows(context, op, 0, n, scratch)
}

/// Rotates rows `first..first + n` of the input to the front of the output.
pub(super) fn rows<B: ModelBytes>(
    context: &Context<'_, B>,
    Hadamard { x, out, basis, inverse }: Hadamard,
    first: usize,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    // The program has as many as its operations name.
    let Some(basis) = context.weights.program().bases.get(basis) else { return Ok(()) };
    let cols = basis.cols;
    let out = if x == out {
        scratch.buffers.get_mut(out, n * cols)
    } else {
        let [x, out] = scratch.buffers.disjoint([(x, (first + n) * cols), (out, n * cols)])?;
        for (x, out) in x[first * cols..].chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
            match basis.heads {
                Some(order) => reorder(x, order, out),
                None => out.copy_from_slice(x),
            }
        }
        out
    };
    let isa = context.isa;
    for_each_chunk(context.pool_for(out.len()), out, cols, &|_, row| {
        dispatch(isa, Rotate { row, basis, inverse });
    });
    Ok(())
}

/// Puts the heads of a row in `order`.
fn reorder(x: &[f32], HeadOrder { keys, heads }: HeadOrder, out: &mut [f32]) {
    let (dim, each) = (x.len() / heads, heads / keys);
    for (head, x) in x.chunks_exact(dim).enumerate() {
        let place = head % keys * each + head / keys;
        out[place * dim..][..dim].copy_from_slice(x);
    }
}

/// `row = H (s * row) / sqrt(n)` on blocks of `n` elements, or `s * (H row) / sqrt(n)`.
struct Rotate<'a> {
    /// `(cols)`
    row: &'a mut [f32],
    basis: &'a Basis,
    inverse: bool,
}

impl SimdOp for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Rotate { row, basis, inverse } = self;
        let scale = 1.0 / libm::sqrtf(basis.block as f32);
        let signs = || basis.signs.chunks_exact(basis.block).map(Some).chain(core::iter::repeat(None));
        for (block, signs) in row.chunks_exact_mut(basis.block).zip(signs()) {
            if let Some(signs) = signs.filter(|_| !inverse) {
                block.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
            }
            transform(block);
            match signs.filter(|_| inverse) {
                Some(signs) => block.iter_mut().zip(signs).for_each(|(x, sign)| *x *= scale * sign),
                None => block.iter_mut().for_each(|x| *x *= scale),
            }
        }
    }
}

/// `x = H x` with the Hadamard matrix of Sylvester, `H[r][c] = (-1)^popcount(r & c)`, of a power of two of elements: `log2(n)` additions
/// each (Fino & Algazi 1976).
#[inline(always)]
pub(crate) fn transform(x: &mut [f32]) {
    let (groups, rest) = x.as_chunks_mut::<LANES>();
    let mut step = 1;
    if rest.is_empty() {
        for group in groups {
            within::<1>(group);
            within::<2>(group);
            within::<4>(group);
            within::<8>(group);
        }
        step = LANES;
    }
    while step < x.len() {
        for pair in x.chunks_exact_mut(2 * step) {
            let (a, b) = pair.split_at_mut(step);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        step *= 2;
    }
}

/// The sums and differences of elements that are `STEP` apart, in one vector.
#[inline(always)]
fn within<const STEP: usize>(x: &mut [f32; LANES]) {
    let old = *x;
    *x = core::array::from_fn(|i| match i & STEP {
        0 => old[i] + old[i + STEP],
        _ => old[i - STEP] - old[i],
    });
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::cpu::isa::Isa;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.0 - 1.0).collect()
    }

    /// Against the matrix in f64, with the same bits on every instruction set.
    #[test]
    fn equals_the_matrix() {
        for block in [16, 32, 128, 1024, 2048] {
            let cols = 3 * block;
            let x = numbers(cols);
            let signs: Vec<f32> = (0..cols).map(|i| if i * i % 7 < 3 { -1.0 } else { 1.0 }).collect();
            let explicit = Basis { cols, block, signs, heads: None };
            let identity = Basis { signs: Vec::new(), ..explicit.clone() };
            for basis in [&explicit, &identity] {
                let sign = |i: usize| basis.signs.get(i).map_or(1.0, |sign| f64::from(*sign));
                for inverse in [false, true] {
                    let mut first: Option<Vec<f32>> = None;
                    for isa in Isa::available() {
                        let mut row = x.clone();
                        dispatch(isa, Rotate { row: &mut row, basis, inverse });
                        let first = first.get_or_insert_with(|| row.clone());
                        assert!(row.iter().zip(&*first).all(|(a, b)| a.to_bits() == b.to_bits()));
                    }
                    for (i, found) in first.unwrap().iter().enumerate() {
                        let (start, r) = (i / block * block, i % block);
                        let sum: f64 = (0..block)
                            .map(|c| {
                                let h = if (r & c).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                                let s = if inverse { 1.0 } else { sign(start + c) };
                                h * s * f64::from(x[start + c])
                            })
                            .sum();
                        let s = if inverse { sign(i) } else { 1.0 };
                        let want = s * sum / libm::sqrt(block as f64);
                        assert!((f64::from(*found) - want).abs() < 1e-5, "{block} {i}: {found} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn small_blocks_are_transformed() {
        for n in [1, 2, 4, 8] {
            let mut x = numbers(n);
            let old = x.clone();
            transform(&mut x);
            transform(&mut x);
            assert!(x.iter().zip(&old).all(|(x, old)| (x - n as f32 * old).abs() < 1e-5));
        }
        let mut x = [1.0, 2.0, 3.0, 5.0];
        transform(&mut x);
        assert_eq!(x, [11.0, -3.0, -5.0, 1.0]);
    }

    /// Heads 0 to 5 of two key heads: those of the first are 0, 2 and 4.
    #[test]
    fn heads_are_put_side_by_side() {
        let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut out = [0.0; 12];
        reorder(&x, HeadOrder { keys: 2, heads: 6 }, &mut out);
        assert_eq!(out, [0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 2.0, 3.0, 6.0, 7.0, 10.0, 11.0]);
    }
}
