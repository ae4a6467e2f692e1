//! A conversation over one session, shared by every host: no input or output, for backends that answer at
//! once or later.
//!
//! ```text
//! let held = conversation.start(&model, session, Request::Send(vec![message]), &options)?;
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

mod drive;
mod fit;
mod prefix;
mod prompt;
mod turn;

use super::history::History;
use super::message::ChatMessage;
use super::model::ChatModel;
use super::options::TurnOptions;
use crate::constrain::Constraint;
use crate::error::{Error, Name, Result};
use crate::generate::{Action, Backend, Detokenizer, Generation, GenerationOptions, Reason};
use crate::sample::{DRY_BREAKERS, Sampler};
use alloc::vec::Vec;
use prompt::{Before, Prompt};
use turn::Turn;

pub use drive::{Progress, drive};
pub use prefix::PrefixState;
pub use prompt::Request;
pub use turn::{Finish, Piece, Usage};

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

impl Thoughts {
    fn of(model: &ChatModel<'_>, prompt: &Prompt, options: &TurnOptions) -> Thoughts {
        let style = model.template.style;
        let allowed = prompt.thinks(options);
        match prompt.messages {
            None => Thoughts::None,
            Some(_) if style.opens_thoughts(allowed) => Thoughts::Open,
            Some(_) if allowed && style.can_think() => Thoughts::Optional,
            Some(_) => Thoughts::None,
        }
    }
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

    /// Begins a turn. Returns how many tokens of the session to keep: truncate it to them.
    ///
    /// # Errors
    /// Those of [`Request`], [`encode`](super::encode), [`TurnOptions::grammar`], [`Constraint::new`], [`Sampler::new`] and
    /// [`Generation::new`]. Nothing has changed then.
    pub fn start(
        &mut self,
        model: &ChatModel<'_>,
        session: SessionState,
        request: Request,
        options: &TurnOptions,
    ) -> Result<usize> {
        self.end(session.position);
        let continued =
            request.continues().then(|| TurnOptions { continue_final_message: true, ..options.clone() });
        let options = continued.as_ref().unwrap_or(options);
        let Conversation { history, prefix, unanswered, .. } = self;
        let input = request.input(Before { history, prefix, unanswered: *unanswered })?;
        let prompt = Prompt::new(model, session.capacity, input, history, options)?;
        self.begin(model, session.capacity, prompt, options)
    }

    fn begin(
        &mut self,
        model: &ChatModel<'_>,
        capacity: usize,
        prompt: Prompt,
        options: &TurnOptions,
    ) -> Result<usize> {
        let overflow = fit::overflow(model, prompt.messages.as_deref(), &prompt.tokens, capacity, options)?;
        let reuse = self.prefix.reuse(&prompt.tokens, prompt.known.tokens, overflow);
        let generation = GenerationOptions {
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            stop_strings: options.stop_strings.clone(),
            logprobs: options.logprobs,
            batch: options.batch,
            overflow,
            ..GenerationOptions::default()
        };
        let sampler = self.sampler(model, options)?;
        // What is wrong with the options is said before what is wrong with the prompt.
        let mut constraint = self.constraint(model, options, Thoughts::of(model, &prompt, options))?;
        if let Some(constraint) = &mut constraint
            && !prompt.begun().iter().all(|&token| constraint.accept(token))
        {
            let (name, problem) =
                (Name::new("continue_final_message"), "needs a reply in the requested format");
            return Err(error!(Argument { name, problem }));
        }
        let mut generation = Generation::new(&reuse.left, reuse.held, capacity, sampler, generation)?;
        generation.resume(prompt.begun().len());
        if let Some(constraint) = constraint {
            generation.constrain(constraint);
        }
        self.prefix.keep(&reuse, overflow);
        self.turn = Some(Turn::new(model, generation, prompt, reuse.cached(), options));
        Ok(self.prefix.held())
    }

    /// A sampler for the turn. The stored one is used again only after a turn that was kept.
    fn sampler(&self, model: &ChatModel<'_>, options: &TurnOptions) -> Result<Sampler> {
        if let Some(sampler) = self.sampler.as_ref().filter(|sampler| *sampler.config() == options.sampler) {
            let mut sampler = sampler.clone();
            if options.reseed {
                sampler.restart(options.sampler.seed);
            }
            sampler.set_bias(&options.logit_bias);
            return Ok(sampler);
        }
        let mut sampler = Sampler::new(&options.sampler, model.logits)?;
        sampler.set_bias(&options.logit_bias);
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
        let Some(grammar) = options.grammar_in(model.call_form())? else { return Ok(None) };
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
