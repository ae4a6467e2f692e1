//! The hyper-parameters of a model, read from metadata and validated once.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use super::depths;
use super::program::{Heads, Program};
use super::rope::{Rope, RopeScaling};
use crate::error::{Error, Name, Result};
use crate::gguf::{Header, Metadata};
use crate::limits::Limits;

const EPS: &str = "attention.layer_norm_rms_epsilon";
pub(super) const MAX_ALIBI_BIAS: &str = "attention.max_alibi_bias";
const YARN_ATTN_FACTOR: &str = "rope.scaling.yarn_attn_factor";
/// More would make slopes zero.
const MAX_BIAS: f32 = 1024.0;

/// A model architecture: builds the forward pass from a configuration.
pub struct Architecture {
    /// The name in metadata (`general.architecture`), which is also the prefix of its keys.
    pub name: &'static str,
    /// Whether the feed-forward blocks consist of experts.
    pub experts: bool,
    /// Builds the forward pass for a validated configuration.
    pub program: fn(&ModelConfig) -> Program,
}

impl Architecture {
    /// An error for the number under `key` of this architecture.
    pub(super) fn bad(&self, key: &str, found: f64, expected: &'static str) -> Error {
        error!(KeyValue { key: Name::new([self.name, ".", key].concat()), found, expected })
    }
}

impl core::fmt::Debug for Architecture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The experts of the feed-forward blocks of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts of a block (`expert_count`).
    pub count: usize,
    /// Experts that a token uses (`expert_used_count`).
    pub used: usize,
    /// Width of each expert (`expert_feed_forward_length`).
    pub feed_forward: usize,
    /// Whether the probabilities of the experts that a token uses are divided by their sum
    /// (`expert_weights_norm`).
    pub normalize: bool,
}

/// Hyper-parameters of a model. Metadata keys follow the name of the architecture and a dot.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The architecture (`general.architecture`).
    pub architecture: &'static Architecture,
    /// Width of the residual stream (`embedding_length`).
    pub hidden_size: usize,
    /// Transformer blocks (`block_count`).
    pub num_layers: usize,
    /// Query heads (`attention.head_count`).
    pub num_attention_heads: usize,
    /// Key-value heads (`attention.head_count_kv`); a divisor of the query heads.
    pub num_kv_heads: usize,
    /// Elements per head (`attention.key_length`); not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Width of the feed-forward block (`feed_forward_length`).
    pub intermediate_size: usize,
    /// The experts that take the place of the feed-forward block.
    pub experts: Option<ExpertsConfig>,
    /// The blocks with a router that some tokens skip, in order, see [`depths`]
    /// (`blk.N.depth_router.weight`).
    pub depth_routers: Vec<usize>,
    /// Rows of the embedding, which is the size of the vocabulary.
    pub vocab_size: usize,
    /// Longest context the model was trained for (`context_length`).
    pub max_context_length: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies (`rope.freq_base`).
    pub rope_freq_base: f32,
    /// Scaling of the rotary frequencies (`rope.scaling.*`).
    pub rope_scaling: RopeScaling,
    /// Whether the file has factors that the rotary frequencies are divided by (`rope_freqs.weight`), as those of Llama 3.1
    /// and later. A scaling by option replaces them; a file with both is refused.
    pub rope_factors: bool,
    /// Whether the file has the factors of LongRoPE (`rope_factors_short.weight` and `rope_factors_long.weight`), which
    /// only [`RopeScaling::LongRope`] uses.
    pub long_rope_factors: bool,
    /// The largest slope's exponent of [ALiBi](super::alibi), 8 in the paper (`attention.max_alibi_bias`); 0 without it.
    pub max_alibi_bias: f32,
    /// Whether queries and keys are rotated. ALiBi takes the place of the rotation, unless the file has
    /// `rope.dimension_count` for both.
    pub rotary: bool,
    /// Whether the output matrix is the embedding (no `output.weight` in the file).
    pub tied_embeddings: bool,
}

impl ModelConfig {
    /// The most elements of an attention head.
    pub const MAX_HEAD_DIM: usize = 1 << 12;

    /// Reads and validates the metadata of a file of `architecture`.
    pub(super) fn read(architecture: &'static Architecture, header: &Header<'_>) -> Result<Self> {
        let meta = &Keys { meta: header.metadata(), architecture };
        // Weights stored in a rotated basis: computing with them unrotated gives fluent nonsense.
        meta.meta.refuse("prism.hadamard.", "a model without Hadamard-rotated weights")?;
        let embedding = header
            .tensor("token_embd.weight")
            .ok_or(error!(MissingTensor { name: Name::new("token_embd.weight") }))?;
        let hidden_size = meta.size("embedding_length", None)?;
        let tokens = meta.meta.strings("tokenizer.ggml.tokens")?.map_or(0, |tokens| tokens.len());
        let found = embedding.shape();
        let [_, rows, ..] = found;
        // There may be rows without a token.
        if rows < tokens as u64 {
            let expected = [hidden_size, tokens, 1].map(|dim| u32::try_from(dim).unwrap_or(u32::MAX));
            return Err(error!(TensorShape { name: Name::new(embedding.name()), expected, found }));
        }
        let num_layers = meta.size("block_count", None)?;
        let num_attention_heads = meta.size("attention.head_count", None)?;
        let head_dim = meta.size("attention.key_length", Some(hidden_size / num_attention_heads.max(1)))?;
        let value_length = meta.size("attention.value_length", Some(head_dim))?;
        if value_length != head_dim {
            return Err(architecture.bad(
                "attention.value_length",
                value_length as f64,
                "the same as key_length",
            ));
        }
        let max_alibi_bias = meta.f32(MAX_ALIBI_BIAS)?.unwrap_or(0.0);
        let unsaid = if max_alibi_bias == 0.0 { head_dim } else { 0 };
        let rotated = meta.size("rope.dimension_count", Some(unsaid))?;
        if rotated != head_dim && rotated != unsaid {
            return Err(architecture.bad("rope.dimension_count", rotated as f64, "the same as key_length"));
        }
        let config = ModelConfig {
            architecture,
            hidden_size,
            num_layers,
            num_attention_heads,
            num_kv_heads: meta.size("attention.head_count_kv", Some(num_attention_heads))?,
            head_dim,
            intermediate_size: meta.size("feed_forward_length", None)?,
            experts: if cfg!(feature = "variants") && architecture.experts {
                Some(experts(meta)?)
            } else {
                None
            },
            depth_routers: depths::routed(header, num_layers),
            vocab_size: rows.min(u64::from(u32::MAX)) as usize,
            max_context_length: meta.size("context_length", None)?,
            rms_norm_eps: meta.need_f32(EPS)?,
            rope_freq_base: meta.f32("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: rope_scaling(meta, header)?,
            rope_factors: header.tensor(ROPE_FACTORS).is_some(),
            long_rope_factors: has_long_rope(header),
            max_alibi_bias,
            rotary: rotated > 0,
            tied_embeddings: header.tensor("output.weight").is_none(),
        };
        config.check()?;
        Ok(config)
    }

    /// Width of all query heads together.
    pub const fn q_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub const fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Shape of the attention heads.
    pub const fn heads(&self) -> Heads {
        Heads { query: self.num_attention_heads, kv: self.num_kv_heads, dim: self.head_dim }
    }

    /// Whether the frequencies are divided by the file's factors.
    pub fn divides_rope(&self) -> bool {
        match self.rope_scaling {
            _ if !self.rotary => false,
            RopeScaling::None => self.rope_factors,
            RopeScaling::LongRope { .. } => true,
            RopeScaling::Linear { .. }
            | RopeScaling::Yarn { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::DynamicNtk { .. } => false,
        }
    }

    /// The configuration for contexts of at most `tokens`: with the frequencies for that many if the scaling depends on
    /// it.
    pub fn for_context(self, tokens: usize) -> Self {
        let rope_scaling = self.rope_scaling.for_context(tokens.min(self.max_context_length));
        ModelConfig { rope_scaling, ..self }
    }

    /// The longest sequence that the frequencies are for: less than the longest context if those of the
    /// [context](ModelConfig::for_context) are others.
    pub fn longest_sequence(&self) -> usize {
        let longest = self.rope_scaling.longest_sequence().filter(|_| self.rotary);
        longest.map_or(self.max_context_length, |tokens| self.max_context_length.min(tokens as usize))
    }

    /// Frequencies of the rotary embedding, before they are divided by the file's factors.
    pub fn rope(&self) -> Rope {
        let scaling = if cfg!(feature = "variants") { self.rope_scaling } else { RopeScaling::None };
        match self.rotary {
            true => Rope::new(self.head_dim, self.rope_freq_base, scaling),
            false => Rope::none(self.head_dim),
        }
    }

    /// The forward pass. The configuration must be valid.
    pub fn program(&self) -> Program {
        (self.architecture.program)(self)
    }

    /// Parameters of the model, norms included.
    pub fn num_parameters(&self) -> u64 {
        self.program().num_parameters()
    }

    /// Refuses invalid values; afterwards products of them do not overflow.
    pub fn check(&self) -> Result<()> {
        let limits = Limits::DEFAULT;
        let bad = |key, found, expected| self.architecture.bad(key, found, expected);
        let sizes: [(&'static str, usize, u64); 8] = [
            ("embedding_length", self.hidden_size, 1 << 17),
            ("block_count", self.num_layers, limits.layers),
            ("attention.head_count", self.num_attention_heads, 1 << 12),
            ("attention.head_count_kv", self.num_kv_heads, 1 << 12),
            ("attention.key_length", self.head_dim, Self::MAX_HEAD_DIM as u64),
            ("feed_forward_length", self.intermediate_size, 1 << 20),
            ("vocabulary", self.vocab_size, limits.array),
            ("context_length", self.max_context_length, limits.context),
        ];
        for (key, value, max) in sizes {
            if value == 0 {
                return Err(bad(key, value as f64, "at least 1"));
            }
            if value as u64 > max {
                return Err(error!(Limit { what: key, found: value as u64, max }));
            }
        }
        let plain = !self.architecture.experts
            && self.depth_routers.is_empty()
            && self.rope_scaling == RopeScaling::None
            && self.max_alibi_bias == 0.0;
        if !cfg!(feature = "variants") && !plain {
            return Err(error!(Unsupported {
                key: Name::new("a variant"),
                found: Name::new(self.architecture.name),
                expected: "no experts, depth routers, scaled rotary frequencies or ALiBi without the feature `variants`",
            }));
        }
        if self.experts.is_some() != self.architecture.experts {
            let (found, expected) =
                if self.architecture.experts { (0.0, "at least 1") } else { (1.0, "none") };
            return Err(bad("expert_count", found, expected));
        }
        if let Some(ExpertsConfig { count, used, feed_forward, .. }) =
            self.experts.filter(|_| cfg!(feature = "variants"))
        {
            if !(1..=1 << 12).contains(&count) {
                return Err(bad("expert_count", count as f64, "1 to 4096"));
            }
            if !(1..=count).contains(&used) {
                return Err(bad("expert_used_count", used as f64, "at least 1, at most expert_count"));
            }
            if !(1..=1 << 20).contains(&feed_forward) {
                return Err(bad("expert_feed_forward_length", feed_forward as f64, "1 to 1048576"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_kv_heads) {
            return Err(bad("attention.head_count_kv", self.num_kv_heads as f64, "a divisor of head_count"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad("attention.key_length", self.head_dim as f64, "an even number"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(bad(EPS, f64::from(self.rms_norm_eps), "between 0 and 1"));
        }
        if !(self.max_alibi_bias >= 0.0 && self.max_alibi_bias <= MAX_BIAS) {
            return Err(bad(MAX_ALIBI_BIAS, f64::from(self.max_alibi_bias), "0 to 1024"));
        }
        // Its distances are those in the cache, which lacks the tokens that skip a block.
        if self.max_alibi_bias > 0.0 && !self.depth_routers.is_empty() {
            let expected = "0 in a model whose tokens skip blocks (blk.N.depth_router.weight)";
            return Err(bad(MAX_ALIBI_BIAS, f64::from(self.max_alibi_bias), expected));
        }
        if !(self.rope_freq_base > 1.0 && self.rope_freq_base.is_finite()) {
            return Err(bad("rope.freq_base", f64::from(self.rope_freq_base), "a number over 1"));
        }
        if !cfg!(feature = "variants") {
            return Ok(());
        }
        let factor = match self.rope_scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor } => factor,
            RopeScaling::DynamicNtk { factor, original_context, .. } => {
                if original_context == 0 {
                    let key = "rope.scaling.original_context_length";
                    return Err(bad(key, 0.0, "at least 1"));
                }
                factor
            }
            RopeScaling::LongRope { original_context, attention_factor, .. } => {
                if original_context == 0 {
                    let key = "rope.scaling.original_context_length";
                    return Err(bad(key, 0.0, "at least 1"));
                }
                if !(attention_factor > 0.0 && attention_factor.is_finite()) {
                    let key = "rope.scaling.attn_factor";
                    return Err(bad(key, f64::from(attention_factor), "a positive number"));
                }
                if !self.long_rope_factors {
                    return Err(error!(MissingTensor { name: Name::new(LONG_ROPE[1]) }));
                }
                1.0
            }
            RopeScaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => {
                if original_context == 0 {
                    let key = "rope.scaling.original_context_length";
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
                    let key = "rope.scaling.original_context_length";
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

/// Metadata of one architecture: keys are given without its prefix.
struct Keys<'m, 'a> {
    meta: &'m Metadata<'a>,
    architecture: &'static Architecture,
}

impl<'a> Keys<'_, 'a> {
    fn key(&self, key: &str) -> String {
        [self.architecture.name, ".", key].concat()
    }

    fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let key = self.key(key);
        match default {
            Some(default) => Ok(self.meta.u32(&key)?.map_or(default, |value| value as usize)),
            None => Ok(self.meta.need(&key, self.meta.u32(&key)?)? as usize),
        }
    }

    fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.meta.f32(&self.key(key))
    }

    fn need_f32(&self, key: &str) -> Result<f32> {
        self.meta.need(&self.key(key), self.f32(key)?)
    }

    fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.meta.str(&self.key(key))
    }
}

fn experts(meta: &Keys<'_, '_>) -> Result<ExpertsConfig> {
    // Each would change the model.
    for (key, expected) in [
        ("expert_shared_count", "no shared experts"),
        ("expert_group_count", "no groups of experts"),
        ("leading_dense_block_count", "experts in every block"),
    ] {
        let found = meta.size(key, Some(0))?;
        if found > usize::from(key == "expert_group_count") {
            return Err(meta.architecture.bad(key, found as f64, expected));
        }
    }
    for (key, usual) in [("expert_weights_scale", 1.0), ("expert_gating_func", 1.0)] {
        let found = match key {
            "expert_weights_scale" => meta.f32(key)?.map(f64::from),
            _ => meta.meta.u32(&meta.key(key))?.map(f64::from),
        };
        // 0 stands for the usual value, too.
        if let Some(found) = found.filter(|found| *found != 0.0 && *found != usual) {
            return Err(meta.architecture.bad(key, found, "1"));
        }
    }
    Ok(ExpertsConfig {
        count: meta.size("expert_count", None)?,
        used: meta.size("expert_used_count", None)?,
        feed_forward: meta.size("expert_feed_forward_length", None)?,
        normalize: meta.meta.bool(&meta.key("expert_weights_norm"))?.unwrap_or(true),
    })
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
                original_context: meta.size("rope.scaling.original_context_length", None)? as u32,
                attention_factor: meta.f32("rope.scaling.attn_factor")?.unwrap_or(1.0),
                context: meta.size("context_length", None)? as u32,
            })
        }
        None => match implied_linear(meta)? {
            Some(factor) if has_factors => {
                let expected = "1 in a file with rope_freqs.weight";
                Err(meta.architecture.bad("rope.scaling.factor", f64::from(factor), expected))
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
            let original = meta.size("rope.scaling.original_context_length", None)?;
            Ok(RopeScaling::dynamic_ntk(factor()?, original as u32))
        }
        Some("yarn") => {
            let original = meta.size("rope.scaling.original_context_length", None)?;
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
