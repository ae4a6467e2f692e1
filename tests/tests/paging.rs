//! Weights that are not in memory: the same bits through any window, each weight read once per batch, and reads that fail.
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "devices keep weights in an Arc, and a card is used on one thread"
)]

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use shohin_core::cpu::CpuWeights;
use shohin_core::gguf::{HeaderBytes, Id42, ReadOptions};
use shohin_core::paging::{ModelReader, PagedFile, ReadError};
use shohin_core::{
    Activations, BonsaiModel, Cpu, CpuOptions, Error, Format, Gguf, KvFormat, ModelConfig, Name, Pool,
    Result, Serial, Session, SessionOptions,
};
use shohin_tests::meter::measure;
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::rounds::is_thorough;

const TERNARY: &[u8] = include_bytes!("../../models/sprout.gguf");
const ONE_BIT: &[u8] = include_bytes!("../../models/sprout-q1.gguf");
const EXPERTS: &[u8] = include_bytes!("../fixtures/qwen3moe.gguf");
const OUTPUT: &[u8] = include_bytes!("../fixtures/qwen3-untied.gguf");
const LONG: &[u8] = include_bytes!("../fixtures/qwen3-longrope.gguf");
const DEPTHS: &[u8] = include_bytes!("../fixtures/qwen3-depths.gguf");

/// A card that counts, and that can fail.
struct Card<'f> {
    file: &'f [u8],
    bytes: Cell<u64>,
    longest: Cell<usize>,
    /// Reads until one fails.
    left: Cell<usize>,
    /// Whether the next piece arrives before, and not after, the work on the last.
    early: bool,
}

impl<'f> Card<'f> {
    fn new(file: &'f [u8]) -> Card<'f> {
        let (bytes, longest, left) = (Cell::new(0), Cell::new(0), Cell::new(usize::MAX));
        Card { file, bytes, longest, left, early: false }
    }
}

const FAILS: ReadError = ReadError { problem: "wrong checksum", code: -5 };

impl ModelReader for Card<'_> {
    fn len(&self) -> u64 {
        self.file.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        self.bytes.set(self.bytes.get() + buffer.len() as u64);
        self.longest.set(self.longest.get().max(buffer.len()));
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 {
            buffer.fill(0xff);
            return Err(FAILS);
        }
        buffer.copy_from_slice(&self.file[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn read_ahead(&self, offset: u64, buffer: &mut [u8], work: &mut dyn FnMut()) -> Result<(), ReadError> {
        if !self.early {
            work();
        }
        let read = self.read(offset, buffer);
        if self.early && read.is_ok() {
            work();
        }
        read
    }
}

fn model<R: ModelReader>(reader: R, window: usize) -> Result<BonsaiModel<PagedFile<R>>> {
    let bytes = HeaderBytes::read(&reader, &ReadOptions::default())?;
    let header = bytes.header()?;
    let config = ModelConfig::from_header(&header)?;
    BonsaiModel::from_header(&header, PagedFile::new(reader, window), config)
}

/// Threads that claim jobs in turn.
struct Threads;

impl Pool for Threads {
    fn workers(&self) -> usize {
        3
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        if cfg!(target_family = "wasm") {
            return (0..jobs).rev().for_each(job);
        }
        std::thread::scope(|scope| {
            for worker in 0..self.workers() {
                scope.spawn(move || (worker..jobs).step_by(3).for_each(job));
            }
        });
    }
}

const PROMPT: usize = 11;
const REPLY: usize = 4;

fn options(activations: Activations) -> CpuOptions {
    CpuOptions { context: 48, batch: 4, logit_rows: 2, activations, ..CpuOptions::default() }
}

/// Bits of the logits of a prompt of three batches, of a few tokens, and of several at once.
fn bits<B: shohin_core::model::ModelBytes>(
    device: &mut Cpu<'_, B>,
    after: &mut dyn FnMut(&Cpu<'_, B>),
) -> Result<Vec<u32>> {
    let session = SessionOptions { kv: KvFormat::Q8, ..SessionOptions::default() };
    let vocab = device.model().config().vocab_size as u32;
    let mut session = Session::new(device, &session)?;
    let mut bits = Vec::new();
    let tokens: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 37 + 11) % vocab).collect();
    bits.extend(session.forward_prefill(device, &tokens)?.iter().map(|x| x.to_bits()));
    after(device);
    for token in 0..REPLY as u32 {
        bits.extend(session.forward(device, token * 5 % vocab)?.iter().map(|x| x.to_bits()));
        after(device);
    }
    let mut best = [0; 3];
    session.forward_prefill_verify(device, &[1, 2, 3], &mut best)?;
    bits.extend(best);
    session.forward_logits(device, &[4, 5, 6], &mut |_, row| bits.extend(row.iter().map(|x| x.to_bits())))?;
    Ok(bits)
}

/// The smallest window that a model accepts.
fn smallest(file: &[u8]) -> usize {
    let fits = |window: &usize| {
        let weights = CpuWeights::new(model(Card::new(file), *window).unwrap()).unwrap();
        weights.memory_plan(&options(Activations::Int8), &SessionOptions::default()).is_ok()
    };
    (0..).step_by(128).find(fits).unwrap()
}

#[test]
fn every_window_gives_the_bits_of_the_model_in_memory() {
    for (name, file) in [
        ("ternary", TERNARY),
        ("1-bit", ONE_BIT),
        ("experts", EXPERTS),
        ("output", OUTPUT),
        ("rope", LONG),
        ("depths", DEPTHS),
    ] {
        for activations in [Activations::Int8, Activations::F32] {
            let options = options(activations);
            let gguf = Gguf::parse(file).unwrap();
            let in_memory = || BonsaiModel::from_gguf(&gguf).unwrap();
            let mut device = Cpu::new(in_memory(), &options, Serial).unwrap();
            let want = bits(&mut device, &mut |_| ()).unwrap();
            let session = SessionOptions::default();
            let plan = device.memory_plan(&session).unwrap();
            let per_token = device.weights().bytes_per_token() as u64;
            let least = smallest(file);
            // The smallest, one that several rows fit into, and one that everything does.
            let sample = [least, 3 * least, 4 << 20];
            let sweep = [least, least + 100, 3 * least, 16 << 10, 100_000, 1 << 20, 4 << 20];
            let windows = if is_thorough() { &sweep[..] } else { &sample };
            for &window in windows {
                if window < least {
                    continue;
                }
                let card = Card { early: window % 3 == 0, ..Card::new(file) };
                let weights = Arc::new(CpuWeights::new(model(&card, window).unwrap()).unwrap());
                let mut device = Cpu::with_weights(weights.clone(), &options, Serial).unwrap();
                let paged = device.memory_plan(&session).unwrap();
                assert_eq!(paged.device, plan.device + window.next_multiple_of(64));
                assert_eq!((paged.session, paged.logits), (plan.session, plan.logits));
                assert_eq!(device.weights().bytes_per_token() as u64, per_token);
                card.longest.set(0);
                let mut read = Vec::new();
                let found = bits(&mut device, &mut |_| read.push(card.bytes.replace(0))).unwrap();
                assert!(found == want, "{name} through {window} bytes");
                assert!(card.longest.get() <= window / 2, "{name}: {}", card.longest.get());
                // A token that is generated reads each of its weights once, and no block that it passes by.
                for read in &read[1..] {
                    let right = if name == "depths" { *read <= per_token } else { *read == per_token };
                    assert!(right, "{name} through {window} bytes: {read} of {per_token}");
                }
                let mut threaded = Cpu::with_weights(weights, &options, Threads).unwrap();
                assert!(bits(&mut threaded, &mut |_| ()).unwrap() == want, "{name} with threads");
            }
        }
    }
}

#[test]
fn a_prompt_reads_weights_once_per_batch() {
    for batch in [1, 4, 11] {
        let card = Card::new(TERNARY);
        let options = CpuOptions { batch, ..options(Activations::Int8) };
        let mut device = Cpu::new(model(&card, 64 << 10).unwrap(), &options, Serial).unwrap();
        let per_token = device.weights().bytes_per_token();
        let program = device.model().program().clone();
        let output = device.model().weights().len(program.output);
        let row = output / program.vocab();
        card.bytes.set(0);
        let mut session = Session::new(&mut device, &SessionOptions::default()).unwrap();
        let tokens: Vec<u32> = (0..PROMPT as u32).collect();
        session.forward_prefill(&mut device, &tokens).unwrap();
        // The output is a product of the last batch only, and the table of embeddings at the same time.
        let body = PROMPT.div_ceil(batch) * (per_token - row - output) + PROMPT * row + output;
        assert_eq!(card.bytes.get(), body as u64);
    }
}

#[test]
fn experts_that_no_token_uses_are_not_read() {
    let file = Model::new(Shape::tiny_experts(), Stored::new(Format::Q1_0), 2).to_vec().unwrap();
    let card = Card::new(&file);
    let mut device = Cpu::new(model(&card, 64 << 10).unwrap(), &options(Activations::Int8), Serial).unwrap();
    let mut session = Session::new(&mut device, &SessionOptions::default()).unwrap();
    card.bytes.set(0);
    session.forward(&mut device, 1).unwrap();
    assert_eq!(card.bytes.get(), device.weights().bytes_per_token() as u64);
}

#[test]
fn a_failed_read_is_an_error_and_tokens_can_be_repeated() {
    let shape = Shape { depth_routers: true, ..Shape::tiny() };
    let depths = Model::new(shape, Stored::new(Format::Q8_0), 5).to_vec().unwrap();
    // Some of the tokens pass by every second block of the second model.
    for (file, tokens) in [(TERNARY, &[6][..]), (&depths, &[6, 7, 8, 9])] {
        let card = Card::new(file);
        let mut device =
            Cpu::new(model(&card, 16 << 10).unwrap(), &options(Activations::Int8), Serial).unwrap();
        let in_session = SessionOptions::default();
        let mut session = Session::new(&mut device, &in_session).unwrap();
        session.forward_prefill(&mut device, &[1, 2, 3, 4, 5]).unwrap();
        card.left.set(usize::MAX);
        let want = session.forward_prefill(&mut device, tokens).unwrap().to_vec();
        let reads = usize::MAX - card.left.get();
        assert!(reads > 20, "{reads}");
        for failing in 0..reads {
            session.truncate(5).unwrap();
            card.left.set(failing);
            let error = session.forward_prefill(&mut device, tokens).unwrap_err();
            let Error::Read { what, len, problem: "wrong checksum", code: -5, .. } = error else {
                panic!("{error}")
            };
            assert!(what.to_string().ends_with(".weight") && len > 0, "{error}");
            assert_eq!((error.code(), session.position()), ("device", 5));
            card.left.set(usize::MAX);
            assert_eq!(
                session.forward_prefill(&mut device, tokens).unwrap(),
                want,
                "after read {failing} failed"
            );
        }
    }
    let shown =
        |code| Error::Read { what: Name::new("x"), at: 0, len: 1, problem: "no card", code }.to_string();
    assert!(shown(-5).ends_with("no card (code -5)") && shown(7).ends_with("no card (code 7)"));
    let message = Error::Read { what: Name::new("x.weight"), at: 64, len: 8, problem: "timeout", code: 0 };
    assert_eq!(message.to_string(), "x.weight: 8 bytes at byte 64 of the file could not be read: timeout");
}

#[test]
fn a_failed_read_while_loading_is_an_error() {
    let card = Card::new(ONE_BIT);
    let load = || CpuWeights::new(model(&card, 16 << 10)?).map(drop);
    card.left.set(usize::MAX);
    load().unwrap();
    for failing in 0..usize::MAX - card.left.get() {
        card.left.set(failing);
        assert!(matches!(load(), Err(Error::Read { problem: "wrong checksum", .. })));
    }
}

#[test]
fn headers_are_those_of_files_in_memory() {
    let mut files: Vec<Vec<u8>> =
        [TERNARY, ONE_BIT, EXPERTS, OUTPUT, LONG, DEPTHS].map(<[u8]>::to_vec).into();
    files.extend([Format::Q2_0, Format::Pq2_0, Format::Tq2_0G128].map(Model::tiny));
    for file in &files {
        let read = HeaderBytes::read(&Card::new(file), &ReadOptions::default()).unwrap();
        let whole = Gguf::parse(file).unwrap();
        assert_eq!(&read.header().unwrap(), whole.header());
        assert!(read.len() as u64 <= whole.header().data_start());
        let options = ReadOptions { id42: Id42::Group128, ..ReadOptions::default() };
        let read =
            HeaderBytes::read(&Card::new(file), &options).map(|read| read.header().unwrap().tensors().len());
        let whole = Gguf::parse_with(file, &options).map(|whole| whole.tensors().len());
        assert_eq!(read, whole);
    }
    for len in (0..TERNARY.len()).step_by(5003) {
        let file = &TERNARY[..len];
        let read = HeaderBytes::read(&Card::new(file), &ReadOptions::default());
        assert_eq!(read.unwrap_err(), Gguf::parse(file).unwrap_err());
    }
}

#[test]
fn tokens_take_no_memory() {
    let card = Card::new(TERNARY);
    let weights = Arc::new(CpuWeights::new(model(&card, 16 << 10).unwrap()).unwrap());
    let options = options(Activations::Int8);
    let in_session = SessionOptions::default();
    let plan = weights.memory_plan(&options, &in_session).unwrap();
    let memory = vec![0xff; plan.device];
    let (device, made) = measure(|| Cpu::new_in(weights, &options, Serial, memory));
    assert!(made.peak < 100);
    let mut device = device.unwrap();
    let mut session = Session::new(&mut device, &in_session).unwrap();
    let ((), fed) = measure(|| {
        session.forward_prefill(&mut device, &[1, 2, 3, 4, 5]).unwrap();
        session.forward(&mut device, 6).unwrap();
    });
    assert_eq!(fed.calls, 0);
}

#[test]
fn a_window_that_is_too_small_is_an_error() {
    let least = smallest(TERNARY);
    let load =
        |window| Cpu::new(model(Card::new(TERNARY), window)?, &options(Activations::Int8), Serial).map(drop);
    assert_eq!(load(least), Ok(()));
    for window in [0, 1, 127, least - 1] {
        let error = load(window).unwrap_err();
        assert_eq!(error.code(), "option");
        assert!(
            error.to_string().starts_with(&format!("window of the weights is {window}, expected")),
            "{error}"
        );
    }
}

#[test]
fn other_devices_refuse_weights_that_are_not_in_memory() {
    let model = model(Card::new(TERNARY), 64 << 10).unwrap();
    let id = model.program().output;
    let error = model.weights().matrix(id).unwrap_err();
    assert!(error.to_string().contains("only the CPU device reads them through a window"), "{error}");
}

/// A reader that calls the work never, or twice.
struct Odd<'f>(&'f [u8], RefCell<usize>);

impl ModelReader for Odd<'_> {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        buffer.copy_from_slice(&self.0[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn read_ahead(&self, offset: u64, buffer: &mut [u8], work: &mut dyn FnMut()) -> Result<(), ReadError> {
        let mut calls = self.1.borrow_mut();
        *calls = (*calls + 2) % 4;
        (0..*calls).for_each(|_| work());
        self.read(offset, buffer)
    }
}

#[test]
fn a_reader_that_calls_the_work_never_or_twice_changes_nothing() {
    let options = options(Activations::Int8);
    let gguf = Gguf::parse(TERNARY).unwrap();
    let mut device = Cpu::new(BonsaiModel::from_gguf(&gguf).unwrap(), &options, Serial).unwrap();
    let want = bits(&mut device, &mut |_| ()).unwrap();
    let mut odd = Cpu::new(model(Odd(TERNARY, RefCell::new(0)), 20_000).unwrap(), &options, Serial).unwrap();
    assert!(bits(&mut odd, &mut |_| ()).unwrap() == want);
}
