//! Runs a reply, with a progress bar during a long prompt, until Ctrl-C.

use crate::error::Result;
use crate::progress::progress_from;
use crate::terminal::{self, CtrlC};
use shohin::core::chat::Finish;
use shohin::core::generate::Reason;
use shohin::speculate::Guesses;
use shohin::{Chat, Piece, Reply, Step, Timings};
use std::time::{Duration, Instant};

/// Runs a reply to its end; Ctrl-C cancels it.
pub(crate) fn follow(
    mut reply: Reply<'_>,
    on_piece: &mut dyn FnMut(&Piece) -> Result,
) -> Result<(Finish, Timings)> {
    let start = Instant::now();
    let ctrl_c = CtrlC::listen();
    let cached = reply.timings().cached;
    let mut bar = None;
    while let Some(step) = reply.step() {
        match step? {
            Step::Prompt(done, of) => {
                // Only for prompts that take a while.
                if start.elapsed() > Duration::from_millis(500) || bar.is_some() {
                    let bar = bar.get_or_insert_with(|| {
                        progress_from(done - cached, "prefill", "tokens", of - cached)
                    });
                    bar.set_position((done - cached) as u64);
                }
            }
            Step::Piece(piece) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                on_piece(&piece)?;
            }
        }
        if ctrl_c.pressed()
            && let Some(piece) = reply.cancel()
        {
            on_piece(&piece)?;
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let timings = *reply.timings();
    Ok((reply.finish()?, timings))
}

/// What ended a reply.
pub(crate) fn reason_text(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "the model",
        Reason::StopString => "a stop text",
        Reason::Length => "--max-tokens",
        Reason::ContextFull => "a full context",
        Reason::Cancelled => "Ctrl-C",
    }
}

/// A line about ranks of a split model that were lost, if there were more than `before`.
pub(crate) fn recovered(chat: &Chat, before: usize) -> Option<&'static str> {
    (chat.recoveries() > before)
        .then_some("(a rank of the split model was lost; a new group has computed the conversation again)")
}

/// A line of statistics: `prompt 5 tokens (+ 20 cached), 812 tok/s; reply 9 tokens, 406 tok/s`, and how many tokens of the
/// chat so far were guessed rightly.
pub(crate) fn line(timings: &Timings, finish: &Finish, guesses: Guesses) -> String {
    let cached = match timings.cached {
        0 => String::new(),
        n => format!(" (+ {n} cached)"),
    };
    let (prompt, reply) = (terminal::short(timings.prompt_speed()), terminal::short(timings.reply_speed()));
    let (n, m) = (timings.prompt, finish.usage.completion_tokens);
    let guesses = match guesses {
        Guesses { checked: 0, .. } => String::new(),
        Guesses { checked, right } => format!("; {right} of {checked} guesses right"),
    };
    format!("prompt {n} tokens{cached}, {prompt} tok/s; reply {m} tokens, {reply} tok/s{guesses}")
}
