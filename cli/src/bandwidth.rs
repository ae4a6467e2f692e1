//! Memory bandwidth of this machine: the bound of decoding, which reads every weight once per token.

use shohin::core::Pool;
use shohin::memory::large_pages;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Larger than any cache; larger models are measured with this size.
const MAX_BYTES: usize = 256 << 20;

/// Minimum bytes read by one measurement.
const MIN_READ: usize = 512 << 20;

/// Bytes per second that the pool's workers read from a working set of `bytes`: small models stay in a cache.
/// The best of several passes, since this is an upper bound.
pub(crate) fn bandwidth(bytes: usize, pool: &dyn Pool) -> io::Result<f64> {
    let len = bytes.clamp(1 << 16, MAX_BYTES) / LINE * LINE;
    let mut memory = large_pages(len)?; // as for weights
    // Memory that was never written is a single page of zeros.
    memory.fill(0xa5);
    // Several per worker, so that a descheduled worker delays the others little.
    let piece = len.div_ceil(16 * pool.workers()).next_multiple_of(2 * LINE);
    let pieces: Vec<&[u8]> = memory.chunks(piece).collect();
    let sum = AtomicU64::new(0);
    let mut best = 0.0_f64;
    for _ in 0..(MIN_READ / len).clamp(5, 2000) {
        let start = Instant::now();
        pool.run(pieces.len(), &|i| {
            sum.fetch_xor(read(pieces[i]), Relaxed);
        });
        best = best.max(len as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    black_box(sum);
    Ok(best)
}

/// Reads two streams alternately: measured about a tenth faster than one.
fn read(bytes: &[u8]) -> u64 {
    let (low, high) = bytes.split_at(bytes.len() / 2);
    let (low, high) = (low.as_chunks::<8>().0, high.as_chunks::<8>().0);
    let mut lanes = [0; LINE / 8];
    for (a, b) in low.as_chunks::<{ LINE / 8 }>().0.iter().zip(high.as_chunks::<{ LINE / 8 }>().0) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane ^= u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b);
        }
    }
    lanes.iter().fold(0, |all, lane| all ^ lane)
}
