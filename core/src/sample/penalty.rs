//! Penalties on previous tokens: repetition, presence, frequency, DRY.
#![forbid(unsafe_code)]

use super::SamplerConfig;
use crate::sort;
use alloc::vec::Vec;

/// Longest repetition DRY measures, as in its original formulation.
const MAX_REPEAT: usize = 50;

/// The last tokens, and the logits they change.
#[derive(Debug)]
pub(super) struct Penalties {
    config: SamplerConfig,
    /// The last `keep` to `2 * keep` tokens in order; moved down when the buffer is full.
    history: Vec<u32>,
    keep: usize,
    /// How many of the newest tokens are of the reply.
    replied: usize,
    /// Twice each token in the window, and 1 more if it is of the reply.
    window: Vec<u64>,
    repeats: Vec<u64>,
    changed: Vec<(u32, f32)>,
    /// What is added to logits, by token.
    bias: Vec<(u32, f32)>,
    /// One bit per token: DRY's matches do not cross these.
    breakers: Vec<u32>,
}

/// A clone keeps the capacities, not only the content, so it does not allocate either.
impl Clone for Penalties {
    fn clone(&self) -> Self {
        fn copy<T: Copy>(from: &Vec<T>) -> Vec<T> {
            let mut to = Vec::with_capacity(from.capacity());
            to.extend_from_slice(from);
            to
        }
        Penalties {
            config: self.config,
            history: copy(&self.history),
            keep: self.keep,
            replied: self.replied,
            window: copy(&self.window),
            repeats: copy(&self.repeats),
            changed: copy(&self.changed),
            bias: self.bias.clone(),
            breakers: self.breakers.clone(),
        }
    }
}

impl Penalties {
    pub(super) fn new(config: &SamplerConfig, vocab: usize) -> Self {
        let window = if config.repetition_penalty != 1.0
            || config.presence_penalty != 0.0
            || config.frequency_penalty != 0.0
        {
            config.penalty_last_n
        } else {
            0
        };
        let dry = if config.dry_multiplier > 0.0 { config.dry_last_n } else { 0 };
        let keep = window.max(dry);
        Penalties {
            config: SamplerConfig { penalty_last_n: window, dry_last_n: dry, ..*config },
            history: Vec::with_capacity(2 * keep),
            keep,
            replied: 0,
            window: Vec::with_capacity(window),
            repeats: Vec::with_capacity(dry),
            changed: Vec::with_capacity(window + dry),
            bias: Vec::new(),
            breakers: if dry > 0 { alloc::vec![0; vocab.div_ceil(32)] } else { Vec::new() },
        }
    }

    /// Sets what is added to the logits of these tokens, of each of which the last entry counts.
    pub(super) fn set_bias(&mut self, bias: &[(u32, f32)]) {
        self.bias.clear();
        for &(token, value) in bias {
            match self.bias.binary_search_by_key(&token, |&(t, _)| t) {
                Ok(at) => self.bias[at].1 = value,
                Err(at) => self.bias.insert(at, (token, value)),
            }
        }
        self.changed.reserve(self.window.capacity() + self.repeats.capacity() + self.bias.len());
    }

    pub(super) fn bias(&self) -> &[(u32, f32)] {
        &self.bias
    }

    pub(super) fn break_at(&mut self, token: u32) {
        if let Some(word) = self.breakers.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    fn is_breaker(&self, token: u32) -> bool {
        self.breakers.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    pub(super) fn clear(&mut self) {
        self.history.clear();
        self.replied = 0;
    }

    pub(super) fn accept(&mut self, token: u32) {
        self.remember(token);
        self.replied = self.replied.saturating_add(1);
    }

    /// Whatever came before is not of the reply either.
    pub(super) fn accept_prompt(&mut self, token: u32) {
        self.remember(token);
        self.replied = 0;
    }

    /// The last `tokens` are of the reply.
    pub(super) fn resume(&mut self, tokens: usize) {
        self.replied = tokens;
    }

    fn remember(&mut self, token: u32) {
        if !cfg!(feature = "sampling") || self.keep == 0 {
            return;
        }
        if self.history.len() == 2 * self.keep {
            self.history.copy_within(self.keep.., 0);
            self.history.truncate(self.keep);
        }
        self.history.push(token);
    }

    fn last(&self, n: usize) -> &[u32] {
        &self.history[self.history.len().saturating_sub(n)..]
    }

    /// The logits that differ from `logits`, as (token, value) sorted by token, each token once.
    pub(super) fn apply(&mut self, logits: &[f32]) -> &[(u32, f32)] {
        self.changed.clear();
        let c = self.config;
        let start = self.history.len().saturating_sub(c.penalty_last_n);
        let reply = self.history.len().saturating_sub(self.replied);
        self.window.clear();
        let tokens = self.history.iter().enumerate().skip(start);
        self.window.extend(tokens.map(|(at, &token)| u64::from(token) << 1 | u64::from(at >= reply)));
        sort::sort_keys(&mut self.window);
        for run in self.window.chunk_by(|a, b| a >> 1 == b >> 1) {
            let Some(token) = run.first().map(|key| (key >> 1) as u32) else { continue };
            let Some(&logit) = logits.get(token as usize) else { continue };
            let scaled =
                if logit < 0.0 { logit * c.repetition_penalty } else { logit / c.repetition_penalty };
            let said = run.iter().filter(|key| **key & 1 == 1).count();
            let presence = if said > 0 { c.presence_penalty } else { 0.0 };
            let taken = c.frequency_penalty * said as f32 + presence;
            self.changed.push((token, still_possible(logit, scaled - taken)));
        }
        if c.dry_last_n > 0 {
            self.find_repeats();
            self.apply_dry(logits);
        }
        self.apply_bias(logits);
        &self.changed
    }

    fn apply_bias(&mut self, logits: &[f32]) {
        let Penalties { bias, changed, .. } = self;
        for &(token, value) in bias.iter() {
            let Some(&logit) = logits.get(token as usize) else { continue };
            match changed.binary_search_by_key(&token, |&(t, _)| t) {
                Ok(at) => changed[at].1 = still_possible(logit, changed[at].1 + value),
                Err(at) => changed.insert(at, (token, still_possible(logit, logit + value))),
            }
        }
    }

    /// Finds, for each token that followed an earlier copy of the newest tokens, the length of that copy.
    fn find_repeats(&mut self) {
        let mut repeats = core::mem::take(&mut self.repeats);
        repeats.clear();
        let h = self.last(self.config.dry_last_n);
        if let Some((&newest, earlier)) = h.split_last()
            && !self.is_breaker(newest)
        {
            for i in (0..earlier.len()).filter(|&i| earlier[i] == newest) {
                // i + 1 <= earlier.len() < h.len(), and i - n >= 0 below.
                let next = h[i + 1];
                if self.is_breaker(next) {
                    continue;
                }
                let mut n = 1;
                while n < MAX_REPEAT && n <= i {
                    let token = h[h.len() - 1 - n];
                    if h[i - n] != token || self.is_breaker(token) {
                        break;
                    }
                    n += 1;
                }
                repeats.push(u64::from(next) << 32 | n as u64);
            }
        }
        sort::sort_keys(&mut repeats);
        self.repeats = repeats;
    }

    fn apply_dry(&mut self, logits: &[f32]) {
        let c = self.config;
        let counted = self.changed.len();
        // Sorted, so the last of each run is the longest repetition.
        for run in self.repeats.chunk_by(|a, b| a >> 32 == b >> 32) {
            let Some(&repeat) = run.last() else { continue };
            let (token, n) = ((repeat >> 32) as u32, repeat as u32 as usize);
            let Some(over) = n.checked_sub(c.dry_allowed_length) else { continue };
            let Some(&logit) = logits.get(token as usize) else { continue };
            let grown = libm::pow(f64::from(c.dry_base), over as f64) * f64::from(c.dry_multiplier);
            let penalty = grown.min(1e30) as f32;
            match self.changed[..counted].binary_search_by_key(&token, |&(t, _)| t) {
                Ok(i) => self.changed[i].1 = still_possible(logit, self.changed[i].1 - penalty),
                Err(_) => self.changed.push((token, still_possible(logit, logit - penalty))),
            }
        }
        // Both parts are sorted, and the first is short.
        for i in counted..self.changed.len() {
            let token = self.changed[i].0;
            let at = self.changed[..i].partition_point(|&(other, _)| other < token);
            self.changed[at..=i].rotate_right(1);
        }
    }
}

/// A penalty makes a token unlikely, never impossible: only the model's own -inf and NaN remain.
fn still_possible(logit: f32, penalised: f32) -> f32 {
    if logit > f32::NEG_INFINITY { penalised.max(f32::MIN) } else { logit }
}
