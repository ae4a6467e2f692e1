//! Interleaving whole files in memory.

use shohin_core::gguf::{Gguf, ReadOptions, interleave};
use shohin_core::kernel::Isa;
use shohin_core::quant::{self, Layout};
use shohin_core::tokenizer::Special;
use shohin_core::{BonsaiModel, Format, Serial, Session, SessionOptions, Tokenizer};
use shohin_tests::model::Model;

fn interleaved(file: &[u8], layout: Layout) -> Vec<u8> {
    let mut bytes = file.to_vec();
    interleave(&mut bytes, &ReadOptions::default(), |_| layout, &Serial).unwrap();
    bytes
}

#[test]
fn every_weight_of_a_file_is_found_again() {
    for format in Format::ALL {
        let file = Model::tiny(format);
        let before = Gguf::parse(&file).unwrap();
        for layout in [Layout::Words, Layout::Bytes] {
            let bytes = interleaved(&file, layout);
            let after = Gguf::parse(&bytes).unwrap();
            let mut moved = 0;
            for (a, b) in before.tensors().iter().zip(after.tensors()) {
                assert_eq!(
                    (a.name(), a.dims(), a.offset(), a.len()),
                    (b.name(), b.dims(), b.offset(), b.len())
                );
                moved += usize::from(b.layout() == layout);
                let (a, b) = (before.matrix(a.name()).unwrap(), after.matrix(b.name()).unwrap());
                let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; a.cols()]);
                for row in 0..a.rows() {
                    a.unpack_row(row, &mut x).unwrap();
                    b.unpack_row(row, &mut y).unwrap();
                    assert_eq!(x, y);
                }
            }
            assert_eq!(moved > 0, quant::interleaved_format(format).is_some(), "{format:?}");
        }
    }
}

#[test]
fn a_second_time_changes_nothing() {
    let once = interleaved(&Model::tiny(Format::Pq2_0), Layout::Words);
    assert_eq!(interleaved(&once, Layout::Words), once);
    assert_eq!(interleaved(&once, Layout::Bytes), once);
}

#[test]
fn a_file_that_is_refused_is_left_alone() {
    let file = Model::tiny(Format::Q1_0);
    for len in (0..file.len()).step_by(997) {
        let mut cut = file[..len].to_vec();
        let error = interleave(&mut cut, &ReadOptions::default(), |_| Layout::Words, &Serial).unwrap_err();
        assert_eq!(error, Gguf::parse(&file[..len]).unwrap_err());
        assert_eq!(cut, file[..len]);
    }
}

/// A prompt of a batch and part of another, and what a greedy decoder says then, token by token.
#[test]
fn models_go_on_alike_with_every_instruction_set() {
    const STORY: &str = "Once upon a time there was a little girl named Lily. She had a red ball that she loved to \
        play with. One day the ball rolled down the hill and into the river, and Lily began to cry.";
    let said = |file: &[u8], isa| {
        let gguf = Gguf::parse(file).unwrap();
        let model = BonsaiModel::from_gguf(&gguf).unwrap();
        let mut prompt = Vec::new();
        Tokenizer::from_gguf(&gguf).unwrap().encode(STORY, Special::Parse, &mut prompt);
        let options = SessionOptions { isa, batch: 32, context: 96, ..SessionOptions::default() };
        assert!(prompt.len() > options.batch + 2 && !prompt.len().is_multiple_of(options.batch));
        let mut session = Session::new(&model, &options).unwrap();
        let mut logits = session.forward_prefill(&prompt, &Serial).unwrap().to_vec();
        let mut tokens = Vec::new();
        for _ in 0..12 {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            tokens.push(best as u32);
            logits = session.forward(best as u32, &Serial).unwrap().to_vec();
        }
        (tokens, logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    for file in
        [&include_bytes!("../../models/sprout.gguf")[..], include_bytes!("../../models/sprout-q1.gguf")]
    {
        let expected = said(file, Isa::SCALAR);
        for isa in Isa::available() {
            let mut bytes = file.to_vec();
            interleave(&mut bytes, &ReadOptions::default(), |format| isa.layout(format), &Serial).unwrap();
            assert_eq!(said(&bytes, isa), expected, "{isa:?}");
        }
    }
}
