//! Devices compared with one another: a sequence on a device, and the distance of its logits from others.

use shohin_core::device::{BlockingDevice, Output, Readout, SessionOptions, Wants};
use shohin_core::session::{Feed, run_batch};
use shohin_core::{Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Serial, Session};

use crate::model::{Model, Shape, Stored};

/// A device and a sequence on it.
#[derive(Debug)]
pub struct On<D: BlockingDevice> {
    /// The device.
    pub device: D,
    /// The sequence.
    pub session: Session<D>,
}

impl<D: BlockingDevice<Error: core::fmt::Debug>> On<D> {
    /// An empty sequence.
    pub fn new(mut device: D, options: &SessionOptions) -> On<D> {
        let session = Session::new(&mut device, options).unwrap();
        On { device, session }
    }

    /// Logits at every position: all tokens at once, or one by one.
    pub fn logits(&mut self, tokens: &[u32], at_once: bool) -> Vec<f32> {
        let mut all = Vec::new();
        if at_once {
            let sink = &mut |_, row: &[f32]| all.extend_from_slice(row);
            self.session.forward_logits(&mut self.device, tokens, sink).unwrap();
        } else {
            for &token in tokens {
                all.extend_from_slice(self.session.forward(&mut self.device, token).unwrap());
            }
        }
        all
    }

    /// The most likely token after `tokens`, chosen by the device, and its logit.
    ///
    /// # Errors
    /// Those of the device.
    pub fn best(&mut self, tokens: &[u32]) -> Result<(u32, f32), D::Error> {
        let mut best = None;
        let sink = &mut |_, _, output: Output<'_>| {
            if let Output::Top([first, ..]) = output {
                best = Some(*first);
            }
        };
        D::wait(self.session.run(&mut self.device, tokens, Wants::Last(Readout::Best), sink))?;
        Ok(best.expect("a token can be chosen"))
    }
}

/// `file` on the CPU.
pub fn on_cpu<'f>(
    file: &'f [u8],
    activations: Activations,
    options: &SessionOptions,
) -> On<Cpu<'f, &'f [u8]>> {
    let model = BonsaiModel::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
    let cpu = CpuOptions { activations, ..CpuOptions::default() };
    On::new(Cpu::new(model, &cpu, Serial).unwrap(), options)
}

/// Root of the mean square of the differences.
pub fn rms(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// [`rms`] relative to the spread of the logits.
pub fn error(got: &[f32], want: &[f32]) -> f64 {
    let mean = want.iter().map(|&x| f64::from(x)).sum::<f64>() / want.len() as f64;
    let spread = want.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / want.len() as f64;
    rms(got, want) / spread.sqrt()
}

/// Some tokens.
pub fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + 3) % vocab) as u32).collect()
}

/// Mixtures of experts, whose matrices have several formats, against the CPU: a prompt, whose rows are gathered by expert, and
/// one row at a time, on a device with f32 caches. With 32-bit activations only the order of additions differs.
pub fn check_experts<D>(mut on: impl FnMut(&[u8], Activations) -> On<D>)
where
    D: BlockingDevice<Error: core::fmt::Debug>,
{
    use Format::{Bf16, F16, Iq4Nl, Q1_0, Q4_0, Q4K, Q6K, Q8_0};
    // Embedding; q, k, v, o, gate, up, down. Routers are floats. Three experts have more than a tile of 28 pairs.
    let cases = [
        (vec![Q1_0], [3, 2, 256], 14),
        (vec![Q8_0, Q1_0, Q4_0, Q6K, Q1_0, Q4K, Q4K, Q6K], [37, 8, 256], 3),
        (vec![Q8_0, Q1_0, Q1_0, Q1_0, Q1_0, Q4_0, Iq4Nl, Bf16], [6, 2, 256], 6),
        (vec![Q8_0, Q1_0, Q1_0, Q1_0, Q1_0, F16, F16, Q8_0], [4, 1, 256], 6),
    ];
    let options = SessionOptions { kv: KvFormat::F32, ..SessionOptions::default() };
    for (formats, experts, prompt) in cases {
        let shape = Shape { experts: Some(experts), heads: 2, kv_heads: 1, layers: 1, ..Shape::tiny() };
        let formats = formats.into_iter().map(Stored::new).collect();
        let file = Model { formats, ..Model::new(shape, Stored::new(Q1_0), 3) }.to_vec().unwrap();
        let tokens = tokens(prompt + 2, 320);
        let want = on_cpu(&file, Activations::F32, &options).logits(&tokens, true);
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.1)] {
            let mut on = on(&file, activations);
            let (first, rest) = tokens.split_at(prompt);
            let got = [on.logits(first, true), on.logits(rest, false)].concat();
            let error = error(&got, &want);
            println!("{experts:?}, {activations:?}: {error:.2e}");
            assert!(error < bound, "{experts:?}, {activations:?}: {error}");
        }
    }
}

/// Architectures other than Qwen3 against the CPU, on a device with f32 caches: a prompt that is longer than a window, one row at
/// a time, and two sequences in one batch. With 32-bit activations only the order of additions differs.
pub fn check_variants<D>(mut on: impl FnMut(&[u8], Activations) -> On<D>)
where
    D: BlockingDevice<Error: core::fmt::Debug>,
{
    let options = SessionOptions { kv: KvFormat::F32, ..SessionOptions::default() };
    for shape in Shape::variants() {
        let kind = shape.kind;
        let file = Model::new(shape, Stored::new(Format::Q8_0), 3).to_vec().unwrap();
        let tokens = tokens(24, 320);
        let want = on_cpu(&file, Activations::F32, &options).logits(&tokens, true);
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.1)] {
            let mut on = on(&file, activations);
            let (first, rest) = tokens.split_at(20);
            let (first, next) = first.split_at(11);
            let mut got = [on.logits(first, true), on.logits(next, true), on.logits(rest, false)].concat();
            let found = error(&got, &want);
            println!("{kind:?}, {activations:?}: {found:.2e}");
            assert!(found < bound, "{kind:?}, {activations:?}: {found}");

            let mut other = Session::new(&mut on.device, &options).unwrap();
            on.session.truncate(9).unwrap();
            got.truncate(9 * 320);
            let mut others = Vec::new();
            let wants = Wants::Each(Readout::Logits);
            let feeds = [(&mut other, &tokens[..]), (&mut on.session, &tokens[9..])];
            let mut feeds = feeds.map(|(session, tokens)| Feed { session, tokens, wants });
            let sink = &mut |sequence, _, output: Output<'_>| {
                if let Output::Logits(logits) = output {
                    let into = if sequence == 0 { &mut others } else { &mut got };
                    into.extend_from_slice(logits);
                }
            };
            D::wait(run_batch(&mut on.device, &mut feeds, sink)).unwrap();
            for got in [others, got] {
                let found = error(&got, &want);
                assert!(found < bound, "{kind:?}, {activations:?}, two sequences: {found}");
            }
        }
    }
}

/// A file with NaN as a weight of one expert has other logits only for the tokens that this expert computes.
pub fn check_unread_experts<D>(mut on: impl FnMut(&[u8]) -> On<D>)
where
    D: BlockingDevice<Error: core::fmt::Debug>,
{
    // Gate and up are floats.
    let formats = [Format::Q8_0; 5].into_iter().chain([Format::F32, Format::F32, Format::Q8_0]);
    let formats = formats.map(Stored::new).collect();
    let shape = Shape { layers: 1, ..Shape::tiny_experts() };
    let model = Model { formats, ..Model::new(shape, Stored::new(Format::Q8_0), 3) };
    let (file, tokens) = (model.to_vec().unwrap(), tokens(3, 320));
    let up = {
        let gguf = Gguf::parse(&file).unwrap();
        let index = gguf.header().tensor_index("blk.0.ffn_up_exps.weight").unwrap();
        let data = gguf.data(&gguf.header().tensors()[index]);
        data.as_ptr().addr() - file.as_ptr().addr()
    };
    let mut logits = |file: &[u8]| {
        let mut on = on(file);
        let together = on.logits(&tokens, true);
        on.session.truncate(0).unwrap();
        [together, on.logits(&tokens, false)].concat()
    };
    let want = logits(&file);
    let mut chosen = [0; 6];
    for expert in 0..6 {
        let mut broken = file.clone();
        for output in 0..256 {
            broken[up + 4 * 256 * (256 * expert + output)..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        for (i, (got, want)) in logits(&broken).chunks(320).zip(want.chunks(320)).enumerate() {
            let reads = got.iter().all(|logit| logit.is_nan());
            assert!(reads || got == want, "expert {expert}, row {i}");
            chosen[i] += usize::from(reads);
        }
    }
    assert_eq!(chosen, [2; 6]);
}

/// A small model with the tokens that it was given, its logits by an f64 forward pass in numpy, and those of llama.cpp.
#[derive(Debug)]
pub struct Golden {
    /// A GGUF file.
    pub file: Vec<u8>,
    /// Its input.
    pub tokens: Vec<u32>,
    /// `(tokens, vocab)`
    pub exact: Vec<f32>,
    /// How far llama.cpp, which rounds activations to integers, is from these.
    pub noise: f64,
}

impl Golden {
    /// 1-bit weights.
    pub fn one_bit() -> Golden {
        Golden::read("synth-micro-q1_0.gguf", "micro-f32_q1.numpy_f64.logits", "micro-q1_0.logits")
    }

    /// Ternary weights.
    pub fn ternary() -> Golden {
        Golden::read("synth-micro-q2_0_g64.gguf", "micro-f32.numpy_f64.logits", "micro-q2_0_g64.logits")
    }

    fn read(file: &str, exact: &str, llama: &str) -> Golden {
        let golden = |name: &str| {
            let path = format!("{}/fixtures/golden_model/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
        };
        let floats = |name: &str| -> Vec<f32> {
            golden(name).as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
        };
        let text = String::from_utf8(golden("tokens.txt")).unwrap();
        let tokens = text.split_whitespace().map(|token| token.parse().unwrap()).collect();
        let exact = floats(exact);
        Golden { file: golden(file), tokens, noise: rms(&floats(llama), &exact), exact }
    }

    /// Compares logits of all tokens: with 32-bit activations to 1e-3 at every logit, with integers no more noise than that
    /// of llama.cpp.
    pub fn check(&self, mut logits: impl FnMut(Activations) -> Vec<f32>) {
        let exact = logits(Activations::F32);
        let worst = exact.iter().zip(&self.exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst}");
        let noise = rms(&logits(Activations::Int8), &self.exact);
        println!("worst {worst:.1e}; int8 rms {noise:.5}, llama.cpp {:.5}", self.noise);
        assert!(noise <= self.noise, "rms {noise}, llama.cpp's is {}", self.noise);
    }
}
