//! A model's file, or files: memory-mapped, so that nothing is read before it is used, or copied for the CPU.

use crate::error::{Error, FileError, Result};
use crate::reader::FileReader;
use crate::shard::ShardBytes;
use shohin_core::cpu::{self, Expansion, Isa};
use shohin_core::gguf::ReadOptions;
use shohin_core::paging::PagedFile;
use shohin_core::{Gguf, Pool};
use shohin_files::{MappedFile, MappedModel, Mmap, failed, large_pages, parse};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The built-in model.
#[cfg(feature = "built-in")]
static BUILT_IN: &[u8] = include_bytes!("../data/sprout.gguf");

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
    Static(&'static [u8]),
    Mapped { path: PathBuf, map: Arc<Mmap>, file: Arc<Mutex<File>> },
    InMemory(Arc<Mmap>),
}

impl Shard {
    fn mapped_file(file: MappedFile) -> Shard {
        let MappedFile { path, map, file } = file;
        let name = path.display().to_string();
        Shard { name, bytes: Bytes::Mapped { path, map: Arc::new(map), file: Arc::new(Mutex::new(file)) } }
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Static(bytes) => bytes,
            Bytes::Mapped { map, .. } => map,
            Bytes::InMemory(map) => map,
        }
    }

    fn error(&self, source: shohin_core::Error) -> Error {
        FileError::Model { name: self.name.clone(), source }.into()
    }

    /// Bytes up to the end of the last tensor, and the memory to expand base-3 matrices, if there are any.
    fn needs(&self, options: &ReadOptions) -> Result<(usize, Option<Expansion>)> {
        let bytes = self.bytes();
        let needs = Gguf::parse_with(bytes, options).and_then(|gguf| {
            let used =
                usize::try_from(gguf.header().data_end()).map_or(bytes.len(), |end| end.min(bytes.len()));
            Ok((used, cpu::expansion(&gguf, used)?))
        });
        needs.map_err(|e| self.error(e))
    }

    /// The mapped bytes.
    fn mapped(&self) -> ShardBytes {
        match &self.bytes {
            Bytes::Static(bytes) => ShardBytes::fixed(bytes),
            Bytes::Mapped { map, .. } => ShardBytes::mapped(Arc::clone(map)),
            Bytes::InMemory(map) => ShardBytes::mapped(Arc::clone(map)),
        }
    }

    /// A writable copy, with 2-bit codes for base-3 digits unless `compact`; the mapped bytes if there is no
    /// memory for one.
    fn copy(&self, options: &ReadOptions, compact: bool, isa: Isa, pool: &dyn Pool) -> Result<ShardBytes> {
        let (stored, expansion) = self.needs(options)?;
        let expansion = expansion.filter(|_| !compact);
        let room = expansion.map_or(stored, |expansion| expansion.room);
        let Ok(mut memory) = large_pages(room) else {
            // Slower, but the mapped file needs no additional memory.
            return Ok(self.mapped());
        };
        let end = &mut memory[room - stored..];
        match &self.bytes {
            Bytes::Static(bytes) => end.copy_from_slice(&bytes[..stored]),
            Bytes::Mapped { path, file, .. } => {
                // Read, not copied from the mapping: that would load the model into memory twice.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.rewind().and_then(|()| file.read_exact(end));
                read.map_err(failed("read the model", path))?;
            }
            Bytes::InMemory(map) => end.copy_from_slice(&map[..stored]),
        }
        let mut len = stored;
        if expansion.is_some() {
            len = cpu::expand_file(&mut memory, stored, options, isa, pool).map_err(|e| self.error(e))?;
        }
        Ok(ShardBytes::copied(memory, len))
    }
}

impl ModelFile {
    /// The model that is built into this library.
    #[cfg(feature = "built-in")]
    pub fn built_in() -> Self {
        ModelFile::from_static("built-in model", BUILT_IN)
    }

    /// A GGUF file's bytes, which are not copied. Errors call it `name`. Contents are not checked.
    pub fn from_static(name: impl Into<String>, bytes: &'static [u8]) -> Self {
        let name = name.into();
        ModelFile { name: name.clone(), shards: Arc::new([Shard { name, bytes: Bytes::Static(bytes) }]) }
    }

    /// A copy of a GGUF file's bytes. Errors call it `name`.
    ///
    /// # Errors
    /// If there are no bytes, or there is no memory for the copy. Contents are not checked.
    pub fn from_bytes(name: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let name = name.into();
        if bytes.is_empty() {
            let source = shohin_core::Error::Truncated { what: "the model", at: 0, need: 4, have: 0 };
            return Err(FileError::Model { name, source }.into());
        }
        let need = shohin_core::Error::Memory { need: bytes.len() as u64, have: 0 };
        let mut memory = large_pages(bytes.len()).map_err(|_| need)?;
        memory[..bytes.len()].copy_from_slice(bytes);
        let map = memory.make_read_only().map_err(|_| need)?;
        let bytes = Bytes::InMemory(Arc::new(map));
        Ok(ModelFile { name: name.clone(), shards: Arc::new([Shard { name, bytes }]) })
    }

    /// Maps the file, or all files of a model in parts, given any of them (`name-00001-of-00003.gguf`). With the
    /// feature `convert`, a Hugging Face folder, or an ONNX file in one, is converted in memory.
    ///
    /// # Errors
    /// If one cannot be opened or is not a regular file. Contents are not checked, except of a folder.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        #[cfg(feature = "convert")]
        return Self::open_id36(path, shohin_convert::Id36::Auto);
        #[cfg(not(feature = "convert"))]
        Self::open_mapped(path)
    }

    /// [`ModelFile::open`], with the layout of tensors of type 36 (I2_S), which are converted in memory.
    ///
    /// # Errors
    /// As [`ModelFile::open`]; if a tensor of type 36 is not ternary.
    #[cfg(feature = "convert")]
    pub fn open_id36(path: impl AsRef<Path>, id36: shohin_convert::Id36) -> Result<Self> {
        let path = path.as_ref();
        let in_memory = |map| {
            let (name, bytes) = (path.display().to_string(), Bytes::InMemory(Arc::new(map)));
            ModelFile { name: name.clone(), shards: Arc::new([Shard { name, bytes }]) }
        };
        if shohin_convert::is_folder(path) {
            return Ok(in_memory(shohin_convert::in_memory(path)?));
        }
        let model = MappedModel::open(path)?;
        if let Some(map) = shohin_convert::in_memory_gguf(path, &model, id36)? {
            return Ok(in_memory(map));
        }
        Ok(Self::mapped_model(model))
    }

    #[cfg(not(feature = "convert"))]
    fn open_mapped(path: &Path) -> Result<Self> {
        Ok(Self::mapped_model(MappedModel::open(path)?))
    }

    fn mapped_model(MappedModel { name, files }: MappedModel) -> Self {
        ModelFile { name, shards: files.into_iter().map(Shard::mapped_file).collect() }
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The contents, validated.
    ///
    /// # Errors
    /// [`FileError::Model`] with the name of the invalid part.
    pub fn gguf(&self, options: &ReadOptions) -> Result<Gguf<'_>> {
        let parts: Vec<&[u8]> = self.shards.iter().map(Shard::bytes).collect();
        Ok(parse(&parts, options, |part| self.part_name(part).clone())?)
    }

    /// The name of a part in messages.
    fn part_name(&self, part: usize) -> &String {
        self.shards.get(part).map_or(&self.name, |shard| &shard.name)
    }

    /// Options to read single parts, or a file without what follows its last tensor: the layout of id 42 may be
    /// determined by another part, or by the length of the file.
    pub(crate) fn shard_options(&self, options: &ReadOptions) -> Result<ReadOptions> {
        let id42 = self.gguf(options)?.header().id42(options.id42);
        Ok(ReadOptions { id42, ..*options })
    }

    /// The bytes of each part.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.shards.iter().map(Shard::bytes)
    }

    /// The paths of the files, and what the system says of those that are open: others may have taken their
    /// names since. None for bytes in memory.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, io::Result<Metadata>)> {
        self.shards.iter().filter_map(|shard| match &shard.bytes {
            Bytes::Static(_) => None,
            Bytes::InMemory(_) => None,
            Bytes::Mapped { path, file, .. } => {
                Some((path.as_path(), file.lock().unwrap_or_else(PoisonError::into_inner).metadata()))
            }
        })
    }

    /// The mapped bytes of each part.
    pub(crate) fn mapped(&self) -> Vec<ShardBytes> {
        self.shards.iter().map(Shard::mapped).collect()
    }

    /// Writable copies of the parts, with 2-bit codes for base-3 digits unless `compact`. A file for which there is no memory
    /// stays mapped.
    pub(crate) fn copied(
        &self,
        options: &ReadOptions,
        compact: bool,
        isa: Isa,
        pool: &dyn Pool,
    ) -> Result<Vec<ShardBytes>> {
        self.shards.iter().map(|shard| shard.copy(options, compact, isa, pool)).collect()
    }

    /// The bytes of a single file on disk, read through a window of `window` bytes.
    pub(crate) fn paged(&self, window: usize) -> Result<ShardBytes> {
        let [Shard { bytes: Bytes::Mapped { map, file, .. }, .. }] = &*self.shards else {
            let expected = "a model in one file on disk, or none".into();
            return Err(Error::Option { name: "weights-window", found: window.to_string(), expected });
        };
        let reader = FileReader { file: Arc::clone(file), len: map.len() as u64 };
        Ok(ShardBytes::paged(PagedFile::new(reader, window)))
    }

    /// An error of one part.
    pub(crate) fn error(&self, part: usize, source: shohin_core::Error) -> Error {
        let name = match self.shards.len() {
            1 => &self.name,
            _ => self.part_name(part),
        };
        FileError::Model { name: name.clone(), source }.into()
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
    pub(crate) fn resident_len(&self, options: &ReadOptions, expands: bool) -> Result<usize> {
        let options = self.shard_options(options)?;
        let resident = |shard: &Shard| {
            let (used, expansion) = shard.needs(&options)?;
            Ok(expansion.filter(|_| expands).map_or(used, |expansion| expansion.len))
        };
        self.shards.iter().map(resident).sum()
    }
}
