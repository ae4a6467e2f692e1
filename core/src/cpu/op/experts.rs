//! Feed-forward blocks of which each row uses some experts.
#![forbid(unsafe_code)]

use super::linear::{gated, products};
use super::route::Route;
use crate::cpu::context::Context;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::dispatch;
use crate::cpu::weights::Operand;
use crate::error::Result;
use crate::model::program::Experts;
use crate::model::weights::ModelBytes;

/// [`Op::Experts`](crate::model::program::Op::Experts). Each expert computes the rows that use it: its weights are
/// read once a batch, or not at all.
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    experts: &Experts,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let Experts { router, gate, up, down, used, normalize, clamp, .. } = *experts;
    let program = context.weights.program();
    let (router_spec, down_spec) = (program.tensor(router), program.tensor(down));
    let (count, cols) = (router_spec.rows, router_spec.cols);
    let (f, out) = (down_spec.cols, down_spec.rows_each());
    let Scratch { buffers, delta, up: up_rows, products: memory, .. } = scratch;
    let [x, probabilities, routed, gate_rows, to] = buffers.disjoint([
        (experts.x, n * cols),
        (experts.probabilities, n * count),
        (experts.routed, n * cols),
        (experts.gated, n * f),
        (experts.to, n * out),
    ])?;
    products(context, x, n, &mut [(Operand::whole(program, router), &mut *probabilities)], memory)?;
    for row in probabilities.chunks_exact_mut(count) {
        dispatch(context.isa, Route { row, used, normalize });
    }
    for expert in 0..count {
        let rows = || (0..n).map(|row| (row, probabilities[row * count + expert])).filter(|(_, p)| *p != 0.0);
        let mut m = 0;
        for ((row, _), to) in rows().zip(routed.chunks_exact_mut(cols)) {
            to.copy_from_slice(&x[row * cols..][..cols]);
            m += 1;
        }
        if m == 0 {
            continue;
        }
        let of_expert = |id| Operand { id, first: expert * f, rows: f };
        let halves = [of_expert(gate), of_expert(up)];
        gated(context, &routed[..m * cols], halves, [&mut *gate_rows, &mut *up_rows], (m, clamp), memory)?;
        let (down, delta) = (Operand { id: down, first: expert * out, rows: out }, &mut delta[..m * out]);
        products(context, &gate_rows[..m * f], m, &mut [(down, &mut *delta)], memory)?;
        for ((row, p), delta) in rows().zip(delta.chunks_exact(out)) {
            to[row * out..][..out].iter_mut().zip(delta).for_each(|(to, delta)| *to += p * delta);
        }
    }
    Ok(())
}
