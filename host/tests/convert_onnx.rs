//! What nodes of ONNX files compute beside the weights.
#![cfg(feature = "convert")]

use shohin::convert::{ConvertOptions, convert};
use shohin_core::Format;
use shohin_core::gguf::Gguf;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name)
}

/// A field of a message: its number, and a number or the bytes of a message, a text or a float.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    Number(u8, u64),
    Bytes(u8, Vec<u8>),
    Float(u8, f32),
}

fn varint(rest: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = rest[0];
        *rest = &rest[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read(mut rest: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let number = (key >> 3) as u8;
        fields.push(match key & 7 {
            0 => Field::Number(number, varint(&mut rest)),
            2 => {
                let len = varint(&mut rest) as usize;
                let (bytes, after) = rest.split_at(len);
                rest = after;
                Field::Bytes(number, bytes.into())
            }
            5 => {
                let (bytes, after) = rest.split_at(4);
                rest = after;
                Field::Float(number, f32::from_le_bytes(bytes.try_into().unwrap()))
            }
            other => panic!("wire type {other}"),
        });
    }
    fields
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        match field {
            Field::Number(number, value) => {
                put(u64::from(*number) << 3, &mut out);
                put(*value, &mut out);
            }
            Field::Bytes(number, bytes) => {
                put(u64::from(*number) << 3 | 2, &mut out);
                put(bytes.len() as u64, &mut out);
                out.extend(bytes);
            }
            Field::Float(number, value) => {
                put(u64::from(*number) << 3 | 5, &mut out);
                out.extend(value.to_le_bytes());
            }
        }
    }
    out
}

const GRAPH: u8 = 7;
const NODE: u8 = 1;
const INITIALIZER: u8 = 5;

fn text(number: u8, text: &str) -> Field {
    Field::Bytes(number, text.into())
}

fn int(name: &str, value: i64) -> Field {
    Field::Bytes(5, write(&[text(1, name), Field::Number(3, value as u64), Field::Number(20, 2)]))
}

fn float(name: &str, value: f32) -> Field {
    Field::Bytes(5, write(&[text(1, name), Field::Float(2, value), Field::Number(20, 1)]))
}

/// A node with the inputs `inputs`.
fn node(op: &str, name: &str, inputs: &[&str], attributes: &[Field]) -> Field {
    let mut fields: Vec<_> = inputs.iter().map(|input| text(1, input)).collect();
    fields.extend([text(2, "out"), text(3, name), text(4, op)]);
    fields.extend(attributes.iter().cloned());
    Field::Bytes(NODE, write(&fields))
}

/// Changes the nodes or initializers, `kind`, of a graph that have this field.
fn with(kind: u8, field: &Field, graph: &mut [Field], change: impl Fn(&mut Vec<Field>)) {
    let mut changed = 0;
    for part in graph {
        if let Field::Bytes(number, bytes) = part
            && *number == kind
        {
            let mut fields = read(bytes);
            if fields.contains(field) {
                change(&mut fields);
                *bytes = write(&fields);
                changed += 1;
            }
        }
    }
    assert!(changed > 0, "{field:?}");
}

/// `onnx-mixed` or `onnx-ternary` with another graph, converted.
fn converted(name: &str, change: impl FnOnce(&mut Vec<Field>)) -> Result<Vec<u8>, shohin::Error> {
    let dir = TempDir::new().unwrap();
    // The model has the name of the folder.
    let model = dir.path().join(name);
    fs::create_dir(&model).unwrap();
    for folder in [fixture(name), fixture(name).join("onnx")] {
        for file in
            fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file())
        {
            fs::copy(&file, model.join(file.file_name().unwrap())).unwrap();
        }
    }
    let path = model.join(if name == "onnx-mixed" { "model.onnx" } else { "model_q2.onnx" });
    let mut fields = read(&fs::read(&path).unwrap());
    for field in &mut fields {
        if let Field::Bytes(GRAPH, bytes) = field {
            let mut graph = read(bytes);
            assert_eq!(write(&graph), *bytes);
            change(&mut graph);
            *bytes = write(&graph);
            break;
        }
    }
    fs::write(&path, write(&fields)).unwrap();
    let out = dir.path().join("out.gguf");
    convert(&path, &out, &ConvertOptions::new(), |_, _| ())?;
    Ok(fs::read(out).unwrap())
}

fn weights(file: &[u8], name: &str) -> (Format, Vec<f32>) {
    let gguf = Gguf::parse(file).unwrap();
    let matrix = gguf.matrix(name).unwrap();
    let mut weights = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, out) in weights.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.unpack_row(row, out).unwrap();
    }
    (matrix.format(), weights)
}

/// onnxruntime's zero point is 0 for them, but the middle for bytes (`tests/oracle/onnx_model.py`).
#[test]
fn codes_of_type_uint4_have_the_zero_point_0() {
    let values = fs::read(fixture("gather_block_quantized.json")).unwrap();
    let values: BTreeMap<String, Vec<f32>> = serde_json::from_slice(&values).unwrap();
    let codes = text(8, "model_embed_tokens_weight_quant");
    let of_type = |kind: u64| {
        converted("onnx-mixed", |graph| {
            with(INITIALIZER, &codes, graph, |tensor| {
                tensor.retain(|field| !matches!(field, Field::Number(1 | 2, _) | Field::Bytes(1, _)));
                tensor.extend([Field::Number(1, 272), Field::Number(1, 128), Field::Number(2, kind)]);
            });
        })
    };
    let (format, bytes) = weights(&of_type(2).unwrap(), "token_embd.weight");
    assert_eq!(format, Format::Q4_0);
    let (format, uint4) = weights(&of_type(21).unwrap(), "token_embd.weight");
    assert_eq!(format, Format::Q4_1);
    // The scale of each block, from two of its weights: codes and scales are the same.
    let (uint8, wanted) = (&values["UINT8"], &values["UINT4"]);
    for (a, b) in bytes.chunks_exact(32).zip(uint4.chunks_exact(32)) {
        let scale = (b[0] - a[0]) / (wanted[0] - uint8[0]);
        for (a, b) in a.iter().zip(b) {
            let code = uint8.iter().position(|value| value * scale == *a).unwrap();
            assert_eq!(*b, wanted[code] * scale);
        }
    }
    // Signed ones are other bits.
    for kind in [3, 22] {
        let error = of_type(kind).unwrap_err().to_string();
        assert!(error.contains(&format!("has codes of type {kind}, expected unsigned ones")), "{error}");
    }
}

/// `alpha A B + beta C`, of which only `A B` is a matrix of a GGUF file.
#[test]
fn a_gemm_that_scales_or_adds_is_refused() {
    let plain = converted("onnx-mixed", |_| ()).unwrap();
    let gemm = |third: Option<&'static str>, attributes: &[Field]| {
        converted("onnx-mixed", |graph| {
            with(NODE, &text(3, "/lm_head/MatMul"), graph, |node| {
                node.retain(|field| *field != text(4, "MatMul"));
                node.push(text(4, "Gemm"));
                node.extend(third.map(|name| text(1, name)));
                node.extend(attributes.iter().cloned());
            });
        })
    };
    let harmless = [float("alpha", 1.0), float("beta", 1.0), int("transA", 0), int("transB", 0)];
    for (third, attributes) in [(None, &[][..]), (None, &harmless), (Some(""), &harmless)] {
        assert!(gemm(third, attributes).unwrap() == plain, "{third:?}");
    }
    for (third, attributes, message) in [
        (Some("root"), vec![], "lm_head has a bias, which is not supported"),
        (None, vec![float("alpha", 0.5)], "alpha of lm_head (Gemm) is 0.5, expected 1"),
        (None, vec![float("beta", 0.0)], "beta of lm_head (Gemm) is 0.0, expected 1"),
        (None, vec![int("transA", 1)], "transA of lm_head (Gemm) is 1, expected 0"),
        (None, vec![int("transB", 1)], "output.weight"),
    ] {
        let error = gemm(third, &attributes).unwrap_err().to_string();
        assert!(error.contains(message), "{error}, expected {message}");
    }
}

/// Of each, onnxruntime's result is another one.
#[test]
fn nodes_that_compute_something_else_are_refused() {
    let plain = converted("onnx-mixed", |_| ()).unwrap();
    let (norm, q_proj) = ("SimplifiedLayerNormalization", "/model/layers.0/attn/q_proj");
    let (attention, rotary) = ("GroupQueryAttention", "RotaryEmbedding");
    let eleven = |last: &'static str| [&[""; 11][..], &[last]].concat();
    let sub = |rest: &str| format!("{q_proj}/{rest}");
    let cases = [
        (node(norm, "n", &[], &[float("epsilon", 1e-6)]), ""),
        (
            node(norm, "n", &[], &[float("epsilon", 1e-5)]),
            "epsilon of n (SimplifiedLayerNormalization) is 1e-5, expected rms_norm_eps",
        ),
        (node(norm, "n", &[], &[]), "is 1e-5, expected rms_norm_eps"),
        (node("SkipSimplifiedLayerNormalization", "n", &["x", "y", "w", ""], &[float("epsilon", 1e-6)]), ""),
        (
            node("SkipSimplifiedLayerNormalization", "n", &["x", "y", "w"], &[]),
            "is 1e-12, expected rms_norm_eps",
        ),
        (node("SkipSimplifiedLayerNormalization", "n", &["x", "y", "w", "b"], &[]), "n has a bias"),
        (node(rotary, "r", &[], &[int("interleaved", 0), int("rotary_embedding_dim", 64)]), ""),
        (
            node(rotary, "r", &[], &[int("interleaved", 1)]),
            "interleaved of r (RotaryEmbedding) is 1, expected 0",
        ),
        (
            node(rotary, "r", &[], &[int("rotary_embedding_dim", 32)]),
            "rotary_embedding_dim of r (RotaryEmbedding) is 32",
        ),
        (
            node(
                attention,
                "a",
                &eleven(""),
                &[
                    float("scale", 0.125),
                    float("softcap", 0.0),
                    int("local_window_size", -1),
                    int("smooth_softmax", 0),
                    int("rotary_interleaved", 0),
                ],
            ),
            "",
        ),
        (
            node(attention, "a", &[], &[float("scale", 0.25)]),
            "scale of a (GroupQueryAttention) is 0.25, expected 1 / sqrt(head_dim)",
        ),
        (
            node("MultiHeadAttention", "a", &[], &[float("scale", 1.0)]),
            "scale of a (MultiHeadAttention) is 1",
        ),
        (node("MultiHeadAttention", "a", &["q", "k", "v", "b"], &[]), "a has a bias"),
        (node(attention, "a", &[], &[float("softcap", 30.0)]), "softcap of a"),
        (
            node(attention, "a", &[], &[int("local_window_size", 16)]),
            "local_window_size of a (GroupQueryAttention) is 16",
        ),
        (node(attention, "a", &[], &[int("smooth_softmax", 1)]), "smooth_softmax of a"),
        (node(attention, "a", &[], &[int("rotary_interleaved", 1)]), "rotary_interleaved of a"),
        (node(attention, "a", &[], &[int("causal", 0)]), "causal of a"),
        (node(attention, "a", &eleven("sinks"), &[]), "a has sinks of attention"),
        // The result of a matrix, changed.
        (node("Add", &sub("Add"), &["x", "y"], &[]), ""),
        (node("Add", &sub("Add"), &["x", "root"], &[]), "self_attn.q_proj has the operation Add with root"),
        (node("Mul", "/lm_head/Mul", &["x", "root"], &[]), "lm_head has the operation Mul with root"),
        (node("MatMul", &sub("lora_A/MatMul"), &["x", "y"], &[]), "self_attn.q_proj has the part lora_A"),
        (node("Mul", "/model/layers.0/input_layernorm/Mul", &["x", "root"], &[]), ""),
    ];
    for (node, message) in cases {
        let result = converted("onnx-mixed", |graph| graph.push(node.clone()));
        match result {
            Ok(file) => assert!(message.is_empty() && file == plain, "{message}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!message.is_empty() && error.contains(message), "{error}, expected {message:?}");
            }
        }
    }
}

/// Codes without their zero points are half of a matrix.
#[test]
fn a_head_with_other_zero_points_is_not_the_embedding() {
    let tied = converted("onnx-ternary", |_| ()).unwrap();
    assert!(Gguf::parse(&tied).unwrap().matrix("output.weight").is_err());
    let other = converted("onnx-ternary", |graph| {
        with(NODE, &text(3, "/lm_head/MatMul_Quant"), graph, |node| {
            let zeros =
                node.iter().position(|field| *field == text(1, "model_embed_tokens_weight_zp")).unwrap();
            node.remove(zeros);
        });
    });
    let other = other.unwrap();
    let ((_, embedding), (_, head)) =
        (weights(&other, "token_embd.weight"), weights(&other, "output.weight"));
    assert!(embedding == weights(&tied, "token_embd.weight").1);
    // Their zero point is 1, and 2 without one.
    assert!(head != embedding);
    let largest = |weights: &[f32]| weights.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    for (a, b) in embedding.chunks_exact(128).zip(head.chunks_exact(128)) {
        let scale = largest(a);
        assert!(a.iter().zip(b).all(|(a, b)| a - scale == *b), "{scale}");
    }
}
