//! Converting a Hugging Face folder (`config.json`, `tokenizer.json` and safetensors, also as MLX packs them, or ONNX)
//! or a GGUF file to a GGUF file with weights in any format, or back to a folder.
//!
//! Weights are mapped, converted a few rows at a time on all cores and written as they are ready, so that memory does
//! not depend on the size of the model. The file appears under its name when it is complete.

mod config;
mod error;
mod export;
mod file_type;
mod float8;
mod folder;
mod grouped;
mod json;
mod names;
mod onnx;
mod peft;
mod plan;
mod pooling;
mod protobuf;
mod rules;
mod tensor;
mod tokenizer;

use crate::error::{Error, Result};
use crate::file::ModelFile;
use crate::map::Mmap;
use crate::memory;
use crate::new_file::NewFile;
use crate::shard::shard_names;
use folder::Folder;
use plan::Plan;
use shohin_core::Format;
use shohin_core::gguf::{Id42, ReadOptions};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

pub use error::ConvertError;
pub use export::convert_to_folder;
pub use file_type::{FileType, Int8, Mix};
pub use peft::convert_adapter;
pub(crate) use peft::{adapter_in_memory, is_adapter_folder};
pub use rules::TensorRule;

/// What to write.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The formats of matrices; those that keep every bit of the source unless set. Norms are F32.
    pub file_type: Option<FileType>,
    /// Formats of single tensors; the last one that matches counts.
    pub rules: Vec<TensorRule>,
    /// Whether a file of that name is replaced.
    pub replace: bool,
    /// The layout of tensors of type 42 in a GGUF file that does not say it.
    pub id42: Id42,
}

impl ConvertOptions {
    /// Options that keep every bit of the source, and every file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`ConvertOptions::file_type`](#structfield.file_type).
    pub fn file_type(mut self, file_type: impl Into<FileType>) -> Self {
        self.file_type = Some(file_type.into());
        self
    }

    /// Sets [`ConvertOptions::rules`](#structfield.rules).
    pub fn rules(mut self, rules: Vec<TensorRule>) -> Self {
        self.rules = rules;
        self
    }

    /// Sets [`ConvertOptions::replace`](#structfield.replace).
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets [`ConvertOptions::id42`](#structfield.id42).
    pub fn id42(mut self, id42: Id42) -> Self {
        self.id42 = id42;
        self
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions { id42: self.id42, ..ReadOptions::default() }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Converted {
    /// The tensors, in the order of the file.
    pub tensors: Vec<ConvertedTensor>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A tensor that was written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConvertedTensor {
    /// Its name in the file.
    pub name: String,
    /// Rows and columns; before them the number of experts whose matrices it has.
    pub shape: Vec<usize>,
    /// Its format in the source; `None` for packed codes and floats of 8 bits.
    pub from: Option<Format>,
    /// Its format in the file.
    pub to: Format,
    /// Bytes in the file.
    pub bytes: u64,
    /// The root of the mean squared error, relative to that of the weights; 0 if no bit changed.
    pub error: f64,
}

/// Converts `source`, a Hugging Face folder, an ONNX file in one or a GGUF file, to the GGUF file `out`. `progress` is called with the bytes
/// written so far and those of the whole file.
///
/// Tokenizer, chat template and metadata come along, under the names that llama.cpp reads.
///
/// ```no_run
/// use shohin::convert::{ConvertOptions, Mix, convert};
///
/// convert("Qwen3-0.6B", "qwen3-0.6b.gguf", &ConvertOptions::new(), |_, _| ())?;
/// let options = ConvertOptions::new().file_type(Mix::Q4KM);
/// convert("qwen3-0.6b.gguf", "qwen3-0.6b-q4_k_m.gguf", &options, |_, _| ())?;
/// # Ok::<(), shohin::Error>(())
/// ```
///
/// # Errors
/// [`Error::Convert`] or [`Error::Model`] if the source is not a model of an architecture that this library runs, or a
/// part of it is damaged; [`Error::Io`]. Nothing is left under the name `out` then, and a file that was there is
/// unchanged.
pub fn convert(
    source: impl AsRef<Path>,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Converted> {
    let (source, out) = (source.as_ref(), out.as_ref());
    // After the source was opened: whoever is told to replace a file can do so.
    let create = || match out.file_name().and_then(|name| shard_names(name.to_str()?)) {
        Some(_) => Err(ConvertError::NameOfPart.at(out)),
        None => new_file(out, options.replace),
    };
    if is_folder(source) {
        let folder = Folder::open(source)?;
        let new = create()?;
        return save(&Plan::of_folder(&folder, options)?, out, new, &mut progress);
    }
    let file = ModelFile::open(source)?;
    let gguf = file.gguf(&options.read_options())?;
    let new = create()?;
    save(&Plan::of_gguf(source, &gguf, options)?, out, new, &mut progress)
}

/// Writes the file that `plan` describes.
fn save(
    plan: &Plan<'_>,
    out: &Path,
    mut file: NewFile,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let failed = |source| Error::Io { action: "write", path: out.into(), source };
    let whole = plan.len();
    let mut written = 0;
    let tensors = plan.write(|bytes| {
        file.write_all(bytes).map_err(failed)?;
        written += bytes.len() as u64;
        progress(written, whole);
        Ok(())
    })?;
    file.finish().map_err(failed)?;
    Ok(Converted { tensors, bytes: written })
}

/// Begins the file `out`. One that is there is replaced only if `replace` says so.
///
/// # Errors
/// [`ConvertError::Exists`]; [`ConvertError::NotRegular`] for a folder, a pipe or a device; [`Error::Io`].
#[doc(hidden)]
pub fn new_file(out: &Path, replace: bool) -> Result<NewFile> {
    match fs::metadata(out) {
        Ok(found) if !found.is_file() => Err(ConvertError::NotRegular.at(out)),
        Ok(_) if !replace => Err(ConvertError::Exists.at(out)),
        _ => NewFile::create(out).map_err(|source| Error::Io { action: "write", path: out.into(), source }),
    }
}

/// Whether `source` is read with the files of its folder, unlike a GGUF file.
pub(crate) fn is_folder(source: &Path) -> bool {
    source.is_dir() || is_onnx(source)
}

fn is_onnx(source: &Path) -> bool {
    source.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// The GGUF file of the folder `source`, in memory, keeping every bit.
pub(crate) fn in_memory(source: &Path) -> Result<Mmap> {
    let folder = Folder::open(source)?;
    let plan = Plan::of_folder(&folder, &ConvertOptions::new())?;
    let failed = |error| Error::Io { action: "load the model", path: source.into(), source: error };
    let too_large = || failed(io::ErrorKind::OutOfMemory.into());
    let len = usize::try_from(plan.len()).map_err(|_| too_large())?;
    let mut memory = memory::large_pages(len).map_err(failed)?;
    let mut rest = &mut memory[..];
    // A slice ends where the file does.
    plan.write(|bytes| rest.write_all(bytes).map_err(failed))?;
    memory.make_read_only().map_err(failed)
}
