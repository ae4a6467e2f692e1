//! Beam search finds what Hugging Face transformers finds (`oracle/beams.py`), with shared memory and in any batch.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use shohin_core::beam::{Beam, BeamOptions, BeamSearch, search};
use shohin_core::device::ready;
use shohin_core::generate::{Detokenizer, Reason};
use shohin_core::{CpuOptions, Device, KvFormat, Result, Session, SessionOptions};
use shohin_tests::cpu::{device, exact};

/// Tokens that end a reply.
struct Ends(Vec<u32>);

impl Detokenizer for Ends {
    fn append_text(&self, _: u32, _: &mut Vec<u8>) {}

    fn is_end(&self, token: u32) -> bool {
        self.0.contains(&token)
    }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn numbers(text: &str) -> Vec<u32> {
    text.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect()
}

fn find(
    model: &str,
    prompt: &[u32],
    ends: &Ends,
    options: &BeamOptions,
    context: usize,
    cpu: &CpuOptions,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<(Vec<Beam>, usize)> {
    let bytes = fixture(&format!("{model}.gguf"));
    let mut device = device(&bytes, cpu).unwrap();
    let session = SessionOptions { context, kv: KvFormat::F32, ..SessionOptions::default() };
    let session = Session::paged(&mut device, &session).unwrap();
    let found = ready(search(&mut device, session, prompt, options, ends, progress)).unwrap()?;
    // All sessions are gone.
    assert_eq!(device.page_bytes(), Some(0));
    Ok((found, device.config().vocab_size))
}

fn go_on(_: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn transformers_finds_the_same_beams() {
    let text = String::from_utf8(fixture("beams.txt")).unwrap();
    let mut lines = text.lines();
    let mut cases = 0;
    while let Some(case) = lines.next() {
        let words: Vec<&str> = case.split(' ').collect();
        let [model, penalty, early, beams, max_tokens, ends, prompt] = words[..] else { panic!("{case}") };
        let options = BeamOptions {
            beams: beams.parse().unwrap(),
            max_tokens: max_tokens.parse().unwrap(),
            length_penalty: penalty.parse().unwrap(),
            early_stopping: early.parse().unwrap(),
        };
        let (ends, prompt) = (Ends(numbers(ends)), numbers(prompt));
        let want: Vec<(f64, Vec<u32>)> = (0..options.beams)
            .map(|_| lines.next().unwrap().split_once(' ').unwrap())
            .map(|(score, tokens)| (score.parse().unwrap(), numbers(tokens)))
            .collect();
        for (batch, logit_rows) in [(64, 8), (3, 1)] {
            let cpu = CpuOptions { batch, logit_rows, ..exact() };
            let (found, _) = find(model, &prompt, &ends, &options, 64, &cpu, &mut go_on).unwrap();
            assert_eq!(found.len(), want.len(), "{case}");
            for (found, (score, tokens)) in found.iter().zip(&want) {
                assert_eq!(&found.tokens, tokens, "{case}");
                let whole = found.reason == Reason::Stop;
                assert_eq!(found.reason, if whole { Reason::Stop } else { Reason::Length });
                assert!(whole || tokens.len() == options.max_tokens, "{case}");
                let of = (tokens.len() + usize::from(whole)) as f64;
                let computed = found.logprob / of.powf(f64::from(options.length_penalty));
                assert!((computed - found.score).abs() < 1e-9 * computed.abs(), "{case}");
                // Of a single beam transformers says none.
                let error = (found.score - score).abs();
                assert!(score.is_nan() || error < 1e-4 * score.abs().max(1.0), "{case}: {error}");
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 8);
}

#[test]
fn beams_end_with_the_context_and_when_they_are_told_to() {
    let (prompt, ends) = ([1, 11, 35], Ends(vec![8]));
    let options = BeamOptions { beams: 3, ..BeamOptions::default() };
    let (found, _) = find("qwen3-untied", &prompt, &ends, &options, 10, &exact(), &mut go_on).unwrap();
    assert_eq!(found.len(), 3);
    // The last token of a full session is not fed.
    assert!(found.iter().all(|beam| (beam.tokens.len(), beam.reason) == (8, Reason::ContextFull)));
    let mut stop = |n: usize| if n == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let (found, _) = find("qwen3-untied", &prompt, &ends, &options, 64, &exact(), &mut stop).unwrap();
    assert!(found.iter().all(|beam| (beam.tokens.len(), beam.reason) == (4, Reason::Cancelled)));
    assert!(found.is_sorted_by(|a, b| a.score >= b.score));
    let mut stop = |_| ControlFlow::Break(());
    let (found, vocab) = find("qwen3-untied", &prompt, &ends, &options, 64, &exact(), &mut stop).unwrap();
    assert_eq!((found.len(), found[0].tokens.len()), (1, 0));

    let code = |prompt: &[u32], options: &BeamOptions| {
        let found = find("qwen3-untied", prompt, &ends, options, 10, &exact(), &mut go_on);
        found.map(|_| ()).map_err(|error| error.code())
    };
    assert_eq!(code(&[], &options), Err("length"));
    assert_eq!(code(&[1; 11], &options), Err("context_full"));
    assert_eq!(code(&[1, 96], &options), Err("token"));
    assert_eq!(code(&[1], &BeamOptions { beams: 0, ..options.clone() }), Err("option"));
    assert_eq!(code(&[1], &BeamOptions { beams: 65, ..options.clone() }), Err("limit"));
    assert_eq!(code(&[1], &BeamOptions { max_tokens: 0, ..options.clone() }), Err("option"));
    assert_eq!(code(&[1], &BeamOptions { length_penalty: f32::NAN, ..options.clone() }), Err("option"));

    // Logits that are no numbers are impossible, and if all are, that is an error.
    let mut beams = BeamSearch::new(&options, 9, vocab, &ends).unwrap();
    assert!(beams.logits(0, &[f32::NAN, f32::NEG_INFINITY]).is_err());
    beams.logits(0, &[f32::NAN, 1.0, f32::NEG_INFINITY, f32::INFINITY, 1.0]).unwrap();
    let steps = beams.step(&ends);
    assert!(steps.iter().map(|step| (step.beam, step.token)).eq([(0, 3), (0, 1), (0, 4)]));
    assert!(!beams.is_empty() && beams.len() == 1);
}
