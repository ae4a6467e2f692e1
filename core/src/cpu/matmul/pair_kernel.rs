//! The loops around integer dot products of two rows, for microcontrollers: a block of columns serves all rows before the
//! next one, so that its activations are prepared once and stay in fast memory.
#![allow(unsafe_code)]

use super::args::MatmulArgs;
use crate::cpu::activations::{Q8_LEN, Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::quant::scale::f16_at;

/// [`Q8Block`]s in the largest block of weights.
const MAX_PARTS: usize = 2;

/// The layout of a block of weights.
#[derive(Clone, Copy)]
pub(super) struct BlockLayout {
    /// Columns of a block: one or two times 64.
    pub(super) cols: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// The first bytes of the scale and of the codes.
    pub(super) scale: usize,
    pub(super) codes: usize,
}

/// A format's dot products in one instruction set.
pub(super) trait PairKernel {
    const LAYOUT: BlockLayout;
    /// The value of a code: `STEP * code - 1`.
    const STEP: i32;

    /// 64 activations in the order of the codes.
    type Acts: Copy + Default;

    fn acts(q: &[i8; Q8_LEN]) -> Self::Acts;

    /// The sums of `code * q` of two rows, for each 32 of 64 columns.
    ///
    /// Safety: the processor has the instruction set; the codes of 64 columns are readable at both pointers.
    unsafe fn dot(codes: [*const u8; 2], acts: &Self::Acts) -> [[i32; 2]; 2];
}

/// Fills `out`.
pub(super) fn rows<K: PairKernel>(args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    rows_of::<K>(K::LAYOUT, args, out);
}

/// [`rows`] for another layout of the same codes.
#[inline(always)]
pub(super) fn rows_of<K: PairKernel>(layout: BlockLayout, args: &MatmulArgs<'_>, out: &mut OutputRows<'_>) {
    let parts = layout.cols / Q8_LEN;
    let step_bytes = (layout.bytes - 2) / parts;
    let (row_bytes, q8_len) = (args.w.row_bytes(), q8_blocks(args.w.cols()));
    let first = out.first();
    for t in 0..args.tokens {
        let step = args.step(t);
        let q8 = &args.q8[t * q8_len..][..q8_len];
        let y = out.of(t);
        y.fill(0.0);
        let packed = &args.w.data()[first * row_bytes..][..y.len() * row_bytes];
        for (b, q8) in q8.chunks_exact(parts).enumerate() {
            let mut acts = [K::Acts::default(); MAX_PARTS];
            let mut start = 0i32;
            for (acts, q8) in acts.iter_mut().zip(q8) {
                *acts = K::acts(&q8.q);
                start = start.wrapping_add(q8.start);
            }
            let both = 2 * row_bytes;
            for (y, rows) in y.chunks_mut(2).zip(packed.chunks(both)) {
                // A last single row is computed twice.
                let second = if rows.len() == both { row_bytes } else { 0 };
                let blocks = [0, second].map(|row| &rows[row + b * layout.bytes..][..layout.bytes]);
                let n = pair::<K>(
                    blocks.map(|block| &block[layout.codes..]),
                    &acts[..parts],
                    q8,
                    start,
                    step_bytes,
                );
                for ((y, n), block) in y.iter_mut().zip(n).zip(blocks) {
                    *y += n as f32 * f16_at(block, layout.scale);
                }
            }
        }
        y.iter_mut().for_each(|y| *y *= step);
    }
}

/// `n` of `scalar.rs` for the codes of a block of two rows.
#[inline(always)]
fn pair<K: PairKernel>(
    blocks: [&[u8]; 2],
    acts: &[K::Acts],
    q8: &[Q8Block],
    start: i32,
    step_bytes: usize,
) -> [i32; 2] {
    let mut n = [start; 2];
    for (part, (acts, q8)) in acts.iter().zip(q8).enumerate() {
        let at = part * step_bytes;
        let codes = blocks.map(|block| block[at..at + step_bytes].as_ptr());
        // SAFETY: the kernel was chosen for its instruction set, and the codes of 64 columns have `step_bytes`.
        let sums = unsafe { K::dot(codes, acts) };
        for (n, sums) in n.iter_mut().zip(sums) {
            for (sum, factor) in sums.into_iter().zip(q8.factor) {
                *n = n.wrapping_add((K::STEP * sum).wrapping_mul(factor));
            }
        }
    }
    n
}

/// The layouts of blocks whose codes are in sequence.
macro_rules! layouts {
    ($kernel:ident, $cols:literal, $bytes:literal, $scale:literal, $codes:literal, $step:literal, $acts:ty, $prepare:path, $dot:path) => {
        pub(super) struct $kernel;

        impl PairKernel for $kernel {
            const LAYOUT: BlockLayout =
                BlockLayout { cols: $cols, bytes: $bytes, scale: $scale, codes: $codes };
            const STEP: i32 = $step;
            type Acts = $acts;

            #[inline(always)]
            fn acts(q: &[i8; 64]) -> $acts {
                $prepare(q)
            }

            #[inline(always)]
            unsafe fn dot(codes: [*const u8; 2], acts: &$acts) -> [[i32; 2]; 2] {
                // SAFETY: the caller's promise.
                unsafe { $dot(codes, acts) }
            }
        }
    };
}
pub(super) use layouts;
