//! What of a conversation fits its session.
#![forbid(unsafe_code)]

use crate::chat::message::{ChatMessage, lend};
use crate::chat::model::ChatModel;
use crate::chat::options::{OverflowPolicy, TurnOptions};
use crate::chat::template::{Role, Style};
use crate::error::Result;
use crate::generate::Overflow;
use alloc::vec::Vec;
use core::ops::Range;

/// Attention sinks: tokens at the beginning that attention relies on, whatever their content. Four are enough
/// (arXiv 2309.17453, table 2).
const SINKS: usize = 4;

/// What a session of `capacity` tokens does when it is full. `tokens` are those of `messages`, or of a raw text.
pub(super) fn overflow(
    model: &ChatModel<'_>,
    messages: Option<&[ChatMessage]>,
    tokens: &[u32],
    capacity: usize,
    options: &TurnOptions,
) -> Result<Overflow> {
    Ok(match options.overflow {
        OverflowPolicy::Error | OverflowPolicy::Trim { .. } => Overflow::Error,
        OverflowPolicy::Shift { keep: Some(keep) } => Overflow::Shift { keep },
        OverflowPolicy::Shift { keep: None } => {
            let keep = match messages {
                Some(messages) => instruction_tokens(model, messages, tokens, options)?,
                None => 0,
            };
            Overflow::Shift { keep: keep.max(SINKS).min(capacity / 2) }
        }
    })
}

/// The oldest messages to leave out of `messages`, which are `tokens`, so that they fit a session of `capacity` tokens.
pub(super) fn left_out(
    model: &ChatModel<'_>,
    messages: &[ChatMessage],
    tokens: usize,
    capacity: usize,
    options: &TurnOptions,
) -> Result<Option<Range<usize>>> {
    let OverflowPolicy::Trim { reserve, free } = options.overflow else { return Ok(None) };
    let half = capacity / 2;
    match tokens + reserve.min(half) > capacity {
        true => oldest_exchanges(model, messages, capacity - free.min(half), options),
        false => Ok(None),
    }
}

/// Prompt tokens that are instructions: the common prefix with a conversation that ends after its system
/// messages.
fn instruction_tokens(
    model: &ChatModel<'_>,
    messages: &[ChatMessage],
    tokens: &[u32],
    options: &TurnOptions,
) -> Result<usize> {
    let system = messages.iter().position(|m| m.role != Role::System).unwrap_or(messages.len());
    // A template puts its own system message before one from the user.
    let other = [ChatMessage::new(Role::User, "")];
    let only = match model.template.system {
        Some(_) if system == 0 => &other[..],
        Some(_) | None => messages.get(..system).unwrap_or_default(),
    };
    let only = match options.encode(model, only) {
        // Templates of files may insist on a question.
        Err(_) if matches!(model.template.style, Style::File(_)) => Vec::new(),
        only => only?,
    };
    Ok(only.iter().zip(tokens).take_while(|(a, b)| a == b).count())
}

/// The oldest messages to leave out: from the first that is not a system message to a user message, at least one exchange
/// and no more than it takes until the others have at most `most` tokens; all but the last if they still have more. `None`
/// if there is only one.
fn oldest_exchanges(
    model: &ChatModel<'_>,
    messages: &[ChatMessage],
    most: usize,
    options: &TurnOptions,
) -> Result<Option<Range<usize>>> {
    let first = messages.iter().position(|m| m.role != Role::System).unwrap_or(messages.len());
    let later = messages.iter().enumerate().skip(first + 1);
    // Where the later exchanges begin, the last one first.
    let begins: Vec<usize> = later.rev().filter(|(_, m)| m.role == Role::User).map(|(i, _)| i).collect();
    let Some(mut from) = begins.first().copied() else { return Ok(None) };
    lend(messages, |messages| {
        let mut kept = messages.get(..first).unwrap_or_default().to_vec();
        // How many exchanges are kept for certain, and how many are too many: twice as many each time until they are, so that
        // no more is encoded than a few times what fits, then half of what is between. Templates write each message by itself,
        // so more messages are more tokens, with one exception: Qwen3's leaves thoughts out of replies before the last question,
        // and what a user writes within `<tool_response>` is no question. If that is all that stays, thoughts go and the line breaks before
        // replies stay, so that fewer messages can be more tokens, and more exchanges than necessary are left out.
        let (mut good, mut bad) = (1, begins.len() + 1);
        while good + 1 < bad {
            let middle = (2 * good).min(good + (bad - good) / 2);
            let Some(begin) = begins.get(middle - 1).copied() else { break };
            kept.truncate(first);
            kept.extend_from_slice(messages.get(begin..).unwrap_or_default());
            if options.encode_lent(model, &kept)?.0.len() <= most {
                (good, from) = (middle, begin);
            } else {
                bad = middle;
            }
        }
        Ok(Some(first..from))
    })
}
