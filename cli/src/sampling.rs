//! Sampling options.

use crate::args::whole;
use clap::Args;
use shohin::SamplerConfig;

/// Heading of options that are rarely needed, which only `--help` shows.
const RARE: &str = "Sampling, rarely needed";

/// Sampling parameters. Options override single values of the preset.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Preset to start from: bonsai is what the model cards recommend
    #[arg(long, default_value = "bonsai", value_parser = clap::builder::PossibleValuesParser::new(SamplerConfig::PRESETS))]
    pub(crate) preset: String,
    /// Randomness: 0 always picks the most likely token
    #[arg(long, value_name = "T", visible_alias = "temp", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Sample from the K most likely tokens (0: all)
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most likely tokens with total probability P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Sample from tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Sample from the most typical tokens with total probability P
    #[arg(long, alias = "typical", value_name = "P", allow_negative_numbers = true, help_heading = RARE, hide_short_help = true)]
    pub(crate) typical_p: Option<f32>,
    /// Divide the logits of recent tokens by this factor (1: off)
    #[arg(long, alias = "repeat-penalty", value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtract X from the logit of each recent token of the reply
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtract X from a recent token's logit per occurrence in the reply
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Number of tokens that count as recent
    #[arg(long, alias = "repeat-last-n", value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>, help_heading = RARE, hide_short_help = true)]
    pub(crate) penalty_last_n: Option<usize>,
    /// Strength of DRY, which penalizes repeated phrases (0: off, 0.8 is usual)
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = RARE, hide_short_help = true)]
    pub(crate) dry_multiplier: Option<f32>,
    /// Growth of DRY's penalty with the length of the repetition
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = RARE, hide_short_help = true)]
    pub(crate) dry_base: Option<f32>,
    /// Shortest repetition that is penalized, in tokens
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>, help_heading = RARE, hide_short_help = true)]
    pub(crate) dry_allowed_length: Option<usize>,
    /// Number of tokens DRY searches
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>, help_heading = RARE, hide_short_help = true)]
    pub(crate) dry_last_n: Option<usize>,
    /// Seed: the same seed gives the same text [default: random]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u64>)]
    pub(crate) seed: Option<u64>,
    /// End the reply where this text appears; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// The preset with the given options applied.
    pub(crate) fn config(&self) -> SamplerConfig {
        let mut c = SamplerConfig::preset(&self.preset).unwrap_or_default();
        macro_rules! put {
            ($($name:ident)*) => { $(if let Some(value) = self.$name { c.$name = value; })* };
        }
        put!(temperature top_k top_p min_p typical_p repetition_penalty presence_penalty
            frequency_penalty penalty_last_n dry_multiplier dry_base dry_allowed_length dry_last_n);
        c.seed = self.seed.unwrap_or_else(random_seed);
        c
    }
}

/// A seed that differs from run to run, short enough to type.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 32
}
