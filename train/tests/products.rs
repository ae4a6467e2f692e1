//! Matrix products, to the bit as `shohin_train::gemm` defines them.

use shohin_core::cpu::Isa;
use shohin_core::pool::{Pool, Serial};
use shohin_core::quant::{Format, Matrix, pack};
use shohin_train::gemm::{
    BLOCK, Block, Columns, Gemm, Left, Prepared, Rows, Small, Store, Weight, WeightColumns, WeightRows,
};
use shohin_train::quantize::Fake;

/// Numbers between -1 and 1.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    core::iter::repeat_with(next).take(n).collect()
}

/// The definition, `b (k, n)` row after row; WebAssembly rounds twice.
fn definition(isa: Isa, [m, n, k]: [usize; 3], a: &[f32], b: &[f32], c: &mut [f32], store: Store) {
    let rounds_twice = cfg!(target_arch = "wasm32") && isa != Isa::SCALAR;
    for i in 0..m {
        for j in 0..n {
            let mut total = (store == Store::Add).then_some(c[i * n + j]);
            for p in (0..k).step_by(BLOCK) {
                let mut sum = 0.0;
                for p in p..(p + BLOCK).min(k) {
                    let (x, y) = (a[i * k + p], b[p * n + j]);
                    sum = if rounds_twice { sum + x * y } else { libm::fmaf(x, y, sum) };
                }
                total = Some(total.map_or(sum, |total| total + sum));
            }
            c[i * n + j] = total.unwrap_or(0.0);
        }
    }
}

fn transpose(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|j| (0..rows).map(move |i| x[i * cols + j])).collect()
}

/// Jobs in reverse order, as if there were three workers.
struct Three;

impl Pool for Three {
    fn workers(&self) -> usize {
        3
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..jobs).rev().for_each(job);
    }
}

const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [3, 5, 7],
    [14, 32, 256],
    [15, 33, 257],
    [113, 40, 300],
    [29, 300, 40],
    [120, 96, 64],
    [2, 128, 513],
    [4, 4, 0],
];

#[test]
fn bits_are_those_of_the_definition() {
    let pools: [&dyn Pool; 2] = [&Serial, &Three];
    for isa in Isa::available() {
        for (shape @ [m, n, k], pool) in SHAPES.into_iter().flat_map(|shape| pools.map(|pool| (shape, pool)))
        {
            let (a, b, before) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
            let (a_columns, weight) = (transpose(&a, m, k), transpose(&b, k, n));
            let weight = Weight::Floats { data: &weight, cols: k.max(1), fake: None };
            let stored = Weight::Floats { data: &b, cols: n, fake: None };
            let mut gemm = Gemm::new(isa, pool);
            for store in [Store::Replace, Store::Add] {
                let mut want = before.clone();
                definition(isa, shape, &a, &b, &mut want, store);
                let mut check =
                    |left: Left<'_>, what: &str, right: &dyn Fn(&mut Gemm<'_>, Left<'_>, &mut [f32])| {
                        let mut got = before.clone();
                        right(&mut gemm, left, &mut got);
                        assert!(
                            got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{} {shape:?} {store:?} {what}",
                            isa.name()
                        );
                    };
                for (left, of) in [(Left::rows(&a, k), "rows"), (Left::columns(&a_columns, m), "columns")] {
                    check(left, of, &|g, a, c| {
                        g.product(k, a, &Columns { data: &b, stride: n }, Block::new(c, n), store)
                    });
                    check(left, of, &|g, a, c| g.product(k, a, &WeightRows(weight), Block::new(c, n), store));
                    check(left, of, &|g, a, c| {
                        g.product(k, a, &WeightColumns(stored), Block::new(c, n), store)
                    });
                }
            }
        }
    }
}

/// Weights from packed formats and quantized masters are those that they unpack to.
#[test]
fn weights_are_decoded_into_panels() {
    let (m, rows, cols) = (5, 50, 512);
    let (x, w) = (numbers(m * cols, 4), numbers(rows * cols, 5));
    let dy = numbers(m * rows, 6);
    for isa in Isa::available() {
        let mut gemm = Gemm::new(isa, &Serial);
        let mut check = |weight: Weight<'_>, what: &str| {
            let mut floats = vec![0.0; rows * cols];
            floats.chunks_exact_mut(cols).enumerate().for_each(|(r, row)| weight.row(isa, r, row));
            let plain = Weight::Floats { data: &floats, cols, fake: None };
            let mut y = [vec![0.0; m * rows], vec![0.0; m * rows]];
            let mut dx = [vec![0.0; m * cols], vec![0.0; m * cols]];
            for (i, weight) in [weight, plain].into_iter().enumerate() {
                let x = Left::rows(&x, cols);
                gemm.product(cols, x, &WeightRows(weight), Block::new(&mut y[i], rows), Store::Replace);
                let dy = Left::rows(&dy, rows);
                gemm.product(rows, dy, &WeightColumns(weight), Block::new(&mut dx[i], cols), Store::Replace);
            }
            assert!(y[0] == y[1] && dx[0] == dx[1] && y[0].iter().any(|y| *y != 0.0), "{what}");
            let (part, mut row) = (weight.slice_rows(7..20), vec![0.0; cols]);
            part.row(isa, 12, &mut row);
            assert!(part.rows() == 13 && row == floats[19 * cols..20 * cols], "{what}");
        };
        for fake in [Fake::Ternary, Fake::OneBit] {
            check(Weight::Floats { data: &w, cols, fake: Some(fake) }, "masters");
        }
        for format in Format::ALL {
            let Some(row_bytes) = format.row_bytes(cols).filter(|_| format.has_quantizer()) else { continue };
            let mut bytes = vec![0; rows * row_bytes];
            pack(format, &w, &mut bytes).unwrap();
            check(Weight::Packed(Matrix::new(format, rows, cols, &bytes).unwrap()), format.name());
        }
    }
}

/// A part of a prepared operand gives the bits of the whole product.
#[test]
fn prepared_operands_give_the_same_bits() {
    let (m, n, k) = (31, 70, 300);
    let (a, b) = (numbers(m * k, 7), numbers(k * n, 8));
    let (a_columns, b_rows) = (transpose(&a, m, k), transpose(&b, k, n));
    for isa in Isa::available() {
        let mut small = Small::new(isa);
        let mut prepared = [Prepared::default(), Prepared::default()];
        small.prepare(&Columns { data: &b, stride: n }, k, n, &mut prepared[0]);
        small.prepare(&Rows { data: &b_rows, stride: k }, k, n, &mut prepared[1]);
        for (used, cols) in [(k, n), (270, 45), (256, 32), (12, 7)] {
            let mut want = vec![0.5; m * cols];
            let right = Columns { data: &b, stride: n };
            let mut gemm = Gemm::new(isa, &Serial);
            gemm.product(used, Left::rows(&a, k), &right, Block::new(&mut want, cols), Store::Add);
            for b in &prepared {
                for left in [Left::rows(&a, k), Left::columns(&a_columns, m)] {
                    let mut got = vec![0.5; m * cols];
                    small.product(used, left, b, Block::new(&mut got, cols), Store::Add);
                    assert_eq!(got, want, "{} {used} {cols}", isa.name());
                }
            }
        }
    }
}
