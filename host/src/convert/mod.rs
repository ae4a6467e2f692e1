//! Converting a Hugging Face folder (`config.json`, `tokenizer.json` and safetensors, also as MLX packs them) to GGUF.
//!
//! Weights are mapped, converted a few rows at a time on all cores and written as they are ready, so that memory does
//! not depend on the size of the model. The file appears under its name when it is complete.

mod config;
mod error;
mod folder;
mod json;
mod tensor;
mod tokenizer;

use crate::error::{Error, Result};
use crate::memory;
use config::Config;
use folder::Folder;
use memmap2::Mmap;
use shohin_core::gguf::{GgufBody, GgufStream, GgufWriter, ReadOptions};
use shohin_core::{Format, ModelConfig, Tokenizer};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::thread;
use tensor::Tensor;

pub use error::ConvertError;

/// What to write.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The format of matrices; the one that keeps every bit of the source unless set. Norms are always F32.
    pub format: Option<Format>,
    /// Whether a file of that name is replaced.
    pub replace: bool,
}

impl ConvertOptions {
    /// Options that keep every bit of the source, and every file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`ConvertOptions::format`](#structfield.format).
    pub fn format(mut self, format: Option<Format>) -> Self {
        self.format = format;
        self
    }

    /// Sets [`ConvertOptions::replace`](#structfield.replace).
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// Tensors.
    pub tensors: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Converts the Hugging Face folder `source` to the GGUF file `out`. `progress` is called with the bytes written so far
/// and those of the whole file.
///
/// Tokenizer, chat template and metadata come along, under the names that llama.cpp reads.
///
/// ```no_run
/// use shohin::convert::{ConvertOptions, convert};
/// convert("Qwen3-0.6B", "qwen3-0.6b.gguf", &ConvertOptions::new(), |_, _| ())?;
/// # Ok::<(), shohin::Error>(())
/// ```
///
/// # Errors
/// [`Error::Convert`] if the folder is not a model of an architecture that this library runs, or a part of it is damaged;
/// [`Error::Io`]. Nothing is left under the name `out` then, and a file that was there is unchanged.
pub fn convert(
    source: impl AsRef<Path>,
    out: impl AsRef<Path>,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Converted> {
    let (source, out) = (source.as_ref(), out.as_ref());
    if !options.replace && out.exists() {
        return Err(ConvertError::Exists.at(out));
    }
    let folder = Folder::open(source)?;
    let plan = Plan::new(&folder, options.format)?;
    let failed = |source| Error::Io { action: "write", path: out.into(), source };
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = temporary_file(directory).map_err(failed)?;
    let mut file = BufWriter::with_capacity(1 << 20, temporary.as_file_mut());
    let whole = plan.len();
    let mut written = 0;
    plan.write(|bytes| {
        file.write_all(bytes).map_err(failed)?;
        written += bytes.len() as u64;
        progress(written, whole);
        Ok(())
    })?;
    file.flush().map_err(failed)?;
    drop(file);
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(out).map_err(|error| failed(error.error))?;
    Ok(Converted { tensors: plan.tensors.len(), bytes: written })
}

/// The GGUF file of the folder `source`, in memory, keeping every bit.
pub(crate) fn in_memory(source: &Path) -> Result<Mmap> {
    let folder = Folder::open(source)?;
    let plan = Plan::new(&folder, None)?;
    let failed = |error| Error::Io { action: "load the model", path: source.into(), source: error };
    let too_large = || failed(io::ErrorKind::OutOfMemory.into());
    let len = usize::try_from(plan.len()).map_err(|_| too_large())?;
    let mut memory = memory::large_pages(len).map_err(failed)?;
    let mut rest = &mut memory[..];
    // A slice ends where the file does.
    plan.write(|bytes| rest.write_all(bytes).map_err(failed))?;
    memory.make_read_only().map_err(failed)
}

/// An unfinished file, removed if it is not given a name; like other new files, others may read it.
fn temporary_file(directory: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".shohin-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(directory)
}

/// A GGUF file to be.
struct Plan<'f> {
    folder: &'f Folder,
    header: Vec<u8>,
    body: GgufBody,
    /// In the order of the file.
    tensors: Vec<(Tensor<'f>, Format)>,
}

impl<'f> Plan<'f> {
    fn new(folder: &'f Folder, format: Option<Format>) -> Result<Self> {
        let mut w = GgufWriter::new();
        let config = folder.config().at(Config::read(&folder.config().root, &mut w))?;
        tokenizer::write(folder, config.vocab, &mut w)?;
        let stored = folder.tensors()?;
        let (header, body, tensors) = folder.at(declare(folder, &config, &stored, format, &mut w))?;
        Ok(Plan { folder, header, body, tensors })
    }

    /// Bytes of the file.
    fn len(&self) -> u64 {
        self.header.len() as u64 + self.body.len()
    }

    /// Passes the bytes of the file to `out`, piece by piece.
    fn write(&self, mut out: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        out(&self.header)?;
        let mut body = self.body.clone();
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let mut piece = Vec::new();
        for (tensor, format) in &self.tensors {
            let row_bytes = format.row_bytes(tensor.cols).unwrap_or(0);
            // Some megabytes at once, and as many rows for each worker.
            let share = ((1 << 20) / tensor.cols.max(1)).max(1);
            for first in (0..tensor.rows).step_by(share * workers) {
                let rows = (share * workers).min(tensor.rows - first);
                piece.resize(rows * row_bytes, 0);
                let shares = piece.chunks_mut((share * row_bytes).max(1)).enumerate();
                let converted: Result<(), ConvertError> = thread::scope(|scope| {
                    let work = shares
                        .map(|(i, out)| scope.spawn(move || tensor.write(first + i * share, *format, out)));
                    let workers: Vec<_> = work.collect();
                    workers.into_iter().try_for_each(|worker| {
                        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    })
                });
                self.folder.at(converted)?;
                body.push(&piece, |bytes| out(bytes))?;
            }
        }
        self.folder.at(body.finish().map_err(ConvertError::from))
    }
}

type Declared<'f> = (Vec<u8>, GgufBody, Vec<(Tensor<'f>, Format)>);

/// Declares all tensors in the format of matrices, or in that which keeps every bit.
fn declare<'f>(
    folder: &Folder,
    config: &Config,
    stored: &std::collections::BTreeMap<String, folder::Stored<'f>>,
    format: Option<Format>,
    w: &mut GgufWriter,
) -> Result<Declared<'f>, ConvertError> {
    let mut tensors = Vec::new();
    for tensor in tensor::tensors(config, stored)? {
        let format = match format {
            _ if tensor.vector => Format::F32,
            Some(format) if !tensor.cols.is_multiple_of(format.block()) => {
                let problem = format!(
                    "has rows of {} weights, but {} has blocks of {}",
                    tensor.cols,
                    format.name(),
                    format.block()
                );
                return Err(ConvertError::tensor(&tensor.name, problem));
            }
            Some(format) => format,
            None => tensor.exact()?,
        };
        tensors.push((tensor, format));
    }
    if let Some(embedding) = tensors.iter().find(|(tensor, _)| tensor.name == "token_embd.weight")
        && (embedding.0.rows, embedding.0.cols) != (config.vocab as usize, config.hidden as usize)
    {
        let problem = format!(
            "has the shape [{}, {}], but vocab_size and hidden_size are {} and {}",
            embedding.0.rows, embedding.0.cols, config.vocab, config.hidden
        );
        return Err(ConvertError::tensor("model.embed_tokens.weight", problem));
    }
    let name = folder.path().file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy());
    w.set("general.name", &*name)?;
    w.set("general.quantization_version", 2u32)?;
    for (tensor, format) in &tensors {
        let dims = [tensor.cols as u64, tensor.rows as u64];
        w.tensor(&tensor.name, if tensor.vector { &dims[..1] } else { &dims }, *format)?;
    }
    let header = w.header()?;
    let body = w.body();
    check(&header, header.len() as u64 + body.len())?;
    Ok((header, body, tensors))
}

/// Checks that this library would load the file of `len` bytes with this header: nothing has been written yet.
fn check(header: &[u8], len: u64) -> Result<(), ConvertError> {
    let mut stream = GgufStream::new(len, ReadOptions::default());
    stream.push(header, &mut |_| Ok(()))?;
    let incomplete = shohin_core::Error::Length { what: "header", expected: len, found: header.len() as u64 };
    let header = stream.header()?.ok_or(incomplete)?;
    ModelConfig::from_header(&header)?.program().bind(&header)?;
    Tokenizer::from_metadata(header.metadata())?;
    Ok(())
}
