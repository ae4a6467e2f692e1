//! Tensor placement: sizes, alignment, overlap, and which of its three layouts id 42 has in a file.
#![forbid(unsafe_code)]

use crate::sort;
use alloc::vec::Vec;

use super::tensor::{ID_42, TensorInfo, TensorType};
use super::{id42::Id42, metadata::Metadata, metadata::Value};
use crate::error::{Error, Name, Result};
use crate::quant::Format;

/// Largest alignment accepted; files use 32, or 4096 for memory mapping.
pub(super) const MAX_ALIGNMENT: u32 = 1 << 20;

/// Number of blocks inspected to guess the order inside a block.
const SNIFF_BLOCKS: u64 = 2048;

/// `general.alignment`: the default of 32 if absent.
pub(super) fn alignment(metadata: &Metadata<'_>) -> Result<u32> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(32),
        Some(Value::U32(a)) if a.is_power_of_two() && a <= MAX_ALIGNMENT => Ok(a),
        Some(Value::U32(a)) => Err(error!(KeyValue {
            key: Name::new(KEY),
            found: f64::from(a),
            expected: "a power of two up to 2^20",
        })),
        Some(other) => {
            Err(error!(KeyType { key: Name::new(KEY), expected: "u32", found: other.kind().name() }))
        }
    }
}

/// `n` rounded up to a multiple of `alignment`, which is a power of two.
pub(crate) fn pad(n: u64, alignment: u32) -> Option<u64> {
    let mask = u64::from(alignment) - 1;
    Some(n.checked_add(mask)? & !mask)
}

/// Bytes of a tensor of this shape in blocks of `block` elements; `None` if a row is not a whole number of
/// blocks.
fn bytes(t: &TensorInfo<'_>, block: u32, block_bytes: u32) -> Result<Option<u64>> {
    let too_large = error!(TensorRange {
        name: Name::new(t.name),
        offset: t.offset,
        len: u64::MAX,
        problem: "has more elements than can be counted",
    });
    let mut elements: u64 = 1;
    for dim in t.dims() {
        elements = elements.checked_mul(*dim).filter(|n| *n <= i64::MAX as u64).ok_or(too_large)?;
    }
    match t.dims().first() {
        // Blocks have a power of two of elements: 32-bit processors divide 64-bit numbers by a kilobyte of code.
        Some(row) if row.trailing_zeros() >= block.trailing_zeros() => (elements >> block.trailing_zeros())
            .checked_mul(u64::from(block_bytes))
            .map(Some)
            .ok_or(too_large),
        _ => Ok(None),
    }
}

fn bytes_as(t: &TensorInfo<'_>, format: Format) -> Result<Option<u64>> {
    bytes(t, format.block() as u32, format.block_bytes() as u32)
}

/// A part of the data section whose content decides between codes-last and codes-first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sniff {
    /// Offset of the part in the data section.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Sets length and format of every tensor, or refuses. The data section extends from `data_start` to the end
/// of the file. If a [`Sniff`] is returned, id 42 was read as group 128, and only the data can tell whether
/// the scale comes last.
pub(super) fn place(
    tensors: &mut [TensorInfo<'_>],
    data_start: u64,
    file_len: u64,
    alignment: u32,
    id42: Id42,
    codes_first: bool,
) -> Result<Option<Sniff>> {
    let data_len = file_len - data_start;
    for t in tensors.iter_mut() {
        let unknown =
            error!(TensorType { name: Name::new(t.name), found: t.id, expected: "a known tensor type" });
        let kind = TensorType::of(t.id).ok_or(unknown)?;
        // For id 42 this is a placeholder: length and format are determined below.
        t.len = bytes(t, kind.block, kind.block_bytes)?.ok_or(odd_row(t))?;
        let whole = t.len.checked_add(u64::from(kind.tail));
        t.len = whole.ok_or(range(t, "has more bytes than can be counted"))?;
        t.format = kind.format();
        if t.offset & (u64::from(alignment) - 1) != 0 {
            return Err(range(t, "does not start at a multiple of the alignment"));
        }
    }
    let mut order = Vec::new();
    let need = tensors.len() as u64 * 4;
    order.try_reserve_exact(tensors.len()).map_err(|_| error!(Memory { need, have: 0 }))?;
    order.extend(0..tensors.len() as u32);
    let at = |i: u32| tensors.get(i as usize).map_or((0, i), |t| (t.offset, i));
    sort::sort(&mut order, &|a, b| at(a).cmp(&at(b)));
    let mut sniff = None;
    let first = order.iter().filter_map(|i| tensors.get(*i as usize)).find(|t| t.id == ID_42);
    if let Some((offset, elements)) = first.map(|t| (t.offset, t.elements())) {
        let format = match id42 {
            Id42::Group64 => Format::Q2_0,
            Id42::Group128 => Format::Pq2_0,
            Id42::CodesFirst => Format::Tq2_0G128,
            Id42::Auto if codes_first => Format::Tq2_0G128,
            Id42::Auto => match group(tensors, &order, data_len, alignment)? {
                Format::Pq2_0 => {
                    let blocks = (elements / Format::Pq2_0.block() as u64).min(SNIFF_BLOCKS);
                    sniff = Some(Sniff { offset, len: blocks * Format::Pq2_0.block_bytes() as u64 });
                    Format::Pq2_0
                }
                other => other,
            },
        };
        for t in tensors.iter_mut().filter(|t| t.id == ID_42) {
            t.len = bytes_as(t, format)?.ok_or(odd_row(t))?;
            t.format = Some(format).filter(|format| format.is_available());
        }
    }

    let mut end = 0;
    for t in order.iter().filter_map(|i| tensors.get(*i as usize)) {
        if t.offset < end {
            return Err(range(t, "overlaps another tensor"));
        }
        end = t
            .offset
            .checked_add(t.len)
            .filter(|end| end.checked_add(data_start).is_some())
            .ok_or(range(t, "ends outside the file"))?;
    }
    if end > data_len {
        return Err(error!(Incomplete { need: data_start + end, have: file_len }));
    }
    Ok(sniff)
}

fn odd_row(t: &TensorInfo<'_>) -> Error {
    error!(TensorType {
        name: Name::new(t.name),
        found: t.id,
        expected: "a type whose blocks fill the rows of this tensor",
    })
}

fn range(t: &TensorInfo<'_>, problem: &'static str) -> Error {
    error!(TensorRange { name: Name::new(t.name), offset: t.offset, len: t.len, problem })
}

/// Whether id 42 has groups of 64 or 128 weights in this file. Writers place one tensor after the other, each
/// padded to the alignment, so the offsets reveal the sizes of all tensors but the last, and the size of the
/// file reveals that one's. (The layouts differ by 2 bytes in 36.)
fn group(tensors: &[TensorInfo<'_>], order: &[u32], data_len: u64, alignment: u32) -> Result<Format> {
    let small = end_if(tensors, order, alignment, Format::Pq2_0)?;
    let large = end_if(tensors, order, alignment, Format::Q2_0)?;
    let exact =
        |end: Option<u64>| end.is_some_and(|end| end == data_len || pad(end, alignment) == Some(data_len));
    match (large.is_some(), small.is_some()) {
        (true, false) => Ok(Format::Q2_0),
        (false, true) => Ok(Format::Pq2_0),
        (true, true) if exact(large) && !exact(small) => Ok(Format::Q2_0),
        (true, true) if exact(small) && !exact(large) => Ok(Format::Pq2_0),
        // The file is too short for either, which is then reported.
        (true, true) if small.is_some_and(|end| data_len < end) => Ok(Format::Pq2_0),
        _ => {
            let mut of_type = order.iter().filter_map(|i| tensors.get(*i as usize)).filter(|t| t.id == ID_42);
            match of_type.next_back() {
                Some(t) => {
                    Err(range(t, "is of type 42, whose group size (64 or 128) this file does not tell"))
                }
                None => Ok(Format::Q2_0),
            }
        }
    }
}

/// The end of the last tensor if id 42 means `format`, provided that every offset is then the running sum of
/// the padded sizes before it.
fn end_if(tensors: &[TensorInfo<'_>], order: &[u32], alignment: u32, format: Format) -> Result<Option<u64>> {
    let mut next = 0;
    let mut end = 0;
    for t in order.iter().filter_map(|i| tensors.get(*i as usize)) {
        let len = if t.id == ID_42 { bytes_as(t, format)? } else { Some(t.len) };
        let Some(len) = len else { return Ok(None) };
        if t.offset != next {
            return Ok(None);
        }
        match t.offset.checked_add(len).and_then(|e| Some((e, pad(e, alignment)?))) {
            Some(ends) => (end, next) = ends,
            None => return Ok(None),
        }
    }
    Ok(Some(end))
}

/// Whether these blocks of 34 bytes can only be codes-first: read scale-first they are not ternary weights (a
/// code 3, or a scale that is negative or not finite), read codes-first they are.
pub(super) fn reads_codes_first(window: &[u8]) -> bool {
    let ternary = |codes: &[u8]| codes.iter().all(|b| b & (b >> 1) & 0x55 == 0);
    let scale = |raw: &[u8]| match raw {
        [lo, hi] => {
            let bits = u16::from_le_bytes([*lo, *hi]);
            // Finite, and not below -0.
            bits & 0x7c00 != 0x7c00 && bits <= 0x8000
        }
        _ => false,
    };
    let blocks = window.as_chunks::<34>().0;
    let scale_first = blocks.iter().all(|b| scale(&b[..2]) && ternary(&b[2..]));
    !scale_first && blocks.iter().all(|b| scale(&b[32..]) && ternary(&b[..32]))
}
