//! Random packed weights, generated as blocks: a model of gigabytes takes seconds.

use half::{bf16, f16};
use shohin_core::Format;

use crate::Random;

/// Fills whole blocks with random weights of about this standard deviation. A quantizer could have written
/// every byte.
pub fn fill(format: Format, deviation: f32, random: &mut Random, out: &mut [u8]) {
    assert!(out.len().is_multiple_of(format.block_bytes()));
    for block in out.chunks_exact_mut(format.block_bytes()) {
        match format {
            Format::F32 | Format::F16 | Format::Bf16 => fill_float(format, deviation, random, block),
            Format::Q1_0
            | Format::Q2_0
            | Format::Pq2_0
            | Format::Tq2_0G128
            | Format::Tq2_0
            | Format::Ptq1_0
            | Format::Tq1_0 => fill_small(format, deviation, random, block),
            _ => fill_integer(format, deviation, random, block),
        }
    }
}

/// The scale of a block whose codes have this standard deviation. Scales differ from block to block, by up to a quarter.
fn scale(deviation: f32, random: &mut Random, code_deviation: f32) -> [u8; 2] {
    f16::from_f32(deviation / code_deviation * (1.0 + 0.25 * random.unit())).to_le_bytes()
}

fn fill_float(format: Format, deviation: f32, random: &mut Random, block: &mut [u8]) {
    // A uniform number has a standard deviation of its bound over the square root of 3.
    let number = random.unit() * deviation * 1.732;
    match format {
        Format::F16 => block.copy_from_slice(&f16::from_f32(number).to_le_bytes()),
        Format::Bf16 => block.copy_from_slice(&bf16::from_f32(number).to_le_bytes()),
        _ => block.copy_from_slice(&number.to_le_bytes()),
    }
}

/// Formats of 4 bits and more, and K-quants.
fn fill_integer(format: Format, deviation: f32, random: &mut Random, block: &mut [u8]) {
    let scale = |random: &mut Random, code_deviation: f32| scale(deviation, random, code_deviation);
    let times = |d: [u8; 2], by: f32| f16::from_f32(f16::from_le_bytes(d).to_f32() * by).to_le_bytes();
    match format {
        Format::Q8_0 => {
            block[..2].copy_from_slice(&scale(random, 73.3));
            random.fill(&mut block[2..]);
            // -128 is never written.
            block[2..].iter_mut().for_each(|q| *q = if *q == 128 { 127 } else { *q });
        }
        Format::Q4_0 => {
            block[..2].copy_from_slice(&scale(random, 4.6));
            random.fill(&mut block[2..]);
        }
        Format::Q4_1 => {
            let d = scale(random, 4.6);
            block[..2].copy_from_slice(&d);
            // Centres the weights at 0.
            block[2..4].copy_from_slice(&times(d, -7.5));
            random.fill(&mut block[4..]);
        }
        Format::Q5_0 => {
            random.fill(block);
            block[..2].copy_from_slice(&scale(random, 9.2));
        }
        Format::Q5_1 => {
            random.fill(block);
            let d = scale(random, 9.2);
            block[..2].copy_from_slice(&d);
            block[2..4].copy_from_slice(&times(d, -15.5));
        }
        // Scales and codes are uniform; minima are such that the mean is 0.
        Format::Q2K => {
            random.fill(block);
            let d = scale(random, 13.9);
            block[80..82].copy_from_slice(&d);
            block[82..84].copy_from_slice(&times(d, 1.5));
        }
        Format::Q4K | Format::Q5K => {
            random.fill(block);
            let (code_deviation, mean) = if format == Format::Q4K { (258.0, 7.5) } else { (526.0, 15.5) };
            let d = scale(random, code_deviation);
            block[..2].copy_from_slice(&d);
            block[2..4].copy_from_slice(&times(d, mean));
        }
        Format::Q3K | Format::Q6K => {
            random.fill(block);
            let d = scale(random, if format == Format::Q3K { 43.0 } else { 1366.0 });
            block[format.block_bytes() - 2..].copy_from_slice(&d);
        }
        Format::Iq4Nl | Format::Iq4Xs => {
            random.fill(block);
            let d = scale(random, if format == Format::Iq4Nl { 70.0 } else { 1290.0 });
            block[..2].copy_from_slice(&d);
        }
        Format::Iq1S | Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S | Format::Iq3Xxs | Format::Iq3S => {
            random.fill(block);
            let code_deviation = match format {
                Format::Iq1S => 7.6,
                Format::Iq3Xxs => 140.0,
                Format::Iq3S => 157.0,
                _ => 41.0,
            };
            block[..2].copy_from_slice(&scale(random, code_deviation));
        }
        Format::Iq1M => {
            random.fill(block);
            let d = u16::from_le_bytes(scale(random, 7.6));
            for (i, at) in [49, 51, 53, 55].into_iter().enumerate() {
                block[at] = block[at] & 15 | ((d >> (4 * i) & 15) as u8) << 4;
            }
        }
        Format::Q8K => {
            let d = deviation / 73.3 * (1.0 + 0.25 * random.unit());
            block[..4].copy_from_slice(&d.to_le_bytes());
            let (q, sums) = block[4..].split_at_mut(256);
            random.fill(q);
            q.iter_mut().for_each(|q| *q = if *q == 128 { 127 } else { *q });
            for (sum, q) in sums.chunks_exact_mut(2).zip(q.chunks_exact(16)) {
                let exact: i16 = q.iter().map(|&q| i16::from(q as i8)).sum();
                sum.copy_from_slice(&exact.to_le_bytes());
            }
        }
        Format::Mxfp4 => {
            random.fill(block);
            block[0] = (128.0 + (deviation / 5.85).log2().round()) as u8;
        }
        Format::Nvfp4 => {
            random.fill(block);
            // In the range of the smallest scales, steps of 2^-9.
            block[..4].fill((deviation / 5.85 * 1024.0).round().clamp(1.0, 126.0) as u8);
        }
        other => panic!("no random weights for {}", other.name()),
    }
}

/// Weights of 1 bit, and ternary ones.
fn fill_small(format: Format, deviation: f32, random: &mut Random, block: &mut [u8]) {
    // Ternary codes 0, 1, 2 with equal probability: sqrt(2/3).
    const TERNARY: f32 = 0.816;
    let scale = |random: &mut Random, code_deviation: f32| scale(deviation, random, code_deviation);
    match format {
        Format::Q1_0 => {
            block[..2].copy_from_slice(&scale(random, 1.0));
            random.fill(&mut block[2..]);
        }
        Format::Q2_0 | Format::Pq2_0 => {
            block[..2].copy_from_slice(&scale(random, TERNARY));
            block[2..].chunks_mut(4).for_each(|codes| ternary_codes(random, codes));
        }
        Format::Tq2_0G128 | Format::Tq2_0 => {
            let (codes, d) = block.split_at_mut(format.block_bytes() - 2);
            codes.chunks_mut(4).for_each(|codes| ternary_codes(random, codes));
            d.copy_from_slice(&scale(random, TERNARY));
        }
        Format::Ptq1_0 | Format::Tq1_0 => {
            let (trits, d) = block.split_at_mut(format.block_bytes() - 2);
            // The bytes at the end hold four digits, not five.
            let short = if format == Format::Tq1_0 { 4 } else { 2 };
            let (five, four) = trits.split_at_mut(trits.len() - short);
            five.iter_mut().for_each(|q| *q = (random.below(243) * 256).div_ceil(243) as u8);
            four.iter_mut().for_each(|q| *q = (random.below(81) * 3 * 256).div_ceil(243) as u8);
            d.copy_from_slice(&scale(random, TERNARY));
        }
        other => panic!("no random weights for {}", other.name()),
    }
}

/// Four bytes of 2-bit codes without the code 3, which becomes 0, 1 or 2.
fn ternary_codes(random: &mut Random, out: &mut [u8]) {
    let bits = random.next();
    let codes = bits as u32;
    let three = codes & (codes >> 1) & 0x5555_5555;
    // Where the code is 3, keep one random bit, which makes it 1 or 2; sometimes make it 0.
    let pick = (bits >> 32) as u32 & three;
    let mut fixed = codes & !(pick | ((three & !pick) << 1));
    if bits >> 62 == 0 {
        fixed &= !(three | (three << 1));
    }
    out.copy_from_slice(&fixed.to_le_bytes()[..out.len()]);
}
