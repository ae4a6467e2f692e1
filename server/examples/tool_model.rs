//! Writes the built-in model to the file that is named, as if it had been trained with tools: `tests/clients` asks it for calls.
//!
//! `cargo run -p shohin-server --example tool_model -- tools.gguf`

use shohin::core::gguf::{Gguf, GgufWriter};
use std::error::Error;

const KEY: &str = "tokenizer.chat_template";

const LENGTH: &str = "qwen3.context_length";

/// Words of Qwen3's template, by which it is known.
const TEMPLATE: &str =
    "<|im_start|><|im_end|> last_query_index <tool_response> enable_thinking <think> add_generation_prompt";

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the name of a file")?;
    let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf"))?;
    let gguf = Gguf::parse(&bytes)?;
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| ![KEY, LENGTH].contains(key)) {
        writer.set(key, value)?;
    }
    writer.set(KEY, TEMPLATE)?;
    // Descriptions of tools are longer than what it was trained for.
    writer.set(LENGTH, 65_536_u32)?;
    for tensor in gguf.tensors() {
        writer.tensor(
            tensor.name(),
            tensor.dims(),
            tensor.format().ok_or("a tensor in an unknown format")?,
        )?;
    }
    std::fs::write(path, writer.to_vec(gguf.tensors().iter().map(|tensor| gguf.data(tensor)))?)?;
    Ok(())
}
