//! How fast this machine's memory can be read: the bound of decoding, which reads every weight once a token.

use shohin::memory::large_pages;
use shohin_core::Pool;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Of a cache.
const LINE: usize = 64;

/// Weights that are more than this are far larger than any cache, and so is this.
const MOST: usize = 256 << 20;

/// What is read at least in one measurement.
const ENOUGH: usize = 512 << 20;

/// Bytes a second that the pool's workers read from the memory in which `bytes` of weights live: small
/// models stay in a cache. The best of some passes, as a bound is what can be had at best.
pub(crate) fn bandwidth(bytes: usize, pool: &dyn Pool) -> io::Result<f64> {
    let len = bytes.clamp(1 << 16, MOST) / LINE * LINE;
    let mut memory = large_pages(len)?; // as weights are kept
    // Memory that was never written is a single page of zeros.
    memory.fill(0xa5);
    // Several a worker, so that a worker that lost its core holds up little.
    let piece = len.div_ceil(16 * pool.workers()).next_multiple_of(2 * LINE);
    let pieces: Vec<&[u8]> = memory.chunks(piece).collect();
    let sum = AtomicU64::new(0);
    let mut best = 0.0_f64;
    for _ in 0..(ENOUGH / len).clamp(5, 2000) {
        let start = Instant::now();
        pool.run(pieces.len(), &|i| {
            sum.fetch_xor(read(pieces[i]), Relaxed);
        });
        best = best.max(len as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    black_box(sum);
    Ok(best)
}

/// Reads two places in turn: about a tenth faster than one where it was tried.
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
