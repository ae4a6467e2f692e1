//! logits -> token: penalties, temperature, filters, and one seeded draw.
//!
//! Buffers are allocated once; a token then costs one or two passes over the logits and no allocation.
#![forbid(unsafe_code)]

mod config;
mod logprob;
mod penalty;
mod rng;
mod sparse;

pub use config::SamplerConfig;
pub use logprob::{Logprob, Logprobs, log_sum_exp};
pub use rng::Pcg32;
pub use sparse::SparseLogits;

use crate::cpu::op::argmax;
use crate::tokenizer::{TokenKind, Tokenizer};
use crate::{Error, Result};
use alloc::vec::Vec;
use core::cmp::Ordering;
use penalty::Penalties;

/// A token that can be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub token: u32,
    /// Its logit after penalties and temperature, relative to the largest one (at most 0).
    pub logit: f32,
    /// Its probability among the candidates.
    pub probability: f32,
}

/// Chooses tokens. Holds the history for the penalties and the random generator.
#[derive(Debug)]
pub struct Sampler {
    config: SamplerConfig,
    vocab: usize,
    penalties: Penalties,
    rng: Pcg32,
    candidates: Vec<Candidate>,
}

/// Bytes that end a repetition for DRY, as in its original proposal; see [`Sampler::break_at_bytes`].
pub const DRY_BREAKERS: &[u8] = b"\n:\"*";

/// A clone continues exactly like the original, and does not allocate either.
impl Clone for Sampler {
    fn clone(&self) -> Self {
        Sampler {
            config: self.config,
            vocab: self.vocab,
            penalties: self.penalties.clone(),
            rng: self.rng,
            // Its content does not outlive a call.
            candidates: Vec::with_capacity(self.candidates.capacity()),
        }
    }
}

impl Sampler {
    /// A sampler for logits of `vocab` elements. Allocates all memory it will ever need: about 12 bytes for
    /// each of `4 * top_k` tokens, or of the whole vocabulary when `top_k` is 0 and the temperature is not.
    ///
    /// # Errors
    /// [`Error::Option`] for an option outside its range.
    pub fn new(config: &SamplerConfig, vocab: usize) -> Result<Self> {
        config.check()?;
        if vocab == 0 {
            return Err(error!(Option { what: "vocabulary size", found: 0.0, expected: "at least 1" }));
        }
        let room = match (config.is_greedy(), config.top_k) {
            (true, _) => 1,
            (false, 0) => vocab,
            (false, k) => k.saturating_mul(4).max(64).min(vocab),
        };
        Ok(Sampler {
            config: *config,
            vocab,
            penalties: Penalties::new(config, vocab),
            rng: Pcg32::new(config.seed),
            candidates: Vec::with_capacity(room),
        })
    }

    /// The options this sampler was made with.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Sets what is added to the logits of these tokens, after the penalties; of several entries of a token the last one counts.
    /// Tokens that the vocabulary does not have are ignored.
    pub fn set_bias(&mut self, bias: &[(u32, f32)]) {
        self.penalties.set_bias(bias);
    }

    /// What is added to logits, by token.
    pub fn bias(&self) -> &[(u32, f32)] {
        self.penalties.bias()
    }

    /// Makes DRY's matches end at `token`: quotes, line ends, the ends of turns. Tokens added here
    /// are never penalised by DRY either.
    pub fn break_at(&mut self, token: u32) {
        self.penalties.break_at(token);
    }

    /// Makes DRY's matches end at every token that ends a reply or whose text contains one of these bytes,
    /// and at all control tokens. [`DRY_BREAKERS`] is the original set.
    pub fn break_at_bytes(&mut self, tokenizer: &Tokenizer<'_>, bytes: &[u8]) {
        if self.config.dry_multiplier == 0.0 {
            return;
        }
        for token in 0..tokenizer.vocab_size() as u32 {
            let breaks =
                tokenizer.token_bytes(token).is_some_and(|mut text| text.any(|b| bytes.contains(&b)));
            if breaks || tokenizer.is_end(token) || tokenizer.kind(token) == TokenKind::Control {
                self.break_at(token);
            }
        }
    }

    /// Adds `token` of a reply to the history of the penalties.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    /// Adds `token` of a prompt to the history of the penalties. Presence and frequency penalties count neither it nor those
    /// before it.
    pub fn accept_prompt(&mut self, token: u32) {
        self.penalties.accept_prompt(token);
    }

    /// Says that the last `tokens` of the history are the beginning of the reply, which goes on.
    pub fn resume(&mut self, tokens: usize) {
        self.penalties.resume(tokens);
    }

    /// Clears the history; the random sequence continues. For use between two replies.
    pub fn forget(&mut self) {
        self.penalties.clear();
    }

    /// Clears the history and restarts the random sequence at `seed`.
    pub fn restart(&mut self, seed: u64) {
        self.config.seed = seed;
        self.rng = Pcg32::new(seed);
        self.penalties.clear();
    }

    /// Chooses a token. `logits` has one element per token of the vocabulary.
    ///
    /// NaN counts as impossible, and +inf as the largest finite logit.
    ///
    /// # Errors
    /// [`Error::Length`] for another number of logits; [`Error::Logits`] if all are -inf or NaN.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let greedy = self.config.is_greedy();
        let candidates = self.distribution(logits)?;
        // Never empty: the largest logit is finite and each filter keeps at least one candidate.
        let mut choice = candidates[0].token;
        if !greedy {
            let total: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
            let mut left = self.rng.next_f64() * total;
            for c in self.candidates.iter().filter(|c| c.probability > 0.0) {
                choice = c.token;
                left -= f64::from(c.probability);
                if left < 0.0 {
                    break;
                }
            }
        }
        Ok(choice)
    }

    /// The distribution that [`Self::sample`] draws from, in the order it is walked: by falling probability
    /// with top-k, by rising id without. Draws nothing.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn distribution(&mut self, logits: &[f32]) -> Result<&[Candidate]> {
        if logits.len() != self.vocab {
            let (expected, found) = (self.vocab as u64, logits.len() as u64);
            return Err(error!(Length { what: "logits", expected, found }));
        }
        if !cfg!(feature = "sampling") {
            self.candidates.clear();
            // To the sampler +inf is the largest finite number.
            let largest = logits.iter().position(|logit| *logit >= f32::MAX);
            let token = largest.map_or_else(|| argmax(logits), |i| Ok(i as u32))?;
            self.candidates.push(Candidate { token, logit: 0.0, probability: 1.0 });
            return Ok(&self.candidates);
        }
        let view = View { logits, changed: self.penalties.apply(logits) };
        let max = view.max();
        if max == f32::NEG_INFINITY {
            return Err(error!(Logits { problem: "every logit is -inf or NaN" }));
        }
        let c = self.config;
        self.candidates.clear();
        if c.is_greedy() {
            let mut best = None;
            view.above(max.next_down(), &mut |token, _| {
                best.get_or_insert(token);
                f32::INFINITY
            });
            let token = best.unwrap_or_default();
            self.candidates.push(Candidate { token, logit: 0.0, probability: 1.0 });
            return Ok(&self.candidates);
        }
        if c.top_k == 0 || c.top_k >= self.vocab {
            take_all(&mut self.candidates, &view);
        } else {
            take_top(&mut self.candidates, &view, c.top_k);
        }
        for each in &mut self.candidates {
            each.logit = (each.logit - max) / c.temperature;
            each.probability = libm::expf(each.logit);
        }
        if c.top_p < 1.0 {
            self.keep_mass(c.top_p, |each| each.logit.abs());
        }
        if c.min_p > 0.0 {
            // The most likely candidate weighs exp(0) = 1.
            self.candidates.retain(|each| each.probability >= c.min_p);
        }
        if c.typical_p < 1.0 {
            self.keep_typical(c.typical_p);
        }
        let total = self.total();
        for each in &mut self.candidates {
            each.probability = (f64::from(each.probability) / total) as f32;
        }
        Ok(&self.candidates)
    }

    fn total(&self) -> f64 {
        self.candidates.iter().map(|c| f64::from(c.probability)).sum()
    }

    /// Keeps the candidates of smallest `key` that together hold the share `mass` of all weight; among equal
    /// ones the first. Keys are non-negative. A radix select by weight instead of a sort: four passes, and
    /// the candidates keep their order.
    fn keep_mass(&mut self, mass: f32, key: impl Fn(&Candidate) -> f32) {
        let enough = self.total() * f64::from(mass);
        // Non-negative floats compare like their bits.
        let bits = |c: &Candidate| key(c).to_bits();
        let (mut below, mut prefix) = (0.0, 0);
        for shift in [24, 16, 8, 0] {
            let mut weight = [0.0; 256];
            for c in &self.candidates {
                let k = bits(c);
                if (u64::from(k) >> (shift + 8)) == u64::from(prefix) {
                    weight[(k >> shift) as usize & 255] += f64::from(c.probability);
                }
            }
            // Rounding may leave the sum short of `enough`: then the last weight is the limit.
            let mut limit = 0;
            let mut under = below;
            for (bin, &w) in weight.iter().enumerate().filter(|&(_, &w)| w > 0.0) {
                (limit, below) = (bin, under);
                under += w;
                if under >= enough {
                    break;
                }
            }
            prefix = prefix << 8 | limit as u32;
        }
        self.candidates.retain(|c| match bits(c).cmp(&prefix) {
            Ordering::Equal if below < enough => {
                below += f64::from(c.probability);
                true
            }
            order => order == Ordering::Less,
        });
    }

    fn keep_typical(&mut self, mass: f32) {
        let total = self.total();
        let log_total = libm::log(total);
        let surprise = |c: &Candidate| log_total - f64::from(c.logit); // -ln p
        let entropy: f64 = self
            .candidates
            .iter()
            .filter(|c| c.probability > 0.0)
            .map(|c| f64::from(c.probability) / total * surprise(c))
            .sum();
        self.keep_mass(mass, |c| libm::fabs(surprise(c) - entropy) as f32);
    }
}

/// Falling logit, the lower id first among equals: a total order, so every selection is unique.
fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Logits with the changed ones replaced, without copying all of them.
struct View<'l> {
    logits: &'l [f32],
    changed: &'l [(u32, f32)],
}

impl View<'_> {
    /// Calls `visit(first token, values)` for runs that together are the changed logits.
    fn runs(&self, visit: &mut dyn FnMut(usize, &[f32])) {
        let mut from = 0;
        for &(token, logit) in self.changed {
            let token = token as usize;
            visit(from, self.logits.get(from..token).unwrap_or_default());
            visit(token, &[logit]);
            from = token + 1;
        }
        visit(from, self.logits.get(from..).unwrap_or_default());
    }

    /// The largest logit; +inf counts as the largest finite number.
    fn max(&self) -> f32 {
        let mut max = f32::NEG_INFINITY;
        self.runs(&mut |_, run| max = larger(max, run));
        max.min(f32::MAX)
    }

    /// Calls `visit(token, logit)` for logits over a bound, in order of tokens. `visit` returns the new
    /// bound.
    fn above(&self, mut bound: f32, visit: &mut dyn FnMut(u32, f32) -> f32) {
        self.runs(&mut |first, run| {
            // Almost every chunk is below the bound, and computing its maximum is vectorized.
            for (i, chunk) in run.chunks(64).enumerate() {
                if larger(f32::NEG_INFINITY, chunk) > bound {
                    for (j, &logit) in chunk.iter().enumerate() {
                        if logit > bound {
                            bound = visit((first + i * 64 + j) as u32, logit.min(f32::MAX));
                        }
                    }
                }
            }
        });
    }
}

/// The maximum of `max` and `run`; NaN loses every comparison.
fn larger(max: f32, run: &[f32]) -> f32 {
    let mut lanes = [max; 16];
    let mut chunks = run.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, &l) in lanes.iter_mut().zip(chunk) {
            *lane = if l > *lane { l } else { *lane };
        }
    }
    let fold = |max, l: &f32| if *l > max { *l } else { max };
    chunks.remainder().iter().fold(lanes.iter().fold(max, fold), fold)
}

fn take_all(candidates: &mut Vec<Candidate>, view: &View<'_>) {
    view.above(f32::NEG_INFINITY, &mut |token, logit| {
        candidates.push(Candidate { token, logit, probability: 0.0 });
        f32::NEG_INFINITY
    });
}

/// The `k` largest, in falling order: fills the buffer with candidates that beat the k-th best so far, and
/// selects again whenever it is full.
fn take_top(candidates: &mut Vec<Candidate>, view: &View<'_>, k: usize) {
    let full = k.saturating_mul(4).max(64);
    let mut bound = f32::NEG_INFINITY;
    view.above(bound, &mut |token, logit| {
        candidates.push(Candidate { token, logit, probability: 0.0 });
        if candidates.len() == full {
            candidates.select_nth_unstable_by(k - 1, by_logit);
            candidates.truncate(k);
            bound = candidates[k - 1].logit;
        }
        bound
    });
    candidates.sort_unstable_by(by_logit);
    candidates.truncate(k);
}
