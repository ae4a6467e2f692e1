//! ONNX models: weights of `MatMulNBits` and `GatherBlockQuantized`, and floats, found by the names of their nodes.
//!
//! Names are those of the exporters behind the published models: a node `/model/layers.0/attn/q_proj/MatMul_Quant`
//! computes `model.layers.0.self_attn.q_proj`. Files are scanned in place: memory is bounded by the number of tensors.

use crate::config::Config;
use crate::error::{ConvertError, Result};
use crate::grouped::{Floats, Grouped, Offset};
use crate::names::module_to_gguf;
use crate::protobuf::{Fields, Value};
use crate::tensor::{Module, Weights};
use shohin_core::{Format, quant};
use shohin_files::{Mmap, open_mapped};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// The most tensors of a file.
const MAX_TENSORS: usize = 1 << 16;
/// The most files beside it.
const MAX_FILES: usize = 1000;

// Numbers of fields.
const MODEL_GRAPH: u32 = 7;
const GRAPH_NODE: u32 = 1;
const GRAPH_INITIALIZER: u32 = 5;
const NODE_INPUT: u32 = 1;
const NODE_OUTPUT: u32 = 2;
const NODE_NAME: u32 = 3;
const NODE_OP: u32 = 4;
const NODE_ATTRIBUTE: u32 = 5;
const ATTRIBUTE_NAME: u32 = 1;
const ATTRIBUTE_FLOAT: u32 = 2;
const ATTRIBUTE_INT: u32 = 3;
const ATTRIBUTE_TENSOR: u32 = 5;
const TENSOR_DIMS: u32 = 1;
const TENSOR_TYPE: u32 = 2;
const TENSOR_FLOATS: u32 = 4;
const TENSOR_INT32S: u32 = 5;
const TENSOR_INT64S: u32 = 7;
const TENSOR_NAME: u32 = 8;
const TENSOR_RAW: u32 = 9;
const TENSOR_DOUBLES: u32 = 10;
const TENSOR_EXTERNAL: u32 = 13;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;

// Types of tensors.
const FLOAT: u64 = 1;
const UINT8: u64 = 2;
const INT32: u64 = 6;
const INT64: u64 = 7;
const FLOAT16: u64 = 10;
const DOUBLE: u64 = 11;
const BFLOAT16: u64 = 16;
const UINT4: u64 = 21;

/// Attributes that change what an operation computes, and the values that leave it as a GGUF file describes it.
const KNOWN: [(&str, &str, &[i64], &str); 6] = [
    ("Gemm", "transA", &[0], "0"),
    ("MatMulNBits", "weight_prepacked", &[0], "0"),
    ("RotaryEmbedding", "interleaved", &[0], "0"),
    ("GroupQueryAttention", "rotary_interleaved", &[0], "0"),
    ("GroupQueryAttention", "smooth_softmax", &[-1, 0], "0 or -1"),
    ("GroupQueryAttention", "causal", &[1], "1"),
];

/// Inputs that change it.
const REFUSED: [(&str, usize, &str); 6] = [
    ("Gemm", 2, "a bias"),
    ("MatMulNBits", 4, "an order of its groups"),
    ("MatMulNBits", 5, "a bias"),
    ("SkipSimplifiedLayerNormalization", 3, "a bias"),
    ("MultiHeadAttention", 3, "a bias"),
    ("GroupQueryAttention", 11, "sinks of attention"),
];

/// Operations that subtract the mean, which no norm of these models does.
const OTHER_NORMS: [&str; 3] = ["LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"];

/// Activations that no matrix of these models has.
const OTHER_ACTIVATIONS: [&str; 16] = [
    "BiasGelu",
    "Celu",
    "Elu",
    "FastGelu",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "PRelu",
    "Relu",
    "Selu",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
];

/// Operations that leave the numbers as they are.
const SAME_NUMBERS: [&str; 7] =
    ["Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"];

/// A mapped model and the files with its tensors.
pub(crate) struct Onnx {
    map: Mmap,
    files: BTreeMap<String, Mmap>,
}

/// What checks know of the result of a node.
#[derive(Clone, Debug)]
enum Known {
    Constant(Constant),
    /// The result of the matrix of this module.
    Matrix {
        module: Rc<str>,
        /// Whether it has another shape.
        shaped: bool,
    },
    Mean,
}

#[derive(Clone, Copy, Debug)]
struct Constant {
    /// Its number, if it is one.
    number: Option<f64>,
    /// Whether it has several numbers.
    many: bool,
}

/// An initializer.
#[derive(Clone, Debug)]
struct Tensor<'f> {
    name: &'f str,
    dims: Vec<u64>,
    kind: u64,
    data: Data<'f>,
}

#[derive(Clone, Copy, Debug)]
enum Data<'f> {
    Missing,
    Here(&'f [u8]),
    /// Numbers of Protocol Buffers.
    Numbers(Value<'f>),
    External {
        file: &'f str,
        offset: u64,
        len: Option<u64>,
    },
}

#[derive(Clone, Debug, Default)]
struct Node<'f> {
    name: &'f str,
    op: &'f str,
    inputs: Vec<&'f str>,
    output: &'f str,
    /// Its fields, which attributes are looked up in.
    fields: &'f [u8],
}

fn invalid(problem: impl Into<String>) -> ConvertError {
    ConvertError::Onnx { problem: problem.into() }
}

/// The fields of a message, or the error that names it.
fn fields<'f>(
    message: &'f [u8],
    what: &'static str,
) -> impl Iterator<Item = Result<(u32, Value<'f>), ConvertError>> {
    Fields(message).map(move |field| field.ok_or_else(|| invalid(format!("a {what} is cut off or damaged"))))
}

impl Onnx {
    /// Maps `path` and the files that its tensors are in.
    pub(crate) fn open(path: &Path) -> Result<Onnx> {
        let mut onnx = Onnx { map: open_mapped(path)?, files: BTreeMap::new() };
        let names = onnx.file_names().map_err(|error| error.at(path))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        onnx.files = names
            .into_iter()
            .map(|name| Ok((name.clone(), open_mapped(&folder.join(PathBuf::from(name)))?)))
            .collect::<Result<_>>()?;
        Ok(onnx)
    }

    fn graph(&self) -> Result<&[u8], ConvertError> {
        let mut graph = None;
        for field in fields(&self.map, "model") {
            if let (MODEL_GRAPH, value) = field? {
                graph = value.bytes();
            }
        }
        graph.ok_or_else(|| invalid("it has no graph"))
    }

    /// The files with tensors: files of the same folder.
    fn file_names(&self) -> Result<BTreeSet<String>, ConvertError> {
        let mut names = BTreeSet::new();
        for tensor in self.tensors()?.values() {
            let Data::External { file, .. } = tensor.data else { continue };
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                let problem = format!("is in the file {file:?}, expected one beside the model");
                return Err(ConvertError::tensor(tensor.name, problem));
            }
            names.insert(file.to_string());
        }
        if names.len() > MAX_FILES {
            return Err(invalid(format!(
                "its tensors are in {} files, the limit is {MAX_FILES}",
                names.len()
            )));
        }
        Ok(names)
    }

    fn tensors(&self) -> Result<BTreeMap<&str, Tensor<'_>>, ConvertError> {
        let mut all = BTreeMap::new();
        for field in fields(self.graph()?, "graph") {
            let (GRAPH_INITIALIZER, value) = field? else { continue };
            let tensor = Tensor::read(value.bytes().ok_or_else(|| invalid("a tensor is a number"))?)?;
            if all.len() == MAX_TENSORS {
                return Err(invalid(format!("it has more than {MAX_TENSORS} tensors")));
            }
            all.insert(tensor.name, tensor);
        }
        Ok(all)
    }

    /// The bytes of a tensor.
    fn data<'f>(&'f self, tensor: &Tensor<'f>) -> Result<&'f [u8], ConvertError> {
        let wrong = |problem: &str| ConvertError::tensor(tensor.name, problem);
        match tensor.data {
            Data::Here(bytes) => Ok(bytes),
            Data::Missing | Data::Numbers(_) => {
                Err(wrong("has its values in a field that is not read, expected raw data or external data"))
            }
            Data::External { file, offset, len } => {
                let cut = || {
                    let file: &[u8] = self.files.get(file)?;
                    let rest = file.get(usize::try_from(offset).ok()?..)?;
                    match len {
                        None => Some(rest),
                        Some(len) => rest.get(..usize::try_from(len).ok()?),
                    }
                };
                cut().ok_or_else(|| wrong(&format!("ends beyond {file}")))
            }
        }
    }

    /// What a tensor is to nodes that compute with it.
    fn constant(&self, tensor: &Tensor<'_>) -> Constant {
        Constant { number: self.number(tensor), many: tensor.dims.iter().any(|dim| *dim != 1) }
    }

    /// The number that a tensor is.
    fn number(&self, tensor: &Tensor<'_>) -> Option<f64> {
        if tensor.dims.iter().any(|dim| *dim != 1) {
            return None;
        }
        let few;
        let bytes = match tensor.data {
            Data::Numbers(value) => {
                // Longer ones are several.
                let mut numbers = Vec::new();
                value.bytes().is_none_or(|bytes| bytes.len() <= 10).then_some(())?;
                value.numbers(&mut numbers)?;
                let &[number] = &*numbers else { return None };
                if matches!(tensor.kind, INT32 | INT64) {
                    return Some(number as i64 as f64);
                }
                // The bits of a float.
                few = u16::try_from(number).ok()?.to_le_bytes();
                &few
            }
            _ => self.data(tensor).ok()?,
        };
        match tensor.kind {
            DOUBLE => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            INT32 => Some(f64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
            INT64 => Some(i64::from_le_bytes(bytes.try_into().ok()?) as f64),
            _ => {
                let mut number = [0.0];
                quant::unpack(float(tensor).ok()?, bytes, &mut number).ok()?;
                Some(number[0].into())
            }
        }
    }

    /// What the node `Constant` is.
    fn constant_of(&self, node: &Node<'_>) -> Result<Constant, ConvertError> {
        if let Some(value) = node.field("value", ATTRIBUTE_TENSOR)? {
            return Ok(self.constant(&Tensor::read(value.and_then(Value::bytes).unwrap_or_default())?));
        }
        if let Some(value) = node.float("value_float")? {
            return Ok(Constant { number: Some(value.into()), many: false });
        }
        if let Some(value) = node.attribute("value_int")? {
            return Ok(Constant { number: Some(value as i64 as f64), many: false });
        }
        Ok(Constant { number: None, many: true })
    }

    /// The modules of the graph. `config.tied` becomes whether the head shares the weights of the embedding.
    pub(crate) fn modules(&self, config: &mut Config) -> Result<Vec<Module<'_>>, ConvertError> {
        let tensors = self.tensors()?;
        let mut modules = self.norms(&tensors, config)?;
        // Weights in another shape, by the name of the result.
        let mut reshaped: BTreeMap<&str, &str> = BTreeMap::new();
        let mut shared = Vec::new();
        let mut results: BTreeMap<&str, Known> = BTreeMap::new();
        for field in fields(self.graph()?, "graph") {
            let (GRAPH_NODE, value) = field? else { continue };
            let node = Node::read(value.bytes().ok_or_else(|| invalid("a node is a number"))?)?;
            let named = |i: usize| {
                let name = node.inputs.get(i).copied().filter(|name| !name.is_empty())?;
                tensors.get(reshaped.get(name).copied().unwrap_or(name))
            };
            let inputs = node.inputs.iter().take(2);
            let known: Vec<_> = inputs
                .map(|name| {
                    let tensor = || tensors.get(name).map(|tensor| Known::Constant(self.constant(tensor)));
                    results.get(name).cloned().or_else(tensor)
                })
                .collect();
            let first = known.first().and_then(Option::as_ref);
            let result = match node.op {
                "Constant" => Some(Known::Constant(self.constant_of(&node)?)),
                "ReduceMean" => Some(Known::Mean),
                op if SAME_NUMBERS.contains(&op) => first.cloned().map(|known| match known {
                    Known::Matrix { module, shaped } => {
                        Known::Matrix { module, shaped: shaped || !matches!(op, "Cast" | "Identity") }
                    }
                    known => known,
                }),
                _ => None,
            };
            if let Some(result) = result {
                results.insert(node.output, result);
            }
            if node.op == "Reshape" {
                if let Some(tensor) = named(0) {
                    reshaped.insert(node.output, tensor.name);
                }
                continue;
            }
            let (place, expected) = match node.op {
                "Gather" | "GatherBlockQuantized" => (0, node.name.contains("embed_tokens")),
                "MatMul" | "Gemm" | "MatMulNBits" => (1, true),
                _ => {
                    node.check(node.name, config)?;
                    node.is_the_norm(&known, config)?;
                    node.changes_no_matrix(&known, &tensors, config)?;
                    node.is_the_activation(first)?;
                    continue;
                }
            };
            let module = module_name(node.name);
            if !expected || module_to_gguf(&module, config).is_err() {
                // Such as a low-rank change, in `q_proj/lora_A`.
                let mut parents = module.match_indices('.').map(|(i, _)| module.split_at(i));
                if let Some((parent, part)) = parents.find(|(parent, _)| is_matrix(parent, config)) {
                    let problem = format!("has the part {}, which is not supported", &part[1..]);
                    return Err(ConvertError::tensor(parent, problem));
                }
                continue;
            }
            node.check(&module, config)?;
            results.insert(node.output, Known::Matrix { module: Rc::from(&*module), shaped: false });
            let Some(weight) = named(place) else {
                if module == "lm_head" && config.tied {
                    continue;
                }
                let problem = "has weights that the graph computes, expected a tensor of the file";
                return Err(ConvertError::tensor(&module, problem));
            };
            if matches!(&*module, "lm_head" | "model.embed_tokens") {
                shared.push([Some(weight), named(2), named(3)].map(|part| part.map(|part| part.name)));
            }
            modules.push(match node.op {
                "Gather" => self.float(module, weight, true)?,
                "MatMul" => self.float(module, weight, false)?,
                "Gemm" => self.float(module, weight, node.attribute("transB")?.unwrap_or(0) != 0)?,
                _ => {
                    let scales = named(2);
                    let scales =
                        scales.ok_or_else(|| ConvertError::tensor(&module, "has no scales in the file"))?;
                    self.grouped(module, &node, weight, scales, named(3), config.hidden)?
                }
            });
        }
        config.tied = match shared[..] {
            [a, b] => a == b,
            _ => config.tied,
        };
        if config.tied {
            modules.retain(|module| module.name != "lm_head");
        }
        for module in &mut modules {
            module.name.push_str(".weight");
        }
        Ok(modules)
    }

    /// The vectors, which nodes have under many names.
    fn norms<'f>(
        &'f self,
        tensors: &BTreeMap<&str, Tensor<'f>>,
        config: &Config,
    ) -> Result<Vec<Module<'f>>, ConvertError> {
        let mut modules = Vec::new();
        for (name, tensor) in tensors {
            let Some((path, part)) = name.rsplit_once('.') else { continue };
            let module = module_name(path);
            let known = matches!(module_to_gguf(&module, config), Ok(Some(_)));
            let module = match part {
                _ if path.ends_with("final_norm_layernorm") => "model.norm".to_string(),
                "weight" if known && module.ends_with("norm") => module,
                "bias" if known || module_to_gguf(module.trim_end_matches(".Add"), config).is_ok() => {
                    return Err(ConvertError::tensor(name, "is not part of this architecture"));
                }
                _ => continue,
            };
            let data = Floats { format: float(tensor)?, data: self.data(tensor)? };
            let &[cols] = &*tensor.dims else {
                let problem = format!("has the shape {:?}, expected one dimension", tensor.dims);
                return Err(ConvertError::tensor(name, problem));
            };
            modules.push(Module {
                name: module,
                rows: 1,
                cols: checked(tensor, cols, data.format.block_bytes() as u64, data.data)?,
                vector: true,
                weights: Weights::Stored(data.format, data.data),
                factor: None,
            });
        }
        Ok(modules)
    }

    /// A matrix of floats, `[cols, rows]` unless `by_rows`.
    fn float<'f>(
        &'f self,
        name: String,
        tensor: &Tensor<'f>,
        by_rows: bool,
    ) -> Result<Module<'f>, ConvertError> {
        let (format, data) = (float(tensor)?, self.data(tensor)?);
        let &[a, b] = &*tensor.dims else {
            let problem = format!("has the shape {:?}, expected two dimensions", tensor.dims);
            return Err(ConvertError::tensor(tensor.name, problem));
        };
        let (rows, cols) = if by_rows { (a, b) } else { (b, a) };
        let cols = checked(tensor, cols, rows.saturating_mul(format.block_bytes() as u64), data)?;
        let weights = if by_rows { Weights::Stored(format, data) } else { Weights::Transposed(format, data) };
        Ok(Module { name, rows: rows as usize, cols, vector: false, weights, factor: None })
    }

    /// A matrix of codes.
    fn grouped<'f>(
        &'f self,
        name: String,
        node: &Node<'f>,
        codes: &Tensor<'f>,
        scales: &Tensor<'f>,
        zeros: Option<&Tensor<'f>>,
        hidden: u32,
    ) -> Result<Module<'f>, ConvertError> {
        let wrong = |problem: String| ConvertError::tensor(&name, problem);
        // Those of signed numbers are other bits.
        if !matches!((codes.kind, node.op), (UINT8, _) | (UINT4, "GatherBlockQuantized")) {
            let expected = match node.op {
                "MatMulNBits" => "bytes, type 2",
                _ => "bytes, type 2, or UINT4, type 21",
            };
            return Err(wrong(format!("has codes of type {}, expected {expected}", codes.kind)));
        }
        let attribute = |key: &'static str| {
            let value = node.attribute(key)?.and_then(|value| usize::try_from(value).ok());
            value.ok_or_else(|| wrong(format!("has no {key}")))
        };
        let (group, data) = (attribute("block_size")?, self.data(codes)?);
        if !group.is_power_of_two() || !(16..=1 << 16).contains(&group) {
            return Err(wrong(format!("has blocks of {group}, expected a power of two from 16")));
        }
        let mut bits = node.attribute("bits")?.map_or(4, |bits| bits as usize);
        let (rows, cols) = if node.op == "MatMulNBits" {
            (attribute("N")?, attribute("K")?)
        } else {
            let &[rows, groups] = &*scales.dims else {
                return Err(wrong(format!("has scales of the shape {:?}", scales.dims)));
            };
            for axis in [("gather_axis", 0), ("quantize_axis", 1)] {
                if node.attribute(axis.0)?.unwrap_or(axis.1) != axis.1 {
                    return Err(wrong(format!("has another {} than {}", axis.0, axis.1)));
                }
            }
            let (rows, groups) = (rows as usize, groups as usize);
            // Files for runtimes that refuse 2 bits say 4: what the bytes are, the width of the model says.
            let cols = |bits: usize| data.len() * 8 / bits / rows.max(1);
            let fits = |bits: &usize| {
                cols(*bits) == hidden as usize && hidden.div_ceil(group as u32) as usize == groups
            };
            bits = [2, 4, 8].into_iter().find(fits).unwrap_or(bits);
            (rows, cols(bits.max(1)))
        };
        if !matches!(bits, 2 | 4 | 8) {
            return Err(wrong(format!("has weights of {bits} bits, expected 2, 4 or 8")));
        }
        // Sums of whole groups do not overflow then.
        if u32::try_from(cols).is_err() {
            return Err(wrong(format!("has {cols} columns")));
        }
        let groups = cols.div_ceil(group);
        let expected = rows.checked_mul(Grouped::row_bytes(cols, group, bits));
        if expected != Some(data.len()) || expected == Some(0) {
            return Err(wrong(format!(
                "has {} bytes, which is not {rows} rows of {cols} weights of {bits} bits",
                data.len()
            )));
        }
        let floats = |tensor: &Tensor<'f>| {
            let floats = Floats { format: float(tensor)?, data: self.data(tensor)? };
            let expected = rows * groups * floats.format.block_bytes();
            if floats.data.len() != expected {
                let problem = format!("has {} bytes, expected {expected}", floats.data.len());
                return Err(ConvertError::tensor(tensor.name, problem));
            }
            Ok(floats)
        };
        let offset = match zeros {
            None if codes.kind == UINT4 => Offset::Zero(0),
            None => Offset::Zero(1 << (bits - 1)),
            Some(zeros) if !matches!(zeros.kind, UINT8 | UINT4) => Offset::Zeros(floats(zeros)?),
            Some(zeros) => {
                let data = self.data(zeros)?;
                let fits = |bits: &usize| data.len() == rows * (groups * bits).div_ceil(8);
                let bits = [bits, 4].into_iter().find(fits).ok_or_else(|| {
                    wrong(format!("has {} bytes of zero points, which do not fit", data.len()))
                })?;
                Offset::PackedZeros(bits, data)
            }
        };
        let weights = Grouped { rows, cols, bits, group, codes: data, scales: floats(scales)?, offset };
        Ok(Module { name, rows, cols, vector: false, weights: Weights::Grouped(weights), factor: None })
    }
}

/// Whether numbers are the same, as rounded to 16 bits by exporters.
fn about(found: f64, wanted: f64, tolerance: f64) -> bool {
    found == wanted || (found / wanted - 1.0).abs() <= tolerance
}

/// The module that a node or a tensor belongs to: `/model/layers.0/attn/q_proj/MatMul` to
/// `model.layers.0.self_attn.q_proj`.
fn module_name(name: &str) -> String {
    let path = match name.strip_prefix('/') {
        Some(path) => path.rsplit_once('/').map_or("", |(path, _)| path),
        None => name.strip_suffix(".layernorm").unwrap_or(name),
    };
    path.replace('/', ".").replace(".attn.", ".self_attn.")
}

/// Whether a module is a matrix of the model.
fn is_matrix(module: &str, config: &Config) -> bool {
    module_to_gguf(module, config).is_ok() && !module.ends_with("norm")
}

/// The format of a tensor of floats.
fn float(tensor: &Tensor<'_>) -> Result<Format, ConvertError> {
    match tensor.kind {
        FLOAT => Ok(Format::F32),
        FLOAT16 => Ok(Format::F16),
        BFLOAT16 => Ok(Format::Bf16),
        other => {
            let problem = format!("has type {other}, expected a float of 32 or 16 bits");
            Err(ConvertError::tensor(tensor.name, problem))
        }
    }
}

/// `cols`, if the tensor has that many columns of `bytes` bytes each.
fn checked(tensor: &Tensor<'_>, cols: u64, bytes: u64, data: &[u8]) -> Result<usize, ConvertError> {
    if cols.checked_mul(bytes) != Some(data.len() as u64) {
        let problem = format!("has the shape {:?} but {} bytes", tensor.dims, data.len());
        return Err(ConvertError::tensor(tensor.name, problem));
    }
    Ok(cols as usize)
}

impl<'f> Tensor<'f> {
    fn read(message: &'f [u8]) -> Result<Self, ConvertError> {
        let mut tensor = Tensor { name: "", dims: Vec::new(), kind: 0, data: Data::Missing };
        let (mut file, mut offset, mut len) = (None, 0, None);
        for field in fields(message, "tensor") {
            let (number, value) = field?;
            let damaged = || invalid(format!("field {number} of tensor {:?} is damaged", tensor.name));
            match number {
                TENSOR_NAME => tensor.name = value.text().ok_or_else(damaged)?,
                TENSOR_DIMS => {
                    value
                        .numbers(&mut tensor.dims)
                        .filter(|()| tensor.dims.len() <= 8)
                        .ok_or_else(damaged)?;
                }
                TENSOR_TYPE => tensor.kind = value.number().ok_or_else(damaged)?,
                // Packed: the bytes of the numbers.
                TENSOR_RAW | TENSOR_FLOATS | TENSOR_DOUBLES => {
                    tensor.data = Data::Here(value.bytes().ok_or_else(damaged)?);
                }
                TENSOR_INT32S | TENSOR_INT64S => tensor.data = Data::Numbers(value),
                TENSOR_EXTERNAL => {
                    let (mut key, mut text) = ("", "");
                    for field in fields(value.bytes().ok_or_else(damaged)?, "place of a tensor") {
                        match field? {
                            (ENTRY_KEY, value) => key = value.text().ok_or_else(damaged)?,
                            (ENTRY_VALUE, value) => text = value.text().ok_or_else(damaged)?,
                            _ => {}
                        }
                    }
                    match key {
                        "location" => file = Some(text),
                        "offset" => offset = text.parse().map_err(|_| damaged())?,
                        "length" => len = Some(text.parse().map_err(|_| damaged())?),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        if let Some(file) = file {
            tensor.data = Data::External { file, offset, len };
        }
        Ok(tensor)
    }
}

impl<'f> Node<'f> {
    fn read(message: &'f [u8]) -> Result<Self, ConvertError> {
        let mut node = Node { fields: message, ..Node::default() };
        for field in fields(message, "node") {
            let (number, value) = field?;
            let text = || value.text().ok_or_else(|| invalid("a node has a name that is no text"));
            match number {
                NODE_NAME => node.name = text()?,
                NODE_OP => node.op = text()?,
                NODE_INPUT => node.inputs.push(text()?),
                NODE_OUTPUT if node.output.is_empty() => node.output = text()?,
                _ => {}
            }
        }
        Ok(node)
    }

    /// The field `field` of an attribute.
    fn field(&self, name: &str, field: u32) -> Result<Option<Option<Value<'f>>>, ConvertError> {
        for attribute in fields(self.fields, "node") {
            let (NODE_ATTRIBUTE, value) = attribute? else { continue };
            let (mut key, mut found) = (None, None);
            for part in fields(value.bytes().unwrap_or_default(), "node's attribute") {
                match part? {
                    (ATTRIBUTE_NAME, value) => key = value.text(),
                    (number, value) if number == field => found = Some(value),
                    _ => {}
                }
            }
            if key == Some(name) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A whole number among its attributes; some writers leave out 0.
    fn attribute(&self, name: &str) -> Result<Option<u64>, ConvertError> {
        let value = self.field(name, ATTRIBUTE_INT)?;
        Ok(value.map(|value| value.and_then(Value::number).unwrap_or(0)))
    }

    /// A float among its attributes.
    fn float(&self, name: &str) -> Result<Option<f32>, ConvertError> {
        let value = self.field(name, ATTRIBUTE_FLOAT)?;
        let bytes = |value: Value<'f>| value.bytes()?.try_into().ok().map(f32::from_le_bytes);
        Ok(value.map(|value| value.and_then(bytes).unwrap_or(0.0)))
    }

    fn has_input(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(|name| !name.is_empty())
    }

    /// Checks that the node, `name` in errors, computes what `config.json` says and no more.
    fn check(&self, name: &str, config: &Config) -> Result<(), ConvertError> {
        let wrong = |key: &str, found: String, expected| Err(self.wrong(name, key, found, expected));
        if OTHER_NORMS.contains(&self.op) {
            let problem =
                format!("has the operation {}, which subtracts the mean, expected RMS norms", self.op);
            return Err(ConvertError::tensor(name, problem));
        }
        for (_, key, values, expected) in KNOWN.into_iter().filter(|(op, ..)| *op == self.op) {
            // Two's complement.
            if let Some(value) = self.attribute(key)?.map(|value| value as i64)
                && !values.contains(&value)
            {
                return wrong(key, value.to_string(), expected);
            }
        }
        for (_, i, what) in REFUSED.into_iter().filter(|(op, ..)| *op == self.op) {
            if self.has_input(i) {
                return Err(ConvertError::tensor(name, format!("has {what}, which is not supported")));
            }
        }
        let same = |key: &str, default: f32, wanted: f32, expected| {
            let value = self.float(key)?.unwrap_or(default);
            if value == wanted { Ok(()) } else { wrong(key, format!("{value:?}"), expected) }
        };
        let epsilon = |default: f32| {
            let epsilon = self.float("epsilon")?.unwrap_or(default);
            self.epsilon(name, epsilon.into(), config)
        };
        // One for all positions changes nothing.
        let window = |key: &str| match self.attribute(key)?.map(|size| size as i64) {
            None | Some(-1) => Ok(()),
            Some(size) if size >= i64::from(config.context) => Ok(()),
            Some(size) => {
                let expected = "-1, no window, or at least max_position_embeddings of config.json";
                wrong(key, size.to_string(), expected)
            }
        };
        let scale = || match self.float("scale")? {
            None => Ok(()),
            // As it is without one; not so for the operation of the standard.
            Some(0.0) if self.op != "Attention" => Ok(()),
            // Rounded in as many ways as there are exporters.
            Some(scale) if (scale * (config.head_dim as f32).sqrt() - 1.0).abs() < 1e-3 => Ok(()),
            Some(scale) => wrong("scale", scale.to_string(), "1 / sqrt(head_dim)"),
        };
        // The defaults are those of onnxruntime.
        match self.op {
            "Gemm" => {
                same("alpha", 1.0, 1.0, "1")?;
                same("beta", 1.0, 1.0, "1")
            }
            "SimplifiedLayerNormalization" | "RMSNormalization" => epsilon(1e-5),
            "SkipSimplifiedLayerNormalization" => epsilon(1e-12),
            "MultiHeadAttention" => scale(),
            "RotaryEmbedding" => match self.attribute("rotary_embedding_dim")? {
                None | Some(0) => Ok(()),
                Some(dim) if dim == u64::from(config.head_dim) => Ok(()),
                Some(dim) => wrong("rotary_embedding_dim", dim.to_string(), "0 or head_dim"),
            },
            "Attention" | "GroupQueryAttention" => {
                same("softcap", 0.0, 0.0, "0")?;
                window("local_window_size")?;
                window("left_window_size")?;
                scale()
            }
            _ => Ok(()),
        }
    }

    fn wrong(&self, name: &str, key: &str, found: String, expected: &'static str) -> ConvertError {
        ConvertError::Value { key: format!("{key} of {name} ({})", self.op), found, expected }
    }

    /// Checks what a norm adds to the mean square.
    fn epsilon(&self, name: &str, found: f64, config: &Config) -> Result<(), ConvertError> {
        // In 16 bits, 1e-6 is 1.0133e-6.
        if about(found, config.epsilon.into(), 0.05) {
            return Ok(());
        }
        let found = format!("{:?}", found as f32);
        Err(self.wrong(name, "epsilon", found, "rms_norm_eps of config.json"))
    }

    /// Checks a part of a norm of single operations, by what is known of its inputs.
    fn is_the_norm(&self, known: &[Option<Known>], config: &Config) -> Result<(), ConvertError> {
        match (self.op, known) {
            (
                "Add",
                [Some(Known::Mean), Some(Known::Constant(constant))]
                | [Some(Known::Constant(constant)), Some(Known::Mean)],
            ) => match constant.number {
                Some(number) => self.epsilon(self.name, number, config),
                None => Ok(()),
            },
            ("Sub", [_, Some(Known::Mean)]) => {
                Err(ConvertError::tensor(self.name, "subtracts the mean, expected RMS norms"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the node does not add a constant to the result of a matrix, or multiply it.
    fn changes_no_matrix(
        &self,
        known: &[Option<Known>],
        tensors: &BTreeMap<&str, Tensor<'_>>,
        config: &Config,
    ) -> Result<(), ConvertError> {
        if !matches!(self.op, "Add" | "Sub" | "Mul" | "Div") {
            return Ok(());
        }
        let result = known.iter().flatten().find_map(|known| match known {
            Known::Matrix { module, shaped } => Some((&**module, *shaped)),
            _ => None,
        });
        let place = module_name(self.name);
        for (i, (name, input)) in self.inputs.iter().zip(known).enumerate() {
            let Some(Known::Constant(constant)) = input else { continue };
            let (module, shaped) = match result {
                Some(result) => result,
                None if is_matrix(&place, config) && tensors.contains_key(name) => (&*place, false),
                None => continue,
            };
            let rotated = module.ends_with(".q_proj") || module.ends_with(".k_proj");
            // Cosines and sines of a fixed length.
            if constant.many && shaped && rotated {
                continue;
            }
            let root = f64::from(config.head_dim).sqrt();
            let usual = constant.number.is_some_and(|number| match self.op {
                "Add" => number == 0.0,
                "Sub" => number == 0.0 && i == 1,
                "Div" if i == 0 => false,
                _ if number == 1.0 => true,
                // The scale of attention, or its root for queries and keys each.
                _ => {
                    let number = if self.op == "Div" { number.recip() } else { number };
                    rotated && [root, root.sqrt()].iter().any(|root| about(number * root, 1.0, 0.01))
                }
            });
            if !usual {
                let problem = format!("has the operation {} with {name}, which is not supported", self.op);
                return Err(ConvertError::tensor(module, problem));
            }
        }
        Ok(())
    }

    /// Checks that the result of a matrix, if the node's input is one, has no activation but that of the gate: SiLU.
    fn is_the_activation(&self, input: Option<&Known>) -> Result<(), ConvertError> {
        let Some(Known::Matrix { module, .. }) = input else { return Ok(()) };
        // What is computed of the last result may be another output.
        if &**module == "lm_head" {
            return Ok(());
        }
        let gate = module.ends_with(".gate_proj");
        let other = match self.op {
            "Sigmoid" => !gate,
            // The sigmoid of `alpha x`, times `x`.
            "Swish" => !gate || self.float("alpha")?.unwrap_or(1.0) != 1.0,
            "QuickGelu" => !gate || self.float("alpha")?.unwrap_or(1.702) != 1.0,
            op => OTHER_ACTIVATIONS.contains(&op),
        };
        if other {
            let problem = format!("has the operation {} on its result, which is not supported", self.op);
            return Err(ConvertError::tensor(module, problem));
        }
        Ok(())
    }
}
