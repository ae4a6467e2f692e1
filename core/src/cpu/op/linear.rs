//! Matrix products, and those that are added or gated.
#![forbid(unsafe_code)]

use heapless::Vec as ArrayVec;

use super::swiglu::gate_rows;
use crate::cpu::activations::{q8_blocks, quantize};
use crate::cpu::context::Context;
use crate::cpu::isa::Isa;
use crate::cpu::matmul::{Input, MAX_PRODUCTS, build_lut, lut_len, matmul_each};
use crate::cpu::scratch::{Inputs, Products, Scratch};
#[cfg(feature = "taps")]
use crate::cpu::tap::Product;
use crate::cpu::weights::Operand;
use crate::error::Result;
use crate::model::program::{BufferId, TensorId};
use crate::model::weights::ModelBytes;

/// [`Op::Linear`](crate::model::program::Op::Linear).
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    x: BufferId,
    outputs: &[(TensorId, BufferId)],
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let Some((first, _)) = outputs.first() else { return Ok(()) };
    let cols = program.tensor(*first).cols;
    let wanted = outputs.iter().map(|(weight, y)| (*y, n * program.tensor(*weight).rows));
    let (x, ys) = scratch.buffers.one_and_several((x, n * cols), wanted)?;
    let weights = outputs.iter().map(|(weight, _)| Operand::whole(program, *weight));
    // There are at most as many outputs.
    let mut all: ArrayVec<_, MAX_PRODUCTS> = weights.zip(ys).collect();
    products(context, x, n, &mut all, &mut scratch.products)
}

/// [`Op::LinearAdd`](crate::model::program::Op::LinearAdd).
pub(in crate::cpu) fn add<B: ModelBytes>(
    context: &Context<'_, B>,
    x: BufferId,
    weight: TensorId,
    to: BufferId,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let (weight, cols) = (Operand::whole(program, weight), program.tensor(weight).cols);
    let Scratch { buffers, delta, products: memory, .. } = scratch;
    let delta = &mut delta[..n * weight.rows];
    products(context, buffers.get(x, n * cols), n, &mut [(weight, &mut *delta)], memory)?;
    buffers.get_mut(to, delta.len()).iter_mut().zip(&*delta).for_each(|(to, delta)| *to += delta);
    Ok(())
}

/// [`Op::LinearSwiglu`](crate::model::program::Op::LinearSwiglu), of the matrices of the gate and of what it lets through.
pub(in crate::cpu) fn swiglu<B: ModelBytes>(
    context: &Context<'_, B>,
    x: BufferId,
    weights: [TensorId; 2],
    out: BufferId,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let (weights, cols) = (weights.map(|id| Operand::whole(program, id)), program.tensor(weights[0]).cols);
    let Scratch { buffers, up, products, .. } = scratch;
    let [x, out] = buffers.disjoint([(x, n * cols), (out, n * weights[0].rows)])?;
    gated(context, x, weights, [out, up], (n, None), products)
}

/// `out = silu(x G^T) * (x U^T)` for `n` rows, perhaps [clamped](crate::model::program::Experts::clamp); the second half is computed in
/// `up`.
pub(super) fn gated<B: ModelBytes>(
    context: &Context<'_, B>,
    x: &[f32],
    [gate, up]: [Operand; 2],
    [out, up_rows]: [&mut [f32]; 2],
    (n, clamp): (usize, Option<f32>),
    memory: &mut Products<'_>,
) -> Result<()> {
    let (out, up_rows) = (&mut out[..n * gate.rows], &mut up_rows[..n * up.rows]);
    products(context, x, n, &mut [(gate, &mut *out), (up, &mut *up_rows)], memory)?;
    gate_rows(context, out, up_rows, gate.rows, clamp);
    Ok(())
}

/// `y (n, rows) = x W^T` for each of `products`, which share `x (n, cols)`.
pub(super) fn products<B: ModelBytes>(
    context: &Context<'_, B>,
    x: &[f32],
    n: usize,
    products: &mut [(Operand, &mut [f32])],
    memory: &mut Products<'_>,
) -> Result<()> {
    compute(context, x, n, products, memory)?;
    #[cfg(feature = "taps")]
    if let Some(tap) = context.tap {
        let program = context.weights.program();
        for (operand, y) in products {
            let spec = program.tensor(operand.id);
            let Operand { first, rows, .. } = *operand;
            let (x, y) = (&x[..n * spec.cols], &y[..n * rows]);
            tap.product(&Product { name: &spec.name, first, rows, cols: spec.cols, x, y });
        }
    }
    Ok(())
}

fn compute<B: ModelBytes>(
    context: &Context<'_, B>,
    x: &[f32],
    n: usize,
    products: &mut [(Operand, &mut [f32])],
    memory: &mut Products<'_>,
) -> Result<()> {
    let Some((first, _)) = products.first() else { return Ok(()) };
    let (weights, isa) = (context.weights, context.isa);
    let cols = weights.program().tensor(first.id).cols;
    let input = quantized(isa, x, n, cols, &mut memory.inputs)?;
    if let Some(paging) = weights.paging() {
        return memory.window.products(context, paging, &input, n, products);
    }
    let mut matrices: ArrayVec<_, MAX_PRODUCTS> = ArrayVec::new();
    for (operand, y) in products {
        // No operation has more.
        let _ = matrices.push((weights.rows(*operand)?, &mut **y));
    }
    let pool = context.pool_for_products(n, matrices.iter().map(|product| product.0));
    matmul_each(isa, pool, &input, n, &mut matrices)
}

/// `x (n, cols)`, and its integers and lookup tables if products use them.
fn quantized<'s>(
    isa: Isa,
    x: &'s [f32],
    n: usize,
    cols: usize,
    memory: &'s mut Inputs<'_>,
) -> Result<Input<'s>> {
    if memory.q8.is_empty() {
        return Ok(Input { f32: x, q8: None, luts: &[] });
    }
    let q8 = &mut memory.q8[..n * q8_blocks(cols)];
    quantize(isa, x, cols, q8)?;
    let len = if memory.lookups.include(isa, n) { lut_len(isa, n, cols) } else { 0 };
    let luts = &mut memory.luts[..len];
    if len > 0 {
        build_lut(isa, q8, cols, luts)?;
    }
    Ok(Input { f32: x, q8: Some(q8), luts })
}
