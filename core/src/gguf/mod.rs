//! GGUF: the container of weights, vocabulary and hyper-parameters.
//!
//! [`Gguf::parse`] validates a whole file once and borrows everything from it; afterwards no accessor can
//! panic or fail because of the file. `docs/FORMATS.md` draws the bytes.
#![forbid(unsafe_code)]

mod header_bytes;
mod id42;
mod join;
mod metadata;
mod parts;
pub(crate) mod place;
mod scan;
mod stream;
mod tensor;
mod writer;

use alloc::vec::Vec;

pub use header_bytes::HeaderBytes;
pub use id42::Id42;
pub use join::GgufJoin;
pub use metadata::{Array, Kind, Metadata, StringArray, Strings, Value, Values};
pub use parts::{MAX_PARTS, PartError};
pub use stream::{Event, GgufStream};
pub use tensor::{TensorInfo, TensorType};
pub use writer::{Element, GgufBody, GgufWriter};

use crate::error::{Error, Name, Result};
use crate::limits::Limits;
use crate::quant::{Format, Matrix};
use metadata::Entry;
use place::Sniff;
use scan::{Item, Scanner};

/// Options for reading a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Limits on the sizes that a file claims.
    pub limits: Limits,
    /// The meaning of tensor type 42.
    pub id42: Id42,
}

/// Everything before the weights: metadata and the tensor table, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Header<'a> {
    metadata: Metadata<'a>,
    tensors: Vec<TensorInfo<'a>>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
    alignment: u32,
    data_start: u64,
    /// Number of files it was read from.
    parts: u16,
}

impl<'a> Header<'a> {
    /// Builds the header from bytes that `scanner` has walked to the end. If a [`Sniff`] is returned, the
    /// meaning of id 42 still depends on that part of the data.
    fn build(
        bytes: &'a [u8],
        scanned: &Scanner,
        file_len: u64,
        options: &ReadOptions,
    ) -> Result<(Header<'a>, Option<Sniff>)> {
        // The first walk has confirmed the counts, so these sizes are bounded by the file.
        let mut entries: Vec<Entry<'a>> = with_capacity(scanned.entries)?;
        let mut tensors: Vec<TensorInfo<'a>> = with_capacity(scanned.tensors)?;
        Scanner::new(options.limits, file_len).run(bytes, &mut |item| {
            match item {
                Item::Entry { key, kind, raw } => entries.push(Entry { key, value: Value::read(kind, raw) }),
                Item::Tensor { name, dims, n_dims, id, id_at, offset } => {
                    tensors.push(TensorInfo {
                        name,
                        dims,
                        offset,
                        len: 0,
                        id,
                        id_at,
                        n_dims,
                        format: None,
                        part: 0,
                    });
                }
            }
            Ok(())
        })?;
        let metadata = Metadata::new(entries)?;
        let by_name = metadata::sorted("tensor name", tensors.len(), |i| tensors.get(i).map(|t| t.name))?;
        let alignment = place::alignment(&metadata)?;
        let header_end = scanned.position() as u64;
        // A file without tensors may end with its header, unpadded.
        let data_start = match place::pad(header_end, alignment) {
            Some(start) if start <= file_len => start,
            _ if tensors.is_empty() => file_len,
            start => {
                let need = start.unwrap_or(u64::MAX) - header_end;
                let have = file_len.saturating_sub(header_end);
                return Err(error!(Truncated { what: "padding", at: header_end, need, have }));
            }
        };
        let codes_first = says_codes_first(&metadata);
        let sniff = place::place(&mut tensors, data_start, file_len, alignment, options.id42, codes_first)?;
        Ok((Header { metadata, tensors, by_name, alignment, data_start, parts: 1 }, sniff))
    }

    fn says_codes_first(&self) -> bool {
        says_codes_first(&self.metadata)
    }

    /// Reinterprets id 42 as codes-first.
    fn set_codes_first(&mut self) {
        for t in self.tensors.iter_mut().filter(|t| t.format == Some(Format::Pq2_0) && t.id == tensor::ID_42)
        {
            t.format = Some(Format::Tq2_0G128);
        }
    }

    /// The key-value part.
    pub const fn metadata(&self) -> &Metadata<'a> {
        &self.metadata
    }

    /// All tensors, in the order of the file's table.
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        self.tensors.get(self.tensor_index(name)?)
    }

    /// The format that takes most of the bytes of the layers' matrices.
    pub fn layer_format(&self) -> Option<Format> {
        let matrices = || self.tensors.iter().filter(|t| t.name().starts_with("blk.") && t.dims().len() > 1);
        let bytes = |format| matrices().filter(|t| t.format() == Some(format)).map(TensorInfo::len).sum();
        let all = Format::ALL.iter().map(|&format| (format, bytes(format)));
        all.filter(|&(_, bytes): &(_, u64)| bytes > 0)
            .max_by_key(|&(_, bytes)| bytes)
            .map(|(format, _)| format)
    }

    /// The index of the tensor of this name in [`Header::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        let at = |i: &u32| self.tensors.get(*i as usize).map_or("", |t| t.name);
        let found = self.by_name.binary_search_by(|i| at(i).cmp(name)).ok()?;
        self.by_name.get(found).map(|&i| i as usize)
    }

    /// Alignment of offsets and padding of sizes, in bytes.
    pub const fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Offset of the data section in the file, or in the first of several.
    pub const fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Offset behind the last tensor in the file, if the header is that of one file. Nothing after it is used.
    pub fn data_end(&self) -> u64 {
        // The parser has checked that the sums fit.
        let ends = self.tensors.iter().map(|t| t.offset.saturating_add(t.len));
        self.data_start.saturating_add(ends.max().unwrap_or(0))
    }

    /// Number of files this was read from; see [`Gguf::parse_parts`].
    pub const fn parts(&self) -> u16 {
        self.parts
    }
}

/// Whether the metadata states that id 42 is codes-first.
fn says_codes_first(metadata: &Metadata<'_>) -> bool {
    metadata.get("general.quantization_version") == Some(Value::Str(b"TQ2_0_G128"))
}

pub(crate) fn with_capacity<T>(count: u64) -> Result<Vec<T>> {
    let need = count.saturating_mul(size_of::<T>() as u64);
    let failed = error!(Memory { need, have: 0 });
    let mut list = Vec::new();
    list.try_reserve_exact(usize::try_from(count).map_err(|_| failed)?).map_err(|_| failed)?;
    Ok(list)
}

/// A GGUF file in memory, flash or a memory map.
///
/// ```
/// use shohin_core::gguf::Gguf;
/// let bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// assert!(Gguf::parse(bytes)?.tensors().is_empty());
/// # Ok::<(), shohin_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf<'a> {
    bytes: &'a [u8],
    header: Header<'a>,
    /// The files after the first, if there are several.
    more: Vec<Part<'a>>,
}

/// One of several files, and the offset of its data section.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part<'a> {
    bytes: &'a [u8],
    data_start: u64,
}

impl<'a> Gguf<'a> {
    /// Reads a whole file with default options.
    pub fn parse(bytes: &'a [u8]) -> Result<Gguf<'a>> {
        Gguf::parse_with(bytes, &ReadOptions::default())
    }

    /// Reads a whole file.
    ///
    /// Allocates at most 96 bytes per tensor and metadata entry, and nothing before the file is known to
    /// contain as many as it claims.
    pub fn parse_with(bytes: &'a [u8], options: &ReadOptions) -> Result<Gguf<'a>> {
        let file_len = bytes.len() as u64;
        let mut scanner = Scanner::new(options.limits, file_len);
        // It cannot ask for more bytes, since the length is known.
        scanner.run(bytes, &mut |_| Ok(()))?;
        let (mut header, sniff) = Header::build(bytes, &scanner, file_len, options)?;
        if let Some(s) = sniff
            && place::reads_codes_first(slice(bytes, header.data_start.saturating_add(s.offset), s.len))
        {
            header.set_codes_first();
        }
        Ok(Gguf { bytes, header, more: Vec::new() })
    }

    /// Metadata and the tensor table.
    pub const fn header(&self) -> &Header<'a> {
        &self.header
    }

    /// The key-value part.
    pub const fn metadata(&self) -> &Metadata<'a> {
        &self.header.metadata
    }

    /// All tensors, in the order of the file's table.
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.header.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        self.header.tensor(name)
    }

    /// The whole file, or the first of several.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of a tensor of this file or these files.
    pub fn data(&self, tensor: &TensorInfo<'_>) -> &'a [u8] {
        let first = Part { bytes: self.bytes, data_start: self.header.data_start };
        let part = match usize::from(tensor.part).checked_sub(1) {
            None => first,
            Some(i) => self.more.get(i).copied().unwrap_or(Part { bytes: &[], data_start: 0 }),
        };
        slice(part.bytes, part.data_start.saturating_add(tensor.offset), tensor.len)
    }

    /// The index of the file that holds a tensor of this file or these files, and the range within it; empty
    /// if there is no such file.
    pub fn place(&self, tensor: &TensorInfo<'_>) -> (usize, core::ops::Range<usize>) {
        let part = usize::from(tensor.part);
        let start = match part.checked_sub(1) {
            None => self.header.data_start,
            Some(i) => self.more.get(i).map_or(u64::MAX, |part| part.data_start),
        };
        // Bytes in memory have addresses, so saturation cannot hide an error.
        let start = start.saturating_add(tensor.offset);
        let end = start.saturating_add(tensor.len);
        (part, usize::try_from(start).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(usize::MAX))
    }

    /// The bytes of every file, first to last.
    pub fn part_bytes(&self) -> Vec<&'a [u8]> {
        core::iter::once(self.bytes).chain(self.more.iter().map(|part| part.bytes)).collect()
    }

    /// The tensor of this name as weights: `(dims[1] * dims[2], dims[0])`, or one row if it has one dimension.
    /// Refuses four dimensions, and types that cannot be computed with.
    pub fn matrix(&self, name: &str) -> Result<Matrix<'a>> {
        let t = self.tensor(name).ok_or(error!(MissingTensor { name: Name::new(name) }))?;
        let format = t.format.ok_or(error!(TensorType {
            name: Name::new(name),
            found: t.id,
            expected: "a loadable tensor type",
        }))?;
        let [cols, rows, stacked, 1] = t.dims else {
            let [expected @ .., _] = t.dims.map(|dim| u32::try_from(dim).unwrap_or(u32::MAX));
            return Err(error!(TensorShape { name: Name::new(name), expected, found: t.dims }));
        };
        let found = cols.max(rows.saturating_mul(stacked));
        let too_large = error!(Limit { what: "tensor dimension", found, max: usize::MAX as u64 });
        let rows = rows.checked_mul(stacked).and_then(|rows| usize::try_from(rows).ok()).ok_or(too_large)?;
        let cols = usize::try_from(cols).map_err(|_| too_large)?;
        Matrix::new(format, rows, cols, self.data(t))
    }
}

/// `len` bytes from `at`, or nothing if they are not all there.
fn slice(bytes: &[u8], at: u64, len: u64) -> &[u8] {
    let range =
        at.checked_add(len).and_then(|end| Some(usize::try_from(at).ok()?..usize::try_from(end).ok()?));
    range.and_then(|r| bytes.get(r)).unwrap_or(&[])
}
