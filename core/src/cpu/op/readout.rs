//! The head: hidden states, logits, or the most likely token.
#![forbid(unsafe_code)]

use core::ops::Range;

use heapless::Vec as ArrayVec;

use super::argmax;
use super::elementwise;
use super::hadamard;
use super::linear::products;
use super::rmsnorm;
use crate::cpu::context::Context;
use crate::cpu::repack::PANEL_ROWS;
use crate::cpu::scratch::Scratch;
#[cfg(feature = "taps")]
use crate::cpu::tap::Moment;
use crate::cpu::weights::Operand;
use crate::device::{Output, Readout, Sink};
use crate::error::{Error, Name, Result};
use crate::model::program::Op;
use crate::model::split::MAX_RANKS;
use crate::model::weights::ModelBytes;
use crate::rows::Rows;

/// Rows that are read out together.
const MAX_ROWS: usize = 64;

/// Runs the head for the rows that are read out, and passes them to `sink`. Sets `last` to the row of the
/// logits buffer that was read out last, if it is still there.
pub(in crate::cpu) fn read_out<B: ModelBytes>(
    context: &Context<'_, B>,
    rows: &Rows<'_>,
    scratch: &mut Scratch<'_>,
    sink: &mut Sink<'_>,
    last: &mut Option<usize>,
) -> Result<()> {
    let program = context.weights.program();
    let cols = program.cols(program.residual);
    let mut n = 0;
    for wanted in rows.wanted() {
        // Move to the front; rows come in order, so none is overwritten before it is moved.
        let x = scratch.buffers.get_mut(program.residual, (wanted.row + 1) * cols);
        x.copy_within(wanted.row * cols.., n * cols);
        n += 1;
    }
    if n == 0 {
        return Ok(());
    }
    if context.weights.paging().is_some() {
        scratch.products.window.announce(None);
    }
    #[cfg(feature = "taps")]
    if let Some(tap) = context.tap {
        tap.moment(Moment::Head, n);
    }
    for op in &program.head {
        match *op {
            Op::RmsNorm { x, weight, eps, out } => rmsnorm::run(context, x, weight, eps, out, n, scratch)?,
            Op::Scale { x, cols, factor } if cfg!(feature = "variants") => {
                elementwise::scale(x, factor, n * cols, scratch);
            }
            _ => {
                let found = Name::new("head");
                return Err(error!(Unsupported { key: Name::new("operation"), found, expected: "a norm" }));
            }
        }
    }
    let mut wanted = rows.wanted().enumerate().peekable();
    while let Some((first, one)) = wanted.next() {
        // Rows of one kind are computed together, as far as their results fit.
        let most = match one.readout {
            Readout::Hidden => 1,
            Readout::Logits | Readout::Top(_) => scratch.logits.len() / program.vocab(),
            Readout::Best => scratch.logits.len() / PANEL_ROWS,
        };
        let most = most.clamp(1, MAX_ROWS);
        let mut group: ArrayVec<_, MAX_ROWS> = ArrayVec::new();
        let _ = group.push(one);
        while group.len() < most
            && let Some((_, next)) = wanted.next_if(|(_, next)| next.readout == one.readout)
        {
            // There is room for `most`.
            let _ = group.push(next);
        }
        let range = first..first + group.len();
        match one.readout {
            Readout::Hidden => {
                *last = None;
                let hidden = &scratch.buffers.get(program.hidden, range.end * cols)[range.start * cols..];
                sink(one.sequence, one.run_row, Output::Hidden(hidden));
            }
            Readout::Logits | Readout::Top(_) => {
                *last = Some(range.len() - 1);
                all_logits(context, range, scratch)?;
                for (one, logits) in group.iter().zip(scratch.logits.chunks_exact(program.vocab())) {
                    sink(one.sequence, one.run_row, Output::Logits(logits));
                }
            }
            Readout::Best => {
                *last = None;
                let best = best(context, range, scratch)?;
                for (one, best) in group.iter().zip(&best) {
                    sink(one.sequence, one.run_row, Output::Top(core::slice::from_ref(best)));
                }
            }
        }
    }
    #[cfg(feature = "taps")]
    if let Some(tap) = context.tap {
        tap.moment(Moment::End, n);
    }
    Ok(())
}

/// All logits after rows `rows` of the hidden states, `(rows, vocab)`.
fn all_logits<B: ModelBytes>(
    context: &Context<'_, B>,
    rows: Range<usize>,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let (n, vocab) = (rows.len(), program.vocab());
    if !cfg!(feature = "serving") || program.divided_vocab.is_none() {
        return logits(context, rows, 0..vocab, scratch);
    }
    let group = context.group()?;
    let (mine, part) = (program.tensor(program.output).rows, vocab.div_ceil(group.ranks()));
    logits(context, rows, 0..mine, scratch)?;
    // The last rank's are fewer. From the last row on, as rows move back.
    for row in (0..n).rev() {
        scratch.logits.copy_within(row * mine..(row + 1) * mine, row * part);
    }
    let gathered = &mut scratch.gathered[..group.ranks() * n * part];
    group.all_gather(&scratch.logits[..n * part], gathered)?;
    for (i, from) in gathered.chunks_exact(part).enumerate() {
        let (rank, row) = (i / n, i % n);
        let len = part.min(vocab - rank * part);
        scratch.logits[row * vocab + rank * part..][..len].copy_from_slice(&from[..len]);
    }
    Ok(())
}

/// Logits of tokens `vocab` of this rank after rows `rows` of the hidden states, `(rows, tokens)`.
fn logits<B: ModelBytes>(
    context: &Context<'_, B>,
    rows: Range<usize>,
    vocab: Range<usize>,
    scratch: &mut Scratch<'_>,
) -> Result<()> {
    let program = context.weights.program();
    let output = Operand { id: program.output, first: vocab.start, rows: vocab.len() };
    let (n, cols) = (rows.len(), program.tensor(program.output).cols);
    let mut input = program.hidden;
    match program.before_output.filter(|_| cfg!(feature = "variants")) {
        Some(rotation) => {
            hadamard::rows(context, rotation, rows.start, n, scratch)?;
            input = rotation.out;
        }
        None if rows.start > 0 => {
            // The product reads rows from the first one on.
            let hidden = scratch.buffers.get_mut(input, rows.end * cols);
            hidden.copy_within(rows.start * cols.., 0);
        }
        None => {}
    }
    let Scratch { logits, buffers, products: memory, .. } = scratch;
    let (x, y) = (buffers.get(input, n * cols), &mut logits[..n * output.rows]);
    products(context, x, n, &mut [(output, y)], memory)
}

/// The most likely token after each of `rows`, and its logit: one product per part of the vocabulary.
fn best<B: ModelBytes>(
    context: &Context<'_, B>,
    rows: Range<usize>,
    scratch: &mut Scratch<'_>,
) -> Result<ArrayVec<(u32, f32), MAX_ROWS>> {
    let program = context.weights.program();
    let (n, vocab) = (rows.len(), program.tensor(program.output).rows);
    let part = match n {
        1 => vocab,
        n => (scratch.logits.len() / n / PANEL_ROWS * PANEL_ROWS).clamp(1, vocab),
    };
    let mut best: ArrayVec<Option<(u32, f32)>, MAX_ROWS> = (0..n).map(|_| None).collect();
    let mut rows = rows;
    for first in (0..vocab).step_by(part) {
        let tokens = first..vocab.min(first + part);
        let len = tokens.len();
        logits(context, rows.clone(), tokens, scratch)?;
        if program.before_output.is_none() {
            // They are in front now.
            rows = 0..n;
        }
        for (best, logits) in best.iter_mut().zip(scratch.logits.chunks_exact(len)) {
            let Ok(found) = argmax(logits) else { continue };
            let logit = logits[found as usize];
            if best.is_none_or(|(_, most)| logit > most) {
                *best = Some((first as u32 + found, logit));
            }
        }
    }
    if cfg!(feature = "serving") && program.divided_vocab.is_some() {
        best_of_ranks(context, &mut best)?;
    }
    let none = error!(Logits { problem: "every logit is NaN or -inf" });
    best.into_iter().map(|best| best.ok_or(none)).collect()
}
/// The best of what each rank found among its tokens.
fn best_of_ranks<B: ModelBytes>(context: &Context<'_, B>, best: &mut [Option<(u32, f32)>]) -> Result<()> {
    let (program, group) = (context.weights.program(), context.group()?);
    let first = program.vocab().div_ceil(group.ranks()) * group.rank();
    // A token's bits as a float, and its logit; NaN without one.
    let mut mine: ArrayVec<f32, { 2 * MAX_ROWS }> = ArrayVec::new();
    for found in &*best {
        let (token, logit) = found.unwrap_or((0, f32::NAN));
        // There is room for all rows.
        let _ = mine.extend_from_slice(&[f32::from_bits(token + first as u32), logit]);
    }
    let mut all = [0.0; 2 * MAX_ROWS * MAX_RANKS];
    let all = &mut all[..group.ranks() * mine.len()];
    group.all_gather(&mine, all)?;
    best.fill(None);
    // In the order of tokens, so that the first of equals wins.
    for rank in all.chunks_exact(mine.len()) {
        for (best, found) in best.iter_mut().zip(rank.as_chunks::<2>().0) {
            let [token, logit] = *found;
            if !logit.is_nan() && best.is_none_or(|(_, most)| logit > most) {
                *best = Some((token.to_bits(), logit));
            }
        }
    }
    Ok(())
}
