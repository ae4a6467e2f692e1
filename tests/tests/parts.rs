//! Models in several files.

use std::fs;
use std::path::Path;

use shohin_core::cpu::Cpu;
use shohin_core::gguf::{Gguf, GgufJoin, Id42, PartError, ReadOptions};
use shohin_core::model::ModelBytes;
use shohin_core::{BonsaiModel, CpuOptions, Error, Format, Serial, Session, SessionOptions};
use shohin_tests::model::Model;
use shohin_tests::parts::split;
use shohin_tests::{Random, raw::RawFile, raw::RawValue};

fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

fn parse(parts: &[Vec<u8>]) -> Result<Gguf<'_>, PartError> {
    Gguf::parse_parts(&slices(parts), &ReadOptions::default())
}

fn logits(gguf: &Gguf<'_>) -> Vec<f32> {
    let model = BonsaiModel::from_gguf(gguf).unwrap();
    logits_of(Cpu::new(model, &CpuOptions::default(), Serial).unwrap())
}

fn logits_of<B: ModelBytes>(mut device: Cpu<'_, B>) -> Vec<f32> {
    let mut session = Session::new(&mut device, &SessionOptions::default()).unwrap();
    session.forward_prefill(&mut device, &[3, 1, 4, 1, 5, 9, 2, 6]).unwrap().to_vec()
}

/// Logits of the model in `parts`, each of which is repacked in place.
fn repacked_logits(parts: Vec<Vec<u8>>) -> Vec<f32> {
    let model = BonsaiModel::load_parts(parts, &ReadOptions::default(), |config| config).unwrap();
    logits_of(Cpu::repacked(model, &CpuOptions::default(), Serial).unwrap())
}

/// Feeds the parts in pieces of random lengths.
fn join(parts: &[Vec<u8>], random: &mut Random) -> Result<Vec<u8>, PartError> {
    let lengths: Vec<u64> = parts.iter().map(|p| p.len() as u64).collect();
    let mut join = GgufJoin::new(&lengths, &ReadOptions::default()).unwrap();
    let mut used = vec![0; parts.len()];
    let mut piece = |part: usize, at: usize| {
        let left = parts[part].len() - at;
        parts[part][at..].split_at(left.min(1 + random.below(3000))).0
    };
    for (part, used) in used.iter_mut().enumerate() {
        loop {
            let bytes = piece(part, *used);
            *used += bytes.len();
            if join.head(part, bytes)? {
                break;
            }
            if bytes.is_empty() {
                join.finish(part)?;
            }
        }
    }
    let mut file = join.begin()?;
    for (part, used) in used.iter_mut().enumerate() {
        join.push(part, &[], &mut |bytes| file.extend_from_slice(bytes))?;
        while *used < parts[part].len() {
            let bytes = piece(part, *used);
            *used += bytes.len();
            join.push(part, bytes, &mut |bytes| file.extend_from_slice(bytes))?;
        }
        join.finish(part)?;
    }
    assert_eq!(file.len() as u64, join.len());
    Ok(file)
}

#[test]
fn the_same_logits_as_from_one_file_in_every_format() {
    let mut random = Random::new(7);
    for format in Format::ALL {
        let file = Model::tiny(format);
        let want = logits(&Gguf::parse(&file).unwrap());
        for (most, bare) in [(1000, true), (9, false), (1, false), (5, true)] {
            let parts = split(&file, most, bare).unwrap();
            assert!(parts.len() > 1);
            let gguf = parse(&parts).unwrap();
            assert_eq!(usize::from(gguf.header().parts()), parts.len());
            assert_eq!(logits(&gguf), want, "{format:?} {most}");
            let joined = join(&parts, &mut random).unwrap();
            let one = Gguf::parse(&joined).unwrap();
            assert_eq!(logits(&one), want, "{format:?} {most}, joined");
            assert!(one.metadata().get("split.count").is_none());
            assert_eq!(repacked_logits(parts), want, "{format:?} {most}, repacked");
        }
    }
}

/// `oracle/split_gguf.py` has split the file with gguf-py.
#[test]
fn parts_written_by_gguf_py() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let whole = fs::read(fixtures.join("qwen3-tied-yarn.gguf")).unwrap();
    let part = |i| fs::read(fixtures.join(format!("parts/qwen3-tied-yarn-{i:05}-of-00003.gguf"))).unwrap();
    let parts = [part(1), part(2), part(3)];
    let want = logits(&Gguf::parse(&whole).unwrap());
    assert_eq!(logits(&parse(&parts).unwrap()), want);
    let joined = join(&parts, &mut Random::new(1)).unwrap();
    assert_eq!(logits(&Gguf::parse(&joined).unwrap()), want);
}

/// Zeros do not reveal their layout, and only the first part has the key that does.
#[test]
fn type_42_means_the_same_in_all_parts() {
    let file = Model::tiny(Format::Tq2_0G128);
    let file = RawFile::of(&file)
        .without("general.quantization_version")
        .set("general.quantization_version", RawValue::str("TQ2_0_G128"))
        .build();
    for bare in [false, true] {
        let mut parts = split(&file, 9, bare).unwrap();
        for part in &mut parts[1..] {
            let header = Gguf::parse(part).unwrap().header().clone();
            let Some(t) = header.tensors().iter().find(|t| t.type_id() == 42) else { continue };
            let (from, len) = ((header.data_start() + t.offset()) as usize, t.len() as usize);
            part[from..from + len].fill(0);
        }
        let joined = join(&parts, &mut Random::new(3)).unwrap();
        for gguf in [parse(&parts).unwrap(), Gguf::parse(&joined).unwrap()] {
            let mut of_type = gguf.tensors().iter().filter(|t| t.type_id() == 42);
            assert!(of_type.all(|t| t.format() == Some(Format::Tq2_0G128)), "{bare}");
        }
        let want = logits(&parse(&parts).unwrap());
        // The bytes that a model owns are interpreted as they were parsed.
        let id42 = parse(&parts).unwrap().header().id42(Id42::Auto);
        let options = ReadOptions { id42, ..ReadOptions::default() };
        for part in &parts[1..] {
            let gguf = Gguf::parse_with(part, &options).unwrap();
            let mut of_type = gguf.tensors().iter().filter(|t| t.type_id() == 42);
            assert!(of_type.all(|t| t.format() == Some(Format::Tq2_0G128)), "{bare}");
        }
        assert_eq!(repacked_logits(parts), want, "{bare}");
    }
}

#[test]
fn more_parts_than_there_can_be_are_refused() {
    let error = Gguf::parse_parts(&[&[][..]; 1001], &ReadOptions::default()).unwrap_err();
    assert_eq!((error.part, error.error.code()), (0, "limit"));
    assert_eq!(
        GgufJoin::new(&[0; 1001], &ReadOptions::default()).map(|_| ()).map_err(|e| e.code()),
        Err("limit")
    );
}

#[test]
fn what_does_not_belong_together_is_refused_and_named() {
    let file = Model::tiny(Format::Q1_0);
    let parts = split(&file, 9, false).unwrap();
    let other = split(&Model::tiny(Format::Q4_0), 11, false).unwrap();
    let [a, b, c] = [&parts[0], &parts[1], &parts[2]].map(Clone::clone);
    assert_eq!((parts.len(), other.len()), (3, 3));
    let with = |file: &[u8], key: &str, value| RawFile::of(file).without(key).set(key, value).build();
    let cases: Vec<(&str, Vec<Vec<u8>>, usize, &str)> = vec![
        ("none", vec![], 0, "length"),
        ("in another order", vec![a.clone(), c.clone(), b.clone()], 1, "key_value"),
        ("one twice", vec![a.clone(), b.clone(), b.clone()], 2, "key_value"),
        ("too few", vec![a.clone(), b.clone()], 0, "key_value"),
        ("not from the first", vec![b.clone(), c.clone(), a.clone()], 0, "key_value"),
        ("part of another model", vec![a.clone(), other[1].clone(), c.clone()], 2, "duplicate"),
        ("another model's end", vec![a.clone(), b.clone(), other[2].clone()], 0, "length"),
        ("a whole model among them", vec![a.clone(), file.clone(), c.clone()], 1, "missing_key"),
        ("two whole models", vec![file.clone(), file.clone()], 0, "missing_key"),
        ("cut short", vec![a.clone(), b[..b.len() - 1000].to_vec(), c.clone()], 1, "truncated"),
        ("empty", vec![a.clone(), vec![], c.clone()], 1, "truncated"),
        ("no number", vec![a.clone(), with(&b, "split.no", RawValue::str("1")), c.clone()], 1, "key_type"),
        (
            "fewer tensors than said",
            vec![with(&a, "split.tensors.count", RawValue::u32(99)), b.clone(), c.clone()],
            1,
            "key_value",
        ),
    ];
    for (name, parts, part, code) in cases {
        let error = parse(&parts).unwrap_err();
        assert_eq!((error.part, error.error.code()), (part, code), "{name}: {error}");
        if parts.is_empty() {
            continue;
        }
        let loaded = BonsaiModel::load_parts(parts.clone(), &ReadOptions::default(), |config| config);
        assert_eq!(loaded.unwrap_err(), error, "{name}, loaded");
        let joined = join(&parts, &mut Random::new(3)).unwrap_err();
        assert_eq!((joined.part, joined.error.code()), (part, code), "{name}, joined: {joined}");
    }
    // A single part is not a model.
    for part in &parts {
        let error = BonsaiModel::from_gguf(&Gguf::parse(part).unwrap()).unwrap_err();
        assert!(matches!(error, Error::KeyValue { .. }), "{error}");
    }
}
