//! Granite 3: as Llama, with factors of embeddings, scores, residual streams and logits.
//!
//! ```text
//! x = e embedding(token);  x += r block(x);  scores = a q k;  logits = head(norm(x)) / l
//! ```
#![forbid(unsafe_code)]

use super::config::{Architecture, ModelConfig};
use super::hugging_face::{
    Absent, DECODER, DIMENSIONS, Described, FEED_FORWARD, HuggingFace, INTERLEAVED_QUERIES_KEYS, PLAIN,
    Setting, SettingValue,
};
use super::keys::Keys;
use super::llama::{self, decoder};
use super::program::{Program, RopePairing};
use crate::error::Result;
use crate::gguf::Header;

const ATTENTION: &str = "attention.scale";
const EMBEDDING: &str = "embedding_scale";
const RESIDUAL: &str = "residual_scale";
const LOGITS: &str = "logit_scale";

pub(super) const GRANITE: Described = Described {
    architecture: Architecture { name: "granite", experts: false, program, read },
    folder: HuggingFace {
        model_type: "granite",
        classes: &["GraniteForCausalLM"],
        fixed: &[PLAIN],
        settings: &[DIMENSIONS, llama::SETTINGS, FACTORS],
        tensors: &[DECODER, INTERLEAVED_QUERIES_KEYS, FEED_FORWARD],
    },
};

const fn factor(
    names: &'static [&'static str],
    key: &'static str,
    value: fn(&ModelConfig) -> f32,
) -> Setting {
    Setting { names, key, value: SettingValue::Number(value), absent: Absent::One }
}

const FACTORS: &[Setting] = &[
    factor(&["attention_multiplier"], ATTENTION, |c| c.scales.attention),
    factor(&["embedding_multiplier"], EMBEDDING, |c| c.scales.embedding),
    factor(&["residual_multiplier"], RESIDUAL, |c| c.scales.residual),
    factor(&["logits_scaling"], LOGITS, |c| c.scales.logits),
];

fn read(c: &mut ModelConfig, meta: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    for (key, scale) in [
        (ATTENTION, &mut c.scales.attention),
        (EMBEDDING, &mut c.scales.embedding),
        (RESIDUAL, &mut c.scales.residual),
        (LOGITS, &mut c.scales.logits),
    ] {
        // As llama.cpp has it, 0 stands for the usual value.
        if let Some(found) = meta.f32(key)?.filter(|found| *found != 0.0) {
            *scale = found;
        }
    }
    Ok(())
}

fn program(c: &ModelConfig) -> Program {
    decoder(c, RopePairing::Interleaved)
}
