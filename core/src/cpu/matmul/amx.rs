//! AMX over repacked rows, for several tokens: a tile instruction multiplies the columns of 16 rows by those of 16
//! tokens. A single token, or a few, are left to AVX-512 VNNI, which uses the same layouts.
//!
//! * A: activations in the order of an [`ActivationTile`], `(16, columns)` of i8.
//! * B: codes, `(columns / 4, 16 rows, 4 columns)` of i8, unpacked from the weights.
//! * C: `(16, 16 rows)` of i32: `C[t][r] = sum over k, j of A[t][4 k + j] * B[k][r][j]`.
//!
//! Each 32 columns, a part, have their own factor per token, so that a row of C is the sum of one part: of 16 tokens; or
//! of up to eight tokens and two parts, where each row of A has zeros in the columns of the other part. C is stored to the
//! L1 cache, from where `vpdpwssd` multiplies each token's 16 sums by its factor and adds them to those of the block's other parts;
//! scales follow as in `scalar.rs`, in its order, so that the bits equal the reference.
//!
//! A tile that is stored as soon as it is computed, or loaded to vectors as soon as it is stored, takes several times
//! as long. So a product is stored after the next two are started, and vectors add the sums of one [`Unit`] while tiles multiply the next.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::args::{Kernel, MatmulArgs};
use super::avx512_panel::{self, Avx512};
use super::lut_kernel::{BLOCK_BYTES, LutKernel, later};
use super::panel_kernel::{PART, PanelKernel, QUADS, kernel_of, panel_rows};
use super::scalar::integer_from;
use crate::cpu::activation_lut::ActivationLut;
use crate::cpu::activations::{Q8_LEN, Q8Block};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::{Layout, PANEL_ROWS};
use crate::cpu::simd::avx512::dpwssd_at;
use crate::quant::{Format, MAX_BLOCK};

/// Fewer tokens are faster with AVX-512 VNNI.
pub(super) const FEWEST_TOKENS: usize = 6;
/// Rows of a tile.
const ROWS: usize = 16;
/// Columns of an [`ActivationTile`].
const COLS: usize = 128;
/// Parts of an [`ActivationTile`].
const PARTS: usize = COLS / PART;
/// Prefetch distance in chunks.
const AHEAD: usize = 8;
/// Tiles of tokens that share one unpacking of the weights.
const TILES: usize = 8;

/// How tokens and columns share the rows of A.
trait Shape {
    /// Tokens of a tile.
    const TOKENS: usize;
    /// Parts of a token that are multiplied at once.
    const PARTS_AT_ONCE: usize = ROWS / Self::TOKENS;
    const CONFIG: &Config;
}

/// 16 tokens.
struct Sixteen;

impl Shape for Sixteen {
    const TOKENS: usize = 16;
    const CONFIG: &Config = &Config::new(PART);
}

/// Up to eight tokens, each in two rows.
struct Eight;

impl Shape for Eight {
    const TOKENS: usize = 8;
    const CONFIG: &Config = &Config::new(2 * PART);
}

/// 128 columns of the activations of a tile of tokens.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct ActivationTile {
    /// A of each product of a [`Shape`], `(products, 16, PART * Shape::PARTS_AT_ONCE)`.
    q: [i8; PARTS * ROWS * PART],
    /// The factors of each part and token.
    factor: [[i32; ROWS]; PARTS],
    /// The starts of each 64 columns and token.
    start: [[i32; ROWS]; COLS / Q8_LEN],
}

// SAFETY: integers and arrays of them, without padding (2048 + 256 + 128 = 2432 = 38 * 64).
unsafe impl bytemuck::Zeroable for ActivationTile {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for ActivationTile {}

/// [`ActivationLut`]s in whose memory [`fill`] puts the tiles of `tokens`.
pub(super) const fn lut_len(tokens: usize, cols: usize) -> usize {
    let tiles = tokens.div_ceil(ROWS).saturating_mul(cols.div_ceil(COLS));
    tiles.saturating_mul(size_of::<ActivationTile>()).div_ceil(size_of::<ActivationLut>())
}

/// Fills `out`, of [`lut_len`] elements, with the tiles of `q8`, of `blocks` blocks per token: `(columns, tiles)`.
pub(super) fn fill(q8: &[Q8Block], blocks: usize, out: &mut [ActivationLut]) {
    let tokens = q8.len() / blocks;
    let across = blocks.div_ceil(COLS / Q8_LEN);
    let bytes = bytemuck::cast_slice_mut::<_, u8>(out);
    let down = tokens.div_ceil(ROWS);
    let len = down * across * size_of::<ActivationTile>();
    let Some(tiles) = bytes.get_mut(..len).and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok()) else {
        debug_assert!(false, "`out` has `lut_len` elements");
        return;
    };
    let tiles: &mut [ActivationTile] = tiles;
    let few = tokens <= Eight::TOKENS;
    // The columns of the other part. Sums of rows without a token are never output.
    if few {
        tiles.fill(<ActivationTile as bytemuck::Zeroable>::zeroed());
    }
    for (n, q8) in q8.chunks(ROWS * blocks).enumerate() {
        for (t, q8) in q8.chunks_exact(blocks).enumerate() {
            for (i, block) in q8.iter().enumerate() {
                let (tile, half) = (&mut tiles[i / 2 * down + n], i % 2);
                for (j, q) in block.q.as_chunks::<PART>().0.iter().enumerate() {
                    let p = 2 * half + j;
                    // Product `half` has rows of two parts; part `j` is in half `j` of row `8 j + t`.
                    let at = if few { 2 * (half * ROWS + j * Eight::TOKENS + t) + j } else { p * ROWS + t };
                    tile.q.as_chunks_mut::<PART>().0[at] = *q;
                    tile.factor[p][t] = block.factor[j];
                }
                tile.start[half][t] = block.start;
            }
        }
    }
}

/// The kernel for int8 activations and repacked rows.
pub(super) fn repacked(format: Format, layout: Layout) -> Option<Kernel> {
    kernel_of!(one_bit, kernel, format, layout)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn one_bit(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if args.tokens < FEWEST_TOKENS || args.luts.is_empty() {
        avx512_panel::one_bit(args, out);
    } else {
        // SAFETY: the features of this function; tiles are there where this kernel is.
        unsafe { by_shape::<OneBit, 128>(args, out) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
fn kernel<const BITS: usize, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    if args.tokens < FEWEST_TOKENS || args.luts.is_empty() {
        avx512_panel::kernel::<BITS, BLOCK>(args, out);
    } else {
        // SAFETY: as above.
        unsafe { by_shape::<Codes<BITS>, BLOCK>(args, out) };
    }
}

/// How codes are unpacked for tile B.
trait Unpack {
    /// Bits of a code.
    const BITS: usize;

    /// Part `p` of the group's `codes`, as `(8, 16 rows, 4 columns)`.
    ///
    /// Safety: AVX-512, and the part is there.
    unsafe fn part(codes: *const u8, p: usize) -> [__m512i; QUADS];
}

/// Codes of `BITS` bits in [`Layout::Panels32`].
struct Codes<const BITS: usize>;

impl<const BITS: usize> Unpack for Codes<BITS> {
    const BITS: usize = BITS;

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
    const BITS: usize = 1;

    #[inline(always)]
    unsafe fn part(codes: *const u8, p: usize) -> [__m512i; QUADS] {
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

impl Config {
    /// For products of `cols` columns: registers 0 and 1 are A, 2 and 3 are B, 4 to 7 are C.
    const fn new(cols: usize) -> Config {
        let (a, b) = (cols as u16, (cols / 4) as u8);
        Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [a, a, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [16, 16, b, b, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// Fills `out`.
///
/// Safety: the processor has AVX-512 and AMX, matrices are as `U` and `BLOCK` state, and tiles have been filled.
#[inline(always)]
unsafe fn by_shape<U: Unpack, const BLOCK: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        if args.tokens <= Eight::TOKENS {
            rows::<U, Eight, BLOCK, 4>(args, out);
        } else {
            rows::<U, Sixteen, BLOCK, 2>(args, out);
        }
    }
}

/// As [`by_shape`]. `G` groups of rows share the loads of activations.
#[inline(always)]
unsafe fn rows<U: Unpack, S: Shape, const BLOCK: usize, const G: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    let end = panel_rows(args, out);
    let mut i = 0;
    // SAFETY: the caller's promise; the groups are there.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) S::CONFIG, options(readonly, nostack, preserves_flags));
        while i + G * PANEL_ROWS <= end {
            groups::<U, S, BLOCK, G>(args, out, i);
            i += G * PANEL_ROWS;
        }
        while i < end {
            groups::<U, S, BLOCK, 1>(args, out, i);
            i += PANEL_ROWS;
        }
        // Tiles in use would be saved on every context switch.
        asm!("tilerelease", options(nomem, nostack, preserves_flags));
    }
    integer_from(end, args, out);
}

/// `G` groups of rows from row `i` on.
#[inline(always)]
unsafe fn groups<U: Unpack, S: Shape, const BLOCK: usize, const G: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let cols = args.w.cols();
    let group: [*const u8; G] =
        core::array::from_fn(|g| args.w.panel(out.first() + i + g * PANEL_ROWS).as_ptr());
    let stride = PANEL_ROWS * args.w.row_bytes();
    let tiles = args.tokens.div_ceil(S::TOKENS);
    // `matmul` has checked that these are `lut_len` elements for these tokens and columns.
    let activations = args.luts.as_ptr().cast::<ActivationTile>();
    // Columns that are unpacked at once: more would leave the L1 cache before they are multiplied.
    let chunk = const { if BLOCK < COLS { COLS } else { BLOCK } };
    // SAFETY: the caller's promise. Only the written part of the buffers is read.
    unsafe {
        let mut quads = [[MaybeUninit::<__m512i>::uninit(); G]; MAX_BLOCK / 4];
        let mut sums = [[[MaybeUninit::<__m512>::uninit(); ROWS]; G]; TILES];
        let mut products = [MaybeUninit::<Products<G>>::uninit(), MaybeUninit::<Products<G>>::uninit()];
        for m in 0..Unit::<G>::parts::<BLOCK>() / S::PARTS_AT_ONCE {
            (&raw mut (*products[1].as_mut_ptr())[m]).write([[_mm512_setzero_si512(); ROWS]; G]);
        }
        let mut carried = [[_mm512_setzero_si512(); ROWS]; G];
        let products: [*mut Products<G>; 2] = [products[0].as_mut_ptr(), (&raw mut products[1]).cast()];
        let quads: *mut __m512i = (&raw mut quads).cast();
        for first in (0..tiles).step_by(TILES) {
            let count = TILES.min(tiles - first);
            sums[..count].as_flattened_mut().as_flattened_mut().fill(MaybeUninit::new(_mm512_setzero_ps()));
            let sums_of = sums.as_mut_ptr().cast::<[[__m512; ROWS]; G]>();
            // No unit: its scales are zero, and so the sums stay zero.
            let mut before = Unit::<G> {
                tile: activations,
                part: 0,
                step: 0,
                codes: core::ptr::null(),
                scales: [_mm512_setzero_ps(); G],
                products: products[1],
                sums: sums_of,
            };
            let mut turn = 0;
            for at in (0..cols).step_by(chunk) {
                // Later tiles find the weights in a cache.
                if first == 0 {
                    let (ahead, next) = later(AHEAD, at / chunk, cols / chunk, G * stride);
                    for group in group.map(|group| group.wrapping_add(next)) {
                        let blocks = chunk / BLOCK * ahead;
                        prefetch(group.wrapping_add(blocks * 2 * PANEL_ROWS), chunk / BLOCK * 2 * PANEL_ROWS);
                        let bytes = PANEL_ROWS * U::BITS / 8;
                        let codes = cols / BLOCK * 2 * PANEL_ROWS + ahead * chunk * bytes;
                        prefetch(group.wrapping_add(codes), chunk * bytes);
                    }
                }
                for p in 0..chunk.min(cols - at) / PART {
                    for (g, group) in group.iter().enumerate() {
                        let codes = group.add(cols / BLOCK * 2 * PANEL_ROWS);
                        let to = quads.add(
                            ((p / S::PARTS_AT_ONCE * G + g) * S::PARTS_AT_ONCE + p % S::PARTS_AT_ONCE)
                                * QUADS,
                        );
                        for (s, quad) in U::part(codes, at / PART + p).into_iter().enumerate() {
                            to.add(s).write(quad);
                        }
                    }
                }
                for tile in 0..count {
                    for col in (at..cols.min(at + chunk)).step_by(Unit::<G>::parts::<BLOCK>() * PART) {
                        let mut scales = [_mm512_setzero_ps(); G];
                        for g in 0..G {
                            scales[g] = Avx512::scales(group[g].add(col / BLOCK * 2 * PANEL_ROWS));
                        }
                        let unit = Unit {
                            tile: activations.add(col / COLS * tiles + first + tile),
                            part: col % COLS / PART,
                            step: col % BLOCK / COLS,
                            codes: quads.add((col - at) / 4 * G),
                            scales,
                            products: products[turn],
                            sums: sums_of.add(tile),
                        };
                        turn ^= 1;
                        unit.multiply::<S, BLOCK>(&before, &mut carried);
                        before = unit;
                    }
                }
            }
            before.finish::<S, BLOCK>(&mut carried);
            for (tile, sums) in sums[..count].iter().enumerate() {
                let first = (first + tile) * S::TOKENS;
                for (g, sums) in sums.iter().enumerate() {
                    for (t, sum) in (first..args.tokens.min(first + S::TOKENS)).zip(sums) {
                        out.put_all(t, i + g * PANEL_ROWS, &Avx512::outputs(sum.assume_init(), args.step(t)));
                    }
                }
            }
        }
    }
}

/// Prefetches `len` bytes at `p`, which may be any address.
#[inline(always)]
fn prefetch(p: *const u8, len: usize) {
    for line in 0..len.div_ceil(64) {
        Avx512::prefetch_line(p.wrapping_add(64 * line));
    }
}

/// C of each product: `(products, groups of rows, 16, 16 rows)`.
type Products<const G: usize> = [[[__m512i; ROWS]; G]; PARTS];

/// At most 128 columns of a block of `G` groups of rows and of a tile of tokens.
struct Unit<const G: usize> {
    tile: *const ActivationTile,
    /// The first part in `tile`.
    part: usize,
    /// Which 128 columns of the block they are.
    step: usize,
    /// B of each product: `(products, groups of rows, QUADS * Shape::PARTS_AT_ONCE)`.
    codes: *const __m512i,
    /// The scales of the block.
    scales: [__m512; G],
    products: *mut Products<G>,
    /// The sums of each token.
    sums: *mut [[__m512; ROWS]; G],
}

impl<const G: usize> Unit<G> {
    const fn parts<const BLOCK: usize>() -> usize {
        if BLOCK < COLS { BLOCK / PART } else { PARTS }
    }

    /// Tile products.
    const fn count<S: Shape, const BLOCK: usize>() -> usize {
        G * Self::parts::<BLOCK>() / S::PARTS_AT_ONCE
    }

    /// How many products later one is stored.
    const fn delay<S: Shape, const BLOCK: usize>() -> usize {
        match Self::count::<S, BLOCK>() {
            1 => 0,
            2 | 3 => 1,
            _ => 2,
        }
    }

    /// Multiplies, and adds the products of the unit before.
    #[inline(always)]
    unsafe fn multiply<S: Shape, const BLOCK: usize>(
        &self,
        before: &Unit<G>,
        carried: &mut [[__m512i; ROWS]; G],
    ) {
        macro_rules! step {
            ($($k:literal)*) => { $(
                if $k < Self::count::<S, BLOCK>() {
                    self.product::<S, $k>();
                    let unit = if $k < Self::delay::<S, BLOCK>() { before } else { self };
                    unit.store::<S, BLOCK, $k>();
                    // Those of the unit before are stored by then.
                    let half = Self::count::<S, BLOCK>() / 2;
                    if $k >= half {
                        let tokens = S::TOKENS / (Self::count::<S, BLOCK>() - half);
                        before.add::<S, BLOCK>(($k - half) * tokens, tokens, carried);
                    }
                }
            )* };
        }
        // SAFETY: the caller's promise.
        unsafe {
            step!(0 1 2 3 4 5 6 7);
        }
    }

    /// Adds the last products.
    #[inline(always)]
    unsafe fn finish<S: Shape, const BLOCK: usize>(&self, carried: &mut [[__m512i; ROWS]; G]) {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::delay::<S, BLOCK>() > 0 {
                self.store::<S, BLOCK, 0>();
            }
            if Self::delay::<S, BLOCK>() > 1 {
                self.store::<S, BLOCK, 1>();
            }
            self.add::<S, BLOCK>(0, S::TOKENS, carried);
        }
    }

    /// Computes product `K`. No register is declared as clobbered, as the compiler itself never uses tile registers.
    #[inline(always)]
    unsafe fn product<S: Shape, const K: usize>(&self) {
        let (m, g) = (K / G, K % G);
        let cols = S::PARTS_AT_ONCE * PART;
        // SAFETY: the caller's promise. Tiles are configured.
        unsafe {
            if g == 0 {
                asm!(
                    "tileloadd tmm{a}, [{p} + {line}*1]",
                    p = in(reg) (&raw const (*self.tile).q).cast::<i8>().add(self.part * ROWS * PART + m * ROWS * cols),
                    line = in(reg) cols,
                    a = const K / G % 2,
                    options(readonly, nostack, preserves_flags),
                );
            }
            asm!(
                "tileloadd tmm{b}, [{p} + {line}*1]",
                "tilezero tmm{c}",
                "tdpbssd tmm{c}, tmm{a}, tmm{b}",
                p = in(reg) self.codes.add(K * S::PARTS_AT_ONCE * QUADS),
                line = in(reg) 64_usize,
                a = const K / G % 2,
                b = const 2 + K % 2,
                c = const 4 + K % 4,
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    /// Stores the product that was started `delay` products before product `K`.
    #[inline(always)]
    unsafe fn store<S: Shape, const BLOCK: usize, const K: usize>(&self) {
        let count = Self::count::<S, BLOCK>();
        let k = (K + count - Self::delay::<S, BLOCK>()) % count;
        macro_rules! store {
            ($register:literal) => {
                asm!(
                    concat!("tilestored [{c} + {line}*1], tmm", $register),
                    c = in(reg) &raw mut (*self.products)[k / G][k % G],
                    line = in(reg) 64_usize,
                    options(nostack, preserves_flags),
                )
            };
        }
        // SAFETY: the caller's promise. Tiles are configured.
        unsafe {
            match k % 4 {
                0 => store!("4"),
                1 => store!("5"),
                2 => store!("6"),
                _ => store!("7"),
            }
        }
    }

    /// Adds the products of `count` tokens from `first` on.
    #[inline(always)]
    unsafe fn add<S: Shape, const BLOCK: usize>(
        &self,
        first: usize,
        count: usize,
        carried: &mut [[__m512i; ROWS]; G],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let tile = &*self.tile;
            for t in first..first + count {
                let mut factors = [_mm512_setzero_si512(); PARTS];
                for p in 0..Self::parts::<BLOCK>() {
                    factors[p] = _mm512_set1_epi32(tile.factor[self.part + p][t]);
                }
                let mut start = _mm512_set1_epi32(tile.start[self.part / 2][t]);
                if BLOCK > Q8_LEN {
                    start = _mm512_add_epi32(start, _mm512_set1_epi32(tile.start[1][t]));
                }
                for g in 0..G {
                    let mut n = if self.step == 0 { start } else { _mm512_add_epi32(carried[g][t], start) };
                    for p in 0..Self::parts::<BLOCK>() {
                        let sums = &raw const (*self.products)[p / S::PARTS_AT_ONCE][g]
                            [p % S::PARTS_AT_ONCE * S::TOKENS + t];
                        // Sums fit 16 bits, and the upper half of a factor is zero.
                        n = dpwssd_at(n, factors[p], sums);
                    }
                    if (self.step + 1) * COLS < BLOCK {
                        carried[g][t] = n;
                    } else {
                        let sum = &mut (*self.sums)[g][t];
                        *sum = Avx512::add_block(*sum, n, self.scales[g]);
                    }
                }
            }
        }
    }
}
