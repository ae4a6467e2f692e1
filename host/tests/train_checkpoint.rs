//! Checkpoints of trainings: going on has the same bits, and a file of something else is refused by name.
#![cfg(feature = "train")]

use shohin::train::{Base, Corpus, Method, TrainOptions, Training, WeightKind};
use shohin::{Error, Model};
use shohin_train::checkpoint::{Checkpoint, Stored, Tensor, write};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TEXT: &str = "Once upon a time there was a fox. The fox lived in a small wood by the river. Every morning it went to \
    the water, and every evening it came home. One day it met a bird. \"Where do you live?\" said the bird. ";

fn base(name: &str) -> Base {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name);
    Training::base(&Model::builder().cpu().threads(2).inspect_only().load(path).unwrap()).unwrap()
}

fn corpus(base: &Base) -> Corpus {
    Corpus::text(base.model(), &TEXT.repeat(4)).unwrap()
}

fn options() -> TrainOptions {
    TrainOptions { rows: 2, row_tokens: 32, steps: 6, method: Method::Norms, seed: 5, ..TrainOptions::new() }
}

fn steps(training: &mut Training<'_>, corpus: &Corpus, n: u64) {
    for _ in 0..n {
        training.step(corpus).unwrap();
    }
}

/// All that a training holds.
fn state(training: &Training<'_>) -> Vec<u8> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("state");
    training.checkpoint(&path).unwrap();
    fs::read(path).unwrap()
}

/// A folder with the checkpoint of three steps.
fn three_steps(base: &Base) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("three.oxck");
    let mut training = Training::new(base, options()).unwrap();
    steps(&mut training, &corpus(base), 3);
    training.checkpoint(&path).unwrap();
    (dir, path)
}

/// What of a file is another, as it is written again.
#[derive(Default)]
struct Changes<'c> {
    metadata: Option<(&'c str, Option<&'c str>)>,
    /// A tensor that is left out.
    without: &'c str,
    /// A tensor whose shape is another.
    reshaped: Option<(&'c str, &'c [u64])>,
    /// A tensor that is added.
    added: Option<&'c str>,
}

fn changed(bytes: &[u8], changes: &Changes<'_>) -> Vec<u8> {
    let read = Checkpoint::parse(bytes).unwrap();
    let value = |key, text| match changes.metadata {
        Some((changed, value)) if changed == key => value,
        _ => Some(text),
    };
    let metadata: Vec<(&str, &str)> = read
        .metadata()
        .filter(|(key, _)| *key != "shohin.sha256")
        .filter_map(|(key, text)| Some((key, value(key, text)?)))
        .collect();
    let kept: Vec<&Stored<'_>> =
        read.tensors().iter().filter(|tensor| tensor.name() != changes.without).collect();
    let data: Vec<Vec<f32>> = kept.iter().map(|tensor| tensor.values().collect()).collect();
    let mut tensors: Vec<Tensor<'_>> = kept
        .iter()
        .zip(&data)
        .map(|(tensor, data)| match changes.reshaped {
            Some((name, shape)) if name == tensor.name() => Tensor { name, shape, data },
            _ => Tensor { name: tensor.name(), shape: tensor.shape(), data },
        })
        .collect();
    tensors.extend(changes.added.map(|name| Tensor { name, shape: &[1], data: &[1.0] }));
    let mut out = Vec::new();
    write::<shohin_train::Error>(&metadata, &tensors, |bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    })
    .unwrap();
    out
}

#[test]
fn going_on_has_the_bits_of_not_stopping() {
    let base = base("sprout.gguf");
    let corpus = corpus(&base);
    let dir = TempDir::new().unwrap();
    for weights in [WeightKind::F32, WeightKind::Ternary] {
        let options = TrainOptions { method: Method::Full, weights, ..options() };
        let mut whole = Training::new(&base, options.clone()).unwrap();
        steps(&mut whole, &corpus, 6);
        let path = dir.path().join("three");
        let mut first = Training::new(&base, options.clone()).unwrap();
        steps(&mut first, &corpus, 3);
        first.checkpoint(&path).unwrap();
        assert!(state(&first) != state(&whole));
        drop(first);
        let mut second = Training::new(&base, options).unwrap();
        second.resume(&path).unwrap();
        assert_eq!(second.progress().step, 3);
        assert!(state(&second) == fs::read(&path).unwrap());
        steps(&mut second, &corpus, 3);
        assert!(second.is_done());
        assert_eq!(second.progress(), whole.progress());
        // Masters, moments, and all else.
        assert!(state(&second) == state(&whole), "{weights:?}");
    }
}

#[test]
fn a_checkpoint_has_what_it_says() {
    let base = base("sprout-nano.gguf");
    let (dir, path) = three_steps(&base);
    let bytes = fs::read(&path).unwrap();
    let read = Checkpoint::parse(&bytes).unwrap();
    let get = |key: &str| read.get(key).unwrap();
    assert_eq!([get("shohin.step"), get("shohin.seed"), get("shohin.epoch")], ["3", "5", "0"]);
    assert_eq!([get("shohin.next"), get("shohin.tokens")], ["6", "192"]);
    assert!(get("shohin.recipe").starts_with("method norms\nweights f32\nrows 2\n"));
    assert_eq!(get("shohin.base").len(), 64);
    let names: Vec<&str> = read.tensors().iter().map(Stored::name).collect();
    assert_eq!(names.len() % 3, 0);
    let masters = &names[..names.len() / 3];
    assert!(masters.contains(&"output_norm.weight") && masters.contains(&"blk.2.attn_q_norm.weight"));
    let of = |prefix: &str| masters.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>();
    assert_eq!(names[masters.len()..], [of("optim.m/"), of("optim.v/")].concat());
    assert_eq!(read.tensor("output_norm.weight").unwrap().shape(), [256]);
    assert!(read.tensor("optim.v/output_norm.weight").unwrap().values().any(|v| v > 0.0));
    // It is replaced, and nothing is left beside it.
    let mut training = Training::new(&base, options()).unwrap();
    training.resume(&path).unwrap();
    steps(&mut training, &corpus(&base), 1);
    training.checkpoint(&path).unwrap();
    assert!(fs::read(&path).unwrap() == state(&training));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn only_the_number_of_steps_may_be_another() {
    let base = base("sprout-nano.gguf");
    let (_dir, path) = three_steps(&base);
    let mut longer = Training::new(&base, TrainOptions { steps: 60, ..options() }).unwrap();
    longer.resume(&path).unwrap();
    assert_eq!(longer.progress().step, 3);
    let others = [
        (TrainOptions { learning_rate: 0.5, ..options() }, "\"lr 0.5\", found \"lr 0.001\""),
        (TrainOptions { rows: 4, seed: 9, ..options() }, "\"rows 4\", found \"rows 2\""),
        (TrainOptions { seed: 9, ..options() }, "\"seed 9\", found \"seed 5\""),
        (TrainOptions { method: Method::Full, ..options() }, "\"method full\", found \"method norms\""),
    ];
    for (options, expected) in others {
        let mut training = Training::new(&base, options).unwrap();
        let error = training.resume(&path).unwrap_err();
        assert_eq!(error.code(), "checkpoint");
        let expected = format!("{}: expected a training with the option {expected}", path.display());
        assert_eq!(error.to_string(), expected);
        assert_eq!(training.progress().step, 0);
    }
}

#[test]
fn files_of_something_else_are_refused_by_name() {
    let base = base("sprout-nano.gguf");
    let (dir, path) = three_steps(&base);
    let bytes = fs::read(&path).unwrap();
    let other = dir.path().join("other");
    let mut training = Training::new(&base, options()).unwrap();
    let before = state(&training);
    let metadata = |key, value| Changes { metadata: Some((key, value)), ..Changes::default() };
    let print = Checkpoint::parse(&bytes).unwrap().get("shohin.base").unwrap().to_string();
    let table = [
        (
            metadata("shohin.base", Some("ff")),
            format!("a training of the model with the fingerprint {print:?}, found \"ff\""),
        ),
        (
            metadata("shohin.base", None),
            "a training with the metadata \"shohin.base\", found weights without it".into(),
        ),
        (
            metadata("shohin.step", None),
            "a training with the metadata \"shohin.step\", found weights without it".into(),
        ),
        (
            metadata("shohin.next", Some("-1")),
            "a number as the metadata \"shohin.next\", found \"-1\"".into(),
        ),
        (
            metadata("shohin.recipe", Some("")),
            "a training with the option \"method norms\", found no more".into(),
        ),
        (
            Changes { without: "blk.1.ffn_norm.weight", ..Changes::default() },
            "the tensor \"blk.1.ffn_norm.weight\", found none of this name".into(),
        ),
        (
            Changes { without: "optim.v/blk.1.ffn_norm.weight", ..Changes::default() },
            "the tensor \"optim.v/blk.1.ffn_norm.weight\", found none of this name".into(),
        ),
        (
            Changes { reshaped: Some(("output_norm.weight", &[2, 128])), ..Changes::default() },
            "the shape [256] of \"output_norm.weight\", found [2, 128]".into(),
        ),
        (
            Changes { reshaped: Some(("optim.m/output_norm.weight", &[256, 1])), ..Changes::default() },
            "the shape [256] of \"optim.m/output_norm.weight\", found [256, 1]".into(),
        ),
        (
            Changes { added: Some("token_embd.weight"), ..Changes::default() },
            "only tensors of what is trained, found \"token_embd.weight\"".into(),
        ),
        (
            Changes { added: Some("optim.m/token_embd.weight"), ..Changes::default() },
            "only tensors of what is trained, found \"optim.m/token_embd.weight\"".into(),
        ),
    ];
    for (changes, expected) in table {
        fs::write(&other, changed(&bytes, &changes)).unwrap();
        let error = training.resume(&other).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }));
        assert_eq!(error.to_string(), format!("{}: expected {expected}", other.display()));
        assert!(state(&training) == before);
    }
    let another = self::base("sprout.gguf");
    let mut another = Training::new(&another, options()).unwrap();
    let error = another.resume(&path).unwrap_err().to_string();
    assert!(error.contains("expected a training of the model with the fingerprint"), "{error}");
    // Unchanged, it is read.
    fs::write(&other, changed(&bytes, &Changes::default())).unwrap();
    training.resume(&other).unwrap();
    assert!(state(&training) == bytes);
}

#[test]
fn damaged_files_change_nothing() {
    let base = base("sprout-nano.gguf");
    let (dir, path) = three_steps(&base);
    let bytes = fs::read(&path).unwrap();
    let mut training = Training::new(&base, options()).unwrap();
    let before = state(&training);
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let longer = [&bytes[..], &[0]].concat();
    for (damaged, expected) in [
        (&flipped[..], "expected tensors with the SHA-256"),
        (&bytes[..bytes.len() - 1], "of the numbers of \"optim.v/"),
        (
            &bytes[..100],
            "byte 16 of the checkpoint: expected at most 4 tensors in the bytes that follow, found 39",
        ),
        (&longer, "expected the end of the file, found 1 more bytes"),
        (b"GGUF\x03\0\0\0", "byte 0 of the checkpoint: expected the letters OXCK, found \"GGUF\""),
        (b"", "is empty, expected a checkpoint"),
    ] {
        fs::write(&path, damaged).unwrap();
        for error in [training.resume(&path).unwrap_err(), training.init_from(&path).unwrap_err()] {
            let error = error.to_string();
            assert!(error.starts_with(&path.display().to_string()) && error.contains(expected), "{error}");
        }
        assert!(state(&training) == before);
    }
    let error = training.resume(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("is not a regular file, expected a checkpoint"), "{error}");
    let error = training.resume(dir.path().join("none")).unwrap_err().to_string();
    assert!(error.starts_with("cannot open the checkpoint"), "{error}");
    let error = training.checkpoint(dir.path()).unwrap_err().to_string();
    assert!(error.starts_with("cannot write"), "{error}");
}

#[test]
fn weights_alone_are_a_beginning() {
    let base = base("sprout-nano.gguf");
    let (dir, path) = three_steps(&base);
    let bytes = fs::read(&path).unwrap();
    let source = Checkpoint::parse(&bytes).unwrap();
    let is_master = |tensor: &&Stored<'_>| !tensor.name().starts_with("optim.");
    // Of a training, and of a program that knows no trainings.
    let alone = dir.path().join("alone");
    let masters: Vec<(&Stored<'_>, Vec<f32>)> =
        source.tensors().iter().filter(is_master).map(|tensor| (tensor, tensor.values().collect())).collect();
    let tensors: Vec<Tensor<'_>> = masters
        .iter()
        .map(|(tensor, data)| Tensor { name: tensor.name(), shape: tensor.shape(), data })
        .collect();
    let mut out = Vec::new();
    write::<shohin_train::Error>(&[("step", "3")], &tensors, |bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    })
    .unwrap();
    fs::write(&alone, out).unwrap();
    for path in [&path, &alone] {
        let mut training = Training::new(&base, TrainOptions { learning_rate: 0.5, ..options() }).unwrap();
        training.init_from(path).unwrap();
        assert_eq!(training.progress().step, 0);
        let state = state(&training);
        let state = Checkpoint::parse(&state).unwrap();
        for tensor in state.tensors() {
            match tensor.name().strip_prefix("optim.") {
                None => assert_eq!(source.tensor(tensor.name()), Some(tensor)),
                Some(_) => assert!(tensor.values().all(|x| x == 0.0)),
            }
        }
    }
    let mut training = Training::new(&base, options()).unwrap();
    let error = training.resume(&alone).unwrap_err().to_string();
    assert!(
        error.ends_with("expected a training with the metadata \"shohin.base\", found weights without it"),
        "{error}"
    );
    let mut full = Training::new(&base, TrainOptions { method: Method::Full, ..options() }).unwrap();
    let error = full.init_from(&alone).unwrap_err().to_string();
    assert!(error.contains("expected the tensor \""), "{error}");
}
