//! What nodes of ONNX files compute beside the weights.

use shohin_convert::{ConvertOptions, Error, convert};
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
fn converted(name: &str, change: impl FnOnce(&mut Vec<Field>)) -> Result<Vec<u8>, Error> {
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
        let message = format!("has codes of type {kind}, expected bytes, type 2, or UINT4, type 21");
        assert!(error.contains(&message), "{error}");
    }
    let codes = text(8, "model_layers_0_attn_q_proj_MatMul_weight_quant");
    let error = converted("onnx-mixed", |graph| {
        with(INITIALIZER, &codes, graph, |tensor| {
            tensor.retain(|field| !matches!(field, Field::Number(2, _)));
            tensor.push(Field::Number(2, 21));
        });
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("q_proj has codes of type 21, expected bytes, type 2"), "{error}");
    assert!(!error.contains("UINT4"), "{error}");
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
            // In 16 bits.
            node(norm, "n", &[], &[float("epsilon", 1.0132789e-6)]),
            "",
        ),
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
        // All positions: `max_position_embeddings` is 64.
        (node(attention, "a", &[], &[int("local_window_size", 64)]), ""),
        (node(attention, "a", &[], &[int("local_window_size", 63)]), "local_window_size of a"),
        (
            node("Attention", "a", &[], &[float("scale", 0.125), float("softcap", 0.0), int("is_causal", 1)]),
            "",
        ),
        (
            node("Attention", "a", &[], &[float("scale", 0.25)]),
            "scale of a (Attention) is 0.25, expected 1 / sqrt(head_dim)",
        ),
        (node("Attention", "a", &[], &[float("scale", 0.0)]), "scale of a (Attention) is 0"),
        (node("Attention", "a", &[], &[float("softcap", 30.0)]), "softcap of a (Attention) is 30.0"),
        (node("Attention", "a", &[], &[int("left_window_size", 16)]), "left_window_size of a (Attention)"),
        (
            node("LayerNormalization", "n", &[], &[float("epsilon", 1e-6)]),
            "n has the operation LayerNormalization, which subtracts the mean",
        ),
        (
            node("SkipLayerNormalization", "n", &[], &[float("epsilon", 1e-6)]),
            "n has the operation SkipLayerNormalization, which subtracts the mean",
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

/// A node with the result `out`.
fn result(op: &str, inputs: &[&str], out: &str, attributes: &[Field]) -> Field {
    let Field::Bytes(_, bytes) = node(op, &format!("/model/layers.0/other/{op}"), inputs, attributes) else {
        unreachable!()
    };
    let mut fields = read(&bytes);
    fields.retain(|field| !matches!(field, Field::Bytes(2, _)));
    fields.push(text(2, out));
    Field::Bytes(NODE, write(&fields))
}

/// The result of a constant, as exporters write numbers: `TensorProto` of this type with raw data.
fn constant(out: &str, kind: u64, dims: &[u64], data: &[u8]) -> Field {
    let mut tensor: Vec<_> = dims.iter().map(|dim| Field::Number(1, *dim)).collect();
    tensor.extend([Field::Number(2, kind), Field::Bytes(9, data.into())]);
    let value = write(&[text(1, "value"), Field::Bytes(5, write(&tensor)), Field::Number(20, 4)]);
    result("Constant", &[], out, &[Field::Bytes(5, value)])
}

/// The output of a matrix of `onnx-mixed`.
fn of(module: &str) -> String {
    format!("/model/layers.0/{module}/MatMul_Quant/output_0")
}

/// PyTorch writes numbers as nodes `Constant`.
#[test]
fn constants_that_change_a_matrix_are_refused() {
    let plain = converted("onnx-mixed", |_| ()).unwrap();
    let (q, up, gate) = (of("attn/q_proj"), of("mlp/up_proj"), of("mlp/gate_proj"));
    let number = |value: f32| constant("c", 1, &[], &value.to_le_bytes());
    let two = |value: f32| constant("c", 1, &[2], &[value.to_le_bytes(); 2].concat());
    let binary = |op: &str, a: &str, b: &str| result(op, &[a, b], "changed", &[]);
    let reshape = |of: &str| result("Reshape", &[of, "s"], "r", &[]);
    // 1 and 3 in 16 bits.
    let half = |bits: u16| constant("c", 10, &[1], &bits.to_le_bytes());
    let value_float = |value: f32| result("Constant", &[], "c", &[float("value_float", value)]);
    let cases = [
        (vec![number(3.0), binary("Mul", &q, "c")], "self_attn.q_proj has the operation Mul with c"),
        (vec![value_float(3.0), binary("Mul", "c", &q)], "self_attn.q_proj has the operation Mul with c"),
        (vec![half(0x4200), binary("Mul", &q, "c")], "self_attn.q_proj has the operation Mul with c"),
        (vec![number(3.0), reshape(&q), binary("Mul", "r", "c")], "q_proj has the operation Mul with c"),
        (
            vec![number(3.0), result("Cast", &["c"], "d", &[]), binary("Mul", &q, "d")],
            "q_proj has the operation Mul with d",
        ),
        (vec![number(0.5), binary("Add", &up, "c")], "mlp.up_proj has the operation Add with c"),
        (vec![two(0.5), binary("Add", &up, "c")], "mlp.up_proj has the operation Add with c"),
        (vec![number(0.125), binary("Mul", &up, "c")], "mlp.up_proj has the operation Mul with c"),
        (vec![number(0.125), binary("Sub", &q, "c")], "self_attn.q_proj has the operation Sub with c"),
        (vec![number(0.125), binary("Div", &q, "c")], "self_attn.q_proj has the operation Div with c"),
        (vec![number(8.0), binary("Div", "c", &q)], "self_attn.q_proj has the operation Div with c"),
        (vec![two(0.5), binary("Mul", &q, "c")], "self_attn.q_proj has the operation Mul with c"),
        (
            vec![number(3.0), binary("Mul", "/model/embed_tokens/Gather_Quant/output_0", "c")],
            "model.embed_tokens has the operation Mul with c",
        ),
        // 64 elements: the scale of attention is 1 / 8, and its root for queries and keys each.
        (vec![number(0.125), binary("Mul", &q, "c")], ""),
        (vec![number(0.125), reshape(&q), binary("Mul", "r", "c")], ""),
        (vec![number(0.353_553), binary("Mul", &of("attn/k_proj"), "c")], ""),
        (vec![number(8.0), binary("Div", &q, "c")], ""),
        (vec![binary("Mul", &q, "root")], ""),
        // Changes nothing.
        (vec![half(0x3c00), binary("Mul", &up, "c")], ""),
        (vec![number(0.0), binary("Add", &up, "c")], ""),
        // Cosines of a fixed length, scores, shapes, and the products of results.
        (vec![two(0.5), reshape(&q), binary("Mul", "r", "c")], ""),
        (vec![number(3.0), binary("Mul", "/model/layers.0/attn/MatMul/output_0", "c")], ""),
        (vec![constant("c", 7, &[], &[3, 0, 0, 0, 0, 0, 0, 0]), binary("Mul", "shape", "c")], ""),
        (vec![binary("Mul", &gate, &up)], ""),
    ];
    check(cases, &plain);
}

/// Every matrix but the gate's goes on as it is.
#[test]
fn activations_of_matrices_but_silu_of_the_gate_are_refused() {
    let plain = converted("onnx-mixed", |_| ()).unwrap();
    let (up, gate) = (of("mlp/up_proj"), of("mlp/gate_proj"));
    let unary = |op: &str, of: &str, attributes: &[Field]| vec![result(op, &[of], "a", attributes)];
    let cast = |of: &str| result("Cast", &[of], "r", &[]);
    let cases = [
        (unary("Tanh", &up, &[]), "mlp.up_proj has the operation Tanh on its result"),
        (vec![cast(&up), result("Tanh", &["r"], "a", &[])], "mlp.up_proj has the operation Tanh"),
        (unary("Relu", &gate, &[]), "mlp.gate_proj has the operation Relu on its result"),
        (unary("Sigmoid", &up, &[]), "mlp.up_proj has the operation Sigmoid on its result"),
        (unary("QuickGelu", &gate, &[]), "mlp.gate_proj has the operation QuickGelu on its result"),
        (unary("QuickGelu", &gate, &[float("alpha", 1.0)]), ""),
        (unary("Swish", &gate, &[]), ""),
        (unary("Sigmoid", &gate, &[]), ""),
        (unary("Neg", &gate, &[]), ""),
        (unary("Tanh", "other", &[]), ""),
        (unary("Sigmoid", "/lm_head/MatMul/output_0", &[]), ""),
    ];
    check(cases, &plain);
}

/// `Pow`, `ReduceMean`, `Add`, `Sqrt`, `Div` and `Mul`.
#[test]
fn norms_of_single_operations_have_the_epsilon_and_keep_the_mean() {
    let plain = converted("onnx-mixed", |_| ()).unwrap();
    let number = |value: f32| constant("c", 1, &[], &value.to_le_bytes());
    let mean = || result("ReduceMean", &["square"], "m", &[]);
    let binary = |op: &str, a: &str, b: &str| result(op, &[a, b], "changed", &[]);
    let cases = [
        (vec![number(1e-6), mean(), binary("Add", "m", "c")], ""),
        (vec![constant("c", 10, &[], &[0x11, 0]), mean(), binary("Add", "c", "m")], ""),
        (
            vec![number(1e-5), mean(), binary("Add", "m", "c")],
            "epsilon of /model/layers.0/other/Add (Add) is 1e-5, expected rms_norm_eps",
        ),
        (
            vec![number(1e-5), mean(), result("Cast", &["m"], "n", &[]), binary("Add", "c", "n")],
            "is 1e-5, expected rms_norm_eps",
        ),
        (vec![mean(), binary("Sub", "x", "m")], "Sub subtracts the mean, expected RMS norms"),
    ];
    check(cases, &plain);
}

/// Converts `onnx-mixed` with more nodes: to the same file, or to the error `message`.
fn check<const N: usize>(cases: [(Vec<Field>, &str); N], plain: &[u8]) {
    for (i, (nodes, message)) in cases.into_iter().enumerate() {
        match converted("onnx-mixed", |graph| graph.extend(nodes)) {
            Ok(file) => assert!(message.is_empty() && file == plain, "{i}: {message}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!message.is_empty() && error.contains(message), "{i}: {error}, expected {message:?}");
            }
        }
    }
}

/// The message was about the node.
#[test]
fn a_damaged_attribute_is_named() {
    let damaged = Field::Bytes(5, vec![0xff]);
    let node = node("Gemm", "/lm_head/Gemm", &["x", "y"], &[damaged]);
    let error = converted("onnx-mixed", |graph| graph.push(node)).unwrap_err().to_string();
    assert!(error.contains("a node's attribute is cut off or damaged"), "{error}");
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
