//! How many products of bytes this processor adds in a second: the bound of reading a prompt by multiplying, which takes
//! one for each weight and token. Kernels that look sums up are not held by it, but share the units that compute.

use shohin_core::Pool;
use shohin_core::cpu::Isa;

/// Products a second of as many threads as the pool has workers that do nothing else, with the best instruction of `isa`
/// for it; none where it is not known. The best of some passes, as a bound is what can be had at best.
pub(crate) fn products(isa: Isa, pool: &dyn Pool) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    return x86::products(isa, pool);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, pool);
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use shohin_core::Pool;
    use shohin_core::cpu::Isa;
    use std::arch::x86_64::*;
    use std::hint::black_box;
    use std::time::Instant;

    /// Sums that do not wait for each other.
    const SUMS: usize = 12;
    /// Times that a pass adds to each.
    const TIMES: usize = 100_000;

    pub(super) fn products(isa: Isa, pool: &dyn Pool) -> Option<f64> {
        let (add, each): (unsafe fn(), usize) = match isa.name() {
            "avx512vnni" => (vnni, 64),
            "avx2" => (avx2, 32),
            _ => return None,
        };
        let mut best = 0.0_f64;
        for _ in 0..30 {
            let start = Instant::now();
            // SAFETY: an `Isa` of this name exists only where its instructions do.
            pool.run(pool.workers(), &|_| unsafe { add() });
            let products = each * SUMS * TIMES * pool.workers();
            best = best.max(products as f64 / start.elapsed().as_secs_f64().max(1e-9));
        }
        Some(best)
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn vnni() {
        let (a, b) = black_box((_mm512_set1_epi8(1), _mm512_set1_epi8(3)));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..TIMES {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// Sums of pairs in 16 bits; adding those up takes further instructions.
    #[target_feature(enable = "avx2")]
    fn avx2() {
        let b = black_box(_mm256_set1_epi8(3));
        let mut sums = black_box([_mm256_set1_epi8(1); SUMS]);
        for _ in 0..TIMES {
            for sum in &mut sums {
                *sum = _mm256_maddubs_epi16(*sum, b);
            }
        }
        black_box(sums);
    }
}
