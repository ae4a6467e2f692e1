//! A model's file, or files: memory-mapped, so that nothing is read before it is used, or read and repacked
//! for the CPU.

use crate::error::{Error, Result};
use crate::memory;
use memmap2::{Mmap, MmapMut};
use shohin_core::cpu::repack::repacks;
use shohin_core::cpu::{self, CpuWeights, Expansion, Isa};
use shohin_core::gguf::{MAX_PARTS, ReadOptions};
use shohin_core::model::ModelBytes;
use shohin_core::{BonsaiModel, Format, Gguf, ModelConfig, Pool};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The built-in model.
#[cfg(feature = "built-in")]
static BUILT_IN: &[u8] = include_bytes!("../../models/sprout.gguf");

/// A model's file, or all files of a model in parts, memory-mapped.
#[derive(Clone, Debug)]
pub struct ModelFile {
    name: String,
    /// At least one.
    shards: Arc<[Shard]>,
}

#[derive(Debug)]
struct Shard {
    /// The name in messages.
    name: String,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    #[cfg(feature = "built-in")]
    BuiltIn,
    Mapped(Arc<Mmap>, Mutex<File>),
}

/// The bytes of a file that hold weights: the mapped file, or a writable copy.
#[derive(Debug)]
pub struct ShardBytes(Held);

#[derive(Debug)]
enum Held {
    #[cfg(feature = "built-in")]
    BuiltIn,
    Mapped(Arc<Mmap>),
    /// The first `len` bytes are the file, possibly expanded.
    Copy {
        memory: MmapMut,
        len: usize,
    },
}

impl ModelBytes for ShardBytes {
    fn bytes(&self) -> &[u8] {
        match &self.0 {
            #[cfg(feature = "built-in")]
            Held::BuiltIn => BUILT_IN,
            Held::Mapped(map) => map,
            Held::Copy { memory, len } => &memory[..*len],
        }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            #[cfg(feature = "built-in")]
            Held::BuiltIn => None,
            Held::Mapped(_) => None,
            Held::Copy { memory, len } => Some(&mut memory[..*len]),
        }
    }
}

/// If `path` is named like a part of a model (`name-00001-of-00003.gguf`): the paths of all parts, first to
/// last.
fn shard_paths(path: &Path) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?;
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = stem.rsplit_once('-')?;
    let number = |digits: &str| {
        let digits = digits.as_bytes().iter().all(u8::is_ascii_digit).then_some(digits)?;
        (digits.len() == 5).then(|| digits.parse::<u32>().ok())?
    };
    let (no, count) = (number(no)?, number(count)?);
    let path = |i| path.with_file_name(format!("{stem}-{i:05}-of-{count:05}.gguf"));
    (1..=count).contains(&no).then(|| (1..=count).map(path).collect())
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { action, path: path.to_path_buf(), source }
}

impl Shard {
    /// Maps the file: nothing is read until it is used, and the system shares it between programs.
    #[allow(unsafe_code)]
    fn open(path: &Path) -> Result<Shard> {
        let url = path.to_str().filter(|path| path.starts_with("https://") || path.starts_with("http://"));
        if let Some(url) = url {
            return Err(Error::Address { url: url.into() });
        }
        let file = File::open(path).map_err(failed("open the model", path))?;
        let meta = file.metadata().map_err(failed("open the model", path))?;
        let refused = |problem| Err(Error::NotAFile { path: path.to_path_buf(), problem });
        if meta.is_dir() {
            return refused("is a directory, expected a GGUF file");
        }
        if !meta.is_file() {
            return refused("is a pipe or a device, but a model must be a regular file");
        }
        if meta.len() == 0 {
            return refused("is empty, expected a GGUF file");
        }
        // SAFETY: the mapping is read-only. As with every mapped file, a program that truncates the file
        // while it is mapped terminates this one; one that changes its bytes changes the model's weights.
        let map = unsafe { Mmap::map(&file) }.map_err(failed("map the model", path))?;
        Ok(Shard { name: path.display().to_string(), bytes: Bytes::Mapped(Arc::new(map), Mutex::new(file)) })
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            #[cfg(feature = "built-in")]
            Bytes::BuiltIn => BUILT_IN,
            Bytes::Mapped(map, _) => map,
        }
    }

    fn error(&self, source: shohin_core::Error) -> Error {
        Error::Model { name: self.name.clone(), source }
    }

    /// The memory to expand its base-3 matrices, if it has any.
    fn expansion(&self, options: &ReadOptions) -> Result<Option<Expansion>> {
        Gguf::parse_with(self.bytes(), options)
            .and_then(|gguf| cpu::expansion(&gguf, self.bytes().len()))
            .map_err(|e| self.error(e))
    }

    /// The mapped bytes.
    fn mapped(&self) -> ShardBytes {
        ShardBytes(match &self.bytes {
            #[cfg(feature = "built-in")]
            Bytes::BuiltIn => Held::BuiltIn,
            Bytes::Mapped(map, _) => Held::Mapped(Arc::clone(map)),
        })
    }

    /// A writable copy, with 2-bit codes for base-3 digits unless `compact`; the mapped bytes if there is no
    /// memory for one.
    fn copy(&self, options: &ReadOptions, compact: bool, isa: Isa, pool: &dyn Pool) -> Result<ShardBytes> {
        let expansion = if compact { None } else { self.expansion(options)? };
        let stored = self.bytes().len();
        let room = expansion.map_or(stored, |expansion| expansion.room);
        let Ok(mut memory) = memory::large_pages(room) else {
            // Slower, but the mapped file needs no additional memory.
            return Ok(self.mapped());
        };
        let end = &mut memory[room - stored..];
        match &self.bytes {
            #[cfg(feature = "built-in")]
            Bytes::BuiltIn => end.copy_from_slice(BUILT_IN),
            Bytes::Mapped(_, file) => {
                // Read, not copied from the mapping: that would load the model into memory twice.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.rewind().and_then(|()| file.read_exact(end));
                read.map_err(failed("read the model", Path::new(&self.name)))?;
            }
        }
        let mut len = stored;
        if expansion.is_some() {
            len = cpu::expand_file(&mut memory, stored, options, isa, pool).map_err(|e| self.error(e))?;
        }
        Ok(ShardBytes(Held::Copy { memory, len }))
    }
}

impl ModelFile {
    /// The model that is built into this library.
    #[cfg(feature = "built-in")]
    pub fn built_in() -> Self {
        let name = String::from("built-in model");
        let shards = Arc::new([Shard { name: name.clone(), bytes: Bytes::BuiltIn }]);
        ModelFile { name, shards }
    }

    /// Maps the file, or all files of a model in parts, given any of them (`name-00001-of-00003.gguf`).
    ///
    /// # Errors
    /// If one cannot be opened or is not a regular file. Contents are not checked.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let Some(paths) = shard_paths(path).filter(|paths| paths.len() > 1) else {
            return Ok(ModelFile { name, shards: Arc::new([Shard::open(path)?]) });
        };
        let count = paths.len();
        if count > MAX_PARTS {
            return Err(Error::TooManyParts { name, count });
        }
        let shards = paths.iter().map(|path| Shard::open(path)).collect::<Result<Arc<[Shard]>>>();
        let shards = shards.map_err(|source| Error::MissingPart { count, source: Box::new(source) })?;
        Ok(ModelFile { name, shards })
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The contents, validated.
    ///
    /// # Errors
    /// [`Error::Model`] with the name of the invalid part.
    pub fn gguf(&self, options: &ReadOptions) -> Result<Gguf<'_>> {
        let parts: Vec<&[u8]> = self.shards.iter().map(Shard::bytes).collect();
        Gguf::parse_parts(&parts, options).map_err(|wrong| {
            let name = self.shards.get(wrong.part).map_or(&self.name, |shard| &shard.name).clone();
            Error::Model { name, source: wrong.error }
        })
    }

    /// Options to read single parts, since the layout of id 42 may be determined by another part.
    fn shard_options(&self, options: &ReadOptions) -> Result<ReadOptions> {
        if self.shards.len() == 1 {
            return Ok(*options);
        }
        let id42 = self.gguf(options)?.header().id42(options.id42);
        Ok(ReadOptions { id42, ..*options })
    }

    /// The weights for the CPU, repacked into the layouts preferred by `isa` if `repack`; the file is not
    /// changed. Base-3 formats are then expanded to 2-bit codes unless `compact`. If memory does not suffice,
    /// the file stays mapped. `configure` may override values of the configuration.
    ///
    /// # Errors
    /// If the contents are invalid, or a file cannot be read.
    pub fn weights(
        &self,
        options: &ReadOptions,
        repack: bool,
        compact: bool,
        isa: Isa,
        pool: &dyn Pool,
        configure: impl FnOnce(ModelConfig) -> ModelConfig,
    ) -> Result<CpuWeights<ShardBytes>> {
        let repack = repack && repacks(isa);
        let mut parts: Vec<ShardBytes> = self.shards.iter().map(Shard::mapped).collect();
        let mut options = *options;
        if repack {
            // Validate before reading everything.
            let gguf = self.gguf(&options)?;
            ModelConfig::from_gguf(&gguf).map_err(|e| self.error(0, e))?;
            drop(gguf);
            options = self.shard_options(&options)?;
            for (part, shard) in parts.iter_mut().zip(&*self.shards) {
                *part = shard.copy(&options, compact, isa, pool)?;
            }
        }
        let model = BonsaiModel::load_parts(parts, &options, configure);
        let model = model.map_err(|wrong| self.error(wrong.part, wrong.error))?;
        let weights = if repack { CpuWeights::repack(model, isa, pool) } else { CpuWeights::new(model) };
        weights.map_err(|e| self.error(0, e))
    }

    fn error(&self, part: usize, source: shohin_core::Error) -> Error {
        let name = match self.shards.len() {
            1 => &self.name,
            _ => self.shards.get(part).map_or(&self.name, |shard| &shard.name),
        };
        Error::Model { name: name.clone(), source }
    }

    /// The format of most of the model's matrices in the file.
    ///
    /// # Errors
    /// If the contents are invalid.
    pub fn format(&self, options: &ReadOptions) -> Result<Option<Format>> {
        Ok(main_format(&self.gguf(options)?))
    }

    /// Bytes of all files.
    pub fn file_len(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes().len()).sum()
    }

    /// Number of files.
    pub fn parts(&self) -> usize {
        self.shards.len()
    }

    /// Bytes of the weights while the model runs; `expands` if base-3 formats are expanded to 2-bit codes.
    ///
    /// # Errors
    /// If the contents are invalid.
    pub fn resident_len(&self, options: &ReadOptions, expands: bool) -> Result<usize> {
        let options = self.shard_options(options)?;
        let resident = |shard: &Shard| {
            let expansion = if expands { shard.expansion(&options)? } else { None };
            Ok(expansion.map_or(shard.bytes().len(), |expansion| expansion.len))
        };
        self.shards.iter().map(resident).sum()
    }
}

/// The format that takes most of the bytes of a model's layers.
fn main_format(gguf: &Gguf<'_>) -> Option<Format> {
    let layers = gguf.tensors().iter().filter(|t| t.name().starts_with("blk.") && t.dims().len() > 1);
    let mut bytes: HashMap<Format, u64> = HashMap::new();
    for tensor in layers {
        *bytes.entry(tensor.format()?).or_default() += tensor.len();
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(format, _)| format)
}
