//! Weights that are multiplied in place of masters, beside their formulas and those of `models/train`
//! (`tests/oracle/quantize.py`).

use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use shohin_core::Gguf;
use shohin_core::cpu::Isa;
use shohin_core::quant::{block_scale, unpack};
use shohin_train::quantize::{Fake, GROUP, fake, masters, pack};

const KINDS: [Fake; 2] = [Fake::Ternary, Fake::OneBit];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The formulas of the module, one weight at a time.
fn formula(kind: Fake, weights: &[f32]) -> Vec<f32> {
    let of_group = |w: &[f32]| {
        let mut sums: Vec<f32> = (0..16).map(|i| (0..8).fold(0.0, |s, j| s + w[16 * j + i].abs())).collect();
        while sums.len() > 1 {
            let half = sums.len() / 2;
            sums = (0..half).map(|i| sums[i] + sums[i + half]).collect();
        }
        let d = bf16::from_f32(sums[0] / 128.0).to_f32();
        let value = |w: &f32| match kind {
            Fake::Ternary => d * ((w / d.max(1e-12)).round_ties_even().clamp(-1.0, 1.0) as i32) as f32,
            Fake::OneBit => d * if *w >= 0.0 { 1.0 } else { -1.0 },
        };
        w.iter().map(value).collect::<Vec<f32>>()
    };
    weights.chunks(GROUP).flat_map(of_group).collect()
}

fn faked(isa: Isa, kind: Fake, weights: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; weights.len()];
    fake(isa, kind, weights, &mut out);
    out
}

fn packed(isa: Isa, kind: Fake, weights: &[f32]) -> shohin_train::Result<Vec<u8>> {
    let mut bytes = vec![0xaa; kind.format().row_bytes(weights.len()).unwrap()];
    pack(isa, kind, weights, &mut bytes).map(|()| bytes)
}

/// Checks `fake` with all instruction sets, and that `pack` writes the same weights if it can; returns whether.
fn check(kind: Fake, weights: &[f32]) -> bool {
    let expected = formula(kind, weights);
    let mut all = None;
    for isa in Isa::available() {
        assert_eq!(bits(&faked(isa, kind, weights)), bits(&expected), "{isa:?} {kind:?} {weights:?}");
        let bytes = packed(isa, kind, weights);
        if let Ok(bytes) = &bytes {
            let mut out = vec![f32::NAN; weights.len()];
            unpack(kind.format(), bytes, &mut out).unwrap();
            assert_eq!(bits(&out), bits(&expected), "{isa:?} {kind:?} {weights:?}");
        }
        assert!(all.is_none_or(|all| all == bytes.is_ok()));
        all = Some(bytes.is_ok());
    }
    all.unwrap()
}

fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    // About normal.
    (0..n).map(|_| next() + next() + next() + next()).collect()
}

#[test]
fn random_weights_of_all_sizes() {
    for (seed, factor) in [1.0, 0.05, 2e4, 1e-4, 3e-5].into_iter().enumerate() {
        let weights: Vec<f32> = random(512 * GROUP, seed as u64).iter().map(|w| w * factor).collect();
        assert!(KINDS.iter().all(|kind| check(*kind, &weights)), "{factor}");
    }
    // Scales that no f16 holds.
    for factor in [1e-8, 1e-12, 1e6, 1e30] {
        let weights: Vec<f32> = random(GROUP, 9).iter().map(|w| w * factor).collect();
        assert!(KINDS.iter().all(|kind| !check(*kind, &weights)), "{factor}");
    }
    // Ternary weights so small are all 0.
    for factor in [1e-14, 1e-30, 1e-42] {
        let weights: Vec<f32> = random(GROUP, 9).iter().map(|w| w * factor).collect();
        assert!(check(Fake::Ternary, &weights), "{factor}");
        // No bf16 is as small as the last ones.
        assert_eq!(check(Fake::OneBit, &weights), factor < 1e-40, "{factor}");
    }
    for zeros in [[0.0; GROUP], [-0.0; GROUP]] {
        assert!(KINDS.iter().all(|kind| check(*kind, &zeros)));
    }
}

#[test]
fn halves_of_a_scale_are_rounded_to_even() {
    // Any scale in bf16: d/2 and 3 d/2 have the mean d, and the numbers next to d/2 change no bit of it.
    for d in (0x3000..0x4700).step_by(7).map(|bits| bf16::from_bits(bits).to_f32()) {
        let half = d / 2.0;
        let mut w: [f32; GROUP] = std::array::from_fn(|i| [half, 3.0 * half, -half, -3.0 * half][i % 4]);
        for (i, w) in w.iter_mut().enumerate().filter(|(i, _)| i % 2 == 0) {
            *w = w.signum() * [half, half.next_up(), half.next_down()][i / 2 % 3];
        }
        check(Fake::Ternary, &w);
        let out = faked(Isa::detect(), Fake::Ternary, &w);
        for (w, v) in w.iter().zip(out) {
            let expected = if w.abs() > half { d.copysign(*w) } else { 0.0 };
            assert_eq!(v.to_bits(), expected.to_bits(), "{d} {w}");
        }
    }
}

#[test]
fn comparisons_are_the_rounded_quotients() {
    // Scales of every significand, and also of the least scale.
    let scales = (0..128u16).map(|low| bf16::from_bits(0x3f80 | low).to_f32()).chain([1e-12]);
    for d in scales {
        let half = d / 2.0;
        let near = (-40..40).map(|i| f32::from_bits(half.to_bits().wrapping_add_signed(i)));
        for w in near.chain([d, 1.5 * d, f32::MAX, f32::MIN_POSITIVE, 0.0]) {
            assert_eq!(w > half, (w / d).round_ties_even() >= 1.0, "{w} {d}");
        }
    }
}

#[test]
fn scales_that_blocks_cannot_hold_are_refused() {
    let message = |kind, w: f32| packed(Isa::SCALAR, kind, &[w; GROUP]).unwrap_err().to_string();
    for kind in KINDS {
        let format = kind.format().name();
        let expected =
            format!("for {format}: expected a number that f16 holds, at most 65504 and a multiple of 2^-24");
        for (w, problem) in [
            (65600.0, "6.5536e4 of the weights from 0 is too large"),
            (1e30, "1.00025555e30 of the weights from 0 is too large"),
            (f32::MAX, "inf of the weights from 0 is too large"),
            (f32::INFINITY, "inf of the weights from 0 is too large"),
            (1e-9, "9.968062e-10 of the weights from 0 is too small"),
            (f32::NAN, "NaN of the weights from 0 is not a number"),
        ] {
            assert_eq!(message(kind, w), format!("the scale {problem} {expected}"));
        }
        // One of many is enough, and the second group is named.
        let mut weights = random(3 * GROUP, 5);
        weights[GROUP + 77] = f32::NAN;
        let error = packed(Isa::detect(), kind, &weights).unwrap_err().to_string();
        assert!(error.starts_with("the scale NaN of the weights from 128 is not a number"), "{error}");
        // Neither is hidden from the products.
        assert!(faked(Isa::detect(), kind, &weights)[GROUP..2 * GROUP].iter().all(|v| v.is_nan()));
        let error = pack(Isa::SCALAR, kind, &[0.0; 100], &mut []).unwrap_err().to_string();
        assert!(error.contains("128") && error.contains("100"), "{error}");
        let error = pack(Isa::SCALAR, kind, &[0.0; GROUP], &mut [0; 3]).unwrap_err().to_string();
        assert!(error.contains(&kind.format().block_bytes().to_string()), "{error}");
    }
}

#[test]
fn codes_and_scales_are_those_of_the_trainer_in_python() {
    let text = fs::read_to_string(root().join("train/tests/fixtures/quantize.txt")).unwrap();
    let word = |word: &str| f32::from_bits(u32::from_str_radix(word, 16).unwrap());
    let (mut weights, mut cases) = (Vec::new(), 0);
    for line in text.lines() {
        let (what, rest) = line.split_once(' ').unwrap();
        let kind = match what {
            "weights" => {
                weights = rest.split(' ').map(word).collect();
                continue;
            }
            "ternary" => Fake::Ternary,
            "1bit" => Fake::OneBit,
            other => panic!("{other}"),
        };
        let (d, codes) = rest.split_once(' ').unwrap();
        let value = |code| match code {
            '-' => -word(d),
            '0' => 0.0,
            '+' => word(d),
            other => panic!("{other}"),
        };
        let expected: Vec<f32> = codes.chars().map(value).collect();
        assert_eq!(bits(&faked(Isa::detect(), kind, &weights)), bits(&expected), "{weights:?}");
        check(kind, &weights);
        cases += 1;
    }
    assert_eq!(cases, 34);
}

#[test]
fn masters_of_ternary_weights_are_those_weights() {
    let isa = Isa::detect();
    for n in 0..=GROUP {
        for d in [1.0, 0.0123, 300.0].map(|d| bf16::from_f32(d).to_f32()) {
            let w: [f32; GROUP] = std::array::from_fn(|i| match i * 37 % GROUP < n {
                true if i % 3 == 0 => -d,
                true => d,
                false => 0.0,
            });
            let mut m = w;
            masters(isa, Fake::Ternary, &mut m);
            assert_eq!(bits(&faked(isa, Fake::Ternary, &m)), bits(&w), "{n} {d}");
            assert!(n == 0 || m.iter().any(|m| m.abs() == d * (128.0 / n as f32)));
        }
    }
    // Left as they are: other magnitudes, a scale that bf16 does not hold, one that is too large.
    let mut others = random(GROUP, 3);
    others.extend((0..GROUP).map(|i| if i % 2 == 0 { 1.001 } else { 0.0 }));
    others.extend((0..GROUP).map(|i| if i == 0 { f32::MAX } else { 0.0 }));
    others.extend([f32::NAN; GROUP]);
    let mut m = others.clone();
    masters(isa, Fake::Ternary, &mut m);
    assert_eq!(bits(&m), bits(&others));
}

/// Packs the masters of every matrix of a file; returns its groups, those with a scale in bf16, and those that are 0.
fn round_trip(path: &str, kind: Fake) -> [usize; 3] {
    let file = fs::read(root().join(path)).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let (format, isa) = (kind.format(), Isa::detect());
    let mut counts = [0; 3];
    for tensor in gguf.tensors().iter().filter(|tensor| tensor.dims().len() == 2) {
        assert_eq!(tensor.format(), Some(format), "{}", tensor.name());
        let bytes = gguf.data(tensor);
        let mut weights = vec![0.0; tensor.elements() as usize];
        unpack(format, bytes, &mut weights).unwrap();
        let mut m = weights.clone();
        masters(isa, kind, &mut m);
        let again = packed(isa, kind, &m).unwrap();
        let blocks = bytes.chunks_exact(format.block_bytes()).zip(again.chunks_exact(format.block_bytes()));
        for (i, (block, again)) in blocks.enumerate() {
            counts[0] += 1;
            let d = block_scale(format, block, 0);
            counts[1] += usize::from(bf16::from_f32(d).to_f32() == d);
            counts[2] += usize::from(weights[i * GROUP..][..GROUP].iter().all(|w| *w == 0.0));
            assert_eq!(block, again, "{} {i} {d} {}", tensor.name(), f16::from_f32(d));
        }
        assert_eq!(bits(&faked(isa, kind, &m)), bits(&weights), "{}", tensor.name());
    }
    counts
}

#[test]
fn the_models_of_this_repository_are_packed_to_the_same_bytes() {
    for (path, kind) in [("models/sprout.gguf", Fake::Ternary), ("models/sprout-q1.gguf", Fake::OneBit)] {
        let [groups, bf16, zero] = round_trip(path, kind);
        assert!(groups > 30_000, "{path} {groups}");
        assert_eq!([bf16, zero], [groups, 0], "{path}");
    }
}
