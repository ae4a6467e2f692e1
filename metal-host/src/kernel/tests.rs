//! Every kernel against core, or against its formula in 64-bit floats, with threads in several orders.

use super::*;
use crate::tested::{Order, Tested, download, tested, upload};
use shohin_core::AttentionPattern;
use shohin_core::cache::FlatKv;
use shohin_core::cpu::Isa;
use shohin_core::cpu::activations::{Q8Block, q8_blocks, quantize};
use shohin_core::model::program::RopePairing;
use shohin_core::quant::unpack;
use shohin_tests::{Random, weights};

type Buffer = <Tested as Driver>::Buffer;

/// The tested driver with a set of pipelines.
struct Bench {
    driver: Tested,
    pipelines: Pipelines<Tested>,
}

impl Bench {
    fn new(order: Order) -> Bench {
        Bench { driver: tested(order), pipelines: Pipelines::new() }
    }

    fn kernels(&mut self) -> Kernels<'_, Tested> {
        Kernels { driver: &self.driver, pipelines: &mut self.pipelines }
    }

    fn upload<T: bytemuck::Pod>(&self, content: &[T]) -> Buffer {
        upload(&self.driver, content)
    }

    fn download<T: bytemuck::Pod>(&self, buffer: &Buffer, count: usize) -> Vec<T> {
        download(&self.driver, buffer, count)
    }

    fn floats(&self, count: usize) -> Buffer {
        self.driver.buffer(4 * count as u64).unwrap()
    }

    fn run(&self, kernels: &[&Kernel<Tested>], shape: BatchShape) {
        let dispatches: Vec<_> = kernels.iter().map(|kernel| kernel.dispatch(shape)).collect();
        self.driver.run(&dispatches).unwrap();
    }
}

#[test]
fn every_kernel_of_a_device_exists() {
    let names = kernel_names();
    assert!(names.len() > 80, "{}", names.len());
    let driver = tested(Order::Forward);
    for name in names {
        driver.pipeline(&name).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn halves_that_were_computed_apart_are_gated() {
    let (rows, cols) = (3, 160);
    let gates: Vec<f32> = (0..rows * cols).map(|i| 0.4 * (i as f32 - 240.0)).collect();
    let ups: Vec<f32> = (0..rows * cols).map(|i| (i % 7) as f32 - 3.0).collect();
    for order in Order::ALL {
        let mut bench = Bench::new(order);
        let (to, from) = (bench.upload(&gates), bench.upload(&ups));
        let kernel = bench.kernels().gate(Activation::Silu, cols, &to, &from).unwrap();
        bench.run(&[&kernel], BatchShape::rows(rows));
        let got = bench.download::<f32>(&to, rows * cols);
        for ((got, gate), up) in got.iter().zip(&gates).zip(&ups) {
            let want = f64::from(*gate) / (1.0 + f64::from(-gate).exp()) * f64::from(*up);
            assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs() + 1e-30, "{gate} {up}: {got}");
        }
    }
}

/// Random integers as activations, with their scales and sums, and the same numbers as floats.
struct Inputs {
    words: Vec<i8>,
    scales: Vec<[f32; 2]>,
    floats: Vec<f32>,
}

impl Inputs {
    fn new(rows: usize, cols: usize, random: &mut Random) -> Inputs {
        let words: Vec<i8> = (0..rows * cols).map(|_| (random.below(255) as i32 - 127) as i8).collect();
        let mut scale = |q: &[i8]| [0.01 * (1.5 + random.unit()), q.iter().map(|&q| f32::from(q)).sum()];
        let scales: Vec<[f32; 2]> = words.chunks(32).map(&mut scale).collect();
        let floats = (0..rows * cols).map(|i| f32::from(words[i]) * scales[i / 32][0]).collect();
        Inputs { words, scales, floats }
    }
}

fn packed_matrix(
    bench: &Bench,
    format: shohin_core::Format,
    packed: PackedFormat,
    rows: usize,
    cols: usize,
    random: &mut Random,
) -> (Matrix<Buffer>, Vec<f32>) {
    let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
    weights::fill(format, 0.3, random, &mut bytes);
    let mut w = vec![0.0; rows * cols];
    unpack(format, &bytes, &mut w).unwrap();
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in bytes.chunks(bytes.len() / rows) {
        packed.repack(format, row, &mut codes, &mut scales);
    }
    let codes = bench.upload(&codes);
    let scales = if scales.is_empty() { codes.clone() } else { bench.upload(&scales) };
    (Matrix { rows, cols, packed, codes, scales }, w)
}

/// The product in 64-bit floats, and the sum of its terms' magnitudes.
fn product(x: &[f32], w: &[f32]) -> (f64, f64) {
    let terms = || x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
    (terms().sum(), terms().map(f64::abs).sum())
}

/// Every format in every layout that can hold it, times integers and floats, for one row and for several, with rows that
/// do not fill a tile, in one order of threads after the other.
#[test]
fn products_are_those_of_cores_weights() {
    let (rows, cols, most) = (13, 768, 11);
    let mut random = Random::new(5);
    let inputs = Inputs::new(most, cols, &mut random);
    let mut benches = Order::ALL.map(Bench::new);
    for (i, (format, packed)) in PackedFormat::pairs().into_iter().enumerate() {
        let bench = &mut benches[i % 3];
        let (matrix, w) = packed_matrix(bench, format, packed, rows, cols, &mut random);
        let tokens = [12u32, 0, 7];
        let (on_device, x) = (bench.upload(&tokens), bench.floats(3 * cols));
        let kernel = bench.kernels().embed(&matrix, &on_device, &x).unwrap();
        bench.run(&[&kernel], BatchShape::rows(3));
        for (row, got) in tokens.into_iter().zip(bench.download::<f32>(&x, 3 * cols).chunks(cols)) {
            assert_eq!(got, &w[row as usize * cols..][..cols], "{format:?} as {packed:?}");
        }
        let floats = bench.upload(&inputs.floats);
        let (words, scales) = (bench.upload(&inputs.words), bench.upload(&inputs.scales));
        for (activations, n) in
            [Activations::Int8, Activations::F32].into_iter().flat_map(|a| [(a, 1), (a, most)])
        {
            let input = match packed.input(activations) {
                Activations::Int8 => [&words, &scales],
                Activations::F32 => [&floats, &floats],
            };
            let tile = if n == 1 { 1 } else { 8 };
            let output = bench.upload(&vec![1.0f32; n * rows]);
            let mut kernels = bench.kernels();
            let store =
                kernels.linear(&matrix, activations, input, &output, Output::Store, (tile, None)).unwrap();
            let add =
                kernels.linear(&matrix, activations, input, &output, Output::Add, (tile, None)).unwrap();
            bench.run(&[&store, &add], BatchShape::rows(n));
            for (i, got) in bench.download::<f32>(&output, n * rows).into_iter().enumerate() {
                let (want, size) =
                    product(&inputs.floats[i / rows * cols..][..cols], &w[i % rows * cols..][..cols]);
                let error = (f64::from(got) - 2.0 * want).abs() / size;
                assert!(
                    error < 2e-6,
                    "{format:?} as {packed:?}, {activations:?}, {n} rows, {i}: {got} {want}"
                );
            }
        }
    }
}

/// The gated product of two matrices, of every layout that is a format's own.
#[test]
fn gates_multiply_what_comes_up() {
    let (rows, cols, most) = (7, 512, 9);
    let mut random = Random::new(6);
    let inputs = Inputs::new(most, cols, &mut random);
    let mut bench = Bench::new(Order::Shuffled);
    for format in shohin_core::Format::ALL {
        let packed = PackedFormat::of(format).unwrap();
        let (gate, g) = packed_matrix(&bench, format, packed, rows, cols, &mut random);
        let (up, u) = packed_matrix(&bench, format, packed, rows, cols, &mut random);
        let floats = bench.upload(&inputs.floats);
        let integers = [bench.upload(&inputs.words), bench.upload(&inputs.scales)];
        for (activations, n) in
            [Activations::Int8, Activations::F32].into_iter().flat_map(|a| [(a, 1), (a, most)])
        {
            let input = match packed.input(activations) {
                Activations::Int8 => [&integers[0], &integers[1]],
                Activations::F32 => [&floats, &floats],
            };
            let output = bench.floats(n * rows);
            let tile = if n == 1 { 1 } else { 8 };
            let kernel =
                bench.kernels().swiglu([&gate, &up], activations, input, &output, (tile, None)).unwrap();
            bench.run(&[&kernel], BatchShape::rows(n));
            for (i, got) in bench.download::<f32>(&output, n * rows).into_iter().enumerate() {
                let x = &inputs.floats[i / rows * cols..][..cols];
                let (gate, _) = product(x, &g[i % rows * cols..][..cols]);
                let (up, size) = product(x, &u[i % rows * cols..][..cols]);
                let silu = gate / (1.0 + (-gate).exp());
                // Of the gate's and of the other product's rounding errors.
                let allowed = 1e-4 * (size + up.abs()) * (1.0 + silu.abs());
                assert!(
                    (f64::from(got) - silu * up).abs() < allowed,
                    "{format:?}, {activations:?}, {n} rows, {i}"
                );
                assert!(got.is_finite());
            }
        }
    }
}

/// To the bit as core rounds, including rows of zeros, tiny numbers, infinity and NaN.
#[test]
fn integers_are_those_of_core() {
    for cols in [32, 96, 2080] {
        let mut random = Random::new(8);
        let mut x: Vec<f32> = (0..8 * cols).map(|_| random.unit() * 3.0).collect();
        x[..cols].fill(0.0);
        x[cols..2 * cols].fill(1e-30);
        x[2 * cols + 5] = f32::INFINITY;
        x[3 * cols + 7] = f32::NAN;
        x[4 * cols..4 * cols + 32].fill(0.0);
        x[5 * cols + 1] = -4e4;
        let mut want = vec![Q8Block::default(); 8 * q8_blocks(cols)];
        quantize(Isa::SCALAR, &x, cols, &mut want).unwrap();
        for order in Order::ALL {
            let mut bench = Bench::new(order);
            let on_device = bench.upload(&x);
            let integers = [bench.floats(8 * cols / 4), bench.floats(8 * cols / 16)];
            let kernel = bench.kernels().quantize((cols, 1), &on_device, &integers).unwrap();
            bench.run(&[&kernel], BatchShape::rows(8));
            let q: Vec<i8> = bench.download(&integers[0], 8 * cols);
            let scales: Vec<[f32; 2]> = bench.download(&integers[1], 8 * cols / 32);
            for i in 0..8 * cols {
                let block = &want[i / cols * q8_blocks(cols) + i % cols / 64];
                let (at, half) = (i % cols % 64, i % cols % 64 / 32);
                assert_eq!(q[i], block.q[at], "{cols} columns, row {}, {}", i / cols, i % cols);
                let scale = block.factor[half] as f32 * block.step;
                let [found, sum] = scales[i / 32];
                assert!(found == scale || (found.is_nan() && block.step.is_nan()), "{found} {scale}");
                assert_eq!(sum as i32, i32::from(block.sums[2 * half]) + i32::from(block.sums[2 * half + 1]));
            }
        }
    }
}

/// Of all rows, and of some; the integers are those of the floats.
#[test]
fn rows_are_normalized() {
    for (cols, order) in [(32, Order::Forward), (160, Order::Reverse), (1056, Order::Shuffled)] {
        let mut random = Random::new(9);
        let (x, weight): (Vec<f32>, Vec<f32>) = (
            (0..4 * cols).map(|_| random.unit()).collect(),
            (0..cols).map(|_| 1.0 + random.unit()).collect(),
        );
        let mut bench = Bench::new(order);
        let (from, by) = (bench.upload(&x), bench.upload(&weight));
        let list = bench.upload(&[3u32, 1, 0, 0]);
        for (gather, rows) in [(None, vec![0, 1, 2, 3]), (Some(&list), vec![3, 1])] {
            let y = bench.floats(4 * cols);
            let integers = [bench.floats(cols), bench.floats(cols / 4)];
            let again = [bench.floats(cols), bench.floats(cols / 4)];
            let eps = 1e-5;
            let mut kernels = bench.kernels();
            let kernel = kernels.rmsnorm(cols, eps, &from, &by, gather, &y, Some(&integers)).unwrap();
            let quantize = kernels.quantize((cols, 1), &y, &again).unwrap();
            bench.run(&[&kernel, &quantize], BatchShape::rows(rows.len()));
            let got: Vec<f32> = bench.download(&y, rows.len() * cols);
            for (got, row) in got.chunks(cols).zip(&rows) {
                let x = &x[row * cols..][..cols];
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
                let scale = 1.0 / (mean + f64::from(eps)).sqrt();
                for i in 0..cols {
                    let want = f64::from(x[i]) * scale * f64::from(weight[i]);
                    assert!((f64::from(got[i]) - want).abs() < 2e-6, "{cols} {row} {i}: {} {want}", got[i]);
                }
            }
            let count = rows.len() * cols / 4;
            let [a, b] = [&integers, &again].map(|pair| bench.download::<u32>(&pair[0], count));
            assert_eq!(a, b);
            let [a, b] = [&integers, &again].map(|pair| bench.download::<u32>(&pair[1], count / 4));
            assert_eq!(a, b);
        }
    }
}

/// A number of a cache's buffer of keys or of values, and its scale (0 without one).
fn stored(kv: KvFormat, heads: &Heads, capacity: usize, words: &[u32], row: usize, i: usize) -> (f64, f64) {
    let at = row * heads.dim + i;
    let layout = FlatKv::of(kv);
    let code = |bits: usize| {
        let word = words[at * bits / 32] << (32 - bits - at * bits % 32);
        f64::from(word.cast_signed() >> (32 - bits))
    };
    let numbers = heads.kv * capacity * heads.dim;
    let scale = || f64::from(f32::from_bits(words[layout.code_bytes(numbers as u64) as usize / 4 + at / 32]));
    match kv {
        KvFormat::F32 => (f64::from(f32::from_bits(words[at])), 0.0),
        KvFormat::F16 => (f64::from(half((words[at / 2] >> (16 * (at % 2))) as u16)), 0.0),
        KvFormat::Q8 => (code(8) * scale(), scale()),
        KvFormat::Q4 => (code(4) * scale(), scale()),
        KvFormat::Fp8E4M3 => (float8(words[at / 4].to_le_bytes()[at % 4], 3), 0.0),
        KvFormat::Fp8E5M2 => (float8(words[at / 4].to_le_bytes()[at % 4], 2), 0.0),
    }
}

/// The value of a float of 8 bits with `mantissa` bits of mantissa, which is not NaN.
fn float8(bits: u8, mantissa: i32) -> f64 {
    let (exponent, fraction) = (i32::from(bits & 127) >> mantissa, i32::from(bits) & ((1 << mantissa) - 1));
    let one = f64::from(1 << mantissa);
    let bias = (1 << (6 - mantissa)) - 1;
    let magnitude = match exponent {
        0 => f64::from(fraction) / one * 2f64.powi(1 - bias),
        _ => (1.0 + f64::from(fraction) / one) * 2f64.powi(exponent - bias),
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

/// The value of a normal 16-bit float, or of zero.
fn half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, (bits >> 10) & 31, bits & 1023);
    let magnitude = match exponent {
        0 => f32::from(fraction) * 2f32.powi(-24),
        _ => (1.0 + f32::from(fraction) / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Norm and rotation in both pairings, with and without a norm, of a sequence that begins in the middle of a batch, stored
/// in every format.
#[test]
fn heads_are_normalized_rotated_and_stored() {
    let (capacity, batch, first, rows, start, eps) = (9, 6, 2, 3, 5, 1e-5f32);
    let pairings = [RopePairing::Neox, RopePairing::Interleaved];
    let orders = Order::ALL.into_iter().cycle();
    let cases = KvFormat::ALL.into_iter().flat_map(|kv| pairings.map(|pairing| (kv, pairing)));
    for (((kv, pairing), d), order) in cases.flat_map(|case| [(case, 64), (case, 96)]).zip(orders) {
        let normed = d == 64;
        let heads = Heads { query: 4, kv: 2, dim: d };
        let mut random = Random::new(3);
        let mut uniform = |count: usize| (0..count).map(|_| random.unit()).collect::<Vec<f32>>();
        let (q, k, v) = (uniform(batch * 4 * d), uniform(batch * 2 * d), uniform(batch * 2 * d));
        let norms = [uniform(d), uniform(d)];
        let angles: Vec<f32> = uniform(batch * d / 2)
            .chunks(d / 2)
            .flat_map(|part| {
                part.iter().map(|a| a.cos()).chain(part.iter().map(|a| a.sin())).collect::<Vec<_>>()
            })
            .collect();
        let mut bench = Bench::new(order);
        let bytes = FlatKv::of(kv).bytes((2 * capacity * d) as u64);
        let cache = [bench.driver.buffer(bytes).unwrap(), bench.driver.buffer(bytes).unwrap()];
        let on_device = bench.upload(&q);
        let norm = normed.then(|| [bench.upload(&norms[0]), bench.upload(&norms[1])]);
        let op = RopeStore {
            layer: 0,
            q: on_device.clone(),
            k: bench.upload(&k),
            v: bench.upload(&v),
            norm,
            angles: bench.upload(&angles),
            eps,
            halves: match pairing {
                RopePairing::Neox => d / 2,
                RopePairing::Interleaved => 0,
            },
        };
        let kernel = bench.kernels().rope_store(&heads, &op, kv, &cache).unwrap();
        bench.run(&[&kernel], BatchShape::segment(rows, first, start, capacity));
        let got: Vec<f32> = bench.download(&on_device, q.len());
        let [keys, values] = [0, 1].map(|i| bench.download::<u32>(&cache[i], bytes as usize / 4));
        let near = |(found, scale): (f64, f64), want: f64, what: &str| {
            let allowed = match kv {
                KvFormat::F16 => 1e-3 * want.abs() + 1e-6,
                KvFormat::Fp8E4M3 => want.abs() / 16.0 + 2f64.powi(-10) + 2e-6,
                KvFormat::Fp8E5M2 => want.abs() / 8.0 + 2f64.powi(-17) + 2e-6,
                KvFormat::F32 | KvFormat::Q8 | KvFormat::Q4 => 0.501 * scale + 2e-6,
            };
            assert!((found - want).abs() <= allowed, "{kv:?}, {pairing:?}, {what}: {found} {want}");
        };
        for row in 0..batch {
            let inside = (first..first + rows).contains(&row);
            let rotated = |x: &[f32], weight: &[f32]| {
                let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let mean = x.iter().map(|x| x * x).sum::<f64>() / d as f64;
                let scale = 1.0 / (mean + f64::from(eps)).sqrt();
                let y = |i: usize| if normed { x[i] * scale * f64::from(weight[i]) } else { x[i] };
                let mut turned = vec![0.0; d];
                for i in 0..d / 2 {
                    let (a, b) = match pairing {
                        RopePairing::Neox => (i, i + d / 2),
                        RopePairing::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let [c, s] = [i, d / 2 + i].map(|at| f64::from(angles[row * d + at]));
                    (turned[a], turned[b]) = (y(a) * c - y(b) * s, y(a) * s + y(b) * c);
                }
                turned
            };
            for head in 0..4 {
                let at = (row * 4 + head) * d;
                if !inside {
                    assert_eq!(got[at..at + d], q[at..at + d], "others are unchanged");
                    continue;
                }
                let want = rotated(&q[at..at + d], &norms[0]);
                for i in 0..d {
                    assert!(
                        (f64::from(got[at + i]) - want[i]).abs() < 2e-6,
                        "{pairing:?}, row {row}, {head}, {i}"
                    );
                }
            }
            for head in (0..2).filter(|_| inside) {
                let (at, cache_row) = ((row * 2 + head) * d, head * capacity + start + row - first);
                let want = rotated(&k[at..at + d], &norms[1]);
                for i in 0..d {
                    near(stored(kv, &heads, capacity, &keys, cache_row, i), want[i], "key");
                    near(stored(kv, &heads, capacity, &values, cache_row, i), f64::from(v[at + i]), "value");
                }
            }
        }
    }
}

/// One row at positions whose tiles and parts are full or not, and several rows, in every format: against the formula over
/// the numbers that the cache holds.
#[test]
fn attention_is_a_softmax_over_what_is_stored() {
    let capacity = 300;
    let shapes = [(4, 2, 64), (3, 3, 32), (12, 1, 96), (2, 1, 256)];
    let orders = Order::ALL.into_iter().cycle();
    let cases = KvFormat::ALL.into_iter().flat_map(|kv| shapes.map(|shape| (kv, shape)));
    for ((kv, (query, kv_heads, dim)), order) in cases.zip(orders) {
        let heads = Heads { query, kv: kv_heads, dim };
        let (batch, numbers) = (3, kv_heads * capacity * dim);
        let mut random = Random::new(4);
        let mut bench = Bench::new(order);
        // Any content is some keys and values; scales are small and floats are finite.
        let mut words = || -> Vec<u32> {
            let layout = FlatKv::of(kv);
            let codes = layout.code_bytes(numbers as u64) as usize / 4;
            let scales = layout.bytes(numbers as u64) as usize / 4 - codes;
            let mut codes: Vec<u32> = match kv {
                KvFormat::F32 => (0..codes).map(|_| random.unit().to_bits()).collect(),
                // Two numbers between 1/4 and 1, of any sign.
                KvFormat::F16 => {
                    (0..codes).map(|_| (random.next() as u32 & 0x87ff_87ff) | 0x3400_3400).collect()
                }
                KvFormat::Q8 | KvFormat::Q4 => (0..codes).map(|_| random.next() as u32).collect(),
                // Four numbers below 2, of any sign, some of them subnormal.
                KvFormat::Fp8E4M3 | KvFormat::Fp8E5M2 => {
                    (0..codes).map(|_| random.next() as u32 & 0xbfbf_bfbf).collect()
                }
            };
            codes.extend((0..scales).map(|_| (0.02 * (1.0 + random.unit())).to_bits()));
            codes
        };
        let (keys, values) = (words(), words());
        let q: Vec<f32> = (0..batch * query * dim).map(|_| random.unit()).collect();
        let cache = [bench.upload(&keys), bench.upload(&values)];
        let (on_device, out) = (bench.upload(&q), bench.floats(batch * query * dim));
        let parts = bench.floats(query * MAX_PARTS * (dim + 2));
        let mut kernels = bench.kernels();
        let kernel = kernels
            .attention(&heads, (kv, AttentionPattern::Full, 1.0), &cache, [&on_device, &out, &parts])
            .unwrap();
        let combine = kernels.attention_combine(&heads, &parts, &out).unwrap();
        for (rows, first, position) in
            [(1, 0, 0), (1, 2, 33), (1, 1, 127), (1, 1, 128), (1, 0, 299), (2, 1, 62)]
        {
            let shape = BatchShape::segment(rows, first, position, capacity);
            assert_eq!(shape.parts > 1, position >= 128);
            let both = [&kernel, &combine];
            bench.run(if shape.parts > 1 { &both } else { &both[..1] }, shape);
            let got: Vec<f32> = bench.download(&out, batch * query * dim);
            for (row, head) in (0..rows).flat_map(|row| (0..query).map(move |head| (row, head))) {
                let at = ((first + row) * query + head) * dim;
                let number = |from: &[u32], p: usize, i: usize| {
                    stored(kv, &heads, capacity, from, head / (query / kv_heads) * capacity + p, i).0
                };
                let score = |p: usize| {
                    let dot: f64 = (0..dim).map(|i| f64::from(q[at + i]) * number(&keys, p, i)).sum();
                    dot / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = (0..=position + row).map(score).collect();
                let top = scores.iter().copied().fold(f64::MIN, f64::max);
                let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                for i in 0..dim {
                    let terms = scores.iter().enumerate();
                    let want: f64 = terms.map(|(p, s)| (s - top).exp() / total * number(&values, p, i)).sum();
                    let error = (f64::from(got[at + i]) - want).abs();
                    assert!(
                        error < 2e-5,
                        "{kv:?}, {heads:?}, position {position}, {row} {head} {i}: {error}"
                    );
                }
            }
        }
    }
}

/// Special numbers in caches of 8-bit floats: rounded to nearest even, those out of range to the largest, and NaN stays NaN.
#[test]
fn floats_of_8_bits_round_as_those_of_core() {
    let d = 32;
    let heads = Heads { query: 1, kv: 1, dim: d };
    for (kv, values) in [
        (
            KvFormat::Fp8E4M3,
            [
                (500.0, 448.0),
                (-1e30, -448.0),
                (1.0625, 1.0),
                (1.1875, 1.25),
                (0.003, 0.00390625),
                (9e-4, 0.0),
            ],
        ),
        (
            KvFormat::Fp8E5M2,
            [
                (1e9, 57344.0),
                (f32::NEG_INFINITY, -57344.0),
                (1.125, 1.0),
                (1.375, 1.5),
                (1e-5, 1.52587890625e-5),
                (7e-6, 0.0),
            ],
        ),
    ] {
        let mut bench = Bench::new(Order::Shuffled);
        let mut v = vec![0.0f32; d];
        for (to, (from, _)) in v.iter_mut().zip(values) {
            *to = from;
        }
        v[d - 1] = f32::NAN;
        let cache = [bench.floats(d), bench.floats(d)];
        let rows = bench.upload(&v);
        let op = RopeStore {
            layer: 0,
            q: bench.upload(&vec![0.0f32; d]),
            k: bench.upload(&vec![0.0f32; d]),
            v: rows,
            norm: None,
            angles: bench.upload(&vec![0.0f32; d]),
            eps: 0.0,
            halves: d / 2,
        };
        let kernel = bench.kernels().rope_store(&heads, &op, kv, &cache).unwrap();
        bench.run(&[&kernel], BatchShape::segment(1, 0, 0, 1));
        let words: Vec<u32> = bench.download(&cache[1], d / 4);
        for (i, (from, want)) in values.into_iter().enumerate() {
            assert_eq!(stored(kv, &heads, 1, &words, 0, i).0, want, "{kv:?}: {from}");
        }
        assert_eq!(words[d / 4 - 1] >> 24, 0x7f, "NaN");
    }
}

/// With NaN at all positions that the pattern leaves out: in one go, and in parts.
#[test]
fn positions_that_a_pattern_leaves_out_are_not_read() {
    let (capacity, d) = (320, 32);
    let heads = Heads { query: 1, kv: 1, dim: d };
    for (text, order) in
        [("window:40:3", Order::Forward), ("dilated:2:3", Order::Reverse), ("strided:1:2", Order::Shuffled)]
    {
        let pattern: AttentionPattern = text.parse().unwrap();
        let mut bench = Bench::new(order);
        let mut random = Random::new(12);
        let q: Vec<f32> = (0..2 * d).map(|_| random.unit()).collect();
        let keys: Vec<f32> = (0..capacity * d).map(|_| random.unit()).collect();
        for (rows, position) in [(1, 299), (2, 298)] {
            let sees = |key: usize| (position..position + rows).any(|query| pattern.sees(query, key));
            let broken: Vec<f32> =
                (0..capacity * d).map(|i| if sees(i / d) { keys[i] } else { f32::NAN }).collect();
            let cache = [bench.upload(&broken), bench.upload(&broken)];
            let (on_device, out) = (bench.upload(&q), bench.floats(2 * d));
            let parts = bench.floats(MAX_PARTS * (d + 2));
            let mut kernels = bench.kernels();
            let kind = (KvFormat::F32, pattern, 1.0);
            let kernel = kernels.attention(&heads, kind, &cache, [&on_device, &out, &parts]).unwrap();
            let combine = kernels.attention_combine(&heads, &parts, &out).unwrap();
            let both = [&kernel, &combine];
            bench.run(
                if rows == 1 { &both } else { &both[..1] },
                BatchShape::segment(rows, 0, position, capacity),
            );
            let got: Vec<f32> = bench.download(&out, rows * d);
            for row in 0..rows {
                let seen = || (0..=position + row).filter(|key| pattern.sees(position + row, *key));
                let weight = |key: usize| {
                    let dot: f64 =
                        (0..d).map(|i| f64::from(q[row * d + i]) * f64::from(keys[key * d + i])).sum();
                    (dot / (d as f64).sqrt()).exp()
                };
                let total: f64 = seen().map(weight).sum();
                for i in 0..d {
                    let want: f64 =
                        seen().map(|key| weight(key) / total * f64::from(keys[key * d + i])).sum();
                    assert!(
                        (f64::from(got[row * d + i]) - want).abs() < 2e-5,
                        "{text}, {rows} rows, {row}, {i}"
                    );
                }
            }
        }
    }
}

/// The experts of the largest probabilities, in order, and each pair of a row and an expert in one tile: with equal logits, with
/// more experts than lanes, and with all of them.
#[test]
fn rows_are_routed_to_their_experts() {
    let rows = 5;
    for ((experts, used, normalize), order) in [(37, 8, true), (130, 3, false), (6, 2, true), (4, 4, false)]
        .into_iter()
        .zip(Order::ALL.into_iter().cycle())
    {
        let mut random = Random::new(13);
        let logits: Vec<f32> = (0..rows * experts).map(|_| (random.unit() * 8.0).round()).collect();
        let mut bench = Bench::new(order);
        let on_device = bench.upload(&logits);
        let tiles = (rows * used / TILE_ROWS + experts).max(used);
        let choices = Choices {
            experts: bench.floats(rows * used),
            weights: bench.floats(rows * used),
            order: bench.floats(rows * used),
            tiles: bench.floats(4 * tiles),
        };
        let [route, gather] =
            bench.kernels().route([experts, used], normalize, &on_device, &choices).unwrap();
        for rows in [rows, 1] {
            let both = [&route, &gather];
            bench.run(if rows == 1 { &both[..1] } else { &both }, BatchShape::rows(rows));
            let chosen: Vec<u32> = bench.download(&choices.experts, rows * used);
            let weights: Vec<f32> = bench.download(&choices.weights, rows * used);
            for (row, logits) in logits.chunks(experts).take(rows).enumerate() {
                let mut want: Vec<usize> = (0..experts).collect();
                want.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
                want.truncate(used);
                want.sort_unstable();
                let sum = |of: &[usize]| of.iter().map(|i| f64::from(logits[*i]).exp()).sum::<f64>();
                let whole = if normalize { sum(&want) } else { sum(&(0..experts).collect::<Vec<_>>()) };
                for (i, expert) in want.into_iter().enumerate() {
                    let at = row * used + i;
                    assert_eq!(chosen[at] as usize, expert, "{experts} experts, row {row}");
                    let weight = f64::from(logits[expert]).exp() / whole;
                    assert!((f64::from(weights[at]) - weight).abs() < 1e-6, "{experts} experts, row {row}");
                }
            }
            let order: Vec<u32> = bench.download(&choices.order, rows * used);
            let count = if rows == 1 { used } else { rows * used / TILE_ROWS + experts };
            let mut seen = vec![0; rows * used];
            for [expert, first, pairs, _] in bench.download::<[u32; 4]>(&choices.tiles, count) {
                assert!(pairs as usize <= TILE_ROWS);
                for pair in order.iter().skip(first as usize).take(pairs as usize) {
                    assert_eq!(chosen[*pair as usize], expert);
                    seen[*pair as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{experts} experts: {seen:?}");
        }
    }
}

/// NaN shows in every result, and weights that are too small for a float are not computed.
#[test]
fn odd_logits_are_routed() {
    let bench = &mut Bench::new(Order::Forward);
    let choices = Choices {
        experts: bench.floats(2),
        weights: bench.floats(2),
        order: bench.floats(2),
        tiles: bench.floats(8),
    };
    for (logits, weights) in [([1e38, -1e38, 0.0], [1.0, 0.0]), ([f32::NAN, 1.0, 2.0], [f32::NAN; 2])] {
        let on_device = bench.upload(&logits);
        let [route, _] = bench.kernels().route([3, 2], true, &on_device, &choices).unwrap();
        bench.run(&[&route], BatchShape::rows(1));
        let found: Vec<f32> = bench.download(&choices.weights, 2);
        assert!(found.iter().zip(weights).all(|(a, b)| *a == b || (a.is_nan() && b.is_nan())), "{found:?}");
        let tiles: Vec<[u32; 4]> = bench.download(&choices.tiles, 2);
        assert_eq!(tiles.iter().map(|tile| tile[2]).sum::<u32>(), if weights[1] == 0.0 { 1 } else { 2 });
    }
}

/// Equal, infinite and missing logits.
#[test]
fn odd_logits_are_ordered_as_core_orders_them() {
    for order in Order::ALL {
        let vocab = 20_000;
        let mut logits = vec![-1.0f32; 3 * vocab];
        let row = &mut logits[..vocab];
        (row[0], row[1], row[2]) = (f32::NAN, f32::NEG_INFINITY, -f32::NAN);
        (row[1500], row[19_999], row[7], row[8]) = (2.5, 2.5, 0.0, -1e-40);
        logits[2 * vocab - 1] = 1.0;
        logits[2 * vocab..].fill(f32::NAN);
        let mut bench = Bench::new(order);
        let on_device = bench.upload(&logits);
        let (candidates, best) = (bench.floats(2 * 3 * ARGMAX_SHARES), bench.floats(6));
        let [first, last] = bench.kernels().argmax(vocab, &on_device, &candidates, &best).unwrap();
        bench.run(&[&first, &last], BatchShape::rows(3));
        let found: Vec<[u32; 2]> = bench.download(&best, 3);
        assert_eq!(Ok(found[0][1]), shohin_core::cpu::op::argmax(&logits[..vocab]));
        assert_eq!(found[1][1], vocab as u32 - 1);
        assert_eq!(found[2][0], 0, "there is nothing to choose from");
    }
}
