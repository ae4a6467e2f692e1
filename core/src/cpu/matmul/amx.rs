//! AMX over repacked rows, for prompts: a tile instruction multiplies 32 columns of 16 rows by those of 16
//! tokens. Fewer tokens are left to AVX-512 VNNI, which uses the same layouts.
//!
//! * A: activations, `(16 tokens, 32 columns)` of i8, straight from the [`Q8Block`]s.
//! * B: codes, `(8, 16 rows, 4 columns)` of i8, unpacked from 32 columns.
//! * C: `(16 tokens, 16 rows)` of i32: `C[t][r] = sum over k, j of A[t][4 k + j] * B[k][r][j]`.
//!
//! C is stored to the L1 cache, from where `vpdpwssd` multiplies each token's 16 sums by its factor and adds
//! them to those of the block's other parts; scales follow as in `scalar.rs`, in its order, so that the bits
//! equal the reference. Two groups of rows share the loads of A.
//!
//! **Estimate; not run on AMX hardware.** For 128 columns, 16 tokens and 32 rows (65536 products) on Sapphire
//! Rapids: 8 `tdpbssd` of 16 cycles, 128 cycles; 160 stores of 64 bytes, one per cycle; 384 loads, two per
//! cycle, 192 cycles; 240 vector operations, two per cycle, 120 cycles. If everything else overlaps with the
//! loads, 340 products per cycle, against 128 with `vpdpbusd`.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::args::{Kernel, MatmulArgs};
use super::avx512_panel::{self, Avx512};
use super::panel_kernel::{PART, PanelKernel, QUADS, kernel_of, start};
use super::scalar::integer_from;
use crate::cpu::activations::{Q8_LEN, Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::cpu::simd::avx512::dpwssd;
use crate::quant::Format;

/// Tokens per tile, and the fewest that tiles are used for.
pub(super) const TOKENS: usize = 16;
/// Columns that are unpacked at once: 16 KB for two groups of rows, a third of the L1 cache.
const CHUNK: usize = 512;
/// Tiles of tokens that share one unpacking of the weights.
const TILES: usize = 8;
/// Groups of rows that share the loads of activations.
const GROUPS: usize = 2;
/// Parts whose activations are in tile registers at once.
const STEP: usize = 4;

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    kernel_of!(one_bit, kernel, format, layout)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn one_bit(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if args.tokens < TOKENS {
        avx512_panel::one_bit(args, out);
    } else {
        // SAFETY: the features of this function; tiles are there where this kernel is.
        unsafe { rows::<OneBit, 128>(args, out) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn kernel<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if args.tokens < TOKENS {
        avx512_panel::kernel::<BITS, BLOCK>(args, out);
    } else {
        // SAFETY: as above.
        unsafe { rows::<Codes<BITS>, BLOCK>(args, out) };
    }
}

/// How codes are unpacked for tile B.
trait Unpack {
    /// Part `p` of the group's `codes`, as `(8, 16 rows, 4 columns)`.
    ///
    /// Safety: AVX-512, and the part is there.
    unsafe fn part(codes: *const u8, p: usize) -> [__m512i; QUADS];
}

/// Codes of `BITS` bits in [`Layout::Panels32`].
struct Codes<const BITS: usize>;

impl<const BITS: usize> Unpack for Codes<BITS> {
    #[inline(always)]
    unsafe fn part(codes: *const u8, p: usize) -> [__m512i; QUADS] {
        // SAFETY: the caller's promise.
        unsafe {
            let part = Avx512::part::<BITS>(codes, p);
            let mut quads = [_mm512_setzero_si512(); QUADS];
            for (s, quad) in quads.iter_mut().enumerate() {
                *quad = Avx512::quad::<BITS>(part, s);
            }
            quads
        }
    }
}

/// Bits in [`Layout::Panels8`]; weights are -1 and 1 and the zero point is 1, so the codes are 0 and 2.
struct OneBit;

impl Unpack for OneBit {
    #[inline(always)]
    unsafe fn part(codes: *const u8, p: usize) -> [__m512i; QUADS] {
        /// Bytes of 16 rows of 128 columns.
        const BLOCK_BYTES: usize = PANEL_ROWS * 128 / 8;
        // SAFETY: the caller's promise.
        unsafe {
            // Each row's byte four times.
            let four = _mm512_set_epi32(
                0x0f0f_0f0f,
                0x0e0e_0e0e,
                0x0d0d_0d0d,
                0x0c0c_0c0c,
                0x0b0b_0b0b,
                0x0a0a_0a0a,
                0x0909_0909,
                0x0808_0808,
                0x0707_0707,
                0x0606_0606,
                0x0505_0505,
                0x0404_0404,
                0x0303_0303,
                0x0202_0202,
                0x0101_0101,
                0,
            );
            let bits = [_mm512_set1_epi32(0x0804_0201), _mm512_set1_epi32(0x8040_2010_u32 as i32)];
            let mut quads = [_mm512_setzero_si512(); QUADS];
            for (s, quad) in quads.iter_mut().enumerate() {
                let at = codes.add(p / 4 * BLOCK_BYTES + (s / 2 * 4 + p % 4) * PANEL_ROWS);
                let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast()));
                let bytes = _mm512_shuffle_epi8(bytes, four);
                *quad = _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(bytes, bits[s % 2]), 2);
            }
            quads
        }
    }
}

/// The operand of LDTILECFG.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row, for each tile register.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Registers 0 to 3 are A, 4 and 5 are B, 6 and 7 are C.
static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [32, 32, 32, 32, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 8, 8, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Multiplies A, in register `$a`, with B at `$b`, and stores C at `$c`, both in rows of 64 bytes.
///
/// No register is declared as clobbered, as the compiler itself never uses tile registers.
macro_rules! multiply {
    ($a:literal, $b_register:literal, $c_register:literal, $b:expr, $c:expr) => {
        asm!(
            concat!("tileloadd tmm", $b_register, ", [{b} + {line}*1]"),
            concat!("tilezero tmm", $c_register),
            concat!("tdpbssd tmm", $c_register, ", tmm", $a, ", tmm", $b_register),
            concat!("tilestored [{c} + {line}*1], tmm", $c_register),
            b = in(reg) $b, c = in(reg) $c, line = in(reg) 64_usize,
            options(nostack, preserves_flags),
        )
    };
}

/// Loads A from `$p` on, its tokens `$stride` bytes apart, into register `$a`.
macro_rules! load {
    ($a:literal, $p:expr, $stride:expr) => {
        asm!(
            concat!("tileloadd tmm", $a, ", [{p} + {stride}*1]"),
            p = in(reg) $p, stride = in(reg) $stride,
            options(readonly, nostack, preserves_flags),
        )
    };
}

/// Fills `out` for at least [`TOKENS`] tokens.
///
/// Safety: the processor has AVX-512 and AMX, and matrices are as `U` and `BLOCK` state.
#[inline(always)]
unsafe fn rows<U: Unpack, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let end = args.w.rows_in_panels().saturating_sub(out.first()).min(out.len()) / PANEL_ROWS * PANEL_ROWS;
    let mut i = 0;
    // SAFETY: the caller's promise; the groups are there.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(readonly, nostack, preserves_flags));
        while i + GROUPS * PANEL_ROWS <= end {
            groups::<U, BLOCK, GROUPS>(args, out, i);
            i += GROUPS * PANEL_ROWS;
        }
        while i < end {
            groups::<U, BLOCK, 1>(args, out, i);
            i += PANEL_ROWS;
        }
        // Tiles in use would be saved on every context switch.
        asm!("tilerelease", options(nomem, nostack, preserves_flags));
    }
    integer_from(end, args, out);
}

/// `G` groups of rows from row `i` on.
#[inline(always)]
unsafe fn groups<U: Unpack, const BLOCK: usize, const G: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let cols = args.w.cols();
    let stride = q8_blocks(cols);
    let group: [*const u8; G] =
        core::array::from_fn(|g| args.w.panel(out.first() + i + g * PANEL_ROWS).as_ptr());
    let tiles = args.tokens.div_ceil(TOKENS);
    // The last tile overlaps the one before, so that it is full: the shared tokens get their outputs twice.
    let token = |tile: usize| (tile * TOKENS).min(args.tokens - TOKENS);
    // SAFETY: the caller's promise; each token has `stride` blocks of activations. Only the written part of
    // the buffers is read.
    unsafe {
        let mut quads = [[MaybeUninit::<__m512i>::uninit(); CHUNK / 4]; G];
        let mut d = [[MaybeUninit::<__m512>::uninit(); CHUNK / 64]; G];
        let mut sums = [[[MaybeUninit::<__m512>::uninit(); TOKENS]; G]; TILES];
        for first in (0..tiles).step_by(TILES) {
            let sums = &mut sums[..TILES.min(tiles - first)];
            sums.as_flattened_mut().as_flattened_mut().fill(MaybeUninit::new(_mm512_setzero_ps()));
            for at in (0..cols).step_by(CHUNK) {
                let len = CHUNK.min(cols - at);
                for g in 0..G {
                    let codes = group[g].add(cols / BLOCK * 2 * PANEL_ROWS);
                    for p in 0..len / PART {
                        for (s, quad) in U::part(codes, at / PART + p).into_iter().enumerate() {
                            quads[g][p * QUADS + s].write(quad);
                        }
                    }
                    for b in 0..len / BLOCK {
                        d[g][b].write(Avx512::scales(group[g].add((at / BLOCK + b) * 2 * PANEL_ROWS)));
                    }
                }
                for (tile, sums) in sums.iter_mut().enumerate() {
                    let y = args.q8.as_ptr().add(token(first + tile) * stride + at / Q8_LEN);
                    for b in 0..len / BLOCK {
                        // No closures: the compiler might compile them without the instruction set.
                        let mut codes = [core::ptr::null(); G];
                        let mut scales = [_mm512_setzero_ps(); G];
                        for g in 0..G {
                            codes[g] = quads[g].as_ptr().add(b * (BLOCK / 4)).cast();
                            scales[g] = d[g][b].assume_init();
                        }
                        add_block::<BLOCK, G>(codes, scales, y.add(b * (BLOCK / Q8_LEN)), stride, sums);
                    }
                }
            }
            for (tile, sums) in sums.iter().enumerate() {
                for (g, sums) in sums.iter().enumerate() {
                    for (t, sum) in sums.iter().enumerate() {
                        let t = token(first + tile) + t;
                        out.put_all(t, i + g * PANEL_ROWS, &Avx512::outputs(sum.assume_init(), args.step(t)));
                    }
                }
            }
        }
    }
}

/// Multiplies a block of columns of `G` groups, `quads` with the scales `d`, by that of 16 tokens, `y` with
/// `stride` blocks from one to the next, and adds the products to their `sums`.
#[inline(always)]
unsafe fn add_block<const BLOCK: usize, const G: usize>(
    quads: [*const __m512i; G],
    d: [__m512; G],
    y: *const Q8Block,
    stride: usize,
    sums: &mut [[MaybeUninit<__m512>; TOKENS]; G],
) {
    let bytes = stride * size_of::<Q8Block>();
    let parts = STEP.min(BLOCK / PART);
    let steps = BLOCK / PART / parts;
    let mut c = [[[MaybeUninit::<__m512i>::uninit(); TOKENS]; STEP]; G];
    let mut carried = [[MaybeUninit::<__m512i>::uninit(); TOKENS]; G];
    // SAFETY: the caller's promise. Tiles are configured; only the written part of the buffers is read.
    unsafe {
        for step in 0..steps {
            let y = y.add(step * parts / 2);
            // The activations come first in a block.
            load!("0", y.cast::<i8>(), bytes);
            load!("1", y.cast::<i8>().add(PART), bytes);
            if parts == STEP {
                load!("2", y.add(1).cast::<i8>(), bytes);
                load!("3", y.add(1).cast::<i8>().add(PART), bytes);
            }
            for g in 0..G {
                let b = quads[g].add(step * parts * QUADS);
                multiply!("0", "4", "6", b, c[g][0].as_mut_ptr());
                multiply!("1", "5", "7", b.add(QUADS), c[g][1].as_mut_ptr());
                if parts == STEP {
                    multiply!("2", "4", "6", b.add(2 * QUADS), c[g][2].as_mut_ptr());
                    multiply!("3", "5", "7", b.add(3 * QUADS), c[g][3].as_mut_ptr());
                }
            }
            for t in 0..TOKENS {
                let y = y.add(t * stride);
                let start = if step == 0 { start::<Avx512, BLOCK>(y) } else { _mm512_setzero_si512() };
                for g in 0..G {
                    let mut n = if step == 0 { start } else { carried[g][t].assume_init() };
                    for p in 0..parts {
                        // Sums fit 16 bits, and the upper half of a factor is zero.
                        let factor = _mm512_set1_epi32((*y.add(p / 2)).factor[p % 2]);
                        n = dpwssd(n, c[g][p][t].assume_init(), factor);
                    }
                    if step + 1 < steps {
                        carried[g][t].write(n);
                    } else {
                        let sum = &mut sums[g][t];
                        *sum = MaybeUninit::new(Avx512::add_block(sum.assume_init(), n, d[g]));
                    }
                }
            }
        }
    }
}
