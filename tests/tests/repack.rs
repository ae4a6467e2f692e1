//! Models whose weights are repacked in memory.

use shohin_core::cpu::repack::{Layout, PackedMatrix, repack, repacked_format, repacks};
use shohin_core::cpu::{Cpu, Isa};
use shohin_core::gguf::Gguf;
use shohin_core::model::ModelBytes;
use shohin_core::tokenizer::Special;
use shohin_core::{
    Activations, BonsaiModel, CpuOptions, Error, Format, KvFormat, Matrix, Serial, Session, SessionOptions,
    Tokenizer,
};
use shohin_tests::cpu::{all_logits, device, in_format, repacked};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::rounds::is_thorough;
use std::cell::Cell;
use std::sync::Arc;

#[test]
fn every_weight_of_a_file_is_found_again() {
    for format in Format::ALL {
        let file = Model::tiny(format);
        let gguf = Gguf::parse(&file).unwrap();
        for layout in [Layout::Panels32, Layout::Panels8] {
            let mut moved = 0;
            for t in gguf.tensors() {
                let a = gguf.matrix(t.name()).unwrap();
                let mut bytes = a.data().to_vec();
                repack(a.format(), layout, a.rows(), a.cols(), &mut bytes, &Serial).unwrap();
                let Some(format) = repacked_format(a.format()) else {
                    assert_eq!(bytes, a.data());
                    continue;
                };
                moved += 1;
                let b = Matrix::new(format, a.rows(), a.cols(), &bytes).unwrap();
                let b = PackedMatrix::new(b, layout).unwrap();
                let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; a.cols()]);
                for row in 0..a.rows() {
                    a.unpack_row(row, &mut x).unwrap();
                    b.unpack_row(row, &mut y).unwrap();
                    assert_eq!(x, y);
                }
            }
            assert_eq!(moved > 0, repacked_format(format).is_some(), "{format:?}");
        }
    }
}

/// Every row of the embedding is looked up, and every matrix multiplied: for one token and for a batch, by
/// the kernels that the weights were repacked for and by all others, in integers and in floats.
#[test]
fn a_repacked_model_has_the_logits_of_its_file() {
    repacked_models_have_the_logits_of_their_files(&Shape::tiny(), |_| true);
}

/// Each expert reads its own rows of the stacked matrices. Those that stay as they are in the file are as any others.
#[test]
fn so_have_repacked_experts() {
    let is_tested = |format| is_thorough() || format == Format::F16 || repacked_format(format).is_some();
    repacked_models_have_the_logits_of_their_files(&Shape::tiny_experts(), is_tested);
}

fn repacked_models_have_the_logits_of_their_files(shape: &Shape, is_tested: impl Fn(Format) -> bool) {
    let shape = Shape { layers: 1, vocab: 290, context: 300, ..shape.clone() };
    let tokens: Vec<u32> = (0..290).rev().collect();
    let session = SessionOptions::default();
    for format in Format::ALL.into_iter().filter(|format| is_tested(*format)) {
        let file = Model::new(shape.clone(), Stored::new(format), 5).to_vec().unwrap();
        let want = |activations, isa, tokens: &[u32]| {
            let options = CpuOptions { activations, isa, batch: 100, ..CpuOptions::default() };
            let mut device = device(&file, &options).unwrap();
            all_logits(&mut device, tokens, &session).unwrap()
        };
        let int8 = want(Activations::Int8, Isa::detect(), &tokens);
        let few = [
            want(Activations::Int8, Isa::SCALAR, &tokens[..20]),
            want(Activations::F32, Isa::SCALAR, &tokens[..20]),
        ];
        assert_eq!(int8[..few[0].len()], few[0]);
        let mut tried = Vec::new();
        for isa in Isa::available() {
            let options = CpuOptions { isa, batch: 100, ..CpuOptions::default() };
            let mut ours = repacked(&file, &options).unwrap();
            // The scalar kernels are slow, and repack nothing.
            let n = if repacks(isa) { tokens.len() } else { 20 };
            assert!(
                all_logits(&mut ours, &tokens[..n], &session).unwrap() == int8[..n * 290],
                "{format:?} {isa:?}"
            );
            // Repacked in place: the model's bytes are no longer those of the file.
            let moved = ours.model().weights().parts()[0] != file;
            assert_eq!(moved, repacks(isa) && repacked_format(format).is_some(), "{format:?} {isa:?}");

            let weights = Arc::clone(ours.weights());
            // Several instruction sets have one layout.
            let bytes = weights.model().weights().parts()[0].clone();
            if tried.contains(&bytes) {
                continue;
            }
            tried.push(bytes);
            for other in Isa::available() {
                for (activations, want) in [Activations::Int8, Activations::F32].into_iter().zip(&few) {
                    let options = CpuOptions { isa: other, activations, ..CpuOptions::default() };
                    let mut device = Cpu::with_weights(weights.clone(), &options, Serial).unwrap();
                    let got = all_logits(&mut device, &tokens[..20], &session).unwrap();
                    assert!(got == *want, "{format:?} for {isa:?} by {other:?} {activations:?}");
                }
            }
        }
    }
}

/// Read-only bytes stay row-major, and so do all with float activations.
#[test]
fn read_only_bytes_stay_row_by_row() {
    let file = Model::tiny(Format::Q1_0);
    let gguf = Gguf::parse(&file).unwrap();
    let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
    let session = SessionOptions::default();
    for isa in Isa::available() {
        let options = CpuOptions { isa, ..CpuOptions::default() };
        let want = all_logits(&mut device(&file, &options).unwrap(), &tokens, &session).unwrap();
        // Borrowed from the file, and shared.
        let mut read = Cpu::repacked(BonsaiModel::from_gguf(&gguf).unwrap(), &options, Serial).unwrap();
        assert_eq!(all_logits(&mut read, &tokens, &session).unwrap(), want, "{isa:?}");
        let bytes: Arc<[u8]> = file.clone().into();
        let mut shared =
            Cpu::repacked(BonsaiModel::load(Arc::clone(&bytes)).unwrap(), &options, Serial).unwrap();
        assert_eq!(all_logits(&mut shared, &tokens, &session).unwrap(), want, "{isa:?}");
        assert_eq!(bytes[..], file);
        let plan = device(&file, &options).unwrap().memory_plan(&session);
        assert_eq!((read.memory_plan(&session), shared.memory_plan(&session)), (plan, plan));

        let floats = CpuOptions { activations: Activations::F32, ..options };
        assert_eq!(repacked(&file, &floats).unwrap().model().weights().parts()[0], file);
    }
}

#[test]
fn a_file_that_is_refused_is_an_error() {
    let file = Model::tiny(Format::Q1_0);
    for len in (0..file.len()).step_by(997) {
        let error = BonsaiModel::load(file[..len].to_vec()).unwrap_err();
        assert_eq!(error, Gguf::parse(&file[..len]).unwrap_err());
    }
}

/// Returns the whole file a number of times, and then only the first half.
#[derive(Debug)]
struct Fickle(Vec<u8>, Cell<usize>);

impl ModelBytes for Fickle {
    fn bytes(&self) -> &[u8] {
        match self.1.get() {
            0 => &self.0[..self.0.len() / 2],
            left => {
                self.1.set(left - 1);
                &self.0
            }
        }
    }
}

#[test]
fn bytes_that_change_are_an_error_or_change_nothing() {
    let file = Model::tiny(Format::Q1_0);
    let run = |times| {
        let model = BonsaiModel::load(Fickle(file.clone(), Cell::new(times)))?;
        let mut device = Cpu::new(model, &CpuOptions::default(), Serial)?;
        let logits = all_logits(&mut device, &[1, 2, 3], &SessionOptions::default())?;
        Ok::<_, Error>((logits, device.model().weights().parts()[0].1.get()))
    };
    let (want, left) = run(10_000).unwrap();
    let reads = 10_000 - left;
    for times in 0..reads {
        match run(times).map_err(|error| error.code()) {
            // The last reads may be of the first half.
            Ok((logits, _)) => assert_eq!(logits, want),
            Err(code) => assert!(["truncated", "tensor_range", "length"].contains(&code), "{times}: {code}"),
        }
    }
    assert_eq!(run(reads).unwrap(), (want, 0));
}

const TERNARY: &[u8] = include_bytes!("../../models/sprout.gguf");
const ONE_BIT: &[u8] = include_bytes!("../../models/sprout-q1.gguf");

/// Whether this is an emulator, which takes seconds for what a processor does in milliseconds.
fn is_brief() -> bool {
    std::env::var_os("SHOHIN_BRIEF").is_some()
}

/// The greedy continuation of a prompt that does not end with a batch, token by token: tokens, and the last logits.
fn reply(file: &[u8], prompt: &[u32], kv: KvFormat, isa: Isa, in_file: bool) -> (Vec<u32>, Vec<u32>) {
    let (batch, len) = if is_brief() { (16, 4) } else { (32, 12) };
    let options = CpuOptions { isa, batch, context: 192, ..CpuOptions::default() };
    assert!(prompt.len() > options.batch + 2 && !prompt.len().is_multiple_of(options.batch));
    let model = BonsaiModel::load(file.to_vec()).unwrap();
    let new = if in_file { Cpu::new } else { Cpu::repacked };
    let mut device = new(model, &options, Serial).unwrap();
    let mut session = Session::new(&mut device, &in_format(kv)).unwrap();
    let mut logits = session.forward_prefill(&mut device, prompt).unwrap().to_vec();
    let mut tokens = Vec::new();
    for _ in 0..len {
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        tokens.push(best as u32);
        logits = session.forward(&mut device, best as u32).unwrap().to_vec();
    }
    (tokens, logits.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn models_go_on_alike_with_every_instruction_set() {
    const STORY: &str = "Once upon a time there was a little girl named Lily. She had a red ball that she loved to \
        play with. One day the ball rolled down the hill and into the river, and Lily began to cry.";
    for file in [TERNARY, ONE_BIT] {
        let gguf = Gguf::parse(file).unwrap();
        let mut prompt = Vec::new();
        Tokenizer::from_gguf(&gguf).unwrap().encode(STORY, Special::Parse, &mut prompt);
        if is_brief() {
            prompt.truncate(21);
        }
        let expected = reply(file, &prompt, KvFormat::F16, Isa::SCALAR, true);
        for isa in Isa::available() {
            assert_eq!(reply(file, &prompt, KvFormat::F16, isa, false), expected, "{isa:?}");
        }
    }
}

/// With more positions than a tile of attention has.
#[test]
fn every_cache_is_read_alike_with_every_instruction_set() {
    // Attention is most of the work.
    let shape = Shape { hidden: 128, ffn: 128, layers: 1, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Pq2_0), 6).to_vec().unwrap();
    let prompt: Vec<u32> = (0..if is_brief() { 70 } else { 150 }).map(|i| i * 37 % 256).collect();
    for kv in KvFormat::ALL {
        let expected = reply(&file, &prompt, kv, Isa::SCALAR, true);
        for isa in Isa::available().filter(|isa| *isa != Isa::SCALAR) {
            assert_eq!(reply(&file, &prompt, kv, isa, false), expected, "{isa:?} {kv:?}");
        }
    }
}
