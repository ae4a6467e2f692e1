//! The hyper-parameters of a model, read from metadata and validated once.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::basis::HeadOrder;
use super::hadamard::{Rotated, RotatedBasis};
use super::keys::{Keys, bad};
use super::positions::{Positions, Rotary};
use super::program::{Heads, Program};
use super::rope::RopeScaling;
use super::{depths, factors};
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
    /// Reads what other architectures lack, or have another default of.
    pub(super) read: fn(&mut ModelConfig, &Keys<'_, '_>, &Header<'_>) -> Result<()>,
}

/// For [`Architecture::read`]: there is nothing of that kind.
pub(super) fn nothing_else(_: &mut ModelConfig, _: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    Ok(())
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
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// What gates are at most, and what they are multiplied with is within (`swiglu_clamp_exp`).
    pub clamp: Option<f32>,
}

/// Vectors that attention adds to its products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// To queries, keys and values (`blk.N.attn_q.bias` and so on).
    pub qkv: bool,
    /// To what attention adds to the residual stream (`blk.N.attn_output.bias`).
    pub output: bool,
}

/// Factors of a model's streams; all are 1 in most models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Of embeddings (`embedding_scale`).
    pub embedding: f32,
    /// Of scores, which are multiplied by it in place of `1 / sqrt(head_dim)` (`attention.scale`); 0 for just that.
    pub attention: f32,
    /// Of what a block adds to the residual stream (`residual_scale`).
    pub residual: f32,
    /// What logits are divided by (`logit_scale`).
    pub logits: f32,
}

impl Default for Scales {
    fn default() -> Self {
        Scales::NONE
    }
}

impl Scales {
    pub(super) const NONE: Scales = Scales { embedding: 1.0, attention: 0.0, residual: 1.0, logits: 1.0 };

    /// What queries are multiplied by beside `1 / sqrt(head_dim)`.
    pub(super) fn of_queries(&self, head_dim: usize) -> f32 {
        match self.attention {
            0.0 => 1.0,
            scale => (f64::from(scale) * libm::sqrt(head_dim as f64)) as f32,
        }
    }

    fn check(&self, architecture: &str) -> Result<()> {
        for (key, scale) in [
            ("embedding_scale", self.embedding),
            ("attention.scale", if self.attention == 0.0 { 1.0 } else { self.attention }),
            ("residual_scale", self.residual),
            ("logit_scale", self.logits),
        ] {
            if !(scale > 0.0 && scale.is_finite()) {
                return Err(bad(architecture, key, f64::from(scale), "a positive number"));
            }
        }
        Ok(())
    }
}

/// The shape of layers with a state in place of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recurrence {
    /// Rows that a convolution reads (`shortconv.l_cache`, `ssm.conv_kernel`).
    pub taps: usize,
    /// Heads of queries and keys of linear attention (`ssm.group_count`); 0 in models without.
    pub key_heads: usize,
    /// Heads of values (`ssm.time_step_rank`), a multiple of those of keys.
    pub value_heads: usize,
    /// Elements of each of these heads (`ssm.state_size`).
    pub head_dim: usize,
}

impl Recurrence {
    /// Maximum number of numbers in the state of a layer, which has less than a million in the published models.
    const MAX_STATE: usize = 1 << 22;

    fn check(&self, architecture: &str) -> Result<()> {
        let Recurrence { taps, key_heads, value_heads, head_dim } = *self;
        if !(1..=16).contains(&taps) {
            return Err(bad(architecture, "the length of convolutions", taps as f64, "1 to 16"));
        }
        // Only LFM2, whose layers have nothing but a convolution.
        if value_heads == 0 && key_heads == 0 && head_dim == 0 {
            return Ok(());
        }
        if !(1..=1 << 12).contains(&value_heads) {
            return Err(bad(architecture, "ssm.time_step_rank", value_heads as f64, "1 to 4096"));
        }
        if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
            let expected = "a divisor of time_step_rank";
            return Err(bad(architecture, "ssm.group_count", key_heads as f64, expected));
        }
        if !(1..=ModelConfig::MAX_HEAD_DIM).contains(&head_dim) {
            return Err(bad(architecture, "ssm.state_size", head_dim as f64, "1 to 4096"));
        }
        if value_heads * head_dim > Self::MAX_STATE / head_dim {
            let expected = "at most 4194304 numbers in the state of a layer";
            return Err(bad(architecture, "ssm.state_size", head_dim as f64, expected));
        }
        Ok(())
    }
}

/// Layers whose attention differs from the others'.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerKinds {
    /// How many of the last positions the layers of `windowed` see (`attention.sliding_window`).
    pub window: Option<NonZeroU32>,
    /// Layers with that window, in order.
    pub windowed: Vec<usize>,
    /// The frequencies of these layers, where they have their own.
    pub rotary: Option<Rotary>,
    /// Layers whose queries and keys are not rotated, in order.
    pub unrotated: Vec<usize>,
    /// Layers with a state in place of keys and values, in order (those with 0 in an array `attention.head_count_kv`, or
    /// `attention.recurrent_layers`).
    pub recurrent: Vec<usize>,
}

impl LayerKinds {
    pub(super) const SAME: LayerKinds = LayerKinds {
        window: None,
        windowed: Vec::new(),
        rotary: None,
        unrotated: Vec::new(),
        recurrent: Vec::new(),
    };

    /// The layers of `0..layers` for which `kind` is true.
    pub(super) fn of(layers: usize, kind: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..layers).filter(|layer| kind(*layer)).collect()
    }

    /// The window of a layer.
    pub fn window(&self, layer: usize) -> Option<NonZeroU32> {
        self.window.filter(|_| self.windowed.binary_search(&layer).is_ok())
    }

    /// Whether a layer has a state in place of keys and values.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.recurrent.binary_search(&layer).is_ok()
    }

    fn is_same(&self) -> bool {
        *self == LayerKinds::SAME
    }
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
    /// How many elements of a head are rotated, the first ones, if not all (`rope.dimension_count`).
    pub rotated: Option<usize>,
    /// What layers differ in.
    pub layers: LayerKinds,
    /// The shape of layers with a state.
    pub recurrence: Option<Recurrence>,
    /// Vectors that attention adds.
    pub biases: Biases,
    /// Factors of the model's streams.
    pub scales: Scales,
    /// The tensors of [factors of matrices](factors) (`blk.N.attn_q.scale`).
    pub factors: Vec<String>,
    /// How the weights are rotated, if they are (`prism.hadamard.*`).
    pub basis: Option<RotatedBasis>,
    /// Whether the output matrix is the embedding (no `output.weight` in the file).
    pub tied_embeddings: bool,
}

impl ModelConfig {
    /// The most elements of an attention head.
    pub const MAX_HEAD_DIM: usize = 1 << 12;

    /// Reads and validates the metadata of a file of `architecture`.
    pub(super) fn read(architecture: &'static Architecture, header: &Header<'_>) -> Result<Self> {
        let meta = &Keys { meta: header.metadata(), architecture: architecture.name };
        let basis = if cfg!(feature = "variants") {
            RotatedBasis::read(meta.meta)?
        } else {
            meta.meta.refuse("prism.hadamard.", "a model without Hadamard-rotated weights")?;
            None
        };
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
        let key = "attention.head_count_kv";
        let (num_kv_heads, recurrent) = meta.size_of_layers(key, num_layers, num_attention_heads)?;
        let (positions, rotated) = Positions::read(meta, header, head_dim)?;
        let mut config = ModelConfig {
            architecture,
            hidden_size,
            num_layers,
            num_attention_heads,
            num_kv_heads,
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
            rotated,
            layers: LayerKinds { recurrent, ..LayerKinds::SAME },
            recurrence: None,
            biases: if cfg!(feature = "variants") { biases(header) } else { Biases::default() },
            scales: Scales::NONE,
            factors: if cfg!(feature = "variants") { factors::names(header) } else { Vec::new() },
            basis,
            tied_embeddings: header.tensor("output.weight").is_none(),
        };
        // An architecture reads as many layers as there are.
        if cfg!(feature = "variants") {
            config.check_sizes()?;
            (architecture.read)(&mut config, meta, header)?;
        }
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

    /// Elements of a head that are rotated.
    pub fn rotated_len(&self) -> usize {
        self.rotated.unwrap_or(self.head_dim)
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
        let program = self.plain_program();
        match &self.basis {
            Some(basis) if cfg!(feature = "variants") => basis.apply(program, self.rotated_parts()),
            _ => program,
        }
    }

    /// What rotations of weights depend on.
    fn rotated_parts(&self) -> Rotated {
        let shape = self.recurrence.filter(|shape| shape.value_heads > 0);
        Rotated {
            hidden: self.hidden_size,
            tied: self.tied_embeddings,
            heads: shape.map(|shape| HeadOrder { keys: shape.key_heads, heads: shape.value_heads }),
        }
    }

    /// The forward pass without rotations.
    fn plain_program(&self) -> Program {
        let program = (self.architecture.program)(self);
        match cfg!(feature = "variants") && !self.factors.is_empty() {
            true => program.with_factors(&self.factors),
            false => program,
        }
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
            && self.rotated.is_none()
            && matches!(self.positions, Positions::Rotary(Rotary { scaling: RopeScaling::None, .. }));
        if !cfg!(feature = "variants") && !plain {
            return Err(error!(Unsupported {
                key: Name::new("a variant"),
                found: Name::new(self.architecture.name),
                expected: "no experts, depth routers, biases, scaled streams, layers that differ, scaled or partial rotation or ALiBi \
                           without the feature `variants`",
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
        if cfg!(feature = "variants") {
            self.scales.check(self.architecture.name)?;
        }
        self.check_layers()?;
        self.positions.check(self.architecture.name, !self.depth_routers.is_empty())
    }

    fn check_layers(&self) -> Result<()> {
        if !cfg!(feature = "variants") {
            return Ok(());
        }
        let bad = |key, found, expected| bad(self.architecture.name, key, found, expected);
        let key = "rope.dimension_count";
        if let Some(rotated) = self.rotated {
            if rotated > self.head_dim || !rotated.is_multiple_of(2) {
                return Err(bad(key, rotated as f64, "an even number, at most key_length"));
            }
            if self.positions.frequencies().scaling != RopeScaling::None {
                let expected = "the same as key_length in a model with scaled frequencies";
                return Err(bad(key, rotated as f64, expected));
            }
        }
        // Their positions are those in the cache, which lacks the tokens that skip a block.
        if !self.depth_routers.is_empty() && !self.layers.is_same() {
            let found = self.layers.window.map_or(0.0, |window| f64::from(window.get()));
            let expected = "none in a model whose tokens skip blocks (blk.N.depth_router.weight)";
            return Err(bad("attention.sliding_window", found, expected));
        }
        // A block's bias would be added without the factor.
        if self.biases.output && self.scales.residual != 1.0 {
            let expected = "1 in a model with blk.N.attn_output.bias";
            return Err(bad("residual_scale", f64::from(self.scales.residual), expected));
        }
        match (self.recurrence, self.layers.recurrent.is_empty()) {
            (Some(recurrence), _) => recurrence.check(self.architecture.name)?,
            (None, true) => {}
            (None, false) => {
                return Err(bad("attention.head_count_kv", 0.0, "at least 1 in every layer"));
            }
        }
        if self.recurrence.is_some() && self.layers.recurrent.len() == self.num_layers {
            return Err(bad("block_count", self.num_layers as f64, "at least one layer with attention"));
        }
        if let Some(rotary) = self.layers.rotary {
            Positions::Rotary(rotary).check(self.architecture.name, false)?;
        }
        match &self.basis {
            Some(basis) => basis.check(&self.plain_program(), self.rotated_parts()),
            None => Ok(()),
        }
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

/// The biases that the first layer has.
fn biases(header: &Header<'_>) -> Biases {
    let has = |name: &str| header.tensor(name).is_some();
    Biases { qkv: has("blk.0.attn_q.bias"), output: has("blk.0.attn_output.bias") }
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
        clamp: None,
    })
}
