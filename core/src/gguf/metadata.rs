//! Metadata: the key-value part of a GGUF file, borrowed from its bytes.
#![forbid(unsafe_code)]

use crate::sort;
use alloc::vec::Vec;

use crate::error::{Error, Name, Result};

/// The type of a metadata value, as GGUF numbers them.
#[allow(missing_docs, reason = "the names are the types")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl Kind {
    /// All thirteen, by id.
    pub const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::Str,
        Kind::Array,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    /// The kind with this id.
    pub fn of(id: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| *k as u32 == id)
    }

    /// The number in the file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The name shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::U8 => "u8",
            Kind::I8 => "i8",
            Kind::U16 => "u16",
            Kind::I16 => "i16",
            Kind::U32 => "u32",
            Kind::I32 => "i32",
            Kind::F32 => "f32",
            Kind::Bool => "bool",
            Kind::Str => "string",
            Kind::Array => "array",
            Kind::U64 => "u64",
            Kind::I64 => "i64",
            Kind::F64 => "f64",
        }
    }

    /// Bytes of a value of this kind, or `None` if that depends on the value.
    pub const fn size(self) -> Option<u64> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::Str | Kind::Array => None,
        }
    }
}

/// A metadata value. Strings are bytes, because files may contain strings that are not UTF-8.
#[allow(missing_docs, reason = "the names are the types")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// `N` bytes from the front of `raw`, padded with zeros.
fn le<const N: usize>(raw: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    for (o, r) in out.iter_mut().zip(raw) {
        *o = *r;
    }
    out
}

impl<'a> Value<'a> {
    /// Reads the scanned bytes of a value: exactly one, of this kind.
    pub(super) fn read(kind: Kind, raw: &'a [u8]) -> Value<'a> {
        match kind {
            Kind::U8 => Value::U8(u8::from_le_bytes(le(raw))),
            Kind::I8 => Value::I8(i8::from_le_bytes(le(raw))),
            Kind::U16 => Value::U16(u16::from_le_bytes(le(raw))),
            Kind::I16 => Value::I16(i16::from_le_bytes(le(raw))),
            Kind::U32 => Value::U32(u32::from_le_bytes(le(raw))),
            Kind::I32 => Value::I32(i32::from_le_bytes(le(raw))),
            Kind::F32 => Value::F32(f32::from_le_bytes(le(raw))),
            Kind::Bool => Value::Bool(raw.first().is_some_and(|b| *b != 0)),
            Kind::Str => Value::Str(raw.get(8..).unwrap_or(&[])),
            Kind::Array => Value::Array(Array::read(raw)),
            Kind::U64 => Value::U64(u64::from_le_bytes(le(raw))),
            Kind::I64 => Value::I64(i64::from_le_bytes(le(raw))),
            Kind::F64 => Value::F64(f64::from_le_bytes(le(raw))),
        }
    }

    /// The value's type.
    pub const fn kind(&self) -> Kind {
        match self {
            Value::U8(_) => Kind::U8,
            Value::I8(_) => Kind::I8,
            Value::U16(_) => Kind::U16,
            Value::I16(_) => Kind::I16,
            Value::U32(_) => Kind::U32,
            Value::I32(_) => Kind::I32,
            Value::F32(_) => Kind::F32,
            Value::Bool(_) => Kind::Bool,
            Value::Str(_) => Kind::Str,
            Value::Array(_) => Kind::Array,
            Value::U64(_) => Kind::U64,
            Value::I64(_) => Kind::I64,
            Value::F64(_) => Kind::F64,
        }
    }

    /// The value as an integer, if it has an integer type.
    pub const fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v as i128),
            Value::I8(v) => Some(v as i128),
            Value::U16(v) => Some(v as i128),
            Value::I16(v) => Some(v as i128),
            Value::U32(v) => Some(v as i128),
            Value::I32(v) => Some(v as i128),
            Value::U64(v) => Some(v as i128),
            Value::I64(v) => Some(v as i128),
            _ => None,
        }
    }
}

/// An array, borrowed from the file's bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: Kind,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn read(raw: &'a [u8]) -> Array<'a> {
        let kind = Kind::of(u32::from_le_bytes(le(raw))).unwrap_or(Kind::U8);
        let len = u64::from_le_bytes(le(raw.get(4..).unwrap_or(&[])));
        Array { kind, len, bytes: raw.get(12..).unwrap_or(&[]) }
    }

    /// The type of the elements.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of elements, never more than the array has bytes.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the array is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as stored in the file.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Iterates over the elements.
    pub fn iter(&self) -> Values<'a> {
        Values { kind: self.kind, left: self.len, bytes: self.bytes }
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Values<'a> {
    kind: Kind,
    left: u64,
    bytes: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let len = value_len(self.kind, self.bytes);
        let (raw, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(Value::read(self.kind, raw))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

/// Bytes of the first value of `kind` in scanned bytes. Nesting was bounded when they were scanned.
fn value_len(kind: Kind, bytes: &[u8]) -> usize {
    match kind {
        Kind::Str => (u64::from_le_bytes(le(bytes)) as usize).saturating_add(8),
        Kind::Array => {
            let inner = Array::read(bytes);
            match inner.kind.size() {
                Some(size) => (inner.len as usize).saturating_mul(size as usize).saturating_add(12),
                None => {
                    let mut rest = inner.bytes;
                    for _ in 0..inner.len {
                        rest = rest.get(value_len(inner.kind, rest)..).unwrap_or(&[]);
                    }
                    bytes.len() - rest.len()
                }
            }
        }
        _ => kind.size().unwrap_or(0) as usize,
    }
}

/// An array of strings, borrowed from the file's bytes: it allocates nothing, and reaching element `i` takes
/// `i` steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StringArray<'a> {
    len: usize,
    bytes: &'a [u8],
}

impl<'a> StringArray<'a> {
    /// Number of strings.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the array is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The strings as stored in the file, each after its 64-bit length.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The strings in order, as bytes.
    pub fn iter(&self) -> Strings<'a> {
        Strings { left: self.len, bytes: self.bytes }
    }
}

impl<'a> IntoIterator for StringArray<'a> {
    type Item = &'a [u8];
    type IntoIter = Strings<'a>;

    fn into_iter(self) -> Strings<'a> {
        self.iter()
    }
}

/// Iterator over a [`StringArray`].
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (raw, rest) = self.bytes.split_at_checked(value_len(Kind::Str, self.bytes))?;
        self.bytes = rest;
        raw.get(8..)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// One key with its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a str,
    pub(super) value: Value<'a>,
}

/// The key-value part of a file. Every key is unique, not empty, and UTF-8.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata<'a> {
    entries: Vec<Entry<'a>>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(entries: Vec<Entry<'a>>) -> Result<Metadata<'a>> {
        let by_key = sorted("metadata key", entries.len(), |i| entries.get(i).map(|e| e.key))?;
        Ok(Metadata { entries, by_key })
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let at = |i: &u32| self.entries.get(*i as usize);
        let found = self.by_key.binary_search_by(|i| at(i).map_or("", |e| e.key).cmp(key)).ok()?;
        at(self.by_key.get(found)?).map(|e| e.value)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> + '_ {
        self.entries.iter().map(|e| (e.key, e.value))
    }

    /// Refuses a file with any key that starts with `prefix`, for features that change the meaning of
    /// weights: ignoring them would produce fluent nonsense. `expected` describes files that are accepted.
    pub fn refuse(&self, prefix: &str, expected: &'static str) -> Result<()> {
        match self.iter().find(|(key, _)| key.starts_with(prefix)) {
            Some((key, value)) => Err(error!(Unsupported {
                key: Name::new(key),
                found: Name::new(value.kind().name()),
                expected,
            })),
            None => Ok(()),
        }
    }

    /// Turns an accessor's missing value into an error.
    pub fn need<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or(error!(MissingKey { key: Name::new(key) }))
    }

    /// The unsigned number under `key`, of any integer type, since writers differ, if it fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.u64_up_to(key, u64::from(u32::MAX)).map(|v| v.map(|v| v as u32))
    }

    /// The unsigned number under `key`, of any integer type.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.u64_up_to(key, u64::MAX)
    }

    fn u64_up_to(&self, key: &str, max: u64) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.integer().ok_or(key_type(key, "an unsigned integer", value))?;
        match u64::try_from(number) {
            Ok(n) if n <= max => Ok(Some(n)),
            _ => Err(error!(KeyValue {
                key: Name::new(key),
                found: number as f64,
                expected: if max == u64::MAX { "0 to 2^64-1" } else { "0 to 2^32-1" },
            })),
        }
    }

    /// The number under `key`: `f32`, or `f64` rounded to it. It may be infinite or not a number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(v)),
            Some(Value::F64(v)) => Ok(Some(v as f32)),
            Some(other) => Err(key_type(key, "f32", other)),
        }
    }

    /// The boolean under `key`.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(v)),
            Some(other) => Err(key_type(key, "bool", other)),
        }
    }

    /// The text under `key`, which must be UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(v)) => match core::str::from_utf8(v) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(error!(Unsupported {
                    key: Name::new(key),
                    found: Name::new(v),
                    expected: "UTF-8 text",
                })),
            },
            Some(other) => Err(key_type(key, "string", other)),
        }
    }

    /// The array under `key`.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(v)) => Ok(Some(v)),
            Some(other) => Err(key_type(key, "array", other)),
        }
    }

    fn array_of(&self, key: &str, kinds: &[Kind], expected: &'static str) -> Result<Option<Array<'a>>> {
        match self.array(key)? {
            Some(a) if !kinds.contains(&a.kind) => {
                Err(error!(KeyType { key: Name::new(key), expected, found: a.kind.name() }))
            }
            other => Ok(other),
        }
    }

    /// The array of strings under `key`.
    pub fn strings(&self, key: &str) -> Result<Option<StringArray<'a>>> {
        let array = self.array_of(key, &[Kind::Str], "array of strings")?;
        Ok(array.map(|a| StringArray { len: a.len(), bytes: a.bytes }))
    }

    /// The array of `i32` under `key`; `u32` elements are reinterpreted.
    pub fn i32s(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = i32> + Clone + use<'a>>> {
        let array = self.array_of(key, &[Kind::I32, Kind::U32], "array of i32")?;
        Ok(array.map(|a| a.bytes.chunks_exact(4).map(|raw| i32::from_le_bytes(le(raw)))))
    }

    /// The array of `u32` under `key`; `i32` elements are reinterpreted.
    pub fn u32s(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = u32> + Clone + use<'a>>> {
        let array = self.array_of(key, &[Kind::I32, Kind::U32], "array of u32")?;
        Ok(array.map(|a| a.bytes.chunks_exact(4).map(|raw| u32::from_le_bytes(le(raw)))))
    }

    /// The array of flags under `key`.
    pub fn bools(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = bool> + Clone + use<'a>>> {
        let array = self.array_of(key, &[Kind::Bool], "array of bool")?;
        Ok(array.map(|a| a.bytes.iter().map(|raw| *raw != 0)))
    }

    /// The array of `f32` under `key`.
    pub fn f32s(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = f32> + Clone + use<'a>>> {
        let array = self.array_of(key, &[Kind::F32], "array of f32")?;
        Ok(array.map(|a| a.bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(le(raw)))))
    }
}

fn key_type(key: &str, expected: &'static str, found: Value<'_>) -> Error {
    error!(KeyType { key: Name::new(key), expected, found: found.kind().name() })
}

/// Indices of named things in the order of their names. An error if a name occurs twice.
pub(super) fn sorted<'a>(
    what: &'static str,
    len: usize,
    name: impl Fn(usize) -> Option<&'a str>,
) -> Result<Vec<u32>> {
    match by_name(len, name)? {
        (order, None) => Ok(order),
        (_, Some(name)) => Err(error!(Duplicate { what, name: Name::new(name) })),
    }
}

/// The same, with the first name that occurs twice.
pub(super) fn by_name<'a>(
    len: usize,
    name: impl Fn(usize) -> Option<&'a str>,
) -> Result<(Vec<u32>, Option<&'a str>)> {
    let mut order = Vec::new();
    let need = len as u64 * size_of::<u32>() as u64;
    order.try_reserve_exact(len).map_err(|_| error!(Memory { need, have: 0 }))?;
    order.extend(0..len as u32);
    sort::sort(&mut order, &|a, b| name(a as usize).cmp(&name(b as usize)));
    let twice = |pair: &[u32]| match pair {
        [a, b] if name(*a as usize) == name(*b as usize) => name(*a as usize),
        _ => None,
    };
    let twice = order.windows(2).find_map(twice);
    Ok((order, twice))
}
