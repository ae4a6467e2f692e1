//! Checkpoints: files of weights, and of all that a training needs to go on.
//!
//! The format is version 1 of OXCK, as the crate `oxibonsai-model` publishes it. All numbers are little endian:
//!
//! ```text
//! file     "OXCK" | version u32 = 1 | flags u64 = 0 | tensors u64 | length u32 | metadata | tensor ..
//! tensor   length u32 | name | dimensions u32 | shape u64 .. | count u64 | f32 ..
//! ```
//! The metadata is a JSON object of strings, such as `{"step":"7"}`, or nothing. Names and strings are UTF-8. The last number of a
//! shape is that of neighbours; a tensor without dimensions is a single number, or empty.
//!
//! [`write`](fn@write) adds the key [`SHA256`]: the hash of all bytes after the metadata, in hexadecimal digits. A file without it was
//! written by another program.
//!
//! Other readers of the format know few escapes. What is written has no others: names are without quotes, backslashes and control
//! characters, and strings may have line breaks and tabs.
#![forbid(unsafe_code)]

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::convert::Infallible;
use core::fmt::{Display, Write};

use sha2::{Digest, Sha256};
use shohin_core::error::Name;
use shohin_core::json;

use crate::error::{Error, Result};

/// The key of the hash of all tensors.
pub const SHA256: &str = "shohin.sha256";

const MAGIC: &[u8; 4] = b"OXCK";
const VERSION: u32 = 1;
/// Bytes of a tensor without name, dimensions and numbers.
const LEAST_TENSOR: u64 = 16;
/// Three for each tensor of any model.
const MAX_TENSORS: u64 = 1 << 18;
const MAX_NAME: u64 = 65_535;
const MAX_DIMENSIONS: u64 = 8;
const MAX_METADATA: u64 = 1 << 24;
const MAX_ENTRIES: usize = 1 << 12;

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its dimensions.
    pub shape: &'a [u64],
    /// As many numbers as the shape says.
    pub data: &'a [f32],
}

fn wrong(at: Option<usize>, expected: impl Into<String>, found: impl ToString) -> Error {
    let (expected, found) = (expected.into(), found.to_string());
    Error::Checkpoint { at: at.map(|at| at as u64), expected, found }
}

fn quoted(name: impl AsRef<[u8]>) -> String {
    format!("{:?}", Name::new(name))
}

fn hex(hash: Sha256) -> String {
    let mut digits = String::new();
    for byte in hash.finalize() {
        // It cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The numbers of a shape, unless they are too many to count.
fn count(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n))
}

/// Whether a tensor of a shape has `n` numbers.
fn fits(shape: &[u64], n: u64) -> bool {
    if shape.is_empty() { n <= 1 } else { count(shape) == Some(n) }
}

fn check_name<'a>(name: &'a str, names: &mut BTreeSet<&'a str>) -> Result<()> {
    if name.len() as u64 > MAX_NAME {
        return Err(wrong(None, format!("names of at most {MAX_NAME} bytes"), quoted(name)));
    }
    if name.chars().any(|c| c.is_control() || ['"', '\\'].contains(&c)) {
        let expected = "names without quotes, backslashes and control characters";
        return Err(wrong(None, expected, quoted(name)));
    }
    if !names.insert(name) {
        return Err(wrong(None, "different names", format!("{} twice", quoted(name))));
    }
    Ok(())
}

fn check_tensors(tensors: &[Tensor<'_>]) -> Result<()> {
    if tensors.len() as u64 > MAX_TENSORS {
        return Err(wrong(None, format!("at most {MAX_TENSORS} tensors"), tensors.len()));
    }
    let mut names = BTreeSet::new();
    for Tensor { name, shape, data } in tensors {
        check_name(name, &mut names)?;
        if shape.len() as u64 > MAX_DIMENSIONS {
            let expected = format!("at most {MAX_DIMENSIONS} dimensions of {}", quoted(name));
            return Err(wrong(None, expected, shape.len()));
        }
        if !fits(shape, data.len() as u64) {
            let expected = format!("numbers of {} for its shape {shape:?}", quoted(name));
            return Err(wrong(None, expected, data.len()));
        }
    }
    Ok(())
}

/// The metadata, with the hash of the tensors.
fn header(metadata: &[(&str, &str)], sha256: &str) -> Result<String> {
    let (mut names, mut text) = (BTreeSet::from([SHA256]), String::from("{"));
    for (key, value) in metadata {
        check_name(key, &mut names)?;
        if value.chars().any(|c| c.is_control() && !['\n', '\r', '\t'].contains(&c)) {
            let expected = format!("no control characters in the metadata {}", quoted(key));
            return Err(wrong(None, expected, quoted(value)));
        }
        json::string(key, &mut text);
        text.push(':');
        json::string(value, &mut text);
        text.push(',');
    }
    json::string(SHA256, &mut text);
    text.push(':');
    json::string(sha256, &mut text);
    text.push('}');
    if text.len() as u64 > MAX_METADATA || names.len() > MAX_ENTRIES {
        let expected = format!("at most {MAX_METADATA} bytes of metadata in {MAX_ENTRIES} entries");
        return Err(wrong(None, expected, format!("{} in {}", text.len(), names.len())));
    }
    Ok(text)
}

/// Passes the bytes of all tensors on.
fn section<E>(tensors: &[Tensor<'_>], out: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut buffer = [0; 4096];
    for Tensor { name, shape, data } in tensors {
        out(&(name.len() as u32).to_le_bytes())?;
        out(name.as_bytes())?;
        out(&(shape.len() as u32).to_le_bytes())?;
        for n in *shape {
            out(&n.to_le_bytes())?;
        }
        out(&(data.len() as u64).to_le_bytes())?;
        for numbers in data.chunks(buffer.len() / 4) {
            for (bytes, x) in buffer.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *bytes = x.to_le_bytes();
            }
            out(&buffer[..4 * numbers.len()])?;
        }
    }
    Ok(())
}

/// Writes a checkpoint, piece by piece, to `out`: `metadata` as keys and values, the hash of the tensors, and the tensors.
///
/// # Errors
/// [`Error::Checkpoint`] for names or strings that other readers of the format do not read, equal names, shapes that do not fit the
/// numbers, and what is over a limit of [`Checkpoint::parse`]: nothing was written then. What `out` returns.
pub fn write<E: From<Error>>(
    metadata: &[(&str, &str)],
    tensors: &[Tensor<'_>],
    mut out: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    check_tensors(tensors)?;
    let mut hash = Sha256::new();
    let Ok(()) = section::<Infallible>(tensors, &mut |bytes| {
        hash.update(bytes);
        Ok(())
    });
    let metadata = header(metadata, &hex(hash))?;
    out(MAGIC)?;
    out(&VERSION.to_le_bytes())?;
    out(&0u64.to_le_bytes())?;
    out(&(tensors.len() as u64).to_le_bytes())?;
    out(&(metadata.len() as u32).to_le_bytes())?;
    out(metadata.as_bytes())?;
    section(tensors, &mut out)
}

/// A tensor that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    name: &'a str,
    shape: Vec<u64>,
    data: &'a [[u8; 4]],
}

impl<'a> Stored<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of its numbers.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Its numbers.
    pub fn values(&self) -> impl ExactSizeIterator<Item = f32> + use<'a> {
        self.data.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }
}

/// A checkpoint in memory, at any alignment.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint<'a> {
    metadata: Vec<(String, String)>,
    tensors: Vec<Stored<'a>>,
    by_name: BTreeMap<&'a str, usize>,
}

impl<'a> Checkpoint<'a> {
    /// Reads all but the numbers of tensors, and checks their hash if there is one.
    ///
    /// Memory is only allocated for what is there. A file has at most 2^18 tensors of 8 dimensions with names of 65,535 bytes,
    /// and 16 MiB of metadata in 4,096 entries.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the byte where the file is not one of these.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut r = Reader { bytes, at: 0 };
        let magic = r.take(4, &"the letters OXCK")?;
        if magic != MAGIC {
            return Err(wrong(Some(0), "the letters OXCK", quoted(magic)));
        }
        let version = r.u32(&"the version")?;
        if version != VERSION {
            return Err(wrong(Some(4), format!("version {VERSION}"), version));
        }
        let flags = r.u64(&"the flags")?;
        if flags != 0 {
            return Err(wrong(Some(8), "no flags", format!("{flags:#x}")));
        }
        let at = r.at;
        let tensors = r.u64(&"the number of tensors")?;
        let most = MAX_TENSORS.min(r.left() / LEAST_TENSOR);
        if tensors > most {
            return Err(wrong(Some(at), format!("at most {most} tensors in the bytes that follow"), tensors));
        }
        let metadata = r.metadata()?;
        let start = r.at;
        let mut checkpoint = Checkpoint { metadata, tensors: Vec::new(), by_name: BTreeMap::new() };
        for i in 0..tensors as usize {
            let at = r.at;
            let tensor = r.tensor()?;
            if checkpoint.by_name.insert(tensor.name, i).is_some() {
                let expected = "a name that no other tensor has";
                return Err(wrong(Some(at), expected, quoted(tensor.name)));
            }
            checkpoint.tensors.push(tensor);
        }
        if r.left() > 0 {
            return Err(wrong(Some(r.at), "the end of the file", format!("{} more bytes", r.left())));
        }
        if let Some(expected) = checkpoint.get(SHA256) {
            let mut hash = Sha256::new();
            hash.update(&bytes[start..]);
            let found = hex(hash);
            if found != expected {
                let expected = format!("tensors with the SHA-256 {}", quoted(expected));
                return Err(wrong(Some(start), expected, quoted(&found)));
            }
        }
        Ok(checkpoint)
    }

    /// The metadata `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// All metadata, in the order of the file.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[Stored<'a>] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Stored<'a>> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes.
    fn take(&mut self, n: u64, what: &dyn Display) -> Result<&'a [u8]> {
        if n > self.left() {
            let found = format!("the end of the file after {}", self.left());
            return Err(wrong(Some(self.at), format!("{n} bytes of {what}"), found));
        }
        let bytes = &self.bytes[self.at..][..n as usize];
        self.at += bytes.len();
        Ok(bytes)
    }

    fn u32(&mut self, what: &dyn Display) -> Result<u32> {
        Ok(self.take(4, what)?.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte)))
    }

    fn u64(&mut self, what: &dyn Display) -> Result<u64> {
        Ok(self.take(8, what)?.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    /// A length of at most `most`, and a text of as many bytes.
    fn text(&mut self, what: &str, most: u64) -> Result<&'a str> {
        let at = self.at;
        let len = u64::from(self.u32(&format_args!("the length of {what}"))?);
        if len > most {
            return Err(wrong(Some(at), format!("at most {most} bytes of {what}"), len));
        }
        let at = self.at;
        let bytes = self.take(len, &what)?;
        core::str::from_utf8(bytes).map_err(|error| {
            let valid = error.valid_up_to();
            wrong(Some(at + valid), format!("UTF-8 in {what}"), format!("the byte {:#04x}", bytes[valid]))
        })
    }

    fn tensor(&mut self) -> Result<Stored<'a>> {
        let name = self.text("the name of a tensor", MAX_NAME)?;
        let shown = Name::new(name);
        let at = self.at;
        let dimensions = u64::from(self.u32(&format_args!("the number of dimensions of {shown:?}"))?);
        if dimensions > MAX_DIMENSIONS {
            let expected = format!("at most {MAX_DIMENSIONS} dimensions of {shown:?}");
            return Err(wrong(Some(at), expected, dimensions));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64(&format_args!("the shape of {shown:?}"))?);
        }
        let at = self.at;
        let n = self.u64(&format_args!("the number of numbers of {shown:?}"))?;
        if !fits(&shape, n) {
            let numbers = count(&shape).map_or("fewer than 2^64".into(), |n| n.to_string());
            let expected = format!("{numbers} numbers for the shape {shape:?} of {shown:?}");
            return Err(wrong(Some(at), expected, n));
        }
        let data = self.take(n.saturating_mul(4), &format_args!("the numbers of {shown:?}"))?.as_chunks().0;
        Ok(Stored { name, shape, data })
    }

    fn metadata(&mut self) -> Result<Vec<(String, String)>> {
        let text = self.text("the metadata", MAX_METADATA)?;
        let (mut r, mut entries) = (Json { text, at: 0, start: self.at - text.len() }, Vec::new());
        if r.peek().is_none() {
            return Ok(entries);
        }
        r.symbol('{')?;
        while r.peek() != Some('}') {
            if !entries.is_empty() {
                r.symbol(',')?;
            }
            let at = Some(r.start + r.at);
            let key = r.string()?;
            if entries.iter().any(|(other, _)| *other == key) {
                return Err(wrong(at, "a key that no other metadata have", quoted(&key)));
            }
            r.symbol(':')?;
            let value = r.string()?;
            if entries.len() == MAX_ENTRIES {
                return Err(wrong(at, format!("at most {MAX_ENTRIES} keys of metadata"), "another one"));
            }
            entries.push((key, value));
        }
        r.symbol('}')?;
        match r.peek() {
            None => Ok(entries),
            Some(_) => Err(r.unexpected("the end of the metadata")),
        }
    }
}

/// Metadata: JSON of strings, in which control characters may also be as they are, since other programs write them so.
struct Json<'t> {
    text: &'t str,
    at: usize,
    /// Where the text is in the file.
    start: usize,
}

impl Json<'_> {
    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        let rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.at = self.text.len() - rest.len();
        rest.chars().next()
    }

    fn unexpected(&mut self, expected: &str) -> Error {
        let found = match self.peek() {
            None => "the end of the metadata".into(),
            Some(c) => quoted(c.encode_utf8(&mut [0; 4])),
        };
        wrong(Some(self.start + self.at), expected, found)
    }

    fn symbol(&mut self, symbol: char) -> Result<()> {
        if self.peek() != Some(symbol) {
            return Err(self.unexpected(&format!("'{symbol}' in the metadata")));
        }
        self.at += symbol.len_utf8();
        Ok(())
    }

    fn string(&mut self) -> Result<String> {
        if self.peek() != Some('"') {
            return Err(self.unexpected("a string in double quotes in the metadata"));
        }
        let (start, rest) = (self.start + self.at, &self.text[self.at..]);
        let (mut escaped, mut string) = (false, String::from('"'));
        for (i, c) in rest.char_indices().skip(1) {
            match c {
                // It cannot fail.
                c if c < ' ' && !escaped => _ = write!(string, "\\u{:04x}", u32::from(c)),
                c => string.push(c),
            }
            if c == '"' && !escaped {
                self.at += i + 1;
                let unknown = || wrong(Some(start), "a string with escapes of JSON", quoted(&rest[1..i]));
                return json::text(&string).ok().flatten().ok_or_else(unknown);
            }
            escaped = c == '\\' && !escaped;
        }
        Err(wrong(Some(start), "a closing quote", "the end of the metadata"))
    }
}
