//! What the ranks of a split program send each other.
#![forbid(unsafe_code)]

use crate::cpu::context::Context;
use crate::cpu::scratch::Scratch;
use crate::error::Result;
use crate::model::program::Exchange;
use crate::model::weights::ModelBytes;

/// [`Op::Exchange`](crate::model::program::Op::Exchange), of `n` rows.
pub(in crate::cpu) fn run<B: ModelBytes>(
    context: &Context<'_, B>,
    exchange: Exchange,
    n: usize,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let (program, group) = (context.weights.program(), context.group()?);
    let Scratch { buffers, gathered, .. } = scratch;
    match exchange {
        Exchange::Gather { x, to } | Exchange::GatherAdd { x, to } => {
            let (part, ranks) = (program.cols(x), group.ranks());
            let all = &mut gathered[..ranks * n * part];
            group.all_gather(buffers.get(x, n * part), all)?;
            // (ranks, rows, part) to (rows, ranks, part)
            let to = buffers.get_mut(to, n * ranks * part);
            for (i, from) in all.chunks_exact(part).enumerate() {
                let at = (i % n * ranks + i / n) * part;
                let to = &mut to[at..at + part];
                match exchange {
                    Exchange::GatherAdd { .. } => to.iter_mut().zip(from).for_each(|(to, x)| *to += x),
                    _ => to.copy_from_slice(from),
                }
            }
            Ok(())
        }
        Exchange::ReduceAdd { x, to } => {
            let len = n * program.cols(x);
            let [sums, to] = buffers.disjoint([(x, len), (to, len)])?;
            group.all_reduce(sums, &mut gathered[..group.ranks() * len])?;
            to.iter_mut().zip(sums).for_each(|(to, x)| *to += *x);
            Ok(())
        }
        Exchange::Send { x, rank } => group.send(rank, buffers.get(x, n * program.cols(x))),
        Exchange::Receive { x, rank } => group.receive(rank, buffers.get_mut(x, n * program.cols(x))),
    }
}
