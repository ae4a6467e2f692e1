//! AVX-512: floats. Integer dot products are in `avx512_panel.rs`; row-major integer weights use the AVX2
//! kernels.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::args::{Kernel, MatmulArgs};
use crate::cpu::op::finish_float;
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;

/// The kernel for f32 activations.
pub(super) fn float(format: Format) -> Option<Kernel> {
    Some(match format {
        Format::F32 => float_rows::<F32>,
        Format::F16 => float_rows::<F16>,
        Format::Bf16 => float_rows::<Bf16>,
        _ => float_unpacked,
    })
}

/// Prefetch distance in bytes.
const PREFETCH: usize = 8192;
/// Rows and tokens whose running sums are in registers.
const ROWS: usize = 4;
const TOKENS: usize = 4;

/// Weights stored one by one.
trait Float {
    const BYTES: usize;
    /// 16 weights.
    unsafe fn load(p: *const u8) -> __m512;
}

struct F32;
impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller has AVX-512, and 16 weights at `p`.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
}

struct F16;
impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller has AVX-512, and 16 weights at `p`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
}

struct Bf16;
impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller has AVX-512, and 16 weights at `p`.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn float_rows<F: Float>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let mut i = 0;
    // SAFETY: the features of this function; the rows and tokens are there.
    unsafe {
        while i < out.len() {
            let rows = if i + ROWS <= out.len() { ROWS } else { 1 };
            let mut t = 0;
            while t < args.tokens {
                let tokens = if t + TOKENS <= args.tokens { TOKENS } else { 1 };
                match (rows, tokens) {
                    (ROWS, TOKENS) => float_tile::<F, ROWS, TOKENS>(args, out, i, t),
                    (ROWS, _) => float_tile::<F, ROWS, 1>(args, out, i, t),
                    (_, TOKENS) => float_tile::<F, 1, TOKENS>(args, out, i, t),
                    _ => float_tile::<F, 1, 1>(args, out, i, t),
                }
                t += tokens;
            }
            i += rows;
        }
    }
}

/// Rows `i..i + R` for tokens `t..t + T`.
#[inline(always)]
unsafe fn float_tile<F: Float, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
    t: usize,
) {
    let (cols, row_bytes) = (args.w.cols(), args.w.row_bytes());
    let base = args.w.row(out.first() + i).as_ptr();
    // SAFETY: the caller has AVX-512, and R rows and T tokens of `cols`; the remainder after the last whole
    // 16 of them is loaded from a zero-padded copy.
    unsafe {
        let x = args.x.as_ptr().add(t * cols);
        let mut sums = [[_mm512_setzero_ps(); R]; T];
        let whole = cols / 16 * 16;
        for k in (0..whole).step_by(16) {
            for line in 0..(16 * F::BYTES * R).div_ceil(64) {
                let ahead = base.wrapping_add(k * F::BYTES * R + 64 * line + PREFETCH);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let x: [__m512; T] = core::array::from_fn(|t| _mm512_loadu_ps(x.add(t * cols + k)));
            for r in 0..R {
                let w = F::load(base.add(r * row_bytes + k * F::BYTES));
                for t in 0..T {
                    sums[t][r] = _mm512_add_ps(sums[t][r], _mm512_mul_ps(w, x[t]));
                }
            }
        }
        if whole < cols {
            let rest = cols - whole;
            let mask = (1u16 << rest) - 1;
            for r in 0..R {
                let mut copy = [0; 64];
                let from =
                    core::slice::from_raw_parts(base.add(r * row_bytes + whole * F::BYTES), rest * F::BYTES);
                copy[..from.len()].copy_from_slice(from);
                let w = F::load(copy.as_ptr());
                for t in 0..T {
                    let x = _mm512_maskz_loadu_ps(mask, x.add(t * cols + whole));
                    sums[t][r] = _mm512_add_ps(sums[t][r], _mm512_mul_ps(w, x));
                }
            }
        }
        for t_ in 0..T {
            for r in 0..R {
                let mut lanes = [0.0; 16];
                _mm512_storeu_ps(lanes.as_mut_ptr(), sums[t_][r]);
                out.put(t + t_, i + r, finish_float(&lanes));
            }
        }
    }
}

/// The reference, compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn float_unpacked(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    super::scalar::float(args, out);
}
