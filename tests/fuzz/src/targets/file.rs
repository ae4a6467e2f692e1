//! GGUF files.

use crate::mutate::{join, sections};
use shohin_core::cpu::{Cpu, CpuWeights};
use shohin_core::gguf::{Gguf, GgufJoin, PartError, ReadOptions, Value};
use shohin_core::model::ModelBytes;
use shohin_core::tokenizer::{Special, TokenKind};
use shohin_core::{BonsaiModel, CpuOptions, Format, Serial, Session, SessionOptions, Tokenizer};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::parts::split;
use shohin_tests::raw::{RawFile, RawTensor, RawValue};
use shohin_tests::{Random, meter, reading};
use std::sync::Arc;

/// The shape of models for mutations: small files.
pub(super) fn small() -> Shape {
    Shape {
        hidden: 64,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        ffn: 64,
        vocab: 290,
        context: 64,
        yarn: None,
        ..Shape::tiny()
    }
}

pub(super) fn small_model() -> Vec<u8> {
    Model::new(small(), Stored::new(Format::Q8_0), 1).to_vec().expect("a valid model")
}

pub(super) fn model_seeds() -> Vec<Vec<u8>> {
    let shape = Shape { hidden: 128, head_dim: 64, ffn: 128, ..small() };
    let formats = [Format::Q1_0, Format::Q2_0, Format::Pq2_0, Format::Tq2_0G128, Format::Q8_0];
    let model = |shape: &Shape, format| {
        Model::new(shape.clone(), Stored::new(format), 1).to_vec().expect("a valid model")
    };
    let mut seeds: Vec<_> = formats.map(|format| model(&shape, format)).into();
    seeds.push(small_model());
    seeds.push(model(&Shape { experts: Some([3, 2, 64]), tied: false, ..small() }, Format::Q4_0));
    seeds.push(model(&Shape { rope_factors: true, ..small() }, Format::F16));
    seeds
}

pub(super) fn gguf_seeds() -> Vec<Vec<u8>> {
    let nested = RawValue::array(9, 1, &RawValue::strings(&["x", "yz"]).bytes);
    vec![
        RawFile::new().build(),
        RawFile::sample().build(),
        RawFile::new().entry("nested", nested).entry("general.alignment", RawValue::u32(8)).build(),
        RawFile::new().tensor(RawTensor::new("t", &[128, 2], 42, 0)).data(68).build(),
        RawFile::new()
            .entry("general.quantization_version", RawValue::str("TQ2_0_G128"))
            .tensor(RawTensor::new("a", &[128, 2], 42, 0))
            .tensor(RawTensor::new("b", &[32], 8, 96))
            .data(130)
            .build(),
        small_model(),
    ]
}

pub(super) fn part_seeds() -> Vec<Vec<u8>> {
    let two = RawFile::sample().build();
    [split(&two, 1, false), split(&two, 1, true), split(&small_model(), 5, true)]
        .into_iter()
        .map(|parts| join(&parts.expect("a valid file")))
        .collect()
}

pub(super) fn gguf_parse(file: &[u8]) {
    let (parsed, used) = meter::measure(|| Gguf::parse(file));
    let items = parsed.as_ref().map_or(0, |g| g.tensors().len() + g.metadata().len());
    // If the file fails late, its items existed and were allocated.
    let items = items.max(file.len() / 13);
    assert!(used.peak <= (64 << 10) + 96 * items);
    if let Ok(gguf) = parsed {
        reading::exercise(&gguf);
    }
}

pub(super) fn gguf_split(file: &[u8]) {
    // The cuts depend on the input, so that a failure is reproducible.
    let mut random = Random::new(reading::fnv(file));
    reading::assert_random_splits_agree(file, &ReadOptions::default(), &mut random, 2);
}

pub(super) fn gguf_round_trip(file: &[u8]) {
    let Ok(gguf) = Gguf::parse(file) else { return };
    let again = reading::rewrite(&gguf).expect("what was read can be written");
    let second = match Gguf::parse(&again) {
        Ok(second) => second,
        // Padding can hide the layout of a lone tensor of id 42.
        Err(error) => {
            assert!(gguf.tensors().iter().any(|t| t.type_id() == 42), "{error}");
            return;
        }
    };
    assert_eq!(format!("{:?}", second.metadata()), format!("{:?}", gguf.metadata()));
    assert_eq!(second.tensors().len(), gguf.tensors().len());
    for (a, b) in gguf.tensors().iter().zip(second.tensors()) {
        assert_eq!((a.name(), a.dims(), a.type_id()), (b.name(), b.dims(), b.type_id()));
        assert!(gguf.data(a) == second.data(b));
    }
    assert_eq!(reading::rewrite(&second).expect("twice"), again);
}

/// The joined file of these parts, which arrive in pieces.
fn joined(parts: &[&[u8]], random: &mut Random) -> Result<Vec<u8>, PartError> {
    let lengths: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
    let mut join =
        GgufJoin::new(&lengths, &ReadOptions::default()).map_err(|error| PartError { part: 0, error })?;
    let mut used = vec![0; parts.len()];
    for (part, (used, bytes)) in used.iter_mut().zip(parts).enumerate() {
        loop {
            let end = bytes.len().min(*used + 1 + random.below(3000));
            let piece = &bytes[*used..end];
            *used = end;
            if join.head(part, piece)? {
                break;
            }
            if piece.is_empty() {
                join.finish(part)?;
            }
        }
    }
    let mut file = join.begin()?;
    for (part, (used, bytes)) in used.iter_mut().zip(parts).enumerate() {
        join.push(part, &[], &mut |bytes| file.extend_from_slice(bytes))?;
        while *used < bytes.len() {
            let end = bytes.len().min(*used + 1 + random.below(3000));
            join.push(part, &bytes[*used..end], &mut |bytes| file.extend_from_slice(bytes))?;
            *used = end;
        }
        join.finish(part)?;
    }
    assert_eq!(file.len() as u64, join.len());
    Ok(file)
}

pub(super) fn parts(input: &[u8]) {
    let all = sections(input);
    // A single file may be complete by itself, and is not joined.
    if all.len() < 2 {
        return;
    }
    let mapped = Gguf::parse_parts(&all, &ReadOptions::default());
    let mut random = Random::new(reading::fnv(input));
    let file = joined(&all, &mut random);
    let (mapped, file) = match (mapped, file) {
        (Ok(mapped), Ok(file)) => (mapped, file),
        (Err(_), Err(_)) => return,
        (Ok(_), Err(error)) => panic!("mapped, but not joined: {error}"),
        (Err(error), Ok(_)) => panic!("joined, but not mapped: {error}"),
    };
    let one = Gguf::parse(&file).expect("a file that was joined can be read");
    let split = |key: &str| key.starts_with("split.");
    let entries = |gguf: &Gguf<'_>| -> Vec<String> {
        let all = gguf.metadata();
        all.iter()
            .filter(|(key, _)| !split(key))
            .map(|(key, value): (&str, Value<'_>)| format!("{key}: {value:?}"))
            .collect()
    };
    assert_eq!(entries(&mapped), entries(&one));
    assert_eq!(mapped.tensors().len(), one.tensors().len());
    for (a, b) in mapped.tensors().iter().zip(one.tensors()) {
        assert_eq!(
            (a.name(), a.dims(), a.type_id(), a.format()),
            (b.name(), b.dims(), b.type_id(), b.format())
        );
        assert!(mapped.data(a) == one.data(b));
    }
}

/// Models, and a vocabulary of SentencePiece with a text behind it.
pub(super) fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let vocabulary = include_bytes!("../../../../core/tests/fixtures/sentencepiece.gguf");
    let text = "the\n\n<b>model</b>   \u{2581} é 🦙 <start_of_turn>user<0x41> ال\0\x7F ra ve no";
    let mut seeds = model_seeds();
    seeds.push([vocabulary, text.as_bytes()].concat());
    seeds
}

pub(super) fn tokenizer(file: &[u8]) {
    // The text is the end of the file, which only contains weights.
    let text = String::from_utf8_lossy(&file[file.len() - file.len().min(200)..]);
    let Ok(gguf) = Gguf::parse(file) else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else { return };
    let is_sentencepiece = tokenizer.pre().is_none();
    // SentencePiece has one character for spaces, and may add some.
    let seen = |bytes: &[u8]| -> Vec<u8> {
        if !is_sentencepiece {
            return bytes.into();
        }
        let mut rest = bytes;
        let chars = std::iter::from_fn(|| {
            let space = rest.strip_prefix("\u{2581}".as_bytes());
            let (byte, after) =
                space.map(|after| (b' ', after)).or_else(|| Some((*rest.first()?, &rest[1..])))?;
            rest = after;
            Some(byte)
        });
        chars.filter(|byte| !tokenizer.adds_space() || *byte != b' ').collect()
    };
    for special in [Special::Text, Special::UserDefined, Special::Parse] {
        let mut ids = Vec::new();
        tokenizer.encode(&text, special, &mut ids);
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        let control = |id: &u32| tokenizer.kind(*id) == TokenKind::Control;
        assert!(special == Special::Parse || !ids.iter().any(control), "a control token of {text:?}");
        let spelled: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).expect("an id")).collect();
        let mut spelled = seen(&spelled).into_iter().peekable();
        for byte in seen(text.as_bytes()) {
            // Bytes without a token of their own are left out.
            let rare = matches!(byte, 0..=8 | 14..=31 | 127 | 0xF1 | 0xF2);
            let lacks = || {
                is_sentencepiece && rare
                    || tokenizer.id_of(&[byte]).is_none_or(|id| tokenizer.kind(id) != TokenKind::Normal)
            };
            assert!(spelled.next_if_eq(&byte).is_some() || lacks(), "{byte} is missing in {text:?}");
        }
        assert_eq!(spelled.next(), None, "more than {text:?}");
    }
}

pub(super) fn model_load(file: &[u8]) {
    if let Ok(gguf) = Gguf::parse(file) {
        run(&gguf);
    }
}

/// Loads and runs the model of a file, if it is one.
pub(super) fn run(gguf: &Gguf<'_>) {
    if let Ok(model) = BonsaiModel::from_gguf(gguf) {
        run_model(model);
    }
}

/// Runs a model.
pub(super) fn run_model<B: ModelBytes + Sync + Send>(model: BonsaiModel<B>) {
    let weights = CpuWeights::new(model).expect("room for the norms");
    let options = CpuOptions { context: 8, batch: 4, ..CpuOptions::default() };
    let in_session = SessionOptions::default();
    // The limits allow a small file to request long scratch rows, which is about memory, not about safety.
    if !weights.memory_plan(&options, &in_session).is_ok_and(|plan| plan.total < 64 << 20) {
        return;
    }
    let mut device = Cpu::with_weights(Arc::new(weights), &options, Serial).expect("planned memory");
    let mut session = Session::new(&mut device, &in_session).expect("planned memory");
    let last = device.model().config().vocab_size as u32 - 1;
    if session.capacity() < 3 {
        return;
    }
    let bits = |logits: &[f32]| -> Vec<u32> {
        // Only the payload of NaN is not promised.
        logits.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    };
    let whole = bits(session.forward_prefill(&mut device, &[0, last]).expect("checked ids"));
    session.forward(&mut device, last / 2).expect("checked ids");
    assert!(session.forward(&mut device, last + 1).is_err());
    session.truncate(0).expect("it has seen three");
    session.forward(&mut device, 0).expect("checked ids");
    assert_eq!(bits(session.forward(&mut device, last).expect("checked ids")), whole, "prefill and decode");
}
