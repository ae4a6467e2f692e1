//! Pages: the memory of a cache in parts that several sequences share (as in vLLM's PagedAttention, Kwon et al. 2023,
//! arXiv 2309.06180).
//!
//! A page is a [chunk](super::chunked) of 128 positions of all layers. Each sequence has a table of its pages; sequences
//! that begin with the same tokens have the same pages in it. A page is counted by its references, and copied before a
//! sequence writes to it if another one has it, too. Attention reads pages in place, as it reads chunks.
#![forbid(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{CHUNK_POSITIONS, ChunkedPlacement};
use crate::arena::ALIGN;
use crate::error::{Error, Result};

/// Counts the bytes of the pages of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePool {
    bytes: Arc<AtomicUsize>,
}

impl PagePool {
    /// Bytes of all pages that exist; those with several references count once.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn page(&self, len: usize) -> Result<Page> {
        let need = len.saturating_add(ALIGN - 1);
        // Systems provide zeros without touching the memory.
        let memory: Vec<u8> = bytemuck::allocation::try_zeroed_vec(need)
            .map_err(|()| error!(Memory { need: need as u64, have: 0 }))?;
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN - 1);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        Ok(Page { memory, used: start..start + len, pool: self.clone() })
    }
}

/// Keys and values of 128 positions.
#[derive(Debug)]
struct Page {
    memory: Vec<u8>,
    /// Its aligned bytes.
    used: Range<usize>,
    pool: PagePool,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.pool.bytes.fetch_sub(self.used.len(), Ordering::Relaxed);
    }
}

impl Page {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.used.clone()]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.used.clone()]
    }
}

/// The pages of a sequence, from its first position on.
#[derive(Debug)]
pub(crate) struct Pages {
    table: Vec<Arc<Page>>,
    /// Bytes of each.
    page_len: usize,
    pool: PagePool,
}

impl Pages {
    /// No pages yet, of `page_len` bytes each; a table for `capacity` positions.
    pub(crate) fn new(pool: &PagePool, capacity: usize, page_len: usize) -> Result<Self> {
        let (mut table, pages) = (Vec::new(), capacity.div_ceil(CHUNK_POSITIONS));
        let need = pages.saturating_mul(size_of::<Arc<Page>>()) as u64;
        table.try_reserve_exact(pages).map_err(|_| error!(Memory { need, have: 0 }))?;
        Ok(Pages { table, page_len, pool: pool.clone() })
    }

    /// The pages of the first `positions`, shared with these.
    pub(crate) fn fork(&self, positions: usize, capacity: usize) -> Result<Self> {
        let mut fork = Pages::new(&self.pool, capacity, self.page_len)?;
        fork.table.extend(self.table.iter().take(positions.div_ceil(CHUNK_POSITIONS)).cloned());
        Ok(fork)
    }

    /// Readies `positions` to be written: their pages, and all before them, exist, and theirs belong to this sequence
    /// alone. The first `kept` positions keep their content. Later pages are given up.
    pub(crate) fn own(
        &mut self,
        positions: Range<usize>,
        kept: usize,
        placement: ChunkedPlacement,
    ) -> Result<()> {
        let pages = positions.end.max(kept).div_ceil(CHUNK_POSITIONS);
        self.table.truncate(pages);
        while self.table.len() < pages {
            self.table.push(Arc::new(self.pool.page(self.page_len)?));
        }
        let written = positions.start / CHUNK_POSITIONS..positions.end.div_ceil(CHUNK_POSITIONS);
        for (chunk, page) in self.table.iter_mut().enumerate().take(written.end).skip(written.start) {
            if Arc::get_mut(page).is_some() {
                continue;
            }
            let mut copy = self.pool.page(self.page_len)?;
            let kept = kept.saturating_sub(chunk * CHUNK_POSITIONS).min(CHUNK_POSITIONS);
            for (_, run) in placement.runs(kept) {
                copy.bytes_mut()[run.clone()].copy_from_slice(&page.bytes()[run]);
            }
            *page = Arc::new(copy);
        }
        Ok(())
    }

    /// Whether there are pages of at least `page_len` bytes for `positions`.
    pub(crate) fn hold(&self, positions: usize, page_len: usize) -> bool {
        self.page_len >= page_len && positions.div_ceil(CHUNK_POSITIONS) <= self.table.len()
    }

    /// The bytes of a page; none if it does not exist.
    #[inline(always)]
    pub(crate) fn page(&self, page: usize) -> &[u8] {
        self.table.get(page).map_or(&[], |page| page.bytes())
    }

    /// The bytes of a page that is [owned](Pages::own); none of another one.
    #[inline(always)]
    pub(crate) fn page_mut(&mut self, page: usize) -> &mut [u8] {
        self.table.get_mut(page).and_then(Arc::get_mut).map_or(&mut [], Page::bytes_mut)
    }

    /// Two owned pages.
    pub(crate) fn two_mut(&mut self, pages: [usize; 2]) -> Option<[&mut [u8]; 2]> {
        let [a, b] = self.table.get_disjoint_mut(pages).ok()?;
        Some([Arc::get_mut(a)?.bytes_mut(), Arc::get_mut(b)?.bytes_mut()])
    }
}
