//! Formats with at most 32 weights per scale, for every instruction set: how vector instructions unpack their
//! runs of 32 weights. The formats themselves are described in `quant/`.
#![allow(unsafe_code)]

use super::run_kernel::{MAX_GROUPS, RunIsa};
use crate::quant::{self, Block, Format};

/// The scales, or minima, of the groups of a block.
pub(super) type Groups = [f32; MAX_GROUPS];

/// A format as [`run_kernel`](super::run_kernel) reads it.
///
/// Safety: all functions need the instruction set, and a whole block at `block`.
pub(super) trait RunFormat {
    /// The same format in scalar code.
    type Block: Block;
    /// Whether the integers are multiplied as they are. Otherwise their zero point is added.
    const SIGNED: bool = false;
    /// Whether many files have it.
    const COMMON: bool = false;
    /// Added to the integers: codes are at most 63.
    const ZERO: i8 = if Self::SIGNED { 0 } else { -Self::Block::LEAST };

    /// The integers of run `run`, plus [`RunFormat::ZERO`].
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes;

    /// The scales of the groups, and the minima.
    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        let (mut scales, mut minima) = ([0.0; MAX_GROUPS], [0.0; MAX_GROUPS]);
        // SAFETY: the caller has a block.
        let block = unsafe { core::slice::from_raw_parts(block, Self::Block::BYTES) };
        for group in 0..Self::Block::LEN / Self::Block::GROUP {
            scales[group] = Self::Block::scale(block, group);
            if Self::Block::MINIMUM {
                minima[group] = Self::Block::minimum(block, group);
            }
        }
        [scales, minima]
    }
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
        Format::Mxfp4 => f.with::<Mxfp4>(),
        Format::Nvfp4 => f.with::<Nvfp4>(),
        _ => return None,
    })
}

/// One scale at the start of a block, and a minimum after it if there are minima.
macro_rules! scale_first {
    () => {
        #[inline(always)]
        unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
            // SAFETY: as for this function.
            unsafe {
                [
                    [I::f16(block); MAX_GROUPS],
                    [if Self::Block::MINIMUM { I::f16(block.add(2)) } else { 0.0 }; MAX_GROUPS],
                ]
            }
        }
    };
}

/// The integers `bytes`, as floats, times `d`.
#[inline(always)]
fn times<const N: usize>(bytes: [i8; N], d: f32) -> Groups {
    let mut all = [0.0; MAX_GROUPS];
    for i in 0..N {
        all[i] = d * f32::from(bytes[i]);
    }
    all
}

/// The bytes of the words `a` and `b`.
#[inline(always)]
fn bytes(a: u32, b: u32) -> [i8; 8] {
    (u64::from(a) | u64::from(b) << 32).to_le_bytes().map(|b| b as i8)
}

/// The 32-bit number at `p`.
#[inline(always)]
unsafe fn word(p: *const u8) -> u32 {
    // SAFETY: the caller has 4 bytes at `p`.
    u32::from_le(unsafe { p.cast::<u32>().read_unaligned() })
}

struct Q8_0;
impl RunFormat for Q8_0 {
    type Block = quant::q8_0::Q8_0;
    const SIGNED: bool = true;
    const COMMON: bool = true;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::load(block.add(2)) }
    }
    scale_first!();
}

struct Q4_0;
impl RunFormat for Q4_0 {
    type Block = quant::q4_0::Q4_0;
    const COMMON: bool = true;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::nibbles(block.add(2)) }
    }
    scale_first!();
}

struct Q4_1;
impl RunFormat for Q4_1 {
    type Block = quant::q4_1::Q4_1;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::nibbles(block.add(4)) }
    }
    scale_first!();
}

struct Q5_0;
impl RunFormat for Q5_0 {
    type Block = quant::q5_0::Q5_0;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::or(I::nibbles(block.add(6)), I::bits(word(block.add(2)), 16)) }
    }
    scale_first!();
}

struct Q5_1;
impl RunFormat for Q5_1 {
    type Block = quant::q5_1::Q5_1;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::or(I::nibbles(block.add(8)), I::bits(word(block.add(4)), 16)) }
    }
    scale_first!();
}

/// The scales and minima of Q4_K and Q5_K.
#[inline(always)]
unsafe fn six_bits<I: RunIsa>(block: *const u8) -> [Groups; 2] {
    // SAFETY: the caller has 16 bytes at `block`.
    unsafe {
        let (d, dmin) = (I::f16(block), I::f16(block.add(2)));
        let (a, b, c) = (word(block.add(4)), word(block.add(8)), word(block.add(12)));
        let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
        let scales = bytes(a & six, c & four | a >> 2 & two);
        let minima = bytes(b & six, c >> 4 & four | b >> 2 & two);
        [times(scales, d), times(minima, -dmin)]
    }
}

struct Q2K;
impl RunFormat for Q2K {
    type Block = quant::k_quants::Q2K;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::field(I::load(block.add(16 + 32 * (run / 4))), 2 * (run % 4), 3) }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        // SAFETY: as for this function.
        unsafe {
            let both = block.cast::<[u8; 16]>().read();
            let (d, dmin) = (I::f16(block.add(80)), I::f16(block.add(82)));
            [times(both.map(|b| (b & 15) as i8), d), times(both.map(|b| (b >> 4) as i8), -dmin)]
        }
    }
}

struct Q3K;
impl RunFormat for Q3K {
    type Block = quant::k_quants::Q3K;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe {
            let low = I::field(I::load(block.add(32 + 32 * (run / 4))), 2 * (run % 4), 3);
            I::or(low, I::shl(I::field(I::load(block), run, 1), 2))
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        // SAFETY: as for this function.
        unsafe {
            let (a, b, c) = (word(block.add(96)), word(block.add(100)), word(block.add(104)));
            let (four, two) = (0x0f0f_0f0f, 0x3030_3030);
            let low = bytes(a & four | c << 4 & two, b & four | c << 2 & two);
            let high = bytes(a >> 4 & four | c & two, b >> 4 & four | c >> 2 & two);
            let scales: [i8; 16] = core::array::from_fn(|g| if g < 8 { low[g % 8] } else { high[g % 8] });
            [times(scales.map(|s| s - 32), I::f16(block.add(108))), [0.0; MAX_GROUPS]]
        }
    }
}

struct Q4K;
impl RunFormat for Q4K {
    type Block = quant::k_quants::Q4K;
    const COMMON: bool = true;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::field(I::load(block.add(16 + 32 * (run / 2))), 4 * (run % 2), 15) }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        // SAFETY: as for this function.
        unsafe { six_bits::<I>(block) }
    }
}

struct Q5K;
impl RunFormat for Q5K {
    type Block = quant::k_quants::Q5K;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe {
            let low = I::field(I::load(block.add(48 + 32 * (run / 2))), 4 * (run % 2), 15);
            I::or(low, I::shl(I::field(I::load(block.add(16)), run, 1), 4))
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        // SAFETY: as for this function.
        unsafe { six_bits::<I>(block) }
    }
}

struct Q6K;
impl RunFormat for Q6K {
    type Block = quant::k_quants::Q6K;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        let (half, k) = (run / 4, run % 4);
        // SAFETY: as for this function.
        unsafe {
            let nibbles = I::field(I::load(block.add(64 * half + 32 * (k % 2))), k / 2 * 4, 15);
            let pairs = I::field(I::load(block.add(128 + 32 * half)), 2 * k, 3);
            I::or(nibbles, I::shl(pairs, 4))
        }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        // SAFETY: as for this function.
        unsafe {
            let scales = block.add(192).cast::<[i8; 16]>().read();
            [times(scales, I::f16(block.add(208))), [0.0; MAX_GROUPS]]
        }
    }
}

struct Q8K;
impl RunFormat for Q8K {
    type Block = quant::k_quants::Q8K;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::load(block.add(4 + 32 * run)) }
    }
}

struct Iq4Nl;
impl RunFormat for Iq4Nl {
    type Block = quant::iq4_nl::Iq4Nl;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::look_up(&quant::iq4_nl::LEVELS, I::nibbles(block.add(2))) }
    }
    scale_first!();
}

struct Iq4Xs;
impl RunFormat for Iq4Xs {
    type Block = quant::iq4_xs::Iq4Xs;
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::look_up(&quant::iq4_nl::LEVELS, I::nibbles(block.add(8 + 16 * run))) }
    }

    #[inline(always)]
    unsafe fn scales<I: RunIsa>(block: *const u8) -> [Groups; 2] {
        // SAFETY: as for this function.
        unsafe {
            let (both, low) = (word(block), word(block.add(4)));
            let scale = |g: usize| (low >> (4 * g) & 15 | (both >> (16 + 2 * g) & 3) << 4) as i8 - 32;
            [times(core::array::from_fn::<_, 8, _>(scale), I::f16(block)), [0.0; MAX_GROUPS]]
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

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, _: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::look_up(&ABOVE_ZERO, I::nibbles(block.add(1))) }
    }
}

struct Nvfp4;
impl RunFormat for Nvfp4 {
    type Block = quant::nvfp4::Nvfp4;

    #[inline(always)]
    unsafe fn run<I: RunIsa>(block: *const u8, run: usize) -> I::Bytes {
        // SAFETY: as for this function.
        unsafe { I::look_up(&ABOVE_ZERO, I::swap_middle(I::nibbles(block.add(4 + 16 * run)))) }
    }
}
