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
//! 6      6                low half as with 4 bits, high pair as with 2 bits in words 4 and 5
//! 8      8                byte b of word s, signed
//! ```
//! A code is an integer, `factor * code - offset`, or the index of one in a table ([`Codes`]).
//!
//! The scales are a second row, padded to whole words. A weight is `integer * d`, or `integer * d + m`:
//!
//! ```text
//! Scales   for each            stored
//! F16      group               f16 d [, f16 m], two per word
//! F32      group               f32 d [, f32 m]
//! Block    256 weights         f32 d [, f32 m], then for each group i8 s [, i8 t]: d s and m t
//! ```
//! A group is 16 weights or a number of units. An f16 `d` of a block is stored as an f32, because that of small
//! weights is often subnormal, which a GPU may take for 0.
//!
//! Bits per weight, scales included:
//!
//! ```text
//! 1.125    Q1_0           4.375    IQ4_XS                6.5      Q5_0
//! 2.0625   TQ1_0, TQ2_0   4.5      Q4_0, IQ4_NL          6.625    Q6_K
//! 2.125    PQ2_0          4.625    Q3_K                  6.75     Q5_K
//! 2.25     Q2_0           4.75     Q4_K                  7        Q5_1
//! 3.25     Q2_K           5        Q4_1, MXFP4, NVFP4    8.125    Q8_K
//! 4.375    IQ1_S, IQ2_XXS, IQ3_XXS, IQ3_S                8.5      Q8_0
//! 4.625    IQ1_M, IQ2_XS, IQ2_S
//! ```
//!
//! Floats are stored as in the file: 32 per unit, no scales. Nothing is rounded.

#![forbid(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;

use super::{
    FP4_DOUBLED, Format, IQ1_LEVELS, IQ2_LEVELS, IQ3_S_LEVELS, IQ3_XXS_LEVELS, IQ4_LEVELS, block_integers,
    block_minimum, block_scale, unpack_exact,
};
use crate::device::Activations;

/// The storage of each supported weight format; a new format is a row here.
const FORMATS: [(Format, PackedFormat); 32] = [
    (Format::F32, PackedFormat::float(Codes::F32)),
    (Format::F16, PackedFormat::float(Codes::F16)),
    (Format::Bf16, PackedFormat::float(Codes::Bf16)),
    (Format::Q8_0, PackedFormat::new(Codes::Bits8, 32, Scales::F16)),
    (Format::Q4_0, PackedFormat::new(Codes::Bits4, 32, Scales::F16)),
    (Format::Q4_1, PackedFormat::new(Codes::Bits4Unsigned, 32, Scales::F16).with_minima()),
    (Format::Q5_0, PackedFormat::new(Codes::Bits6, 32, Scales::F16)),
    (Format::Q5_1, PackedFormat::new(Codes::Bits6, 32, Scales::F16).with_minima()),
    (Format::Q2K, PackedFormat::new(Codes::Bits2Unsigned, 16, Scales::Block).with_minima()),
    (Format::Q3K, PackedFormat::new(Codes::Bits4, 16, Scales::Block)),
    (Format::Q4K, PackedFormat::new(Codes::Bits4Unsigned, 32, Scales::Block).with_minima()),
    (Format::Q5K, PackedFormat::new(Codes::Bits6, 32, Scales::Block).with_minima()),
    (Format::Q6K, PackedFormat::new(Codes::Bits6, 16, Scales::Block)),
    (Format::Q8K, PackedFormat::new(Codes::Bits8, 256, Scales::F32)),
    (Format::Iq4Nl, PackedFormat::new(Codes::Iq4, 32, Scales::F16)),
    (Format::Iq4Xs, PackedFormat::new(Codes::Iq4, 32, Scales::Block)),
    (Format::Iq1S, PackedFormat::new(Codes::Iq1, 32, Scales::Block)),
    (Format::Iq1M, PackedFormat::new(Codes::Iq1, 16, Scales::Block)),
    (Format::Iq2Xxs, PackedFormat::new(Codes::Iq2, 32, Scales::Block)),
    (Format::Iq2Xs, PackedFormat::new(Codes::Iq2, 16, Scales::Block)),
    (Format::Iq2S, PackedFormat::new(Codes::Iq2, 16, Scales::Block)),
    (Format::Iq3Xxs, PackedFormat::new(Codes::Iq3Xxs, 32, Scales::Block)),
    (Format::Iq3S, PackedFormat::new(Codes::Iq3S, 32, Scales::Block)),
    (Format::Mxfp4, PackedFormat::new(Codes::Fp4, 32, Scales::F32)),
    (Format::Nvfp4, PackedFormat::new(Codes::Fp4, 16, Scales::F16)),
    (Format::Q1_0, PackedFormat::new(Codes::Bits1, 128, Scales::F16)),
    (Format::Q2_0, PackedFormat::new(Codes::Bits2, 64, Scales::F16)),
    (Format::Pq2_0, PackedFormat::new(Codes::Bits2, 128, Scales::F16)),
    (Format::Tq2_0G128, PackedFormat::new(Codes::Bits2, 128, Scales::F16)),
    (Format::Ptq1_0, PackedFormat::new(Codes::Bits2, 128, Scales::F16)),
    (Format::Tq1_0, PackedFormat::new(Codes::Bits2, 256, Scales::F16)),
    (Format::Tq2_0, PackedFormat::new(Codes::Bits2, 256, Scales::F16)),
];

/// The weights of a block of [`Scales::Block`].
pub const BLOCK: usize = 256;

/// The storage of a weight within a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Codes {
    /// Codes 0, 1 for -1, 1.
    Bits1,
    /// Codes 0 to 3 for -1 to 2.
    Bits2,
    /// 0 to 3.
    Bits2Unsigned,
    /// Codes 0 to 15 for -8 to 7.
    Bits4,
    /// 0 to 15.
    Bits4Unsigned,
    /// Codes 0 to 63 for -32 to 31.
    Bits6,
    /// Signed bytes.
    Bits8,
    /// Indices of [`IQ4_LEVELS`].
    Iq4,
    /// Indices of [`FP4_DOUBLED`].
    Fp4,
    /// Indices of [`IQ1_LEVELS`].
    Iq1,
    /// Indices of [`IQ2_LEVELS`].
    Iq2,
    /// Indices of [`IQ3_XXS_LEVELS`].
    Iq3Xxs,
    /// Indices of [`IQ3_S_LEVELS`].
    Iq3S,
    /// 16-bit floats.
    F16,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// 32-bit floats.
    F32,
}

/// The codes of integers, in the order in which a common one is sought.
const INTEGERS: [Codes; 7] = [
    Codes::Bits1,
    Codes::Bits2,
    Codes::Bits2Unsigned,
    Codes::Bits4,
    Codes::Bits4Unsigned,
    Codes::Bits6,
    Codes::Bits8,
];

/// Properties of [`Codes`], for kernels and [`PackedFormat::repack`].
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Bits per code.
    pub bits: usize,
    /// An integer is `factor * code - offset`; both 0 for floats.
    pub factor: i32,
    /// See `factor`.
    pub offset: i32,
    /// The least and the greatest integer; both 0 for floats.
    pub range: [i32; 2],
    /// The integers of the codes, where they are not evenly spaced.
    pub levels: Option<&'static [i8; 16]>,
}

impl Codes {
    /// Their properties.
    pub const fn facts(self) -> Facts {
        const fn integers(bits: usize, range: [i32; 2]) -> Facts {
            Facts { bits, factor: 1, offset: -range[0], range, levels: None }
        }
        const fn levels(levels: &'static [i8; 16], range: [i32; 2]) -> Facts {
            Facts { bits: 4, factor: 1, offset: 0, range, levels: Some(levels) }
        }
        const fn floats(bits: usize) -> Facts {
            Facts { bits, factor: 0, offset: 0, range: [0; 2], levels: None }
        }
        match self {
            Codes::Bits1 => Facts { factor: 2, ..integers(1, [-1, 1]) },
            Codes::Bits2 => integers(2, [-1, 2]),
            Codes::Bits2Unsigned => integers(2, [0, 3]),
            Codes::Bits4 => integers(4, [-8, 7]),
            Codes::Bits4Unsigned => integers(4, [0, 15]),
            Codes::Bits6 => integers(6, [-32, 31]),
            Codes::Bits8 => Facts { offset: 0, ..integers(8, [-128, 127]) },
            Codes::Iq4 => levels(&IQ4_LEVELS, [-127, 113]),
            Codes::Fp4 => levels(&FP4_DOUBLED, [-12, 12]),
            Codes::Iq1 => levels(&IQ1_LEVELS, [-9, 9]),
            Codes::Iq2 => levels(&IQ2_LEVELS, [-43, 43]),
            Codes::Iq3Xxs => levels(&IQ3_XXS_LEVELS, [-31, 31]),
            Codes::Iq3S => levels(&IQ3_S_LEVELS, [-15, 15]),
            Codes::F16 => floats(16),
            Codes::Bf16 => floats(16),
            Codes::F32 => floats(32),
        }
    }

    /// Whether these are floats.
    pub const fn is_float(self) -> bool {
        self.facts().factor == 0
    }

    /// The codes that represent the weights of both exactly.
    fn with(self, other: Codes) -> Option<Codes> {
        match (self.is_float(), other.is_float()) {
            _ if self == other => Some(self),
            // A bf16 and an f16 represent different numbers.
            (true, true) => Some(Codes::F32),
            // One is multiplied by floats, the other by integers.
            (true, false) | (false, true) => None,
            (false, false) => {
                let ([a, b], [c, d]) = (self.facts().range, other.facts().range);
                INTEGERS.into_iter().find(|codes| {
                    let [least, greatest] = codes.facts().range;
                    least <= a.min(c) && b.max(d) <= greatest
                })
            }
        }
    }

    /// The code of each integer, by its byte.
    fn by_integer(self) -> [u8; 256] {
        let Facts { factor, offset, levels, .. } = self.facts();
        if let Some(levels) = levels {
            let mut codes = [0; 256];
            // If an integer occurs twice, the first code counts.
            for (code, &level) in levels.iter().enumerate().rev() {
                codes[usize::from(level as u8)] = code as u8;
            }
            return codes;
        }
        core::array::from_fn(|byte| ((i32::from(byte as u8 as i8) + offset) / factor.max(1)) as u8)
    }
}

/// The storage of scales and minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scales {
    /// 16-bit floats per group.
    F16,
    /// 32-bit floats per group.
    F32,
    /// Signed bytes per group, times 32-bit floats per [`BLOCK`].
    Block,
}

/// The layout of a matrix on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedFormat {
    /// The storage of a weight.
    pub codes: Codes,
    /// Weights that share a scale: 16, 32, 64, 128 or 256. Unused for floats, like what follows.
    pub group: usize,
    /// The storage of scales and minima.
    pub scales: Scales,
    /// Whether groups have minima.
    pub minima: bool,
}

impl PackedFormat {
    const fn new(codes: Codes, group: usize, scales: Scales) -> PackedFormat {
        PackedFormat { codes, group, scales, minima: false }
    }

    const fn float(codes: Codes) -> PackedFormat {
        PackedFormat::new(codes, 32, Scales::F16)
    }

    const fn with_minima(self) -> PackedFormat {
        PackedFormat { minima: true, ..self }
    }

    /// The layout for a format, if the GPU computes with it.
    pub fn of(format: Format) -> Option<PackedFormat> {
        FORMATS.iter().find(|(known, _)| *known == format).map(|&(_, packed)| packed)
    }

    /// Every format with every layout that can hold it, for tests of a device's kernels.
    pub fn pairs() -> Vec<(Format, PackedFormat)> {
        let with = |(format, own): (Format, PackedFormat)| {
            FORMATS.iter().filter_map(move |&(_, other)| Some((format, own.with(other)?)))
        };
        let mut pairs: Vec<_> = FORMATS.into_iter().flat_map(with).collect();
        pairs.sort_unstable_by_key(|(format, p)| (*format, p.codes, p.group, p.scales, p.minima));
        pairs.dedup();
        pairs
    }

    /// A layout that represents the weights of both exactly, if they are multiplied by the same type of
    /// activations.
    pub fn with(self, other: PackedFormat) -> Option<PackedFormat> {
        Some(PackedFormat {
            codes: self.codes.with(other.codes)?,
            group: self.group.min(other.group),
            scales: if self.scales == other.scales { self.scales } else { Scales::F32 },
            minima: self.minima || other.minima,
        })
    }

    /// Whether the weights are floats, which are multiplied by float activations only.
    pub const fn is_float(self) -> bool {
        self.codes.is_float()
    }

    /// Whether a unit has two scales.
    pub const fn has_half_units(self) -> bool {
        self.group < 32
    }

    /// The type of activations that these weights are multiplied by: `activations`, or floats for float
    /// weights.
    pub const fn input(self, activations: Activations) -> Activations {
        if self.is_float() { Activations::F32 } else { activations }
    }

    /// Words of codes per row.
    pub const fn code_words(self, cols: usize) -> usize {
        cols / 32 * self.codes.facts().bits
    }

    /// Numbers per scale: 2 with a minimum.
    pub const fn parts(self) -> usize {
        1 + self.minima as usize
    }

    /// Words of scales per block of [`Scales::Block`].
    pub const fn block_words(self) -> usize {
        self.parts() + BLOCK / self.group * self.parts() / 4
    }

    /// Words of scales per row.
    pub const fn scale_words(self, cols: usize) -> usize {
        if self.is_float() {
            return 0;
        }
        let numbers = cols.div_ceil(self.group) * self.parts();
        match self.scales {
            Scales::F16 => numbers.div_ceil(2),
            Scales::F32 => numbers,
            Scales::Block => cols.div_ceil(BLOCK) * self.block_words(),
        }
    }

    /// Bytes of a matrix.
    pub const fn bytes(self, rows: usize, cols: usize) -> u64 {
        rows as u64 * 4 * (self.code_words(cols) + self.scale_words(cols)) as u64
    }

    /// Appends a packed row of whole blocks.
    pub fn repack(self, format: Format, row: &[u8], codes: &mut Vec<u32>, scales: &mut Vec<u32>) {
        let blocks = row.chunks_exact(format.block_bytes());
        let facts = self.codes.facts();
        if self.is_float() {
            if facts.bits == 32 {
                let mut weights = vec![0.0; row.len() / format.block_bytes()];
                unpack_exact(format, row, &mut weights);
                codes.extend(weights.iter().map(|w| w.to_bits()));
            } else {
                codes.extend(row.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)));
            }
            return;
        }
        let simple = self.scales == Scales::F16 && !self.minima;
        let mut halves = Halves { low: None, words: scales };
        match (format, self.codes) {
            (Format::Q1_0, Codes::Bits1) if simple => {
                for block in blocks {
                    codes.extend(
                        block[2..].as_chunks().0.iter().map(|w| bytes_of_bits(u32::from_le_bytes(*w))),
                    );
                    halves.push(block[0], block[1]);
                }
            }
            (Format::Q2_0 | Format::Pq2_0 | Format::Tq2_0G128, Codes::Bits2) if simple => {
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
                let by_integer = self.codes.by_integer();
                for block in blocks {
                    block_integers(format, block, q);
                    let bytes =
                        q.as_chunks::<4>().0.iter().map(|q| {
                            u32::from_le_bytes(q.map(|q| by_integer[usize::from(q.cast_unsigned())]))
                        });
                    pack(bytes, facts.bits, codes);
                    self.repack_scales(format, block, &mut halves);
                }
            }
        }
        halves.finish();
    }

    /// Appends the scales of a block.
    fn repack_scales(self, format: Format, block: &[u8], halves: &mut Halves<'_>) {
        let groups = (0..format.block()).step_by(self.group).map(|at| {
            let group = at / format.group();
            [block_scale(format, block, group), block_minimum(format, block, group)]
        });
        match self.scales {
            Scales::F16 => {
                for numbers in groups {
                    for number in &numbers[..self.parts()] {
                        let [low, high] = half::f16::from_f32(*number).to_le_bytes();
                        halves.push(low, high);
                    }
                }
            }
            Scales::F32 => {
                halves.words.extend(
                    groups.flat_map(|numbers| numbers.into_iter().take(self.parts())).map(f32::to_bits),
                );
            }
            Scales::Block => {
                let common = common_scales(format, block);
                halves.words.extend(common[..self.parts()].iter().map(|d| d.to_bits()));
                let bytes: Vec<u8> = groups
                    .flat_map(|numbers| {
                        // Exact: the scale is the product. The quotient of 0 by 0 becomes 0.
                        let integer = |i: usize| (numbers[i] / common[i]) as i8;
                        [integer(0), integer(1)].into_iter().take(self.parts())
                    })
                    .map(i8::cast_unsigned)
                    .collect();
                halves.words.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)));
            }
        }
    }
}

/// The numbers by which the integer scales and minima of a block are multiplied; 0 for formats without.
fn common_scales(format: Format, block: &[u8]) -> [f32; 2] {
    use super::codebook::{self, common_scale};
    let at = match format {
        Format::Iq1S => return [common_scale::<codebook::Iq1S>(block), 0.0],
        Format::Iq1M => return [common_scale::<codebook::Iq1M>(block), 0.0],
        Format::Iq2Xxs => return [common_scale::<codebook::Iq2Xxs>(block), 0.0],
        Format::Iq2Xs => return [common_scale::<codebook::Iq2Xs>(block), 0.0],
        Format::Iq2S => return [common_scale::<codebook::Iq2S>(block), 0.0],
        Format::Iq3Xxs => return [common_scale::<codebook::Iq3Xxs>(block), 0.0],
        Format::Iq3S => return [common_scale::<codebook::Iq3S>(block), 0.0],
        Format::Q4K | Format::Q5K | Format::Iq4Xs => 0,
        Format::Q2K => 80,
        Format::Q3K => 108,
        Format::Q6K => 208,
        _ => return [0.0; 2],
    };
    let half = |at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    [half(at), if format.has_minimum() { -half(at + 2) } else { 0.0 }]
}

/// Appends codes of `bits` bits from words of four codes, one per byte.
fn pack(bytes: impl Iterator<Item = u32>, bits: usize, codes: &mut Vec<u32>) {
    let mut unit = [0; 8];
    let mut bytes = bytes.peekable();
    while bytes.peek().is_some() {
        for (word, four) in unit.iter_mut().zip(&mut bytes) {
            *word = four;
        }
        // Words of `bits` bits of each byte, from bit `from` on.
        let mut part = |from: usize, bits: usize| {
            let mask = 0x0101_0101 * (0xff >> (8 - bits));
            codes.extend(unit.chunks_exact(8 / bits).map(|fours| {
                let set = |word, (s, four): (usize, &u32)| word | (four >> from & mask) << (bits * s);
                fours.iter().enumerate().fold(0, set)
            }));
        };
        if bits == 6 {
            part(0, 4);
            part(4, 2);
        } else {
            part(0, bits);
        }
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
            assert!(PackedFormat::of(format).is_some(), "{}", format.name());
        }
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
}
