//! Writing GGUF: the header in memory, the weights as a stream.
#![forbid(unsafe_code)]

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use super::metadata::{Kind, Value};
use super::place::{MAX_ALIGNMENT, pad};
use super::tensor::TensorType;
use crate::error::{Error, Name, Result};
use crate::quant::Format;

/// Collects metadata and the tensor table, then lays out the file like llama.cpp and gguf-py: version 3,
/// every tensor padded to the alignment.
///
/// ```
/// use shohin_core::{Format, gguf::{Gguf, GgufWriter}};
/// let mut w = GgufWriter::new();
/// w.set("general.architecture", "qwen3")?;
/// w.tensor("output_norm.weight", &[2], Format::F32)?;
/// let file = w.to_vec([[0u8; 8]])?;
/// assert_eq!(Gguf::parse(&file)?.matrix("output_norm.weight")?.cols(), 2);
/// # Ok::<(), shohin_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    alignment: Option<u32>,
    keys: BTreeSet<String>,
    metadata: Vec<u8>,
    names: BTreeSet<String>,
    tensors: Vec<Declared>,
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dims: Vec<u64>,
    id: u32,
    len: u64,
}

/// Element types of arrays in metadata.
pub trait Element: Copy {
    /// The GGUF type of the elements.
    const KIND: Kind;
    /// Appends the little-endian bytes.
    fn put(self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($t:ty: $kind:ident),*) => {$(
        impl Element for $t {
            const KIND: Kind = Kind::$kind;
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl From<$t> for Value<'_> {
            fn from(v: $t) -> Self {
                Value::$kind(v)
            }
        }
    )*};
}

numbers!(u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, f32: F32, u64: U64, i64: I64, f64: F64);

impl Element for bool {
    const KIND: Kind = Kind::Bool;
    fn put(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
}

impl From<bool> for Value<'_> {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(v: &'a str) -> Self {
        Value::Str(v.as_bytes())
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u64).put(out);
    out.extend_from_slice(bytes);
}

/// The bytes of a value without its type.
fn put_value(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::U8(v) => v.put(out),
        Value::I8(v) => v.put(out),
        Value::U16(v) => v.put(out),
        Value::I16(v) => v.put(out),
        Value::U32(v) => v.put(out),
        Value::I32(v) => v.put(out),
        Value::F32(v) => v.put(out),
        Value::Bool(v) => v.put(out),
        Value::Str(v) => put_bytes(out, v),
        Value::Array(v) => {
            v.kind().id().put(out);
            (v.len() as u64).put(out);
            v.iter().for_each(|element| put_value(out, element));
        }
        Value::U64(v) => v.put(out),
        Value::I64(v) => v.put(out),
        Value::F64(v) => v.put(out),
    }
}

/// The key that sets the alignment of tensors.
const ALIGNMENT: &str = "general.alignment";

impl GgufWriter {
    /// Creates an empty file.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    fn key(&mut self, key: &str, kind: Kind) -> Result<()> {
        if !(1..=65_535).contains(&key.len()) || key.contains('\0') {
            return Err(error!(Unsupported {
                key: Name::new("metadata key"),
                found: Name::new(key),
                expected: "1 to 65535 bytes without NUL",
            }));
        }
        if key == ALIGNMENT && kind == Kind::Array {
            return Err(error!(KeyType { key: Name::new(key), expected: "u32", found: kind.name() }));
        }
        if !self.keys.insert(key.into()) {
            return Err(error!(Duplicate { what: "metadata key", name: Name::new(key) }));
        }
        put_bytes(&mut self.metadata, key.as_bytes());
        kind.id().put(&mut self.metadata);
        Ok(())
    }

    /// Adds a key. Setting `general.alignment` also changes the alignment of the file.
    pub fn set<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) -> Result<()> {
        let value = value.into();
        let alignment = match value {
            _ if key != ALIGNMENT => self.alignment,
            Value::U32(a) if a.is_power_of_two() && a <= MAX_ALIGNMENT => Some(a),
            other => {
                let found = other.integer().map_or(f64::NAN, |v| v as f64);
                let expected = "a u32 power of two";
                return Err(error!(KeyValue { key: Name::new(key), found, expected }));
            }
        };
        self.key(key, value.kind())?;
        self.alignment = alignment;
        put_value(&mut self.metadata, value);
        Ok(())
    }

    /// Adds a key with an array of numbers or booleans.
    pub fn set_array<T: Element>(&mut self, key: &str, values: &[T]) -> Result<()> {
        self.key(key, Kind::Array)?;
        T::KIND.id().put(&mut self.metadata);
        (values.len() as u64).put(&mut self.metadata);
        values.iter().for_each(|v| v.put(&mut self.metadata));
        Ok(())
    }

    /// Adds a key with an array of strings.
    pub fn set_strings<S: AsRef<[u8]>>(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        self.key(key, Kind::Array)?;
        Kind::Str.id().put(&mut self.metadata);
        let count_at = self.metadata.len();
        0u64.put(&mut self.metadata);
        let mut count: u64 = 0;
        for value in values {
            put_bytes(&mut self.metadata, value.as_ref());
            count += 1;
        }
        if let Some(slot) = self.metadata.get_mut(count_at..count_at + 8) {
            slot.copy_from_slice(&count.to_le_bytes());
        }
        Ok(())
    }

    /// Declares the next tensor; `dims` has the row length (input features) first.
    ///
    /// [`Format::Tq2_0G128`] shares its id with [`Format::Q2_0`], so a file can contain only one of them, and
    /// `general.quantization_version` must be the text `TQ2_0_G128`.
    pub fn tensor(&mut self, name: &str, dims: &[u64], format: Format) -> Result<()> {
        let kind = TensorType {
            id: format.gguf_id(),
            name: format.name(),
            block: format.block() as u32,
            block_bytes: format.block_bytes() as u32,
            tail: 0,
        };
        self.tensor_of(name, dims, &kind)
    }

    /// Declares the next tensor by any tensor type, known or not.
    pub fn tensor_of(&mut self, name: &str, dims: &[u64], kind: &TensorType) -> Result<()> {
        if !(1..=64).contains(&name.len()) || name.contains('\0') {
            return Err(error!(Unsupported {
                key: Name::new("tensor name"),
                found: Name::new(name),
                expected: "1 to 64 bytes without NUL",
            }));
        }
        let blocks = match dims {
            [row, rest @ ..] if rest.len() < 4 && row.is_multiple_of(u64::from(kind.block.max(1))) => {
                let first = Some(row / u64::from(kind.block.max(1)));
                rest.iter().fold(first, |n, d| n?.checked_mul(*d))
            }
            _ => None,
        };
        let of_blocks = |blocks: u64| {
            let len = blocks.checked_mul(u64::from(kind.block_bytes)).filter(|len| *len > 0)?;
            len.checked_add(u64::from(kind.tail))
        };
        let Some(len) = blocks.and_then(of_blocks) else {
            return Err(error!(TensorType {
                name: Name::new(name),
                found: kind.id,
                expected: "1 to 4 dimensions over 0 whose rows are whole blocks",
            }));
        };
        if !self.names.insert(name.into()) {
            return Err(error!(Duplicate { what: "tensor name", name: Name::new(name) }));
        }
        self.tensors.push(Declared { name: name.into(), dims: dims.into(), id: kind.id, len });
        Ok(())
    }

    fn alignment(&self) -> u32 {
        self.alignment.unwrap_or(32)
    }

    /// Everything before the first tensor's first byte.
    pub fn header(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        3u32.put(&mut out);
        (self.tensors.len() as u64).put(&mut out);
        (self.keys.len() as u64).put(&mut out);
        out.extend_from_slice(&self.metadata);
        let mut offset: u64 = 0;
        for t in &self.tensors {
            put_bytes(&mut out, t.name.as_bytes());
            (t.dims.len() as u32).put(&mut out);
            t.dims.iter().for_each(|d| d.put(&mut out));
            t.id.put(&mut out);
            offset.put(&mut out);
            offset = offset.checked_add(t.len).and_then(|end| pad(end, self.alignment())).ok_or(error!(
                TensorRange {
                    name: Name::new(&t.name),
                    offset,
                    len: t.len,
                    problem: "ends beyond what 64 bits can count",
                }
            ))?;
        }
        if !self.tensors.is_empty() {
            let padding = pad(out.len() as u64, self.alignment()).unwrap_or(0) - out.len() as u64;
            out.resize(out.len() + padding as usize, 0);
        }
        Ok(out)
    }

    /// A writer for the tensors' bytes, in the order of declaration, after the header.
    pub fn body(&self) -> GgufBody {
        let tensors = self.tensors.iter().map(|t| t.len).collect();
        GgufBody { tensors, alignment: self.alignment(), next: 0, written: 0 }
    }

    /// The whole file in memory; `data` has one item per tensor.
    pub fn to_vec<T: AsRef<[u8]>>(&self, data: impl IntoIterator<Item = T>) -> Result<Vec<u8>> {
        let mut out = self.header()?;
        let mut body = self.body();
        for bytes in data {
            body.push(bytes.as_ref(), |bytes| {
                out.extend_from_slice(bytes);
                Ok::<(), Error>(())
            })?;
        }
        body.finish()?;
        Ok(out)
    }
}

/// Inserts padding between tensors that are written piece by piece, so that no weights are buffered.
#[derive(Clone, Debug)]
pub struct GgufBody {
    tensors: Vec<u64>,
    alignment: u32,
    next: usize,
    /// Bytes of tensor `next` written so far.
    written: u64,
}

impl GgufBody {
    /// Writes the next bytes, which may be any part of a tensor or span several, to `out`, and the padding
    /// after each tensor they complete.
    pub fn push<E: From<Error>>(
        &mut self,
        bytes: &[u8],
        mut out: impl FnMut(&[u8]) -> core::result::Result<(), E>,
    ) -> core::result::Result<(), E> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(len) = self.tensors.get(self.next).copied() else {
                return Err(
                    error!(Length { what: "tensor data", expected: 0, found: rest.len() as u64 }).into()
                );
            };
            let count = usize::try_from(len - self.written).unwrap_or(usize::MAX).min(rest.len());
            let (now, behind) = rest.split_at(count);
            rest = behind;
            out(now)?;
            self.written += count as u64;
            if self.written == len {
                let mut padding = pad(len, self.alignment).map_or(0, |end| end - len) as usize;
                while padding > 0 {
                    let count = padding.min(ZEROS.len());
                    out(ZEROS.get(..count).unwrap_or(&[]))?;
                    padding -= count;
                }
                (self.next, self.written) = (self.next + 1, 0);
            }
        }
        Ok(())
    }

    /// Bytes of all tensors, with padding.
    pub fn len(&self) -> u64 {
        let padded = |len: &u64| pad(*len, self.alignment).unwrap_or(u64::MAX);
        self.tensors.iter().map(padded).fold(0, u64::saturating_add)
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Checks that every tensor is complete.
    pub fn finish(&self) -> Result<()> {
        match self.tensors.get(self.next) {
            Some(len) => Err(error!(Length { what: "tensor data", expected: *len, found: self.written })),
            None => Ok(()),
        }
    }
}
