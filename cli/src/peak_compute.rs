//! Peak int8 throughput of this processor: the bound of prefill with multiplying kernels, which take one multiply-accumulate
//! per weight and token. LUT kernels are not bound by it, but use the same execution units.

use shohin::core::Pool;
use shohin::core::cpu::Isa;

/// Multiply-accumulates per second of the pool's workers with the best instruction of `isa`; `None` if
/// unknown. The best of several passes, since this is an upper bound.
pub(crate) fn peak_int8(isa: Isa, pool: &dyn Pool) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    return x86::peak_int8(isa, pool);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, pool);
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use shohin::core::Pool;
    use shohin::core::cpu::Isa;
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;
    use std::time::Instant;

    /// Independent accumulators, to hide latency.
    const ACCUMULATORS: usize = 12;
    /// Additions to each accumulator per pass.
    const ROUNDS: usize = 100_000;
    /// Tile registers that are accumulators.
    const TILES: usize = 4;
    /// Products of a tile instruction: 16 rows of A, 16 columns of B and 64 bytes.
    const TILE_MACS: usize = 16 * 16 * 64;

    pub(super) fn peak_int8(isa: Isa, pool: &dyn Pool) -> Option<f64> {
        let (kernel, macs): (unsafe fn(), usize) = match isa.name() {
            "avx512amx" => (tiles, TILES * TILE_MACS),
            "avx512vnni" | "avx512words" => (vnni, 64 * ACCUMULATORS),
            "avxvnni" => (narrow_vnni, 32 * ACCUMULATORS),
            "avx2" => (avx2, 32 * ACCUMULATORS),
            _ => return None,
        };
        let mut best = 0.0_f64;
        for _ in 0..30 {
            let start = Instant::now();
            // SAFETY: an `Isa` of this name exists only where its instructions do.
            pool.run(pool.workers(), &|_| unsafe { kernel() });
            let macs = macs * ROUNDS * pool.workers();
            best = best.max(macs as f64 / start.elapsed().as_secs_f64().max(1e-9));
        }
        Some(best)
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn vnni() {
        let (a, b) = black_box((_mm512_set1_epi8(1), _mm512_set1_epi8(3)));
        let mut sums = [_mm512_setzero_si512(); ACCUMULATORS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn narrow_vnni() {
        let (a, b) = black_box((_mm256_set1_epi8(1), _mm256_set1_epi8(3)));
        let mut sums = [_mm256_setzero_si256(); ACCUMULATORS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// LDTILECFG's operand: registers 0 to 5 of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Config([u8; 64]);

    fn tiles() {
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for register in 0..TILES + 2 {
            config.0[16 + 2 * register] = 64;
            config.0[48 + register] = 16;
        }
        // SAFETY: this instruction set exists only where Linux has let this process use tiles; no memory but `config` is
        // used, and the compiler itself does not use tile registers.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &config, options(readonly, nostack, preserves_flags));
            for _ in 0..ROUNDS {
                asm!(
                    "tdpbssd tmm0, tmm4, tmm5",
                    "tdpbssd tmm1, tmm4, tmm5",
                    "tdpbssd tmm2, tmm4, tmm5",
                    "tdpbssd tmm3, tmm4, tmm5",
                    options(nomem, nostack, preserves_flags),
                );
            }
            asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }

    /// Pairwise sums in 16 bits; widening them takes further instructions.
    #[target_feature(enable = "avx2")]
    fn avx2() {
        let b = black_box(_mm256_set1_epi8(3));
        let mut sums = black_box([_mm256_set1_epi8(1); ACCUMULATORS]);
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_maddubs_epi16(*sum, b);
            }
        }
        black_box(sums);
    }
}
