//! Ways to compute that must agree: to the bit, or for cache formats within bounds.

use shohin_core::cpu::{Cpu, CpuWeights, Isa};
use shohin_core::device::BlockingDevice;
use shohin_core::model::ModelBytes;
use shohin_core::{CpuOptions, Format, KvFormat, Serial, Session, SessionOptions};
use shohin_tests::Random;
use shohin_tests::cpu::{all_logits, device, repacked};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::reading;
use std::sync::Arc;

/// Numbers from the input, and from its hash when it has no more.
struct Choices<'i> {
    bytes: std::slice::Iter<'i, u8>,
    rest: Random,
}

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        match self.bytes.next() {
            Some(byte) => usize::from(*byte) % n,
            None => self.rest.below(n),
        }
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

pub(super) fn agree_seeds() -> Vec<Vec<u8>> {
    (0..8u8).map(|i| vec![i; 3]).chain([Vec::new()]).collect()
}

/// A model, tokens for it, and options.
struct Case {
    file: Vec<u8>,
    tokens: Vec<u32>,
    kv: KvFormat,
    batch: usize,
    /// Where the tokens are cut.
    cut: usize,
}

impl Case {
    fn new(input: &[u8]) -> Case {
        let mut choices = Choices { bytes: input.iter(), rest: Random::new(reading::fnv(input)) };
        let kv_heads = choices.of(&[1, 2]);
        let shape = Shape {
            hidden: choices.of(&[256, 512]),
            layers: choices.of(&[1, 2]),
            kv_heads,
            heads: kv_heads * choices.of(&[1, 2, 3, 4]),
            head_dim: choices.of(&[64, 128]),
            ffn: choices.of(&[256, 512]),
            experts: choices.of(&[None, None, None, Some([3, 2, 256])]),
            vocab: 290 + choices.below(20),
            tied: choices.below(2) == 0,
            context: 64,
            yarn: choices.of(&[None, Some(16)]),
            rope_factors: choices.below(4) == 0,
            ..Shape::tiny()
        };
        // Rows of attention's output must be whole blocks.
        let shape = if (shape.heads * shape.head_dim).is_multiple_of(256) {
            shape
        } else {
            Shape { heads: 4 * kv_heads, ..shape }
        };
        let mut formats = vec![Stored::new(choices.of(&Format::ALL))];
        if choices.below(2) == 0 {
            formats.push(Stored::new(choices.of(&Format::ALL)));
        }
        let vocab = shape.vocab;
        let model = Model { shape, formats, seed: choices.below(256) as u64, name: "any".into() };
        let tokens = (0..2 + choices.below(39)).map(|_| choices.rest.below(vocab) as u32).collect::<Vec<_>>();
        Case {
            file: model.to_vec().expect("a valid shape"),
            kv: choices.of(&KvFormat::ALL),
            batch: 1 + choices.below(48),
            cut: 1 + choices.below(tokens.len() - 1),
            tokens,
        }
    }

    fn session(&self, kv: KvFormat) -> SessionOptions {
        SessionOptions { kv, context: 48, ..SessionOptions::default() }
    }

    /// The logits after the last token, fed in two pieces.
    fn in_pieces<B: ModelBytes>(&self, device: &mut Cpu<'_, B>) -> Vec<f32> {
        let mut session = Session::new(device, &self.session(self.kv)).expect("memory");
        let (first, second) = self.tokens.split_at(self.cut);
        session.forward_prefill(device, first).expect("valid tokens");
        session.forward_prefill(device, second).expect("valid tokens").to_vec()
    }

    /// The same, kept in between.
    fn kept(&self, device: &mut Cpu<'_, &[u8]>) -> Vec<f32> {
        let mut session = Session::new(device, &self.session(self.kv)).expect("memory");
        let (first, second) = self.tokens.split_at(self.cut);
        session.forward_prefill(device, first).expect("valid tokens");
        let mut bytes = Vec::new();
        Cpu::<&[u8]>::wait(session.export(device, &mut bytes)).expect("memory");
        let mut other = Session::new(device, &self.session(self.kv)).expect("memory");
        other.import(device, first.len(), &bytes).expect("as exported");
        other.forward_prefill(device, second).expect("valid tokens").to_vec()
    }
}

/// The largest root mean square of the differences that a cache format makes to logits, relative to theirs: twice the largest of
/// 2000 random models.
fn bound(kv: KvFormat) -> f64 {
    match kv {
        KvFormat::F32 => 0.0,
        KvFormat::F16 => 0.1,
        KvFormat::Q8 => 0.2,
        KvFormat::Q4 => 1.0,
        KvFormat::Fp8E4M3 => 0.6,
        KvFormat::Fp8E5M2 => 0.8,
    }
}

fn noise(found: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let sum: f64 = found.iter().zip(exact).map(|(a, b)| square(f64::from(a - b))).sum();
    (sum / exact.iter().map(|x| square(f64::from(*x))).sum::<f64>()).sqrt()
}

pub(super) fn agree(input: &[u8]) {
    let case = Case::new(input);
    let options = CpuOptions { batch: case.batch, ..CpuOptions::default() };
    let mut reference = device(&case.file, &options).expect("a valid model");
    let all = all_logits(&mut reference, &case.tokens, &case.session(case.kv)).expect("valid tokens");
    let vocab = all.len() / case.tokens.len();
    let last = &all[all.len() - vocab..];
    assert!(case.in_pieces(&mut reference) == last, "a prompt in two pieces");
    assert!(case.kept(&mut reference) == last, "a session that was kept");
    let mut one =
        device(&case.file, &CpuOptions { batch: 1, ..CpuOptions::default() }).expect("a valid model");
    assert!(
        all_logits(&mut one, &case.tokens, &case.session(case.kv)).expect("valid tokens") == all,
        "one by one"
    );
    let mut repacked = repacked(&case.file, &options).expect("a valid model");
    assert!(case.in_pieces(&mut repacked) == last, "repacked weights");
    let weights: Arc<CpuWeights<&[u8]>> = Arc::clone(reference.weights());
    for isa in Isa::available() {
        let options = CpuOptions { isa, ..options };
        let mut device = Cpu::with_weights(Arc::clone(&weights), &options, Serial).expect("memory");
        assert!(case.in_pieces(&mut device) == last, "{isa:?}");
    }
    let exact = all_logits(&mut reference, &case.tokens, &case.session(KvFormat::F32)).expect("valid tokens");
    let noise = noise(&all, &exact);
    assert!(noise <= bound(case.kv), "{:?} changes logits by {noise}", case.kv);
}
