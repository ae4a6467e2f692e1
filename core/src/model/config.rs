//! The hyper-parameters of a model, read from metadata and validated once.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::depths;
use super::keys::{Keys, bad};
use super::positions::{Positions, Rotary};
use super::program::{Heads, Program};
use super::rope::RopeScaling;
use crate::error::{Error, Name, Result};
use crate::gguf::Header;
use crate::limits::Limits;

const EPS: &str = "attention.layer_norm_rms_epsilon";

/// A model architecture: builds the forward pass from a configuration.
pub struct Architecture {
    /// The name in metadata (`general.architecture`), which is also the prefix of its keys.
    pub name: &'static str,
    /// Whether the feed-forward blocks consist of experts.
    pub experts: bool,
    /// Builds the forward pass for a validated configuration.
    pub program: fn(&ModelConfig) -> Program,
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
    /// How attention knows positions.
    pub positions: Positions,
    /// Whether the output matrix is the embedding (no `output.weight` in the file).
    pub tied_embeddings: bool,
}

impl ModelConfig {
    /// The most elements of an attention head.
    pub const MAX_HEAD_DIM: usize = 1 << 12;

    /// Reads and validates the metadata of a file of `architecture`.
    pub(super) fn read(architecture: &'static Architecture, header: &Header<'_>) -> Result<Self> {
        let meta = &Keys { meta: header.metadata(), architecture: architecture.name };
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
            let expected = "the same as key_length";
            return Err(bad(architecture.name, "attention.value_length", value_length as f64, expected));
        }
        let positions = Positions::read(meta, header, head_dim)?;
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
            positions,
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

    /// The configuration for contexts of at most `tokens`: with the frequencies for that many if the scaling depends on
    /// it.
    pub fn for_context(self, tokens: usize) -> Self {
        let positions = self.positions.for_context(tokens.min(self.max_context_length));
        ModelConfig { positions, ..self }
    }

    /// The longest sequence that the frequencies are for: less than the longest context if those of the
    /// [context](ModelConfig::for_context) are others.
    pub fn longest_sequence(&self) -> usize {
        let longest = self.positions.longest_sequence();
        longest.map_or(self.max_context_length, |tokens| self.max_context_length.min(tokens as usize))
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
        self.check_sizes()?;
        let plain = !self.architecture.experts
            && self.depth_routers.is_empty()
            && matches!(self.positions, Positions::Rotary(Rotary { scaling: RopeScaling::None, .. }));
        if !cfg!(feature = "variants") && !plain {
            return Err(error!(Unsupported {
                key: Name::new("a variant"),
                found: Name::new(self.architecture.name),
                expected: "no experts, depth routers, scaled rotary frequencies or ALiBi without the feature `variants`",
            }));
        }
        self.check_experts()?;
        let bad = |key, found, expected| bad(self.architecture.name, key, found, expected);
        if !self.num_attention_heads.is_multiple_of(self.num_kv_heads) {
            return Err(bad("attention.head_count_kv", self.num_kv_heads as f64, "a divisor of head_count"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad("attention.key_length", self.head_dim as f64, "an even number"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(bad(EPS, f64::from(self.rms_norm_eps), "between 0 and 1"));
        }
        self.positions.check(self.architecture.name, !self.depth_routers.is_empty())
    }

    fn check_sizes(&self) -> Result<()> {
        let limits = Limits::DEFAULT;
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
                return Err(bad(self.architecture.name, key, value as f64, "at least 1"));
            }
            if value as u64 > max {
                return Err(error!(Limit { what: key, found: value as u64, max }));
            }
        }
        Ok(())
    }

    fn check_experts(&self) -> Result<()> {
        let bad = |key, found, expected| bad(self.architecture.name, key, found, expected);
        if self.experts.is_some() != self.architecture.experts {
            let (found, expected) =
                if self.architecture.experts { (0.0, "at least 1") } else { (1.0, "none") };
            return Err(bad("expert_count", found, expected));
        }
        let experts = self.experts.filter(|_| cfg!(feature = "variants"));
        let Some(ExpertsConfig { count, used, feed_forward, .. }) = experts else { return Ok(()) };
        if !(1..=1 << 12).contains(&count) {
            return Err(bad("expert_count", count as f64, "1 to 4096"));
        }
        if !(1..=count).contains(&used) {
            return Err(bad("expert_used_count", used as f64, "at least 1, at most expert_count"));
        }
        if !(1..=1 << 20).contains(&feed_forward) {
            return Err(bad("expert_feed_forward_length", feed_forward as f64, "1 to 1048576"));
        }
        Ok(())
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
            return Err(bad(meta.architecture, key, found as f64, expected));
        }
    }
    for (key, usual) in [("expert_weights_scale", 1.0), ("expert_gating_func", 1.0)] {
        let found = match key {
            "expert_weights_scale" => meta.f32(key)?.map(f64::from),
            _ => meta.meta.u32(&meta.key(key))?.map(f64::from),
        };
        // 0 stands for the usual value, too.
        if let Some(found) = found.filter(|found| *found != 0.0 && *found != usual) {
            return Err(bad(meta.architecture, key, found, "1"));
        }
    }
    Ok(ExpertsConfig {
        count: meta.size("expert_count", None)?,
        used: meta.size("expert_used_count", None)?,
        feed_forward: meta.size("expert_feed_forward_length", None)?,
        normalize: meta.meta.bool(&meta.key("expert_weights_norm"))?.unwrap_or(true),
    })
}
