//! Qwen2 and Qwen2.5: as Llama with biases of queries, keys and values, and with pairs half a head apart.
#![forbid(unsafe_code)]

use super::config::{Architecture, ModelConfig, nothing_else};
use super::hugging_face::{
    DECODER, DIMENSIONS, Described, FEED_FORWARD, HuggingFace, PLAIN_GATED, QKV_BIASES, QUERIES_KEYS,
};
use super::llama::decoder;
use super::program::{Program, RopePairing};

pub(super) const QWEN2: Described = Described {
    architecture: Architecture { name: "qwen2", experts: false, program, read: nothing_else },
    folder: HuggingFace {
        model_type: "qwen2",
        classes: &["Qwen2ForCausalLM"],
        fixed: &[PLAIN_GATED],
        settings: &[DIMENSIONS],
        tensors: &[DECODER, QUERIES_KEYS, QKV_BIASES, FEED_FORWARD],
    },
};

fn program(c: &ModelConfig) -> Program {
    decoder(c, RopePairing::Neox)
}
