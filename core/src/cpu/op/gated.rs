//! Gated activations whose halves were computed before.
#![forbid(unsafe_code)]

use super::exp::exp;
use super::swiglu::swiglu;
use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::Result;
use crate::model::program::{Activation, BufferId};
use crate::model::weights::ModelBytes;

/// [`Op::Gated`](crate::model::program::Op::Gated), of `n` rows of `cols` elements.
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    activation: Activation,
    (gate, up): (BufferId, BufferId),
    (n, cols): (usize, usize),
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let [gate, up] = scratch.buffers.disjoint([(gate, n * cols), (up, n * cols)])?;
    let isa = context.isa;
    for_each_chunk(context.pool_for(gate.len()), gate, cols, &|t, gate| {
        gated(isa, activation, gate, &up[t * cols..(t + 1) * cols]);
    });
    Ok(())
}

/// `gate[i] = gelu(gate[i]) * up[i]` with
/// `gelu(x) = x / 2 (1 + tanh(u)) = x / (1 + e^(-2 u))`, `u = sqrt(2 / pi) (x + 0.044715 x^3)` (Hendrycks & Gimpel 2016).
struct GeluTanh<'a> {
    /// `(n)`, overwritten.
    gate: &'a mut [f32],
    /// `(n)`
    up: &'a [f32],
}

impl SimdOp for GeluTanh<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        /// `2 sqrt(2 / pi)`
        const FACTOR: f32 = 1.595_769_2;
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            let x = *g;
            *g = x / (1.0 + exp(-FACTOR * (x + 0.044_715 * x * x * x))) * u;
        }
    }
}

/// `gate[i] = max(gate[i], 0)^2 * up[i]`
struct Relu2<'a> {
    /// `(n)`, overwritten.
    gate: &'a mut [f32],
    /// `(n)`
    up: &'a [f32],
}

impl SimdOp for Relu2<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            let x = if *g < 0.0 { 0.0 } else { *g };
            *g = x * x * u;
        }
    }
}

/// `gate[i] = up[i] / (1 + e^-gate[i])`
struct Sigmoid<'a> {
    /// `(n)`, overwritten.
    gate: &'a mut [f32],
    /// `(n)`
    up: &'a [f32],
}

impl SimdOp for Sigmoid<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (g, u) in self.gate.iter_mut().zip(self.up) {
            *g = u / (1.0 + exp(-*g));
        }
    }
}

/// `gate[i] = activation(gate[i]) * up[i]`, both `(n)`; compiled for `isa` with this crate's options, as [`swiglu`] is.
#[cfg_attr(not(target_os = "none"), inline(never))]
pub fn gated(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => swiglu(isa, gate, up),
        Activation::GeluTanh => dispatch(isa, GeluTanh { gate, up }),
        Activation::Relu2 => dispatch(isa, Relu2 { gate, up }),
        Activation::Sigmoid => dispatch(isa, Sigmoid { gate, up }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_f64() {
        let mut x = -100.0f32;
        while x < 100.0 {
            let wide = f64::from(x);
            let gelu = 0.5
                * wide
                * (1.0
                    + libm::tanh(
                        libm::sqrt(2.0 / core::f64::consts::PI) * (wide + 0.044_715 * wide * wide * wide),
                    ));
            let relu = wide.max(0.0) * wide.max(0.0);
            let sigmoid = 1.0 / (1.0 + libm::exp(-wide));
            let of =
                [(Activation::GeluTanh, gelu), (Activation::Relu2, relu), (Activation::Sigmoid, sigmoid)];
            for (activation, want) in of {
                for isa in Isa::available() {
                    let mut gate = [x; 3];
                    gated(isa, activation, &mut gate, &[1.5, 0.0, -2.0]);
                    assert!(
                        (f64::from(gate[0]) - 1.5 * want).abs() <= 2e-6 * want.abs() + 1e-7,
                        "{activation:?} {x}: {} {want}",
                        gate[0]
                    );
                    assert!(
                        gate[1] == 0.0 && (gate[2] * -0.75 - gate[0]).abs() <= gate[0].abs() * 2e-7 + 1e-37
                    );
                }
            }
            x += 0.173;
        }
        let mut gate = [f32::NAN];
        gated(Isa::detect(), Activation::Relu2, &mut gate, &[1.0]);
        assert!(gate[0].is_nan());
    }
}
