//! The gated activation of the feed-forward block.
#![forbid(unsafe_code)]

use super::exp::exp;
use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::model::weights::ModelBytes;

/// `gate = silu(gate) * up`, both `(rows, cols)`, or [`ClampedSwiglu`].
pub(super) fn gate_rows<B: ModelBytes>(
    context: &Context<'_, B>,
    gate: &mut [f32],
    up: &[f32],
    cols: usize,
    clamp: Option<f32>,
) {
    let isa = context.isa;
    for_each_chunk(context.pool_for(gate.len()), gate, cols, &|t, gate| {
        let up = &up[t * cols..(t + 1) * cols];
        match clamp.filter(|_| cfg!(feature = "variants")) {
            Some(limit) => dispatch(isa, ClampedSwiglu { gate, up, limit }),
            None => swiglu(isa, gate, up),
        }
    });
}

/// `gate[i] = silu(min(gate[i], limit)) * max(min(up[i], limit), -limit)`, as llama.cpp's `swiglu_clamp`; there is another variant that limits
/// what SiLU makes of the gate, which no model here has. NaN stays NaN.
struct ClampedSwiglu<'a> {
    /// `(n)`, overwritten.
    gate: &'a mut [f32],
    /// `(n)`
    up: &'a [f32],
    limit: f32,
}

impl SimdOp for ClampedSwiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let most = self.limit;
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            let g = if *gate > most { most } else { *gate };
            let u = if *up > most { most } else { *up };
            let u = if u < -most { -most } else { u };
            *gate = g / (1.0 + exp(-g)) * u;
        }
    }
}

/// `gate[i] = silu(gate[i]) * up[i]` with `silu(x) = x / (1 + e^-x)` (Shazeer 2020).
#[derive(Debug)]
pub struct Swiglu<'a> {
    /// `(n)`, overwritten.
    pub gate: &'a mut [f32],
    /// `(n)`
    pub up: &'a [f32],
}

impl SimdOp for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            *g = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

/// [`Swiglu`], compiled for `isa`. In the crate of a generic caller it would be compiled with that crate's options:
/// the WebAssembly modules are compiled for size, which leaves loops scalar.
#[cfg_attr(not(target_os = "none"), inline(never))]
pub fn swiglu(isa: Isa, gate: &mut [f32], up: &[f32]) {
    dispatch(isa, Swiglu { gate, up });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamped_products_agree_with_f64() {
        let mut x = -20.0f32;
        while x < 20.0 {
            for up in [-30.0f32, -7.0, -1.5, 0.0, 3.0, 7.5] {
                for isa in Isa::available() {
                    let mut gate = [x; 3];
                    dispatch(isa, ClampedSwiglu { gate: &mut gate, up: &[up; 3], limit: 7.0 });
                    let g = f64::from(x).min(7.0);
                    let want = g / (1.0 + libm::exp(-g)) * f64::from(up).clamp(-7.0, 7.0);
                    assert!((f64::from(gate[2]) - want).abs() <= 4e-7 * want.abs() + 1e-12, "{x} {up}");
                }
            }
            x += 0.37;
        }
        let mut gate = [f32::NAN];
        dispatch(Isa::detect(), ClampedSwiglu { gate: &mut gate, up: &[1.0], limit: 7.0 });
        assert!(gate[0].is_nan());
    }

    #[test]
    fn agrees_with_f64() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let mut gate = [x];
            Swiglu { gate: &mut gate, up: &[1.5] }.run();
            let want = f64::from(x) / (1.0 + libm::exp(-f64::from(x))) * 1.5;
            assert!(
                (f64::from(gate[0]) - want).abs() <= 4e-7 * want.abs() + 1e-36,
                "{x}: {} {want}",
                gate[0]
            );
            x += 0.173;
        }
    }
}
