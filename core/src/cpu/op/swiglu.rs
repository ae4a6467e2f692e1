//! The gated activation of the feed-forward block.
#![forbid(unsafe_code)]

use super::exp::exp;
use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::model::weights::ModelBytes;

/// `gate = silu(gate) * up`, both `(rows, cols)`.
pub(super) fn gate_rows<B: ModelBytes>(context: &Context<'_, B>, gate: &mut [f32], up: &[f32], cols: usize) {
    let isa = context.isa;
    for_each_chunk(context.pool_for(gate.len()), gate, cols, &|t, gate| {
        swiglu(isa, gate, &up[t * cols..(t + 1) * cols]);
    });
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
