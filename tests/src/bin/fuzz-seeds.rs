//! Writes seeds for the fuzz targets: `cargo run -p shohin-tests --bin fuzz-seeds`.

use std::path::Path;
use std::{fs, io};

use shohin_core::Format;
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::raw::{RawFile, RawTensor, RawValue};

fn main() -> io::Result<()> {
    let nested = RawValue::array(9, 1, &RawValue::strings(&["x", "yz"]).bytes);
    let mut files = vec![
        RawFile::new().build(),
        RawFile::sample().build(),
        RawFile::new().entry("nested", nested).entry("general.alignment", RawValue::u32(8)).build(),
        RawFile::new().tensor(RawTensor::new("t", &[128, 2], 42, 0)).data(68).build(),
        RawFile::new()
            .entry("general.quantization_version", RawValue::str("TQ2_0_G128"))
            .tensor(RawTensor::new("a", &[128, 2], 42, 0))
            .tensor(RawTensor::new("b", &[32], 8, 96))
            .data(130)
            .build(),
    ];
    let shape = Shape {
        hidden: 128,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 64,
        ffn: 128,
        vocab: 290,
        ..Shape::tiny()
    };
    for format in [Format::Q1_0, Format::Q2_0, Format::Pq2_0, Format::Tq2_0G128, Format::Q8_0] {
        files.push(Model::new(shape.clone(), Stored::new(format), 1).to_vec().map_err(io::Error::other)?);
    }
    for target in ["gguf_parse", "gguf_split", "gguf_round_trip", "model_load", "tokenizer"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        fs::create_dir_all(&dir)?;
        for (i, file) in files.iter().enumerate() {
            fs::write(dir.join(format!("seed{i}")), file)?;
        }
    }
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/schema");
    fs::create_dir_all(&dir)?;
    for (i, schema) in SCHEMAS.iter().enumerate() {
        fs::write(
            dir.join(format!("seed{i}")),
            [schema.as_bytes(), b"\0\x01\x22\x33\x44\x55\x66\x77"].concat(),
        )?;
    }
    Ok(())
}

const SCHEMAS: [&str; 5] = [
    r##"{"type":"object","properties":{"a":{"type":"integer","minimum":-3,"multipleOf":2},"b":{"$ref":"#"}},"required":["a"],"additionalProperties":{"type":["null","string"]}}"##,
    r##"{"$ref":"#/$defs/n","$defs":{"n":{"anyOf":[{"const":1.5},{"type":"array","prefixItems":[true],"items":{"$ref":"#/$defs/n"},"minItems":1,"maxItems":4}]}}}"##,
    r#"{"type":"string","pattern":"^(a|[^b-z\\d]{2,3}|\\u00e9)*?$","minLength":2,"maxLength":9}"#,
    r#"{"oneOf":[{"type":"number","exclusiveMinimum":0.25,"maximum":1e3},{"enum":["x","xy",null]}]}"#,
    r#"{"type":"string","format":"date-time"}"#,
];
