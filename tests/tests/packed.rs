//! The layout of weights on a GPU, against the engine's own weights.

use shohin_core::quant::packed::{Codes, Facts, PackedFormat, Scales};
use shohin_core::quant::unpack;
use shohin_tests::{Random, weights};

/// Weight `i` of a row, as kernels read it.
fn read(packed: PackedFormat, i: usize, codes: &[u32], scales: &[u32]) -> f32 {
    let Facts { bits, factor, offset, levels, .. } = packed.codes.facts();
    let half = |i: usize, words: &[u32]| (words[i / 2] >> (16 * (i % 2))) as u16;
    if packed.is_float() {
        return match packed.codes {
            Codes::F16 => half::f16::from_bits(half(i, codes)).to_f32(),
            Codes::Bf16 => f32::from_bits(u32::from(half(i, codes)) << 16),
            _ => f32::from_bits(codes[i]),
        };
    }
    let (unit, s, b) = (&codes[i / 32 * bits..], i % 32 / 4, i % 4);
    let part = |unit: &[u32], bits: usize| {
        let mask = 0xff >> (8 - bits);
        (unit[s * bits / 8] >> (8 * b + bits * s % 8) & mask) as u8
    };
    let code = if bits == 6 { part(unit, 4) | part(&unit[4..], 2) << 4 } else { part(unit, bits) };
    let q = match levels {
        Some(levels) => f32::from(levels[usize::from(code)]),
        None => (i32::from(code as i8) * factor - offset) as f32,
    };
    let (at, parts) = (i / packed.group, packed.parts());
    let [d, m] = [0, 1].map(|part| {
        if part == parts {
            return 0.0;
        }
        let number = parts * at + part;
        match packed.scales {
            Scales::F16 => half::f16::from_bits(half(number, scales)).to_f32(),
            Scales::F32 => f32::from_bits(scales[number]),
            Scales::Block => {
                let block = &scales[i / 256 * packed.block_words()..];
                let byte = at % (256 / packed.group) * parts + part;
                let integer = (block[parts + byte / 4] >> (8 * (byte % 4))) as i8;
                f32::from_bits(block[part]) * f32::from(integer)
            }
        }
    });
    if packed.minima { q * d + m } else { q * d }
}

/// Every format in every layout that can hold it, read back as kernels read it.
#[test]
fn repacked_weights_are_the_weights() {
    let mut random = Random::new(11);
    for (format, packed) in PackedFormat::pairs() {
        let cols = 768;
        let mut row = vec![0; format.row_bytes(cols).unwrap()];
        weights::fill(format, 0.3, &mut random, &mut row);
        let mut want = vec![0.0; cols];
        unpack(format, &row, &mut want).unwrap();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        packed.repack(format, &row, &mut codes, &mut scales);
        assert_eq!((codes.len(), scales.len()), (packed.code_words(cols), packed.scale_words(cols)));
        for (i, &want) in want.iter().enumerate() {
            assert_eq!(read(packed, i, &codes, &scales), want, "{format:?} as {packed:?}, weight {i}");
        }
    }
}
