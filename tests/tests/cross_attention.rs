//! Cross-attention against PyTorch (`oracle/cross_attention.py`), from the tensors of a GGUF file.

use std::fs;
use std::path::Path;

use shohin_core::cpu::Isa;
use shohin_core::cpu::cross_attention::{CrossAttention, Projection};
use shohin_core::gguf::GgufWriter;
use shohin_core::model::program::Heads;
use shohin_core::quant::Matrix;
use shohin_core::{Format, Gguf, KvFormat, Serial};

/// As in the script.
fn wave(seed: usize, n: usize, size: f64) -> Vec<f32> {
    (0..n).map(|i| (size * ((i * i) as f64 / 7.0 + seed as f64).sin()) as f32).collect()
}

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

struct Case {
    file: Vec<u8>,
    heads: Heads,
    x: Vec<f32>,
    states: Vec<f32>,
    want: Vec<f64>,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/cross_attention.txt");
    let text = fs::read_to_string(path).unwrap();
    let case = |line: &str| {
        let mut words = line.split(' ');
        let numbers = [(); 8].map(|()| words.next().unwrap().parse::<usize>().unwrap());
        let [hidden, width, query, kv, dim, bias, rows, states] = numbers;
        let mut file = GgufWriter::new();
        let mut data = Vec::new();
        let shapes = [(query * dim, hidden), (kv * dim, width), (kv * dim, width), (hidden, query * dim)];
        for (i, (name, (rows, cols))) in ["q", "k", "v", "o"].into_iter().zip(shapes).enumerate() {
            let name = format!("dec.blk.0.cross_attn_{name}");
            file.tensor(&format!("{name}.weight"), &[cols as u64, rows as u64], Format::F32).unwrap();
            data.push(bytes(&wave(10 + i, rows * cols, 2.0 / (cols as f64).sqrt())));
            if bias == 1 {
                file.tensor(&format!("{name}.bias"), &[rows as u64], Format::F32).unwrap();
                data.push(bytes(&wave(20 + i, rows, 0.5)));
            }
        }
        Case {
            file: file.to_vec(data).unwrap(),
            heads: Heads { query, kv, dim },
            x: wave(1, rows * hidden, 1.0),
            states: wave(2, states * width, 1.0),
            want: words.map(|word| word.parse().unwrap()).collect(),
        }
    };
    text.lines().map(case).collect()
}

impl Case {
    fn run(&self, isa: Isa, format: KvFormat, at_once: usize) -> Vec<f32> {
        let gguf = Gguf::parse(&self.file).unwrap();
        let cross = CrossAttention::from_gguf(&gguf, "dec.blk.0.cross_attn", self.heads, isa).unwrap();
        let mut encoded = cross.encode(&self.states, format, &Serial).unwrap();
        let mut scratch = cross.scratch(at_once, &encoded).unwrap();
        let mut out = vec![f32::NAN; self.x.len()];
        cross.attend(&self.x, &mut encoded, &mut scratch, &Serial, &mut out).unwrap();
        out
    }
}

#[test]
fn pytorch_agrees() {
    for case in cases() {
        let want = case.run(Isa::SCALAR, KvFormat::F32, 1);
        assert_eq!(want.len(), case.want.len());
        for (i, (got, want)) in want.iter().zip(&case.want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 5e-6, "{:?} {i}: {got} {want}", case.heads);
        }
        // The bits are those of any instruction set, and of any number of rows at once.
        for isa in Isa::available() {
            for at_once in [1, 3, 64] {
                assert_eq!(case.run(isa, KvFormat::F32, at_once), want, "{isa:?} {at_once}");
            }
        }
        // Caches of 8 bits and more are near it.
        for (format, most) in [(KvFormat::F16, 2e-3), (KvFormat::Q8, 4e-2)] {
            let got = case.run(Isa::detect(), format, 64);
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst > 0.0 && worst < most, "{format:?} {worst}");
            assert_eq!(case.run(Isa::SCALAR, format, 2), got);
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let data = vec![0; 4 * 64];
    let projection = |rows, cols| {
        Projection::new(Matrix::new(Format::F32, rows, cols, &data[..4 * rows * cols]).unwrap(), vec![])
    };
    let layer = |heads, [q, k, v, o]: [[usize; 2]; 4]| {
        let all = [q, k, v, o].map(|[rows, cols]| projection(rows, cols).unwrap());
        CrossAttention::new(heads, all, Isa::detect())
    };
    let (heads, shapes) = (Heads { query: 2, kv: 1, dim: 2 }, [[4, 6], [2, 3], [2, 3], [6, 4]]);
    let good = layer(heads, shapes).unwrap();
    for i in 0..4 {
        for j in 0..2 {
            let mut wrong = shapes;
            wrong[i][j] += 1;
            assert_eq!(layer(heads, wrong).unwrap_err().code(), "length", "{wrong:?}");
        }
    }
    for heads in [Heads { kv: 0, ..heads }, Heads { query: 3, kv: 2, ..heads }, Heads { dim: 3, ..heads }] {
        assert_eq!(layer(heads, shapes).unwrap_err().code(), "option", "{heads:?}");
    }
    let bias = Projection::new(Matrix::new(Format::F32, 2, 2, &data[..16]).unwrap(), vec![0.0; 3]);
    assert_eq!(bias.unwrap_err().code(), "length");
    for states in [0, 4] {
        assert_eq!(good.encode(&vec![0.0; states], KvFormat::F16, &Serial).unwrap_err().code(), "length");
    }
    let mut encoded = good.encode(&[0.0; 6], KvFormat::F16, &Serial).unwrap();
    let mut scratch = good.scratch(1, &encoded).unwrap();
    let mut attend =
        |x, out| good.attend(&vec![0.0; x], &mut encoded, &mut scratch, &Serial, &mut vec![0.0; out]);
    attend(6, 6).unwrap();
    attend(12, 12).unwrap();
    for (x, out) in [(0, 0), (5, 5), (6, 12)] {
        assert_eq!(attend(x, out).unwrap_err().code(), "length", "{x} {out}");
    }
    // A layer with other heads, and scratch for fewer states.
    let other = layer(Heads { query: 2, kv: 2, dim: 2 }, [[4, 6], [4, 3], [4, 3], [6, 4]]).unwrap();
    let mut foreign = other.encode(&[0.0; 6], KvFormat::F16, &Serial).unwrap();
    let mut out = [0.0; 6];
    assert!(good.attend(&[0.0; 6], &mut foreign, &mut scratch, &Serial, &mut out).is_err());
    let mut long = good.encode(&[0.0; 3 * 1100], KvFormat::F16, &Serial).unwrap();
    assert!(good.attend(&[0.0; 6], &mut long, &mut scratch, &Serial, &mut out).is_err());
    let nothing = GgufWriter::new().to_vec::<Vec<u8>>([]).unwrap();
    let gguf = Gguf::parse(&nothing).unwrap();
    let missing = CrossAttention::from_gguf(&gguf, "dec.blk.0.cross_attn", heads, Isa::detect()).unwrap_err();
    assert!(missing.to_string().contains("dec.blk.0.cross_attn_q.weight"), "{missing}");
}
