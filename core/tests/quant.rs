//! Formats against blocks written by llama.cpp's reference quantizers (`tests/oracle/cut_blocks.py`).

use shohin_core::cpu::Isa;
use shohin_core::cpu::activation_lut::ActivationLut;
use shohin_core::cpu::activations::{Q8Block, q8_blocks, quantize};
use shohin_core::cpu::matmul::{Input, build_lut, matmul};
use shohin_core::cpu::repack::{Layout, PackedMatrix, repack, repacked_format};
use shohin_core::{Error, Format, Matrix, Serial, quant};
use std::path::Path;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn file_name(format: Format) -> &'static str {
    match format {
        Format::F32 => "src.f32",
        Format::F16 => "f16",
        Format::Bf16 => "bf16",
        Format::Q8_0 => "q8_0",
        Format::Q4_0 => "q4_0",
        Format::Q4_1 => "q4_1",
        Format::Q5_0 => "q5_0",
        Format::Q5_1 => "q5_1",
        Format::Q2K => "q2_K",
        Format::Q3K => "q3_K",
        Format::Q4K => "q4_K",
        Format::Q5K => "q5_K",
        Format::Q6K => "q6_K",
        Format::Q8K => "q8_K",
        Format::Iq4Nl => "iq4_nl",
        Format::Iq4Xs => "iq4_xs",
        Format::Iq1S => "iq1_s",
        Format::Iq1M => "iq1_m",
        Format::Iq2Xxs => "iq2_xxs",
        Format::Iq2Xs => "iq2_xs",
        Format::Iq2S => "iq2_s",
        Format::Iq3Xxs => "iq3_xxs",
        Format::Iq3S => "iq3_s",
        Format::Mxfp4 => "mxfp4",
        Format::Nvfp4 => "nvfp4",
        Format::Q1_0 => "q1_0",
        Format::Q2_0 => "q2_0",
        Format::Pq2_0 => "pq2_0",
        Format::Tq2_0G128 => "oxibonsai_tq2_0_g128",
        Format::Ptq1_0 => "ptq1_0",
        Format::Tq1_0 => "tq1_0",
        Format::Tq2_0 => "tq2_0",
        _ => unreachable!("a format without reference blocks"),
    }
}

/// (source, packed, dequantized) of `format` in `dir`.
fn reference(dir: &Path, format: Format) -> (Vec<f32>, Vec<u8>, Vec<f32>) {
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let src = floats(&read("src.f32"));
    if format == Format::F32 {
        return (src.clone(), read("src.f32"), src);
    }
    let name = file_name(format);
    let dequantized = if format == Format::Tq2_0G128 { "pq2_0" } else { name };
    (src, read(&format!("{name}.q")), floats(&read(&format!("{dequantized}.deq.f32"))))
}

fn check_all(dir: &Path) {
    for format in Format::ALL {
        if (format == Format::Q8K || format.has_codebook()) && !dir.join("q8_K.q").exists() {
            continue; // only in the cut-out blocks
        }
        let (src, packed, dequantized) = reference(dir, format);
        let mut values = vec![f32::NAN; src.len()];
        quant::unpack(format, &packed, &mut values).unwrap();
        assert_eq!(bits(&values), bits(&dequantized), "{} unpack", format.name());
        let mut ours = vec![0xaa; format.row_bytes(src.len()).unwrap()];
        if !format.has_quantizer() {
            let error = quant::pack(format, &src, &mut ours).unwrap_err().to_string();
            assert!(error.contains(format.name()) && error.contains("only read"), "{error}");
            assert!(ours.iter().all(|byte| *byte == 0xaa), "{}", format.name());
            continue;
        }
        quant::pack(format, &src, &mut ours).unwrap();
        // See cut_blocks.py for the formats with a file of their own.
        let reference = std::fs::read(dir.join(format!("{}.ref.q", file_name(format))));
        let searched = matches!(file_name(format), "q4_0" | "q4_1" | "q5_0" | "q5_1" | "iq4_nl" | "iq4_xs")
            || file_name(format).ends_with("_K");
        match reference {
            Ok(reference) => assert_eq!(ours, reference, "{} pack", format.name()),
            Err(_) if searched && format != Format::Q8K => {}
            Err(_) => assert_eq!(ours, packed, "{} pack", format.name()),
        }
    }
}

#[test]
fn every_format_packs_and_unpacks_llama_cpps_bits() {
    check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blocks"));
}

#[test]
fn every_format_agrees_on_the_full_reference_blocks_where_they_are_at_hand() {
    match std::env::var_os("SHOHIN_DATA") {
        Some(data) => check_all(&Path::new(&data).join("golden_blocks")),
        None => println!("SKIPPED: SHOHIN_DATA is not set"),
    }
}

/// Every point of every codebook, with blocks that no quantizer writes, against gguf-py (`tests/oracle/codebooks.py`).
#[test]
fn codebooks_are_those_of_gguf_py() {
    let all: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/fixtures/codebooks.json")).unwrap();
    let blocks = all["blocks"].as_u64().unwrap() as usize;
    let mut compared = 0;
    for format in Format::ALL.into_iter().filter(|format| format.has_codebook()) {
        let size = format.block_bytes();
        let mut x = 1u32;
        let mut packed: Vec<u8> = (0..blocks * size)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 24) as u8
            })
            .collect();
        // No scale that is infinite or NaN.
        let top = if format == Format::Iq1M { 55 } else { 1 };
        packed.chunks_exact_mut(size).for_each(|block| block[top] &= 0xbf);
        let mut values = vec![f32::NAN; blocks * 256];
        quant::unpack(format, &packed, &mut values).unwrap();
        let hash = values.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, value| {
            (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(all["hashes"][format.name()], format!("{hash:016x}"), "{}", format.name());
        compared += 1;
    }
    assert_eq!(compared, all["hashes"].as_object().unwrap().len());
}

/// `tests/oracle/importance.py`: the same bytes as from llama.cpp with an importance matrix.
#[test]
fn importance_gives_llama_cpps_bytes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blocks");
    let importance = floats(&std::fs::read(dir.join("importance.f32")).unwrap());
    let all: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/fixtures/importance.json")).unwrap();
    let (rows, cols) = (all["rows"].as_u64().unwrap() as usize, all["cols"].as_u64().unwrap() as usize);
    let mut x = 1u32;
    let mut byte = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as f32
    };
    let of_columns: Vec<f32> = (0..cols).map(|_| byte().powi(2) / 64.0).collect();
    let weights: Vec<f32> = (0..rows * cols).map(|_| (byte() - 128.0) * (byte() - 128.0) / 4096.0).collect();
    let quantized = |format: Format, weights: &[f32], importance: &[f32]| {
        let mut packed = Vec::new();
        for row in weights.chunks_exact(importance.len()) {
            let mut bytes = vec![0xaa; format.row_bytes(row.len()).unwrap()];
            quant::pack_by_importance(format, row, importance, &mut bytes).unwrap();
            packed.extend(bytes);
        }
        packed
    };
    let mut compared = 0;
    for format in Format::ALL.into_iter().filter(|format| format.has_quantizer()) {
        let (src, ..) = reference(&dir, format);
        let file = dir.join(format!("{}.imp.q", file_name(format)));
        if !format.weighs_importance() {
            let mut ours = vec![0; format.row_bytes(src.len()).unwrap()];
            quant::pack(format, &src, &mut ours).unwrap();
            assert!(quantized(format, &src, &importance) == ours && !file.exists(), "{}", format.name());
            continue;
        }
        let expected = std::fs::read(file).unwrap();
        assert_eq!(quantized(format, &src, &importance), expected, "{}", format.name());
        let hash =
            quantized(format, &weights, &of_columns).iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        assert_eq!(all["hashes"][format.name()], format!("{hash:016x}"), "{}", format.name());
        // Where nothing is important, weights are still numbers.
        let packed = quantized(format, &src, &vec![0.0; src.len()]);
        let mut values = vec![f32::NAN; src.len()];
        quant::unpack(format, &packed, &mut values).unwrap();
        assert!(values.iter().all(|value| value.is_finite()), "{}", format.name());
        compared += 1;
    }
    assert_eq!(compared, all["hashes"].as_object().unwrap().len());
    let mut packed = [0; 18];
    let short = quant::pack_by_importance(Format::Q4_0, &[1.0; 32], &[1.0; 31], &mut packed);
    assert!(matches!(short, Err(Error::Length { .. })));
}

#[test]
fn a_row_is_looked_up_or_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blocks");
    for format in Format::ALL {
        let (_, packed, dequantized) = reference(&dir, format);
        let matrix = Matrix::new(format, 4, 256, &packed).unwrap();
        let mut row = [0.0; 256];
        matrix.unpack_row(3, &mut row).unwrap();
        assert_eq!(bits(&row), bits(&dequantized[768..]), "{}", format.name());
        assert!(matches!(matrix.unpack_row(4, &mut row), Err(Error::Length { .. })));
        assert!(matches!(matrix.unpack_row(0, &mut row[1..]), Err(Error::Length { .. })));
    }
}

/// Products equal f64 dot products of llama.cpp's dequantized rows.
#[test]
fn products_equal_f64_dots_of_the_dequantized_rows() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blocks");
    let x: Vec<f32> =
        (0..2 * 256).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013 + (i as f32 * 0.7).sin()).collect();
    let mut q8 = vec![Q8Block::default(); 2 * q8_blocks(256)];
    quantize(Isa::SCALAR, &x, 256, &mut q8).unwrap();
    for format in Format::ALL {
        let (_, packed, dequantized) = reference(&dir, format);
        let matrix = Matrix::new(format, 4, 256, &packed).unwrap();
        for q8 in [None, Some(&q8[..])] {
            let mut y = [f32::NAN; 8];
            matmul(Isa::SCALAR, &Serial, &matrix.into(), &Input { f32: &x, q8, luts: &[] }, 2, &mut y)
                .unwrap();
            for t in 0..2 {
                for r in 0..4 {
                    let pairs = || dequantized[r * 256..][..256].iter().zip(&x[t * 256..][..256]);
                    let exact: f64 = pairs().map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    // Rounding an activation errs by at most half a step; f32 sums err far less.
                    let step = |i: usize| {
                        let group = &x[t * 256 + i / 16 * 16..][..16];
                        let largest = |x: &[f32]| f64::from(x.iter().fold(0.0f32, |m, v| m.max(v.abs())));
                        // One more step of the group's scale, since scales are rounded up.
                        largest(group) / 127.0 + largest(&x[t * 256..][..256]) / 127.0 / 32767.0
                    };
                    let bound: f64 = pairs()
                        .enumerate()
                        .map(|(i, (w, x))| {
                            let w = f64::from(w.abs());
                            w * (f64::from(x.abs()) * 2e-6
                                + if q8.is_some() { step(i) * 0.5001 } else { 0.0 })
                        })
                        .sum();
                    let error = (f64::from(y[t * 4 + r]) - exact).abs();
                    assert!(error <= bound, "{} ({t}, {r}): off by {error}, bound {bound}", format.name());
                }
            }
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let packed = [0; 18 * 4];
    assert!(quant::unpack(Format::Q1_0, &packed[..18], &mut [0.0; 127]).is_err());
    assert!(quant::unpack(Format::Q1_0, &packed[..17], &mut [0.0; 128]).is_err());
    assert!(quant::pack(Format::Q1_0, &[0.0; 128], &mut [0; 19]).is_err());
    let w = Matrix::new(Format::Q1_0, 4, 128, &packed).unwrap().into();
    let q8 = [Q8Block::default(); 2];
    let mut y = [0.0; 4];
    let mut run = |f32: &[f32], q8: Option<&[Q8Block]>, tokens, n: usize| {
        matmul(Isa::SCALAR, &Serial, &w, &Input { f32, q8, luts: &[] }, tokens, &mut y[..n])
    };
    assert!(run(&[0.0; 128], None, 1, 4).is_ok());
    assert!(run(&[], Some(&q8), 1, 4).is_ok());
    assert!(run(&[0.0; 128], None, 1, 3).is_err());
    assert!(run(&[0.0; 127], None, 1, 4).is_err());
    assert!(run(&[], Some(&q8[..1]), 1, 4).is_err());
    assert!(run(&[], None, usize::MAX, 4).is_err());
    assert!(run(&[], None, 0, 0).is_ok());
    // The reference uses no lookup tables.
    let luts = [ActivationLut::default()];
    let input = Input { f32: &[], q8: Some(&q8), luts: &luts };
    assert!(matmul(Isa::SCALAR, &Serial, &w, &input, 1, &mut [0.0; 4]).is_err());
    assert!(build_lut(Isa::detect(), &q8[..1], 128, &mut []).is_err());
    assert!(quantize(Isa::SCALAR, &[0.0; 128], 128, &mut [Q8Block::default(); 1]).is_err());
    assert!(quantize(Isa::SCALAR, &[0.0; 127], 128, &mut [Q8Block::default(); 2]).is_err());
}

#[test]
fn activations_are_rounded_half_away_with_one_factor_per_32() {
    // The largest magnitude makes the step 2^-10.
    let step = 1.0 / 1024.0;
    let unit = step * 32767.0;
    let mut x = [0.0f32; 100];
    let whole = [
        127.0, 0.5, -0.5, 1.5, -1.5, 0.499, -0.499, 2.5, -126.5, 126.499, 0.0, -0.0, 64.0, -1.0, 1e-30,
        -127.0,
    ];
    for (x, v) in x.iter_mut().zip(whole) {
        *x = v * unit;
    }
    x[33] = -126.0 * 3.0 * step; // a factor of 3: 2 would need q = 189
    x[64..96].fill(100.0 * step); // a factor of 1
    x[96..].fill(1e-9); // negligible beside the largest
    let mut blocks = [Q8Block::default(); 2];
    for isa in Isa::available() {
        quantize(isa, &x, 100, &mut blocks).unwrap();
        let first = &blocks[0];
        assert_eq!(first.step, step);
        // The best factor for these integers.
        let (mut xq, mut qq) = (0.0, 0.0);
        for (&x, &q) in x[..32].iter().zip(&first.q) {
            xq += f64::from(x) * f64::from(q);
            qq += f64::from(q) * f64::from(q);
        }
        assert_eq!(first.factor, [(xq / qq / f64::from(step)).round() as i32, 3]);
        assert_eq!(first.q[..16], [127, 1, -1, 2, -2, 0, 0, 3, -127, 126, 0, 0, 64, -1, 0, -127]);
        assert_eq!(first.q[16..32], [0; 16]);
        assert_eq!(first.q[32..36], [0, -126, 0, 0]);
        assert_eq!(first.q[36..], [0; 28]);
        let sum: i32 = first.q[..32].iter().map(|&q| i32::from(q)).sum();
        assert_eq!(first.start, -sum * first.factor[0] + 126 * 3);
        assert_eq!((&blocks[1].q[..32], &blocks[1].q[32..]), (&[100; 32][..], &[0; 32][..]));
        assert_eq!((blocks[1].factor, blocks[1].start), ([1, 0], -3200));
    }
}

#[test]
fn a_token_that_is_not_finite_shows_in_every_output() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 77, 255] {
            let mut x = [1.0; 512];
            x[256 + at] = bad;
            let mut q8 = [Q8Block::default(); 8];
            for isa in Isa::available() {
                quantize(isa, &x, 256, &mut q8).unwrap();
                let w = Matrix::new(Format::Tq2_0, 1, 256, &[0; 66]).unwrap().into();
                let mut y = [0.0; 2];
                matmul(isa, &Serial, &w, &Input { f32: &x, q8: Some(&q8), luts: &[] }, 2, &mut y).unwrap();
                assert!(y[0].is_finite() && y[1].is_nan());
            }
        }
    }
}

/// 32 activations share a scale, but all scales of a token are 15-bit integers times one step: an outlier
/// must not affect other groups.
#[test]
fn an_outlier_spoils_only_its_group() {
    let mut x: Vec<f32> = (0..256).map(|i| (i as f32 * 0.7).sin()).collect();
    x[100] = 3000.0;
    let mut q8 = [Q8Block::default(); 4];
    quantize(Isa::SCALAR, &x, 256, &mut q8).unwrap();
    for (i, x) in x.iter().enumerate().filter(|(i, _)| i / 32 != 100 / 32) {
        let y = &q8[i / 64];
        let back = f32::from(y.q[i % 64]) * y.factor[i % 64 / 32] as f32 * y.step;
        assert!((x - back).abs() <= 0.5 * 12.0 * y.step, "{i}: {x} {back}");
    }
}

/// Every weight of a repacked matrix is where the lookup expects it, unchanged.
#[test]
fn repacking_moves_weights_and_changes_none() {
    let mut n = 7u32;
    for format in Format::ALL {
        let (rows, cols) = (35, 768);
        let bytes = rows * format.row_bytes(cols).unwrap();
        let packed: Vec<u8> = (0..bytes)
            .map(|_| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (n >> 24) as u8 & 0x7b // no NaN as scale
            })
            .collect();
        let expected = Matrix::new(format, rows, cols, &packed).unwrap();
        for layout in [Layout::Panels32, Layout::Panels8] {
            let mut bytes = packed.clone();
            repack(format, layout, rows, cols, &mut bytes, &Serial).unwrap();
            let Some(now) = repacked_format(format) else {
                assert_eq!(bytes, packed);
                assert!(PackedMatrix::new(expected, layout).is_err());
                continue;
            };
            assert_ne!(bytes, packed);
            let found = PackedMatrix::new(Matrix::new(now, rows, cols, &bytes).unwrap(), layout).unwrap();
            let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
            for row in 0..rows {
                expected.unpack_row(row, &mut a).unwrap();
                found.unpack_row(row, &mut b).unwrap();
                assert_eq!(a, b, "{format:?} {layout:?} {row}");
            }
        }
    }
}
