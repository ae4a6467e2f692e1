//! The reply under way in a conversation, whatever computes it.

use crate::model::Facts;
use crate::sampling::Sampling;
use shohin_core::constrain::Constraint;
use shohin_core::generate::{self, Action, GeneratedToken, Generation, Overflow, Reason};
use shohin_core::model::ModelConfig;
use shohin_core::sample::{DRY_BREAKERS, Logprob};
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Result, Sampler};
use wasm_bindgen::prelude::*;

/// What a step did.
#[wasm_bindgen]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Part of the prompt, or of what was forced, was read.
    Prefill = 0,
    /// There is a new token, and perhaps text.
    Token = 1,
    /// The generation is over; there may be text that was held back.
    Done = 2,
}

/// The tokens a cache has seen. Behind the first `kept`, it has forgotten `dropped`.
#[derive(Default)]
pub(crate) struct Past {
    pub(crate) tokens: Vec<u32>,
    pub(crate) kept: usize,
    pub(crate) dropped: usize,
}

impl Past {
    /// How many of them the cache holds.
    pub(crate) fn held(&self) -> usize {
        self.tokens.len() - self.dropped
    }

    /// Those that it holds as if it had seen nothing else.
    fn intact(&self) -> &[u32] {
        if self.dropped == 0 { &self.tokens } else { &self.tokens[..self.kept] }
    }

    /// Leaves the first `held` in the cache.
    fn truncate(&mut self, held: usize) {
        if held <= self.kept {
            self.dropped = 0;
        }
        self.tokens.truncate(held + self.dropped);
    }
}

/// A generation, and what the caches of those that compute it hold.
#[derive(Default)]
pub(crate) struct Reply {
    generation: Option<Generation>,
    /// Of the generation under way; without what was forgotten before it.
    prompt: Vec<u32>,
    /// Of what came before the generation, once there is one.
    pub(crate) past: Past,
    text: String,
    token: u32,
    /// Of the newest token, and of those most likely in its place.
    logprob: Option<f32>,
    top: Vec<Logprob>,
    reason: Option<Reason>,
}

impl Reply {
    /// Begins; afterwards all that is in `past` may stay in the cache. Returns how many tokens of the prompt need not be
    /// computed.
    pub(crate) fn start(
        &mut self,
        prompt: &[u32],
        sampling: Sampling,
        batch: usize,
        config: &ModelConfig,
        capacity: usize,
        tokenizer: &Tokenizer<'_>,
        facts: &Facts,
    ) -> Result<usize> {
        self.reason = None;
        let Sampling { config: sampler, mut options, grammar } = sampling;
        options.batch = batch;
        let mut sampler = Sampler::new(&sampler, config.vocab_size)?;
        sampler.break_at_bytes(tokenizer, DRY_BREAKERS);
        let Past { tokens, kept, dropped } = &self.past;
        // Where the same conversation went on beyond the context, its cache goes on, too.
        let goes_on = *dropped > 0
            && options.overflow == Overflow::Shift { keep: *kept }
            && prompt.len() > tokens.len()
            && prompt.starts_with(tokens);
        let (left, cached) = match goes_on {
            true => ([&prompt[..*kept], &prompt[kept + dropped..]].concat(), self.past.held()),
            false => (prompt.to_vec(), generate::common_prefix(self.past.intact(), prompt)),
        };
        let kept = if let Overflow::Shift { keep } = options.overflow { keep } else { 0 };
        let mut generation = Generation::new(&left, cached, capacity, sampler, options)?;
        if let Some(grammar) = grammar {
            generation.constrain(Constraint::new(grammar, facts.vocabulary(tokenizer))?);
        }
        self.generation = Some(generation);
        self.prompt = prompt.to_vec();
        if !goes_on {
            self.past = Past { tokens: prompt[..cached].to_vec(), kept, dropped: 0 };
        }
        Ok(self.past.tokens.len())
    }

    /// Tokens that are to stay in front, and tokens behind them that are to go; then `shifted` wants to know how many
    /// of the others the cache holds. To be asked before `wanted`.
    pub(crate) fn room(&self) -> Option<(usize, usize)> {
        match self.generation.as_ref()?.next() {
            Action::Shift { keep, drop } => Some((keep, drop)),
            _ => None,
        }
    }

    pub(crate) fn shifted(&mut self, position: usize) {
        if let Some(generation) = &mut self.generation {
            generation.shifted(position);
        }
    }

    /// The tokens to feed next; none if there is nothing more to do.
    pub(crate) fn wanted(&mut self) -> Option<&[u32]> {
        match self.generation.as_ref()?.next() {
            Action::Decode(tokens) => Some(tokens),
            Action::Shift { .. } => None,
            Action::Done(reason) => {
                self.reason = Some(reason);
                None
            }
        }
    }

    /// Takes the logits after them.
    pub(crate) fn take(&mut self, tokenizer: &Tokenizer<'_>, logits: &[f32]) -> Result<Step> {
        let Some(generation) = &mut self.generation else { return Ok(Step::Done) };
        let Some(GeneratedToken { token, text, logprob, top, done }) =
            generation.logits(tokenizer, logits)?
        else {
            return Ok(Step::Prefill);
        };
        self.text.push_str(text);
        self.token = token;
        self.logprob = logprob;
        self.top.clear();
        self.top.extend_from_slice(top);
        self.reason = done;
        // The token that ends a reply is not part of it; one that completes a form is.
        let ended = done == Some(Reason::Stop) && tokenizer.is_end(token);
        Ok(if ended { Step::Done } else { Step::Token })
    }

    /// Puts tokens behind the reply as if the model had chosen them. False if there is no room for them.
    pub(crate) fn force(&mut self, tokenizer: &Tokenizer<'_>, tokens: &[u32]) -> bool {
        self.generation.as_mut().is_some_and(|generation| generation.force(tokenizer, tokens))
    }

    /// Ends it, if there is one. Returns how many of the `position` tokens in the cache are known and may stay.
    pub(crate) fn end(&mut self, position: usize) -> usize {
        if let Some(generation) = self.generation.take() {
            self.past.dropped += generation.dropped();
            self.past.tokens = std::mem::take(&mut self.prompt);
            self.past.tokens.extend_from_slice(generation.reply());
            self.past.tokens.truncate(generation.held().len() + self.past.dropped);
        }
        self.text.clear();
        // After a failure the two can differ: keep what both agree on.
        self.past.truncate(self.past.held().min(position));
        self.past.held()
    }

    /// How many tokens were forgotten so far.
    pub(crate) fn forgotten(&self) -> usize {
        self.past.dropped + self.generation.as_ref().map_or(0, Generation::dropped)
    }

    /// The text since the last call.
    pub(crate) fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    pub(crate) fn token(&self) -> u32 {
        self.token
    }

    pub(crate) fn logprob(&self) -> Option<f32> {
        self.logprob
    }

    pub(crate) fn top(&self) -> &[Logprob] {
        &self.top
    }

    pub(crate) fn reason(&self) -> &'static str {
        self.reason.map_or("", Reason::code)
    }
}

/// What conversations on the CPU and on a GPU tell of their `reply` in the same words.
macro_rules! tell_of_reply {
    ($timeline:ident) => {
        #[wasm_bindgen]
        impl $timeline {
            /// Puts tokens behind the reply as if the model had chosen them. False if there is no room for them.
            pub fn force(&mut self, tokens: &[u32]) -> bool {
                self.reply.force(&self.loaded.tokenizer, tokens)
            }

            /// The text since the last call.
            pub fn take_text(&mut self) -> String {
                self.reply.take_text()
            }

            /// The newest token.
            pub fn last_token(&self) -> u32 {
                self.reply.token()
            }

            /// The newest token's log-probability, if asked for.
            pub fn last_logprob(&self) -> Option<f32> {
                self.reply.logprob()
            }

            /// The most likely tokens in its place, best first.
            pub fn top_tokens(&self) -> Vec<u32> {
                self.reply.top().iter().map(|top| top.token).collect()
            }

            /// Their log-probabilities.
            pub fn top_logprobs(&self) -> Vec<f32> {
                self.reply.top().iter().map(|top| top.logprob).collect()
            }

            /// Why the generation ended; empty before.
            pub fn reason(&self) -> String {
                self.reply.reason().to_owned()
            }

            /// Tokens of the conversation that were forgotten to make room.
            pub fn forgotten(&self) -> usize {
                self.reply.forgotten()
            }

            /// Tokens it can hold.
            pub fn capacity(&self) -> usize {
                self.session.capacity()
            }

            /// Ends the generation; what it computed stays in the cache. Does nothing if there is none.
            pub fn end(&mut self) {
                let agreed = self.reply.end(self.session.position());
                // Never more than it holds.
                let _ = self.session.truncate(agreed);
            }
        }
    };
}
pub(crate) use tell_of_reply;
