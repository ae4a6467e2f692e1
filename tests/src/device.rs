//! Devices compared with one another: a sequence on a device, and the distance of its logits from others.

use shohin_core::device::{BlockingDevice, Output, Readout, SessionOptions, Wants};
use shohin_core::{Activations, BonsaiModel, Cpu, CpuOptions, Gguf, Serial, Session};

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
