//! Rotations of rows by Hadamard matrices: of what rotated weights multiply, and of heads of attention.
#![forbid(unsafe_code)]

use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::hadamard::{rotate_head, transform};
use crate::model::program::Hadamard;
use crate::model::weights::ModelBytes;
use crate::model::{Basis, HeadOrder};
use crate::pool::Pool;

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

/// Rotates each head of `rows`, see [`rotate_head`].
pub(super) fn heads(isa: Isa, pool: &dyn Pool, rows: &mut [f32], (size, head_dim): (usize, usize)) {
    for_each_chunk(pool, rows, size, &|_, row| dispatch(isa, RotateHeads { row, head_dim }));
}

/// Rotates the heads of a row.
struct RotateHeads<'a> {
    /// `(heads, head_dim)`
    row: &'a mut [f32],
    head_dim: usize,
}

impl SimdOp for RotateHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.row.chunks_exact_mut(self.head_dim).for_each(rotate_head);
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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

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

    /// Heads 0 to 5 of two key heads: those of the first are 0, 2 and 4.
    #[test]
    fn heads_are_put_side_by_side() {
        let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut out = [0.0; 12];
        reorder(&x, HeadOrder { keys: 2, heads: 6 }, &mut out);
        assert_eq!(out, [0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 2.0, 3.0, 6.0, 7.0, 10.0, 11.0]);
    }
}
