//! The bytes of a model's files while the model runs.

use crate::reader::FileReader;
use shohin_core::model::ModelBytes;
use shohin_core::paging::{PagedFile, Paging};
use shohin_files::{Mmap, MmapMut};
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a file that hold weights: the mapped file, a writable copy, one in a
/// [`WeightCache`](crate::WeightCache), or none if weights are read through a window. Clones share them.
#[derive(Clone, Debug)]
pub struct ShardBytes(Arc<Held>);

impl From<Held> for ShardBytes {
    fn from(held: Held) -> Self {
        ShardBytes(held.into())
    }
}

#[derive(Debug)]
enum Held {
    Static(&'static [u8]),
    Mapped(Arc<Mmap>),
    Copy { memory: MmapMut, len: usize },
    Cached(Cached),
    Owned(Vec<u8>),
    Paged(PagedFile<FileReader>),
}

impl ShardBytes {
    pub(crate) fn fixed(bytes: &'static [u8]) -> Self {
        Held::Static(bytes).into()
    }

    pub(crate) fn mapped(map: Arc<Mmap>) -> Self {
        Held::Mapped(map).into()
    }

    /// A copy: the first `len` bytes are the file, possibly expanded.
    pub(crate) fn copied(memory: MmapMut, len: usize) -> Self {
        Held::Copy { memory, len }.into()
    }

    /// Expanded and repacked, in a cache file.
    pub(crate) fn cached(file: Cached) -> Self {
        Held::Cached(file).into()
    }

    /// Parts of the files.
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        Held::Owned(bytes).into()
    }

    /// Weights that stay in the file and are read through a window.
    pub(crate) fn paged(file: PagedFile<FileReader>) -> Self {
        Held::Paged(file).into()
    }

    pub(crate) fn is_copy(&self) -> bool {
        matches!(*self.0, Held::Copy { .. } | Held::Owned(_))
    }

    pub(crate) fn is_cached(&self) -> bool {
        matches!(*self.0, Held::Cached(_))
    }
}

impl ModelBytes for ShardBytes {
    fn bytes(&self) -> &[u8] {
        match &*self.0 {
            Held::Static(bytes) => bytes,
            Held::Mapped(map) => map,
            Held::Copy { memory, len } => &memory[..*len],
            Held::Cached(file) => file.bytes(),
            Held::Owned(bytes) => bytes,
            Held::Paged(file) => file.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match Arc::get_mut(&mut self.0)? {
            Held::Static(_) | Held::Mapped(_) | Held::Cached(_) | Held::Paged(_) => None,
            Held::Copy { memory, len } => Some(&mut memory[..*len]),
            Held::Owned(bytes) => Some(bytes),
        }
    }

    fn paging(&self) -> Option<Paging<'_>> {
        match &*self.0 {
            Held::Paged(file) => file.paging(),
            Held::Static(_) | Held::Mapped(_) | Held::Copy { .. } | Held::Cached(_) | Held::Owned(_) => None,
        }
    }
}

/// A file of a model in a cache file.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) map: Arc<Mmap>,
    pub(crate) range: Range<usize>,
}

impl Cached {
    fn bytes(&self) -> &[u8] {
        self.map.get(self.range.clone()).unwrap_or(&[])
    }
}
