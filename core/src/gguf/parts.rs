//! A model in several files, `name-00001-of-00003.gguf` and so on, as llama.cpp's `gguf-split` and gguf-py
//! write them: each is a GGUF file with its own tensors, the first has the metadata of all.
#![forbid(unsafe_code)]

use core::fmt;

use super::tensor::ID_42;
use super::{Gguf, Header, Id42, Part, ReadOptions, TensorInfo, metadata, with_capacity};
use crate::error::{Error, Name, Result};
use crate::quant::Format;

/// Maximum number of parts of a model.
pub const MAX_PARTS: usize = 1000;

/// The index of a file among the parts, from 0.
const NO: &str = "split.no";
/// Number of parts.
const COUNT: &str = "split.count";
/// Number of tensors in all parts together.
const TENSORS: &str = "split.tensors.count";

/// An error and the part of a model that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartError {
    /// Counted from 0.
    pub part: usize,
    /// The error.
    pub error: Error,
}

impl fmt::Display for PartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {}: {}", self.part + 1, self.error)
    }
}

impl core::error::Error for PartError {}

impl From<PartError> for Error {
    fn from(error: PartError) -> Error {
        error.error
    }
}

/// Adds the index of a part to its error.
pub(super) trait Of<T> {
    fn of(self, part: usize) -> core::result::Result<T, PartError>;
}

impl<T> Of<T> for Result<T> {
    fn of(self, part: usize) -> core::result::Result<T, PartError> {
        self.map_err(|error| PartError { part, error })
    }
}

/// Checks that a header claims to be part `part` of `count`, and to belong to the model that starts with
/// `first`.
pub(super) fn check_place(header: &Header<'_>, first: &Header<'_>, part: usize, count: usize) -> Result<()> {
    let meta = header.metadata();
    let expect = |key: &str, found: Option<u32>, right: u64, expected| match meta.need(key, found)? {
        said if u64::from(said) == right => Ok(()),
        said => Err(error!(KeyValue { key: Name::new(key), found: f64::from(said), expected })),
    };
    expect(COUNT, meta.u32(COUNT)?, count as u64, "the number of parts that there are")?;
    expect(NO, meta.u32(NO)?, part as u64, "the place of this part, counted from 0")?;
    match first.metadata().u32(TENSORS)? {
        Some(all) => {
            expect(TENSORS, meta.u32(TENSORS)?, u64::from(all), "as many tensors as the first part says")
        }
        None => Ok(()),
    }
}

/// Checks the number of tensors in all parts against the first part's claim.
pub(super) fn check_tensors(first: &Header<'_>, found: usize) -> Result<()> {
    match first.metadata().u64(TENSORS)? {
        Some(said) if said != found as u64 => {
            Err(error!(Length { what: "tensor table of all parts", expected: said, found: found as u64 }))
        }
        _ => Ok(()),
    }
}

/// Refuses more than [`MAX_PARTS`] parts.
pub(super) fn check_count(count: usize) -> Result<()> {
    let max = MAX_PARTS as u64;
    match count {
        0..=MAX_PARTS => Ok(()),
        _ => Err(error!(Limit { what: "number of parts", found: count as u64, max })),
    }
}

impl Header<'_> {
    /// The format that tensors of type 42 were read as; `None` if there are none.
    pub fn format_of_42(&self) -> Option<Format> {
        self.tensors.iter().find(|t| t.id == ID_42).and_then(|t| t.format)
    }

    /// The meaning of tensor type 42 in this model, for reading its parts separately: `known`, or the
    /// detected one for [`Id42::Auto`].
    pub fn id42(&self, known: Id42) -> Id42 {
        match (known, self.format_of_42()) {
            (Id42::Auto, _) if self.says_codes_first() => Id42::CodesFirst,
            (Id42::Auto, Some(Format::Q2_0)) => Id42::Group64,
            (Id42::Auto, Some(Format::Pq2_0)) => Id42::Group128,
            (Id42::Auto, Some(Format::Tq2_0G128)) => Id42::CodesFirst,
            _ => known,
        }
    }
}

/// Whether a key describes parts.
pub(super) fn is_split_key(key: &str) -> bool {
    [NO, COUNT, TENSORS].contains(&key)
}

impl<'a> Gguf<'a> {
    /// Reads a model in several files, first to last, without copying them. A single file may be complete by
    /// itself.
    ///
    /// # Errors
    /// Those of [`Gguf::parse_with`], and errors for files that do not belong together or are not in order.
    pub fn parse_parts(
        parts: &[&'a [u8]],
        options: &ReadOptions,
    ) -> core::result::Result<Gguf<'a>, PartError> {
        let none = error!(Length { what: "list of parts", expected: 1, found: 0 });
        let (first, rest) = parts.split_first().ok_or(PartError { part: 0, error: none })?;
        check_count(parts.len()).of(0)?;
        let mut all = Gguf::parse_with(first, options).of(0)?;
        if rest.is_empty() {
            return Ok(all);
        }
        let mut options = ReadOptions { id42: all.header.id42(options.id42), ..*options };
        check_place(&all.header, &all.header, 0, parts.len()).of(0)?;
        all.more = with_capacity(rest.len() as u64).of(0)?;
        for (part, bytes) in (1..).zip(rest) {
            let i = usize::from(part);
            let Gguf { header, .. } = Gguf::parse_with(bytes, &options).of(i)?;
            options.id42 = header.id42(options.id42);
            check_place(&header, &all.header, i, parts.len()).of(i)?;
            all.more.push(Part { bytes, data_start: header.data_start });
            let tensors = &mut all.header.tensors;
            let found = tensors.len() as u64 + header.tensors.len() as u64;
            if found > options.limits.tensors {
                let max = options.limits.tensors;
                return Err(error!(Limit { what: "tensor count of all parts", found, max })).of(i);
            }
            let need = header.tensors.len() as u64 * size_of::<TensorInfo<'_>>() as u64;
            tensors.try_reserve(header.tensors.len()).map_err(|_| error!(Memory { need, have: 0 })).of(i)?;
            tensors.extend(header.tensors.iter().map(|t| TensorInfo { part, ..*t }));
        }
        all.header.parts = parts.len() as u16;
        let tensors = &all.header.tensors;
        let (order, twice) = metadata::by_name(tensors.len(), |i| tensors.get(i).map(|t| t.name)).of(0)?;
        if let Some(name) = twice {
            // The error is attributed to the later part.
            let later = tensors.iter().rfind(|t| t.name == name).map_or(0, |t| usize::from(t.part));
            return Err(error!(Duplicate { what: "tensor name", name: Name::new(name) })).of(later);
        }
        all.header.by_name = order;
        check_tensors(&all.header, all.header.tensors.len()).of(0)?;
        Ok(all)
    }
}
