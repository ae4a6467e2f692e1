//! Options of the sampler, their ranges, and presets.
#![forbid(unsafe_code)]

use crate::{Error, Result};

/// Longest history of the penalties, so that an option cannot request unbounded memory.
const MAX_LAST_N: usize = 1 << 20;

/// Options of a [`Sampler`](super::Sampler). Every default is off, except the lengths of the two windows.
///
/// The chain is applied in the order of `transformers`: penalties, DRY, temperature, top-k, top-p,
/// min-p, typical; then one draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 always takes the most likely token (the lowest id among equals). 0 to 100.
    pub temperature: f32,
    /// Keeps the k most likely tokens (the lower id among equals); 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens that holds this much probability; 0 keeps
    /// the most likely one (the lowest id among equals), as temperature 0 does. 0 to 1 (off).
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the most likely one. 0 (off) to 1.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022): keeps the tokens whose information content is
    /// closest to the entropy, up to this much probability. Over 0, at most 1 (off).
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in the window (CTRL, Keskar et
    /// al. 2019). Over 0, at most 100; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token that the reply has in the window; those of the prompt do not count, as with
    /// OpenAI. -100 to 100; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time that the reply has it in the window. -100 to 100; 0 is off.
    pub frequency_penalty: f32,
    /// Number of last tokens, prompt included, that the three penalties consider: the window.
    pub penalty_last_n: usize,
    /// DRY ("don't repeat yourself"): a token that would extend a repetition of `n` tokens loses
    /// `dry_multiplier * dry_base^(n - dry_allowed_length)`. 0 (off) to 100.
    pub dry_multiplier: f32,
    /// Base of DRY's exponential. 1 to 100.
    pub dry_base: f32,
    /// Repetitions shorter than this are free. At least 1.
    pub dry_allowed_length: usize,
    /// Number of last tokens, prompt included, that DRY searches.
    pub dry_last_n: usize,
    /// Seed of the random sequence: the same seed gives the same tokens, on every target.
    pub seed: u64,
}

impl SamplerConfig {
    /// Always the most likely token.
    pub const fn greedy() -> Self {
        SamplerConfig {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: 1024,
            seed: 0,
        }
    }

    /// Recommended by the Bonsai model cards: temperature 0.5, top-k 20, top-p 0.85. The default.
    pub const fn bonsai() -> Self {
        SamplerConfig { temperature: 0.5, top_k: 20, top_p: 0.85, ..Self::greedy() }
    }

    /// General use: temperature 0.7, top-k 40, top-p 0.9, repetition penalty 1.1.
    pub const fn balanced() -> Self {
        SamplerConfig { temperature: 0.7, top_k: 40, top_p: 0.9, repetition_penalty: 1.1, ..Self::greedy() }
    }

    /// Stories and ideas: temperature 1.0, top-k 100, top-p 0.95.
    pub const fn creative() -> Self {
        SamplerConfig { temperature: 1.0, top_k: 100, top_p: 0.95, ..Self::greedy() }
    }

    /// Programs and facts: temperature 0.2, top-k 10, top-p 0.8.
    pub const fn code() -> Self {
        SamplerConfig { temperature: 0.2, top_k: 10, top_p: 0.8, ..Self::greedy() }
    }

    /// Names of the presets, for [`Self::preset`].
    pub const PRESETS: [&str; 5] = ["bonsai", "greedy", "balanced", "creative", "code"];

    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Self> {
        Some(match name {
            "bonsai" => Self::bonsai(),
            "greedy" => Self::greedy(),
            "balanced" => Self::balanced(),
            "creative" => Self::creative(),
            "code" => Self::code(),
            _ => return None,
        })
    }

    /// Whether the most likely token is always taken.
    pub(super) fn is_greedy(&self) -> bool {
        !cfg!(feature = "sampling") || self.temperature == 0.0 || self.top_p == 0.0
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`Error::Option`] names the first option outside its range, its value and the range.
    pub fn check(&self) -> Result<()> {
        let within = |what, value: f32, ok: bool, expected| {
            if ok { Ok(()) } else { Err(error!(Option { what, found: f64::from(value), expected })) }
        };
        if !cfg!(feature = "sampling") {
            return self.check_greedy();
        }
        let (t, p, m, y) = (self.temperature, self.top_p, self.min_p, self.typical_p);
        within("temperature", t, (0.0..=100.0).contains(&t), "0 to 100")?;
        within("top_p", p, (0.0..=1.0).contains(&p), "0 to 1")?;
        within("min_p", m, (0.0..=1.0).contains(&m), "0 to 1")?;
        within("typical_p", y, y > 0.0 && y <= 1.0, "over 0, at most 1")?;
        let r = self.repetition_penalty;
        within("repetition_penalty", r, r > 0.0 && r <= 100.0, "over 0, at most 100")?;
        let (r, f) = (self.presence_penalty, self.frequency_penalty);
        within("presence_penalty", r, (-100.0..=100.0).contains(&r), "-100 to 100")?;
        within("frequency_penalty", f, (-100.0..=100.0).contains(&f), "-100 to 100")?;
        let (m, b) = (self.dry_multiplier, self.dry_base);
        within("dry_multiplier", m, (0.0..=100.0).contains(&m), "0 to 100")?;
        within("dry_base", b, (1.0..=100.0).contains(&b), "1 to 100")?;
        let length = self.dry_allowed_length;
        within("dry_allowed_length", length as f32, length >= 1, "at least 1")?;
        for (what, n) in [("penalty_last_n", self.penalty_last_n), ("dry_last_n", self.dry_last_n)] {
            within(what, n as f32, n <= MAX_LAST_N, "0 to 1048576")?;
        }
        Ok(())
    }

    /// Refuses options that need the feature `sampling`.
    fn check_greedy(&self) -> Result<()> {
        const GREEDY: &str = "0 in a build without the feature `sampling`";
        const NEUTRAL: &str = "1 in a build without the feature `sampling`";
        let neutral = [
            ("temperature", self.temperature, 0.0, GREEDY),
            ("repetition_penalty", self.repetition_penalty, 1.0, NEUTRAL),
            ("presence_penalty", self.presence_penalty, 0.0, GREEDY),
            ("frequency_penalty", self.frequency_penalty, 0.0, GREEDY),
            ("dry_multiplier", self.dry_multiplier, 0.0, GREEDY),
        ];
        match neutral.into_iter().find(|(_, value, neutral, _)| value != neutral) {
            Some((what, value, _, expected)) => {
                Err(error!(Option { what, found: f64::from(value), expected }))
            }
            None => Ok(()),
        }
    }
}

impl Default for SamplerConfig {
    /// [`SamplerConfig::bonsai`], or without the feature `sampling` [`SamplerConfig::greedy`].
    fn default() -> Self {
        if cfg!(feature = "sampling") { Self::bonsai() } else { Self::greedy() }
    }
}
