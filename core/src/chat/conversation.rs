//! A conversation over one session, shared by every host: no input or output, for backends that answer at
//! once or later.
//!
//! ```text
//! let held = conversation.send(&model, session, vec![message], &options)?;   // or respond, retry, continue_reply, complete
//! /* truncate the session to `held` tokens */
//! loop {
//!     match conversation.next() {
//!         Action::Decode(tokens) => {
//!             let logits = /* run the model on tokens */;
//!             if let Some(piece) = conversation.logits(tokenizer, logits)? { /* show piece */ }
//!         }
//!         Action::Shift { keep, drop } => {
//!             /* drop `drop` tokens after the first `keep` */
//!             conversation.shifted(/* position */);
//!         }
//!         Action::Done(_) => break,
//!     }
//! }
//! let (held, finish) = conversation.end(/* position */);
//! /* truncate the session to `held` tokens */
//! ```
//!
//! [`drive`] is that loop for a [`Backend`]. A turn that fails or is ended early leaves the conversation
//! unchanged; so does a turn that is cancelled before it has text. A turn that is cancelled later keeps the
//! partial reply. In every case the tokens that the session holds are tracked and reused.
#![forbid(unsafe_code)]

use super::history::{History, Known};
use super::message::{ChatMessage, FunctionCall, lend};
use super::model::ChatModel;
use super::options::{Encoded, OverflowPolicy, TurnOptions, Unfinished};
use super::prefix::PrefixState;
use super::reply::{CallBlocks, Reply, ReplyParser};
use super::template::{Role, encode_next};
use crate::constrain::Constraint;
use crate::error::{Error, Name, Result};
use crate::generate::{
    Action, Backend, Detokenizer, Generation, GenerationOptions, Overflow, Reason, common_prefix,
};
use crate::sample::{DRY_BREAKERS, Logprob, Sampler};
use crate::tokenizer::Special;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// Attention sinks: tokens at the beginning that attention relies on, whatever their content. Four are enough
/// (arXiv 2309.17453, table 2).
const SINKS: usize = 4;

/// Ends the thoughts when their budget is used up.
const STOP_THINKING: &str = "\n</think>\n\n";

/// The fill level of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Tokens held.
    pub position: usize,
    /// Maximum number of tokens that fit.
    pub capacity: usize,
}

impl SessionState {
    /// The state of a backend.
    pub fn of<B: Backend + ?Sized>(backend: &B) -> SessionState {
        SessionState { position: backend.position(), capacity: backend.capacity() }
    }
}

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
    /// Messages that [`OverflowPolicy::Trim`] left out.
    pub dropped_messages: usize,
    /// Tokens that [`OverflowPolicy::Shift`] dropped in this turn.
    pub dropped_tokens: usize,
    /// Tokens of the conversation dropped in all turns.
    pub forgotten_tokens: usize,
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

/// A report of [`drive`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress<'c> {
    /// Prompt tokens decoded so far, and their total.
    Prompt(usize, usize),
    /// A piece of the reply.
    Piece(Piece<'c>),
}

/// The prompt of a turn.
#[derive(Debug)]
struct Prompt {
    /// All tokens, including those that the session has dropped.
    tokens: Vec<u32>,
    /// The messages it was made from; `None` for raw text.
    messages: Option<Vec<ChatMessage>>,
    /// Whether messages among them are new to the conversation.
    is_new: bool,
    /// The tools that the tokens describe.
    tools: Vec<String>,
    /// What precedes the messages that it answers.
    known: Known,
    dropped_messages: usize,
    /// The reply to continue, which is not among `messages`.
    unfinished: Option<Unfinished>,
}

/// A reply in progress.
#[derive(Debug)]
struct Turn {
    generation: Generation,
    prompt: Prompt,
    cached: usize,
    /// `None` for raw text.
    parser: Option<ReplyParser>,
    budget: usize,
    thoughts: usize,
    stop_thinking: Vec<u32>,
    text: String,
    /// Text of the latest piece.
    latest: String,
    tokens: Vec<u32>,
    calls: Vec<FunctionCall>,
    top: Vec<Logprob>,
}

/// What may come before a reply's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thoughts {
    /// Nothing.
    None,
    /// A block of thoughts, if the reply begins with one.
    Optional,
    /// The rest of thoughts that the prompt has opened.
    Open,
}

/// Identifies a constraint: equal requests share one.
type ConstraintKey = (TurnOptions, Thoughts);

/// Messages, and the tokens of them that a session holds.
#[derive(Debug, Default)]
pub struct Conversation {
    history: History,
    /// The last message was not kept: its turn ended before any text.
    unanswered: bool,
    prefix: PrefixState,
    sampler: Option<Sampler>,
    constraint: Option<(ConstraintKey, Constraint)>,
    turn: Option<Turn>,
}

impl Conversation {
    /// A conversation without messages, over an empty session.
    pub fn new() -> Conversation {
        Conversation::default()
    }

    /// The messages so far, without those of a turn in progress.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.history.messages
    }

    /// The messages so far as they were encoded, without those of a turn in progress.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Starts over with these messages: none, instructions, or a conversation from elsewhere. Tokens that the
    /// session already holds are not computed again.
    pub fn set_messages(&mut self, messages: Vec<ChatMessage>) {
        self.turn = None;
        self.history = messages.into();
        self.unanswered = false;
    }

    /// Goes on with the conversation of a snapshot, whose keys and values the session has.
    ///
    /// # Errors
    /// As [`Conversation::set_prefix`]; the conversation stays as it is then.
    pub fn restore(&mut self, history: History, prefix: PrefixState) -> Result<()> {
        self.set_prefix(prefix)?;
        (self.history, self.unanswered) = (history, false);
        Ok(())
    }

    /// The tokens that the session holds.
    pub fn prefix(&self) -> &PrefixState {
        &self.prefix
    }

    /// Sets the tokens that the session holds, after a snapshot was restored.
    ///
    /// # Errors
    /// [`Error::Length`] if more tokens were dropped than there are.
    pub fn set_prefix(&mut self, prefix: PrefixState) -> Result<()> {
        let PrefixState { tokens, kept, dropped } = &prefix;
        let end = kept.saturating_add(*dropped) as u64;
        if *dropped > 0 && end > tokens.len() as u64 {
            return Err(error!(Length {
                what: "tokens of a session",
                expected: end,
                found: tokens.len() as u64,
            }));
        }
        self.turn = None;
        self.prefix = prefix;
        Ok(())
    }

    /// Tokens of the session that are known and can be kept.
    pub fn held(&self) -> usize {
        self.prefix.held()
    }

    /// The tokens that the session holds now as if it had seen no others, those of a turn in progress included.
    pub(super) fn intact(&self) -> &[u32] {
        match &self.turn {
            None => self.prefix.intact(),
            // Keys and values after dropped tokens are not those of the same tokens alone.
            Some(turn) if self.prefix.dropped + turn.generation.dropped() > 0 => &[],
            Some(turn) => turn.generation.held(),
        }
    }

    /// As [`Conversation::intact`], with the tokens that are still to be computed.
    pub(super) fn intact_soon(&self) -> &[u32] {
        match &self.turn {
            Some(turn) if self.prefix.dropped + turn.generation.dropped() == 0 => turn.generation.tokens(),
            Some(_) | None => self.intact(),
        }
    }

    /// Sends messages after the existing ones and begins the reply. Tokens that the session holds are not
    /// computed again, and earlier replies keep the tokens that the model chose, reasoning included. Returns
    /// how many tokens of the session to keep: truncate it to them.
    ///
    /// # Errors
    /// Those of [`encode`](super::encode), [`TurnOptions::grammar`], [`Constraint::new`], [`Sampler::new`] and
    /// [`Generation::new`]. Nothing is sent then.
    pub fn send(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        messages: Vec<ChatMessage>,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        let History { messages: before, tokens, .. } = &self.history;
        let known = Known { messages: before.len(), tokens: tokens.len() };
        let all = [before.clone(), messages].concat();
        self.go_on(model, session, all, known, None, options)
    }

    /// Begins another reply to the last messages, replacing the existing one.
    ///
    /// # Errors
    /// As [`Conversation::send`]; [`Error::Argument`] if there is no reply yet, or if the last message was not kept.
    pub fn retry(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        self.last_is_kept("retry")?;
        let mut all = self.history.messages.clone();
        if all.pop_if(|message| message.role == Role::Assistant).is_none() {
            let (name, problem) = (Name::new("retry"), "needs a reply that can be made again");
            return Err(error!(Argument { name, problem }));
        }
        // If part of the last messages was dropped, everything is computed again.
        let PrefixState { kept, dropped, .. } = self.prefix;
        let mut known = self.history.known;
        if dropped > 0 && known.tokens > kept && known.tokens < kept + dropped {
            known.tokens = 0;
        }
        self.go_on(model, session, all, known, None, options)
    }

    /// Continues the last reply, which was cut off, with the tokens that the model chose. The pieces are what is new; the
    /// result has the whole reply.
    ///
    /// # Errors
    /// As [`Conversation::retry`].
    pub fn continue_reply(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        self.last_is_kept("continue")?;
        let options = TurnOptions { continue_final_message: true, ..options.clone() };
        let all = self.history.messages.clone();
        self.go_on(model, session, all, Known::default(), None, &options)
    }

    /// Begins a reply to a whole conversation, which replaces the existing messages: for hosts that receive
    /// all messages each time. Tokens that the session already holds are not computed again.
    ///
    /// # Errors
    /// As [`Conversation::send`].
    pub fn respond(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        messages: Vec<ChatMessage>,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        self.go_on(model, session, messages, Known::default(), None, options)
    }

    /// As [`Conversation::respond`]. If the conversation continues, as by [`Conversation::send`], or its last messages are
    /// answered again, as by [`Conversation::retry`], earlier replies keep the tokens that the model chose.
    ///
    /// # Errors
    /// As [`Conversation::send`].
    pub fn resume(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        mut messages: Vec<ChatMessage>,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        let before = &self.history.messages;
        let is_answered = before.last().is_some_and(|last| last.role == Role::Assistant);
        if messages.len() > before.len() && messages.starts_with(before) {
            return self.send(model, session, messages.split_off(before.len()), options);
        }
        if is_answered && messages == before[..before.len() - 1] && !self.unanswered {
            return self.retry(model, session, options);
        }
        self.respond(model, session, messages, options)
    }

    /// As [`Conversation::respond`], or [`Conversation::complete`], with what was encoded before.
    pub(super) fn respond_encoded(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        prompt: Encoded,
        options: &TurnOptions,
    ) -> Result<usize> {
        let Encoded { messages, tokens, unfinished } = prompt;
        let Some(messages) = messages else { return self.complete(model, session, tokens, options) };
        self.end(session.position);
        self.go_on(model, session, messages, Known::default(), Some((tokens, unfinished)), options)
    }

    /// Begins the continuation of a raw text. The messages stay as they are.
    ///
    /// # Errors
    /// As [`Conversation::send`].
    pub fn complete(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        tokens: Vec<u32>,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        let prompt = Prompt {
            tokens,
            messages: None,
            is_new: false,
            tools: Vec::new(),
            known: Known::default(),
            dropped_messages: 0,
            unfinished: None,
        };
        self.begin(model, session, prompt, options)
    }

    /// An error if the last message was not kept, so that the reply before it is not taken for its own.
    fn last_is_kept(&self, name: &str) -> Result<()> {
        if self.unanswered {
            let problem = "needs the last message, which had no reply and was not kept: send it again";
            return Err(error!(Argument { name: Name::new(name), problem }));
        }
        Ok(())
    }

    /// Encodes `all` messages, unless they are `encoded`; those that are not known follow the known tokens.
    fn go_on(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        all: Vec<ChatMessage>,
        known: Known,
        encoded: Option<(Vec<u32>, Option<Unfinished>)>,
        options: &TurnOptions,
    ) -> Result<usize> {
        // The instructions describe the tools, so other tools mean encoding everything again.
        let has_tools = self.history.tools == options.tools;
        let mut known = if has_tools { known } else { Known::default() };
        let before = self.history.tokens.get(..known.tokens).unwrap_or_default();
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
        let History { messages, tokens: encoded, reply_start, .. } = &self.history;
        let is_new = !messages.starts_with(&all);
        if let Some(unfinished) = &mut unfinished
            && has_tools
            && all == *messages
            && !encoded.is_empty()
            && let Some(chosen) = encoded.get(*reply_start..)
        {
            let mut text = Vec::new();
            chosen.iter().for_each(|&token| model.tokenizer.append_text(token, &mut text));
            // Not if they end within a character, or with a stop string.
            if let Ok(text) = String::from_utf8(text) {
                let mut whole = parser(model, call_blocks(options));
                whole.finish(&text);
                if all.last() == Some(&ChatMessage::from(whole.reply())) {
                    (tokens, known) = (encoded.clone(), self.history.known);
                    (unfinished.start, unfinished.text) = (*reply_start, text);
                }
            }
        }
        let mut kept = all;
        let mut dropped_messages = 0;
        if let OverflowPolicy::Trim { reserve, free } = options.overflow {
            let half = session.capacity / 2;
            if tokens.len() + reserve.min(half) > session.capacity
                && let Some(oldest) =
                    oldest_exchanges(model, &kept, session.capacity - free.min(half), options)?
            {
                dropped_messages = oldest.len();
                kept.drain(oldest);
                (tokens, unfinished) = options.encode_prompt(model, &kept)?;
                known = Known::default();
            }
        }
        if unfinished.is_some() {
            kept.pop();
        }
        let (messages, tools) = (Some(kept), options.tools.clone());
        let prompt = Prompt { tokens, messages, is_new, tools, known, dropped_messages, unfinished };
        self.begin(model, session, prompt, options)
    }

    fn begin(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        prompt: Prompt,
        options: &TurnOptions,
    ) -> Result<usize> {
        let chat = prompt.messages.is_some();
        let capacity = session.capacity;
        let overflow = match options.overflow {
            OverflowPolicy::Error | OverflowPolicy::Trim { .. } => Overflow::Error,
            OverflowPolicy::Shift { keep: Some(keep) } => Overflow::Shift { keep },
            OverflowPolicy::Shift { keep: None } => {
                let keep = instruction_tokens(model, &prompt, options)?;
                Overflow::Shift { keep: keep.max(SINKS).min(capacity / 2) }
            }
        };
        // If the same conversation continues beyond the context, so does its session.
        let PrefixState { tokens: seen, kept, dropped } = &self.prefix;
        let same = seen.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
        let whole = same == seen.len() && prompt.tokens.len() > seen.len();
        let again = prompt.known.tokens >= kept + dropped && same >= prompt.known.tokens;
        let goes_on = *dropped > 0 && overflow == Overflow::Shift { keep: *kept } && (whole || again);
        let hole = if goes_on { *kept..kept + dropped } else { 0..0 };
        let left = [
            prompt.tokens.get(..hole.start).unwrap_or_default(),
            prompt.tokens.get(hole.end..).unwrap_or_default(),
        ]
        .concat();
        let held = match goes_on {
            true => (same - dropped).min(left.len().saturating_sub(1)),
            false => common_prefix(self.prefix.intact(), &left),
        };

        let generation = GenerationOptions {
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            stop_strings: options.stop_strings.clone(),
            logprobs: options.logprobs,
            batch: options.batch,
            overflow,
            ..GenerationOptions::default()
        };
        let sampler = self.sampler(model, options)?;
        let unfinished = prompt.unfinished.as_ref();
        let thinks = unfinished.map_or(options.thinking.allowed(), |reply| reply.thinks);
        let style = model.template.style;
        let thinks = if chat && style.always_thinks() {
            Thoughts::Open
        } else if chat && thinks && style.can_think() {
            Thoughts::Optional
        } else {
            Thoughts::None
        };
        let begun = unfinished.and_then(|reply| prompt.tokens.get(reply.start..)).unwrap_or_default();
        // What is wrong with the options is said before what is wrong with the prompt.
        let mut constraint = self.constraint(model, options, thinks)?;
        if let Some(constraint) = &mut constraint
            && !begun.iter().all(|&token| constraint.accept(token))
        {
            let (name, problem) =
                (Name::new("continue_final_message"), "needs a reply in the requested format");
            return Err(error!(Argument { name, problem }));
        }
        let mut generation = Generation::new(&left, held, capacity, sampler, generation)?;
        generation.resume(begun.len());
        if let Some(constraint) = constraint {
            generation.constrain(constraint);
        }

        let cached = held + hole.len();
        self.prefix.tokens.truncate(cached);
        if !goes_on {
            let kept = if let Overflow::Shift { keep } = overflow { keep } else { 0 };
            (self.prefix.kept, self.prefix.dropped) = (kept, 0);
        }
        let blocks = call_blocks(options);
        let mut stop_thinking = Vec::new();
        model.tokenizer.encode(STOP_THINKING, Special::Parse, &mut stop_thinking);
        let mut parser = chat.then(|| parser(model, blocks));
        let text = unfinished.map(|reply| reply.text.clone()).unwrap_or_default();
        let mut budget = options.thinking.budget();
        if let Some(parser) = &mut parser {
            parser.resume(&text);
            if parser.thinking() {
                budget = budget.saturating_sub(begun.len());
            }
        }
        self.turn = Some(Turn {
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
        });
        Ok(self.prefix.held())
    }

    /// A sampler for the turn. The stored one is used again only after a turn that was kept.
    fn sampler(&self, model: &ChatModel<'_>, options: &TurnOptions) -> Result<Sampler> {
        if let Some(sampler) = self.sampler.as_ref().filter(|sampler| *sampler.config() == options.sampler) {
            let mut sampler = sampler.clone();
            if options.reseed {
                sampler.restart(options.sampler.seed);
            }
            return Ok(sampler);
        }
        let mut sampler = Sampler::new(&options.sampler, model.logits)?;
        sampler.break_at_bytes(model.tokenizer, DRY_BREAKERS);
        Ok(sampler)
    }

    /// The constraint in its initial state. It is built once for turns with the same options.
    fn constraint(
        &mut self,
        model: &ChatModel<'_>,
        options: &TurnOptions,
        thinks: Thoughts,
    ) -> Result<Option<Constraint>> {
        let same = |((of, with), _): &&(ConstraintKey, Constraint)| {
            *with == thinks
                && of.tools == options.tools
                && of.tool_choice == options.tool_choice
                && of.parallel_tool_calls == options.parallel_tool_calls
                && of.response_format == options.response_format
                && of.json_whitespace == options.json_whitespace
        };
        if let Some((_, constraint)) = self.constraint.as_ref().filter(same) {
            return Ok(Some(constraint.clone()));
        }
        let Some(grammar) = options.grammar()? else { return Ok(None) };
        let grammar = match thinks {
            Thoughts::None => grammar,
            Thoughts::Optional => grammar.after_thoughts()?,
            Thoughts::Open => grammar.after_open_thoughts()?,
        };
        let constraint = Constraint::new(grammar, (model.vocabulary)())?;
        self.constraint = Some(((options.clone(), thinks), constraint.clone()));
        Ok(Some(constraint))
    }

    /// The next action; it does not change until [`Self::logits`] or [`Self::shifted`] is called.
    /// [`Reason::Cancelled`] if no turn is in progress.
    pub fn next(&self) -> Action<'_> {
        self.turn.as_ref().map_or(Action::Done(Reason::Cancelled), |turn| turn.generation.next())
    }

    /// As [`Generation::set_batch`].
    pub fn set_batch(&mut self, tokens: usize) {
        if let Some(turn) = &mut self.turn {
            turn.generation.set_batch(tokens);
        }
    }

    /// As [`Generation::shifted`].
    pub fn shifted(&mut self, position: usize) {
        if let Some(turn) = &mut self.turn {
            turn.generation.shifted(position);
        }
    }

    /// Takes the logits after the tokens of [`Action::Decode`]. `None` while the prompt is being decoded.
    ///
    /// # Errors
    /// Those of [`Generation::logits`].
    pub fn logits(&mut self, detokenizer: &dyn Detokenizer, logits: &[f32]) -> Result<Option<Piece<'_>>> {
        match &mut self.turn {
            Some(turn) => turn.logits(detokenizer, logits),
            None => Ok(None),
        }
    }

    /// Ends the reply as it is. Returns text that was held back.
    pub fn cancel(&mut self) -> Option<Piece<'_>> {
        self.turn.as_mut()?.cancel()
    }

    /// Prompt tokens computed so far, and their total, not counting those that the session dropped.
    pub fn prompt_progress(&self) -> (usize, usize) {
        self.turn.as_ref().map_or((0, 0), |turn| turn.generation.prompt_progress())
    }

    /// Token counts of the turn in progress.
    pub fn usage(&self) -> Usage {
        self.turn.as_ref().map_or_else(Usage::default, |turn| turn.usage(self.prefix.dropped))
    }

    /// The reply's tokens so far, without a token that ended it.
    pub fn reply_tokens(&self) -> &[u32] {
        self.turn.as_ref().map_or(&[], |turn| turn.generation.reply())
    }

    /// Ends the turn, if there is one, with the session at `position`. Returns how many of the session's
    /// tokens are known and can be kept, and the result of the turn if it was done.
    pub fn end(&mut self, position: usize) -> (usize, Option<Finish>) {
        let mut finish = None;
        if let Some(turn) = self.turn.take() {
            finish = turn.finish(self.prefix.dropped);
            let Turn { generation, prompt, text, .. } = turn;
            self.prefix.dropped += generation.dropped();
            let reply_start = prompt.unfinished.map_or(prompt.tokens.len(), |reply| reply.start);
            let mut tokens = prompt.tokens;
            tokens.extend_from_slice(generation.reply());
            self.prefix.tokens.clear();
            let held = generation.held().len() + self.prefix.dropped;
            self.prefix.tokens.extend_from_slice(tokens.get(..held).unwrap_or(&tokens));
            self.unanswered |= prompt.is_new;
            if let Some(Finish { reason, message, .. }) = &finish
                && (*reason != Reason::Cancelled || !text.is_empty())
            {
                let mut sampler = generation.into_sampler();
                sampler.forget();
                self.sampler = Some(sampler);
                if let Some(mut messages) = prompt.messages {
                    messages.push(message.clone());
                    let Prompt { tools, known, .. } = prompt;
                    self.history = History { messages, tokens, tools, known, reply_start };
                    self.unanswered = false;
                }
            }
        }
        // After a failure the two can differ: keep the tokens that both hold.
        self.prefix.truncate(self.prefix.held().min(position));
        (self.prefix.held(), finish)
    }
}

impl Turn {
    fn logits(&mut self, detokenizer: &dyn Detokenizer, logits: &[f32]) -> Result<Option<Piece<'_>>> {
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

    fn cancel(&mut self) -> Option<Piece<'_>> {
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

    fn usage(&self, dropped_before: usize) -> Usage {
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

    fn finish(&self, dropped_before: usize) -> Option<Finish> {
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

/// A parser of replies after the model's prompt, which may have opened their thoughts.
fn parser(model: &ChatModel<'_>, blocks: CallBlocks) -> ReplyParser {
    let mut parser = ReplyParser::new(blocks);
    if model.template.style.always_thinks() {
        parser.open_thoughts();
    }
    parser
}

/// In a format, and if no tool is offered, text that looks like a marker is text.
fn call_blocks(options: &TurnOptions) -> CallBlocks {
    match (options.is_constrained(), !options.tools.is_empty()) {
        (true, true) => CallBlocks::Leading,
        (false, true) => CallBlocks::Valid,
        (_, false) => CallBlocks::Text,
    }
}

/// Prompt tokens that are instructions: the common prefix with a conversation that ends after its system
/// messages.
fn instruction_tokens(model: &ChatModel<'_>, prompt: &Prompt, options: &TurnOptions) -> Result<usize> {
    let Some(messages) = &prompt.messages else { return Ok(0) };
    let system = messages.iter().position(|m| m.role != Role::System).unwrap_or(messages.len());
    // A template puts its own system message before one from the user.
    let other = [ChatMessage::new(Role::User, "")];
    let only = match model.template.system {
        Some(_) if system == 0 => &other[..],
        Some(_) | None => messages.get(..system).unwrap_or_default(),
    };
    let only = options.encode(model, only)?;
    Ok(only.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count())
}

/// The oldest messages to leave out: from the first that is not a system message to a user message, at least one exchange
/// and no more than it takes until the others have at most `most` tokens; all but the last if they still have more. `None`
/// if there is only one.
fn oldest_exchanges(
    model: &ChatModel<'_>,
    messages: &[ChatMessage],
    most: usize,
    options: &TurnOptions,
) -> Result<Option<core::ops::Range<usize>>> {
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
