//! `y = silu(g) u` with `silu(g) = g s`, `s = 1 / (1 + e^-g)`
//!
//! ```text
//! du = dy g s        dg = dy u s (1 + g (1 - s))        y' = g' u s (1 + g (1 - s)) + u' g s
//! ```
#![forbid(unsafe_code)]

use shohin_core::cpu::Isa;
use shohin_core::cpu::op::exp::exp;
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::cpu::simd::{SimdOp, dispatch};
use shohin_core::pool::Pool;

use super::{Gradient, for_each_pair};

struct Forward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((y, g), u) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *y = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

/// `out = silu(gate) * up`, all `(rows, cols)`.
pub(crate) fn forward(pool: &dyn Pool, isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    const LEN: usize = 1 << 14;
    for_each_chunk(pool, out, LEN, &|i, out| {
        let part = i * LEN..i * LEN + out.len();
        dispatch(isa, Forward { gate: &gate[part.clone()], up: &up[part], out });
    });
}

struct Tangent<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    dgate: Option<&'a [f32]>,
    dup: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl SimdOp for Tangent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.out.len();
        let (gate, up) = (&self.gate[..n], &self.up[..n]);
        self.out.fill(0.0);
        if let Some(dgate) = self.dgate {
            for i in 0..n {
                let s = 1.0 / (1.0 + exp(-gate[i]));
                self.out[i] = dgate[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s));
            }
        }
        if let Some(dup) = self.dup {
            for i in 0..n {
                self.out[i] += dup[i] * (gate[i] / (1.0 + exp(-gate[i])));
            }
        }
    }
}

/// The tangent of the result from those of `gate` and `up`, all `(rows, cols)`; a tangent that is not there is 0.
pub(crate) fn tangent(
    pool: &dyn Pool,
    isa: Isa,
    [gate, up]: [&[f32]; 2],
    [dgate, dup]: [Option<&[f32]>; 2],
    out: &mut [f32],
) {
    const LEN: usize = 1 << 14;
    for_each_chunk(pool, out, LEN, &|i, out| {
        let part = i * LEN..i * LEN + out.len();
        let [dgate, dup] = [dgate, dup].map(|d| d.map(|d| &d[part.clone()]));
        dispatch(isa, Tangent { gate: &gate[part.clone()], up: &up[part.clone()], dgate, dup, out });
    });
}

struct Backward<'a, const ADD: bool> {
    gate: &'a [f32],
    up: &'a [f32],
    dy: &'a [f32],
    dgate: &'a mut [f32],
    dup: &'a mut [f32],
}

impl<const ADD: bool> SimdOp for Backward<'_, ADD> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.dy.len();
        let (gate, up) = (&self.gate[..n], &self.up[..n]);
        let (dgate, dup) = (&mut self.dgate[..n], &mut self.dup[..n]);
        for i in 0..n {
            let (g, u, dy) = (gate[i], up[i], self.dy[i]);
            let s = 1.0 / (1.0 + exp(-g));
            let (dg, du) = (dy * u * s * (1.0 + g * (1.0 - s)), dy * g * s);
            dgate[i] = if ADD { dgate[i] + dg } else { dg };
            dup[i] = if ADD { dup[i] + du } else { du };
        }
    }
}

/// The gradients of `gate` and `up`, of rows of `cols`; both are added, or both replace what is there.
pub(crate) fn backward(
    pool: &dyn Pool,
    isa: Isa,
    [gate, up, dy]: [&[f32]; 3],
    cols: usize,
    [dgate, dup]: [Gradient<'_>; 2],
) {
    let (add_gate, add_up) = (dgate.add, dup.add);
    let (dgate, dup) = (dgate.data, dup.data);
    if add_gate != add_up {
        // One of them then begins with zeros.
        if !add_gate {
            dgate.fill(0.0);
        }
        if !add_up {
            dup.fill(0.0);
        }
    }
    let add = add_gate || add_up;
    for_each_pair(pool, (dgate, cols), (dup, cols), &|row, dgate, dup| {
        let part = row * cols..row * cols + dgate.len();
        let (gate, up, dy) = (&gate[part.clone()], &up[part.clone()], &dy[part]);
        match add {
            true => dispatch(isa, Backward::<true> { gate, up, dy, dgate, dup }),
            false => dispatch(isa, Backward::<false> { gate, up, dy, dgate, dup }),
        }
    });
}
