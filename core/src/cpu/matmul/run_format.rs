//! Formats with at most 32 weights per scale, for every instruction set: how vector instructions unpack their
//! runs of 32 weights. The formats themselves are described in `quant/`.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::run_isa::{EachRun, Rows, RunIsa};
use crate::quant::codebook::{Codebook, points};
use crate::quant::{self, Block, Format, MAX_BLOCK, codebook};

/// Maximum number of groups per block.
const MAX_GROUPS: usize = MAX_BLOCK / 16;

/// The scales, or minima, of the groups of a block in N rows; only those that have been set.
pub(super) struct Groups<I: RunIsa<N>, const N: usize>([MaybeUninit<I::Floats>; MAX_GROUPS]);

impl<I: RunIsa<N>, const N: usize> Groups<I, N> {
    pub(super) const fn new() -> Self {
        Groups([MaybeUninit::uninit(); MAX_GROUPS])
    }

    /// Safety: it has been set.
    #[inline(always)]
    pub(super) unsafe fn get(&self, group: usize) -> I::Floats {
        // SAFETY: as for this function.
        unsafe { self.0[group % MAX_GROUPS].assume_init() }
    }

    #[inline(always)]
    fn set(&mut self, group: usize, values: I::Floats) {
        self.0[group % MAX_GROUPS].write(values);
    }
}

/// A format as [`run_kernel`](super::run_kernel) reads it.
///
/// Safety: all functions need the instruction set, and a whole block in each row at `block`.
pub(super) trait RunFormat {
    /// The same format in scalar code.
    type Block: Block;
    /// The largest code, the zero point added to the integers; none if they are multiplied as they are.
    const LARGEST: Option<u8>;
    /// Whether many files have it.
    const COMMON: bool = false;

    /// Calls `f` with each run of a block, plus the zero point, and its number, in order.
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>);

    /// The scales of the groups, and the minima.
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, groups: &mut [Groups<I, N>; 2]);
}

/// What to do with the kernel of a format.
pub(super) trait WithFormat {
    type Output;
    fn with<F: RunFormat>(self) -> Self::Output;
}

/// Calls `f` with `format`; `None` for formats with more weights per scale.
pub(super) fn with_format<W: WithFormat>(format: Format, f: W) -> Option<W::Output> {
    Some(match format {
        Format::Q8_0 => f.with::<Q8_0>(),
        Format::Q4_0 => f.with::<Q4_0>(),
        Format::Q4_1 => f.with::<Q4_1>(),
        Format::Q5_0 => f.with::<Q5_0>(),
        Format::Q5_1 => f.with::<Q5_1>(),
        Format::Q2K => f.with::<Q2K>(),
        Format::Q3K => f.with::<Q3K>(),
        Format::Q4K => f.with::<Q4K>(),
        Format::Q5K => f.with::<Q5K>(),
        Format::Q6K => f.with::<Q6K>(),
        Format::Q8K => f.with::<Q8K>(),
        Format::Iq4Nl => f.with::<Iq4Nl>(),
        Format::Iq4Xs => f.with::<Iq4Xs>(),
        Format::Iq1S => f.with::<Points<codebook::Iq1S>>(),
        Format::Iq1M => f.with::<Points<codebook::Iq1M>>(),
        Format::Iq2Xxs => f.with::<Points<codebook::Iq2Xxs>>(),
        Format::Iq2Xs => f.with::<Points<codebook::Iq2Xs>>(),
        Format::Iq2S => f.with::<Points<codebook::Iq2S>>(),
        Format::Iq3Xxs => f.with::<Points<codebook::Iq3Xxs>>(),
        Format::Iq3S => f.with::<Points<codebook::Iq3S>>(),
        Format::Mxfp4 => f.with::<Mxfp4>(),
        Format::Nvfp4 => f.with::<Nvfp4>(),
        _ => return None,
    })
}

/// `f` of the start of each row.
macro_rules! each_row {
    ($n:ident, |$r:ident| $f:expr) => {{
        // A loop, as closures are not always inlined to where the instruction set is.
        let mut all = [Default::default(); $n];
        for $r in 0..$n {
            all[$r] = $f;
        }
        all
    }};
}

/// The word at the start of each row.
#[inline(always)]
unsafe fn word<I: RunIsa<N>, const N: usize>(rows: Rows) -> I::Words {
    // SAFETY: the caller has the instruction set, and 4 bytes in each row.
    unsafe { I::to_words(&each_row!(N, |r| u32::from_le(rows.row(r).cast::<u32>().read_unaligned()))) }
}

/// The f16 at the start of each row.
#[inline(always)]
unsafe fn f16<I: RunIsa<N>, const N: usize>(rows: Rows) -> I::Floats {
    // SAFETY: the caller has the instruction set, and 2 bytes in each row.
    unsafe {
        let halves = each_row!(N, |r| u32::from(u16::from_le(rows.row(r).cast::<u16>().read_unaligned())));
        I::f16(I::to_words(&halves))
    }
}

/// The f16 in the low half of each word, and that in the high half with its sign changed.
#[inline(always)]
unsafe fn scale_and_minimum<I: RunIsa<N>, const N: usize>(x: I::Words) -> [I::Floats; 2] {
    // SAFETY: the caller has the instruction set.
    unsafe { [I::f16(x), I::mul(I::f16(I::word_field(x, 16, 0xffff)), I::splat(-1.0))] }
}

/// A format with one run per block: an f16 scale at its start, and an f16 minimum after it if there are minima.
macro_rules! one_run {
    ($name:ident, $block:ty, $largest:expr, $common:expr, |$rows:ident| $run:expr) => {
        struct $name;
        impl RunFormat for $name {
            type Block = $block;
            const LARGEST: Option<u8> = $largest;
            const COMMON: bool = $common;

            #[inline(always)]
            unsafe fn runs<I: RunIsa<N>, const N: usize>($rows: Rows, f: &mut impl EachRun<I, N>) {
                // SAFETY: as for this function.
                unsafe { f.run(0, $run) };
            }

            #[inline(always)]
            unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, m]: &mut [Groups<I, N>; 2]) {
                // SAFETY: as for this function.
                unsafe {
                    if Self::Block::MINIMUM {
                        let both = word::<I, N>(block);
                        d.set(0, I::f16(both));
                        m.set(0, I::f16(I::word_field(both, 16, 0xffff)));
                    } else {
                        d.set(0, f16::<I, N>(block));
                    }
                }
            }
        }
    };
}

one_run!(Q8_0, quant::q8_0::Q8_0, None, true, |rows| I::load(rows.skip(2)));
one_run!(Q4_0, quant::q4_0::Q4_0, Some(15), true, |rows| I::nibbles(rows.skip(2)));
one_run!(Q4_1, quant::q4_1::Q4_1, Some(15), false, |rows| I::nibbles(rows.skip(4)));
one_run!(Q5_0, quant::q5_0::Q5_0, Some(31), false, |rows| {
    I::or(I::nibbles(rows.skip(6)), I::bits(word::<I, N>(rows.skip(2)), 16))
});
one_run!(Q5_1, quant::q5_1::Q5_1, Some(31), false, |rows| {
    I::or(I::nibbles(rows.skip(8)), I::bits(word::<I, N>(rows.skip(4)), 16))
});
one_run!(Iq4Nl, quant::iq4_nl::Iq4Nl, None, false, |rows| {
    I::look_up(&quant::iq4_nl::LEVELS, I::nibbles(rows.skip(2)))
});

const FOUR_BITS: u32 = 0x0f0f_0f0f;
const TWO_BITS: u32 = 0x0303_0303;

/// The scales and minima of Q4_K and Q5_K.
#[inline(always)]
unsafe fn six_bits<I: RunIsa<N>, const N: usize>(block: Rows, [d, m]: &mut [Groups<I, N>; 2]) {
    // SAFETY: the caller has 16 bytes in each row.
    unsafe {
        let [both, a, b, c] = I::words(block);
        let [d_all, m_all] = scale_and_minimum::<I, N>(both);
        let high = |four, x| I::join(I::word_field(c, four, FOUR_BITS), I::word_field(x, 6, TWO_BITS), 4);
        let scales = [I::word_field(a, 0, 0x3f3f_3f3f), high(0, a)];
        let minima = [I::word_field(b, 0, 0x3f3f_3f3f), high(4, b)];
        for g in 0..8 {
            d.set(g, I::mul(I::byte(scales[g / 4], g % 4, 0), d_all));
            m.set(g, I::mul(I::byte(minima[g / 4], g % 4, 0), m_all));
        }
    }
}

struct Q2K;
impl RunFormat for Q2K {
    type Block = quant::k_quants::Q2K;
    const LARGEST: Option<u8> = Some(3);

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        for part in 0..2 {
            // SAFETY: as for this function.
            unsafe {
                let x = I::load(block.skip(16 + 32 * part));
                for k in 0..4 {
                    f.run(4 * part + k, I::field(x, 2 * k, 3));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, m]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let [d_all, m_all] = scale_and_minimum::<I, N>(word::<I, N>(block.skip(80)));
            let words = I::words(block);
            for g in 0..16 {
                let word = words[g / 4];
                d.set(g, I::mul(I::byte(I::word_field(word, 0, FOUR_BITS), g % 4, 0), d_all));
                m.set(g, I::mul(I::byte(I::word_field(word, 4, FOUR_BITS), g % 4, 0), m_all));
            }
        }
    }
}

struct Q3K;
impl RunFormat for Q3K {
    type Block = quant::k_quants::Q3K;
    const LARGEST: Option<u8> = Some(7);

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        // SAFETY: as for this function.
        unsafe {
            let high = I::load(block);
            for part in 0..2 {
                let x = I::load(block.skip(32 + 32 * part));
                for k in 0..4 {
                    let run = 4 * part + k;
                    f.run(run, I::or(I::field(x, 2 * k, 3), I::shl(I::field(high, run, 1), 2)));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let d_all = f16::<I, N>(block.skip(108));
            let low = [word::<I, N>(block.skip(96)), word::<I, N>(block.skip(100))];
            let high = word::<I, N>(block.skip(104));
            for w in 0..4 {
                let four = I::word_field(low[w % 2], w / 2 * 4, FOUR_BITS);
                let scales = I::join(four, I::word_field(high, 2 * w, TWO_BITS), 4);
                for k in 0..4 {
                    d.set(4 * w + k, I::mul(I::byte(scales, k, 32), d_all));
                }
            }
        }
    }
}

struct Q4K;
impl RunFormat for Q4K {
    type Block = quant::k_quants::Q4K;
    const LARGEST: Option<u8> = Some(15);
    const COMMON: bool = true;

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        for pair in 0..4 {
            // SAFETY: as for this function.
            unsafe {
                let x = I::load(block.skip(16 + 32 * pair));
                f.run(2 * pair, I::field(x, 0, 15));
                f.run(2 * pair + 1, I::field(x, 4, 15));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, groups: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe { six_bits::<I, N>(block, groups) }
    }
}

struct Q5K;
impl RunFormat for Q5K {
    type Block = quant::k_quants::Q5K;
    const LARGEST: Option<u8> = Some(31);

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        // SAFETY: as for this function.
        unsafe {
            let high = I::load(block.skip(16));
            for pair in 0..4 {
                let x = I::load(block.skip(48 + 32 * pair));
                for k in 0..2 {
                    let run = 2 * pair + k;
                    f.run(run, I::or(I::field(x, 4 * k, 15), I::shl(I::field(high, run, 1), 4)));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, groups: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe { six_bits::<I, N>(block, groups) }
    }
}

struct Q6K;
impl RunFormat for Q6K {
    type Block = quant::k_quants::Q6K;
    const LARGEST: Option<u8> = Some(63);

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        for half in 0..2 {
            // SAFETY: as for this function.
            unsafe {
                let high = I::load(block.skip(128 + 32 * half));
                let low = [I::load(block.skip(64 * half)), I::load(block.skip(64 * half + 32))];
                for k in 0..4 {
                    let pair = I::shl(I::field(high, 2 * k, 3), 4);
                    f.run(4 * half + k, I::or(I::field(low[k % 2], k / 2 * 4, 15), pair));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let d_all = f16::<I, N>(block.skip(208));
            let words = I::words(block.skip(192));
            for g in 0..16 {
                d.set(g, I::mul(I::byte(words[g / 4], g % 4, 0), d_all));
            }
        }
    }
}

struct Q8K;
impl RunFormat for Q8K {
    type Block = quant::k_quants::Q8K;
    const LARGEST: Option<u8> = None;

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        for run in 0..8 {
            // SAFETY: as for this function.
            unsafe { f.run(run, I::load(block.skip(4 + 32 * run))) };
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        let d_all = unsafe { I::f32(word::<I, N>(block)) };
        for g in 0..8 {
            d.set(g, d_all);
        }
    }
}

struct Iq4Xs;
impl RunFormat for Iq4Xs {
    type Block = quant::iq4_xs::Iq4Xs;
    const LARGEST: Option<u8> = None;

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        for run in 0..8 {
            // SAFETY: as for this function.
            unsafe { f.run(run, I::look_up(&quant::iq4_nl::LEVELS, I::nibbles(block.skip(8 + 16 * run)))) };
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let (both, low) = (word::<I, N>(block), word::<I, N>(block.skip(4)));
            let d_all = I::f16(both);
            for g in 0..8 {
                let scale = I::join(I::word_field(low, 4 * g, 15), I::word_field(both, 16 + 2 * g, 3), 4);
                d.set(g, I::mul(I::byte(scale, 0, 32), d_all));
            }
        }
    }
}

/// A format with a codebook, whose points are looked up one by one.
struct Points<C>(PhantomData<C>);
impl<C: Codebook> RunFormat for Points<C> {
    type Block = C;
    // Those without signs are IQ1's, up to twice their zero point.
    const LARGEST: Option<u8> = if C::ZERO == 0 { None } else { Some(2 * C::ZERO as u8) };

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        let points = points();
        for run in 0..8 {
            // SAFETY: as for this function; the 32 bytes of each row are read where they were just written.
            unsafe {
                let all: [[u64; 4]; N] = each_row!(N, |r| {
                    let block = core::slice::from_raw_parts(block.row(r), C::SIZE);
                    C::run(points, block, run).map(u64::to_le)
                });
                f.run(run, I::load(Rows { first: all.as_ptr().cast(), stride: 32 }));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let rows = each_row!(N, |r| core::slice::from_raw_parts(block.row(r), C::SIZE));
            let halves = each_row!(N, |r| u32::from(C::d(rows[r])));
            let d_all = I::mul(I::f16(I::to_words(&halves)), I::splat(C::UNIT));
            for g in 0..256 / C::SHARE {
                let multiples = each_row!(N, |r| u32::from(C::multiple(rows[r], g)));
                d.set(g, I::mul(I::byte(I::to_words(&multiples), 0, 0), d_all));
            }
        }
    }
}

/// The 4-bit floats of MXFP4 and NVFP4 plus their zero point.
const ABOVE_ZERO: [i8; 16] = {
    let mut all = quant::mxfp4::DOUBLED;
    let mut i = 0;
    while i < 16 {
        all[i] += 12;
        i += 1;
    }
    all
};

struct Mxfp4;
impl RunFormat for Mxfp4 {
    type Block = quant::mxfp4::Mxfp4;
    const LARGEST: Option<u8> = Some(24);

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        // SAFETY: as for this function.
        unsafe { f.run(0, I::look_up(&ABOVE_ZERO, I::nibbles(block.skip(1)))) };
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let e = I::to_words(&each_row!(N, |r| u32::from(*block.row(r))));
            // 2^(e - 128), which need not be a normal float, is the product of two that are.
            let zero = I::word_field(e, 0, 0);
            let half = |e| I::f32(I::join(zero, I::offset(I::word_field(e, 1, 0xff), 63), 23));
            d.set(0, I::mul(half(e), half(I::offset(e, 1))));
        }
    }
}

struct Nvfp4;
impl RunFormat for Nvfp4 {
    type Block = quant::nvfp4::Nvfp4;
    const LARGEST: Option<u8> = Some(24);

    #[inline(always)]
    unsafe fn runs<I: RunIsa<N>, const N: usize>(block: Rows, f: &mut impl EachRun<I, N>) {
        for run in 0..2 {
            // SAFETY: as for this function.
            unsafe {
                let nibbles = I::nibbles(block.skip(4 + 16 * run));
                f.run(run, I::look_up(&ABOVE_ZERO, I::swap_middle(nibbles)));
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa<N>, const N: usize>(block: Rows, [d, _]: &mut [Groups<I, N>; 2]) {
        // SAFETY: as for this function.
        unsafe {
            let words = word::<I, N>(block);
            let zero = I::word_field(words, 0, 0);
            for g in 0..4 {
                let bits = I::word_field(words, 8 * g, 0x7f);
                // As the bits of an f16, they are 2^-8 times as much.
                let value = I::mul(I::f16(I::join(zero, bits, 7)), I::splat(-128.0));
                // A NaN counts as zero: -1 for others.
                let number = I::byte(I::word_field(I::offset(bits, 1), 7, 1), 0, 1);
                d.set(g, I::mul(value, number));
            }
        }
    }
}
