//! Expands the base-3 matrices of a whole file to 2-bit codes, which take a fifth more memory and a third of
//! the work.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::expand::expand;
use super::isa::Isa;
use crate::error::{Error, Name, Result};
use crate::gguf::place::pad;
use crate::gguf::{Gguf, ReadOptions, with_capacity};
use crate::pool::Pool;
use crate::quant::Format;
use crate::sort;

/// Layout of the expanded file.
struct Plan {
    tensors: Vec<Moved>,
    data_start: usize,
    len: usize,
    /// At least `len`: large enough that, in a file placed at the end of this space, no tensor is overwritten
    /// by those before it.
    room: usize,
    expands: bool,
}

/// One tensor, before and after; offsets in the whole file.
struct Moved {
    name: Name,
    /// Offset of its type in the header; its offset follows.
    id_at: usize,
    format: Option<Format>,
    from: (usize, usize),
    to: (usize, usize),
}

impl Plan {
    fn new(gguf: &Gguf<'_>, file_len: usize) -> Result<Plan> {
        let header = gguf.header();
        if header.parts() > 1 {
            let found = u64::from(header.parts());
            return Err(error!(Length { what: "file to expand", expected: 1, found }));
        }
        let mut order: Vec<u32> = with_capacity(gguf.tensors().len() as u64)?;
        order.extend(0..gguf.tensors().len() as u32);
        let at = |i: &u32| gguf.tensors().get(*i as usize);
        let start = |i: u32| at(&i).map_or(0, |t| t.offset());
        sort::sort(&mut order, &|a, b| start(a).cmp(&start(b)));
        let mut tensors = with_capacity(gguf.tensors().len() as u64)?;
        let (mut next, mut end, mut expands) = (0u64, 0u64, false);
        for t in order.iter().filter_map(at) {
            let expanded = t.format().and_then(Format::expanded);
            expands |= expanded.is_some();
            let len = match (t.format(), expanded) {
                (Some(from), Some(to)) => t.len() / from.block_bytes() as u64 * to.block_bytes() as u64,
                _ => t.len(),
            };
            let too_large =
                error!(Limit { what: "bytes of the expanded file", found: u64::MAX, max: usize::MAX as u64 });
            let place = |start: u64, len: u64| {
                let start = header.data_start().checked_add(start)?;
                let end = start.checked_add(len)?;
                Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
            };
            tensors.push(Moved {
                name: Name::new(t.name()),
                id_at: usize::try_from(t.type_at()).map_err(|_| too_large)?,
                format: t.format(),
                from: place(t.offset(), t.len()).ok_or(too_large)?,
                to: place(next, len).ok_or(too_large)?,
            });
            end = next + len;
            next = pad(end, header.alignment()).ok_or(too_large)?;
        }
        let data_start = header.data_start();
        let too_large =
            error!(Limit { what: "bytes of the expanded file", found: end, max: usize::MAX as u64 });
        let len = data_start.checked_add(end).and_then(|len| usize::try_from(len).ok()).ok_or(too_large)?;
        let mut room = len.max(file_len);
        for t in &tensors {
            let left = file_len.checked_sub(t.from.1).ok_or(too_large)?;
            room = room.max(t.to.1.checked_add(left).ok_or(too_large)?);
        }
        Ok(Plan { tensors, data_start: data_start as usize, len, room, expands })
    }
}

/// Memory needed to expand a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Bytes of the expanded file.
    pub len: usize,
    /// Bytes that [`expand_file`] needs: usually `len`, but more for files with much data outside the
    /// tensors.
    pub room: usize,
}

/// The memory to expand this file of `file_len` bytes; `None` if it has no base-3 matrices.
///
/// # Errors
/// [`Error::Limit`] if the address space is too small, [`Error::Length`] for a model in several files.
pub fn expansion(gguf: &Gguf<'_>, file_len: usize) -> Result<Option<Expansion>> {
    let plan = Plan::new(gguf, file_len)?;
    Ok(plan.expands.then_some(Expansion { len: plan.len, room: plan.room }))
}

/// Bytes of a matrix that are read before their expansion is written.
const WINDOW: usize = 1 << 20;

/// Rewrites a file with every PTQ1_0 matrix as PQ2_0 and every TQ1_0 matrix as TQ2_0: exactly the same
/// weights. The file is in the last `file_len` of `bytes`; the result is in the first [`Expansion::len`]
/// bytes, which is also the return value. Allocates one more megabyte. The work is spread over `pool`.
///
/// # Errors
/// [`Error::Length`] if there are fewer than [`Expansion::room`] bytes; those of [`Gguf::parse_with`];
/// [`Error::Memory`].
pub fn expand_file(
    bytes: &mut [u8],
    file_len: usize,
    options: &ReadOptions,
    isa: Isa,
    pool: &dyn Pool,
) -> Result<usize> {
    let short = |what, expected: usize, found: usize| {
        let (expected, found) = (expected as u64, found as u64);
        error!(Length { what, expected, found })
    };
    let too_long = short("file to expand", bytes.len(), file_len);
    let shift = bytes.len().checked_sub(file_len).ok_or(too_long)?;
    let plan = Plan::new(&Gguf::parse_with(bytes.get(shift..).ok_or(too_long)?, options)?, file_len)?;
    if file_len < plan.data_start {
        // Without tensors, a file may end before its padding.
        return Err(short("file to expand", plan.data_start, file_len));
    }
    if bytes.len() < plan.room {
        return Err(short("room to expand the file", plan.room, bytes.len()));
    }
    // Tensors only ever move to the front: `room` is large enough that the writing position never overtakes
    // the reading position, since no matrix becomes smaller.
    bytes.copy_within(shift..shift + plan.data_start, 0);
    let mut window = with_capacity(WINDOW as u64)?;
    let mut written = plan.data_start;
    for t in &plan.tensors {
        let range = error!(TensorRange { name: t.name, offset: 0, len: 0, problem: "ends outside the file" });
        // Padding, then the tensor.
        bytes.get_mut(written..t.to.0).ok_or(range)?.fill(0);
        written = t.to.1;
        let from = shift + t.from.0..shift + t.from.1;
        let id = match t.format.and_then(|f| Some((f, f.expanded()?))) {
            Some((format, expanded)) => {
                let (small, large) = (format.block_bytes(), expanded.block_bytes());
                let (mut at, mut to) = (from.start, t.to.0);
                while at < from.end {
                    let end = from.end.min(at + WINDOW / small * small);
                    window.clear();
                    window.extend_from_slice(bytes.get(at..end).ok_or(range)?);
                    let next = to + window.len() / small * large;
                    expand(isa, format, &window, bytes.get_mut(to..next).ok_or(range)?, pool)?;
                    (at, to) = (end, next);
                }
                Some(expanded.gguf_id())
            }
            None => {
                bytes.copy_within(from, t.to.0);
                None
            }
        };
        let info = bytes.get_mut(t.id_at..t.id_at + 12).ok_or(range)?;
        if let Some(id) = id {
            info[..4].copy_from_slice(&id.to_le_bytes());
        }
        info[4..].copy_from_slice(&((t.to.0 - plan.data_start) as u64).to_le_bytes());
    }
    Ok(plan.len)
}
