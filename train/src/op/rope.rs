//! Heads, normalized if there is a norm, then rotated to their positions and multiplied by a factor.
//!
//! ```text
//! y = c R x        dx = c R^T dy        y' = c R x'        R: the rotation by the angles of a position, times the scaling's magnitude
//! ```
//! A rotation may have pairs of only the first elements of a head; the others are multiplied by the factor alone.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use shohin_core::cpu::Isa;
use shohin_core::cpu::op::rope::{rotate, rotate_interleaved};
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::model::program::RopePairing;
use shohin_core::model::rope::Rope;
use shohin_core::pool::Pool;

use super::{Gradient, ROWS, add, norm};

/// Cosines and sines of all positions, times the magnitude.
#[derive(Debug, Default)]
pub(crate) struct Angles {
    /// `(positions, pairs)`
    cos: Vec<f32>,
    /// `(positions, pairs)`
    sin: Vec<f32>,
    /// `(positions, pairs)`, of the rotation back.
    back: Vec<f32>,
    /// Of a head that are rotated, at most `head_dim / 2`.
    pairs: usize,
}

impl Angles {
    /// Those of at least `positions` positions.
    pub(crate) fn extend(&mut self, rope: &Rope, positions: usize) {
        self.pairs = rope.speeds().len();
        let mut position = self.cos.len().checked_div(self.pairs).unwrap_or(0);
        let len = self.cos.len().max(positions * self.pairs);
        self.cos.resize(len, 0.0);
        self.sin.resize(len, 0.0);
        while position * self.pairs < len {
            let at = position * self.pairs..(position + 1) * self.pairs;
            rope.angles(position, &mut self.cos[at.clone()], &mut self.sin[at]);
            position += 1;
        }
        let known = self.back.len();
        self.back.extend(self.sin[known..].iter().map(|sin| -sin));
    }

    /// Bytes for `positions` positions of `pairs` pairs.
    pub(crate) const fn bytes(positions: usize, pairs: usize) -> u64 {
        (positions * pairs * 3 * size_of::<f32>()) as u64
    }
}

struct Rotate<'a> {
    of: Heads<'a>,
    back: bool,
    /// Of each row.
    positions: &'a [u32],
    cols: usize,
    /// `(rows, cols)`
    x: &'a mut [f32],
}

impl SimdOp for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Heads { angles, pairing, dim, factor, .. } = self.of;
        let pairs = angles.pairs;
        let sines = if self.back { &angles.back } else { &angles.sin };
        for (position, row) in self.positions.iter().zip(self.x.chunks_exact_mut(self.cols)) {
            let at = *position as usize * pairs;
            let (cos, sin) = (&angles.cos[at..at + pairs], &sines[at..at + pairs]);
            for head in row.chunks_exact_mut(dim) {
                let rotated = &mut head[..2 * pairs];
                match pairing {
                    RopePairing::Neox => rotate(rotated, cos, sin),
                    RopePairing::Interleaved => rotate_interleaved(rotated, cos, sin),
                }
            }
            if factor != 1.0 {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
}

/// What all heads of a batch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a> {
    pub(crate) angles: &'a Angles,
    pub(crate) pairing: RopePairing,
    /// Elements of a head.
    pub(crate) dim: usize,
    /// What heads are multiplied by.
    pub(crate) factor: f32,
    /// Of each row.
    pub(crate) positions: &'a [u32],
    /// `(head_dim)`
    pub(crate) norm: Option<&'a [f32]>,
    pub(crate) eps: f32,
}

impl Heads<'_> {
    fn rotate(&self, pool: &dyn Pool, isa: Isa, x: &mut [f32], cols: usize, back: bool) {
        for_each_chunk(pool, x, ROWS * cols, &|i, x| {
            let positions = &self.positions[i * ROWS..];
            dispatch(isa, Rotate { of: *self, back, positions, cols, x });
        });
    }

    /// `x (rows, cols)` to `out`.
    pub(crate) fn forward(&self, pool: &dyn Pool, isa: Isa, x: &[f32], cols: usize, out: &mut [f32]) {
        match self.norm {
            Some(weight) => norm::forward(pool, isa, x, weight, self.eps, out),
            None => out.copy_from_slice(x),
        }
        self.rotate(pool, isa, out, cols, false);
    }

    /// The tangent of the result from those of `x (rows, cols)` and of the norm's weights; `x` is read if there is a norm.
    pub(crate) fn tangent(
        &self,
        pool: &dyn Pool,
        isa: Isa,
        x: &[f32],
        [dx, dw]: [Option<&[f32]>; 2],
        cols: usize,
        out: &mut [f32],
    ) {
        match (self.norm, dx) {
            (Some(weight), dx) => norm::tangent(pool, isa, x, weight, self.eps, [dx, dw], out),
            (None, Some(dx)) => out.copy_from_slice(dx),
            (None, None) => out.fill(0.0),
        }
        self.rotate(pool, isa, out, cols, false);
    }

    /// The gradient of `x`, and of the norm's weights; `x` is read if there is a norm. `dy` is overwritten.
    pub(crate) fn backward(
        &self,
        pool: &dyn Pool,
        isa: Isa,
        x: &[f32],
        dy: &mut [f32],
        cols: usize,
        dx: Option<Gradient<'_>>,
        dw: Option<&mut [f32]>,
    ) {
        self.rotate(pool, isa, dy, cols, true);
        match (self.norm, dx) {
            (Some(weight), dx) => norm::backward(pool, isa, [x, dy], weight, self.eps, dx, dw),
            (None, Some(dx)) => add::backward(pool, dy, dx),
            (None, None) => {}
        }
    }
}
