//! Token generation: one state machine without input or output, shared by every backend.
//!
//! ```text
//! loop {
//!     match generation.next() {
//!         Action::Decode(tokens) => {
//!             let logits = /* run the model on tokens, on any backend */;
//!             if let Some(event) = generation.logits(detokenizer, logits)? { /* show event.text */ }
//!         }
//!         Action::Shift { keep, drop } => {
//!             /* forget the `drop` tokens after the first `keep` */;
//!             generation.shifted(/* position of the backend */);
//!         }
//!         Action::Done(reason) => break,
//!     }
//! }
//! ```
//!
//! [`drive`] is that loop for a backend that answers at once.
#![forbid(unsafe_code)]

use crate::bytes::find;
use crate::constrain::{Constraint, Restrict};
use crate::sample::{Logprob, Logprobs, Sampler};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// What [`Error::Option`] names if a text that ends a reply is empty.
pub const EMPTY_STOP: &str = "length of a stop string";

/// A backend runs a model over one sequence of tokens.
pub trait Backend {
    /// Tokens held.
    fn position(&self) -> usize;

    /// Maximum number of tokens that fit.
    fn capacity(&self) -> usize;

    /// Appends `tokens` and returns the logits (vocabulary) after the last of them.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if they do not fit, [`Error::Token`] for an unknown one.
    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]>;

    /// Forgets all but the first `len` tokens.
    ///
    /// # Errors
    /// If it holds fewer than `len` tokens.
    fn truncate(&mut self, len: usize) -> Result<()>;

    /// Forgets the `drop` tokens after the first `keep`, and moves the later ones forward. A backend may keep
    /// only the first of the remaining tokens, as [`Backend::position`] reports; the others are fed again.
    /// This implementation keeps the first `keep`.
    ///
    /// # Errors
    /// If it holds fewer than `keep + drop` tokens.
    fn shift(&mut self, keep: usize, drop: usize) -> Result<()> {
        let _ = drop;
        self.truncate(keep)
    }
}

/// The token properties that generation needs.
pub trait Detokenizer {
    /// Appends the bytes of the token's text, which need not be whole characters. Control tokens have no
    /// text.
    fn append_text(&self, token: u32, text: &mut Vec<u8>);

    /// Whether the token ends a reply.
    fn is_end(&self, token: u32) -> bool;
}

impl Detokenizer for Tokenizer<'_> {
    fn append_text(&self, token: u32, text: &mut Vec<u8>) {
        if self.is_shown(token) {
            text.extend(self.token_bytes(token).into_iter().flatten());
        }
    }

    fn is_end(&self, token: u32) -> bool {
        Tokenizer::is_end(self, token)
    }
}

/// Handling of a full backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// A prompt that does not fit is an error; a reply ends with [`Reason::ContextFull`].
    #[default]
    Error,
    /// Tokens are forgotten, so that prompt and reply may have any length: the first `keep` stay (at least a
    /// few, or all instructions), and the older half of the others is dropped each time.
    Shift {
        /// Tokens to keep; fewer than the backend can hold.
        keep: usize,
    },
}

/// Options of a generation, besides those of the sampler.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationOptions {
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Tokens that end the reply, besides those of the vocabulary.
    pub stop_tokens: Vec<u32>,
    /// Texts that end the reply. They are not part of it.
    pub stop_strings: Vec<String>,
    /// Measures log-probabilities (see [`Logprobs`]), with this many of the most likely tokens.
    pub logprobs: Option<usize>,
    /// Continue after tokens that end a reply; for measurements.
    pub ignore_end: bool,
    /// Maximum number of prompt tokens to feed per step, so that a host can show progress and stop in between.
    pub batch: usize,
    /// Handling of a full context.
    pub overflow: Overflow,
}

impl GenerationOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Option`] for an empty stop string.
    pub fn check(&self) -> Result<()> {
        if self.stop_strings.iter().any(String::is_empty) {
            let expected = "at least 1 byte";
            return Err(error!(Option { what: EMPTY_STOP, found: 0.0, expected }));
        }
        if let Some(n) = self.logprobs.filter(|_| !cfg!(feature = "sampling")) {
            let expected = "none in a build without the feature `sampling`";
            return Err(error!(Option { what: "log-probabilities", found: n as f64, expected }));
        }
        Ok(())
    }
}

impl Default for GenerationOptions {
    fn default() -> Self {
        GenerationOptions {
            max_tokens: usize::MAX,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            logprobs: None,
            ignore_end: false,
            batch: 256,
            overflow: Overflow::Error,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended its reply.
    Stop,
    /// A stop string appeared.
    StopString,
    /// The requested number of tokens was generated.
    Length,
    /// The session cannot hold more tokens.
    ContextFull,
    /// The host cancelled it.
    Cancelled,
}

impl Reason {
    /// A stable machine-readable name, the same in every host language.
    pub const fn code(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::StopString => "stop_string",
            Reason::Length => "length",
            Reason::ContextFull => "context_full",
            Reason::Cancelled => "cancelled",
        }
    }
}

/// The next action of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<'g> {
    /// Compute the logits after these tokens, which follow those fed before.
    Decode(&'g [u32]),
    /// Make room: call [`Backend::shift`], then [`Generation::shifted`]. Only with [`Overflow::Shift`].
    Shift {
        /// Tokens that stay at the front.
        keep: usize,
        /// Tokens after them to drop.
        drop: usize,
    },
    /// Nothing: the generation has ended.
    Done(Reason),
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratedToken<'g> {
    /// The token.
    pub token: u32,
    /// Text that is now certain: whole characters that are not the beginning of a stop string. Often the
    /// token's own text, but it may be delayed or, after the last token, include held-back text.
    pub text: &'g str,
    /// The token's log-probability, if asked for.
    pub logprob: Option<f32>,
    /// The most likely alternatives, if asked for.
    pub top: &'g [Logprob],
    /// Set on the last token.
    pub done: Option<Reason>,
}

/// Length of the common prefix of `held`, the tokens that a backend holds, and `prompt`: these need not be
/// computed again. Leaves at least one token of the prompt, so that there are logits to continue from.
pub fn common_prefix(held: &[u32], prompt: &[u32]) -> usize {
    let same = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    same.min(prompt.len().saturating_sub(1))
}

/// A reply in progress.
#[derive(Clone, Debug)]
pub struct Generation {
    options: GenerationOptions,
    sampler: Sampler,
    logprobs: Option<Logprobs>,
    /// Prompt and reply, without dropped tokens.
    tokens: Vec<u32>,
    reply: Vec<u32>,
    /// Tokens of the prompt, and how many of them were fed.
    prompt: usize,
    prompt_fed: usize,
    /// Number of `tokens` that were fed.
    fed: usize,
    dropped: usize,
    capacity: usize,
    stream: TextStream,
    done: Option<Reason>,
    /// An object, so that programs without constraints do not contain their code.
    constraint: Option<Box<dyn Restrict>>,
}

impl Generation {
    /// A reply to `prompt`, whose first `held` tokens (see [`common_prefix`]) are exactly those that the
    /// backend holds; it can hold `capacity`.
    ///
    /// # Errors
    /// [`Error::Length`] if there is nothing to feed, [`Error::ContextFull`] if the prompt does not fit and
    /// [`Overflow`] does not help, [`Error::Option`] for an empty stop string or too many kept tokens.
    pub fn new(
        prompt: &[u32],
        held: usize,
        capacity: usize,
        sampler: Sampler,
        options: GenerationOptions,
    ) -> Result<Self> {
        if held >= prompt.len() {
            let found = prompt.len() as u64;
            return Err(error!(Length { what: "prompt", expected: held as u64 + 1, found }));
        }
        let room = match options.overflow {
            Overflow::Error => capacity.saturating_sub(prompt.len()),
            Overflow::Shift { .. } => usize::MAX,
        };
        let reply = options.max_tokens.min(room).min(1 << 16) + 1;
        let tokens = (prompt.len() + reply).min(prompt.len().max(capacity) + 1);
        let mut generation = Generation::with_capacity(capacity, sampler, options, tokens, reply)?;
        (generation.fed, generation.prompt_fed) = (held, held);
        generation.follow_up(prompt)?;
        Ok(generation)
    }

    /// A generation that waits for its first prompt, [`Generation::follow_up`], on a backend that can hold `capacity`
    /// tokens. It allocates now what replies, and prompts of up to `prompt` tokens each, will need.
    ///
    /// # Errors
    /// [`Error::Option`] for an empty stop string or too many kept tokens.
    pub fn waiting(
        capacity: usize,
        prompt: usize,
        sampler: Sampler,
        options: GenerationOptions,
    ) -> Result<Self> {
        let reply = options.max_tokens.min(capacity).min(1 << 16) + 1;
        let tokens = capacity.saturating_add(1).saturating_add(prompt);
        Generation::with_capacity(capacity, sampler, options, tokens, reply)
    }

    /// One without a prompt, with room for this many tokens in all and in a reply.
    fn with_capacity(
        capacity: usize,
        sampler: Sampler,
        options: GenerationOptions,
        tokens: usize,
        reply: usize,
    ) -> Result<Self> {
        if let Overflow::Shift { keep } = options.overflow
            && keep >= capacity
        {
            let expected = "fewer than the context holds";
            return Err(error!(Option { what: "kept tokens", found: keep as f64, expected }));
        }
        options.check()?;
        Ok(Generation {
            sampler,
            logprobs: options.logprobs.map(Logprobs::new),
            tokens: Vec::with_capacity(tokens),
            reply: Vec::with_capacity(reply),
            prompt: 0,
            prompt_fed: 0,
            fed: 0,
            dropped: 0,
            capacity,
            stream: TextStream::new(options.stop_strings.iter().map(String::len).max().unwrap_or(0)),
            done: Some(Reason::Cancelled),
            options,
            constraint: None,
        })
    }

    /// Begins another reply, to `tokens` after the present [`Generation::tokens`], in the same memory. A
    /// constraint does not apply to it.
    ///
    /// # Errors
    /// [`Error::Length`] for no tokens, [`Error::ContextFull`] if they do not fit and [`Overflow`] does not
    /// help. The generation is then unchanged.
    pub fn follow_up(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(error!(Length { what: "prompt", expected: 1, found: 0 }));
        }
        let prompt = self.tokens.len() + tokens.len();
        if self.options.overflow == Overflow::Error && prompt > self.capacity {
            let (position, adding) = (self.fed as u64, (prompt - self.fed) as u64);
            return Err(error!(ContextFull { position, adding, capacity: self.capacity as u64 }));
        }
        self.tokens.extend_from_slice(tokens);
        tokens.iter().for_each(|&token| self.sampler.accept_prompt(token));
        self.reply.clear();
        self.stream.clear();
        (self.prompt, self.prompt_fed, self.dropped) = (prompt, self.fed, 0);
        (self.done, self.constraint) = (None, None);
        Ok(())
    }

    /// Says that the last `tokens` of the prompt are the beginning of the reply, which goes on: penalties count them.
    pub fn resume(&mut self, tokens: usize) {
        self.sampler.resume(tokens);
    }

    /// Forgets all tokens, to begin another conversation in the same memory with [`Generation::follow_up`]. The
    /// backend must be truncated to nothing.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.reply.clear();
        self.sampler.forget();
        (self.fed, self.done) = (0, Some(Reason::Cancelled));
    }

    /// Ends the reply and forgets all but the first `len` tokens. The backend must be truncated to those of
    /// [`Generation::held`].
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.reply.clear();
        self.sampler.forget();
        self.tokens.iter().for_each(|&token| self.sampler.accept_prompt(token));
        (self.fed, self.done) = (self.fed.min(len), Some(Reason::Cancelled));
    }

    /// Constrains the reply to the texts of a grammar. It ends when its text is complete; a stop string can
    /// end it before, and so can `max_tokens` if it is too small for any text of the grammar.
    pub fn constrain(&mut self, constraint: Constraint) {
        self.constraint = Some(Box::new(constraint));
    }

    /// Sets [`GenerationOptions::batch`] for the next steps.
    pub fn set_batch(&mut self, tokens: usize) {
        self.options.batch = tokens;
    }

    fn next_fed(&self) -> usize {
        let most = self.tokens.len().min(self.capacity);
        most.min(self.fed.saturating_add(self.options.batch.max(1)))
    }

    /// The next action; it does not change until [`Self::logits`] or [`Self::shifted`] is called.
    pub fn next(&self) -> Action<'_> {
        match self.done {
            Some(reason) => Action::Done(reason),
            None if self.fed >= self.capacity => {
                let Overflow::Shift { keep } = self.options.overflow else {
                    return Action::Done(Reason::ContextFull);
                };
                // Drop the larger half, so that the rest is dropped next time and no key is rotated twice.
                Action::Shift { keep, drop: self.capacity.saturating_sub(keep).div_ceil(2) }
            }
            None => Action::Decode(self.tokens.get(self.fed..self.next_fed()).unwrap_or_default()),
        }
    }

    /// Reports that the tokens of [`Action::Shift`] are dropped and the backend is at `position`: it holds
    /// that many of the remaining tokens, the first ones.
    pub fn shifted(&mut self, position: usize) {
        let Action::Shift { keep, drop } = self.next() else { return };
        let end = (keep + drop).min(self.tokens.len());
        self.tokens.drain(keep.min(end)..end);
        self.dropped += drop;
        self.fed = position.min(self.fed - drop);
    }

    /// Takes the logits after the tokens of [`Action::Decode`]. `None` while the prompt is being fed.
    ///
    /// # Errors
    /// Those of [`Sampler::sample`].
    pub fn logits(
        &mut self,
        detokenizer: &dyn Detokenizer,
        logits: &[f32],
    ) -> Result<Option<GeneratedToken<'_>>> {
        if self.done.is_some() {
            return Ok(None);
        }
        self.fed = self.next_fed();
        self.prompt_fed = self.prompt_fed.max(self.prompt.min(self.fed + self.dropped));
        if self.fed < self.tokens.len() {
            return Ok(None);
        }
        if self.options.max_tokens == 0 {
            self.done = Some(Reason::Length);
            return Ok(None);
        }
        // The last token of a full session is not fed.
        let left = self.left(self.capacity.saturating_add(1));
        let token = match &mut self.constraint {
            None => self.sampler.sample(logits)?,
            Some(constraint) => {
                self.sampler.sample(constraint.apply(logits, left, &self.options.stop_tokens))?
            }
        };
        let logprobs = self.logprobs.as_mut().filter(|_| cfg!(feature = "sampling"));
        let logprob = logprobs.map(|l| l.measure(logits, token));
        self.stream.start();
        let ends = detokenizer.is_end(token) && !self.options.ignore_end;
        if ends || self.options.stop_tokens.contains(&token) {
            self.done = Some(Reason::Stop);
        } else {
            if let Some(constraint) = &mut self.constraint
                && !constraint.accept(token)
            {
                return Err(error!(Logits { problem: "none of the tokens that may follow is possible" }));
            }
            self.add(detokenizer, token);
            let finished = self.constraint.as_ref().is_some_and(|constraint| constraint.finished());
            if self.stream.advance(&self.options.stop_strings) {
                self.done = Some(Reason::StopString);
            } else if finished && !self.options.ignore_end {
                self.done = Some(Reason::Stop);
            } else if self.reply.len() >= self.options.max_tokens {
                self.done = Some(Reason::Length);
            } else if self.options.overflow == Overflow::Error && self.tokens.len() > self.capacity {
                self.done = Some(Reason::ContextFull);
            }
        }
        if self.done.is_some() {
            self.stream.finish(&self.options.stop_strings, &mut self.done);
        }
        Ok(Some(GeneratedToken {
            token,
            text: &self.stream.ready,
            logprob,
            top: self.logprobs.as_ref().map_or(&[], |l| l.top()),
            done: self.done,
        }))
    }

    /// Appends `tokens` to the reply, as if the model had chosen them, such as a marker that ends its
    /// reasoning. Their text comes with the next token. Returns false and does nothing if the reply has
    /// ended, if they would leave no room for a token after them or for what the constraint requires, or if
    /// the constraint rules them out.
    pub fn force(&mut self, detokenizer: &dyn Detokenizer, tokens: &[u32]) -> bool {
        let left = self.left(self.capacity);
        if self.done.is_some() || self.reply.is_empty() || tokens.len() >= left {
            return false;
        }
        let mut constraint = self.constraint.clone();
        if let Some(constraint) = &mut constraint
            && (!tokens.iter().all(|&token| constraint.accept(token))
                || (left - tokens.len()) < constraint.shortest() as usize)
        {
            return false;
        }
        self.constraint = constraint;
        tokens.iter().for_each(|&token| self.add(detokenizer, token));
        true
    }

    /// How many tokens may follow, if the session has room for `room` tokens in all.
    fn left(&self, room: usize) -> usize {
        let in_session = match self.options.overflow {
            Overflow::Error => room.saturating_sub(self.tokens.len()),
            Overflow::Shift { .. } => usize::MAX,
        };
        in_session.min(self.options.max_tokens.saturating_sub(self.reply.len()))
    }

    fn add(&mut self, detokenizer: &dyn Detokenizer, token: u32) {
        self.tokens.push(token);
        self.reply.push(token);
        self.sampler.accept(token);
        detokenizer.append_text(token, &mut self.stream.bytes);
    }

    /// Ends the reply, if it has not ended. Returns text that was held back.
    pub fn cancel(&mut self) -> &str {
        self.stream.start();
        if self.done.is_none() {
            self.done = Some(Reason::Cancelled);
            self.stream.finish(&self.options.stop_strings, &mut self.done);
        }
        &self.stream.ready
    }

    /// Prompt tokens that were fed or need not be, and their total.
    pub fn prompt_progress(&self) -> (usize, usize) {
        (self.prompt_fed, self.prompt)
    }

    /// The generated tokens. A token that ended the reply is not included; those of a stop string are.
    pub fn reply(&self) -> &[u32] {
        &self.reply
    }

    /// Tokens that were dropped to make room, all from after the kept ones.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Prompt and reply: all tokens of the conversation that were not dropped. The last one may not be fed
    /// yet. The rest of the conversation can be appended to them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens the backend holds, for [`common_prefix`] with the next prompt.
    pub fn held(&self) -> &[u32] {
        self.tokens.get(..self.fed).unwrap_or_default()
    }

    /// Why it ended, if it did.
    pub fn reason(&self) -> Option<Reason> {
        self.done
    }

    /// Returns the sampler with the current state of its random generator.
    pub fn into_sampler(self) -> Sampler {
        self.sampler
    }
}

/// A report of [`drive`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'g> {
    /// Prompt tokens fed so far, and their total.
    Prompt(usize, usize),
    /// A token was generated.
    Token(GeneratedToken<'g>),
    /// Text that was held back when the generation was cancelled.
    Flush(&'g str),
}

/// Runs a generation to its end on a backend that answers at once. `on_event` may break.
///
/// # Errors
/// Those of the backend, after which the generation can be driven again, and of [`Generation::logits`], after
/// which it cannot: the tokens are fed, but no token can be chosen from the logits.
pub fn drive(
    generation: &mut Generation,
    backend: &mut dyn Backend,
    detokenizer: &dyn Detokenizer,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Reason> {
    loop {
        let flow = match generation.next() {
            Action::Done(reason) => return Ok(reason),
            Action::Shift { keep, drop } => {
                backend.shift(keep, drop)?;
                generation.shifted(backend.position());
                continue;
            }
            Action::Decode(tokens) => {
                let logits = backend.feed(tokens)?;
                let event = generation.logits(detokenizer, logits)?;
                match event {
                    Some(event) => on_event(Event::Token(event)),
                    None => {
                        let (fed, of) = generation.prompt_progress();
                        on_event(Event::Prompt(fed, of))
                    }
                }
            }
        };
        if flow.is_break() && generation.reason().is_none() {
            let _ = on_event(Event::Flush(generation.cancel()));
        }
    }
}

/// Converts bytes to text that can be shown: whole characters that cannot become a stop string.
#[derive(Clone, Debug)]
struct TextStream {
    /// Bytes not decoded yet: the beginning of a character.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// Text to show now.
    ready: String,
}

impl TextStream {
    fn new(longest_stop: usize) -> Self {
        // Tokens are far shorter; a longer one makes the buffers grow once.
        const TOKEN: usize = 1024;
        TextStream {
            bytes: Vec::with_capacity(TOKEN),
            held: String::with_capacity(TOKEN + longest_stop),
            ready: String::with_capacity(TOKEN + longest_stop),
        }
    }

    fn start(&mut self) {
        self.ready.clear();
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.held.clear();
        self.ready.clear();
    }

    /// Moves text that is certain from `bytes` to `ready`. True if a stop string was found; the text before
    /// it is then in `ready` and the rest is dropped.
    fn advance(&mut self, stops: &[String]) -> bool {
        self.decode(false);
        self.release(stops)
    }

    /// Releases everything: nothing can complete a character or a stop string any more.
    fn finish(&mut self, stops: &[String], done: &mut Option<Reason>) {
        if *done == Some(Reason::StopString) {
            return;
        }
        // The model has written an incomplete character, which becomes U+FFFD; of one that was cut off, nothing is shown.
        self.decode(*done == Some(Reason::Stop));
        self.bytes.clear();
        if self.release(stops) {
            *done = Some(Reason::StopString);
        }
        self.ready.push_str(&self.held);
        self.held.clear();
    }

    fn release(&mut self, stops: &[String]) -> bool {
        let found = stops.iter().filter_map(|stop| find(&self.held, stop)).min();
        let certain = found.unwrap_or_else(|| self.held.len() - held_back(&self.held, stops));
        self.ready.push_str(self.held.get(..certain).unwrap_or_default());
        match found {
            Some(_) => self.held.clear(),
            None => drop(self.held.drain(..certain)),
        }
        found.is_some()
    }

    fn decode(&mut self, end: bool) {
        let mut rest: &[u8] = &self.bytes;
        while let Err(error) = core::str::from_utf8(rest) {
            let (valid, broken) = rest.split_at(error.valid_up_to());
            self.held.push_str(core::str::from_utf8(valid).unwrap_or_default());
            rest = broken;
            let wrong = match error.error_len() {
                // More bytes may complete the character.
                None if !end => break,
                None => broken.len(),
                Some(wrong) => wrong,
            };
            self.held.push(char::REPLACEMENT_CHARACTER);
            rest = &broken[wrong..];
        }
        if let Ok(valid) = core::str::from_utf8(rest) {
            self.held.push_str(valid);
            rest = &[];
        }
        let decoded = self.bytes.len() - rest.len();
        self.bytes.drain(..decoded);
    }
}

/// Length of the longest suffix of `text` that is a prefix of a stop string.
fn held_back(text: &str, stops: &[String]) -> usize {
    stops
        .iter()
        .filter_map(|stop| {
            let longest = (stop.len() - 1).min(text.len());
            (1..=longest).rev().find(|&n| {
                let (end, start) = (text.len() - n, stop.as_bytes());
                text.as_bytes().get(end..) == start.get(..n)
            })
        })
        .max()
        .unwrap_or(0)
}
