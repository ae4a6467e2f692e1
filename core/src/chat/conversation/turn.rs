//! A reply in progress, and what it reports.
#![forbid(unsafe_code)]

use super::prompt::Prompt;
use crate::chat::message::{ChatMessage, FunctionCall};
use crate::chat::model::ChatModel;
use crate::chat::options::TurnOptions;
use crate::chat::reply::{Reply, ReplyParser};
use crate::error::Result;
use crate::generate::{Action, Detokenizer, Generation, Reason};
use crate::sample::Logprob;
use crate::tokenizer::Special;
use alloc::string::String;
use alloc::vec::Vec;

/// Ends the thoughts when their budget is used up.
const STOP_THINKING: &str = "\n</think>\n\n";

/// A step of a reply: a token and the text that is now certain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece<'c> {
    /// The token that the model chose; `None` for text that a cancelled reply had held back.
    pub token: Option<u32>,
    /// The tokens that are now part of the reply: `token`, unless it ended the reply, and the tokens of an
    /// inserted end of thoughts.
    pub tokens: &'c [u32],
    /// Text as the model wrote it, markers included.
    pub text: &'c str,
    /// The part of `text` for the reader.
    pub content: &'c str,
    /// The part of `text` that is reasoning.
    pub reasoning: &'c str,
    /// Calls that are now complete.
    pub tool_calls: &'c [FunctionCall],
    /// The token's log-probability, if asked for.
    pub logprob: Option<f32>,
    /// The most likely alternatives, if asked for.
    pub top: &'c [Logprob],
    /// Set on the last piece.
    pub done: Option<Reason>,
}

/// Token counts of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that the session had computed for earlier turns.
    pub cached_tokens: usize,
    /// Tokens of the reply.
    pub completion_tokens: usize,
    /// Tokens of the reply that are reasoning.
    pub reasoning_tokens: usize,
    /// Messages that [`OverflowPolicy::Trim`](crate::chat::OverflowPolicy::Trim) left out.
    pub dropped_messages: usize,
    /// Tokens that [`OverflowPolicy::Shift`](crate::chat::OverflowPolicy::Shift) dropped in this turn.
    pub dropped_tokens: usize,
    /// Tokens of the conversation dropped in all turns.
    pub forgotten_tokens: usize,
}

impl Usage {
    /// That of several replies to the same prompt: its tokens count once, as known as in the first reply.
    pub fn sum(replies: impl IntoIterator<Item = Usage>) -> Usage {
        let add = |sum: Usage, one: Usage| Usage {
            completion_tokens: sum.completion_tokens + one.completion_tokens,
            reasoning_tokens: sum.reasoning_tokens + one.reasoning_tokens,
            ..sum
        };
        replies.into_iter().reduce(add).unwrap_or_default()
    }
}

/// The result of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: Reason,
    /// The reply, split into content, reasoning and calls.
    pub message: ChatMessage,
    /// The whole text as the model wrote it.
    pub text: String,
    /// Token counts.
    pub usage: Usage,
}

/// A reply in progress.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) generation: Generation,
    pub(super) prompt: Prompt,
    cached: usize,
    /// `None` for raw text.
    parser: Option<ReplyParser>,
    budget: usize,
    thoughts: usize,
    stop_thinking: Vec<u32>,
    pub(super) text: String,
    /// Text of the latest piece.
    latest: String,
    tokens: Vec<u32>,
    calls: Vec<FunctionCall>,
    top: Vec<Logprob>,
}

impl Turn {
    /// The turn before its first piece, of which the session has `cached` tokens.
    pub(super) fn new(
        model: &ChatModel<'_>,
        generation: Generation,
        prompt: Prompt,
        cached: usize,
        options: &TurnOptions,
    ) -> Turn {
        let mut stop_thinking = Vec::new();
        model.tokenizer.encode(STOP_THINKING, Special::Parse, &mut stop_thinking);
        let thinking = prompt.thinks(options);
        let mut parser = prompt.messages.is_some().then(|| options.parser(model, thinking));
        let text = prompt.unfinished.as_ref().map(|reply| reply.text.clone()).unwrap_or_default();
        let mut budget = options.thinking.budget();
        if let Some(parser) = &mut parser {
            parser.resume(&text);
            if parser.thinking() {
                budget = budget.saturating_sub(prompt.begun().len());
            }
        }
        Turn {
            generation,
            prompt,
            cached,
            parser,
            budget,
            thoughts: 0,
            stop_thinking,
            text,
            latest: String::new(),
            tokens: Vec::new(),
            calls: Vec::new(),
            top: Vec::new(),
        }
    }

    pub(super) fn logits(
        &mut self,
        detokenizer: &dyn Detokenizer,
        logits: &[f32],
    ) -> Result<Option<Piece<'_>>> {
        let before = self.generation.reply().len();
        let Some(generated) = self.generation.logits(detokenizer, logits)? else { return Ok(None) };
        let (token, logprob, done) = (generated.token, generated.logprob, generated.done);
        self.latest.clear();
        self.latest.push_str(generated.text);
        self.top.clear();
        self.top.extend_from_slice(generated.top);
        self.tokens.clear();
        self.text.push_str(&self.latest);
        let is_part = self.generation.reply().len() > before;
        if let Some(parser) = &mut self.parser {
            if done.is_some() {
                parser.finish(&self.latest);
            } else {
                parser.push(&self.latest);
                if parser.thinking() && is_part {
                    self.thoughts += 1;
                    if self.thoughts == self.budget.max(1) {
                        self.generation.force(detokenizer, &self.stop_thinking);
                    }
                }
            }
        }
        self.tokens.extend_from_slice(self.generation.reply().get(before..).unwrap_or_default());
        Ok(Some(self.piece(Some(token), logprob, done)))
    }

    pub(super) fn cancel(&mut self) -> Option<Piece<'_>> {
        if self.generation.reason().is_some() {
            return None;
        }
        self.latest.clear();
        self.latest.push_str(self.generation.cancel());
        self.text.push_str(&self.latest);
        self.top.clear();
        self.tokens.clear();
        if let Some(parser) = &mut self.parser {
            parser.finish(&self.latest);
        }
        let done = self.generation.reason();
        Some(self.piece(None, None, done))
    }

    fn piece(&mut self, token: Option<u32>, logprob: Option<f32>, done: Option<Reason>) -> Piece<'_> {
        let delta = self.parser.as_ref().map(ReplyParser::delta);
        self.calls.clear();
        let calls = delta.map_or(&[][..], |delta| &delta.calls);
        self.calls.extend(calls.iter().filter_map(|call| FunctionCall::parse(call).ok()));
        Piece {
            token,
            tokens: &self.tokens,
            text: &self.latest,
            content: delta.map_or(&self.latest, |delta| &delta.content),
            reasoning: delta.and_then(|delta| delta.reasoning.as_deref()).unwrap_or_default(),
            tool_calls: &self.calls,
            logprob,
            top: &self.top,
            done,
        }
    }

    pub(super) fn usage(&self, dropped_before: usize) -> Usage {
        Usage {
            prompt_tokens: self.prompt.tokens.len(),
            cached_tokens: self.cached,
            completion_tokens: self.generation.reply().len(),
            reasoning_tokens: self.thoughts,
            dropped_messages: self.prompt.dropped_messages,
            dropped_tokens: self.generation.dropped(),
            forgotten_tokens: dropped_before + self.generation.dropped(),
        }
    }

    pub(super) fn finish(&self, dropped_before: usize) -> Option<Finish> {
        let reason = match self.generation.next() {
            Action::Done(reason) => reason,
            Action::Decode(_) | Action::Shift { .. } => return None,
        };
        let plain = Reply { content: self.text.clone(), ..Reply::default() };
        let reply = self.parser.as_ref().map_or(&plain, ReplyParser::reply);
        let (message, text) = (ChatMessage::from(reply), self.text.clone());
        Some(Finish { reason, message, text, usage: self.usage(dropped_before) })
    }
}
