//! GGUF files written byte by byte without checks, so that they can be invalid. Shares no code with the
//! library's writer.

use shohin_core::gguf::{Gguf, Value};

/// A metadata value: its type number and its bytes.
#[derive(Clone, Debug)]
pub struct RawValue {
    /// The type's number.
    pub kind: u32,
    /// The bytes after the type.
    pub bytes: Vec<u8>,
}

impl RawValue {
    /// The raw form of a parsed value.
    pub fn of(value: Value<'_>) -> RawValue {
        let bytes = match value {
            Value::U8(v) => v.to_le_bytes().into(),
            Value::I8(v) => v.to_le_bytes().into(),
            Value::U16(v) => v.to_le_bytes().into(),
            Value::I16(v) => v.to_le_bytes().into(),
            Value::U32(v) => v.to_le_bytes().into(),
            Value::I32(v) => v.to_le_bytes().into(),
            Value::F32(v) => v.to_le_bytes().into(),
            Value::Bool(v) => vec![u8::from(v)],
            Value::Str(v) => string(v),
            Value::Array(a) => {
                let elements: Vec<u8> = a.iter().flat_map(|v| RawValue::of(v).bytes).collect();
                return RawValue::array(a.kind().id(), a.len() as u64, &elements);
            }
            Value::U64(v) => v.to_le_bytes().into(),
            Value::I64(v) => v.to_le_bytes().into(),
            Value::F64(v) => v.to_le_bytes().into(),
        };
        RawValue { kind: value.kind().id(), bytes }
    }

    /// A `u32`.
    pub fn u32(v: u32) -> RawValue {
        RawValue { kind: 4, bytes: v.to_le_bytes().into() }
    }

    /// A `u64`.
    pub fn u64(v: u64) -> RawValue {
        RawValue { kind: 10, bytes: v.to_le_bytes().into() }
    }

    /// An `f32`.
    pub fn f32(v: f32) -> RawValue {
        RawValue { kind: 6, bytes: v.to_le_bytes().into() }
    }

    /// A string.
    pub fn str(v: impl AsRef<[u8]>) -> RawValue {
        RawValue { kind: 8, bytes: string(v.as_ref()) }
    }

    /// An array: element type, claimed length, and the bytes of the elements.
    pub fn array(kind: u32, len: u64, elements: &[u8]) -> RawValue {
        let mut bytes = Vec::from(kind.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(elements);
        RawValue { kind: 9, bytes }
    }

    /// An array of strings.
    pub fn strings<S: AsRef<[u8]>>(items: &[S]) -> RawValue {
        let elements: Vec<u8> = items.iter().flat_map(|s| string(s.as_ref())).collect();
        RawValue::array(8, items.len() as u64, &elements)
    }
}

/// A string as stored in a file: length, bytes.
pub fn string(v: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from((v.len() as u64).to_le_bytes());
    bytes.extend_from_slice(v);
    bytes
}

/// A row of the tensor table.
#[derive(Clone, Debug)]
pub struct RawTensor {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// The dimensions; `n_dims` overrides their number.
    pub dims: Vec<u64>,
    /// Overrides the number of dimensions.
    pub n_dims: Option<u32>,
    /// The type's number.
    pub id: u32,
    /// The offset in the data section.
    pub offset: u64,
}

impl RawTensor {
    /// A valid row.
    pub fn new(name: impl AsRef<[u8]>, dims: &[u64], id: u32, offset: u64) -> RawTensor {
        RawTensor { name: name.as_ref().into(), dims: dims.into(), n_dims: None, id, offset }
    }
}

/// A file, by its parts.
#[derive(Clone, Debug)]
pub struct RawFile {
    /// The first eight bytes.
    pub start: [u8; 8],
    /// Overrides the number of tensors.
    pub n_tensors: Option<u64>,
    /// Overrides the number of metadata entries.
    pub n_entries: Option<u64>,
    /// Keys and values.
    pub entries: Vec<(Vec<u8>, RawValue)>,
    /// The tensor table.
    pub tensors: Vec<RawTensor>,
    /// Alignment of the header's padding.
    pub alignment: usize,
    /// The data section.
    pub data: Vec<u8>,
}

impl RawFile {
    /// Version 3, empty, alignment 32.
    pub fn new() -> RawFile {
        RawFile {
            start: *b"GGUF\x03\0\0\0",
            n_tensors: None,
            n_entries: None,
            entries: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    /// A small valid file: a string, a number, an array of strings, two tensors.
    pub fn sample() -> RawFile {
        RawFile::new()
            .entry("general.architecture", RawValue::str("qwen3"))
            .entry("qwen3.block_count", RawValue::u32(1))
            .entry("tokenizer.ggml.tokens", RawValue::strings(&["a", "", "bcd"]))
            .tensor(RawTensor::new("first", &[4, 3], 0, 0))
            .tensor(RawTensor::new("second", &[5], 1, 64))
            .data(64 + 10)
    }

    /// Parses a valid file into its parts, to be changed and built again.
    pub fn of(file: &[u8]) -> RawFile {
        let gguf = Gguf::parse(file).expect("a valid file");
        let start = gguf.header().data_start() as usize;
        RawFile {
            entries: gguf.metadata().iter().map(|(k, v)| (k.into(), RawValue::of(v))).collect(),
            tensors: gguf
                .tensors()
                .iter()
                .map(|t| RawTensor::new(t.name(), t.dims(), t.type_id(), t.offset()))
                .collect(),
            alignment: gguf.header().alignment() as usize,
            data: file[start..].into(),
            ..RawFile::new()
        }
    }

    /// Sets a key to another value, or adds it.
    pub fn set(mut self, key: &str, value: RawValue) -> RawFile {
        self.entries.retain(|(k, _)| k != key.as_bytes());
        self.entry(key, value)
    }

    /// Removes a key.
    pub fn without(mut self, key: &str) -> RawFile {
        self.entries.retain(|(k, _)| k != key.as_bytes());
        self
    }

    /// Adds a key.
    pub fn entry(mut self, key: impl AsRef<[u8]>, value: RawValue) -> RawFile {
        self.entries.push((key.as_ref().into(), value));
        self
    }

    /// Adds a tensor.
    pub fn tensor(mut self, tensor: RawTensor) -> RawFile {
        self.tensors.push(tensor);
        self
    }

    /// Sets the data section to this many bytes, counting up.
    pub fn data(mut self, len: usize) -> RawFile {
        self.data = (0..len).map(|i| i as u8).collect();
        self
    }

    /// The header without padding.
    pub fn header(&self) -> Vec<u8> {
        let mut out = Vec::from(self.start);
        out.extend_from_slice(&self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&self.n_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            out.extend_from_slice(&string(key));
            out.extend_from_slice(&value.kind.to_le_bytes());
            out.extend_from_slice(&value.bytes);
        }
        for t in &self.tensors {
            out.extend_from_slice(&string(&t.name));
            out.extend_from_slice(&t.n_dims.unwrap_or(t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend_from_slice(&d.to_le_bytes()));
            out.extend_from_slice(&t.id.to_le_bytes());
            out.extend_from_slice(&t.offset.to_le_bytes());
        }
        out
    }

    /// The whole file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out.extend_from_slice(&self.data);
        out
    }
}

impl Default for RawFile {
    fn default() -> Self {
        RawFile::new()
    }
}
