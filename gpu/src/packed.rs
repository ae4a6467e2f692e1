//! The layout of weights on the GPU: codes and scales in separate, aligned buffers, in an order that a shift
//! and a mask unpack.
//!
//! A row of `K` weights is `K / 32` units. The unit of a quantized format holds 32 codes, such that one shift
//! and one mask give the codes of four neighbouring weights, one per byte:
//!
//! ```text
//! bits   words per unit   weight 4 s + b of the unit
//! 1      1                bit 8 b + s of the word
//! 2      2                bits 8 b + 2 (s % 4) of word s / 4
//! 4      4                bits 8 b + 4 (s % 2) of word s / 2
//! 8      8                byte b of word s, signed
//! ```
//! The scales are a second row: `f16 d` for each group of weights, two per word, or `f16 d, f16 m` in one
//! word for each group of a format with minima. Rows of scales are padded to whole words. A weight is
//! `(factor * code - offset) * d`, or `code * d + m`.
//!
//! Floats are stored as in the file: 32 per unit, no scales. Nothing is rounded.

use crate::shader::{Source, part};
use shohin_core::Activations;
use shohin_core::Format;
use shohin_core::quant::{self, block_integers, block_minimum, block_scale};

/// The storage of each supported weight format; a new format is a row here.
const FORMATS: [(Format, PackedFormat); 13] = [
    (Format::F32, PackedFormat { codes: Codes::F32, group: 32 }),
    (Format::F16, PackedFormat { codes: Codes::F16, group: 32 }),
    (Format::Bf16, PackedFormat { codes: Codes::Bf16, group: 32 }),
    (Format::Q8_0, PackedFormat { codes: Codes::Bits8, group: 32 }),
    (Format::Q4_0, PackedFormat { codes: Codes::Bits4, group: 32 }),
    (Format::Q4_1, PackedFormat { codes: Codes::Bits4Min, group: 32 }),
    (Format::Q1_0, PackedFormat { codes: Codes::Bits1, group: 128 }),
    (Format::Q2_0, PackedFormat { codes: Codes::Bits2, group: 64 }),
    (Format::Pq2_0, PackedFormat { codes: Codes::Bits2, group: 128 }),
    (Format::Tq2_0G128, PackedFormat { codes: Codes::Bits2, group: 128 }),
    (Format::Ptq1_0, PackedFormat { codes: Codes::Bits2, group: 128 }),
    (Format::Tq1_0, PackedFormat { codes: Codes::Bits2, group: 256 }),
    (Format::Tq2_0, PackedFormat { codes: Codes::Bits2, group: 256 }),
];

/// The storage of a weight within a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codes {
    /// Codes 0, 1 for -d, d.
    Bits1,
    /// Codes 0 to 3 for -d to 2 d.
    Bits2,
    /// Codes 0 to 15 for -8 d to 7 d.
    Bits4,
    /// Codes 0 to 15 with a minimum.
    Bits4Min,
    /// Signed bytes.
    Bits8,
    /// Signed bytes with a minimum.
    Bits8Min,
    /// 16-bit floats.
    F16,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// 32-bit floats.
    F32,
}

/// Properties of [`Codes`] for shaders and [`PackedFormat::repack`].
struct Facts {
    bits: usize,
    /// An integer is `factor * code - offset`; both 0 for floats.
    factor: i32,
    offset: i32,
    /// Declares `codes` and unpacks them.
    unpack: &'static str,
}

impl Codes {
    const fn facts(self) -> Facts {
        match self {
            Codes::Bits1 => Facts { bits: 1, factor: 2, offset: 1, unpack: part!("weights_1bit") },
            Codes::Bits2 => Facts { bits: 2, factor: 1, offset: 1, unpack: part!("weights_2bit") },
            Codes::Bits4 => Facts { bits: 4, factor: 1, offset: 8, unpack: part!("weights_4bit") },
            Codes::Bits4Min => Facts { bits: 4, factor: 1, offset: 0, unpack: part!("weights_4bit") },
            Codes::Bits8 | Codes::Bits8Min => {
                Facts { bits: 8, factor: 1, offset: 0, unpack: part!("weights_8bit") }
            }
            Codes::F16 => Facts { bits: 16, factor: 0, offset: 0, unpack: part!("weights_f16") },
            Codes::Bf16 => Facts { bits: 16, factor: 0, offset: 0, unpack: part!("weights_bf16") },
            Codes::F32 => Facts { bits: 32, factor: 0, offset: 0, unpack: part!("weights_f32") },
        }
    }

    const fn is_float(self) -> bool {
        self.facts().factor == 0
    }

    const fn has_min(self) -> bool {
        matches!(self, Codes::Bits4Min | Codes::Bits8Min)
    }

    /// The codes that represent the weights of both exactly.
    fn with(self, other: Codes) -> Option<Codes> {
        let wider = if self.facts().bits >= other.facts().bits { self } else { other };
        match (self.is_float(), other.is_float()) {
            _ if self == other => Some(self),
            // A bf16 and an f16 represent different numbers.
            (true, true) => Some(Codes::F32),
            // One is multiplied by floats, the other by integers.
            (true, false) | (false, true) => None,
            // Four bits with a minimum cannot represent negative integers.
            (false, false) if self.has_min() || other.has_min() => Some(Codes::Bits8Min),
            (false, false) => Some(wider),
        }
    }
}

/// The layout of a matrix on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackedFormat {
    codes: Codes,
    /// Weights that share a scale: 32, 64, 128 or 256. Unused for floats.
    group: usize,
}

impl PackedFormat {
    /// The layout for a format, if the GPU computes with it.
    pub(crate) fn of(format: Format) -> Option<PackedFormat> {
        FORMATS.iter().find(|(known, _)| *known == format).map(|&(_, packed)| packed)
    }

    /// A layout that represents the weights of both exactly, if they are multiplied by the same type of
    /// activations.
    pub(crate) fn with(self, other: PackedFormat) -> Option<PackedFormat> {
        let codes = self.codes.with(other.codes)?;
        Some(PackedFormat { codes, group: self.group.min(other.group) })
    }

    /// Whether the weights are floats, which are multiplied by float activations only.
    pub(crate) const fn is_float(self) -> bool {
        self.codes.is_float()
    }

    /// The type of activations that these weights are multiplied by: `activations`, or floats for float
    /// weights.
    pub(crate) const fn input(self, activations: Activations) -> Activations {
        if self.is_float() { Activations::F32 } else { activations }
    }

    /// Words of codes per row.
    pub(crate) const fn code_words(self, cols: usize) -> usize {
        cols / 32 * self.codes.facts().bits
    }

    /// Words of scales per row.
    pub(crate) const fn scale_words(self, cols: usize) -> usize {
        let groups = cols.div_ceil(self.group);
        match (self.is_float(), self.codes.has_min()) {
            (true, _) => 0,
            (false, true) => groups,
            (false, false) => groups.div_ceil(2),
        }
    }

    /// Bytes of a matrix.
    pub(crate) const fn bytes(self, rows: usize, cols: usize) -> u64 {
        rows as u64 * 4 * (self.code_words(cols) + self.scale_words(cols)) as u64
    }

    /// Appends the code that reads a matrix of this layout.
    pub(crate) fn shader(self, source: Source, rows: usize, cols: usize) -> Source {
        let facts = self.codes.facts();
        let source = source.u32("UNITS", cols / 32).u32("ROWS", rows);
        if self.is_float() {
            return source.part(facts.unpack);
        }
        source
            .u32("GROUP_SHIFT", (self.group / 32).ilog2() as usize)
            .u32("SCALE_WORDS", self.scale_words(cols))
            .i32("CODE_FACTOR", facts.factor)
            .i32("CODE_OFFSET", facts.offset)
            .part(facts.unpack)
            .part(if self.codes.has_min() { part!("scale_min") } else { part!("scale") })
            .part(part!("weights"))
    }

    /// Appends a packed row of whole blocks.
    pub(crate) fn repack(self, format: Format, row: &[u8], codes: &mut Vec<u32>, scales: &mut Vec<u32>) {
        let blocks = row.chunks_exact(format.block_bytes());
        let facts = self.codes.facts();
        if self.is_float() {
            if facts.bits == 32 {
                let mut weights = vec![0.0; row.len() / format.block_bytes()];
                // The length is right by construction.
                if quant::unpack(format, row, &mut weights).is_ok() {
                    codes.extend(weights.iter().map(|w| w.to_bits()));
                }
            } else {
                codes.extend(row.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)));
            }
            return;
        }
        let mut halves = Halves { low: None, words: scales };
        match (format, self.codes) {
            (Format::Q1_0, Codes::Bits1) => {
                for block in blocks {
                    codes.extend(
                        block[2..].as_chunks().0.iter().map(|w| bytes_of_bits(u32::from_le_bytes(*w))),
                    );
                    halves.push(block[0], block[1]);
                }
            }
            (Format::Q2_0 | Format::Pq2_0 | Format::Tq2_0G128, Codes::Bits2) => {
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
                // Groups of four codes per word.
                let per_word = 8 / facts.bits;
                let code = |q: i8| ((i32::from(q) + facts.offset) / facts.factor) as u8;
                for block in blocks {
                    block_integers(format, block, q);
                    codes.extend(q.chunks_exact(4 * per_word).map(|q| {
                        let set = |word, (s, q): (usize, &[i8; 4])| {
                            word | u32::from_le_bytes(q.map(code)) << (facts.bits * s)
                        };
                        q.as_chunks::<4>().0.iter().enumerate().fold(0, set)
                    }));
                    for at in (0..format.block()).step_by(self.group) {
                        let group = at / format.group();
                        let half = |x| half::f16::from_f32(x).to_le_bytes();
                        let [low, high] = half(block_scale(format, block, group));
                        halves.push(low, high);
                        if self.codes.has_min() {
                            let [low, high] = half(block_minimum(format, block, group));
                            halves.push(low, high);
                        }
                    }
                }
            }
        }
        halves.finish();
    }
}

/// f16 scales, two per word.
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

/// Moves bit `4 s + b` to bit `8 b + s`.
fn bytes_of_bits(word: u32) -> u32 {
    let byte = |b: u32| {
        // Every fourth bit, moved together.
        let mut x = word >> b & 0x1111_1111;
        x = (x | x >> 3) & 0x0303_0303;
        x = (x | x >> 6) & 0x000f_000f;
        (x | x >> 12) & 0xff
    };
    byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
}

/// Moves the pair of bits `4 s + b` to pair `4 b + s`: a four by four transposition.
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
    use shohin_core::quant::WeightClass;
    use shohin_tests::{Random, weights};

    impl PackedFormat {
        /// Every format with every layout that can hold it.
        pub(crate) fn pairs() -> Vec<(Format, PackedFormat)> {
            let with = |(format, own): (Format, PackedFormat)| {
                FORMATS.iter().filter_map(move |&(_, other)| Some((format, own.with(other)?)))
            };
            let mut pairs: Vec<_> = FORMATS.into_iter().flat_map(with).collect();
            pairs.sort_unstable_by_key(|(format, packed)| (*format, packed.codes as u8, packed.group));
            pairs.dedup();
            pairs
        }
    }

    #[test]
    fn permutations_put_four_weights_in_a_row_side_by_side() {
        for i in 0..32 {
            assert_eq!(bytes_of_bits(1 << i), 1 << (8 * (i % 4) + i / 4));
        }
        for i in 0..16 {
            assert_eq!(bytes_of_pairs(3 << (2 * i)), 3 << (8 * (i % 4) + 2 * (i / 4)));
        }
    }

    #[test]
    fn formats_of_core_have_a_layout() {
        for format in Format::ALL {
            // Q4_0 and Q4_1 have scales of 16 bits for 32 weights; those of K-quants are products.
            let unsupported = format.class() == WeightClass::Integer
                && !matches!(format, Format::Q4_0 | Format::Q4_1 | Format::Q8_0);
            assert_eq!(PackedFormat::of(format).is_none(), unsupported, "{}", format.name());
        }
    }

    /// Weight `i` of a row, as the shaders read it.
    fn read(packed: PackedFormat, i: usize, codes: &[u32], scales: &[u32]) -> f32 {
        let Facts { bits, factor, offset, .. } = packed.codes.facts();
        let half = |i: usize, words: &[u32]| (words[i / 2] >> (16 * (i % 2))) as u16;
        match packed.codes {
            Codes::F32 => return f32::from_bits(codes[i]),
            Codes::F16 => return half::f16::from_bits(half(i, codes)).to_f32(),
            Codes::Bf16 => return f32::from_bits(u32::from(half(i, codes)) << 16),
            Codes::Bits1 | Codes::Bits2 | Codes::Bits4 | Codes::Bits4Min | Codes::Bits8 | Codes::Bits8Min => {
            }
        }
        let (unit, s, b) = (i / 32 * bits, i % 32 / 4, i % 4);
        let word = codes[unit + s * bits / 8];
        let mask = 0xff >> (8 - bits);
        let code = (word >> (8 * b + bits * s % 8) & mask) as u8 as i8;
        let q = (i32::from(code) * factor - offset) as f32;
        let scale = |i| half::f16::from_bits(half(i, scales)).to_f32();
        let at = i / packed.group;
        if packed.codes.has_min() { q * scale(2 * at) + scale(2 * at + 1) } else { q * scale(at) }
    }

    #[test]
    fn formats_join_in_either_order() {
        for (_, a) in FORMATS {
            for (_, b) in FORMATS {
                assert_eq!(a.with(b), b.with(a));
                assert_eq!(a.with(b).is_some(), a.is_float() == b.is_float());
            }
        }
    }

    /// Every format in every layout that can hold it, read back as the shaders read it.
    #[test]
    fn repacked_weights_are_the_weights() {
        let mut random = Random::new(11);
        for (format, packed) in PackedFormat::pairs() {
            let cols = 768;
            let mut row = vec![0; format.row_bytes(cols).unwrap()];
            weights::fill(format, 0.3, &mut random, &mut row);
            let mut want = vec![0.0; cols];
            quant::unpack(format, &row, &mut want).unwrap();
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            packed.repack(format, &row, &mut codes, &mut scales);
            assert_eq!((codes.len(), scales.len()), (packed.code_words(cols), packed.scale_words(cols)));
            for (i, &want) in want.iter().enumerate() {
                assert_eq!(read(packed, i, &codes, &scales), want, "{format:?} as {packed:?}, weight {i}");
            }
        }
    }
}
