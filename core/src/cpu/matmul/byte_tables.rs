//! 1-bit and ternary products by table lookup, for processors with neither vectors nor much memory.
//!
//! A byte of codes covers eight columns of 1-bit weights, or four of ternary ones: 256 combinations, of which a table
//! holds every sum of the activations. So four or eight products take one load and one addition. The tables of one block
//! of columns serve all rows before those of the next block are built: they take 16 kB, whatever the matrix.
//!
//! Sums of 16 bits are stored with a bias that makes them positive, so that two can be computed in one word.
#![deny(unsafe_code)]

use super::args::{Kernel, MatmulArgs};
use super::built::{ONE_BIT, TERNARY};
use crate::cpu::activations::{Q8_LEN, Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::quant::Format;
use crate::quant::scale::f16_at;

/// Columns that share a factor.
const GROUP: usize = 32;
/// Tables of the block with the most.
const MAX_TABLES: usize = 32;
/// The largest magnitude of a sum: eight products of 127, or four of 127 times 2 (the code 3).
const BIAS: i32 = 8 * 127;

/// Two sums in a word.
type Table = [u32; 128];

/// The kernel for int8 activations and row-major weights.
pub(super) fn integer(format: Format) -> Option<Kernel> {
    match format {
        Format::Q2_0 if TERNARY => Some(rows::<64, 16, 0, 2>),
        Format::Pq2_0 if TERNARY => Some(rows::<128, 32, 0, 2>),
        Format::Tq2_0G128 if TERNARY => Some(rows::<128, 32, 32, 0>),
        _ => one_bit(format),
    }
}

/// [`integer`] for one bit per weight.
pub(super) fn one_bit(format: Format) -> Option<Kernel> {
    match format {
        Format::Q1_0 if ONE_BIT => Some(rows::<128, 16, 0, 2>),
        _ => None,
    }
}

/// Whether [`integer`] has a kernel.
pub(super) const fn has(format: Format) -> bool {
    matches!(format, Format::Q1_0 | Format::Q2_0 | Format::Pq2_0 | Format::Tq2_0G128)
}

/// Blocks of `COLS` columns in `TABLES` bytes from byte `CODES` on, with the scale at byte `SCALE`.
fn rows<const COLS: usize, const TABLES: usize, const SCALE: usize, const CODES: usize>(
    args: &MatmulArgs<'_>,
    out: &mut OutputRows<'_>,
) {
    let (bytes, row_bytes, blocks) = (TABLES + 2, args.w.row_bytes(), q8_blocks(args.w.cols()));
    let mut tables = [[0; 128]; MAX_TABLES];
    for t in 0..args.tokens {
        let q8 = &args.q8[t * blocks..][..blocks];
        let (first, step) = (out.first(), args.step(t));
        let y = out.of(t);
        y.fill(0.0);
        let packed = &args.w.data()[first * row_bytes..][..y.len() * row_bytes];
        for b in 0..args.w.cols() / COLS {
            let (factors, start) = build::<COLS, TABLES>(q8, b * COLS, &mut tables);
            for (y, row) in y.iter_mut().zip(packed.chunks_exact(row_bytes)) {
                let block = &row[b * bytes..][..bytes];
                let Some(codes) = block[CODES..].first_chunk::<TABLES>() else { continue };
                let n = sum::<COLS, TABLES>(&tables, codes, &factors, start);
                *y += n as f32 * f16_at(block, SCALE);
            }
        }
        y.iter_mut().for_each(|y| *y *= step);
    }
}

/// `n` of `scalar.rs`.
#[inline(always)]
fn sum<const COLS: usize, const TABLES: usize>(
    tables: &[Table; MAX_TABLES],
    codes: &[u8; TABLES],
    factors: &[i32; 4],
    start: i32,
) -> i32 {
    let each = GROUP * TABLES / COLS;
    let mut n = start;
    for g in 0..COLS / GROUP {
        let mut sum = 0;
        for i in g * each..(g + 1) * each {
            let table: &[u16; 256] = bytemuck::cast_ref(&tables[i]);
            sum += i32::from(table[usize::from(codes[i])]);
        }
        n = n.wrapping_add(sum.wrapping_mul(factors[g]));
    }
    n
}

/// Builds the tables of the columns from `at` on. Returns the factor of each group, and what cancels the bias.
#[inline(never)]
fn build<const COLS: usize, const TABLES: usize>(
    q8: &[Q8Block],
    at: usize,
    tables: &mut [Table; MAX_TABLES],
) -> ([i32; 4], i32) {
    let each = COLS / TABLES;
    let (mut factors, mut start) = ([0; 4], 0i32);
    for g in 0..COLS / GROUP {
        let column = at + g * GROUP;
        let block = &q8[column / Q8_LEN];
        factors[g] = block.factor[column % Q8_LEN / GROUP];
        let biases = (GROUP / each) as i32 * BIAS;
        start = start.wrapping_sub(factors[g].wrapping_mul(biases));
        let q = &block.q[column % Q8_LEN..][..GROUP];
        for (q, table) in q.chunks_exact(each).zip(&mut tables[g * GROUP / each..]) {
            let (low, high) = q.split_at(each / 2);
            fill(&half(low), &half(high), table);
        }
    }
    (factors, start)
}

/// The sums of half a byte of codes: of four activations with a bit each, or of two with two bits.
#[inline(always)]
fn half(q: &[i8]) -> [i32; 16] {
    // What each bit of the codes adds to the sum of code 0.
    let bits: [i32; 4] = if let [a, b, c, d] = *q {
        [a, b, c, d].map(|q| 2 * i32::from(q))
    } else {
        core::array::from_fn(|bit| i32::from(q[bit / 2]) << (bit % 2))
    };
    let mut sums = [0; 16];
    sums[0] = -q.iter().map(|&q| i32::from(q)).sum::<i32>();
    for (bit, add) in bits.into_iter().enumerate() {
        for code in 0..1 << bit {
            sums[code | 1 << bit] = sums[code] + add;
        }
    }
    sums
}

/// Adds the sums of the lower half of a byte to those of the upper half.
#[inline(always)]
fn fill(low: &[i32; 16], high: &[i32; 16], table: &mut Table) {
    let pairs: [u32; 8] =
        core::array::from_fn(|i| ((low[2 * i] + BIAS) as u32) | ((low[2 * i + 1] + BIAS) as u32) << 16);
    for (high, words) in high.iter().zip(table.as_chunks_mut::<8>().0) {
        // Neither half of the result is negative, so that no carry is left over.
        let both = high.wrapping_mul(0x1_0001) as u32;
        for (word, pair) in words.iter_mut().zip(pairs) {
            *word = pair.wrapping_add(both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::activations::quantize;
    use crate::cpu::matmul::scalar;
    use crate::cpu::parallel::{Output, for_each_rows};
    use crate::pool::Serial;
    use crate::quant::Matrix;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn table_lookup_has_the_bits_of_the_reference() {
        let (rows, tokens) = (21, 3);
        for format in Format::ALL.into_iter().filter(|&format| has(format)) {
            let cols = 3 * format.block();
            let mut seed = 1u32;
            let mut next = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            };
            // Any bytes are weights, the code 3 included; scales must be finite.
            let mut packed: Vec<u8> = (0..rows * format.row_bytes(cols).unwrap()).map(|_| next()).collect();
            let scale = if format == Format::Tq2_0G128 { 32 } else { 0 };
            packed.chunks_exact_mut(format.block_bytes()).for_each(|block| block[scale + 1] &= 0xbf);
            let x: Vec<f32> = (0..tokens * cols).map(|_| f32::from(next()) - 127.0).collect();
            let mut q8 = vec![Q8Block::default(); tokens * q8_blocks(cols)];
            quantize(Isa::SCALAR, &x, cols, &mut q8).unwrap();
            let w = Matrix::new(format, rows, cols, &packed).unwrap().into();
            let args = MatmulArgs { w, x: &[], q8: &q8, luts: &[], tokens };
            let product = |kernel: Kernel| {
                let mut y = vec![f32::NAN; tokens * rows];
                let mut outputs = heapless::Vec::<_, 1>::new();
                assert!(outputs.push(Output { y: &mut y, rows, chunk: 8 }).is_ok());
                for_each_rows(&Serial, tokens, outputs, &|_, mut out| {
                    // SAFETY: neither kernel needs an instruction set.
                    #[allow(unsafe_code)]
                    unsafe {
                        kernel(&args, &mut out);
                    }
                });
                y.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            let kernel = integer(format).unwrap();
            assert_eq!(product(kernel), product(scalar::integer), "{}", format.name());
        }
    }
}
