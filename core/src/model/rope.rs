//! Frequencies of the rotary position embedding.
#![forbid(unsafe_code)]

use crate::error::{Error, Name};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// How a model extends its rotary embedding beyond the context it was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Unscaled frequencies.
    None,
    /// Every position divided by `factor` (Chen et al. 2023).
    Linear {
        /// Scaling factor.
        factor: f32,
    },
    /// Per-frequency interpolation (Peng et al. 2023), always applied, as in the Bonsai models.
    Yarn {
        /// Scaling factor `s`.
        factor: f32,
        /// Context length before scaling.
        original_context: u32,
        /// Multiplies cos and sin; `0.1 ln(s) + 1` unless the file says otherwise.
        attention_factor: f32,
        /// Rotations above which a frequency is kept (32 in the paper).
        beta_fast: f32,
        /// Rotations below which a frequency is interpolated (1 in the paper).
        beta_slow: f32,
    },
    /// As in Llama 3.1: frequencies with fewer than `low_freq_factor` rotations in the original context are divided by
    /// `factor`, those with more than `high_freq_factor` are kept, and between them is a ramp.
    Llama3 {
        /// Scaling factor.
        factor: f32,
        /// Context length before scaling.
        original_context: u32,
        /// 1 in the published models.
        low_freq_factor: f32,
        /// 4 in the published models.
        high_freq_factor: f32,
    },
    /// Dynamic NTK: a larger base, computed for the length of the context, if that is over the original one. Keys are
    /// cached rotated, so all positions have the frequencies for the whole [context](RopeScaling::for_context), not those
    /// for the tokens so far.
    DynamicNtk {
        /// Scaling factor.
        factor: f32,
        /// Context length before scaling.
        original_context: u32,
        /// The length that the base is computed for.
        context: u32,
    },
    /// LongRoPE (Ding et al. 2024, arXiv 2402.13753): frequencies divided by factors of the file (`rope_factors_short` and
    /// `rope_factors_long`), the long ones if the [context](RopeScaling::for_context) is over the original one.
    LongRope {
        /// Context length before scaling.
        original_context: u32,
        /// Multiplies cos and sin.
        attention_factor: f32,
        /// The length that decides.
        context: u32,
    },
}

impl RopeScaling {
    /// Dynamic NTK for the longest context.
    pub fn dynamic_ntk(factor: f32, original_context: u32) -> Self {
        let context = (f64::from(factor) * f64::from(original_context)) as u32;
        RopeScaling::DynamicNtk { factor, original_context, context }
    }

    /// The scaling for a context of `tokens`, if it depends on that.
    pub fn for_context(mut self, tokens: usize) -> Self {
        if let RopeScaling::DynamicNtk { context, .. } | RopeScaling::LongRope { context, .. } = &mut self {
            *context = u32::try_from(tokens).unwrap_or(u32::MAX);
        }
        self
    }

    /// The context that the scaling is computed for, if it depends on that.
    pub fn context(&self) -> Option<u32> {
        match *self {
            RopeScaling::DynamicNtk { context, .. } | RopeScaling::LongRope { context, .. } => Some(context),
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Yarn { .. }
            | RopeScaling::Llama3 { .. } => None,
        }
    }

    /// The most tokens of a sequence that these frequencies are for, if a longer one would have others.
    pub fn longest_sequence(&self) -> Option<u32> {
        match *self {
            RopeScaling::DynamicNtk { original_context, context, .. } => Some(context.max(original_context)),
            RopeScaling::LongRope { original_context, context, .. } => {
                (context <= original_context).then_some(original_context)
            }
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Yarn { .. }
            | RopeScaling::Llama3 { .. } => None,
        }
    }

    /// YaRN with the paper's constants.
    pub fn yarn(factor: f32, original_context: u32) -> Self {
        RopeScaling::Yarn {
            factor,
            original_context,
            attention_factor: 0.1 * libm::logf(factor) + 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }
    }

    /// Llama 3.1's scaling with the factors of the published models.
    pub fn llama3(factor: f32, original_context: u32) -> Self {
        RopeScaling::Llama3 { factor, original_context, low_freq_factor: 1.0, high_freq_factor: 4.0 }
    }

    /// The longest context before scaling, in tokens, for a model with longest context `max`.
    pub fn original_context(&self, max: usize) -> usize {
        match *self {
            RopeScaling::None => max,
            RopeScaling::Linear { factor } => (max as f64 / f64::from(factor)) as usize,
            RopeScaling::Yarn { original_context, .. }
            | RopeScaling::Llama3 { original_context, .. }
            | RopeScaling::DynamicNtk { original_context, .. }
            | RopeScaling::LongRope { original_context, .. } => original_context as usize,
        }
    }

    /// The longest context with this scaling, in tokens, for a model with longest context `original` without
    /// it. All but linear scaling use their own `original_context`, and LongRoPE has no factor of its own.
    pub fn scaled_context(&self, original: usize) -> usize {
        match *self {
            RopeScaling::None => original,
            RopeScaling::Linear { factor } => (original as f64 * f64::from(factor)) as usize,
            RopeScaling::Yarn { factor, original_context, .. }
            | RopeScaling::Llama3 { factor, original_context, .. }
            | RopeScaling::DynamicNtk { factor, original_context, .. } => {
                (f64::from(original_context) * f64::from(factor)) as usize
            }
            RopeScaling::LongRope { context, .. } => context as usize,
        }
    }
}

/// As it is parsed; LongRoPE, which is not, by its name.
impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut with = |name: &str, factor: f32, context: u32| write!(f, "{name}:{factor}:{context}");
        match *self {
            RopeScaling::None => f.write_str("none"),
            RopeScaling::Linear { factor } => write!(f, "linear:{factor}"),
            RopeScaling::DynamicNtk { factor, original_context, .. } => {
                with("dynamic", factor, original_context)
            }
            RopeScaling::Yarn { factor, original_context, .. } => with("yarn", factor, original_context),
            RopeScaling::Llama3 { factor, original_context, .. } => with("llama3", factor, original_context),
            RopeScaling::LongRope { .. } => f.write_str("longrope"),
        }
    }
}

/// Parses `none`, `linear:FACTOR`, `dynamic:FACTOR:CONTEXT`, `yarn:FACTOR:CONTEXT` or `llama3:FACTOR:CONTEXT`, where CONTEXT
/// is the one before scaling.
impl FromStr for RopeScaling {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            error!(Unsupported {
                key: Name::new("RoPE scaling"),
                found: Name::new(text),
                expected: "none, linear:FACTOR, or dynamic, yarn or llama3 with :FACTOR:CONTEXT, and a FACTOR of at least 1",
            })
        };
        let factor = |text: &str| text.parse().ok().filter(|f: &f32| f.is_finite() && *f >= 1.0);
        let mut words = text.split(':');
        let scaling = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("none"), None, ..) => Some(RopeScaling::None),
            (Some("linear"), Some(f), None, _) => factor(f).map(|factor| RopeScaling::Linear { factor }),
            (Some(kind @ ("dynamic" | "yarn" | "llama3")), Some(f), Some(context), None) => {
                let context = context.parse().ok().filter(|n: &u32| *n > 0);
                let scaling = match kind {
                    "dynamic" => RopeScaling::dynamic_ntk,
                    "yarn" => RopeScaling::yarn,
                    _ => RopeScaling::llama3,
                };
                factor(f).zip(context).map(|(factor, context)| scaling(factor, context))
            }
            _ => None,
        };
        scaling.ok_or_else(wrong)
    }
}

/// Rotation speeds of a model: radians per position for each of the `head_dim / 2` pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `(head_dim / 2)`, in f64 because they are multiplied by positions in the tens of thousands.
    speeds: Vec<f64>,
    magnitude: f32,
}

impl Rope {
    /// `speed[i] = base^(-2i/d)`, then scaled.
    ///
    /// YaRN: `corr(b) = d ln(o / (2 pi b)) / (2 ln base)`, `low = max(0, floor(corr(beta_fast)))`,
    /// `high = min(d - 1, ceil(corr(beta_slow)))`, `ramp = clamp((i - low) / max(0.001, high - low), 0, 1)`
    /// and `speed[i] *= (1 - ramp) + ramp / s`.
    ///
    /// Llama 3.1: `turns = o speed[i] / (2 pi)`, `keep = clamp((turns - low) / (high - low), 0, 1)` and
    /// `speed[i] *= keep + (1 - keep) / s`.
    ///
    /// Dynamic NTK: `base *= (s max(n, o) / o - (s - 1))^(d / (d - 2))` for a context of `n` tokens.
    ///
    /// LongRoPE: the attention factor is the magnitude; the speeds are divided by the factors of the file afterwards.
    pub fn new(head_dim: usize, base: f32, scaling: RopeScaling) -> Self {
        let (d, mut ln_base) = (head_dim as f64, libm::log(f64::from(base)));
        if let RopeScaling::DynamicNtk { factor, original_context, context } = scaling
            && head_dim > 2
        {
            let (s, o) = (f64::from(factor), f64::from(original_context));
            let growth = s * f64::from(context.max(original_context)) / o - (s - 1.0);
            ln_base += libm::log(growth) * d / (d - 2.0);
        }
        let mut magnitude = 1.0;
        let speeds = (0..head_dim / 2).map(|i| {
            let speed = libm::exp(-2.0 * i as f64 / d * ln_base);
            match scaling {
                RopeScaling::None | RopeScaling::DynamicNtk { .. } => speed,
                RopeScaling::LongRope { attention_factor, .. } => {
                    magnitude = attention_factor;
                    speed
                }
                RopeScaling::Linear { factor } => speed / f64::from(factor),
                RopeScaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow } => {
                    magnitude = attention_factor;
                    let corr = |beta: f32| {
                        let turns =
                            f64::from(original_context) / (2.0 * core::f64::consts::PI * f64::from(beta));
                        d * libm::log(turns) / (2.0 * ln_base)
                    };
                    let low = libm::floor(corr(beta_fast)).max(0.0);
                    let high = libm::ceil(corr(beta_slow)).min(d - 1.0);
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    speed * ((1.0 - ramp) + ramp / f64::from(factor))
                }
                RopeScaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => {
                    let turns = f64::from(original_context) * speed / (2.0 * core::f64::consts::PI);
                    let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                    let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    speed * (keep + (1.0 - keep) / f64::from(factor))
                }
            }
        });
        let speeds = speeds.collect();
        Rope { speeds, magnitude }
    }

    /// No rotation: all angles are 0.
    pub fn none(head_dim: usize) -> Self {
        Rope { speeds: alloc::vec![0.0; head_dim / 2], magnitude: 1.0 }
    }

    /// Radians per position of each pair.
    pub fn speeds(&self) -> &[f64] {
        &self.speeds
    }

    /// The factor of cos and sin.
    pub fn magnitude(&self) -> f32 {
        self.magnitude
    }

    /// Divides the speeds by `factors`, one for each.
    pub(super) fn divide(&mut self, factors: &[f32]) -> Result<(), Error> {
        for (speed, &factor) in self.speeds.iter_mut().zip(factors) {
            if !(factor > 0.0 && factor.is_finite()) {
                return Err(error!(KeyValue {
                    key: Name::new("factors of the rotary frequencies"),
                    found: f64::from(factor),
                    expected: "positive numbers",
                }));
            }
            *speed /= f64::from(factor);
        }
        Ok(())
    }

    /// Writes cos and sin of every pair's angle at `position`; both `(head_dim / 2)`. All heads of all layers
    /// share them.
    pub fn angles(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((speed, c), s) in self.speeds.iter().zip(cos).zip(sin) {
            let (sine, cosine) = libm::sincos(position as f64 * speed);
            *c = cosine as f32 * self.magnitude;
            *s = sine as f32 * self.magnitude;
        }
    }

    /// Writes cos and sin of the angles that move a rotated head `back` positions earlier, `-back speed[i]`,
    /// without the magnitude, which it already has; both `(head_dim / 2)`.
    pub fn angles_back(&self, back: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((speed, c), s) in self.speeds.iter().zip(cos).zip(sin) {
            let (sine, cosine) = libm::sincos(back as f64 * -speed);
            (*c, *s) = (cosine as f32, sine as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of the ramp, from the published Bonsai configurations.
    #[test]
    fn yarn_of_bonsai() {
        for (original, low, high) in [(8192, 17, 34), (16384, 20, 37)] {
            let plain = Rope::new(128, 1e6, RopeScaling::None);
            let yarn = Rope::new(128, 1e6, RopeScaling::yarn(4.0, original));
            let ratio = |i: usize| yarn.speeds[i] / plain.speeds[i];
            assert_eq!(ratio(low), 1.0);
            assert!(ratio(low + 1) < 1.0 && ratio(high - 1) > 0.2501);
            assert!((ratio(high) - 0.25).abs() < 1e-12 && (ratio(63) - 0.25).abs() < 1e-12);
            assert!((yarn.magnitude - 1.138_629_4).abs() < 1e-6);
        }
    }
}
