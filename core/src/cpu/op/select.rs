//! Blocks that some rows skip; see [`depths`](crate::model::depths).
#![forbid(unsafe_code)]

use super::dot;
use crate::cache::presence;
use crate::cpu::cache::CpuCache;
use crate::cpu::context::Context;
use crate::cpu::scratch::Scratch;
use crate::error::{Error, Result};
use crate::model::program::{BufferId, TensorId};
use crate::model::weights::ModelBytes;
use crate::rows::Rows;

/// [`Op::Select`](crate::model::program::Op::Select): copies the rows of `x` for which the router is over 0 to
/// `selected`, and notes in the caches which they are.
pub(in crate::cpu) fn select<B: ModelBytes>(
    context: &Context<'_, B>,
    layer: usize,
    (x, router, selected): (BufferId, TensorId, BufferId),
    rows: &Rows<'_>,
    caches: &mut [&mut CpuCache<'_>],
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let router = context.weights.vector(router);
    let (cols, half) = (router.len(), context.weights.program().heads.dim / 2);
    let Scratch { buffers, current, .. } = scratch;
    let len = rows.len() * cols;
    let [x, selected] = buffers.disjoint([(x, len), (selected, len)])?;
    let mut n = 0;
    for segment in rows.segments() {
        let present = caches[segment.sequence].present(layer)?;
        let bits = present.ok_or(error!(Device { problem: "the cache was made by another one" }))?;
        for t in 0..segment.tokens.len() {
            let row = segment.row + t;
            let x = &x[row * cols..][..cols];
            let gate = dot(router, x);
            let takes_part = gate > 0.0;
            presence::set(bits, segment.position + t, takes_part);
            if takes_part {
                selected[n * cols..][..cols].copy_from_slice(x);
                let (from, to) = (row * half..(row + 1) * half, n * half..(n + 1) * half);
                current.routed_cos[to.clone()].copy_from_slice(&current.cos[from.clone()]);
                current.routed_sin[to].copy_from_slice(&current.sin[from]);
                n += 1;
            }
            current.gates[row] = if takes_part { gate } else { 0.0 };
        }
    }
    current.swap_angles();
    current.taking_part = Some(n);
    Ok(())
}

/// [`Op::Merge`](crate::model::program::Op::Merge).
pub(in crate::cpu) fn merge<B: ModelBytes>(
    context: &Context<'_, B>,
    x: BufferId,
    to: BufferId,
    rows: &Rows<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let cols = context.weights.program().cols(x);
    let Scratch { buffers, current, .. } = scratch;
    let len = rows.len() * cols;
    let [x, to] = buffers.disjoint([(x, len), (to, len)])?;
    let gates = current.gates.iter().zip(to.chunks_exact_mut(cols));
    for ((gate, to), x) in gates.filter(|(gate, _)| **gate > 0.0).zip(x.chunks_exact(cols)) {
        to.iter_mut().zip(x).for_each(|(to, x)| *to += gate * (x - *to));
    }
    current.swap_angles();
    current.taking_part = None;
    Ok(())
}
