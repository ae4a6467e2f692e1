//! SmolLM3: as Llama, without a rotation in every fourth layer (NoPE, Yang et al. 2025, arXiv 2501.18795).
#![forbid(unsafe_code)]

use super::config::{Architecture, LayerKinds, ModelConfig};
use super::hugging_face::{
    DECODER, DIMENSIONS, Described, FEED_FORWARD, Fixed, HuggingFace, INTERLEAVED_QUERIES_KEYS, PLAIN, fixed,
    fixed_layers,
};
use super::keys::Keys;
use super::llama::{self, decoder};
use super::program::{Program, RopePairing};
use crate::error::Result;
use crate::gguf::Header;

/// GGUF files do not say it.
const PERIOD: usize = 4;

pub(super) const SMOLLM3: Described = Described {
    architecture: Architecture { name: "smollm3", experts: false, program, read },
    folder: HuggingFace {
        model_type: "smollm3",
        classes: &["SmolLM3ForCausalLM"],
        fixed: &[PLAIN, INTERVAL],
        settings: &[DIMENSIONS, llama::SETTINGS],
        tensors: &[DECODER, INTERLEAVED_QUERIES_KEYS, FEED_FORWARD],
    },
};

/// Each fourth layer has a 0.
const INTERVAL: &[Fixed] = &[
    fixed("no_rope_layer_interval", "4", "4", true),
    fixed_layers(
        "no_rope_layers",
        |layer| if is_rotated(layer) { "1" } else { "0" },
        "0 in every fourth layer, and 1",
    ),
];

const fn is_rotated(layer: usize) -> bool {
    layer % PERIOD != PERIOD - 1
}

fn read(c: &mut ModelConfig, _: &Keys<'_, '_>, _: &Header<'_>) -> Result<()> {
    c.layers.unrotated = LayerKinds::of(c.num_layers, |layer| !is_rotated(layer));
    Ok(())
}

fn program(c: &ModelConfig) -> Program {
    decoder(c, RopePairing::Interleaved)
}
