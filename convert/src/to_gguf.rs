//! A model as a GGUF file.

use crate::delta::Deltas;
use crate::error::{ConvertError, Result};
use crate::folder::Folder;
use crate::kind::is_folder;
use crate::options::ConvertOptions;
use crate::output::new_file;
use crate::plan::Plan;
use crate::report::Converted;
use shohin_files::new_file::NewFile;
use shohin_files::{MappedModel, failed, shard_names};
use std::io::Write;
use std::path::Path;

/// Converts `source`, a Hugging Face folder, an ONNX file in one or a GGUF file, to the GGUF file `out`. `progress` is called with the bytes
/// written so far and those of the whole file.
///
/// Tokenizer, chat template and metadata come along, under the names that llama.cpp reads.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, Mix, convert};
///
/// convert("Qwen3-0.6B", "qwen3-0.6b.gguf", &ConvertOptions::new(), |_, _| ())?;
/// let options = ConvertOptions::new().file_type(Mix::Q4KM);
/// convert("qwen3-0.6b.gguf", "qwen3-0.6b-q4_k_m.gguf", &options, |_, _| ())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// [`Error::Convert`](crate::Error::Convert) or [`FileError::Model`](crate::FileError::Model) if the source is not a model of an architecture that this library runs, or a
/// part of it is damaged; [`FileError::Io`](crate::FileError::Io). Nothing is left under the name `out` then, and a file that was there is
/// unchanged.
pub fn convert(
    source: impl AsRef<Path>,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Converted> {
    write(source.as_ref(), out.as_ref(), options, &Deltas::default(), &mut progress)
}

/// [`convert`], with what is added to the weights.
pub(crate) fn write(
    source: &Path,
    out: &Path,
    options: &ConvertOptions,
    deltas: &Deltas<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    // After the source was opened: whoever is told to replace a file can do so.
    let create = || new_at(out, options);
    if is_folder(source) {
        let folder = Folder::open(source)?;
        let new = create()?;
        return save(&Plan::of_folder(&folder, options, deltas)?, out, new, progress);
    }
    let file = MappedModel::open(source)?;
    let gguf = file.gguf(&options.read_options())?;
    let new = create()?;
    save(&Plan::of_gguf(source, &gguf, options, deltas)?, out, new, progress)
}

/// Whether a model is written to `out` as a GGUF file, not as a folder.
pub(crate) fn is_file(out: &Path) -> bool {
    out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Writes the file that `plan` describes, if it may be written.
pub(crate) fn save_new(
    plan: &Plan<'_>,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let new = new_at(out, options)?;
    save(plan, out, new, progress)
}

fn new_at(out: &Path, options: &ConvertOptions) -> Result<NewFile> {
    match out.file_name().and_then(|name| shard_names(name.to_str()?)) {
        Some(_) => Err(ConvertError::NameOfPart.at(out)),
        None => new_file(out, options.replace),
    }
}

/// Writes the file that `plan` describes.
fn save(
    plan: &Plan<'_>,
    out: &Path,
    mut file: NewFile,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let done = fill(plan, out, &mut file, progress)?;
    file.finish().map_err(failed("write", out))?;
    Ok(done)
}

/// Writes what `plan` describes to `file`, which becomes `out`.
pub(crate) fn fill(
    plan: &Plan<'_>,
    out: &Path,
    file: &mut NewFile,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let failed = failed("write", out);
    let whole = plan.len();
    let mut written = 0;
    let tensors = plan.write(|bytes| {
        file.write_all(bytes).map_err(failed)?;
        written += bytes.len() as u64;
        progress(written, whole);
        Ok(())
    })?;
    Ok(Converted { tensors, bytes: written })
}
