//! Whole models by the CUDA kernels and the host code of this crate, on a CPU, against core.

mod shim;

use shim::Shim;
use shohin_core::device::{BlockingDevice, Output, Readout, SessionOptions, Wants};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::{Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Serial, Session};
use shohin_cuda::{CudaDevice, CudaDeviceOptions, CudaModel, Error, KV_FORMATS};
use shohin_tests::model::{Model, Shape, Stored};
use std::sync::Arc;

/// A device and a sequence on it.
struct On<D: BlockingDevice> {
    device: D,
    session: Session<D>,
}

impl<D: BlockingDevice<Error: core::fmt::Debug>> On<D> {
    fn new(mut device: D, options: &SessionOptions) -> On<D> {
        let session = Session::new(&mut device, options).unwrap();
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
}

fn kv(kv: KvFormat) -> SessionOptions {
    SessionOptions { kv, ..SessionOptions::default() }
}

fn cpu<'f>(file: &'f [u8], activations: Activations, options: &SessionOptions) -> On<Cpu<'f, &'f [u8]>> {
    let model = BonsaiModel::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
    let cpu = CpuOptions { activations, ..CpuOptions::default() };
    On::new(Cpu::new(model, &cpu, Serial).unwrap(), options)
}

#[expect(clippy::arc_with_non_send_sync, reason = "used by one thread, as graphs of CUDA are")]
fn driver(seed: u32) -> Arc<Shim> {
    Arc::new(Shim::new(seed))
}

fn device(file: &[u8], activations: Activations, seed: u32) -> CudaDevice<Shim> {
    let model = CudaModel::from_gguf(driver(seed), &Gguf::parse(file).unwrap()).unwrap();
    // Prompts are divided.
    let options = CudaDeviceOptions { activations, batch: 31, ..CudaDeviceOptions::default() };
    CudaDevice::new(&model, &options).unwrap()
}

fn cuda(file: &[u8], activations: Activations, options: &SessionOptions) -> On<CudaDevice<Shim>> {
    On::new(device(file, activations, 7), options)
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

/// Every format, with threads in their order and in others: with 32-bit activations only the order of additions differs.
#[test]
fn formats_agree() {
    for format in Format::ALL {
        let file = Model::tiny(format);
        let tokens = tokens(3, 320);
        let options = kv(KvFormat::F32);
        let want = cpu(&file, Activations::F32, &options).logits(&tokens, true);
        let floats = PackedFormat::of(format).unwrap().is_float();
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.05)] {
            let bound = if floats { 1e-5 } else { bound };
            for (seed, at_once) in [(5, true), (0, false)] {
                let mut on = On::new(device(&file, activations, seed), &options);
                let error = error(&on.logits(&tokens, at_once), &want);
                println!("{format:?}, {activations:?}, seed {seed}, at once {at_once}: {error:.2e}");
                assert!(error < bound, "{format:?}, {activations:?}, at once {at_once}: {error}");
            }
        }
    }
}

/// Formats that differ from matrix to matrix, also among those that share an input, and a separate head.
#[test]
fn formats_may_mix() {
    use Format::{Bf16, F16, F32, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q1_0, Q2_0, Q4_0, Q5_0, Q5_1, Q6K, Q8_0, Q8K};
    let all = [Q4_0, F16, Q8_0, Bf16, F32, Q8_0, Q1_0, F16, Q8_0, Q4_0, Q2_0, Q4_0, F16, F32, Q8_0, Bf16];
    let others =
        [Q8K, Iq4Xs, Mxfp4, Iq4Nl, Nvfp4, Q5_0, Iq4Nl, Q5_1, Nvfp4, Q6K, Q8_0, Iq4Xs, Mxfp4, Q1_0, Q6K, Q5_0];
    for formats in [all, others] {
        let shape = Shape { tied: false, yarn: None, rope_factors: true, ..Shape::tiny() };
        let formats = formats.into_iter().map(Stored::new).collect();
        let file = Model { formats, ..Model::new(shape, Stored::new(Q1_0), 5) }.to_vec().unwrap();
        let (tokens, options) = (tokens(4, 320), kv(KvFormat::F32));
        let want = cpu(&file, Activations::F32, &options).logits(&tokens, true);
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.05)] {
            for at_once in [true, false] {
                let error = error(&cuda(&file, activations, &options).logits(&tokens, at_once), &want);
                assert!(error < bound, "{activations:?}, at once {at_once}: {error}");
            }
        }
    }
}

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/../tests/fixtures/golden_model/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// Against an f64 forward pass in numpy: 32-bit activations to 1e-3 at every logit, integers with no more noise than
/// llama.cpp.
#[test]
fn golden_logits() {
    let text = String::from_utf8(golden("tokens.txt")).unwrap();
    let tokens: Vec<u32> = text.split_whitespace().map(|t| t.parse().unwrap()).collect();
    let (file, exact, llama) =
        ("synth-micro-q1_0.gguf", "micro-f32_q1.numpy_f64.logits", "micro-q1_0.logits");
    let (file, exact, llama) = (golden(file), floats(&golden(exact)), floats(&golden(llama)));
    let got = |activations| cuda(&file, activations, &kv(KvFormat::F32)).logits(&tokens, true);
    let worst = got(Activations::F32).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");
    let (noise, allowed) = (rms(&got(Activations::Int8), &exact), rms(&llama, &exact));
    assert!(noise <= allowed, "rms {noise}, llama.cpp's is {allowed}");
}

/// Every cache format, with three and twelve query heads per key-value head: rows at once, and a row whose positions
/// are divided.
#[test]
fn caches_agree() {
    for (heads, kv_heads) in [(6, 2), (12, 1)] {
        let shape = Shape { heads, kv_heads, context: 512, ..Shape::tiny() };
        let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
        let tokens = tokens(14, 320);
        let want = cpu(&file, Activations::F32, &kv(KvFormat::F32)).logits(&tokens, true);
        let last = &want[want.len() - 320..];
        for format in KV_FORMATS {
            let bound = match format {
                KvFormat::F32 => 1e-5,
                KvFormat::F16 => 1e-3,
                KvFormat::Q8 => 2e-2,
                KvFormat::Q4 => 0.4,
                KvFormat::Fp8E4M3 | KvFormat::Fp8E5M2 => unreachable!("not one of KV_FORMATS"),
            };
            let On { mut device, mut session } = cuda(&file, Activations::F32, &kv(format));
            let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), last);
            session.truncate(13).unwrap();
            let decoded = error(session.forward(&mut device, tokens[13]).unwrap(), last);
            assert!(prefilled < bound && decoded < bound, "{format:?}: {prefilled} {decoded}");
            assert!(format == KvFormat::F32 || prefilled > 1e-6, "{format:?} must round");
        }
    }
}

/// Every pattern, as on the CPU.
#[test]
fn patterns_agree() {
    let shape = Shape { heads: 6, kv_heads: 2, context: 1024, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let tokens = tokens(80, 320);
    let full = cpu(&file, Activations::F32, &kv(KvFormat::F32)).logits(&tokens, true);
    for text in ["window:40", "window:30:3", "dilated:2:2", "strided:1:2", "bigbird:1:1:1"] {
        let options = SessionOptions { attention: text.parse().unwrap(), ..kv(KvFormat::F32) };
        let On { device: mut on_cpu, mut session } = cpu(&file, Activations::F32, &options);
        let want = session.forward_prefill(&mut on_cpu, &tokens).unwrap().to_vec();
        let On { mut device, mut session } = cuda(&file, Activations::F32, &options);
        let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), &want);
        session.truncate(79).unwrap();
        let decoded = error(session.forward(&mut device, tokens[79]).unwrap(), &want);
        assert!(prefilled < 1e-4 && decoded < 1e-4, "{text}: {prefilled} {decoded}");
        // With one block before the last, BigBird sees all.
        let masks = error(&want, &full[full.len() - 320..]) > 1e-3;
        assert!(masks || text.starts_with("bigbird"), "{text} must mask");
    }
}

/// Exported keys and values continue in a session of another capacity, to the bit.
#[test]
fn exported_caches_go_on_elsewhere() {
    let file = Model::tiny(Format::Q1_0);
    let tokens = tokens(20, 320);
    let mut device = device(&file, Activations::Int8, 3);
    for format in KV_FORMATS {
        let mut open =
            |context| Session::new(&mut device, &SessionOptions { context, ..kv(format) }).unwrap();
        let (mut first, mut other) = (open(24), open(30));
        first.forward_prefill(&mut device, &tokens).unwrap();
        let mut bytes = Vec::new();
        let exported = first.export(&mut device, &mut bytes);
        shohin_core::device::ready(exported).unwrap().unwrap();
        other.import(&mut device, tokens.len(), &bytes).unwrap();
        let want = first.forward(&mut device, 5).unwrap().to_vec();
        assert_eq!(other.forward(&mut device, 5).unwrap(), want, "{format:?}");
    }
}

/// A token is one launch of a graph, of a known number of kernels, and greedy text is that of the CPU.
#[test]
fn a_token_is_one_graph_and_text_is_that_of_the_cpu() -> Result<(), Error> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let file = std::fs::read(path).unwrap();
    let On { device: mut on_cpu, session: mut cpu_session } =
        cpu(&file, Activations::F32, &kv(KvFormat::F16));
    let On { mut device, mut session } = cuda(&file, Activations::F32, &kv(KvFormat::F16));
    let (mut token, mut text) = (1, Vec::new());
    for step in 0..12 {
        let logits = cpu_session.forward(&mut on_cpu, token).unwrap();
        let want = shohin_core::cpu::op::argmax(logits).unwrap();
        let shim = Arc::clone(device.model().driver());
        let before = (shim.launches.get(), shim.replays.get(), shim.replayed.get());
        let mut best = None;
        let sink = &mut |_, _, output: Output<'_>| {
            if let Output::Top([(token, logit)]) = output {
                best = Some((*token, *logit));
            }
        };
        CudaDevice::<Shim>::wait(session.run(&mut device, &[token], Wants::Last(Readout::Best), sink))?;
        let (found, logit) = best.expect("a token can be chosen");
        assert_eq!(found, want, "step {step}");
        assert!((logit - logits[want as usize]).abs() < 0.02, "{logit}");
        assert_eq!(shim.launches.get(), before.0);
        assert_eq!(shim.replays.get(), before.1 + 1);
        let layers = device.model().program().layers;
        // Per layer two norms, q k v, rope, two of attention, its product, gate and up, down.
        let per_layer = (shim.replayed.get() - before.2 - 4) / layers;
        assert!((9..=12).contains(&per_layer), "{per_layer}");
        token = want;
        text.push(want);
    }
    assert_eq!(text.len(), 12);
    Ok(())
}

/// Experts are refused by name.
#[test]
fn mixtures_of_experts_are_refused() {
    let file = Model::new(Shape::tiny_experts(), Stored::new(Format::Q8_0), 3).to_vec().unwrap();
    let error = CudaModel::from_gguf(driver(0), &Gguf::parse(&file).unwrap()).unwrap_err();
    assert!(error.to_string().contains("mixtures of experts"), "{error}");
}

/// `ptx.py` writes a hash of the sources into the committed kernels.
#[test]
fn committed_kernels_are_those_of_the_sources() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let sources = files.iter().filter(|path| path.extension().is_some_and(|e| e == "cu" || e == "cuh"));
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in sources.flat_map(|path| std::fs::read(path).unwrap()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    let ptx = std::fs::read_to_string(format!("{folder}/shohin.ptx")).unwrap();
    assert_eq!(ptx.lines().next(), Some(&*format!("// sources: {hash:016x}")), "run cuda-host/ptx.py");
}
