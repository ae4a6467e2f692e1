//! A reply that is JSON in the form of a schema: `cargo run --release --example schema [MODEL.gguf]`.

use shohin::core::chat::ResponseFormat;
use shohin::{Model, Result};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "sound": {"enum": ["moo", "woof", "meow"]}
    },
    "required": ["name", "legs", "sound"]
}"#;

/// Describes an animal.
pub(crate) fn describe(model: &Model, animal: &str) -> Result<String> {
    let mut chat = model.chat()?;
    chat.options_mut().response_format = ResponseFormat::JsonSchema(SCHEMA.into());
    chat.ask(format!("Describe a {animal} in JSON."))
}

fn main() -> Result<()> {
    let model = std::env::args().nth(1).map_or_else(Model::built_in, Model::load)?;
    println!("{}", describe(&model, "cow")?);
    Ok(())
}
