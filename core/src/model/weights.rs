//! The model's tensors, found by name and checked against the configuration.
#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::config::Qwen3Config;
use crate::error::{Error, Name, Result};
use crate::gguf::Gguf;
use crate::quant::{Layout, Matrix};

/// One transformer block. Matrices borrow the file; norms are decoded, being small and read as f32.
#[derive(Debug)]
pub struct TransformerBlock<'a> {
    /// `(hidden)`
    pub attn_norm: Box<[f32]>,
    /// `(q_size, hidden)`
    pub attn_q: Matrix<'a>,
    /// `(kv_size, hidden)`
    pub attn_k: Matrix<'a>,
    /// `(kv_size, hidden)`
    pub attn_v: Matrix<'a>,
    /// `(head_dim)`
    pub attn_q_norm: Box<[f32]>,
    /// `(head_dim)`
    pub attn_k_norm: Box<[f32]>,
    /// `(hidden, q_size)`
    pub attn_output: Matrix<'a>,
    /// `(hidden)`
    pub ffn_norm: Box<[f32]>,
    /// `(intermediate, hidden)`
    pub ffn_gate: Matrix<'a>,
    /// `(intermediate, hidden)`
    pub ffn_up: Matrix<'a>,
    /// `(hidden, intermediate)`
    pub ffn_down: Matrix<'a>,
}

impl<'a> TransformerBlock<'a> {
    /// All that activations are multiplied with.
    pub fn matrices(&self) -> [Matrix<'a>; 7] {
        let TransformerBlock { attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down, .. } = self;
        [*attn_q, *attn_k, *attn_v, *attn_output, *ffn_gate, *ffn_up, *ffn_down]
    }
}

/// Every tensor of a Qwen3 model.
#[derive(Debug)]
pub struct Weights<'a> {
    /// `(vocab, hidden)`; rows are decoded when a token is looked up.
    pub token_embd: Matrix<'a>,
    /// The blocks, first to last.
    pub blocks: Vec<TransformerBlock<'a>>,
    /// `(hidden)`
    pub output_norm: Box<[f32]>,
    /// `(vocab, hidden)`: `output.weight`, or the embedding where the file has none.
    pub output: Matrix<'a>,
}

impl<'a> Weights<'a> {
    /// Whether a matrix that activations are multiplied with is in `layout`.
    pub(super) fn any_layout(&self, layout: Layout) -> bool {
        let mut in_blocks = self.blocks.iter().flat_map(TransformerBlock::matrices);
        self.output.layout() == layout || in_blocks.any(|m| m.layout() == layout)
    }

    /// Finds every tensor; an absent one, one of another shape, or one this architecture does not have
    /// (which would silently change the model's meaning if it were ignored) is an error.
    pub fn from_gguf(gguf: &Gguf<'a>, config: &Qwen3Config) -> Result<Self> {
        let (h, f, d) = (config.hidden_size, config.intermediate_size, config.head_dim);
        let (q, kv, v) = (config.q_size(), config.kv_size(), config.vocab_size);
        let mut used = 0;
        let mut matrix = |name: &str, rows: usize, cols: usize| {
            used += 1;
            let matrix = gguf.matrix(name)?;
            if (matrix.rows(), matrix.cols()) == (rows, cols) {
                return Ok(matrix);
            }
            Err(Error::TensorShape {
                name: Name::new(name),
                expected: [cols as u64, rows as u64],
                found: [matrix.cols() as u64, matrix.rows() as u64],
            })
        };
        let norm = |m: Matrix<'a>| {
            let mut weight = vec![0.0; m.cols()].into_boxed_slice();
            m.unpack_row(0, &mut weight).map(|()| weight)
        };

        let token_embd = matrix("token_embd.weight", v, h)?;
        let mut blocks = Vec::new();
        for i in 0..config.num_layers {
            let mut get = |name: &str, rows, cols| matrix(&format!("blk.{i}.{name}.weight"), rows, cols);
            blocks.push(TransformerBlock {
                attn_norm: norm(get("attn_norm", 1, h)?)?,
                attn_q: get("attn_q", q, h)?,
                attn_k: get("attn_k", kv, h)?,
                attn_v: get("attn_v", kv, h)?,
                attn_q_norm: norm(get("attn_q_norm", 1, d)?)?,
                attn_k_norm: norm(get("attn_k_norm", 1, d)?)?,
                attn_output: get("attn_output", h, q)?,
                ffn_norm: norm(get("ffn_norm", 1, h)?)?,
                ffn_gate: get("ffn_gate", f, h)?,
                ffn_up: get("ffn_up", f, h)?,
                ffn_down: get("ffn_down", h, f)?,
            });
        }
        let output_norm = norm(matrix("output_norm.weight", 1, h)?)?;
        let output = if config.tied_embeddings { token_embd } else { matrix("output.weight", v, h)? };
        if gguf.tensors().len() != used {
            return Err(unknown_tensor(gguf, config));
        }
        Ok(Weights { token_embd, blocks, output_norm, output })
    }

    /// Packed bytes that decoding one token reads: every matrix once (a tied embedding as the head).
    pub fn bytes_per_token(&self) -> usize {
        let in_blocks = self.blocks.iter().flat_map(TransformerBlock::matrices);
        in_blocks.map(|m| m.data().len()).sum::<usize>()
            + self.output.data().len()
            + self.token_embd.row_bytes()
    }
}

/// Names the first tensor that no part of the model uses.
fn unknown_tensor(gguf: &Gguf<'_>, config: &Qwen3Config) -> Error {
    const BLOCK: [&str; 11] = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_q_norm",
        "attn_k_norm",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let known = |name: &str| {
        if matches!(name, "token_embd.weight" | "output_norm.weight" | "output.weight") {
            return true;
        }
        let parts =
            name.strip_prefix("blk.").and_then(|n| n.strip_suffix(".weight")).and_then(|n| n.split_once('.'));
        parts.is_some_and(|(i, part)| {
            i.parse().is_ok_and(|i: usize| i < config.num_layers) && BLOCK.contains(&part)
        })
    };
    let name = gguf.tensors().iter().map(|t| t.name()).find(|name| !known(name)).unwrap_or("");
    Error::Unsupported { key: Name::new("tensor"), found: Name::new(name), expected: "only tensors of qwen3" }
}
