//! The loops around products of formats with at most 32 weights per scale, for every instruction set. A row
//! is runs of 32 weights. For one token, a few rows share its activations; for several, the runs of a few
//! rows are unpacked once for all tokens.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::args::{Kernel, MatmulArgs};
use super::run_format::{RunFormat, WithFormat, with_format};
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::op::finish;
use crate::cpu::parallel::OutputRows;
use crate::quant::{Block, Format, MAX_BLOCK};

/// Weights in a run.
const RUN: usize = 32;
/// Most groups per block.
pub(super) const MAX_GROUPS: usize = MAX_BLOCK / 16;
/// Runs of a row that are unpacked at once.
const RUNS: usize = 32;
/// Tokens that share one unpacking of the weights.
const TOKEN_BLOCK: usize = 32;

/// Products of runs in an instruction set.
///
/// Safety: all functions need the instruction set.
pub(super) trait Products {
    /// 32 integers of weights, ready to be multiplied, in each of some rows.
    type Codes: Copy;
    /// The activations of a run.
    type Acts: Copy;
    /// Eight floats for each row.
    type Floats: Copy;

    /// The 32 activations at `q` with their factor, for weights to which `zero` was added.
    unsafe fn acts<const SIGNED: bool>(q: *const i8, factor: i32, zero: i8) -> Self::Acts;
    /// The sums of four activations each, times their factor.
    unsafe fn sums(acts: Self::Acts) -> Self::Floats;
    /// The eight `n` of `scalar.rs`.
    unsafe fn dot<const SIGNED: bool>(w: Self::Codes, acts: Self::Acts) -> Self::Floats;
    /// `sum + a * b`, each operation rounded.
    unsafe fn add(sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
}

/// An instruction set that unpacks runs, one row at a time.
///
/// Safety: all functions need the instruction set and as many bytes at a pointer as they say.
pub(super) trait RunIsa: Products {
    /// 32 bytes.
    type Bytes: Copy;
    /// What multiplies unpacked rows: this, or wider vectors that hold the vectors of several rows.
    type Wide: Products;

    /// The 32 bytes at `p`.
    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// The low nibbles of 16 bytes at `p`, then the high ones.
    unsafe fn nibbles(p: *const u8) -> Self::Bytes;
    /// `(x >> shift) & mask` of each byte; `mask` has at most `8 - shift` bits.
    unsafe fn field(x: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes;
    /// `x << shift` of each byte, which overflows no byte.
    unsafe fn shl(x: Self::Bytes, shift: usize) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `value` where bit j of `bits` is set, else 0, as byte j.
    unsafe fn bits(bits: u32, value: u8) -> Self::Bytes;
    /// Each byte, below 16, replaced by its element of `table`.
    unsafe fn look_up(table: &[i8; 16], x: Self::Bytes) -> Self::Bytes;
    /// Exchanges bytes 8 to 15 with bytes 16 to 23.
    unsafe fn swap_middle(x: Self::Bytes) -> Self::Bytes;
    /// The f16 in the two bytes at `p`.
    unsafe fn f16(p: *const u8) -> f32;

    /// Integers to multiply; not negative unless `SIGNED`.
    unsafe fn codes<const SIGNED: bool>(x: Self::Bytes) -> Self::Codes;
    /// `a` in the first four lanes, `b` in the others.
    unsafe fn lanes(a: f32, b: f32) -> Self::Floats;
    unsafe fn store(sum: Self::Floats) -> [f32; 8];
    /// Prefetches ahead of the bytes at `p`, which may be any address.
    fn prefetch(p: *const u8, bytes: usize);
}

/// The kernels of an instruction set: [`rows`] compiled for it.
pub(super) trait RunKernels {
    fn kernel<F: RunFormat>() -> Kernel;
}

/// The kernel for `format`, if it has at most 32 weights per scale.
pub(super) fn of<K: RunKernels>(format: Format) -> Option<Kernel> {
    struct Of<K>(PhantomData<K>);
    impl<K: RunKernels> WithFormat for Of<K> {
        type Output = Kernel;

        fn with<F: RunFormat>(self) -> Kernel {
            K::kernel::<F>()
        }
    }
    with_format(format, Of::<K>(PhantomData))
}

/// Fills `out` in tiles of `R` rows and `T` tokens, or of `G` rows for one token.
///
/// Safety: the caller has the instruction set.
#[inline(always)]
pub(super) unsafe fn rows<I: RunIsa, F: RunFormat, const G: usize, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    // Jobs are multiples of tiles, but for the last rows of a few matrices.
    let tile = if args.tokens == 1 { G } else { R };
    let whole = out.len() / tile * tile;
    for i in (0..whole).step_by(tile) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            match (args.tokens, F::Block::MINIMUM) {
                (1, _) => gemv::<I, F, G, 1>(args, out, i),
                // Unpacked weights would be written and read again for two tokens only.
                (2, _) => gemv::<I, F, R, 2>(args, out, i),
                (_, true) => gemm::<I, Inlined<F>, true, R, T>(&Inlined(PhantomData), args, out, i),
                (_, false) => gemm::<I, Inlined<F>, false, R, T>(&Inlined(PhantomData), args, out, i),
            }
        }
    }
    if whole < out.len() {
        super::scalar::integer_from(whole, args, out);
    }
}

/// [`rows`] in less code: formats share the loops around their unpacking, except that the most common ones
/// have their own for one token.
///
/// Safety: the caller has the instruction set, as has the rest of the program.
pub(super) unsafe fn rows_compact<I: RunIsa, F: RunFormat, const R: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    if F::COMMON && args.tokens == 1 {
        // SAFETY: as for this function.
        return unsafe { one::<I, F, R>(args, out) };
    }
    let format = Called {
        runs: F::Block::LEN / RUN,
        bytes: F::Block::BYTES,
        zero: F::ZERO,
        signed: F::SIGNED,
        unpack: |blocks, r, n, w| {
            // SAFETY: as for `Unpack::unpack`.
            unsafe { Inlined::<F>(PhantomData).unpack::<I, R>(blocks, r, n, w) }
        },
    };
    // SAFETY: as for this function.
    unsafe {
        if F::Block::MINIMUM {
            tiles::<I, true, R>(&format, args, out);
        } else {
            tiles::<I, false, R>(&format, args, out);
        }
    }
}

/// [`rows`] for one token.
#[inline(never)]
unsafe fn one<I: RunIsa, F: RunFormat, const R: usize>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let whole = out.len() / R * R;
    for i in (0..whole).step_by(R) {
        // SAFETY: the caller has the instruction set.
        unsafe { gemv::<I, F, R, 1>(args, out, i) };
    }
    if whole < out.len() {
        super::scalar::integer_from(whole, args, out);
    }
}

#[inline(never)]
unsafe fn tiles<I: RunIsa, const MINIMUM: bool, const R: usize>(
    format: &Called<I, R>,
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    let whole = out.len() / R * R;
    for i in (0..whole).step_by(R) {
        // SAFETY: the caller has the instruction set.
        unsafe { gemm::<I, _, MINIMUM, R, 1>(format, args, out, i) };
    }
    if whole < out.len() {
        super::scalar::integer_from(whole, args, out);
    }
}

/// The values of `groups` for the weights of run `run`.
#[inline(always)]
unsafe fn of_run<I: RunIsa, B: Block>(groups: &[f32; MAX_GROUPS], run: usize) -> I::Floats {
    let first = groups[run * RUN / B::GROUP];
    let second = if B::GROUP < RUN { groups[(run * RUN + 16) / B::GROUP] } else { first };
    // SAFETY: the caller has the instruction set.
    unsafe { I::lanes(first, second) }
}

/// Computes R rows from row `i` for all T tokens.
#[inline(always)]
unsafe fn gemv<I: RunIsa, F: RunFormat, const R: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let row_bytes = args.w.row_bytes();
    let base = args.w.row(out.first() + i).as_ptr();
    let blocks = row_bytes / F::Block::BYTES;
    let y_blocks = q8_blocks(args.w.cols());
    // SAFETY: the caller has the instruction set, R rows and T tokens, each of which has as many runs.
    unsafe {
        let mut y = [args.q8.as_ptr(); T];
        for t in 0..T {
            y[t] = y[t].add(t * y_blocks);
        }
        let mut sums = [[I::lanes(0.0, 0.0); R]; T];
        // Runs come in pairs, as those of activations do.
        let step = 64usize.div_ceil(F::Block::LEN);
        let bytes = step * F::Block::BYTES;
        for b in 0..blocks / step {
            let at = base.wrapping_add(b * bytes);
            I::prefetch(base.wrapping_add(b * bytes * R), bytes * R);
            let y = y.map(|y| y.add(b * (step * F::Block::LEN / 64)));
            for n in 0..step {
                let block = at.wrapping_add(n * F::Block::BYTES);
                add_block::<I, F, R, T>(block, row_bytes, &y, n, &mut sums);
            }
        }
        if blocks % step == 1 {
            let at = base.wrapping_add((blocks - 1) * F::Block::BYTES);
            add_block::<I, F, R, T>(at, row_bytes, &y.map(|y| y.add(blocks / 2)), 0, &mut sums);
        }
        for t in 0..T {
            for r in 0..R {
                out.put(t, i + r, finish(&I::store(sums[t][r])) * args.step(t));
            }
        }
    }
}

/// Adds to the sums of R rows and T tokens the block at `at`, and those at the same place of the following rows. Its
/// activations begin with run `first` of each `y`.
#[inline(always)]
unsafe fn add_block<I: RunIsa, F: RunFormat, const R: usize, const T: usize>(
    at: *const u8,
    row_bytes: usize,
    y: &[*const Q8Block; T],
    first: usize,
    sums: &mut [[I::Floats; R]; T],
) {
    // SAFETY: the caller has the instruction set, the blocks and the activations.
    unsafe {
        let mut scales = [[[0.0; MAX_GROUPS]; 2]; R];
        for r in 0..R {
            scales[r] = F::scales::<I>(at.wrapping_add(r * row_bytes));
        }
        for run in 0..F::Block::LEN / RUN {
            let mut all = [acts::<I>(F::SIGNED, y[0], first + run, F::ZERO); T];
            for t in 1..T {
                all[t] = acts::<I>(F::SIGNED, y[t], first + run, F::ZERO);
            }
            for r in 0..R {
                let codes = codes::<I, F>(at.wrapping_add(r * row_bytes), run);
                let scale = of_run::<I, F::Block>(&scales[r][0], run);
                for t in 0..T {
                    sums[t][r] = I::add(sums[t][r], dot::<I>(F::SIGNED, codes, all[t]), scale);
                }
                if F::Block::MINIMUM {
                    let minimum = of_run::<I, F::Block>(&scales[r][1], run);
                    for t in 0..T {
                        sums[t][r] = I::add(sums[t][r], I::sums(all[t]), minimum);
                    }
                }
            }
        }
    }
}

/// The activations of run `run` of a token, for weights to which `zero` was added.
#[inline(always)]
unsafe fn acts<I: Products>(signed: bool, y: *const Q8Block, run: usize, zero: i8) -> I::Acts {
    // SAFETY: the caller has the instruction set, and this run.
    unsafe {
        let (y, half) = (&*y.add(run / 2), run % 2);
        let (q, factor) = (y.q.as_ptr().add(RUN * half), y.factor[half]);
        if signed { I::acts::<true>(q, factor, zero) } else { I::acts::<false>(q, factor, zero) }
    }
}

/// Run `run` of a block, ready to be multiplied.
#[inline(always)]
unsafe fn codes<I: RunIsa, F: RunFormat>(block: *const u8, run: usize) -> I::Codes {
    // SAFETY: the caller has the instruction set and the block.
    unsafe {
        let x = F::run::<I>(block, run);
        if F::SIGNED { I::codes::<true>(x) } else { I::codes::<false>(x) }
    }
}

#[inline(always)]
unsafe fn dot<I: Products>(signed: bool, w: I::Codes, acts: I::Acts) -> I::Floats {
    // SAFETY: the caller has the instruction set.
    unsafe { if signed { I::dot::<true>(w, acts) } else { I::dot::<false>(w, acts) } }
}

/// Unpacked runs of R rows.
struct Unpacked<I: RunIsa, const R: usize> {
    codes: [[MaybeUninit<I::Codes>; R]; RUNS],
    scales: [[MaybeUninit<I::Floats>; R]; RUNS],
    minima: [[MaybeUninit<I::Floats>; R]; RUNS],
}

/// A format as [`gemm`] needs it.
trait Unpack<I: RunIsa, const R: usize> {
    /// Runs of a block.
    fn runs(&self) -> usize;
    /// Bytes of a block.
    fn bytes(&self) -> usize;
    /// Added to the integers.
    fn zero(&self) -> i8;
    /// Whether integers are multiplied as they are.
    fn signed(&self) -> bool;
    /// Unpacks the first `n` runs of `blocks` as those of row `r`.
    ///
    /// Safety: needs the instruction set, and whole blocks of so many runs.
    unsafe fn unpack(&self, blocks: *const u8, r: usize, n: usize, w: &mut Unpacked<I, R>);
}

/// A format that is inlined.
struct Inlined<F>(PhantomData<F>);

impl<F: RunFormat> Inlined<F> {
    #[inline(always)]
    unsafe fn unpack<I: RunIsa, const R: usize>(
        &self,
        blocks: *const u8,
        r: usize,
        n: usize,
        w: &mut Unpacked<I, R>,
    ) {
        let per_block = F::Block::LEN / RUN;
        for at in (0..n).step_by(per_block) {
            // SAFETY: as for `Unpack::unpack`.
            unsafe {
                let block = blocks.add(at / per_block * F::Block::BYTES);
                let scales = F::scales::<I>(block);
                for run in 0..per_block {
                    w.codes[at + run][r].write(codes::<I, F>(block, run));
                    w.scales[at + run][r].write(of_run::<I, F::Block>(&scales[0], run));
                    if F::Block::MINIMUM {
                        w.minima[at + run][r].write(of_run::<I, F::Block>(&scales[1], run));
                    }
                }
            }
        }
    }
}

impl<I: RunIsa, F: RunFormat, const R: usize> Unpack<I, R> for Inlined<F> {
    #[inline(always)]
    fn runs(&self) -> usize {
        F::Block::LEN / RUN
    }

    #[inline(always)]
    fn bytes(&self) -> usize {
        F::Block::BYTES
    }

    #[inline(always)]
    fn zero(&self) -> i8 {
        F::ZERO
    }

    #[inline(always)]
    fn signed(&self) -> bool {
        F::SIGNED
    }

    #[inline(always)]
    unsafe fn unpack(&self, blocks: *const u8, r: usize, n: usize, w: &mut Unpacked<I, R>) {
        // SAFETY: as for this function.
        unsafe { self.unpack::<I, R>(blocks, r, n, w) };
    }
}

/// A format that is called.
struct Called<I: RunIsa, const R: usize> {
    runs: usize,
    bytes: usize,
    zero: i8,
    signed: bool,
    unpack: fn(*const u8, usize, usize, &mut Unpacked<I, R>),
}

impl<I: RunIsa, const R: usize> Unpack<I, R> for Called<I, R> {
    fn runs(&self) -> usize {
        self.runs
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn zero(&self) -> i8 {
        self.zero
    }

    fn signed(&self) -> bool {
        self.signed
    }

    unsafe fn unpack(&self, blocks: *const u8, r: usize, n: usize, w: &mut Unpacked<I, R>) {
        (self.unpack)(blocks, r, n, w);
    }
}

/// Computes R rows from row `i` for many tokens.
#[inline(always)]
unsafe fn gemm<I: RunIsa, U: Unpack<I, R>, const MINIMUM: bool, const R: usize, const T: usize>(
    format: &U,
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let row_bytes = args.w.row_bytes();
    let (runs, per_block) = (args.w.cols() / RUN, format.runs());
    let base = args.w.row(out.first() + i).as_ptr();
    // SAFETY: the caller has the instruction set and R rows; each token has as many runs. Runs are unpacked
    // before they are read.
    unsafe {
        let w = &mut Unpacked::<I, R> {
            codes: [[MaybeUninit::uninit(); R]; RUNS],
            scales: [[MaybeUninit::uninit(); R]; RUNS],
            minima: [[MaybeUninit::uninit(); R]; RUNS],
        };
        for first in (0..args.tokens).step_by(TOKEN_BLOCK) {
            let tokens = TOKEN_BLOCK.min(args.tokens - first);
            let mut sums = [[I::lanes(0.0, 0.0); R]; TOKEN_BLOCK];
            for start in (0..runs).step_by(RUNS) {
                let n = RUNS.min(runs - start);
                for r in 0..R {
                    let blocks = base.add(r * row_bytes + start / per_block * format.bytes());
                    // The next tokens find them in a cache.
                    if first == 0 {
                        I::prefetch(blocks, n / per_block * format.bytes());
                    }
                    format.unpack(blocks, r, n, w);
                }
                let y_blocks = q8_blocks(args.w.cols());
                let y = args.q8.as_ptr().add(first * y_blocks + start / 2);
                let mut t = 0;
                while t + T <= tokens {
                    tile::<I, U, MINIMUM, R, T>(format, w, n, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += T;
                }
                while t < tokens {
                    tile::<I, U, MINIMUM, R, 1>(format, w, n, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += 1;
                }
            }
            for t in 0..tokens {
                for r in 0..R {
                    out.put(first + t, i + r, finish(&I::store(sums[t][r])) * args.step(first + t));
                }
            }
        }
    }
}

/// Adds `n` runs to the sums of R rows and of T tokens, which are `y_blocks` apart at `y`.
#[inline(always)]
unsafe fn tile<I: RunIsa, U: Unpack<I, R>, const MINIMUM: bool, const R: usize, const T: usize>(
    format: &U,
    w: &Unpacked<I, R>,
    n: usize,
    y: *const Q8Block,
    y_blocks: usize,
    sums: &mut [[I::Floats; R]],
) {
    // Rows of a vector.
    let rows = size_of::<Floats<I::Wide>>() / size_of::<I::Floats>();
    let vectors = R / rows;
    // SAFETY: the caller has the instruction set and these runs. The vectors of adjacent rows are adjacent, so
    // that wide vectors are read and written in their place.
    unsafe {
        let sums = sums.as_mut_ptr().cast::<I::Floats>();
        let at = |t: usize, v: usize| sums.add(t * R + v * rows).cast::<Floats<I::Wide>>();
        let mut tile = [[at(0, 0).read_unaligned(); R]; T];
        for t in 0..T {
            for v in 0..vectors {
                tile[t][v] = at(t, v).read_unaligned();
            }
        }
        for run in 0..n {
            let codes = w.codes.as_ptr().add(run).cast::<I::Codes>();
            let scales = w.scales.as_ptr().add(run).cast::<I::Floats>();
            let minima = w.minima.as_ptr().add(run).cast::<I::Floats>();
            for t in 0..T {
                let acts = acts::<I::Wide>(format.signed(), y.add(t * y_blocks), run, format.zero());
                for v in 0..vectors {
                    let codes = codes.add(v * rows).cast::<Codes<I::Wide>>().read_unaligned();
                    let scale = scales.add(v * rows).cast::<Floats<I::Wide>>().read_unaligned();
                    let n = dot::<I::Wide>(format.signed(), codes, acts);
                    tile[t][v] = I::Wide::add(tile[t][v], n, scale);
                    if MINIMUM {
                        let minimum = minima.add(v * rows).cast::<Floats<I::Wide>>().read_unaligned();
                        tile[t][v] = I::Wide::add(tile[t][v], I::Wide::sums(acts), minimum);
                    }
                }
            }
        }
        for t in 0..T {
            for v in 0..vectors {
                at(t, v).write_unaligned(tile[t][v]);
            }
        }
    }
}

type Codes<P> = <P as Products>::Codes;
type Floats<P> = <P as Products>::Floats;
