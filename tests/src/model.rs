//! Qwen3, Qwen3MoE and models of other architectures with random weights, in any shape, size and mix of formats.

use shohin_core::gguf::{GgufWriter, TensorType};
use shohin_core::{Error, Format, Result};

use crate::vocabulary::{QWEN3, Vocabulary};
use crate::{Random, weights};

/// The architecture of a model, and what it has beside the blocks of Qwen3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Qwen3, or Qwen3MoE with experts.
    Qwen3,
    /// Without norms of heads.
    Qwen2,
    /// Without norms of heads, and without a rotation in every fourth layer.
    SmolLm3,
    /// Without norms of heads, with factors of streams, scores and logits.
    Granite,
    /// Norms after blocks, and this window in five of six layers.
    Gemma3(u32),
    /// Norms in blocks in place of those of heads, and the square of ReLU.
    Bitnet,
    /// Experts, and this window in three of four layers, which alone are rotated.
    Maple(u32),
}

impl Kind {
    fn architecture(self) -> &'static str {
        match self {
            Kind::Qwen3 => "qwen3",
            Kind::Qwen2 => "qwen2",
            Kind::SmolLm3 => "smollm3",
            Kind::Granite => "granite",
            Kind::Gemma3(_) => "gemma3",
            Kind::Bitnet => "bitnet-b1.58",
            Kind::Maple(_) => "maple",
        }
    }
}

/// The dimensions of a model.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The architecture.
    pub kind: Kind,
    /// Whether queries, keys and values have biases.
    pub qkv_biases: bool,
    /// Whether the output of attention has a bias.
    pub output_bias: bool,
    /// Elements of a head that are rotated, if not all (`rope.dimension_count`).
    pub rotated: Option<u32>,
    /// `embedding_length`.
    pub hidden: usize,
    /// `block_count`.
    pub layers: usize,
    /// `attention.head_count`.
    pub heads: usize,
    /// `attention.head_count_kv`.
    pub kv_heads: usize,
    /// `attention.key_length` and `value_length`.
    pub head_dim: usize,
    /// `feed_forward_length`.
    pub ffn: usize,
    /// Experts, those that a token uses, and the width of each (`expert_count`, `expert_used_count`,
    /// `expert_feed_forward_length`), in place of the feed-forward block.
    pub experts: Option<[usize; 3]>,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// `context_length`.
    pub context: u32,
    /// `rope.freq_base`.
    pub rope_base: f32,
    /// YaRN of factor 4 over this original context, as in Bonsai files.
    pub yarn: Option<u32>,
    /// Whether the frequencies are divided by a tensor, as in files of Llama 3.1.
    pub rope_factors: bool,
    /// `attention.max_alibi_bias`, with which there are no rotary positions; 0 without.
    pub max_alibi_bias: f32,
    /// Whether tokens skip every other block, by a router of depth.
    pub depth_routers: bool,
}

impl Shape {
    /// A model of some 200,000 weights, with every dimension different and a block of 256 in every row.
    pub fn tiny() -> Shape {
        Shape {
            kind: Kind::Qwen3,
            qkv_biases: false,
            output_bias: false,
            rotated: None,
            hidden: 256,
            layers: 2,
            heads: 6,
            kv_heads: 2,
            head_dim: 128,
            ffn: 512,
            experts: None,
            vocab: 320,
            tied: true,
            context: 256,
            rope_base: 1e6,
            yarn: Some(64),
            rope_factors: false,
            max_alibi_bias: 0.0,
            depth_routers: false,
        }
    }

    /// The same with experts.
    pub fn tiny_experts() -> Shape {
        Shape { experts: Some([6, 2, 256]), ..Shape::tiny() }
    }

    /// The smallest models that have in common with Qwen2, SmolLM3, Granite, Gemma 3 and BitNet what Qwen3 lacks.
    pub fn variants() -> [Shape; 5] {
        let small =
            Shape { hidden: 64, heads: 2, kv_heads: 1, head_dim: 32, ffn: 96, yarn: None, ..Shape::tiny() };
        [
            Shape { kind: Kind::Qwen2, qkv_biases: true, rotated: Some(24), layers: 1, ..small.clone() },
            Shape { kind: Kind::SmolLm3, output_bias: true, layers: 4, ..small.clone() },
            Shape { kind: Kind::Granite, qkv_biases: true, rotated: Some(16), layers: 1, ..small.clone() },
            Shape { kind: Kind::Gemma3(5), layers: 6, ..small.clone() },
            Shape { kind: Kind::Bitnet, layers: 1, ..small },
        ]
    }

    /// The shape of a published model: `0.6b` (Qwen3 only), `1.7b`, `4b`, `8b` (Bonsai), `30b-a3b`
    /// (Qwen3MoE), or `maple`.
    pub fn published(name: &str) -> Option<Shape> {
        let bonsai = Shape {
            kind: Kind::Qwen3,
            qkv_biases: false,
            output_bias: false,
            rotated: None,
            hidden: 2048,
            layers: 28,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            ffn: 6144,
            experts: None,
            vocab: QWEN3,
            tied: true,
            context: 32_768,
            rope_base: 1e6,
            yarn: Some(8192),
            rope_factors: false,
            max_alibi_bias: 0.0,
            depth_routers: false,
        };
        match name {
            "0.6b" => Some(Shape { hidden: 1024, ffn: 3072, context: 40_960, yarn: None, ..bonsai }),
            "1.7b" => Some(bonsai),
            "4b" => Some(Shape { hidden: 2560, layers: 36, heads: 32, ffn: 9728, rope_base: 5e6, ..bonsai }),
            "30b-a3b" => Some(Shape {
                layers: 48,
                heads: 32,
                kv_heads: 4,
                experts: Some([128, 8, 768]),
                tied: false,
                context: 40_960,
                yarn: None,
                ..bonsai
            }),
            "maple" => Some(Shape {
                kind: Kind::Maple(512),
                layers: 24,
                heads: 16,
                kv_heads: 4,
                rotated: Some(64),
                rope_base: 1e4,
                context: 131_072,
                experts: Some([256, 8, 512]),
                tied: false,
                yarn: None,
                ..bonsai
            }),
            "8b" => Some(Shape {
                hidden: 4096,
                layers: 36,
                heads: 32,
                ffn: 12_288,
                tied: false,
                context: 65_536,
                yarn: Some(16_384),
                ..bonsai
            }),
            _ => None,
        }
    }
}

/// The storage of a matrix: the format, and the id written for it, which is not always the format's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The actual format.
    pub format: Format,
    /// The id in the file.
    pub id: u32,
}

impl Stored {
    /// The format under its own id.
    pub const fn new(format: Format) -> Stored {
        Stored { format, id: format.gguf_id() }
    }

    /// Groups of 128 under id 42, as in older PrismML files.
    pub const LEGACY: Stored = Stored { format: Format::Pq2_0, id: 42 };

    /// The name on command lines: a format's name in lower case, or `q2_0_legacy`.
    pub fn named(name: &str) -> Option<Stored> {
        if name == "q2_0_legacy" {
            return Some(Stored::LEGACY);
        }
        Format::ALL.into_iter().find(|f| f.name().eq_ignore_ascii_case(name)).map(Stored::new)
    }

    fn kind(self) -> TensorType {
        TensorType {
            id: self.id,
            name: self.format.name(),
            block: self.format.block() as u32,
            block_bytes: self.format.block_bytes() as u32,
            tail: 0,
        }
    }

    /// `general.file_type`, if one is defined.
    fn file_type(self) -> u32 {
        match self.format {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Q4_0 => 2,
            Format::Q4_1 => 3,
            Format::Q8_0 => 7,
            Format::Q5_0 => 8,
            Format::Q5_1 => 9,
            Format::Q2K => 10,
            Format::Q3K => 12,
            Format::Q4K => 15,
            Format::Q5K => 17,
            Format::Q6K => 18,
            Format::Iq4Nl => 25,
            Format::Iq4Xs => 30,
            Format::Mxfp4 => 38,
            Format::Bf16 => 32,
            Format::Tq1_0 => 36,
            Format::Tq2_0 => 37,
            Format::Q1_0 => 40,
            Format::Ptq1_0 => 129,
            Format::Pq2_0 if self.id == 142 => 141,
            _ => 41,
        }
    }
}

/// A model to generate.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its dimensions.
    pub shape: Shape,
    /// The storage of its matrices, cyclically: one for a uniform model, several for a mix.
    pub formats: Vec<Stored>,
    /// Seed of its random weights.
    pub seed: u64,
    /// `general.name`.
    pub name: String,
}

/// A tensor to fill.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    dims: Vec<u64>,
    stored: Stored,
    /// Standard deviation of its weights, or `None` for the weights of a norm, which are about 1.
    deviation: Option<f32>,
}

impl Model {
    /// One format for all matrices.
    pub fn new(shape: Shape, stored: Stored, seed: u64) -> Model {
        Model { shape, formats: vec![stored], seed, name: format!("random-{}", stored.format.name()) }
    }

    /// A tiny model in one format, as a file.
    pub fn tiny(format: Format) -> Vec<u8> {
        Model::new(Shape::tiny(), Stored::new(format), 7).to_vec().expect("a valid model")
    }

    /// The format of the tensor with this name.
    pub fn format(&self, tensor: &str) -> Option<Format> {
        self.parts().iter().find(|part| part.name == tensor).map(|part| part.stored.format)
    }

    fn parts(&self) -> Vec<Part> {
        let s = &self.shape;
        let mut parts: Vec<Part> = Vec::new();
        let mut matrices = 0;
        let mut matrix = |parts: &mut Vec<Part>, name: String, cols: usize, rows: usize, gain: f32| {
            parts.push(Part {
                name,
                dims: vec![cols as u64, rows as u64],
                stored: self.formats[matrices % self.formats.len()],
                deviation: Some(gain / (cols as f32).sqrt()),
            });
            matrices += 1;
        };
        let norm = |parts: &mut Vec<Part>, name: String, len: usize| {
            let dims = vec![len as u64];
            parts.push(Part { name, dims, stored: Stored::new(Format::F32), deviation: None });
        };
        if s.rope_factors {
            norm(&mut parts, "rope_freqs.weight".into(), s.head_dim / 2);
        }
        matrix(&mut parts, "token_embd.weight".into(), s.hidden, s.vocab, 1.0);
        for layer in 0..s.layers {
            let name = |what: &str| format!("blk.{layer}.{what}.weight");
            let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
            if s.depth_routers && layer % 2 == 1 {
                norm(&mut parts, name("depth_router"), s.hidden);
                parts.last_mut().expect("pushed").deviation = Some(1.0 / (s.hidden as f32).sqrt());
            }
            norm(&mut parts, name("attn_norm"), s.hidden);
            matrix(&mut parts, name("attn_q"), s.hidden, q, 1.0);
            matrix(&mut parts, name("attn_k"), s.hidden, kv, 1.0);
            matrix(&mut parts, name("attn_v"), s.hidden, kv, 1.0);
            matrix(&mut parts, name("attn_output"), q, s.hidden, 1.0);
            if matches!(s.kind, Kind::Qwen3 | Kind::Gemma3(_) | Kind::Maple(_)) {
                norm(&mut parts, name("attn_q_norm"), s.head_dim);
                norm(&mut parts, name("attn_k_norm"), s.head_dim);
            }
            norm(&mut parts, name("ffn_norm"), s.hidden);
            let [first, second] = match s.kind {
                Kind::Gemma3(_) => [("post_attention_norm", s.hidden), ("post_ffw_norm", s.hidden)],
                Kind::Bitnet => [("attn_sub_norm", q), ("ffn_sub_norm", s.ffn)],
                _ => [("", 0); 2],
            };
            for (what, len) in [first, second].into_iter().filter(|(_, len)| *len > 0) {
                norm(&mut parts, name(what), len);
            }
            for (what, len, is_there) in [
                ("attn_q", q, s.qkv_biases),
                ("attn_k", kv, s.qkv_biases),
                ("attn_v", kv, s.qkv_biases),
                ("attn_output", s.hidden, s.output_bias),
            ] {
                if is_there {
                    norm(&mut parts, format!("blk.{layer}.{what}.bias"), len);
                    parts.last_mut().expect("pushed").deviation = Some(0.5);
                }
            }
            let Some([count, _, width]) = s.experts else {
                matrix(&mut parts, name("ffn_gate"), s.hidden, s.ffn, 1.0);
                matrix(&mut parts, name("ffn_up"), s.hidden, s.ffn, 1.0);
                matrix(&mut parts, name("ffn_down"), s.ffn, s.hidden, 1.0);
                continue;
            };
            parts.push(Part {
                name: name("ffn_gate_inp"),
                dims: vec![s.hidden as u64, count as u64],
                stored: Stored::new(Format::F32),
                deviation: Some(1.0 / (s.hidden as f32).sqrt()),
            });
            for (what, cols, rows) in [
                ("ffn_gate_exps", s.hidden, width),
                ("ffn_up_exps", s.hidden, width),
                ("ffn_down_exps", width, s.hidden),
            ] {
                matrix(&mut parts, name(what), cols, rows, 1.0);
                parts.last_mut().expect("pushed").dims.push(count as u64);
            }
        }
        norm(&mut parts, "output_norm.weight".into(), s.hidden);
        if !s.tied {
            matrix(&mut parts, "output.weight".into(), s.hidden, s.vocab, 1.0);
        }
        parts
    }

    /// Metadata and tensor table as in real Bonsai files.
    fn declare(&self, vocabulary: &Vocabulary) -> Result<(GgufWriter, Vec<Part>)> {
        let s = &self.shape;
        if vocabulary.tokens.len() != s.vocab {
            return Err(Error::Length {
                what: "vocabulary",
                expected: s.vocab as u64,
                found: vocabulary.tokens.len() as u64,
            });
        }
        let first = self.formats.first().copied().unwrap_or(Stored::new(Format::F32));
        let mut w = GgufWriter::new();
        let architecture = match s.kind {
            Kind::Qwen3 if s.experts.is_some() => "qwen3moe",
            kind => kind.architecture(),
        };
        let key = |key: &str| format!("{architecture}.{key}");
        w.set("general.architecture", architecture)?;
        w.set("general.name", self.name.as_str())?;
        w.set("general.file_type", first.file_type())?;
        if self.formats.iter().any(|f| f.format == Format::Tq2_0G128) {
            w.set("general.quantization_version", "TQ2_0_G128")?;
        } else {
            w.set("general.quantization_version", 2u32)?;
        }
        w.set(&key("block_count"), s.layers as u32)?;
        w.set(&key("context_length"), s.context)?;
        w.set(&key("embedding_length"), s.hidden as u32)?;
        w.set(&key("feed_forward_length"), s.ffn as u32)?;
        if let Some([count, used, width]) = s.experts {
            w.set(&key("expert_count"), count as u32)?;
            w.set(&key("expert_used_count"), used as u32)?;
            w.set(&key("expert_feed_forward_length"), width as u32)?;
        }
        w.set(&key("attention.head_count"), s.heads as u32)?;
        w.set(&key("attention.head_count_kv"), s.kv_heads as u32)?;
        w.set(&key("attention.key_length"), s.head_dim as u32)?;
        w.set(&key("attention.value_length"), s.head_dim as u32)?;
        w.set(&key("rope.freq_base"), s.rope_base)?;
        if s.max_alibi_bias > 0.0 {
            w.set(&key("attention.max_alibi_bias"), s.max_alibi_bias)?;
        }
        w.set(&key("attention.layer_norm_rms_epsilon"), 1e-6f32)?;
        if let Some(rotated) = s.rotated {
            w.set(&key("rope.dimension_count"), rotated)?;
        }
        match s.kind {
            Kind::Granite => {
                for (name, factor) in [
                    ("attention.scale", 0.3f32),
                    ("embedding_scale", 3.0),
                    ("residual_scale", 0.4),
                    ("logit_scale", 4.0),
                ] {
                    w.set(&key(name), factor)?;
                }
            }
            Kind::Gemma3(window) => w.set(&key("attention.sliding_window"), window)?,
            Kind::Maple(window) => {
                w.set(&key("attention.sliding_window"), window)?;
                let windowed: Vec<bool> = (0..s.layers).map(|layer| layer % 4 != 3).collect();
                w.set_array(&key("attention.sliding_window_pattern"), &windowed)?;
                w.set(&key("swiglu_clamp_exp"), 7.0f32)?;
            }
            _ => {}
        }
        if let Some(original) = s.yarn {
            w.set(&key("rope.scaling.type"), "yarn")?;
            w.set(&key("rope.scaling.factor"), 4.0f32)?;
            w.set(&key("rope.scaling.original_context_length"), original)?;
        }
        vocabulary.write(&mut w)?;
        let parts = self.parts();
        for p in &parts {
            w.tensor_of(&p.name, &p.dims, &p.stored.kind())?;
        }
        Ok((w, parts))
    }

    /// The length of the file.
    pub fn file_len(&self, vocabulary: &Vocabulary) -> Result<u64> {
        let (writer, parts) = self.declare(vocabulary)?;
        let mut len = writer.header()?.len() as u64;
        for p in &parts {
            let blocks = p.dims.iter().product::<u64>() / p.stored.format.block() as u64;
            len += (blocks * p.stored.format.block_bytes() as u64).next_multiple_of(32);
        }
        Ok(len)
    }

    /// Writes the file piece by piece; only one piece of weights is in memory at a time. Returns the number
    /// of bytes.
    pub fn write<E: From<Error>>(
        &self,
        vocabulary: &Vocabulary,
        mut out: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let (writer, parts) = self.declare(vocabulary)?;
        let header = writer.header()?;
        out(&header)?;
        let mut written = header.len() as u64;
        let mut body = writer.body();
        drop((writer, header));
        let mut buffer = Vec::new();
        for (i, p) in parts.iter().enumerate() {
            let mut random = Random::new(self.seed ^ (i as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
            let blocks = p.dims.iter().product::<u64>() as usize / p.stored.format.block();
            let mut left = blocks;
            while left > 0 {
                let now = left.min((1 << 20) / p.stored.format.block_bytes());
                left -= now;
                buffer.resize(now * p.stored.format.block_bytes(), 0);
                match p.deviation {
                    Some(deviation) => weights::fill(p.stored.format, deviation, &mut random, &mut buffer),
                    None => {
                        for w in buffer.chunks_exact_mut(4) {
                            w.copy_from_slice(&(1.0 + 0.1 * random.unit()).to_le_bytes());
                        }
                    }
                }
                body.push(&buffer, |bytes| {
                    written += bytes.len() as u64;
                    out(bytes)
                })?;
            }
        }
        body.finish()?;
        Ok(written)
    }

    /// The whole file in memory, with a synthetic vocabulary of the shape's size.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        self.write(&Vocabulary::synthetic(self.shape.vocab, self.seed), |bytes| {
            file.extend_from_slice(bytes);
            Ok::<(), Error>(())
        })?;
        Ok(file)
    }
}
