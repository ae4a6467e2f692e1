//! Beam search: the likeliest continuations of a prompt as a whole, not token by token.
//!
//! A beam is a continuation; its log-probability is the sum of those of its tokens. Each step computes the next token of
//! all beams in one batch, and of all continuations by one more token the likeliest go on. A beam ends at a token that
//! ends a reply, or at the most tokens; its score is its log-probability divided by `n^p`, where `n` is the number of its
//! tokens, that end included, and `p` is [`BeamOptions::length_penalty`]. The rules, and so the results, are those of
//! Hugging Face transformers (`num_beams`, without sampling).
//!
//! The beams' sessions are [forks](Session::fork): they share the memory of the prompt and of what else they have in
//! common.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::ops::ControlFlow;

use crate::device::{Device, Output, Readout, Wants};
use crate::error::{Error, Result};
use crate::generate::{Detokenizer, Reason};
use crate::sample::log_sum_exp;
use crate::session::{Feed, MAX_SEQUENCES, Session, run_batch};

/// Options of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamOptions {
    /// Beams, and continuations that are returned: 1 to [`MAX_SEQUENCES`].
    pub beams: usize,
    /// Maximum number of tokens of a continuation; at least 1.
    pub max_tokens: usize,
    /// Over 0 favours long continuations, below 0 short ones; 0 compares log-probabilities.
    pub length_penalty: f32,
    /// Whether the search ends when as many beams as there are have ended. Otherwise it goes on while the likeliest one
    /// that has not ended has a higher score than one of these.
    pub early_stopping: bool,
}

impl Default for BeamOptions {
    fn default() -> Self {
        BeamOptions { beams: 4, max_tokens: usize::MAX, length_penalty: 1.0, early_stopping: false }
    }
}

impl BeamOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Option`], [`Error::Limit`].
    pub fn check(&self) -> Result<()> {
        for (what, found) in [("beams", self.beams), ("tokens of a beam", self.max_tokens)] {
            if found == 0 {
                return Err(error!(Option { what, found: 0.0, expected: "at least 1" }));
            }
        }
        if self.beams > MAX_SEQUENCES {
            return Err(error!(Limit { what: "beams", found: self.beams as u64, max: MAX_SEQUENCES as u64 }));
        }
        if !self.length_penalty.is_finite() {
            let found = f64::from(self.length_penalty);
            return Err(error!(Option { what: "length penalty", found, expected: "a finite number" }));
        }
        Ok(())
    }
}

/// A continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Beam {
    /// Its tokens, without one that ended it.
    pub tokens: Vec<u32>,
    /// Sum of the log-probabilities of its tokens, that of one that ended it included.
    pub logprob: f64,
    /// `logprob / n^length_penalty`.
    pub score: f64,
    /// Why it ended.
    pub reason: Reason,
}

/// A beam search, without its sessions.
#[derive(Clone, Debug)]
pub struct BeamSearch {
    options: BeamOptions,
    /// Maximum number of tokens of a beam, and why it ends there.
    limit: (usize, Reason),
    /// Continuations that are considered in each step, so that enough do not end.
    considered: usize,
    /// Tokens of all beams: each follows another one, or the prompt.
    tokens: Vec<(Option<usize>, u32)>,
    /// Number of tokens of each beam that goes on.
    len: usize,
    running: Vec<Path>,
    /// Best first.
    candidates: Vec<Candidate>,
    /// Best first.
    ended: Vec<Ended>,
    done: bool,
}

/// A beam that goes on.
#[derive(Clone, Copy, Debug)]
struct Path {
    last: Option<usize>,
    logprob: f64,
}

/// A beam and a token that may follow it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    beam: usize,
    token: u32,
    logprob: f64,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    path: Path,
    score: f64,
    reason: Reason,
}

/// How a beam of the next step goes on: with `token` after beam `beam` of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the beam that it continues.
    pub beam: usize,
    /// The token to feed.
    pub token: u32,
}

impl BeamSearch {
    /// A search for continuations of a prompt after which there is room for `room` tokens. It begins with one beam, the
    /// prompt, whose logits come first.
    ///
    /// # Errors
    /// Those of [`BeamOptions::check`].
    pub fn new(
        options: &BeamOptions,
        room: usize,
        vocab: usize,
        detokenizer: &dyn Detokenizer,
    ) -> Result<Self> {
        options.check()?;
        // The last token of a full session is not fed.
        let room = room.saturating_add(1);
        let limit = match options.max_tokens <= room {
            true => (options.max_tokens, Reason::Length),
            false => (room, Reason::ContextFull),
        };
        let ends = (0..vocab as u32).filter(|&token| detokenizer.is_end(token)).count();
        Ok(BeamSearch {
            options: options.clone(),
            limit,
            considered: options.beams.saturating_mul(1 + ends.max(1)),
            tokens: Vec::new(),
            len: 0,
            running: Vec::from([Path { last: None, logprob: 0.0 }]),
            candidates: Vec::new(),
            ended: Vec::new(),
            done: false,
        })
    }

    /// Takes the logits `(vocab)` after a beam; those of each beam are due before [`BeamSearch::step`].
    ///
    /// # Errors
    /// [`Error::Logits`] if all are -inf or NaN.
    pub fn logits(&mut self, beam: usize, logits: &[f32]) -> Result<()> {
        let norm = log_sum_exp(logits);
        if norm == f64::NEG_INFINITY {
            return Err(error!(Logits { problem: "every logit is -inf or NaN" }));
        }
        let Some(path) = self.running.get(beam) else { return Ok(()) };
        let (candidates, base) = (&mut self.candidates, path.logprob - norm);
        for (token, &logit) in (0..).zip(logits) {
            let logprob = base + f64::from(logit.min(f32::MAX));
            let counts = candidates.len() < self.considered
                || candidates.last().is_some_and(|last| logprob > last.logprob);
            if counts && logit > f32::NEG_INFINITY {
                let at = candidates.partition_point(|other| other.logprob >= logprob);
                candidates.insert(at, Candidate { beam, token, logprob });
                candidates.truncate(self.considered);
            }
        }
        Ok(())
    }

    /// The beams of the next step, the likeliest first; none if the search has ended.
    pub fn step(&mut self, detokenizer: &dyn Detokenizer) -> Vec<Step> {
        let (mut running, mut steps) = (Vec::new(), Vec::new());
        let len = self.len + 1;
        for (rank, candidate) in core::mem::take(&mut self.candidates).into_iter().enumerate() {
            let Candidate { beam, token, logprob } = candidate;
            let Some(&Path { last, .. }) = self.running.get(beam) else { continue };
            let ends = detokenizer.is_end(token);
            if (ends || len >= self.limit.0) && rank < self.options.beams {
                let last = if ends { last } else { self.push(last, token) };
                let reason = if ends { Reason::Stop } else { self.limit.1 };
                self.end(Path { last, logprob }, len, reason);
            } else if !ends && len < self.limit.0 && running.len() < self.options.beams {
                running.push(Path { last: self.push(last, token), logprob });
                steps.push(Step { beam, token });
            }
        }
        (self.running, self.len) = (running, len);
        let can_improve = |worst: &Ended| {
            self.running.first().is_some_and(|best| self.score(best.logprob, len) > worst.score)
        };
        let worst = self.ended.last().filter(|_| self.ended.len() == self.options.beams);
        self.done =
            steps.is_empty() || worst.is_some_and(|worst| self.options.early_stopping || !can_improve(worst));
        if self.done {
            steps.clear();
        }
        steps
    }

    fn push(&mut self, after: Option<usize>, token: u32) -> Option<usize> {
        self.tokens.push((after, token));
        Some(self.tokens.len() - 1)
    }

    fn score(&self, logprob: f64, len: usize) -> f64 {
        logprob / libm::pow(len as f64, f64::from(self.options.length_penalty))
    }

    fn end(&mut self, path: Path, len: usize, reason: Reason) {
        let score = self.score(path.logprob, len);
        let at = self.ended.partition_point(|other| other.score >= score);
        self.ended.insert(at, Ended { path, score, reason });
        self.ended.truncate(self.options.beams);
    }

    /// Tokens of each beam so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token was chosen yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The continuations, best first, at most as many as beams. If the search has not ended, those that go on are among
    /// them.
    pub fn finish(mut self) -> Vec<Beam> {
        if !self.done {
            for path in core::mem::take(&mut self.running) {
                self.end(path, self.len.max(1), Reason::Cancelled);
            }
        }
        let tokens = |last: Option<usize>| {
            let before = |at: &usize| self.tokens.get(*at).and_then(|(before, _)| *before);
            let mut all: Vec<u32> = core::iter::successors(last, before)
                .filter_map(|at| self.tokens.get(at).map(|(_, token)| *token))
                .collect();
            all.reverse();
            all
        };
        let beam = |&Ended { path: Path { last, logprob }, score, reason }: &Ended| Beam {
            tokens: tokens(last),
            logprob,
            score,
            reason,
        };
        self.ended.iter().map(beam).collect()
    }
}

/// A beam search and its sessions, step by step.
#[derive(Debug)]
pub struct BeamSessions<D: Device> {
    search: BeamSearch,
    /// The session of each beam that goes on.
    sessions: Vec<Session<D>>,
    /// The tokens to feed next: the rest of the prompt to the only session, then one to each.
    tokens: Vec<u32>,
    /// Whether these end with the prompt.
    reads_prompt: bool,
}

impl<D: Device> BeamSessions<D> {
    /// Begins a search for continuations of the tokens of `session`, which are followed by `prompt`, at least one token.
    ///
    /// # Errors
    /// Those of [`BeamSearch::new`]; [`Error::Length`] without a prompt.
    pub fn new(
        device: &D,
        session: Session<D>,
        prompt: &[u32],
        options: &BeamOptions,
        detokenizer: &dyn Detokenizer,
    ) -> Result<Self> {
        let room = session.capacity().saturating_sub(session.position().saturating_add(prompt.len()));
        let search = BeamSearch::new(options, room, device.program().vocab(), detokenizer)?;
        if prompt.is_empty() {
            return Err(error!(Length { what: "prompt", expected: 1, found: 0 }));
        }
        Ok(BeamSessions {
            search,
            sessions: Vec::from([session]),
            tokens: prompt.to_vec(),
            reads_prompt: true,
        })
    }

    /// Computes a part of the prompt, or chooses the next token of each beam and computes what may follow it; returns
    /// whether the search goes on.
    ///
    /// # Errors
    /// As [`Session::run`]; [`Error::Logits`].
    pub async fn step(&mut self, device: &mut D, detokenizer: &dyn Detokenizer) -> Result<bool, D::Error> {
        if !self.reads_prompt && !self.choose(device, detokenizer).await? {
            return Ok(false);
        }
        let BeamSessions { search, sessions, tokens, reads_prompt } = self;
        // Of several sessions, each has one token.
        let most = if *reads_prompt { device.batch().max(1) } else { 1 };
        let is_last = !*reads_prompt || tokens.len() <= most;
        let wants = if is_last { Wants::Last(Readout::Logits) } else { Wants::Nothing };
        let mut feeds: Vec<_> = sessions
            .iter_mut()
            .zip(tokens.chunks(most))
            .map(|(session, tokens)| Feed { session, tokens, wants })
            .collect();
        let mut failed = None;
        run_batch(device, &mut feeds, &mut |beam, _, output| {
            if let Output::Logits(logits) = output
                && let Err(error) = search.logits(beam, logits)
            {
                failed = Some(error);
            }
        })
        .await?;
        *reads_prompt = !is_last;
        if *reads_prompt {
            tokens.drain(..most);
        }
        failed.map_or(Ok(true), |error| Err(error.into()))
    }

    /// Chooses the next tokens, and gives each beam a session that ends before its own; false if there are none.
    async fn choose(&mut self, device: &mut D, detokenizer: &dyn Detokenizer) -> Result<bool, D::Error> {
        let steps = self.search.step(detokenizer);
        let mut before: Vec<_> = core::mem::take(&mut self.sessions).into_iter().map(Some).collect();
        for (i, step) in steps.iter().enumerate() {
            let Some(slot) = before.get_mut(step.beam) else { continue };
            let goes_on_later = steps.iter().skip(i + 1).any(|later| later.beam == step.beam);
            let session = match slot {
                Some(session) if goes_on_later => Some(session.fork(device, session.position()).await?),
                _ => slot.take(),
            };
            self.sessions.extend(session);
        }
        self.tokens = steps.iter().map(|step| step.token).collect();
        Ok(!steps.is_empty())
    }

    /// Tokens of each beam so far; 0 while the prompt is computed.
    pub fn len(&self) -> usize {
        self.search.len()
    }

    /// Whether no token was chosen yet.
    pub fn is_empty(&self) -> bool {
        self.search.is_empty()
    }

    /// The continuations; see [`BeamSearch::finish`].
    pub fn finish(self) -> Vec<Beam> {
        self.search.finish()
    }
}

/// Searches for continuations of the tokens of `session`, which are followed by `prompt`, at least one token. `progress`
/// is called with the number of tokens of each beam so far, and may end the search.
///
/// # Errors
/// As [`BeamSessions::new`] and [`BeamSessions::step`].
pub async fn search<D: Device>(
    device: &mut D,
    session: Session<D>,
    prompt: &[u32],
    options: &BeamOptions,
    detokenizer: &dyn Detokenizer,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Vec<Beam>, D::Error> {
    let mut beams = BeamSessions::new(device, session, prompt, options, detokenizer)?;
    while beams.step(device, detokenizer).await? && progress(beams.len()).is_continue() {}
    Ok(beams.finish())
}
