//! Many rows at once: of one sequence, to verify guessed tokens, and of several sequences together.

use shohin_core::cpu::op::argmax;
use shohin_core::cpu::{Cpu, Isa};
use shohin_core::device::{Output, Readout, Wants, ready};
use shohin_core::model::ModelBytes;
use shohin_core::session::{Feed, MAX_SEQUENCES, run_batch};
use shohin_core::{Activations, CpuOptions, Device, Format, KvFormat, Result, Session, SessionOptions};
use shohin_tests::cpu::{device, repacked};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::rounds::is_thorough;

/// More rows than the device computes together, and a vocabulary size that is not a round number.
fn file(format: Format) -> Vec<u8> {
    let shape = Shape { layers: 2, vocab: 293, ..Shape::tiny() };
    Model::new(shape, Stored::new(format), 11).to_vec().unwrap()
}

/// In WebAssembly one format: how rows are divided does not depend on it, and its kernels have tests of their own.
fn some_of(formats: [Format; 3]) -> impl Iterator<Item = Format> {
    formats.into_iter().take(if cfg!(target_family = "wasm") { 1 } else { 3 })
}

fn tokens(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 31 + i * seed + seed) % 293).collect()
}

/// An owned [`Output`].
#[derive(Clone, Debug, PartialEq)]
enum Read {
    Logits(Vec<u32>),
    Top(Vec<(u32, u32)>),
    Hidden(Vec<u32>),
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn read(output: Output<'_>) -> Read {
    match output {
        Output::Logits(logits) => Read::Logits(bits(logits)),
        Output::Top(top) => Read::Top(top.iter().map(|&(token, logit)| (token, logit.to_bits())).collect()),
        Output::Hidden(hidden) => Read::Hidden(bits(hidden)),
    }
}

/// The outputs of a batch: sequence, row and output, in order.
fn batch<'m, B: ModelBytes>(
    device: &mut Cpu<'m, B>,
    feeds: &mut [Feed<'_, Cpu<'m, B>>],
) -> Result<Vec<(usize, usize, Read)>> {
    let mut all = Vec::new();
    let mut sink = |sequence: usize, row: usize, output: Output<'_>| all.push((sequence, row, read(output)));
    ready(run_batch(device, feeds, &mut sink)).expect("the CPU answers at once")?;
    Ok(all)
}

/// For any number of logit rows: the vocabulary is searched in parts.
#[test]
fn verifying_says_what_the_logits_say() {
    let guess = tokens(150, 7);
    for format in some_of([Format::Q1_0, Format::Pq2_0, Format::Q8_0]) {
        let file = file(format);
        for (activations, isa) in [
            (Activations::Int8, Isa::detect()),
            (Activations::F32, Isa::detect()),
            (Activations::Int8, Isa::SCALAR),
        ] {
            let options = CpuOptions { activations, isa, ..CpuOptions::default() };
            let mut one = device(&file, &CpuOptions { batch: 1, ..options }).unwrap();
            let mut session = Session::new(&mut one, &SessionOptions::default()).unwrap();
            let mut want = Vec::new();
            session
                .forward_logits(&mut one, &guess, &mut |_, logits| {
                    let best = argmax(logits).unwrap();
                    want.push((best, logits[best as usize].to_bits()));
                })
                .unwrap();
            let best: Vec<u32> = want.iter().map(|best| best.0).collect();
            assert!(best.iter().any(|token| *token != best[0]));
            // How rows are divided does not depend on the kernels.
            let sizes = [(7, 2), (150, 150), (1, 1), (150, 3), (2, 1), (64, 1), (150, 1)];
            let own = (activations, isa) == (Activations::Int8, Isa::detect());
            let own_sizes = if is_thorough() { sizes.len() } else { 3 };
            for (batch_rows, logit_rows) in sizes.into_iter().take(if own { own_sizes } else { 1 }) {
                let options = CpuOptions { batch: batch_rows, logit_rows, ..options };
                let mut device = repacked(&file, &options).unwrap();
                let mut session = Session::new(&mut device, &SessionOptions::default()).unwrap();
                // After some tokens have been fed in other ways.
                session.forward_prefill(&mut device, &guess[..3]).unwrap();
                session.forward(&mut device, guess[3]).unwrap();
                let mut got = vec![u32::MAX; guess.len() - 4];
                session.forward_prefill_verify(&mut device, &guess[4..], &mut got).unwrap();
                assert_eq!(got, best[4..], "{format:?} {options:?}");
                assert_eq!(session.position(), guess.len());

                session.truncate(50).unwrap();
                let wants = Wants::Each(Readout::Best);
                let got =
                    batch(&mut device, &mut [Feed { session: &mut session, tokens: &guess[50..], wants }]);
                let want = want[50..].iter().enumerate();
                let want: Vec<_> = want.map(|(row, best)| (0, row, Read::Top(vec![*best]))).collect();
                assert_eq!(got.unwrap(), want, "{format:?} {options:?}");
            }
        }
    }
}

/// The tokens, cache and wants of one sequence, step by step.
struct Sequence {
    kv: KvFormat,
    /// Tokens fed before, alone.
    before: usize,
    tokens: Vec<u32>,
    /// Tokens per batch, and the outputs to read.
    steps: [(usize, Wants); 3],
}

fn sequences() -> Vec<Sequence> {
    use Readout::{Best, Hidden, Logits, Top};
    use Wants::{Each, Last, Nothing};
    let sequence = |kv, before, seed, steps| Sequence { kv, before, tokens: tokens(200, seed), steps };
    vec![
        // A prompt beside replies and guesses.
        sequence(KvFormat::F16, 0, 1, [(45, Last(Logits)), (1, Last(Logits)), (1, Last(Best))]),
        sequence(KvFormat::F32, 17, 2, [(1, Last(Logits)), (6, Each(Best)), (3, Each(Logits))]),
        sequence(KvFormat::Q8, 5, 3, [(1, Last(Best)), (20, Nothing), (4, Each(Hidden))]),
        sequence(KvFormat::F16, 31, 4, [(9, Each(Hidden)), (2, Each(Best)), (1, Nothing)]),
        sequence(KvFormat::Q8, 0, 5, [(3, Nothing), (5, Last(Hidden)), (2, Each(Top(3)))]),
        sequence(KvFormat::F32, 64, 6, [(70, Each(Logits)), (1, Last(Top(1))), (20, Last(Best))]),
        sequence(KvFormat::F16, 2, 7, [(1, Each(Logits)), (1, Last(Logits)), (1, Last(Logits))]),
    ]
}

#[test]
fn sequences_together_get_the_bits_they_get_alone() {
    for format in some_of([Format::Q1_0, Format::Tq2_0, Format::F16]) {
        let file = file(format);
        for (activations, isa) in [
            (Activations::Int8, Isa::detect()),
            (Activations::F32, Isa::detect()),
            (Activations::Int8, Isa::SCALAR),
        ] {
            let options = CpuOptions { activations, isa, ..CpuOptions::default() };
            let alone = alone(&mut device(&file, &options).unwrap());
            let sizes = [(200, 40), (5, 2), (1, 1), (64, 1), (200, 200)];
            let own = (activations, isa) == (Activations::Int8, Isa::detect());
            let own_sizes = if is_thorough() { sizes.len() } else { 3 };
            for (batch_rows, logit_rows) in sizes.into_iter().take(if own { own_sizes } else { 1 }) {
                let options = CpuOptions { batch: batch_rows, logit_rows, ..options };
                let mut device = repacked(&file, &options).unwrap();
                assert!(together(&mut device) == alone, "{format:?} {options:?}");
            }
        }
    }
}

/// For each sequence: its outputs in each step, and its final cache.
type Outcome = Vec<Ended>;

/// The outputs of a sequence in each step, its position, and its cache.
type Ended = ([Vec<(usize, Read)>; 3], usize, Vec<u8>);

fn open<'m, B: ModelBytes>(device: &mut Cpu<'m, B>, s: &Sequence) -> Session<Cpu<'m, B>> {
    let mut session =
        Session::new(device, &SessionOptions { context: 160, kv: s.kv, ..SessionOptions::default() })
            .unwrap();
    if s.before > 0 {
        session.forward_prefill(device, &s.tokens[..s.before]).unwrap();
    }
    session
}

fn end<'m, B: ModelBytes>(
    device: &mut Cpu<'m, B>,
    mut session: Session<Cpu<'m, B>>,
    reads: [Vec<(usize, Read)>; 3],
) -> Ended {
    let mut cache = Vec::new();
    ready(session.export(device, &mut cache)).unwrap().unwrap();
    (reads, session.position(), cache)
}

fn alone<B: ModelBytes>(device: &mut Cpu<'_, B>) -> Outcome {
    let mut outcome = Vec::new();
    for s in sequences() {
        let mut session = open(device, &s);
        let reads = s.steps.map(|(n, wants)| {
            let at = session.position();
            let mut reads = Vec::new();
            let tokens = &s.tokens[at..at + n];
            let mut sink = |sequence: usize, row: usize, output: Output<'_>| {
                assert_eq!(sequence, 0);
                reads.push((row, read(output)));
            };
            ready(session.run(device, tokens, wants, &mut sink)).unwrap().unwrap();
            let rows = match wants {
                Wants::Nothing => 0,
                Wants::Last(_) => 1,
                Wants::Each(_) => n,
            };
            assert_eq!(reads.len(), rows);
            reads
        });
        outcome.push(end(device, session, reads));
    }
    outcome
}

fn together<B: ModelBytes>(device: &mut Cpu<'_, B>) -> Outcome {
    let all = sequences();
    let mut sessions: Vec<_> = all.iter().map(|s| open(device, s)).collect();
    let mut reads: Vec<[Vec<(usize, Read)>; 3]> = all.iter().map(|_| Default::default()).collect();
    for step in 0..3 {
        let mut feeds: Vec<_> = all
            .iter()
            .zip(&mut sessions)
            .map(|(s, session)| {
                let (n, wants) = s.steps[step];
                let at = session.position();
                Feed { session, tokens: &s.tokens[at..at + n], wants }
            })
            .collect();
        let all = batch(device, &mut feeds).unwrap();
        assert!(all.is_sorted_by_key(|(sequence, row, _)| (*sequence, *row)));
        // The last output is still available.
        if let Some((.., Read::Logits(logits))) = all.last() {
            assert_eq!(bits(device.logits()), *logits);
        }
        for (sequence, row, read) in all {
            reads[sequence][step].push((row, read));
        }
    }
    sessions.into_iter().zip(reads).map(|(session, reads)| end(device, session, reads)).collect()
}

#[test]
fn a_batch_that_is_refused_moves_no_session() {
    let file = file(Format::Q1_0);
    let device = &mut device(&file, &CpuOptions::default()).unwrap();
    let options = SessionOptions { context: 8, ..SessionOptions::default() };
    let mut sessions: Vec<_> = (0..=MAX_SEQUENCES).map(|_| Session::new(device, &options).unwrap()).collect();
    sessions[0].forward_prefill(device, &[1, 2, 3]).unwrap();
    let want = {
        let logits = sessions[0].forward(device, 4).unwrap().to_vec();
        sessions[0].truncate(3).unwrap();
        logits
    };
    let wants = Wants::Last(Readout::Logits);
    for (second, code) in
        [(&[293][..], "token"), (&[1, 2, u32::MAX], "token"), (&[], "length"), (&[0; 9], "context_full")]
    {
        let (first, rest) = sessions.split_at_mut(1);
        let mut feeds = [
            Feed { session: &mut first[0], tokens: &[9, 9], wants },
            Feed { session: &mut rest[0], tokens: second, wants },
        ];
        assert_eq!(batch(device, &mut feeds).unwrap_err().code(), code);
        assert_eq!((first[0].position(), rest[0].position()), (3, 0));
    }
    let mut feeds: Vec<_> =
        sessions.iter_mut().map(|session| Feed { session, tokens: &[1], wants }).collect();
    assert_eq!(batch(device, &mut feeds).unwrap_err().code(), "limit");
    // The maximum is accepted, and an empty batch is valid.
    assert_eq!(batch(device, &mut feeds[1..]).unwrap().len(), MAX_SEQUENCES);
    assert_eq!(batch(device, &mut []).unwrap(), []);
    assert!(sessions[1..].iter().all(|session| session.position() == 1));
    assert_eq!((sessions[0].position(), sessions[0].forward(device, 4).unwrap()), (3, &want[..]));
}
