//! Adapters (LoRA) added to the weights of a model.

use crate::config::Config;
use crate::delta::Deltas;
use crate::error::{ConvertError, Result};
use crate::kind::is_adapter_folder;
use crate::options::ConvertOptions;
use crate::peft;
use crate::report::Converted;
use crate::to_gguf;
use shohin_core::Gguf;
use shohin_core::gguf::ReadOptions;
use shohin_files::MappedModel;
use std::path::{Path, PathBuf};

/// Writes the GGUF file `out` with the weights of `source`, a GGUF file or what [`convert`](crate::convert) reads, and what
/// `adapters` add to them, each at its scale: `W + s (alpha / r) B A`, in f64. An adapter is a GGUF file or a folder that PEFT
/// has saved. Formats are those that [`convert`](crate::convert) gives with the same options; tensors that no adapter changes
/// keep their bytes where they keep their format. `progress` is called with the bytes written so far and those of the whole file.
///
/// A scale of -1 takes an adapter out of a file that it was merged into. [`ConvertedTensor::merge`](crate::ConvertedTensor)
/// says how exact the result is.
///
/// ```no_run
/// use shohin_convert::{ConvertOptions, merge};
/// use shohin_core::Format;
///
/// let options = ConvertOptions::new().file_type(Format::F16);
/// merge("bonsai-1.7b.gguf", &[("poet.gguf".into(), 1.0)], "poet-1.7b.gguf", &options, |_, _| ())?;
/// # Ok::<(), shohin_convert::Error>(())
/// ```
///
/// # Errors
/// As for [`convert`](crate::convert); if an adapter does not fit the model; if a matrix that one changes would be 1-bit or
/// ternary, without [`ConvertOptions::requantize`].
pub fn merge(
    source: impl AsRef<Path>,
    adapters: &[(PathBuf, f32)],
    out: impl AsRef<Path>,
    options: &ConvertOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Converted> {
    let source = source.as_ref();
    let base = peft::config_of(source, options)?;
    let files = adapters.iter().map(|(path, _)| File::open(path, &base)).collect::<Result<Vec<_>>>()?;
    let mut deltas = Deltas::default();
    let ggufs = files.iter().map(File::gguf).collect::<Result<Vec<_>>>()?;
    for ((path, scale), gguf) in adapters.iter().zip(&ggufs) {
        if !scale.is_finite() {
            let (key, found) = ("the scale of an adapter".into(), scale.to_string());
            return Err(ConvertError::Value { key, found, expected: "a finite number" }.at(path));
        }
        deltas.add(path, gguf, *scale, &base)?;
    }
    to_gguf::write(source, out.as_ref(), options, &deltas, &mut progress)
}

/// An adapter's file, or the one that a folder becomes.
enum File<'p> {
    Mapped(MappedModel),
    Folder(&'p Path, Vec<u8>),
}

impl<'p> File<'p> {
    fn open(path: &'p Path, base: &Config) -> Result<Self> {
        Ok(match is_adapter_folder(path) {
            true => File::Folder(path, peft::read(path, base)?.0),
            false => File::Mapped(MappedModel::open(path)?),
        })
    }

    fn gguf(&self) -> Result<Gguf<'_>> {
        match self {
            File::Mapped(file) => Ok(file.gguf(&ReadOptions::default())?),
            File::Folder(path, bytes) => {
                Gguf::parse(bytes).map_err(|error| ConvertError::from(error).at(path))
            }
        }
    }
}
