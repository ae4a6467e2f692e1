//! Expanding base-3 matrices of a whole file to 2-bit codes, which take a fifth more memory and a third
//! of the work.
#![forbid(unsafe_code)]

use crate::order;
use alloc::vec::Vec;

use super::place::pad;
use super::{Gguf, ReadOptions, with_capacity};
use crate::error::{Error, Name, Result};
use crate::kernel::Isa;
use crate::pool::Pool;
use crate::quant::{self, Format};

/// Where the parts of the expanded file go.
struct Plan {
    tensors: Vec<Moved>,
    data_start: usize,
    len: usize,
    expands: bool,
}

/// One tensor, before and after; positions in the whole file.
struct Moved {
    name: Name,
    /// Where its type stands in the header; its offset follows.
    id_at: usize,
    format: Option<Format>,
    from: (usize, usize),
    to: (usize, usize),
}

impl Plan {
    fn new(gguf: &Gguf<'_>) -> Result<Plan> {
        let header = gguf.header();
        if header.parts() > 1 {
            let found = u64::from(header.parts());
            return Err(Error::Length { what: "file to expand", expected: 1, found });
        }
        let mut order: Vec<u32> = with_capacity(gguf.tensors().len() as u64)?;
        order.extend(0..gguf.tensors().len() as u32);
        let at = |i: &u32| gguf.tensors().get(*i as usize);
        let start = |i: u32| at(&i).map_or(0, |t| t.offset);
        order::sort(&mut order, &|a, b| start(a).cmp(&start(b)));
        let mut tensors = with_capacity(gguf.tensors().len() as u64)?;
        let (mut next, mut end, mut expands) = (0u64, 0u64, false);
        for t in order.iter().filter_map(at) {
            let expanded = t.format.and_then(quant::expanded_format);
            expands |= expanded.is_some();
            let len = match (t.format, expanded) {
                (Some(from), Some(to)) => t.len / from.block_bytes() as u64 * to.block_bytes() as u64,
                _ => t.len,
            };
            let too_large =
                Error::Limit { what: "bytes of the expanded file", found: u64::MAX, max: usize::MAX as u64 };
            let place = |start: u64, len: u64| {
                let start = header.data_start().checked_add(start)?;
                let end = start.checked_add(len)?;
                Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
            };
            tensors.push(Moved {
                name: Name::new(t.name),
                id_at: usize::try_from(t.id_at).map_err(|_| too_large)?,
                format: t.format,
                from: place(t.offset, t.len).ok_or(too_large)?,
                to: place(next, len).ok_or(too_large)?,
            });
            end = next + len;
            next = pad(end, header.alignment()).ok_or(too_large)?;
        }
        let data_start = header.data_start();
        let too_large =
            Error::Limit { what: "bytes of the expanded file", found: end, max: usize::MAX as u64 };
        let len = data_start.checked_add(end).and_then(|len| usize::try_from(len).ok()).ok_or(too_large)?;
        Ok(Plan { tensors, data_start: data_start as usize, len, expands })
    }
}

/// How many bytes [`expand`] makes of this file; `None` if it has no base-3 matrices.
///
/// # Errors
/// [`Error::Limit`] if the address space is too small.
pub fn expanded_len(gguf: &Gguf<'_>) -> Result<Option<usize>> {
    let plan = Plan::new(gguf)?;
    Ok(plan.expands.then_some(plan.len))
}

/// Writes the file again with every PTQ1_0 matrix as PQ2_0 and every TQ1_0 matrix as TQ2_0: the same
/// weights to the last bit. `out` has [`expanded_len`] bytes. The work is spread over `pool`.
///
/// # Errors
/// [`Error::Length`] if `out` has not; those of [`Gguf::parse_with`].
pub fn expand(bytes: &[u8], options: &ReadOptions, isa: Isa, pool: &dyn Pool, out: &mut [u8]) -> Result<()> {
    let gguf = Gguf::parse_with(bytes, options)?;
    let plan = Plan::new(&gguf)?;
    if out.len() != plan.len {
        return Err(Error::Length {
            what: "expanded file",
            expected: plan.len as u64,
            found: out.len() as u64,
        });
    }
    let short = |name| Error::TensorRange { name, offset: 0, len: 0, problem: "ends outside the file" };
    let (head, _) = out.split_at_mut(plan.data_start);
    head.copy_from_slice(bytes.get(..plan.data_start).ok_or(short(Name::new("header")))?);
    let mut written = plan.data_start;
    for t in &plan.tensors {
        let from = bytes.get(t.from.0..t.from.1).ok_or(short(t.name))?;
        // Padding, then the tensor.
        out.get_mut(written..t.to.0).ok_or(short(t.name))?.fill(0);
        written = t.to.1;
        let to = out.get_mut(t.to.0..t.to.1).ok_or(short(t.name))?;
        let id = match t.format.and_then(|f| Some((f, quant::expanded_format(f)?))) {
            Some((format, expanded)) => {
                quant::expand(isa, format, from, to, pool)?;
                Some(expanded.gguf_id())
            }
            None => {
                to.copy_from_slice(from);
                None
            }
        };
        let info = out.get_mut(t.id_at..t.id_at + 12).ok_or(short(t.name))?;
        if let Some(id) = id {
            info[..4].copy_from_slice(&id.to_le_bytes());
        }
        info[4..].copy_from_slice(&((t.to.0 - plan.data_start) as u64).to_le_bytes());
    }
    Ok(())
}
