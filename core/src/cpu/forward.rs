//! Runs a program's operations on the CPU; each has a file in `op/`.
#![forbid(unsafe_code)]

use super::cache::CpuCache;
use super::context::Context;
use super::op::{
    attention, conv, delta_net, elementwise, embed, exchange, experts, gated, hadamard, linear, rmsnorm,
    select,
};
use super::scratch::{CurrentRows, Scratch};
#[cfg(feature = "taps")]
use super::tap::Moment;
use crate::error::{Error, Result};
use crate::model::program::Op;
use crate::model::weights::ModelBytes;
use crate::rows::{Rows, Segment};

/// Runs `rows` through the body: fills the caches at their positions and leaves the residual stream.
pub(super) fn body<B: ModelBytes>(
    context: &Context<'_, B>,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let half = program.heads.dim / 2;
    for (i, rope) in program.rotations.iter().enumerate() {
        let CurrentRows { cos, sin, rotation_len, .. } = &mut scratch.current;
        for Segment { row, tokens, position, .. } in rows.segments() {
            for t in 0..tokens.len() {
                let at = i * *rotation_len + (row + t) * half;
                rope.angles(position + t, &mut cos[at..at + half], &mut sin[at..at + half]);
            }
        }
    }
    program.body.iter().enumerate().try_for_each(|(i, op)| match (op, scratch.current.taking_part) {
        (Op::Merge { .. }, _) | (_, None | Some(1..)) => {
            if context.weights.paging().is_some() {
                announce(context, i, rows, scratch);
            }
            #[cfg(feature = "taps")]
            if let Some(tap) = context.tap {
                tap.moment(Moment::Operation(i), scratch.current.taking_part.unwrap_or(rows.len()));
            }
            run(context, op, rows, caches, scratch)
        }
        (_, Some(0)) => Ok(()),
    })?;
    #[cfg(feature = "taps")]
    if let Some(tap) = context.tap {
        tap.moment(Moment::End, rows.len());
    }
    Ok(())
}

/// Ends what [`body`] began for the same rows.
pub(super) fn tail<B: ModelBytes>(
    context: &Context<'_, B>,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    context.weights.program().tail.iter().try_for_each(|op| run(context, op, rows, caches, scratch))
}

/// Tells the window of the weights which matrix comes after operation `op` of the body.
fn announce<B: ModelBytes>(context: &Context<'_, B>, op: usize, rows: &Rows<'_>, scratch: &mut Scratch<'_>) {
    let program = context.weights.program();
    let later = program.body.get(op + 1..).unwrap_or(&[]);
    let first = later.iter().find_map(|op| op.matrices().first().copied());
    let output = || rows.wanted().next().map(|_| program.output);
    scratch.products.window.announce(match program.body.get(op) {
        // It computes several products, and does not know the last one beforehand.
        Some(Op::Experts(_)) | None => None,
        Some(_) => first.or_else(output),
    });
}

fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    op: &Op,
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let n = scratch.current.taking_part.unwrap_or(rows.len());
    match *op {
        Op::Experts(_)
        | Op::Select { .. }
        | Op::Merge { .. }
        | Op::Gated { .. }
        | Op::Bias { .. }
        | Op::Add { .. }
        | Op::Scale { .. }
        | Op::Conv(_)
        | Op::DeltaNet(_)
        | Op::GatedNorm(_)
        | Op::SplitHeads { .. }
        | Op::Factor { .. }
        | Op::Hadamard(_)
            if !cfg!(feature = "variants") =>
        {
            Err(error!(Device { problem: "this build lacks the feature `variants`" }))
        }
        Op::Embed { table, out } => embed::run(context, table, out, rows, scratch),
        Op::RmsNorm { x, weight, eps, out } => rmsnorm::run(context, x, weight, eps, out, n, scratch),
        Op::Linear { x, ref outputs } => linear::run(context, x, outputs, n, scratch),
        Op::LinearAdd { x, weight, to } => linear::add(context, x, weight, to, n, scratch),
        Op::LinearSwiglu { x, gate, up, out } => linear::swiglu(context, x, [gate, up], out, n, scratch),
        Op::Gated { activation, gate, up, cols } => {
            gated::run(context, activation, (gate, up), (n, cols), scratch)
        }
        Op::Bias { x, bias } => {
            elementwise::bias(context, x, bias, n, scratch);
            Ok(())
        }
        Op::Conv(ref op) => conv::run(context, op, rows, caches, scratch),
        Op::DeltaNet(ref op) => delta_net::run(context, op, rows, caches, scratch),
        Op::GatedNorm(ref op) => delta_net::gated_norm(context, op, n, scratch),
        Op::SplitHeads { x, a, b, heads, dim } => delta_net::split_heads((x, a, b), (heads, dim), n, scratch),
        Op::Factor { x, cols, factor } => {
            // One number, as its shape says.
            let factor = context.weights.vector(factor).first().copied().unwrap_or(1.0);
            elementwise::scale(x, factor, n * cols, scratch);
            Ok(())
        }
        Op::Hadamard(op) => hadamard::run(context, op, n, scratch),
        Op::Add { x, to, cols } => elementwise::add(x, to, n * cols, scratch),
        Op::Scale { x, cols, factor } => {
            elementwise::scale(x, factor, n * cols, scratch);
            Ok(())
        }
        Op::Experts(ref op) => experts::run(context, op, n, scratch),
        Op::RopeStore { layer, rotation, q, k, v, norm, eps } => {
            let heads = attention::Heads { layer, rotation, buffers: [q, k, v], norm, eps };
            attention::store(context, heads, n, rows, caches, scratch)
        }
        Op::Attention { layer, window, q, out } => {
            attention::attend(context, (layer, window), (q, out), n, rows, caches, scratch)
        }
        Op::Select { layer, x, router, out } => {
            select::select(context, layer, (x, router, out), rows, caches, scratch)
        }
        Op::Merge { x, to } => select::merge(context, x, to, rows, scratch),
        Op::Exchange(op) => exchange::run(context, op, n, scratch),
    }
}
