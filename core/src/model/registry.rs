//! Registry of the supported architectures and the published models.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

#[cfg(feature = "variants")]
use super::bitnet::{BITNET, BITNET_B158};
use super::config::{Architecture, Biases, ExpertsConfig, LayerKinds, ModelConfig, Scales};
#[cfg(feature = "variants")]
use super::gemma3::GEMMA3;
#[cfg(feature = "variants")]
use super::granite::GRANITE;
use super::hugging_face::HuggingFace;
#[cfg(feature = "variants")]
use super::lfm2::LFM2;
use super::llama::LLAMA;
#[cfg(feature = "variants")]
use super::maple::MAPLE;
use super::positions::{Alibi, Positions, RopeFactors, Rotary};
use super::program::TensorRole;
#[cfg(feature = "variants")]
use super::qwen2::QWEN2;
use super::qwen3::{QWEN3, QWEN3MOE};
#[cfg(feature = "variants")]
use super::qwen35::QWEN35;
use super::rope::RopeScaling;
#[cfg(feature = "variants")]
use super::smollm3::SMOLLM3;
use crate::error::{Error, Name, Result};
use crate::gguf::{Gguf, Header};
use crate::quant::{Format, WeightClass};

/// The architectures, and their folders in a table of its own: programs that convert nothing do without it.
macro_rules! architectures {
    ($($described:ident),*) => {
        const ALL: &[Architecture] = &[$($described.architecture),*];
        const FOLDERS: &[HuggingFace] = &[$($described.folder),*];
        const NAMES: &[&str] = &[$($described.architecture.name),*];
        const CLASSES: &[&str] = &[$($described.folder.classes[0],)* "these with Model for ForCausalLM"];
    };
}

#[cfg(feature = "variants")]
architectures![
    QWEN3,
    QWEN3MOE,
    LLAMA,
    QWEN2,
    SMOLLM3,
    GRANITE,
    GEMMA3,
    BITNET_B158,
    BITNET,
    LFM2,
    QWEN35,
    MAPLE
];
// What the others differ in is not computed.
#[cfg(not(feature = "variants"))]
architectures![QWEN3, QWEN3MOE, LLAMA];

/// The architecture of the published models.
const PUBLISHED: &Architecture = &{ QWEN3.architecture };

impl Architecture {
    /// Every supported architecture.
    pub const ALL: &'static [Architecture] = ALL;

    /// Their names, as errors say them.
    pub const NAMES: &'static str = text(&joined::<{ joined_len(NAMES) }>(NAMES));

    /// The architecture called `name`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown name.
    pub fn named(name: &str) -> Result<&'static Architecture> {
        Self::ALL.iter().find(|a| a.name == name).ok_or(error!(Unsupported {
            key: Name::new("general.architecture"),
            found: Name::new(name),
            expected: Self::NAMES,
        }))
    }
}

impl HuggingFace {
    /// The names of architectures in `config.json`, as errors say them.
    pub const CLASSES: &'static str = text(&joined::<{ joined_len(CLASSES) }>(CLASSES));

    /// Every architecture and its folders.
    pub fn all() -> impl Iterator<Item = (&'static Architecture, &'static HuggingFace)> {
        ALL.iter().zip(FOLDERS)
    }

    /// The folders of an architecture; `None` for one that is not of [`Architecture::ALL`].
    pub fn of(architecture: &Architecture) -> Option<&'static HuggingFace> {
        Self::all().find_map(|(known, folder)| (known == architecture).then_some(folder))
    }
}

/// What is before name `i` of `count` in `a, b or c`.
const fn separator(i: usize, count: usize) -> &'static str {
    match i {
        0 => "",
        _ if i + 1 == count => " or ",
        _ => ", ",
    }
}

const fn joined_len(names: &[&str]) -> usize {
    let (mut len, mut i) = (0, 0);
    while i < names.len() {
        len += separator(i, names.len()).len() + names[i].len();
        i += 1;
    }
    len
}

/// The text `a, b or c`, which is known before a program runs: it needs no memory.
const fn joined<const LEN: usize>(names: &[&str]) -> [u8; LEN] {
    let (mut text, mut len, mut i) = ([0; LEN], 0, 0);
    while i < names.len() {
        let parts = [separator(i, names.len()).as_bytes(), names[i].as_bytes()];
        let mut k = 0;
        while k < parts[0].len() + parts[1].len() {
            text[len] = if k < parts[0].len() { parts[0][k] } else { parts[1][k - parts[0].len()] };
            (len, k) = (len + 1, k + 1);
        }
        i += 1;
    }
    text
}

const fn text(bytes: &'static [u8]) -> &'static str {
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => "",
    }
}

impl ModelConfig {
    /// Reads and validates the metadata of a file. The vocabulary size is the embedding's row count.
    ///
    /// # Errors
    /// If the architecture is unknown, or if values are missing or invalid.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self> {
        Self::from_header(gguf.header())
    }

    /// As [`ModelConfig::from_gguf`], before any weights have arrived.
    ///
    /// # Errors
    /// As [`ModelConfig::from_gguf`].
    pub fn from_header(header: &Header<'_>) -> Result<Self> {
        let meta = header.metadata();
        // Later parts of a model lack everything else.
        if let Some(count) = meta.u32("split.count")?.filter(|n| *n > 1 && *n != u32::from(header.parts())) {
            return Err(error!(KeyValue {
                key: Name::new("split.count"),
                found: f64::from(count),
                expected: "1, or all parts of the model together",
            }));
        }
        let name = meta.need("general.architecture", meta.str("general.architecture")?)?;
        Self::read(Architecture::named(name)?, header)
    }
}

/// A published model, or [`ModelVariant::Custom`] for any other Qwen3 shape, which runs as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelVariant {
    /// 1-bit, 8.2 billion parameters.
    Bonsai8B,
    /// 1-bit, 4.0 billion parameters.
    Bonsai4B,
    /// 1-bit, 1.7 billion parameters.
    Bonsai1_7B,
    /// Ternary, 8.2 billion parameters.
    TernaryBonsai8B,
    /// Ternary, 4.0 billion parameters.
    TernaryBonsai4B,
    /// Ternary, 1.7 billion parameters.
    TernaryBonsai1_7B,
    /// Anything else.
    Custom,
}

/// Facts about a published model: its dimensions, format and costs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The model.
    pub variant: ModelVariant,
    /// Its dimensions.
    pub config: ModelConfig,
    /// Format of its matrices in the published file.
    pub format: Format,
    /// Its capabilities and costs.
    pub capabilities: CapabilityProfile,
}

/// Capabilities of a model, and its size and cost per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapabilityProfile {
    /// Longest context.
    pub max_context_length: usize,
    /// Parameters.
    pub num_parameters: u64,
    /// Bytes of the weights: of a published model, of its matrices in its format.
    pub weight_bytes: u64,
    /// Bytes of keys and values per token at 16 bits.
    pub kv_bytes_per_token: u64,
    /// Whether the chat template supports thinking.
    pub thinking: bool,
    /// Whether the chat template supports tool calls.
    pub tools: bool,
}

impl ModelVariant {
    /// Every published variant.
    pub const KNOWN: [ModelVariant; 6] = [
        ModelVariant::Bonsai8B,
        ModelVariant::Bonsai4B,
        ModelVariant::Bonsai1_7B,
        ModelVariant::TernaryBonsai8B,
        ModelVariant::TernaryBonsai4B,
        ModelVariant::TernaryBonsai1_7B,
    ];

    /// The variant with these dimensions and this format of block matrices. Every dimension counts, so that a
    /// distilled or widened model is not mistaken for the published one.
    pub fn detect(config: &ModelConfig, format: Format) -> Self {
        let ternary = match format.class() {
            WeightClass::OneBit => false,
            WeightClass::Ternary => true,
            WeightClass::Integer | WeightClass::Float => return ModelVariant::Custom,
        };
        let dims = |c: &ModelConfig| {
            let heads = (c.num_attention_heads, c.num_kv_heads, c.head_dim);
            (c.hidden_size, c.num_layers, heads, c.intermediate_size, c.vocab_size, c.tied_embeddings)
        };
        ModelVariant::KNOWN
            .into_iter()
            .filter(|_| {
                config.architecture == PUBLISHED && config.depth_routers.is_empty() && config.basis.is_none()
            })
            .find(|v| v.is_ternary() == ternary && v.config().is_some_and(|c| dims(&c) == dims(config)))
            .unwrap_or(ModelVariant::Custom)
    }

    /// Whether weights are -1, 0 or +1 (otherwise -1 or +1).
    pub const fn is_ternary(self) -> bool {
        use ModelVariant::{TernaryBonsai1_7B, TernaryBonsai4B, TernaryBonsai8B};
        matches!(self, TernaryBonsai8B | TernaryBonsai4B | TernaryBonsai1_7B)
    }

    /// The name on the model card.
    pub const fn name(self) -> &'static str {
        match self {
            ModelVariant::Bonsai8B => "Bonsai-8B",
            ModelVariant::Bonsai4B => "Bonsai-4B",
            ModelVariant::Bonsai1_7B => "Bonsai-1.7B",
            ModelVariant::TernaryBonsai8B => "Ternary-Bonsai-8B",
            ModelVariant::TernaryBonsai4B => "Ternary-Bonsai-4B",
            ModelVariant::TernaryBonsai1_7B => "Ternary-Bonsai-1.7B",
            ModelVariant::Custom => "Custom",
        }
    }

    /// The published dimensions; `None` for [`ModelVariant::Custom`].
    pub fn config(self) -> Option<ModelConfig> {
        (self != ModelVariant::Custom).then(|| self.dimensions())
    }

    fn dimensions(self) -> ModelConfig {
        // hidden, layers, heads, feed-forward, context, context before YaRN, tied, base of the rotary
        // frequencies
        let (h, l, q, f, context, original, tied, base) = match self {
            ModelVariant::Bonsai8B | ModelVariant::TernaryBonsai8B => {
                (4096, 36, 32, 12288, 65536, 16384, false, 1e6)
            }
            ModelVariant::Bonsai4B | ModelVariant::TernaryBonsai4B => {
                (2560, 36, 32, 9728, 32768, 8192, true, 5e6)
            }
            ModelVariant::Bonsai1_7B | ModelVariant::TernaryBonsai1_7B | ModelVariant::Custom => {
                (2048, 28, 16, 6144, 32768, 8192, true, 1e6)
            }
        };
        ModelConfig {
            architecture: PUBLISHED,
            hidden_size: h,
            num_layers: l,
            num_attention_heads: q,
            num_kv_heads: 8,
            head_dim: 128,
            intermediate_size: f,
            experts: None,
            depth_routers: Vec::new(),
            vocab_size: 151_669,
            max_context_length: context,
            rms_norm_eps: 1e-6,
            positions: Positions::Rotary(Rotary {
                base,
                scaling: RopeScaling::yarn(4.0, original),
                factors: RopeFactors::None,
            }),
            rotated: None,
            layers: LayerKinds::SAME,
            recurrence: None,
            biases: Biases::default(),
            scales: Scales::NONE,
            factors: Vec::new(),
            basis: None,
            tied_embeddings: tied,
        }
    }

    /// Dimensions, format and costs; `None` for [`ModelVariant::Custom`].
    pub fn spec(self) -> Option<ModelSpec> {
        let config = self.config()?;
        let format = if self.is_ternary() { Format::Pq2_0 } else { Format::Q1_0 };
        let program = config.program();
        let matrices = program.tensors.iter().filter(|tensor| tensor.role == TensorRole::Matrix);
        let weights: u64 = matrices.map(|tensor| tensor.rows as u64 * tensor.cols as u64).sum();
        let weight_bytes = weights / format.block() as u64 * format.block_bytes() as u64;
        let capabilities = CapabilityProfile::new(&config, weight_bytes, true, true);
        Some(ModelSpec { variant: self, config, format, capabilities })
    }
}

/// Every published model, largest first within its kind.
pub fn all_specs() -> impl Iterator<Item = ModelSpec> {
    ModelVariant::KNOWN.into_iter().filter_map(ModelVariant::spec)
}

impl CapabilityProfile {
    /// Derives costs from the dimensions; the caller provides the size and the capabilities of the chat template.
    pub fn new(config: &ModelConfig, weight_bytes: u64, thinking: bool, tools: bool) -> Self {
        let layers = config.program().layers;
        CapabilityProfile {
            max_context_length: config.max_context_length,
            num_parameters: config.num_parameters(),
            weight_bytes,
            kv_bytes_per_token: layers as u64 * 4 * config.kv_size() as u64,
            thinking,
            tools,
        }
    }
}

/// Builds a [`ModelConfig`], published or not; values that are not set stay as in Bonsai-1.7B.
#[derive(Clone, Debug)]
pub struct ModelConfigBuilder {
    config: ModelConfig,
}

macro_rules! setters {
    ($($field:ident: $t:ty),* $(,)?) => {$(
        #[doc = concat!("Sets [`ModelConfig::", stringify!($field), "`].")]
        pub fn $field(mut self, value: $t) -> Self {
            self.config.$field = value;
            self
        }
    )*};
}

impl ModelConfigBuilder {
    /// Starts from a published variant; from Bonsai-1.7B for [`ModelVariant::Custom`].
    pub fn new(variant: ModelVariant) -> Self {
        ModelConfigBuilder { config: variant.dimensions() }
    }

    setters! {
        hidden_size: usize,
        num_layers: usize,
        num_attention_heads: usize,
        num_kv_heads: usize,
        head_dim: usize,
        intermediate_size: usize,
        experts: Option<ExpertsConfig>,
        depth_routers: Vec<usize>,
        vocab_size: usize,
        max_context_length: usize,
        rms_norm_eps: f32,
        positions: Positions,
        tied_embeddings: bool,
    }

    /// Sets the base of the rotary frequencies.
    pub fn rope_freq_base(mut self, base: f32) -> Self {
        let positions = self.config.positions;
        self.config.positions = positions.with_frequencies(Rotary { base, ..positions.frequencies() });
        self
    }

    /// Sets RoPE scaling and the longest context, which becomes the one before scaling times the new factor.
    pub fn rescale_rope(mut self, scaling: RopeScaling) -> Self {
        let c = &mut self.config;
        let rotary = c.positions.frequencies();
        let original = rotary.scaling.original_context(c.max_context_length);
        c.max_context_length = scaling.scaled_context(original);
        c.positions = c.positions.with_frequencies(Rotary { scaling, ..rotary });
        self
    }

    /// Puts [ALiBi](super::alibi) in the place of the rotation, with slopes down to `2^-max_bias`; with 0, the rotation in
    /// the place of ALiBi.
    pub fn alibi(mut self, max_bias: f32) -> Self {
        let rotary = self.config.positions.frequencies();
        self.config.positions = match max_bias {
            0.0 => Positions::Rotary(rotary),
            max_bias => Positions::Alibi(Alibi { max_bias, rotates: false, rotary }),
        };
        self
    }

    /// The configuration, if it is valid.
    ///
    /// # Errors
    /// Those of [`ModelConfig::check`].
    pub fn build(self) -> Result<ModelConfig> {
        self.config.check()?;
        Ok(self.config)
    }
}

/// Starts from the configuration of a file.
impl From<ModelConfig> for ModelConfigBuilder {
    fn from(config: ModelConfig) -> Self {
        ModelConfigBuilder { config }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Value;
    use alloc::string::ToString;

    #[test]
    fn unknown_architectures_are_told_those_that_run() {
        let error = Architecture::named("gemma").unwrap_err().to_string();
        assert!(error.contains("expected qwen3, qwen3moe, llama") && error.ends_with(" or maple"), "{error}");
    }

    /// Parameter counts of the Qwen3 base models, and sizes of the published files.
    #[test]
    fn published_sizes() {
        for (variant, parameters) in [
            (ModelVariant::Bonsai1_7B, 1_720_574_976),
            (ModelVariant::Bonsai4B, 4_022_468_096),
            (ModelVariant::Bonsai8B, 8_190_735_360),
        ] {
            let config = ModelConfig { vocab_size: 151_936, ..variant.dimensions() };
            assert_eq!(config.num_parameters(), parameters);
        }
        let models = Value::parse(include_str!("../../../models/published.json")).unwrap();
        let models = models.elements().unwrap();
        assert_eq!(models.len(), ModelVariant::KNOWN.len());
        for model in models {
            let number = |name| model.get(name).unwrap().as_number().unwrap() as u64;
            let (name, file) = (model.get("name").unwrap().as_string().unwrap(), number("bytes"));
            let mut variants = ModelVariant::KNOWN.into_iter();
            let variant = variants.find(|variant| variant.name().eq_ignore_ascii_case(&name)).unwrap();
            assert_eq!(number("layers"), variant.spec().unwrap().config.num_layers as u64);
            // Besides its matrices a file holds 5.9 MB of vocabulary and up to 1.5 MB of norms.
            let other = file - variant.spec().unwrap().capabilities.weight_bytes;
            assert!((5_900_000..7_600_000).contains(&other), "{variant:?}: {other}");
        }
        // From the metadata of the published files.
        let base = |v: ModelVariant| v.spec().unwrap().config.positions.frequencies().base;
        assert_eq!(base(ModelVariant::Bonsai4B), 5e6);
        assert_eq!(base(ModelVariant::TernaryBonsai8B), 1e6);
        let kv = |v: ModelVariant| v.spec().unwrap().capabilities.kv_bytes_per_token;
        assert_eq!(kv(ModelVariant::Bonsai1_7B), 112 << 10);
        assert_eq!(kv(ModelVariant::TernaryBonsai8B), 144 << 10);
    }

    #[test]
    fn every_spec_is_detected_as_itself_and_neighbours_are_custom() {
        for spec in all_specs() {
            assert!(spec.config.check().is_ok());
            assert_eq!(ModelVariant::detect(&spec.config, spec.format), spec.variant);
            assert_eq!(ModelVariant::detect(&spec.config, Format::F16), ModelVariant::Custom);
            let wider = ModelConfig { intermediate_size: spec.config.intermediate_size + 128, ..spec.config };
            assert_eq!(ModelVariant::detect(&wider, spec.format), ModelVariant::Custom);
        }
    }

    #[test]
    fn the_builder_checks() {
        let builder = || ModelConfigBuilder::new(ModelVariant::Custom);
        assert_eq!(builder().num_layers(3).build().unwrap().num_layers, 3);
        assert_eq!(builder().num_kv_heads(3).build().unwrap_err().code(), "key_value");
        assert_eq!(builder().rope_freq_base(f32::NAN).build().unwrap_err().code(), "key_value");
        assert_eq!(builder().head_dim(0).build().unwrap_err().code(), "key_value");
    }

    /// From the model cards: Bonsai-1.7B is trained on 8192 tokens and extended to 32768 by YaRN.
    #[test]
    fn the_context_follows_rope_scaling() {
        let published = || ModelConfigBuilder::new(ModelVariant::Bonsai1_7B);
        for (text, context) in
            [("none", 8192), ("linear:2", 16384), ("yarn:4:8192", 32768), ("yarn:8:16384", 131_072)]
        {
            let config = published().rescale_rope(text.parse().unwrap()).build().unwrap();
            assert_eq!(config.max_context_length, context, "{text}");
            let back = ModelConfigBuilder::from(config).rescale_rope(RopeScaling::None).build().unwrap();
            assert_eq!(back.max_context_length, if text == "yarn:8:16384" { 16384 } else { 8192 });
        }
        let same = published().rescale_rope(RopeScaling::yarn(4.0, 8192)).build().unwrap();
        assert_eq!(Some(same), ModelVariant::Bonsai1_7B.config());
        for text in
            ["", "None", "none:1", "linear", "linear:0.5", "linear:nan", "yarn:4", "yarn:4:0", "yarn:4:1:2"]
        {
            let error = text.parse::<RopeScaling>().unwrap_err();
            assert_eq!(error.code(), "unsupported");
            assert!(
                error.to_string().contains("expected none, linear:FACTOR, or dynamic, yarn or llama3 with"),
                "{error}"
            );
        }
        let endless = published().rescale_rope("yarn:1e30:8192".parse().unwrap());
        assert_eq!(endless.build().unwrap_err().code(), "limit");
    }
}
