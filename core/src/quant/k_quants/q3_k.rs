//! Q3_K: 256 weights as 3-bit integers in 16 groups of 16, with scales of 6 bits.
//!
//! ```text
//! byte   0 ......... 31   32 .......... 95   96 ...... 107   108 109
//!      | high bits      | codes            | scales        | d       |
//!
//! byte m of 32 of codes    bits 1-0   bits 3-2    bits 5-4    bits 7-6
//!                          c[m]       c[m+32]     c[m+64]     c[m+96]
//! ```
//! The first 32 bytes of codes are weights 0 to 127, the others 128 to 255. The high bit h of weight
//! 32 p + m is bit p of byte m. The low four bits of scale s of group g are in byte g % 8 of the scales (low
//! half for g < 8), the high two in byte 8 + g % 4, from bit 2 (g / 4).
//!
//! w = (c + 4 h - 4) * (d * (s - 32)). Source: GGUF type 11. Quantizer: the scale of a group by coordinate descent
//! on its codes for the least squared error, weighted by w².
#![forbid(unsafe_code)]

use super::put_planes;
use crate::quant::search::{
    NEGLIGIBLE, extreme, inverse, nearest, requantize, sum_squares, symmetric_scale, weigh,
};
use crate::quant::{Block, put_f16, scale::f16_at};

/// The best scale of a group, and the codes that were found with it.
fn search_scale(x: &[f32; 16], codes: &mut [u8; 16]) -> f32 {
    let max = extreme(x);
    if max.abs() < NEGLIGIBLE {
        codes.fill(0);
        return 0.0;
    }
    let inverse = -4.0 / max;
    let mut q = x.map(|x| nearest(inverse * x).clamp(-4, 3) as f32);
    let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
    for (&x, &q) in x.iter().zip(&q) {
        let w = x * x;
        sum_xq += w * x * q;
        sum_qq += w * q * q;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&x, q) in x.iter().zip(&mut q) {
            let w = x * x;
            let mut xq = sum_xq - w * x * *q;
            if xq > 0.0 {
                let mut qq = sum_qq - w * *q * *q;
                let new = nearest(x * qq / xq).clamp(-4, 3) as f32;
                if new != *q {
                    xq += w * x * new;
                    qq += w * new * new;
                    if qq > 0.0 && xq * xq * sum_qq > sum_xq * sum_xq * qq {
                        (*q, sum_xq, sum_qq) = (new, xq, qq);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    *codes = q.map(|q| (q + 4.0) as u8);
    if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 }
}

pub(crate) struct Q3K;

impl Block for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const GROUP: usize = 16;
    const LEAST: i8 = -4;

    fn scale(block: &[u8], group: usize) -> f32 {
        let low = block[96 + group % 8] >> (4 * (group / 8)) & 15;
        let high = block[104 + group % 4] >> (2 * (group / 4)) & 3;
        f16_at(block, 108) * f32::from((low | high << 4) as i8 - 32)
    }

    #[inline(always)]
    fn integers(block: &[u8], w: &mut [i8]) {
        let high = &block[..32];
        for (p, w) in w.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = &block[32 + p / 4 * 32..][..32];
            for ((w, &c), &h) in w.iter_mut().zip(codes).zip(high) {
                *w = (c >> (2 * (p % 4)) & 3 | (h >> p & 1) << 2) as i8 - 4;
            }
        }
    }

    fn pack(w: &[f32], block: &mut [u8]) {
        let groups = w.as_chunks::<16>().0;
        let mut codes = [0; 256];
        let mut scales = [0.0; 16];
        for ((w, codes), scale) in groups.iter().zip(codes.as_chunks_mut().0).zip(&mut scales) {
            *scale = search_scale(w, codes);
        }
        let max = extreme(&scales);
        let id = if max != 0.0 { -32.0 / max } else { 0.0 };
        // All zeros if the largest scale is, unlike the scales of groups of zeros in other blocks.
        let integer =
            |scale: f32| if max != 0.0 { (nearest(id * scale).clamp(-32, 31) + 32) as u8 } else { 0 };
        finish(inverse(id), scales.map(integer), w, &mut codes, block);
    }

    const BY_IMPORTANCE: bool = true;

    fn pack_by(w: &[f32], importance: &[f32], _: f32, block: &mut [u8]) {
        let groups = w.as_chunks::<16>().0.iter().zip(importance.chunks_exact(16));
        let twice = 2.0 * sum_squares(w) / 256.0;
        let mut codes = [0; 256];
        let (mut scales, mut sums, mut integers) = ([0.0; 16], [0.0; 16], [0; 16]);
        for (g, ((x, importance), codes)) in groups.zip(codes.as_chunks_mut().0).enumerate() {
            let weights = weigh(x, importance, twice);
            sums[g] = weights.iter().sum();
            scales[g] = symmetric_scale(4, x, &weights, codes);
        }
        let d = symmetric_scale(32, &scales, &sums, &mut integers);
        finish(d, integers, w, &mut codes, block);
    }
}

/// Writes the scale of the block and those of groups, plus 32, and the codes for them.
fn finish(d: f32, scales: [u8; 16], w: &[f32], codes: &mut [u8; 256], block: &mut [u8]) {
    put_f16(block, 108, d);
    block[..32].fill(0);
    block[96..108].fill(0);
    for (g, s) in scales.into_iter().enumerate() {
        block[96 + g % 8] |= (s & 15) << (4 * (g / 8));
        block[104 + g % 4] |= s >> 4 << (2 * (g / 4));
    }
    for (g, (w, codes)) in w.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
        requantize(w, Q3K::scale(block, g), 0.0, -4, 3, codes);
    }
    for (p, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (high, code) in block.iter_mut().zip(codes) {
            *high |= (*code >> 2) << p;
            *code &= 3;
        }
    }
    put_planes(codes, &mut block[32..96]);
}
