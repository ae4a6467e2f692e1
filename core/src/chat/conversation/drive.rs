//! The loop of a turn, for backends that answer at once.
#![forbid(unsafe_code)]

use super::Conversation;
use super::turn::{Finish, Piece};
use crate::error::Result;
use crate::generate::{Action, Backend, Detokenizer};
use core::ops::ControlFlow;

/// A report of [`drive`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress<'c> {
    /// Prompt tokens decoded so far, and their total.
    Prompt(usize, usize),
    /// A piece of the reply.
    Piece(Piece<'c>),
}

/// Runs the current turn to its end on a backend that answers at once. `on_progress` may break, which cancels
/// the turn.
///
/// # Errors
/// Those of the backend and of [`Conversation::logits`]. The turn then ends, too.
pub fn drive(
    conversation: &mut Conversation,
    backend: &mut dyn Backend,
    detokenizer: &dyn Detokenizer,
    on_progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Option<Finish>> {
    let outcome = run(conversation, backend, detokenizer, on_progress);
    let (held, finish) = conversation.end(backend.position());
    let truncated = backend.truncate(held);
    outcome.and(truncated).map(|()| finish)
}

fn run(
    conversation: &mut Conversation,
    backend: &mut dyn Backend,
    detokenizer: &dyn Detokenizer,
    on_progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<()> {
    backend.truncate(conversation.held())?;
    loop {
        let flow = match conversation.next() {
            Action::Done(_) => return Ok(()),
            Action::Shift { keep, drop } => {
                backend.shift(keep, drop)?;
                conversation.shifted(backend.position());
                continue;
            }
            Action::Decode(tokens) => {
                let logits = backend.feed(tokens)?;
                match conversation.logits(detokenizer, logits)? {
                    Some(piece) => on_progress(Progress::Piece(piece)),
                    None => {
                        let (decoded, of) = conversation.prompt_progress();
                        on_progress(Progress::Prompt(decoded, of))
                    }
                }
            }
        };
        if flow.is_break()
            && let Some(piece) = conversation.cancel()
        {
            let _ = on_progress(Progress::Piece(piece));
        }
    }
}
