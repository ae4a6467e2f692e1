//! One suite for every {operation x format x instruction set}: equal to the scalar reference, bit for bit.
//! Run it under emulators for instruction sets this machine lacks; see docs/SPEED.md.

use shohin_core::cpu::Isa;
use shohin_core::cpu::activation_lut::ActivationLut;
use shohin_core::cpu::activations::{Q8Block, q8_blocks, quantize};
use shohin_core::cpu::matmul::{Input, build_lut, lut_len, matmul};
use shohin_core::cpu::repack::{Layout, PackedMatrix, repack, repacked_format};
use shohin_core::quant::WeightClass;
use shohin_core::{Format, Matrix, Pool, Serial, quant};

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Pseudo-random numbers (xorshift64*), the same on every target.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// In -1..1, mostly small.
    fn float(&mut self) -> f32 {
        let unit = |n: u64| n as f32 / (1u64 << 31) as f32 - 1.0;
        let (a, b) = (unit(self.next()), unit(self.next()));
        a * b * b
    }
}

/// Packed weights of shape `(rows, cols)` with ordinary values.
fn weights(numbers: &mut Numbers, format: Format, rows: usize, cols: usize) -> Vec<u8> {
    let mut packed = vec![0; rows * format.row_bytes(cols).unwrap()];
    if !format.has_quantizer() {
        packed.iter_mut().for_each(|byte| *byte = numbers.next() as u8);
        // The scale is 2^-12 times 1 to 2, in four parts in IQ1_M.
        for block in packed.chunks_exact_mut(format.block_bytes()) {
            if format == Format::Iq1M {
                (block[53], block[55]) = (block[53] & 15 | 0xc0, block[55] & 15);
            } else {
                block[1] = 0x0c;
            }
        }
        return packed;
    }
    let w: Vec<f32> = (0..rows * cols).map(|_| numbers.float()).collect();
    quant::pack(format, &w, &mut packed).unwrap();
    packed
}

fn product(isa: Isa, pool: &dyn Pool, w: &PackedMatrix, x: &Input, tokens: usize) -> Vec<u32> {
    let mut y = vec![f32::from_bits(0x7fc0_1234); tokens * w.rows()];
    matmul(isa, pool, w, x, tokens, &mut y).unwrap();
    // The bits of a NaN are unspecified.
    y.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

/// `w` row-major and, if its format allows it, repacked.
fn layouts(w: &Matrix) -> Vec<(Layout, Format, Vec<u8>)> {
    let mut all = vec![(Layout::RowMajor, w.format(), w.data().to_vec())];
    for layout in [Layout::Panels32, Layout::Panels8] {
        if let Some(format) = repacked_format(w.format()) {
            let mut bytes = w.data().to_vec();
            repack(w.format(), layout, w.rows(), w.cols(), &mut bytes, &Serial).unwrap();
            all.push((layout, format, bytes));
        }
    }
    all
}

fn luts(isa: Isa, q8: &[Q8Block], tokens: usize, cols: usize) -> Vec<ActivationLut> {
    let mut luts = vec![ActivationLut::default(); lut_len(isa, tokens, cols)];
    // In memory that an earlier input has filled, as that of a device.
    let (all, wide) = (tokens.next_multiple_of(16), cols.next_multiple_of(128));
    if lut_len(isa, all, wide) == luts.len() {
        let earlier = Q8Block { q: [-77; 64], factor: [32767; 2], start: 1 << 20, ..Q8Block::default() };
        build_lut(isa, &vec![earlier; all * q8_blocks(wide)], wide, &mut luts).unwrap();
    }
    build_lut(isa, q8, cols, &mut luts).unwrap();
    luts
}

/// The bytes of a `(rows, cols)` matrix of `format` in `layout`.
fn packed(format: Format, layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> PackedMatrix<'_> {
    PackedMatrix::new(Matrix::new(format, rows, cols, bytes).unwrap(), layout).unwrap()
}

/// The instruction sets of this machine, without those that were compared elsewhere: emulators are slow.
fn compared() -> impl Iterator<Item = Isa> {
    let elsewhere = std::env::var("SHOHIN_COMPARED_ELSEWHERE").unwrap_or_default();
    Isa::available().filter(move |isa| elsewhere.split(',').all(|name| name != isa.name()))
}

/// Compares both operations of every instruction set, over every layout, with the scalar reference over rows.
fn compare(w: &Matrix, x: &[f32], tokens: usize) {
    let quantized = |isa| {
        let mut q8 = vec![Q8Block::default(); tokens * q8_blocks(w.cols())];
        quantize(isa, x, w.cols(), &mut q8).unwrap();
        q8
    };
    let q8 = quantized(Isa::SCALAR);
    let [float, int8] = [None, Some(&q8[..])].map(|q8| {
        let input = Input { f32: x, q8, luts: &[] };
        product(Isa::SCALAR, &Serial, &(*w).into(), &input, tokens)
    });
    let layouts = layouts(w);
    for isa in compared() {
        let q8 = quantized(isa);
        let luts = luts(isa, &q8, tokens, w.cols());
        let inputs = [(&float, None, &[][..]), (&int8, Some(&q8[..]), &[]), (&int8, Some(&q8), &luts)];
        for (expected, q8, luts) in inputs.into_iter().take(if luts.is_empty() { 2 } else { 3 }) {
            let input = Input { f32: x, q8, luts };
            for (layout, format, bytes) in &layouts {
                if isa == Isa::SCALAR && *layout == Layout::RowMajor {
                    continue; // the reference itself
                }
                let w = packed(*format, *layout, w.rows(), w.cols(), bytes);
                let found = product(isa, &Serial, &w, &input, tokens);
                for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
                    assert!(
                        e == f,
                        "{} {} {layout:?} int8 {}, {} luts: {} rows, {} cols, token {} row {}: expected {}, found {}",
                        isa.name(),
                        w.format().name(),
                        q8.is_some(),
                        luts.len(),
                        w.rows(),
                        w.cols(),
                        i / w.rows(),
                        i % w.rows(),
                        f32::from_bits(*e),
                        f32::from_bits(*f),
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_equals_the_reference() {
    let thorough = std::env::var_os("SHOHIN_THOROUGH").is_some();
    let mut numbers = Numbers(1);
    for format in Format::ALL {
        let block = format.block();
        // Rows around every tile size, columns from one block to more than one unpacked chunk.
        for (i, rows) in [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 19, 32, 37].into_iter().enumerate() {
            for (j, blocks) in [1, 2, 3, 4, 5].into_iter().enumerate() {
                let cols = blocks * block;
                let packed = weights(&mut numbers, format, rows, cols);
                let w = Matrix::new(format, rows, cols, &packed).unwrap();
                for (k, tokens) in [0, 1, 2, 3, 4, 5, 9].into_iter().enumerate() {
                    // Two of seven: each number of tokens meets each number of rows, and each of blocks.
                    if !thorough && ![0, 3].contains(&((i + j + k) % 7)) {
                        continue;
                    }
                    let x: Vec<f32> = (0..tokens * cols).map(|_| numbers.float()).collect();
                    compare(&w, &x, tokens);
                }
            }
        }
    }
}

#[test]
fn long_rows_and_many_tokens_equal_the_reference() {
    let mut numbers = Numbers(2);
    for format in Format::ALL {
        for (rows, cols, tokens) in
            [(6, 4352, 1), (21, 2304, 6), (17, 512, 150), (20, 1023 / format.block() * format.block(), 3)]
        {
            let packed = weights(&mut numbers, format, rows, cols);
            let w = Matrix::new(format, rows, cols, &packed).unwrap();
            let x: Vec<f32> = (0..tokens * cols).map(|_| numbers.float()).collect();
            compare(&w, &x, tokens);
        }
    }
}

/// Repacked rows, and numbers of tokens that fill tiles, just fail to, or exceed them; ordinary weights and
/// any bytes.
#[test]
fn prompts_equal_the_reference() {
    let mut numbers = Numbers(7);
    let few = [(80, 3, 8), (64, 5, 6), (37, 2, 7), (64, 2, 5), (144, 1, 9)];
    let many = [(16, 1, 16), (32, 3, 15), (48, 2, 17), (37, 5, 33), (64, 1, 31), (33, 9, 130), (48, 2, 77)];
    let mut shapes = [few.as_slice(), &many].concat();
    if std::env::var_os("SHOHIN_BRIEF").is_some() {
        // Emulators take a minute for the largest; its rows and its tokens reach the same code one after the other.
        shapes.retain(|shape| *shape != (33, 9, 130));
        shapes.extend([(33, 9, 17), (33, 1, 130)]);
    }
    for format in Format::ALL.into_iter().filter(|f| repacked_format(*f).is_some()) {
        for (i, &(rows, blocks, tokens)) in shapes.iter().enumerate() {
            let cols = blocks * format.block();
            let mut packed = weights(&mut numbers, format, rows, cols);
            if i % 2 == 1 {
                packed.iter_mut().for_each(|byte| *byte = numbers.next() as u8);
            }
            let w = Matrix::new(format, rows, cols, &packed).unwrap();
            let x: Vec<f32> = (0..tokens * cols).map(|_| numbers.float()).collect();
            compare(&w, &x, tokens);
        }
    }
}

/// More rows than share the tables of several tokens, for each number of lanes and for few tokens.
#[test]
fn many_rows_equal_the_reference() {
    let mut numbers = Numbers(8);
    for (rows, tokens) in [(16448, 4), (4112, 9), (2064, 9), (2064, 16), (1040, 32), (528, 64)] {
        let cols = Format::Q1_0.block();
        let packed = weights(&mut numbers, Format::Q1_0, rows, cols);
        let w = Matrix::new(Format::Q1_0, rows, cols, &packed).unwrap();
        let x: Vec<f32> = (0..tokens * cols).map(|_| numbers.float()).collect();
        compare(&w, &x, tokens);
    }
}

/// Any bytes at any address: scales that are infinite, NaN, negative, subnormal; ternary code 3;
/// base-3 bytes that no packer writes.
#[test]
fn arbitrary_bytes_equal_the_reference() {
    let mut numbers = Numbers(3);
    for format in Format::ALL {
        for round in 0..24 {
            let (rows, cols) = (4 + round % 5 * 5, 512);
            let bytes = rows * format.row_bytes(cols).unwrap();
            let packed: Vec<u8> = (0..bytes + 3).map(|_| numbers.next() as u8).collect();
            let w = Matrix::new(format, rows, cols, &packed[round % 4..][..bytes]).unwrap();
            let tokens = [1, 2, 5][round / 3 % 3];
            let mut x: Vec<f32> = (0..tokens * cols).map(|_| numbers.float()).collect();
            if round % 3 == 0 {
                x[numbers.next() as usize % cols] = [f32::NAN, f32::INFINITY, f32::MAX, 1e-40][round / 3 % 4];
            }
            compare(&w, &x, tokens);
        }
    }
}

/// With scales of one and integer activations every sum is exact, so that the result is the integer dot
/// product itself.
#[test]
fn integer_dots_are_exact() {
    let mut numbers = Numbers(4);
    for isa in Isa::available() {
        for format in Format::ALL {
            // With these, a single weight does not determine the scale.
            let searched = matches!(format, Format::Iq4Nl | Format::Iq4Xs | Format::Mxfp4 | Format::Nvfp4);
            if searched || format.block() == 256 && format.class() == WeightClass::Integer {
                continue;
            }
            let (rows, cols, tokens) = (5, 768, 3);
            // Every block holds the value that makes its scale one.
            let (top, largest) = match format {
                Format::Q8_0 => (127, 127),
                Format::Q4_0 => (-8, 7),
                Format::Q4_1 => (7, 7),
                Format::Q5_0 => (-16, 15),
                Format::Q5_1 => (15, 15),
                _ => (1, 1),
            };
            let w: Vec<f32> = (0..rows * cols)
                .map(|i| match format {
                    _ if i % 32 == 0 => top as f32,
                    // The smallest, 15 below the largest, makes the scale one.
                    Format::Q4_1 if i % 32 == 2 => -8.0,
                    Format::Q5_1 if i % 32 == 2 => -16.0,
                    // Code 8 or 16: no intermediate sum exceeds the integers that f32 represents exactly.
                    Format::Q4_1 | Format::Q5_1 if i % cols == 1 => 0.0,
                    _ if i % cols == 1 => 1.0,
                    // Few large ones, or sums would exceed the integers that f32 represents exactly.
                    Format::Q8_0 if i % 5 != 0 => (numbers.next() % 3) as f32 - 1.0,
                    Format::Q1_0 => [-1.0, 1.0][numbers.next() as usize % 2],
                    _ => (numbers.next() % (2 * largest + 1)) as f32 - largest as f32,
                })
                .collect();
            let mut packed = vec![0; rows * format.row_bytes(cols).unwrap()];
            quant::pack(format, &w, &mut packed).unwrap();
            let mut stored = vec![0.0; rows * cols];
            quant::unpack(format, &packed, &mut stored).unwrap();
            assert_eq!(w, stored, "{}", format.name());
            // The largest activation makes the step one; the others have factors 1 and 2.
            let x: Vec<f32> = (0..tokens * cols)
                .map(|i| match i % cols {
                    1 => 127.0 * 32767.0,
                    0 | 2..32 => 0.0,
                    c if c % 32 == 5 => 127.0 * (1 + c / 32 % 2) as f32,
                    c => ((numbers.next() % 255) as f32 - 127.0) * (1 + c / 32 % 2) as f32,
                })
                .collect();
            let mut q8 = vec![Q8Block::default(); tokens * q8_blocks(cols)];
            quantize(isa, &x, cols, &mut q8).unwrap();
            let matrix = Matrix::new(format, rows, cols, &packed).unwrap();
            let mut y = vec![f32::NAN; tokens * rows];
            let luts = luts(isa, &q8, tokens, cols);
            for (q8, luts, layout) in [
                (None, &[][..], Layout::RowMajor),
                (Some(&q8[..]), &[], Layout::RowMajor),
                (Some(&q8), &luts, Layout::preferred(isa, format)),
            ] {
                let (_, format, bytes) = layouts(&matrix).into_iter().find(|l| l.0 == layout).unwrap_or((
                    Layout::RowMajor,
                    format,
                    packed.clone(),
                ));
                let matrix = Matrix::new(format, rows, cols, &bytes).unwrap();
                let matrix = PackedMatrix::new(matrix, layout).unwrap_or(matrix.into());
                let input = Input { f32: &x, q8, luts };
                matmul(isa, &Serial, &matrix, &input, tokens, &mut y).unwrap();
                for (i, y) in y.iter().enumerate() {
                    let (t, r) = (i / rows, i % rows);
                    let exact: i64 = (0..cols).map(|c| w[r * cols + c] as i64 * x[t * cols + c] as i64).sum();
                    assert_eq!(*y as i64, exact, "{} {} int8 {}", isa.name(), format.name(), q8.is_some());
                }
            }
        }
    }
}

/// A token's outputs do not depend on the tokens beside it or on the workers.
#[test]
fn batches_and_workers_change_nothing() {
    struct Backwards;
    impl Pool for Backwards {
        fn workers(&self) -> usize {
            3
        }
        fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
            (0..jobs).rev().for_each(job);
        }
    }
    let mut numbers = Numbers(5);
    for isa in Isa::available() {
        for format in Format::ALL {
            let (rows, cols, tokens) = (150, 1536, 9);
            let packed = weights(&mut numbers, format, rows, cols);
            let w = PackedMatrix::from(Matrix::new(format, rows, cols, &packed).unwrap());
            let x: Vec<f32> = (0..tokens * cols).map(|_| numbers.float()).collect();
            let mut q8 = vec![Q8Block::default(); tokens * q8_blocks(cols)];
            quantize(isa, &x, cols, &mut q8).unwrap();
            for int8 in [false, true] {
                let together = product(
                    isa,
                    &Backwards,
                    &w,
                    &Input { f32: &x, q8: int8.then_some(&q8), luts: &[] },
                    tokens,
                );
                for t in 0..tokens {
                    let blocks = q8_blocks(cols);
                    let one = Input {
                        f32: &x[t * cols..][..cols],
                        q8: int8.then_some(&q8[t * blocks..][..blocks]),
                        luts: &[],
                    };
                    let alone = product(isa, &Serial, &w, &one, 1);
                    assert_eq!(
                        together[t * rows..][..rows],
                        alone,
                        "{} {} token {t}",
                        isa.name(),
                        format.name()
                    );
                }
            }
        }
    }
}

/// The quantizer gives the same bits everywhere.
#[test]
fn activations_are_quantized_alike() {
    let mut numbers = Numbers(6);
    for isa in Isa::available() {
        for cols in [1, 15, 16, 17, 63, 64, 65, 100, 500] {
            let x: Vec<f32> = (0..3 * cols).map(|_| f32::from_bits(numbers.next() as u32)).collect();
            let mut blocks = [(); 2].map(|()| vec![Q8Block::default(); 3 * q8_blocks(cols)]);
            quantize(Isa::SCALAR, &x, cols, &mut blocks[0]).unwrap();
            quantize(isa, &x, cols, &mut blocks[1]).unwrap();
            for (a, b) in blocks[0].iter().zip(&blocks[1]) {
                let all = |b: &Q8Block| (b.q, b.start, b.factor, b.step.to_bits());
                assert_eq!(all(a), all(b), "{} {cols}", isa.name());
            }
        }
    }
}

#[test]
fn instruction_sets_are_found_by_name_or_refused() {
    assert_eq!(Isa::available().next(), Some(Isa::SCALAR));
    for isa in Isa::available() {
        assert_eq!(Isa::named(isa.name()).unwrap(), isa);
    }
    assert_eq!(Isa::named("mmx").unwrap_err().code(), "unsupported");
    // The instruction set that an emulator was started for.
    if let Ok(name) = std::env::var("SHOHIN_EXPECTED_ISA") {
        assert_eq!(Isa::detect().name(), name);
    }
    std::println!("instruction sets: {}", Isa::available().map(Isa::name).collect::<Vec<_>>().join(","));
}
