//! How weights lie on the GPU: codes and scales apart, each aligned, in an order that four shifts and a mask unpack.
//!
//! A row of `K` weights becomes `K / 32` units and a row of f16 scales, filled up to whole words:
//!
//! ```text
//! 1 bit    one word a unit: weight 4 s + b is bit 8 b + s                          w = (2 code - 1) d
//! 2 bits   two words a unit: weight 4 s + b of 16 is at bits 8 b + 2 s             w = (code - 1) d
//! ```
//! so that `(word >> s) & 0x01010101` (or `>> 2 s`, `0x03030303`) has four weights in a row, one a byte. Base-3
//! formats become 2-bit codes. Nothing is rounded.

use shohin_core::Format;
use shohin_core::quant::{block_integers, block_scale};

/// The form of a matrix on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// 1 or 2.
    pub(crate) bits: usize,
    /// Weights that share a scale: 64, 128 or 256.
    pub(crate) group: usize,
}

impl Form {
    /// The form for a format, if the GPU computes with it.
    pub(crate) fn of(format: Format) -> Option<Form> {
        match format {
            Format::Q1_0 => Some(Form { bits: 1, group: 128 }),
            Format::Q2_0 => Some(Form { bits: 2, group: 64 }),
            Format::Pq2_0 | Format::Tq2_0G128 | Format::Ptq1_0 => Some(Form { bits: 2, group: 128 }),
            Format::Tq1_0 | Format::Tq2_0 => Some(Form { bits: 2, group: 256 }),
            _ => None,
        }
    }

    /// A form that holds the weights of both exactly.
    pub(crate) fn with(self, other: Form) -> Form {
        Form { bits: self.bits.max(other.bits), group: self.group.min(other.group) }
    }

    /// Words of codes in a row.
    pub(crate) fn code_words(self, cols: usize) -> usize {
        cols / 32 * self.bits
    }

    /// Words of scales in a row.
    pub(crate) fn scale_words(self, cols: usize) -> usize {
        cols.div_ceil(self.group).div_ceil(2)
    }

    /// Bytes of a matrix.
    pub(crate) fn bytes(self, rows: usize, cols: usize) -> u64 {
        rows as u64 * 4 * (self.code_words(cols) + self.scale_words(cols)) as u64
    }

    /// Appends a packed row of whole blocks.
    pub(crate) fn repack(self, format: Format, row: &[u8], codes: &mut Vec<u32>, scales: &mut Vec<u32>) {
        let blocks = row.chunks_exact(format.block_bytes());
        let mut halves = Halves { low: None, words: scales };
        match (format, self.bits) {
            (Format::Q1_0, 1) => {
                for block in blocks {
                    codes.extend(
                        block[2..].as_chunks().0.iter().map(|w| bytes_of_bits(u32::from_le_bytes(*w))),
                    );
                    halves.push(block[0], block[1]);
                }
            }
            (Format::Q2_0 | Format::Pq2_0 | Format::Tq2_0G128, _) => {
                let (code, d) = if format == Format::Tq2_0G128 { (0, 32) } else { (2, 0) };
                let len = format.block() / 4;
                for block in blocks {
                    let words = block[code..code + len].as_chunks().0;
                    codes.extend(words.iter().map(|w| bytes_of_pairs(u32::from_le_bytes(*w))));
                    for _ in 0..format.block() / self.group {
                        halves.push(block[d], block[d + 1]);
                    }
                }
            }
            _ => {
                let mut q = [0; 256];
                let q = &mut q[..format.block()];
                for block in blocks {
                    block_integers(format, block, q);
                    codes.extend(q.as_chunks::<16>().0.iter().map(|q| {
                        let code =
                            |word, (i, &q): (usize, &i8)| word | u32::from((q + 1) as u8 & 3) << (2 * i);
                        bytes_of_pairs(q.iter().enumerate().fold(0, code))
                    }));
                    let [low, high] = half::f16::from_f32(block_scale(format, block, 0)).to_le_bytes();
                    for _ in 0..format.block() / self.group {
                        halves.push(low, high);
                    }
                }
            }
        }
        halves.finish();
    }
}

/// f16 scales, two a word.
struct Halves<'w> {
    low: Option<u32>,
    words: &'w mut Vec<u32>,
}

impl Halves<'_> {
    fn push(&mut self, low: u8, high: u8) {
        let half = u32::from(u16::from_le_bytes([low, high]));
        match self.low.take() {
            None => self.low = Some(half),
            Some(first) => self.words.push(first | half << 16),
        }
    }

    fn finish(self) {
        self.words.extend(self.low);
    }
}

/// Bit `4 s + b` to bit `8 b + s`.
fn bytes_of_bits(word: u32) -> u32 {
    let byte = |b: u32| {
        // Every fourth bit, pushed together.
        let mut x = word >> b & 0x1111_1111;
        x = (x | x >> 3) & 0x0303_0303;
        x = (x | x >> 6) & 0x000f_000f;
        (x | x >> 12) & 0xff
    };
    byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
}

/// The pair of bits `4 s + b` to pair `4 b + s`: a transposition of four by four.
fn bytes_of_pairs(mut word: u32) -> u32 {
    let mut swap = |shift: u32, mask: u32| {
        let t = (word >> shift ^ word) & mask;
        word ^= t ^ t << shift;
    };
    swap(6, 0x00cc_00cc);
    swap(12, 0x0000_f0f0);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::quant;
    use shohin_tests::{Random, weights};

    #[test]
    fn permutations_put_four_weights_in_a_row_side_by_side() {
        for i in 0..32 {
            assert_eq!(bytes_of_bits(1 << i), 1 << (8 * (i % 4) + i / 4));
        }
        for i in 0..16 {
            assert_eq!(bytes_of_pairs(3 << (2 * i)), 3 << (8 * (i % 4) + 2 * (i / 4)));
        }
    }

    /// Every format into every form that can hold it, read back as the shaders read it.
    #[test]
    fn repacked_weights_are_the_weights() {
        let mut random = Random::new(11);
        for format in Format::ALL {
            let Some(own) = Form::of(format) else { continue };
            for other in [own, Form { bits: 2, group: 64 }, Form { bits: 2, group: 256 }] {
                let form = own.with(other);
                let cols = 768;
                let mut row = vec![0; format.row_bytes(cols).unwrap()];
                weights::fill(format, 0.3, &mut random, &mut row);
                let mut want = vec![0.0; cols];
                quant::unpack(format, &row, &mut want).unwrap();
                let (mut codes, mut scales) = (Vec::new(), Vec::new());
                form.repack(format, &row, &mut codes, &mut scales);
                assert_eq!((codes.len(), scales.len()), (form.code_words(cols), form.scale_words(cols)));
                for (i, &want) in want.iter().enumerate() {
                    let per_word = 32 / form.bits;
                    let (word, s, b) = (codes[i / per_word], i % per_word / 4, i % 4);
                    let code = word >> (8 * b + form.bits * s) & (form.bits as u32 * 2 - 1);
                    let q = if form.bits == 1 { 2 * code as i32 - 1 } else { code as i32 - 1 };
                    let at = i / form.group;
                    let d = half::f16::from_bits((scales[at / 2] >> (16 * (at % 2))) as u16).to_f32();
                    assert_eq!(q as f32 * d, want, "{format:?} as {form:?}, weight {i}");
                }
            }
        }
    }
}
