//! The loops around products of formats with at most 32 weights per scale, for every instruction set. A row
//! is runs of 32 weights; a tile is as many rows as fit the lanes of a vector. For one or two tokens, runs are
//! multiplied as they are unpacked; for more, they are unpacked once for all tokens.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::args::{Kernel, MatmulArgs};
use super::run_format::{Groups, RunFormat, WithFormat, with_format};
use super::run_isa::{EachRun, Rows, RunIsa};
use super::scalar;
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::quant::{Block, Format};

/// Weights in a run.
const RUN: usize = 32;
/// Runs of a row that are unpacked at once.
const RUNS: usize = 16;
/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 64;

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

/// What the loops know of a format.
#[derive(Clone, Copy)]
struct Shape {
    /// Runs of a block.
    runs: usize,
    /// Bytes of a block.
    bytes: usize,
    /// Whether the halves of a run have their own scales.
    halves: bool,
    minimum: bool,
    /// The largest code; none if integers are signed.
    largest: Option<u8>,
    /// What has been added to the integers.
    zero: i32,
}

impl Shape {
    #[inline(always)]
    const fn of<I: RunIsa<N>, F: RunFormat, const N: usize>() -> Shape {
        Shape {
            runs: F::Block::LEN / RUN,
            bytes: F::Block::BYTES,
            halves: F::Block::GROUP < RUN,
            minimum: F::Block::MINIMUM,
            largest: F::LARGEST,
            zero: if F::LARGEST.is_none() { I::SIGNED_ZERO } else { -(F::Block::LEAST as i32) },
        }
    }
}

/// Fills `out` in tiles of `N` rows, and of `T` tokens.
///
/// Safety: the caller has the instruction set.
#[inline(always)]
pub(super) unsafe fn rows<I: RunIsa<N>, F: RunFormat, const N: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    let (unpack, shape) = (Inlined::<F>(PhantomData), const { Shape::of::<I, F, N>() });
    for i in tiles::<N>(args, out) {
        // SAFETY: as for this function.
        unsafe {
            match args.tokens {
                1 => gemv::<I, F, N, 1>(args, out, i),
                // Unpacked weights would be written and read again for two tokens only.
                2 => gemv::<I, F, N, 2>(args, out, i),
                _ => gemm::<I, _, N, T>(shape, &unpack, args, out, i),
            }
        }
    }
}

/// [`rows`] in less code: formats share the loops around their unpacking, except that the most common ones
/// have their own for one token.
///
/// Safety: the caller has the instruction set, as has the rest of the program.
pub(super) unsafe fn rows_compact<I: RunIsa<N>, F: RunFormat, const N: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    // SAFETY: as for this function.
    unsafe {
        if F::COMMON && args.tokens == 1 {
            for i in tiles::<N>(args, out) {
                gemv::<I, F, N, 1>(args, out, i);
            }
        } else {
            let unpack = |rows, runs, w: &mut _| unpack::<I, F, N>(rows, runs, w);
            compact::<I, N>(const { Shape::of::<I, F, N>() }, &Called(unpack), args, out);
        }
    }
}

#[inline(never)]
unsafe fn compact<I: RunIsa<N>, const N: usize>(
    shape: Shape,
    unpack: &Called<I, N>,
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    for i in tiles::<N>(args, out) {
        // SAFETY: as for `rows_compact`.
        unsafe { gemm::<I, _, N, 1>(shape, unpack, args, out, i) };
    }
}

/// The first rows of tiles; the last tile may overlap the one before. Computes fewer rows than a tile itself.
#[inline(always)]
fn tiles<const N: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) -> impl Iterator<Item = usize> + use<N> {
    let len = out.len();
    if len < N {
        scalar::integer(args, out);
    }
    (0..if len < N { 0 } else { len.div_ceil(N) }).map(move |tile| (tile * N).min(len - N))
}

/// Computes N rows from row `i` for all T tokens.
#[inline(always)]
unsafe fn gemv<I: RunIsa<N>, F: RunFormat, const N: usize, const T: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let shape = const { Shape::of::<I, F, N>() };
    let tile = tile_of(args, out, i);
    let next = tile.first.wrapping_add(N * tile.stride);
    let y_blocks = q8_blocks(args.w.cols());
    // SAFETY: the caller has the instruction set, N rows and T tokens, each of which has as many runs.
    unsafe {
        let mut y = [args.q8.as_ptr(); T];
        for t in 0..T {
            y[t] = y[t].add(t * y_blocks);
        }
        let mut sums = [I::splat(0.0); T];
        let mut groups = [Groups::<I, N>::new(), Groups::new()];
        for b in 0..tile.stride / shape.bytes {
            let block = tile.skip(b * shape.bytes);
            F::scales::<I, N>(block, &mut groups);
            let add = &mut Add::<I, F, N, T> {
                y,
                next: next.wrapping_add(b * N * shape.bytes),
                first: b * shape.runs,
                groups: &groups,
                sums: &mut sums,
                format: PhantomData,
            };
            F::runs::<I, N>(block, add);
        }
        for t in 0..T {
            put::<I, N>(args, out, t, i, sums[t]);
        }
    }
}

/// Adds runs to the sums of T tokens.
struct Add<'a, I: RunIsa<N>, F, const N: usize, const T: usize> {
    y: [*const Q8Block; T],
    /// Bytes of the next tile, as many as the block has in all rows, to be prefetched.
    next: *const u8,
    /// The number of the block's first run.
    first: usize,
    groups: &'a [Groups<I, N>; 2],
    sums: &'a mut [I::Floats; T],
    format: PhantomData<F>,
}

impl<I: RunIsa<N>, F: RunFormat, const N: usize, const T: usize> EachRun<I, N> for Add<'_, I, F, N, T> {
    #[inline(always)]
    unsafe fn run(&mut self, run: usize, x: I::Bytes) {
        let shape = const { Shape::of::<I, F, N>() };
        // SAFETY: as for this function; the tokens have the run.
        unsafe {
            let share = N * shape.bytes / shape.runs;
            I::prefetch(self.next.wrapping_add(run * share), share);
            let codes = I::codes(x, shape.largest.is_none());
            let [d, m] = of_run::<I, F, N>(self.groups, run);
            add_to_all::<I, N, T>(shape, &codes, &d, &m, self.y, self.first + run, self.sums);
        }
    }
}

/// The tile whose first row is `i`.
#[inline(always)]
fn tile_of(args: &MatmulArgs<'_>, out: &OutputRows<'_>, i: usize) -> Rows {
    Rows { first: args.w.row(out.first() + i).as_ptr(), stride: args.w.row_bytes() }
}

/// Stores the outputs of N rows from row `i`.
#[inline(always)]
unsafe fn put<I: RunIsa<N>, const N: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    token: usize,
    i: usize,
    sum: I::Floats,
) {
    // SAFETY: the caller has the instruction set.
    let outputs = unsafe { I::store(I::mul(sum, I::splat(args.step(token)))) };
    out.put_all(token, i, &outputs);
}

/// The scales and the minima of the halves of a run; without halves or minima only those that are there.
type OfRun<F> = [MaybeUninit<F>; 2];

/// The scales and the minima of run `run`.
#[inline(always)]
unsafe fn of_run<I: RunIsa<N>, F: RunFormat, const N: usize>(
    groups: &[Groups<I, N>; 2],
    run: usize,
) -> [OfRun<I::Floats>; 2] {
    let mut all = [[MaybeUninit::uninit(); 2]; 2];
    for (i, all) in all.iter_mut().enumerate().take(if F::Block::MINIMUM { 2 } else { 1 }) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            all[0].write(groups[i].get(run * RUN / F::Block::GROUP));
            if F::Block::GROUP < RUN {
                all[1].write(groups[i].get((run * RUN + 16) / F::Block::GROUP));
            }
        }
    }
    all
}

/// Adds a run of N rows to the `sums` of the T tokens at `y`.
#[inline(always)]
unsafe fn add_to_all<I: RunIsa<N>, const N: usize, const T: usize>(
    shape: Shape,
    codes: &I::Codes,
    d: &OfRun<I::Floats>,
    m: &OfRun<I::Floats>,
    y: [*const Q8Block; T],
    run: usize,
    sums: &mut [I::Floats; T],
) {
    // SAFETY: as for `add_run`.
    unsafe {
        if I::PAIRS && T.is_multiple_of(2) {
            for (y, sums) in y.as_chunks::<2>().0.iter().zip(sums.as_chunks_mut::<2>().0) {
                add_run::<I, N, 2>(shape, codes, d, m, *y, run, sums);
            }
        } else {
            for t in 0..T {
                add_run::<I, N, 1>(shape, codes, d, m, [y[t]], run, core::array::from_mut(&mut sums[t]));
            }
        }
    }
}

/// Adds a run of N rows to the `sums` of the P tokens at `y`, which are multiplied together.
#[inline(always)]
unsafe fn add_run<I: RunIsa<N>, const N: usize, const P: usize>(
    shape: Shape,
    codes: &I::Codes,
    d: &OfRun<I::Floats>,
    m: &OfRun<I::Floats>,
    y: [*const Q8Block; P],
    run: usize,
    sums: &mut [I::Floats; P],
) {
    let at = run % 2;
    // SAFETY: the caller has the instruction set and the run; the second half has scales if halves have, and
    // minima are there if the format has them.
    unsafe {
        for half in 0..if shape.halves { 2 } else { 1 } {
            let (mut s, mut start, mut q) = ([0; P], [0; P], [core::ptr::null(); P]);
            for p in 0..P {
                let y = &*y[p].add(run / 2);
                let (low, high) = (i32::from(y.sums[2 * at]), i32::from(y.sums[2 * at + 1]));
                let (sum, first) = match (shape.halves, half) {
                    (false, _) => (low + high, 0),
                    (_, 0) => (low, 0),
                    _ => (high, 16),
                };
                s[p] = sum;
                start[p] = -shape.zero * sum;
                q[p] = y.q.as_ptr().add(RUN * at + first);
            }
            let n = I::dots(codes, shape.halves.then_some(half), q, start, shape.largest);
            for p in 0..P {
                let factor = (*y[p].add(run / 2)).float_factor[at];
                sums[p] = I::add(sums[p], I::mul(n[p], I::splat(factor)), d[half].assume_init());
                if shape.minimum {
                    sums[p] = I::add(sums[p], I::splat(s[p] as f32 * factor), m[half].assume_init());
                }
            }
        }
    }
}

/// Unpacked runs of a tile.
struct Unpacked<I: RunIsa<N>, const N: usize> {
    codes: [MaybeUninit<I::Codes>; RUNS],
    scales: [OfRun<I::Floats>; RUNS],
    minima: [OfRun<I::Floats>; RUNS],
}

/// Unpacks runs.
struct Keep<'a, I: RunIsa<N>, F, const N: usize> {
    /// The number of the block's first run.
    first: usize,
    groups: &'a [Groups<I, N>; 2],
    w: &'a mut Unpacked<I, N>,
    format: PhantomData<F>,
}

impl<I: RunIsa<N>, F: RunFormat, const N: usize> EachRun<I, N> for Keep<'_, I, F, N> {
    #[inline(always)]
    unsafe fn run(&mut self, run: usize, x: I::Bytes) {
        let at = self.first + run;
        // SAFETY: as for this function.
        unsafe {
            self.w.codes[at].write(I::codes(x, F::LARGEST.is_none()));
            [self.w.scales[at], self.w.minima[at]] = of_run::<I, F, N>(self.groups, run);
        }
    }
}

/// How [`gemm`] unpacks a format.
trait Unpack<I: RunIsa<N>, const N: usize> {
    /// [`unpack`]
    unsafe fn unpack(&self, rows: Rows, n: usize, w: &mut Unpacked<I, N>);
}

/// A format that is inlined.
struct Inlined<F>(PhantomData<F>);

impl<I: RunIsa<N>, F: RunFormat, const N: usize> Unpack<I, N> for Inlined<F> {
    #[inline(always)]
    unsafe fn unpack(&self, rows: Rows, n: usize, w: &mut Unpacked<I, N>) {
        // SAFETY: as for this function.
        unsafe { unpack::<I, F, N>(rows, n, w) };
    }
}

/// A format that is called.
struct Called<I: RunIsa<N>, const N: usize>(unsafe fn(Rows, usize, &mut Unpacked<I, N>));

impl<I: RunIsa<N>, const N: usize> Unpack<I, N> for Called<I, N> {
    unsafe fn unpack(&self, rows: Rows, n: usize, w: &mut Unpacked<I, N>) {
        // SAFETY: as for this function.
        unsafe { (self.0)(rows, n, w) };
    }
}

/// Unpacks the first `n` runs of the blocks at `rows`.
///
/// Safety: needs the instruction set, and whole blocks of so many runs.
#[inline(always)]
unsafe fn unpack<I: RunIsa<N>, F: RunFormat, const N: usize>(rows: Rows, n: usize, w: &mut Unpacked<I, N>) {
    let shape = const { Shape::of::<I, F, N>() };
    let mut groups = [Groups::<I, N>::new(), Groups::new()];
    for b in 0..n / shape.runs {
        let block = rows.skip(b * shape.bytes);
        // SAFETY: as for this function.
        unsafe {
            F::scales::<I, N>(block, &mut groups);
            let keep =
                &mut Keep::<I, F, N> { first: b * shape.runs, groups: &groups, w, format: PhantomData };
            F::runs::<I, N>(block, keep);
        }
    }
}

/// Computes N rows from row `i` for many tokens.
#[inline(always)]
unsafe fn gemm<I: RunIsa<N>, U: Unpack<I, N>, const N: usize, const T: usize>(
    shape: Shape,
    unpack: &U,
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
    i: usize,
) {
    let runs = args.w.cols() / RUN;
    let y_blocks = q8_blocks(args.w.cols());
    let tile = tile_of(args, out, i);
    let next = tile.first.wrapping_add(N * tile.stride);
    // SAFETY: the caller has the instruction set and N rows; each token has as many runs. Runs are unpacked
    // before they are read.
    unsafe {
        let w = &mut Unpacked::<I, N> {
            codes: [MaybeUninit::uninit(); RUNS],
            scales: [[MaybeUninit::uninit(); 2]; RUNS],
            minima: [[MaybeUninit::uninit(); 2]; RUNS],
        };
        let mut sums = [MaybeUninit::uninit(); TOKENS];
        for first in (0..args.tokens).step_by(TOKENS) {
            let tokens = TOKENS.min(args.tokens - first);
            sums[..tokens].fill(MaybeUninit::new(I::splat(0.0)));
            for start in (0..runs).step_by(RUNS) {
                let n = RUNS.min(runs - start);
                let at = start / shape.runs * shape.bytes;
                // The next tokens find them in a cache.
                if first == 0 {
                    I::prefetch(next.wrapping_add(N * at), n / shape.runs * shape.bytes * N);
                }
                unpack.unpack(tile.skip(at), n, w);
                let y = args.q8.as_ptr().add(first * y_blocks + start / 2);
                let mut t = 0;
                while t + T <= tokens {
                    add_runs::<I, N, T>(shape, w, n, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += T;
                }
                while t < tokens {
                    add_runs::<I, N, 1>(shape, w, n, y.add(t * y_blocks), y_blocks, &mut sums[t..]);
                    t += 1;
                }
            }
            for t in 0..tokens {
                put::<I, N>(args, out, first + t, i, sums[t].assume_init());
            }
        }
    }
}

/// Adds `n` runs to the sums of T tokens, which are `y_blocks` apart at `y`.
#[inline(always)]
unsafe fn add_runs<I: RunIsa<N>, const N: usize, const T: usize>(
    shape: Shape,
    w: &Unpacked<I, N>,
    n: usize,
    y: *const Q8Block,
    y_blocks: usize,
    sums: &mut [MaybeUninit<I::Floats>],
) {
    // SAFETY: the caller has the instruction set, these runs and T sums.
    unsafe {
        let (mut tile, mut all) = ([I::splat(0.0); T], [y; T]);
        for t in 0..T {
            tile[t] = sums[t].assume_init();
            all[t] = y.add(t * y_blocks);
        }
        for run in 0..n {
            let codes = w.codes[run].assume_init_ref();
            add_to_all::<I, N, T>(shape, codes, &w.scales[run], &w.minima[run], all, run, &mut tile);
        }
        for t in 0..T {
            sums[t].write(tile[t]);
        }
    }
}
