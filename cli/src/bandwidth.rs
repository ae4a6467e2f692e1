//! How fast this machine's memory can be read: the bound of decoding, which reads every weight once a token.

use shohin_core::Pool;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Weights that are more than this are far larger than any cache, and so is this.
const MOST: usize = 256 << 20;

/// What is read at least in one measurement.
const ENOUGH: usize = 512 << 20;

/// Bytes a second that the pool's workers read from the memory in which `bytes` of weights live: small
/// models stay in a cache. The best of some passes, as a bound is what can be had at best.
pub(crate) fn bandwidth(bytes: usize, pool: &dyn Pool) -> f64 {
    let words = bytes.clamp(1 << 16, MOST) / 8;
    // No zeros: pages of zeros that were never written are one page.
    let memory: Vec<u64> = (0..words as u64).map(|i| i | 1 << 63).collect();
    // Several a worker, so that a worker that lost its core holds up little.
    let piece = words.div_ceil(16 * pool.workers()).next_multiple_of(16);
    let pieces: Vec<&[u64]> = memory.chunks(piece).collect();
    let sum = AtomicU64::new(0);
    let mut best = 0.0_f64;
    for _ in 0..(ENOUGH / (words * 8)).clamp(5, 2000) {
        let start = Instant::now();
        pool.run(pieces.len(), &|i| {
            sum.fetch_xor(read(pieces[i]), Relaxed);
        });
        best = best.max((words * 8) as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    black_box(sum);
    best
}

/// Reads two places in turn: about a tenth faster than one where it was tried.
fn read(words: &[u64]) -> u64 {
    let (low, high) = words.split_at(words.len() / 2);
    let mut lanes = [0; 8];
    for pair in low.chunks_exact(8).zip(high.chunks_exact(8)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(pair.0.iter().zip(pair.1)) {
            *lane ^= a ^ b;
        }
    }
    lanes.iter().fold(0, |all, lane| all ^ lane)
}
