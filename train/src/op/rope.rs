//! Heads, normalized if there is a norm, then rotated to their positions.
//!
//! ```text
//! y = m R x        dx = m R^T dy        y' = m R x'        R: the rotation by the angles of a position, m: the scaling's magnitude
//! ```
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use shohin_core::cpu::Isa;
use shohin_core::cpu::op::rope::{rotate, rotate_interleaved};
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::model::program::RopePairing;
use shohin_core::model::rope::Rope;
use shohin_core::pool::Pool;

use super::{Gradient, ROWS, norm};

/// Cosines and sines of all positions, times the magnitude.
#[derive(Debug, Default)]
pub(crate) struct Angles {
    /// `(positions, head_dim / 2)`
    cos: Vec<f32>,
    /// `(positions, head_dim / 2)`
    sin: Vec<f32>,
    /// `(positions, head_dim / 2)`, of the rotation back.
    back: Vec<f32>,
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
    angles: &'a Angles,
    back: bool,
    pairing: RopePairing,
    positions: &'a [u32],
    cols: usize,
    x: &'a mut [f32],
}

impl SimdOp for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pairs = self.angles.pairs;
        let sines = if self.back { &self.angles.back } else { &self.angles.sin };
        for (position, row) in self.positions.iter().zip(self.x.chunks_exact_mut(self.cols)) {
            let at = *position as usize * pairs;
            let (cos, sin) = (&self.angles.cos[at..at + pairs], &sines[at..at + pairs]);
            for head in row.chunks_exact_mut(2 * pairs) {
                match self.pairing {
                    RopePairing::Neox => rotate(head, cos, sin),
                    RopePairing::Interleaved => rotate_interleaved(head, cos, sin),
                }
            }
        }
    }
}

/// What all heads of a batch share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a> {
    pub(crate) angles: &'a Angles,
    pub(crate) pairing: RopePairing,
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
            dispatch(isa, Rotate { angles: self.angles, back, pairing: self.pairing, positions, cols, x });
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
            (None, Some(dx)) if dx.add => super::add(pool, dx.data, dy),
            (None, Some(dx)) => dx.data.copy_from_slice(dy),
            (None, None) => {}
        }
    }
}
