//! A directory of repacked models. The first load of a model repacks its weights and writes them there; the
//! next one maps them, which takes a fraction of the time, and programs that run the same model share the
//! memory.
//!
//! A cache file belongs to one model and one way to repack it. It starts with, little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `SHOHINWC` |
//! | 4 | CRC-32 of the rest of the header |
//! | 4 | length of the rest |
//! | 4, K | length of the key, and the key: which files the weights are from, and how they were repacked |
//! | 4, 8 F | number of the model's files, and their lengths |
//! | 4 B | CRC-32 of each megabyte of each file |
//!
//! The model's files follow as they are in memory, each at a multiple of 4096 bytes.

use crate::error::Result;
use crate::file::ModelFile;
use crate::shard::{Cached, ShardBytes};
use crate::threads::ThreadPool;
use shohin_core::Pool;
use shohin_core::bytes::Cursor;
use shohin_core::cpu::repack::specimen;
use shohin_core::cpu::{CpuWeights, Isa};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::ModelBytes;
use shohin_files::{advise_large_pages, failed, map_file};
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"SHOHINWC";

/// Bytes of weights with a checksum of their own.
const BLOCK: usize = 1 << 20;

/// Alignment of weights in a cache file.
const PAGE: usize = 4096;

/// Bytes of the smallest model that is kept unless set: repacking it takes some hundredths of a second.
const SMALLEST: usize = 16 << 20;

/// Bytes of all files in a cache directory unless set.
const LIMIT: u64 = 16 << 30;

const EXTENSION: &str = "weights";

/// Prefix of files that are being written.
const UNFINISHED: &str = "unfinished-";

/// Unfinished files of this age belong to programs that were terminated.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A directory of repacked models; see [`Builder::weight_cache`](crate::Builder::weight_cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightCache {
    dir: PathBuf,
    limit: u64,
    smallest: usize,
}

impl WeightCache {
    /// A cache in this directory, which is made when it is needed. It must not contain other files with the
    /// extension `weights`.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        WeightCache { dir: dir.into(), limit: LIMIT, smallest: SMALLEST }
    }

    /// The cache of the user who runs this program, such as `~/.cache/shohin`; `None` if the system has no
    /// such directory.
    pub fn of_user() -> Option<Self> {
        dirs::cache_dir().map(|dir| WeightCache::in_dir(dir.join("shohin")))
    }

    /// Where it is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes of all cached models, 16 GiB unless set. Those that were not used for the longest time are
    /// deleted.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Bytes of the smallest model that is kept, 16 MiB unless set: smaller ones are repacked within hundredths
    /// of a second.
    #[must_use]
    pub fn smallest(mut self, bytes: usize) -> Self {
        self.smallest = bytes;
        self
    }

    /// The place of a model that is repacked in this way; `None` if it is too small, or is not in files.
    pub(crate) fn entry(
        &self,
        model: &ModelFile,
        options: &ReadOptions,
        compact: bool,
        isa: Isa,
    ) -> Option<Entry> {
        if model.file_len() < self.smallest {
            return None;
        }
        let mut key = format!("shohin {}\n", env!("CARGO_PKG_VERSION"));
        let specimen = crc32fast::hash(&specimen(isa).ok()?);
        let _ = writeln!(key, "layout {specimen:08x}, compact {compact}, id 42 {:?}", options.id42);
        let mut name = crc32fast::Hasher::new();
        name.update(key.as_bytes());
        let mut paths = Vec::new();
        for (file, meta) in model.files() {
            let path = fs::canonicalize(file).ok()?;
            let _ = writeln!(key, "{}", path.display());
            key.push_str(&version(&meta.ok()?)?);
            name.update(path.as_os_str().as_encoded_bytes());
            paths.push(path);
        }
        let stem = paths.first()?.file_stem()?.to_string_lossy().into_owned();
        let file = format!("{stem}-{:08x}.{EXTENSION}", name.finalize());
        Some(Entry { cache: self.clone(), path: self.dir.join(file), key: key.into_bytes() })
    }

    /// Deletes the files that were not used for the longest time until no more than the limit is left, and
    /// what terminated programs left behind.
    fn trim(&self) -> io::Result<()> {
        let mut files = Vec::new();
        let now = SystemTime::now();
        for file in fs::read_dir(&self.dir)?.flatten() {
            let (Ok(meta), path) = (file.metadata(), file.path()) else { continue };
            let used = meta.modified().unwrap_or(now);
            let unfinished = file.file_name().to_string_lossy().starts_with(UNFINISHED);
            if unfinished && now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(path);
            } else if path.extension().is_some_and(|extension| extension == EXTENSION) {
                files.push((used, meta.len(), path));
            }
        }
        files.sort_by_key(|(used, ..)| Reverse(*used));
        let mut total = 0u64;
        for (_, len, path) in files {
            total = total.saturating_add(len);
            if total > self.limit {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }
}

/// What changes whenever a file does.
fn version(meta: &Metadata) -> Option<String> {
    let modified = meta.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let mut text = format!("{} bytes, modified {}", meta.len(), modified.as_nanos());
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Unlike the time of modification, no program can set that of the change.
        let (changed, nanos) = (meta.ctime(), meta.ctime_nsec());
        let _ = write!(text, ", changed {changed}.{nanos:09}, inode {}:{}", meta.dev(), meta.ino());
    }
    text.push('\n');
    Some(text)
}

/// The place of a repacked model in a cache.
#[derive(Debug)]
pub(crate) struct Entry {
    cache: WeightCache,
    path: PathBuf,
    key: Vec<u8>,
}

impl Entry {
    /// The files of the model, if the cache has them and they are intact. The check is spread over `pool`.
    pub(crate) fn open(&self, pool: &ThreadPool) -> Option<Vec<Cached>> {
        let file = File::open(&self.path).ok()?;
        // No program changes a cache file once it has its name.
        let map = map_file(&file).ok()?;
        advise_large_pages(&map);
        let (ranges, sums) = self.read_header(&map)?;
        let blocks = ranges.iter().flat_map(|range| map[range.clone()].chunks(BLOCK));
        let blocks: Vec<(&[u8], u32)> = blocks.zip(sums).collect();
        let damaged = AtomicBool::new(false);
        pool.run(blocks.len(), &|i| {
            let (block, sum) = blocks[i];
            if crc32fast::hash(block) != sum {
                damaged.store(true, Ordering::Relaxed);
            }
        });
        drop(blocks);
        if damaged.into_inner() {
            return None;
        }
        // Marks it as used. Where that is not allowed, it is only deleted earlier.
        let _ = file.set_modified(SystemTime::now());
        let map = Arc::new(map);
        Some(ranges.into_iter().map(|range| Cached { map: Arc::clone(&map), range }).collect())
    }

    /// The places of the model's files in a cache file, and the checksums of their blocks; `None` if it is not
    /// one of this model.
    fn read_header(&self, bytes: &[u8]) -> Option<(Vec<Range<usize>>, Vec<u32>)> {
        let mut header = Cursor::new(bytes);
        if header.take(MAGIC.len() as u64, "magic number").ok()? != MAGIC {
            return None;
        }
        let sum = header.u32("checksum").ok()?;
        let len = header.u32("length of the header").ok()?;
        let rest = header.take(len.into(), "header").ok()?;
        let mut at = (header.position() as usize).next_multiple_of(PAGE);
        if crc32fast::hash(rest) != sum {
            return None;
        }
        let mut header = Cursor::new(rest);
        let len = header.u32("length of the key").ok()?;
        if header.take(len.into(), "key").ok()? != self.key {
            return None;
        }
        let (mut ranges, mut blocks) = (Vec::new(), 0);
        for _ in 0..header.u32("number of files").ok()? {
            let len = usize::try_from(header.u64("length of a file").ok()?).ok()?;
            let end = at.checked_add(len).filter(|end| *end <= bytes.len())?;
            ranges.push(at..end);
            blocks += len.div_ceil(BLOCK);
            at = end.next_multiple_of(PAGE);
        }
        let sums = header.take(4 * blocks as u64, "checksums").ok()?;
        Some((ranges, sums.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect()))
    }

    /// Writes the files of a model. Under the final name there is always a complete file.
    fn write(&self, files: &[&[u8]]) -> io::Result<()> {
        let total: u64 = files.iter().map(|file| file.len() as u64).sum();
        if total > self.cache.limit {
            return Ok(());
        }
        fs::create_dir_all(&self.cache.dir)?;
        let mut rest = Vec::new();
        rest.extend((self.key.len() as u32).to_le_bytes());
        rest.extend(&self.key);
        rest.extend((files.len() as u32).to_le_bytes());
        files.iter().for_each(|file| rest.extend((file.len() as u64).to_le_bytes()));
        for block in files.iter().flat_map(|file| file.chunks(BLOCK)) {
            rest.extend(crc32fast::hash(block).to_le_bytes());
        }
        let mut head = MAGIC.to_vec();
        head.extend(crc32fast::hash(&rest).to_le_bytes());
        head.extend((rest.len() as u32).to_le_bytes());
        head.extend(rest);
        let mut temporary = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.cache.dir)?;
        for part in [&head[..]].iter().chain(files) {
            temporary.write_all(part)?;
            temporary.write_all(&[0; PAGE][..part.len().next_multiple_of(PAGE) - part.len()])?;
        }
        temporary.persist(&self.path)?;
        self.cache.trim()
    }

    /// Starts to write `weights`, which were repacked for this place: those of the model's `files` files, without adapters.
    pub(crate) fn start_writing(self, weights: &Arc<CpuWeights<ShardBytes>>, files: usize) -> CacheWriter {
        let weights = Arc::clone(weights);
        let path = self.path.clone();
        let write = move || {
            let parts = weights.model().weights().parts();
            let parts = parts.get(..files).unwrap_or(parts);
            // Files that did not fit into memory are mapped, and as they were.
            if !weights.is_repacked() || parts.iter().any(|part| !part.is_copy()) {
                return Ok(());
            }
            let files: Vec<&[u8]> = parts.iter().map(ModelBytes::bytes).collect();
            self.write(&files)
        };
        let thread = thread::Builder::new().name("shohin-cache".into()).spawn(write);
        CacheWriter { path, thread: Mutex::new(Some(thread)) }
    }
}

/// A thread that writes a cache file.
#[derive(Debug)]
pub(crate) struct CacheWriter {
    path: PathBuf,
    /// Or the reason why there is none; nothing once it has been waited for.
    thread: Mutex<Option<io::Result<JoinHandle<io::Result<()>>>>>,
}

impl CacheWriter {
    /// Waits until the file is written.
    pub(crate) fn finish(&self) -> Result<()> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stopped = |_| Err(io::Error::other("the thread that writes it stopped"));
        let written = match thread {
            Some(thread) => thread.and_then(|thread| thread.join().unwrap_or_else(stopped)),
            None => Ok(()),
        };
        Ok(written.map_err(failed("keep the repacked weights in", &self.path))?)
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        // Whoever wants the error has called `finish`.
        let _ = self.finish();
    }
}
