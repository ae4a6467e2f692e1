//! Whole models against core on the CPU.

use crate::shim::{Order, Shim};
use shohin_core::device::{BlockingDevice, Output, Readout, SessionOptions, Wants};
use shohin_core::{Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Serial, Session};
use shohin_metal::{MetalDevice, MetalDeviceOptions, MetalModel};
use shohin_tests::model::{Model, Shape, Stored};

fn load(file: &[u8]) -> BonsaiModel<&[u8]> {
    BonsaiModel::from_gguf(&Gguf::parse(file).unwrap()).unwrap()
}

/// A device and a sequence on it.
struct On<D: BlockingDevice> {
    device: D,
    session: Session<D>,
}

impl<D: BlockingDevice<Error: core::fmt::Debug>> On<D> {
    fn new(mut device: D, kv: KvFormat) -> On<D> {
        let session = Session::new(&mut device, &SessionOptions { kv, ..SessionOptions::default() }).unwrap();
        On { device, session }
    }

    /// Logits at every position: all tokens at once, or one by one.
    fn logits(&mut self, tokens: &[u32], at_once: bool) -> Vec<f32> {
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

    /// The most likely token after `tokens`.
    fn best(&mut self, tokens: &[u32]) -> u32 {
        let mut best = None;
        let sink = &mut |_, _, output: Output<'_>| {
            if let Output::Top([(token, _), ..]) = output {
                best = Some(*token);
            }
        };
        D::wait(self.session.run(&mut self.device, tokens, Wants::Last(Readout::Best), sink)).unwrap();
        best.expect("a token can be chosen")
    }
}

fn cpu(file: &[u8], activations: Activations, kv: KvFormat) -> On<Cpu<'_, &[u8]>> {
    let options = CpuOptions { activations, ..CpuOptions::default() };
    On::new(Cpu::new(load(file), &options, Serial).unwrap(), kv)
}

fn metal(file: &[u8], activations: Activations, kv: KvFormat, order: Order) -> On<MetalDevice<Shim>> {
    let model = MetalModel::new(Shim::new(order), &load(file)).unwrap();
    let options = MetalDeviceOptions { activations, batch: 16, ..MetalDeviceOptions::default() };
    On::new(MetalDevice::new(&model, &options).unwrap(), kv)
}

fn rms(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// Relative to the spread of the logits.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let mean = want.iter().map(|&x| f64::from(x)).sum::<f64>() / want.len() as f64;
    let spread = want.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / want.len() as f64;
    rms(got, want) / spread.sqrt()
}

fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + 3) % vocab) as u32).collect()
}

/// At once and one by one. With floats only the order of additions differs; integers are rounded alike.
#[test]
fn models_of_common_formats_agree() {
    for format in [Format::Q1_0, Format::Pq2_0, Format::Q4_0, Format::F16] {
        let file = Model::tiny(format);
        let tokens = tokens(9, 320);
        for (activations, kv, bound) in
            [(Activations::F32, KvFormat::F32, 1e-5), (Activations::Int8, KvFormat::F16, 2e-2)]
        {
            let want = cpu(&file, activations, kv).logits(&tokens, true);
            let mut on = metal(&file, activations, kv, Order::Forward);
            for at_once in [true, false] {
                on.session.truncate(0).unwrap();
                let error = error(&on.logits(&tokens, at_once), &want);
                println!("{format:?} {activations:?} at once {at_once}: {error:.1e}");
                assert!(error < bound, "{format:?}, {activations:?}, at once {at_once}: {error}");
            }
        }
    }
}
