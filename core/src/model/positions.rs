//! How attention knows positions: by rotation (RoPE), by [linear biases](super::alibi) or not at all.
#![forbid(unsafe_code)]

use super::keys::{Keys, bad};
use super::rope::{Rope, RopeScaling};
use crate::error::{Error, Name, Result};
use crate::gguf::Header;

const MAX_ALIBI_BIAS: &str = "attention.max_alibi_bias";
const ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";
const YARN_ATTN_FACTOR: &str = "rope.scaling.yarn_attn_factor";
/// More would make slopes zero.
const MAX_BIAS: f32 = 1024.0;

/// How attention knows positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are rotated.
    Rotary(Rotary),
    /// Scores have linear biases.
    Alibi(Alibi),
    /// Order is known by the causal mask only.
    None,
}

/// Frequencies of the rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Their base (`rope.freq_base`).
    pub base: f32,
    /// Their scaling (`rope.scaling.*`).
    pub scaling: RopeScaling,
    /// Tensors of the file that they can be divided by.
    pub factors: RopeFactors,
}

/// [Linear biases](super::alibi) of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alibi {
    /// The largest slope's exponent, 8 in the paper (`attention.max_alibi_bias`).
    pub max_bias: f32,
    /// Whether queries and keys are rotated as well (`rope.dimension_count`).
    pub rotates: bool,
    /// The frequencies of that rotation, or of one in the place of the biases.
    pub rotary: Rotary,
}

/// Tensors of a file that rotary frequencies can be divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeFactors {
    /// There are none.
    None,
    /// `rope_freqs.weight`, as in files of Llama 3.1 and later. A scaling by option replaces them; a file with both is refused.
    Llama3,
    /// `rope_factors_short.weight` and `rope_factors_long.weight`, which only [`RopeScaling::LongRope`] uses.
    LongRope,
}

impl Default for Rotary {
    fn default() -> Self {
        Rotary { base: 10_000.0, scaling: RopeScaling::None, factors: RopeFactors::None }
    }
}

impl Positions {
    /// With the elements of a head that are rotated, if not all.
    pub(super) fn read(
        meta: &Keys<'_, '_>,
        header: &Header<'_>,
        head_dim: usize,
    ) -> Result<(Positions, Option<usize>)> {
        let max_bias = meta.f32(MAX_ALIBI_BIAS)?.unwrap_or(0.0);
        let unsaid = if max_bias == 0.0 { head_dim } else { 0 };
        let mut rotated = meta.size("rope.dimension_count", Some(unsaid))?;
        // Of layers with a window; the others are not rotated.
        if cfg!(feature = "variants") && meta.architecture == "maple" && rotated == 0 {
            rotated = meta.size("rope.dimension_count_swa", None)?;
        }
        let whole_only = max_bias != 0.0 || rotated == 0 || !cfg!(feature = "variants");
        if rotated != head_dim && rotated != unsaid && whole_only {
            let expected = "the same as key_length";
            return Err(bad(meta.architecture, "rope.dimension_count", rotated as f64, expected));
        }
        let rotary = Rotary {
            base: meta.f32("rope.freq_base")?.unwrap_or(10_000.0),
            scaling: rope_scaling(meta, header)?,
            factors: match () {
                () if has_long_rope(header) => RopeFactors::LongRope,
                () if header.tensor(ROPE_FACTORS).is_some() => RopeFactors::Llama3,
                () => RopeFactors::None,
            },
        };
        let positions = match max_bias {
            0.0 => Positions::Rotary(rotary),
            max_bias => Positions::Alibi(Alibi { max_bias, rotates: rotated > 0, rotary }),
        };
        Ok((positions, Some(rotated).filter(|rotated| *rotated != 0 && *rotated != head_dim)))
    }

    /// The frequencies of the rotation, or of one in the place of ALiBi.
    pub fn frequencies(&self) -> Rotary {
        match self {
            Positions::Rotary(rotary) | Positions::Alibi(Alibi { rotary, .. }) => *rotary,
            Positions::None => Rotary::default(),
        }
    }

    /// Whether queries and keys are rotated.
    pub fn rotates(&self) -> bool {
        match self {
            Positions::Rotary(_) => true,
            Positions::Alibi(alibi) => alibi.rotates,
            Positions::None => false,
        }
    }

    /// The largest slope's exponent of ALiBi, or 0.
    pub fn max_alibi_bias(&self) -> f32 {
        match self {
            Positions::Alibi(alibi) => alibi.max_bias,
            Positions::Rotary(_) | Positions::None => 0.0,
        }
    }

    /// With these frequencies in place of the others.
    pub fn with_frequencies(self, rotary: Rotary) -> Self {
        match self {
            Positions::Rotary(_) => Positions::Rotary(rotary),
            Positions::Alibi(alibi) => Positions::Alibi(Alibi { rotary, ..alibi }),
            Positions::None => Positions::None,
        }
    }

    /// With the frequencies for contexts of `tokens`.
    pub(super) fn for_context(self, tokens: usize) -> Self {
        let rotary = self.frequencies();
        self.with_frequencies(Rotary { scaling: rotary.scaling.for_context(tokens), ..rotary })
    }

    /// The maximum length of a sequence that the rotary frequencies are for.
    pub(super) fn longest_sequence(&self) -> Option<u32> {
        self.frequencies().scaling.longest_sequence().filter(|_| self.rotates())
    }

    /// Whether the rotary frequencies are divided by the file's factors.
    pub fn divides_rope(&self) -> bool {
        let rotary = self.frequencies();
        match rotary.scaling {
            _ if !self.rotates() => false,
            RopeScaling::None => rotary.factors == RopeFactors::Llama3,
            RopeScaling::LongRope { .. } => true,
            RopeScaling::Linear { .. }
            | RopeScaling::Yarn { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::DynamicNtk { .. } => false,
        }
    }

    /// Frequencies of the rotary embedding of heads with `head_dim` elements, before they are divided by the file's factors.
    pub fn rope(&self, head_dim: usize) -> Rope {
        let rotary = self.frequencies();
        let scaling = if cfg!(feature = "variants") { rotary.scaling } else { RopeScaling::None };
        match self.rotates() {
            true => Rope::new(head_dim, rotary.base, scaling),
            false => Rope::none(head_dim),
        }
    }

    /// Refuses invalid values of a model of `architecture`. `skips` says whether tokens skip blocks.
    pub(super) fn check(&self, architecture: &str, skips: bool) -> Result<()> {
        if let Positions::Alibi(Alibi { max_bias, .. }) = *self {
            if !(0.0..=MAX_BIAS).contains(&max_bias) {
                return Err(bad(architecture, MAX_ALIBI_BIAS, f64::from(max_bias), "0 to 1024"));
            }
            // Its distances are those in the cache, which lacks the tokens that skip a block.
            if skips {
                let expected = "0 in a model whose tokens skip blocks (blk.N.depth_router.weight)";
                return Err(bad(architecture, MAX_ALIBI_BIAS, f64::from(max_bias), expected));
            }
        }
        self.frequencies().check(architecture)
    }
}

impl Rotary {
    fn check(&self, architecture: &str) -> Result<()> {
        let bad = |key, found, expected| bad(architecture, key, found, expected);
        if !(self.base > 1.0 && self.base.is_finite()) {
            return Err(bad("rope.freq_base", f64::from(self.base), "a number over 1"));
        }
        if !cfg!(feature = "variants") {
            return Ok(());
        }
        let factor = match self.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor } => factor,
            RopeScaling::DynamicNtk { factor, original_context, .. } => {
                if original_context == 0 {
                    let key = ORIGINAL_CONTEXT;
                    return Err(bad(key, 0.0, "at least 1"));
                }
                factor
            }
            RopeScaling::LongRope { original_context, attention_factor, .. } => {
                if original_context == 0 {
                    let key = ORIGINAL_CONTEXT;
                    return Err(bad(key, 0.0, "at least 1"));
                }
                if !(attention_factor > 0.0 && attention_factor.is_finite()) {
                    let key = "rope.scaling.attn_factor";
                    return Err(bad(key, f64::from(attention_factor), "a positive number"));
                }
                if self.factors != RopeFactors::LongRope {
                    return Err(error!(MissingTensor { name: Name::new(LONG_ROPE[1]) }));
                }
                1.0
            }
            RopeScaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => {
                if original_context == 0 {
                    let key = ORIGINAL_CONTEXT;
                    return Err(bad(key, 0.0, "at least 1"));
                }
                if !(low_freq_factor > 0.0
                    && high_freq_factor > low_freq_factor
                    && high_freq_factor.is_finite())
                {
                    let key = "rope.scaling.high_freq_factor";
                    return Err(bad(key, f64::from(high_freq_factor), "a number over low_freq_factor"));
                }
                factor
            }
            RopeScaling::Yarn { factor, original_context, attention_factor, beta_fast, beta_slow } => {
                if original_context == 0 {
                    let key = ORIGINAL_CONTEXT;
                    return Err(bad(key, 0.0, "at least 1"));
                }
                for (key, x) in [
                    (YARN_ATTN_FACTOR, attention_factor),
                    ("rope.scaling.yarn_beta_fast", beta_fast),
                    ("rope.scaling.yarn_beta_slow", beta_slow),
                ] {
                    if !(x > 0.0 && x.is_finite()) {
                        return Err(bad(key, f64::from(x), "a positive number"));
                    }
                }
                factor
            }
        };
        if !(factor >= 1.0 && factor.is_finite()) {
            return Err(bad("rope.scaling.factor", f64::from(factor), "a number of at least 1"));
        }
        Ok(())
    }
}

/// The factors of Llama 3.1.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The factors of LongRoPE for short and for long contexts.
const LONG_ROPE: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

fn has_long_rope(header: &Header<'_>) -> bool {
    LONG_ROPE.iter().any(|name| header.tensor(name).is_some())
}

/// The factor of a file without a type of scaling, which llama.cpp takes for a linear one; 0 is none, as 1 is.
fn implied_linear(meta: &Keys<'_, '_>) -> Result<Option<f32>> {
    let factor = match meta.f32("rope.scaling.factor")? {
        None => meta.f32("rope.scale_linear")?,
        factor => factor,
    };
    Ok(factor.filter(|factor| *factor != 0.0 && *factor != 1.0))
}

fn rope_scaling(meta: &Keys<'_, '_>, header: &Header<'_>) -> Result<RopeScaling> {
    let key = "rope.scaling.type";
    if !cfg!(feature = "variants") {
        let implied = match () {
            () if has_long_rope(header) => "longrope",
            () if implied_linear(meta)?.is_some() => "linear",
            () => "none",
        };
        let found = meta.str(key)?.unwrap_or(implied);
        return match found {
            "none" => Ok(RopeScaling::None),
            found => Err(error!(Unsupported {
                key: Name::new(meta.key(key)),
                found: Name::new(found),
                expected: "none in a build without the feature `variants`",
            })),
        };
    }
    let factor = || meta.need_f32("rope.scaling.factor");
    let has_factors = header.tensor(ROPE_FACTORS).is_some();
    match meta.str(key)? {
        None | Some("none" | "longrope") if has_long_rope(header) && has_factors => {
            Err(error!(Unsupported {
                key: Name::new("tensor"),
                found: Name::new(ROPE_FACTORS),
                expected: "none of this name beside rope_factors_short.weight or rope_factors_long.weight",
            }))
        }
        kind @ (None | Some("none" | "longrope")) if kind == Some("longrope") || has_long_rope(header) => {
            Ok(RopeScaling::LongRope {
                original_context: meta.size(ORIGINAL_CONTEXT, None)? as u32,
                attention_factor: meta.f32("rope.scaling.attn_factor")?.unwrap_or(1.0),
                context: meta.size("context_length", None)? as u32,
            })
        }
        None => match implied_linear(meta)? {
            Some(factor) if has_factors => {
                let expected = "1 in a file with rope_freqs.weight";
                Err(bad(meta.architecture, "rope.scaling.factor", f64::from(factor), expected))
            }
            Some(factor) => Ok(RopeScaling::Linear { factor }),
            None => Ok(RopeScaling::None),
        },
        // Factors of a file and another scaling are not computed together here.
        Some(found @ ("linear" | "dynamic" | "yarn")) if has_long_rope(header) || has_factors => {
            let expected = match has_factors {
                true => "none in a file with rope_freqs.weight",
                false => "longrope in a file with rope_factors_short.weight or rope_factors_long.weight",
            };
            Err(error!(Unsupported { key: Name::new(meta.key(key)), found: Name::new(found), expected }))
        }
        Some("none") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
        Some("dynamic") => {
            let original = meta.size(ORIGINAL_CONTEXT, None)?;
            Ok(RopeScaling::dynamic_ntk(factor()?, original as u32))
        }
        Some("yarn") => {
            // As transformers and llama.cpp do.
            let context = meta.size("context_length", None)?;
            let original = meta.size(ORIGINAL_CONTEXT, Some(context))?;
            let mut yarn = RopeScaling::yarn(factor()?, original as u32);
            if let RopeScaling::Yarn { attention_factor, beta_fast, beta_slow, .. } = &mut yarn {
                // llama.cpp's converter writes one of two numbers: the `attention_factor` of transformers, which is the whole
                // magnitude and at least 1, or `attn_factor`, which the usual one is multiplied by. DeepSeek-R1-0528-Qwen3-8B
                // has 0.878 there, for a magnitude of 1.
                if let Some(found) = meta.f32(YARN_ATTN_FACTOR)? {
                    *attention_factor = if found < 1.0 { found * *attention_factor } else { found };
                }
                for (key, value) in
                    [("rope.scaling.yarn_beta_fast", beta_fast), ("rope.scaling.yarn_beta_slow", beta_slow)]
                {
                    if let Some(found) = meta.f32(key)? {
                        *value = found;
                    }
                }
                *attention_factor *= meta.f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
            }
            Ok(yarn)
        }
        Some(found) => Err(error!(Unsupported {
            key: Name::new(meta.key(key)),
            found: Name::new(found),
            expected: "none, linear, yarn, longrope or dynamic",
        })),
    }
}
