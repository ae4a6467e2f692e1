//! What a turn answers, and the tokens of its prompt.
#![forbid(unsafe_code)]

use super::fit::left_out;
use super::prefix::PrefixState;
use crate::chat::history::{History, Known};
use crate::chat::message::{ChatMessage, lend};
use crate::chat::model::ChatModel;
use crate::chat::options::{Encoded, TurnOptions, Unfinished};
use crate::chat::template::{Role, Style, encode_next};
use crate::error::{Error, Name, Result};
use crate::generate::Detokenizer;
use alloc::string::String;
use alloc::vec::Vec;

/// What a turn answers or continues. Tokens that the session already holds are never computed again.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// These messages after the existing ones. Earlier replies keep the tokens that the model chose, reasoning included.
    Send(Vec<ChatMessage>),
    /// The last messages again: the reply to them is replaced. An error if there is no reply yet, or if the last message was
    /// not kept.
    Retry,
    /// The last reply, which was cut off, with the tokens that the model chose. The pieces are what is new; the result has
    /// the whole reply. An error as for [`Request::Retry`].
    Continue,
    /// A whole conversation, which replaces the existing messages: for hosts that receive all messages each time.
    Respond(Vec<ChatMessage>),
    /// As [`Request::Respond`]. If the conversation continues, as by [`Request::Send`], or its last messages are answered
    /// again, as by [`Request::Retry`], earlier replies keep the tokens that the model chose.
    Resume(Vec<ChatMessage>),
    /// A raw text to continue. The messages stay as they are.
    Complete(Vec<u32>),
    /// As [`Request::Respond`] or [`Request::Complete`], with what was encoded before.
    Encoded(Encoded),
}

/// What is known of a conversation when a turn begins.
#[derive(Clone, Copy)]
pub(super) struct Before<'c> {
    pub(super) history: &'c History,
    pub(super) prefix: &'c PrefixState,
    /// The last message was not kept.
    pub(super) unanswered: bool,
}

/// The text or the messages that a request stands for.
pub(super) enum Input {
    Text(Vec<u32>),
    Messages {
        all: Vec<ChatMessage>,
        /// What precedes those that are to be encoded.
        known: Known,
        /// Their tokens, if they were encoded before.
        encoded: Option<(Vec<u32>, Option<Unfinished>)>,
    },
}

impl Request {
    /// Whether the turn continues a reply, whatever its options say.
    pub(super) fn continues(&self) -> bool {
        matches!(self, Request::Continue)
    }

    /// The whole text or conversation.
    pub(super) fn input(self, before: Before<'_>) -> Result<Input> {
        let Before { history: History { messages, tokens, known, .. }, .. } = before;
        let (all, known) = match self {
            Request::Send(new) => {
                let known = Known { messages: messages.len(), tokens: tokens.len() };
                ([&messages[..], &new].concat(), known)
            }
            Request::Retry => {
                before.last_is_kept("retry")?;
                let mut all = messages.clone();
                if all.pop_if(|message| message.role == Role::Assistant).is_none() {
                    let (name, problem) = (Name::new("retry"), "needs a reply that can be made again");
                    return Err(error!(Argument { name, problem }));
                }
                // If part of the last messages was dropped, everything is computed again.
                let PrefixState { kept, dropped, .. } = before.prefix;
                let is_cut = *dropped > 0 && known.tokens > *kept && known.tokens < kept + dropped;
                (all, Known { tokens: if is_cut { 0 } else { known.tokens }, ..*known })
            }
            Request::Continue => {
                before.last_is_kept("continue")?;
                (messages.clone(), Known::default())
            }
            Request::Respond(all) => (all, Known::default()),
            Request::Resume(all) => return before.resumed(all).input(before),
            Request::Complete(tokens) => return Ok(Input::Text(tokens)),
            Request::Encoded(Encoded { messages: None, tokens, .. }) => return Ok(Input::Text(tokens)),
            Request::Encoded(Encoded { messages: Some(all), tokens, unfinished }) => {
                let encoded = Some((tokens, unfinished));
                return Ok(Input::Messages { all, known: Known::default(), encoded });
            }
        };
        Ok(Input::Messages { all, known, encoded: None })
    }
}

impl Before<'_> {
    /// An error if the last message was not kept, so that the reply before it is not taken for its own.
    fn last_is_kept(&self, name: &str) -> Result<()> {
        if self.unanswered {
            let problem = "needs the last message, which had no reply and was not kept: send it again";
            return Err(error!(Argument { name: Name::new(name), problem }));
        }
        Ok(())
    }

    /// The request that [`Request::Resume`] stands for.
    fn resumed(&self, mut messages: Vec<ChatMessage>) -> Request {
        let before = &self.history.messages;
        if messages.len() > before.len() && messages.starts_with(before) {
            return Request::Send(messages.split_off(before.len()));
        }
        let answered = before.split_last().filter(|(last, _)| last.role == Role::Assistant);
        match answered {
            Some((_, others)) if messages == others && !self.unanswered => Request::Retry,
            Some(_) | None => Request::Respond(messages),
        }
    }
}

/// The prompt of a turn.
#[derive(Debug)]
pub(super) struct Prompt {
    /// All tokens, including those that the session has dropped.
    pub(super) tokens: Vec<u32>,
    /// The messages it was made from; `None` for raw text.
    pub(super) messages: Option<Vec<ChatMessage>>,
    /// Whether messages among them are new to the conversation.
    pub(super) is_new: bool,
    /// The tools that the tokens describe.
    pub(super) tools: Vec<String>,
    /// What precedes the messages that it answers.
    pub(super) known: Known,
    pub(super) dropped_messages: usize,
    /// The reply to continue, which is not among `messages`.
    pub(super) unfinished: Option<Unfinished>,
}

impl Prompt {
    /// The prompt for a session of `capacity` tokens.
    pub(super) fn new(
        model: &ChatModel<'_>,
        capacity: usize,
        input: Input,
        history: &History,
        options: &TurnOptions,
    ) -> Result<Prompt> {
        let (all, known, encoded) = match input {
            Input::Text(tokens) => return Ok(Prompt::text(tokens)),
            Input::Messages { all, known, encoded } => (all, known, encoded),
        };
        // The instructions describe the tools, so other tools mean encoding everything again.
        let has_tools = history.tools == options.tools;
        // A template of a file may show earlier messages otherwise once there are more.
        let by_parts =
            has_tools && !options.describes(model) && !matches!(model.template.style, Style::File(_));
        let mut known = if by_parts { known } else { Known::default() };
        let before = history.tokens.get(..known.tokens).unwrap_or_default();
        let (mut tokens, mut unfinished) = match (encoded, all.get(known.messages..)) {
            (Some(encoded), _) => encoded,
            (None, Some(new)) if !before.is_empty() && !options.continue_final_message => {
                let tools = options.tool_list();
                let template = options.template(model, &tools);
                let more = lend(new, |new| encode_next(model.tokenizer, before, new, &template))?;
                ([before, &more].concat(), None)
            }
            _ => options.encode_prompt(model, &all)?,
        };
        let is_new = !history.messages.starts_with(&all);
        if let Some(unfinished) = &mut unfinished
            && has_tools
            && all == history.messages
            && let Some(text) = chosen_text(model, history, options, unfinished.thinks)
        {
            (tokens, known) = (history.tokens.clone(), history.known);
            (unfinished.start, unfinished.text) = (history.reply_start, text);
        }
        let mut kept = all;
        let mut dropped_messages = 0;
        if let Some(oldest) = left_out(model, &kept, tokens.len(), capacity, options)? {
            dropped_messages = oldest.len();
            kept.drain(oldest);
            (tokens, unfinished) = options.encode_prompt(model, &kept)?;
            known = Known::default();
        }
        if unfinished.is_some() {
            kept.pop();
        }
        let (messages, tools) = (Some(kept), options.tools.clone());
        Ok(Prompt { tokens, messages, is_new, tools, known, dropped_messages, unfinished })
    }

    /// A raw text.
    fn text(tokens: Vec<u32>) -> Prompt {
        Prompt {
            tokens,
            messages: None,
            is_new: false,
            tools: Vec::new(),
            known: Known::default(),
            dropped_messages: 0,
            unfinished: None,
        }
    }

    /// Whether the prompt allows thoughts.
    pub(super) fn thinks(&self, options: &TurnOptions) -> bool {
        self.unfinished.as_ref().map_or(options.thinking.allowed(), |reply| reply.thinks)
    }

    /// The tokens of the reply to continue.
    pub(super) fn begun(&self) -> &[u32] {
        let begun = self.unfinished.as_ref().and_then(|reply| self.tokens.get(reply.start..));
        begun.unwrap_or_default()
    }
}

/// The last reply as the model wrote it, if the tokens that it chose are those of the message. They are not if they end within a
/// character, or with a stop string.
fn chosen_text(
    model: &ChatModel<'_>,
    history: &History,
    options: &TurnOptions,
    thinks: bool,
) -> Option<String> {
    let chosen = history.tokens.get(history.reply_start..).filter(|_| !history.tokens.is_empty())?;
    let mut text = Vec::new();
    chosen.iter().for_each(|&token| model.tokenizer.append_text(token, &mut text));
    let text = String::from_utf8(text).ok()?;
    let mut whole = options.parser(model, thinks);
    whole.finish(&text);
    (history.messages.last() == Some(&ChatMessage::from(whole.reply()))).then_some(text)
}
