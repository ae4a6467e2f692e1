//! Splitting a mutable buffer over the workers of a [`Pool`].
#![allow(unsafe_code)]

use crate::pool::Pool;

struct Base<T>(*mut T);

// SAFETY: only `for_each_chunk` uses it, which hands every chunk to exactly one job.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Calls `job(i, chunk)` for the `i`-th run of `chunk` elements of `data` (the last may be shorter),
/// spread over `pool`.
///
/// Chunks are claimed from a counter of our own, so that even a pool that breaks its contract and
/// runs an index twice cannot make two jobs share one.
pub fn for_each_chunk<T: Send>(
    pool: &dyn Pool,
    data: &mut [T],
    chunk: usize,
    job: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let chunk = chunk.max(1);
    let len = data.len();
    let jobs = len.div_ceil(chunk);
    if pool.workers() <= 1 || jobs <= 1 {
        for (i, part) in data.chunks_mut(chunk).enumerate() {
            job(i, part);
        }
        return;
    }
    let base = Base(data.as_mut_ptr());
    let next = core::sync::atomic::AtomicUsize::new(0);
    pool.run(jobs, &|_| {
        let i = next.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        if i < jobs {
            let start = i * chunk;
            // SAFETY: start < len, the run ends at or before len, and the counter hands out each `i`
            // once, so no two live slices overlap; `data` stays mutably borrowed until `run` returns.
            let part =
                unsafe { core::slice::from_raw_parts_mut(base.get().add(start), chunk.min(len - start)) };
            job(i, part);
        }
    });
}
