//! Interleaving the matrices of a whole file where it lies in memory.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::{Gguf, ReadOptions, with_capacity};
use crate::error::{Error, Name, Result};
use crate::pool::Pool;
use crate::quant::{self, Format, Layout};

/// What has to be done to one tensor.
struct Task {
    /// Where its type stands in the file.
    id_at: usize,
    start: usize,
    end: usize,
    format: Format,
    rows: usize,
    cols: usize,
}

/// Rearranges every matrix of the GGUF file `bytes` whose format allows it to the `layout` of its format
/// (see [`Isa::layout`](crate::kernel::Isa::layout)), in place, spread over `pool`. Nothing is allocated but the header and 16 rows a worker, and the file keeps its size;
/// [`Gguf::parse`] and everything behind it then work as before, only faster, with the same results to
/// the last bit.
///
/// The tensor types in the header are changed to private ones, so that no other program can mistake such
/// a file for an ordinary one. A file that is interleaved already stays as it is.
///
/// # Errors
/// Those of [`Gguf::parse_with`], with `bytes` unchanged. [`Error::Memory`] if there is no room for 16
/// rows; then `bytes` are no model any more.
pub fn interleave(
    bytes: &mut [u8],
    options: &ReadOptions,
    layout: impl Fn(Format) -> Layout,
    pool: &dyn Pool,
) -> Result<()> {
    for task in tasks(bytes, options)? {
        let range = Error::TensorRange {
            name: Name::new("interleaved tensor"),
            offset: task.start as u64,
            len: (task.end - task.start) as u64,
            problem: "ends outside the file",
        };
        let Some(format) = quant::interleaved_format(task.format) else { continue };
        let layout = layout(format);
        let Some(id) = layout.type_id(format) else { continue };
        let data = bytes.get_mut(task.start..task.end).ok_or(range)?;
        quant::interleave(task.format, layout, task.rows, task.cols, data, pool)?;
        bytes.get_mut(task.id_at..task.id_at + 4).ok_or(range)?.copy_from_slice(&id.to_le_bytes());
    }
    Ok(())
}

fn tasks(bytes: &[u8], options: &ReadOptions) -> Result<Vec<Task>> {
    let gguf = Gguf::parse_with(bytes, options)?;
    let mut tasks = with_capacity(gguf.tensors().len() as u64)?;
    for t in gguf.tensors() {
        let ([cols, rows, 1, 1], Some(format), Layout::Rows) = (t.dims, t.format, t.layout()) else {
            continue;
        };
        // The parser has found the tensor in `bytes`, so all of this fits.
        let start = (gguf.header().data_start() + t.offset) as usize;
        let (id_at, end) = (t.id_at as usize, start + t.len as usize);
        tasks.push(Task { id_at, start, end, format, rows: rows as usize, cols: cols as usize });
    }
    Ok(tasks)
}
