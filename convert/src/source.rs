//! GGUF files to read: those that are there, and those that folders become.

use crate::delta::Deltas;
use crate::error::Result;
use crate::folder::Folder;
use crate::kind::is_folder;
use crate::options::ConvertOptions;
use crate::plan::Plan;
use crate::ternary::{I2_S, Id36};
use shohin_core::Gguf;
use shohin_core::gguf::ReadOptions;
use shohin_files::{MappedModel, Mmap, failed, large_pages, parse};
use std::io::{self, Write};
use std::path::Path;

/// A GGUF file, or the one that a folder becomes.
pub(crate) enum Source<'p> {
    File(MappedModel),
    Folder { path: &'p Path, map: Mmap },
}

impl<'p> Source<'p> {
    /// Opens `path`; a folder is converted in memory.
    pub(crate) fn open(path: &'p Path) -> Result<Self> {
        Ok(match is_folder(path) {
            true => Source::Folder { path, map: in_memory(path)? },
            false => Source::File(MappedModel::open(path)?),
        })
    }

    /// The contents, validated.
    pub(crate) fn gguf(&self, options: &ReadOptions) -> Result<Gguf<'_>> {
        Ok(match self {
            Source::File(model) => model.gguf(options)?,
            Source::Folder { path, map } => parse(&[map], options, |_| path.display().to_string())?,
        })
    }
}

/// The GGUF file of the folder `source`, in memory, keeping every bit.
///
/// # Errors
/// As for [`convert`](crate::convert).
pub fn in_memory(source: &Path) -> Result<Mmap> {
    let folder = Folder::open(source)?;
    held(source, &Plan::of_folder(&folder, &ConvertOptions::new(), &Deltas::default())?)
}

/// The GGUF file `model` with types that are computed with in the place of type 36 (I2_S), in memory, keeping every bit; `None` if it
/// has no tensors of that type, or cannot be read.
///
/// # Errors
/// As for [`convert`](crate::convert).
pub fn in_memory_gguf(source: &Path, model: &MappedModel, id36: Id36) -> Result<Option<Mmap>> {
    let Ok(gguf) = model.gguf(&ReadOptions::default()) else { return Ok(None) };
    if gguf.tensors().iter().all(|tensor| tensor.type_id() != I2_S) {
        return Ok(None);
    }
    let options = ConvertOptions::new().id36(id36);
    held(source, &Plan::of_gguf(source, &gguf, &options, &Deltas::default())?).map(Some)
}

/// The file that `plan` describes.
fn held(source: &Path, plan: &Plan<'_>) -> Result<Mmap> {
    let failed = failed("load the model", source);
    let too_large = || failed(io::ErrorKind::OutOfMemory.into());
    let len = usize::try_from(plan.len()).map_err(|_| too_large())?;
    let mut memory = large_pages(len).map_err(failed)?;
    let mut rest = &mut memory[..];
    // A slice ends where the file does.
    plan.write(|bytes| Ok(rest.write_all(bytes).map_err(failed)?))?;
    Ok(memory.make_read_only().map_err(failed)?)
}
