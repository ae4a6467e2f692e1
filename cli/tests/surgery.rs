//! `shohin merge --method`, `calibrate`, `prune`, `compress` and `smooth`, as a user runs them.

use serde_json::Value;
use sha2::{Digest, Sha256};
use shohin_core::gguf::GgufWriter;
use shohin_core::{Format, Gguf};
use shohin_tests::model::{Model, Shape, Stored};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A folder with small models, where `shohin` runs.
struct Place(TempDir);

impl Place {
    /// With `a.gguf`, a model in F32.
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.ok(&format!("convert {} --type f32 --out a.gguf", fixture("hf/qwen3").display()));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
        command.args(args.split(' ')).current_dir(&self.0).stdin(Stdio::null());
        command.env("SHOHIN_WEIGHT_CACHE", "none").env("SHOHIN_DEVICE", "cpu").output().unwrap()
    }

    fn ok(&self, args: &str) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &str) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    fn fails(&self, args: &str, problem: &str) {
        let output = self.run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{args}");
        assert!(text.contains(problem), "{args}: {text}");
    }

    /// A file like `a.gguf`, in which `change` has changed the numbers of each tensor, given its name.
    fn changed(&self, name: &str, change: impl Fn(&str, usize, f32) -> f32) {
        let bytes = fs::read(self.path("a.gguf")).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let mut new = bytes.clone();
        for info in gguf.tensors() {
            let data = gguf.data(info);
            let at = data.as_ptr() as usize - bytes.as_ptr() as usize;
            for (i, x) in data.as_chunks::<4>().0.iter().enumerate() {
                let x = change(info.name(), i, f32::from_le_bytes(*x));
                new[at + 4 * i..][..4].copy_from_slice(&x.to_le_bytes());
            }
        }
        fs::write(self.path(name), new).unwrap();
    }

    /// A model of two layers, with random weights in `formats`, whose rows any format fits.
    fn random(&self, name: &str, formats: impl Iterator<Item = Format>) {
        let model = Model::new(Shape::tiny(), Stored::new(Format::F32), 1);
        let model = Model { formats: formats.map(Stored::new).collect(), ..model };
        fs::write(self.path(name), model.to_vec().unwrap()).unwrap();
    }

    /// The bytes of all tensors.
    fn tensor_bytes(&self, file: &str) -> Vec<u8> {
        let bytes = fs::read(self.path(file)).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        gguf.tensors().iter().flat_map(|info| gguf.data(info).to_vec()).collect()
    }

    /// The numbers of a tensor in F32.
    fn tensor(&self, file: &str, name: &str) -> Vec<f32> {
        let bytes = fs::read(self.path(file)).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let info = gguf.tensors().iter().find(|info| info.name() == name).unwrap();
        gguf.data(info).as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// Different in every tensor and at every place, small against the weights.
fn noise(name: &str, i: usize) -> f32 {
    let seed = name.bytes().fold(i as u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    (seed.wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 - 0.5
}

#[test]
fn models_merge_to_a_file_or_a_folder_that_runs() {
    let place = Place::new();
    place.changed("b.gguf", |name, i, x| x + 0.1 * noise(name, i));
    place.changed("c.gguf", |name, i, x| x + 0.1 * noise(name, i + 1000));
    let names = ["blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output_norm.weight", "token_embd.weight"];
    let tensors = |name| ["a.gguf", "b.gguf", "c.gguf"].map(|file| place.tensor(file, name));

    place.ok("merge b.gguf c.gguf --method linear --weights 0.3,0.9 --out linear.gguf");
    let done =
        place.json("merge b.gguf c.gguf --base a.gguf --method task --weights 0.5,-1 --out task.gguf --json");
    let change = done["change"].as_f64().unwrap();
    assert!(change > 0.001 && change < 0.5, "{change}");
    for name in names {
        let [a, b, c] = tensors(name);
        let linear = place.tensor("linear.gguf", name);
        let task = place.tensor("task.gguf", name);
        for i in 0..a.len() {
            assert!((linear[i] - (0.3 * b[i] + 0.9 * c[i]) / 1.2).abs() < 1e-6);
            assert!((task[i] - (a[i] + 0.5 * (b[i] - a[i]) - (c[i] - a[i]))).abs() < 1e-6);
        }
    }
    // A third of the differences is kept of each; the rest is the base's.
    place.ok("merge b.gguf c.gguf --base a.gguf --method ties --density 0.3 --out ties.gguf");
    place.ok("merge b.gguf c.gguf --base a.gguf --method dare --density 0.3 --seed 5 --out dare.gguf");
    for file in ["ties.gguf", "dare.gguf"] {
        let (a, found) = (place.tensor("a.gguf", names[0]), place.tensor(file, names[0]));
        let same = a.iter().zip(&found).filter(|(a, found)| a == found).count() as f64 / a.len() as f64;
        assert!((0.4..0.65).contains(&same), "{file}: {same}");
    }
    // A folder runs like the file.
    place.ok("merge a.gguf c.gguf --method slerp --t 0.4 --out slerp.gguf");
    place.ok("merge a.gguf c.gguf --method slerp --t 0.4 --out slerp");
    let answer = |model| place.ok(&format!("run --raw -m {model} --act f32 --temp 0 -n 8 Hello"));
    assert_eq!(answer("slerp"), answer("slerp.gguf"));
}

#[test]
fn merges_that_make_no_sense_are_refused_before_anything_is_written() {
    let place = Place::new();
    place.changed("nan.gguf", |name, i, x| if name.contains("attn_q.") && i == 7 { f32::NAN } else { x });
    let sprout = fixture("../../models/sprout-nano.gguf");
    let sprout = sprout.display();
    for (args, problem) in [
        ("a.gguf --method linear".into(), "the number of models is 1, expected at least 2"),
        ("a.gguf a.gguf --method linear --weights 1".into(), "1 for 2 models, expected one for each"),
        ("a.gguf a.gguf --method linear --weights 1,-1".into(), "the sum of the weights is 0"),
        ("a.gguf a.gguf --method ties".into(), "the base is missing"),
        ("a.gguf a.gguf --method slerp --t 1.5".into(), "t of slerp is 1.5, expected 0 to 1"),
        ("a.gguf a.gguf --method slerp --density 0.5".into(), "--density is not an option of this --method"),
        ("a.gguf a.gguf --method ties --base a.gguf --density 0".into(), "the density is 0"),
        (format!("a.gguf {sprout} --method linear"), "tokenizer.ggml.tokens is of 2048 tokens"),
        (format!("{sprout} {sprout} --method linear"), "would be PQ2_0 with what is added to it"),
        ("a.gguf nan.gguf --method linear".into(), "has the weight NaN in row"),
    ] {
        place.fails(&format!("merge {args} --out out.gguf"), problem);
        assert!(!place.path("out.gguf").exists(), "{args}");
    }
}

#[test]
fn statistics_are_those_of_transformers() {
    let place = Place::new();
    let expected: Value = serde_json::from_slice(&fs::read(fixture("calibration.json")).unwrap()).unwrap();
    let tokens = expected["tokens"].as_array().unwrap().iter();
    let bytes: Vec<u8> = tokens.flat_map(|id| (id.as_u64().unwrap() as u32).to_le_bytes()).collect();
    fs::write(place.path("tokens"), bytes).unwrap();
    let done =
        place.json("calibrate a.gguf --tokens tokens --window 24 --out stats --imatrix matrix.gguf --json");
    assert_eq!(done["texts"][0]["windows"], 2);
    let inputs = expected["inputs"].as_object().unwrap();
    assert_eq!((inputs.len(), done["inputs"].as_array().unwrap().len()), (14, 14));
    for (name, expected) in inputs {
        let found = done["inputs"].as_array().unwrap().iter().find(|found| found["name"] == **name).unwrap();
        assert_eq!(found["counts"][0], expected["count"]);
        for key in ["min", "max", "mean_abs"] {
            let (found, expected) = (found[key].as_f64().unwrap(), expected[key].as_f64().unwrap());
            assert!(
                (found - expected).abs() < 1e-4 * (1.0 + expected.abs()),
                "{name} {key}: {found} {expected}"
            );
        }
        let squares = place.tensor("matrix.gguf", &format!("{name}.in_sum2"));
        let wanted: Vec<f64> =
            expected["squares"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(squares.len(), wanted.len());
        for (found, expected) in squares.iter().zip(wanted) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-4 * (1.0 + expected),
                "{name}: {found} {expected}"
            );
        }
        assert_eq!(place.tensor("matrix.gguf", &format!("{name}.counts")), [48.0]);
    }
    // Both texts count, and what was kept goes on.
    let more = place.json("calibrate a.gguf --from stats --tokens tokens --window 24 --json");
    assert_eq!(more["inputs"][0]["counts"][0], 96);
    assert_eq!(more["texts"].as_array().unwrap().len(), 2);
    place.fails(
        "calibrate a.gguf --tokens tokens --window 58",
        "the number of tokens is 57 for windows of 58",
    );
    place.fails("calibrate a.gguf --tokens tokens --window 0", "the window is 0 tokens");
    place.changed("b.gguf", |name, i, x| x + 0.1 * noise(name, i));
    place.fails("calibrate b.gguf --from stats --tokens tokens --window 24", "another model than b.gguf");
}

#[test]
fn importance_moves_errors_to_where_they_matter_less() {
    let place = Place::new();
    place.random("w.gguf", [Format::F32].into_iter());
    fs::write(place.path("text"), "Mia has a red kite. The kite flies over the old mill.".repeat(4)).unwrap();
    place.ok("calibrate w.gguf --text text --window 32 --out stats --imatrix matrix.gguf");
    for kind in ["q4_0", "q5_1", "iq4_nl", "q2_k", "q3_k_m"] {
        place.ok(&format!("quantize w.gguf --type {kind} --force --out plain.gguf"));
        place.ok(&format!(
            "quantize w.gguf --type {kind} --importance matrix.gguf --force --out weighed.gguf"
        ));
        for file in ["plain", "weighed"] {
            place.ok(&format!("convert {file}.gguf --type f32 --force --out {file}-f32.gguf"));
        }
        for name in ["blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.1.ffn_up.weight"] {
            let importance = place.tensor("matrix.gguf", &format!("{name}.in_sum2"));
            let [exact, plain, weighed] =
                ["w.gguf", "plain-f32.gguf", "weighed-f32.gguf"].map(|file| place.tensor(file, name));
            let error = |found: &[f32]| {
                let errors = exact.iter().zip(found).zip(importance.iter().cycle());
                errors.map(|((a, b), w)| f64::from(w * (a - b).powi(2))).sum::<f64>()
            };
            assert!(error(&weighed) < error(&plain), "{kind} {name}");
        }
    }
    // The statistics have the same squares.
    place.ok("quantize w.gguf --type q3_k_m --importance stats --out from-stats.gguf");
    assert_eq!(place.tensor_bytes("from-stats.gguf"), place.tensor_bytes("weighed.gguf"));
    let bytes = fs::read(place.path("weighed.gguf")).unwrap();
    let of = Gguf::parse(&bytes).unwrap();
    assert_eq!(of.metadata().u32("quantize.imatrix.entries_count").unwrap(), Some(14));
    assert_eq!(of.metadata().str("quantize.imatrix.file").unwrap(), Some("matrix.gguf"));
}

#[test]
fn importance_of_another_model_is_refused_before_anything_is_written() {
    let place = Place::new();
    place.random("w.gguf", [Format::F32].into_iter());
    fs::write(place.path("text"), "Mia has a red kite. The kite flies over the old mill.".repeat(4)).unwrap();
    place.ok("calibrate w.gguf --text text --window 32 --imatrix matrix.gguf");
    let bytes = fs::read(place.path("matrix.gguf")).unwrap();
    let of = Gguf::parse(&bytes).unwrap();
    // The same file with other names, or only the first numbers of a tensor.
    let write = |file: &str, name: &dyn Fn(&str) -> Option<String>, cut: &str| {
        let mut w = GgufWriter::new();
        w.set("general.type", "imatrix").unwrap();
        let mut data = Vec::new();
        for info in of.tensors() {
            let Some(name) = name(info.name()) else { continue };
            let len = if info.name() == cut { info.elements() / 2 } else { info.elements() };
            w.tensor(&name, &[len], Format::F32).unwrap();
            data.push(of.data(info)[..4 * len as usize].to_vec());
        }
        fs::write(place.path(file), w.to_vec(data).unwrap()).unwrap();
    };
    write("whole.gguf", &|name| Some(name.into()), "");
    write("other.gguf", &|name| Some(name.replace("blk.1.", "blk.7.")), "");
    write("less.gguf", &|name| (!name.contains("blk.1.ffn_up")).then(|| name.into()), "");
    write("short.gguf", &|name| Some(name.into()), "blk.0.attn_k.weight.in_sum2");
    place.ok("quantize w.gguf --type q4_0 --importance whole.gguf --out whole-q4_0.gguf");
    for (file, problem) in [
        ("other.gguf", "blk.7.attn_k.weight has importance in other.gguf, but the model has no such tensor"),
        ("less.gguf", "blk.1.ffn_up.weight has no importance in less.gguf"),
        (
            "short.gguf",
            "blk.0.attn_k.weight has importance for 1 x 128 columns in short.gguf, expected 1 x 256",
        ),
        ("a.gguf", "general.type is \"missing\", expected \"imatrix\""),
        ("text", "text: "),
        ("none", "none: "),
    ] {
        place.fails(&format!("quantize w.gguf --type q4_0 --importance {file} --out out.gguf"), problem);
        assert!(!place.path("out.gguf").exists(), "{file}");
    }
}

#[test]
fn codebooks_are_read_and_run_but_not_written() {
    let place = Place::new();
    place.random("iq.gguf", Format::ALL.into_iter().filter(|format| format.has_codebook()));
    place.ok("convert iq.gguf --type f32 --out f32.gguf");
    fs::write(place.path("text"), "a b c d e f g h ".repeat(8)).unwrap();
    let perplexity = |file: &str| {
        let done = place.json(&format!("eval text -m {file} --act f32 --json"));
        done["perplexity"].as_f64().unwrap()
    };
    assert_eq!(perplexity("iq.gguf"), perplexity("f32.gguf"));
    // What is not changed is copied; the others are named.
    place.ok("convert iq.gguf --out copy.gguf");
    assert_eq!(place.tensor_bytes("copy.gguf"), place.tensor_bytes("iq.gguf"));
    place.fails("quantize f32.gguf --type iq2_xs --out out.gguf", "expected one of");
    place.fails("prune iq.gguf --sparsity 0.5 --out out.gguf", "which is only read, expected a format");
    assert!(!place.path("out.gguf").exists());
}

#[test]
fn masks_are_those_of_torch() {
    let place = Place::new();
    place.changed("b.gguf", |name, i, x| x + 0.1 * noise(name, i));
    let expected: Value = serde_json::from_slice(&fs::read(fixture("prune.json")).unwrap()).unwrap();
    let cases = [
        ("l1 0.5", "--method l1 --sparsity 0.5"),
        ("l1 0.3", "--method l2 --sparsity 0.3"),
        ("l1 rows", "--method l1 --structure rows --sparsity 0.3"),
        ("l2 rows", "--method l2 --structure rows --sparsity 0.3"),
        ("l1 columns", "--method l1 --structure columns --sparsity 0.3"),
        ("l2 columns", "--method l2 --structure columns --sparsity 0.3"),
        ("2:4", "--pattern 2:4"),
        ("global", "--sparsity 0.4 --global"),
    ];
    for (case, options) in cases {
        place.ok(&format!("prune b.gguf {options} --out out.gguf --force"));
        let expected = expected[case].as_object().unwrap();
        assert_eq!(expected.len(), 14);
        for (name, digest) in expected {
            let (before, after) = (place.tensor("b.gguf", name), place.tensor("out.gguf", name));
            assert!(before.iter().zip(&after).all(|(before, after)| *after == 0.0 || before == after));
            let mask: Vec<u8> = after.iter().map(|w| u8::from(*w != 0.0)).collect();
            assert_eq!(hex(&Sha256::digest(&mask)), digest.as_str().unwrap(), "{case}: {name}");
        }
        assert_eq!(
            place.tensor("b.gguf", "token_embd.weight"),
            place.tensor("out.gguf", "token_embd.weight")
        );
    }
    // What is named, and random: as many, others with another seed.
    let random = |seed| {
        let args = "prune b.gguf --method random --sparsity 0.25 --tensor token_embd --out out.gguf --force";
        let done = place.json(&format!("{args} --json --seed {seed}"));
        assert_eq!(done["sparsity"], 0.25);
        place.tensor("out.gguf", "token_embd.weight")
    };
    assert_ne!(random(1), random(2));
    assert_eq!(random(1), random(1));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn parts_leave_the_file_and_training_brings_something_back() {
    let place = Place::new();
    let text = "Mia has a red kite. The kite flies over the old mill. A crow takes the string.\n".repeat(8);
    fs::write(place.path("text"), text).unwrap();
    let size = |file: &str| fs::metadata(place.path(file)).unwrap().len();
    for (structure, sparsity) in [("neurons", 0.5), ("layers", 0.5)] {
        let args =
            format!("prune a.gguf --structure {structure} --sparsity {sparsity} --text text --json --force");
        let done = place.json(&format!("{args} --out small.gguf"));
        assert!(size("small.gguf") < size("a.gguf"), "{structure}");
        let recovery = "--recover text --steps 12 --lr 1e-3 --row-tokens 64";
        let better = place.json(&format!("{args} --out better.gguf {recovery}"));
        assert_eq!(done["perplexity"]["after"], better["perplexity"]["after"]);
        let of = |name: &str| better["perplexity"][name].as_f64().unwrap();
        assert!(of("recovered") < of("after"), "{structure}: {better}");
    }
    // As many zeros after training as before it.
    let args = "prune a.gguf --method taylor --pattern 2:4 --text text --row-tokens 64 --force";
    place.ok(&format!("{args} --recover text --steps 3 --out zeros.gguf"));
    let weights = place.tensor("zeros.gguf", "blk.0.ffn_up.weight");
    assert!(weights.chunks(4).all(|four| four.iter().filter(|w| **w == 0.0).count() == 2));
    // A key and value head, and its two heads of queries, of the built-in model.
    let sprout = fixture("../../models/sprout.gguf");
    place.ok(&format!("prune {} --structure heads --sparsity 0.5 --out heads.gguf", sprout.display()));
    let bytes = fs::read(place.path("heads.gguf")).unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    let key = |name: &str| gguf.metadata().u32(&format!("qwen3.attention.{name}")).unwrap();
    assert_eq!(["head_count", "head_count_kv", "key_length"].map(key), [Some(2), Some(1), Some(64)]);
    place.ok("run -m heads.gguf -n 4 Hello");
}

#[test]
fn prunings_that_make_no_sense_are_refused_before_anything_is_written() {
    let place = Place::new();
    let q1 = fixture("../../models/sprout-q1.gguf");
    for (args, problem) in [
        ("a.gguf --sparsity 1".to_string(), "the sparsity is 1, expected 0 to less than 1"),
        ("a.gguf --sparsity nan".into(), "the sparsity is NaN"),
        ("a.gguf --pattern 4:4".into(), "the pattern is 4:4, expected N:M"),
        ("a.gguf --pattern 2:5".into(), "expected a multiple of 5"),
        ("a.gguf --sparsity 0.5 --tensor blk.7.*".into(), "no tensor matches \"blk.7.*\""),
        ("a.gguf --sparsity 0.5 --structure rows --global".into(), "it compares single weights"),
        ("a.gguf --sparsity 0.9 --structure layers".into(), "2 of 2, expected less than all"),
        ("a.gguf --sparsity 0.5 --method taylor".into(), "--method taylor: expected --text"),
        (format!("{} --sparsity 0.5", q1.display()), "would be Q1_0, which has no 0"),
    ] {
        place.fails(&format!("prune {args} --out out.gguf"), problem);
        assert!(!place.path("out.gguf").exists(), "{args}");
    }
}

#[test]
fn compression_keeps_to_its_estimate_and_its_target() {
    let place = Place::new();
    let text = "Mia has a red kite. The kite flies over the old mill. A crow takes the string.\n".repeat(4);
    fs::write(place.path("text"), text).unwrap();
    let size = |file: &str| fs::metadata(place.path(file)).unwrap().len();
    let near = |found: u64, expected: &Value| {
        let expected = expected.as_u64().unwrap() as f64;
        assert!((found as f64 - expected).abs() <= 0.02 * expected, "{found} {expected}");
    };
    // Types, with parts left out before: what is expected is what comes out, to the byte.
    let args = "compress a.gguf --structure layers --sparsity 0.5 --type q6_k --tensor token_embd=f16 --json";
    let expected = place.json(&format!("{args} --estimate --out typed.gguf"));
    assert!(!place.path("typed.gguf").exists());
    let done =
        place.json(&format!("{args} --recover text --steps 2 --row-tokens 64 --text text --out typed.gguf"));
    assert_eq!(size("typed.gguf"), done["bytes"].as_u64().unwrap());
    assert_eq!((&done["bytes"], &done["difference"]), (&expected["estimate"]["bytes"], &0.0.into()));
    let steps: Vec<_> = done["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str()).collect();
    assert_eq!(steps, ["as it is", "pruned", "recovered", "compressed"].map(Some));
    // A number of bytes, of which the largest part is used, and a named tensor keeps its format.
    let least = place.json("compress a.gguf --target-bytes 1GB --estimate --json --out out.gguf");
    let (least, most) = (&least["estimate"]["least"], &least["estimate"]["most"]);
    let target = (least.as_u64().unwrap() + most.as_u64().unwrap()) / 2;
    let args = format!("compress a.gguf --target-bytes {target} --tensor blk.0.attn_q=f16 --json --force");
    let done = place.json(&format!("{args} --out bytes.gguf"));
    let bytes = done["bytes"].as_u64().unwrap();
    assert!(bytes <= target && bytes == size("bytes.gguf"));
    near(bytes, &done["estimate"]["bytes"]);
    assert!(bytes > target * 9 / 10, "{bytes} {target}");
    let bytes = fs::read(place.path("bytes.gguf")).unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    let format =
        |name: &str| gguf.tensors().iter().find(|info| info.name() == name).unwrap().format().unwrap();
    assert_eq!(format("blk.0.attn_q.weight"), shohin_core::Format::F16);
    place.ok("run -m bytes.gguf -n 4 Hello");
    // A perplexity, with the smallest file that was found.
    let before = place.json("eval -m a.gguf text --json")["perplexity"].as_f64().unwrap();
    let target = 1.003 * before;
    let args =
        format!("compress a.gguf --target-perplexity {target} --text text --json --out perplexity.gguf");
    let done = place.json(&args);
    let last = done["steps"].as_array().unwrap().last().unwrap()["perplexity"].as_f64().unwrap();
    assert!(last <= target, "{last} {target}");
    near(size("perplexity.gguf"), &done["estimate"]["bytes"]);
    let tried = done["tried"].as_array().unwrap();
    assert!(tried.iter().any(|tried| tried["perplexity"].as_f64().unwrap() > target), "{tried:?}");
    for (args, problem) in [
        (format!("--target-bytes {}", least.as_u64().unwrap() - 1), "expected at least"),
        ("--target-bytes 1GB --formats q7".into(), "expected one of"),
        ("--target-perplexity 0.5 --text text".into(), "expected a number of at least 1"),
        ("--target-perplexity 1.01 --text text".into(), "the model in the largest of --formats has"),
        ("--type f16 --recover text".into(), "expected --sparsity or --pattern"),
        ("--type f16 --tensor blk.9.*=f16".into(), "no tensor matches"),
        ("--type f16 --sparsity 2".into(), "the sparsity is 2"),
        ("--type f16 --out out".into(), "ends in .gguf"),
    ] {
        let out = if args.contains("--out") { "" } else { " --out out.gguf" };
        place.fails(&format!("compress a.gguf {args}{out}"), problem);
        assert!(!place.path("out.gguf").exists(), "{args}");
    }
}

/// The tokens of a fixture, as `calibrate` and `logits` read them.
fn write_tokens(place: &Place, tokens: &Value) {
    let ids: Vec<u32> = tokens.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    fs::write(place.path("tokens"), ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    fs::write(place.path("ids"), ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")).unwrap();
}

/// Beside tests/oracle/smooth.py.
#[test]
fn smoothed_models_have_the_factors_of_the_paper_and_the_same_logits() {
    let place = Place::new();
    let expected: Value = serde_json::from_slice(&fs::read(fixture("smooth.json")).unwrap()).unwrap();
    write_tokens(&place, &expected["tokens"]);
    place.ok("calibrate a.gguf --tokens tokens --window 24 --out stats --imatrix matrix.gguf");
    let done = place.json("smooth a.gguf --stats stats --alpha 0.6 --out smooth.gguf --json");
    let groups = done["groups"].as_array().unwrap();
    assert_eq!(groups.len(), expected["factors"].as_object().unwrap().len());
    for group in groups {
        assert!(group["outlier"][1].as_f64() <= group["outlier"][0].as_f64(), "{group}");
        let from = group["from"].as_str().unwrap();
        let factors: Vec<f64> =
            expected["factors"][from].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        for to in group["to"].as_array().unwrap() {
            // Rows of these are divided by factors of their own.
            let name = to.as_str().unwrap();
            let own = expected["factors"].get(name).map(|_| done["groups"].as_array().unwrap());
            let (before, after) = (place.tensor("a.gguf", name), place.tensor("smooth.gguf", name));
            let rows = before.len() / factors.len();
            for row in 0..rows {
                let of_row = own.map_or(1.0, |_| {
                    let all = expected["factors"][name].as_array().unwrap();
                    // Both heads of queries share the head of values, so that the first factors are its own.
                    all[row].as_f64().unwrap()
                });
                for (col, factor) in factors.iter().enumerate() {
                    let at = row * factors.len() + col;
                    let wanted = f64::from(before[at]) * factor / of_row;
                    let error = (f64::from(after[at]) - wanted).abs();
                    assert!(
                        error <= 1e-4 * wanted.abs() + 1e-9,
                        "{name} {row} {col}: {} {wanted}",
                        after[at]
                    );
                }
            }
        }
    }
    let logits = |model: &str| -> Vec<f32> {
        place.ok(&format!("logits -m {model} --tokens ids --act f32 --kv f32 --force --out logits"));
        let bytes = fs::read(place.path("logits")).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
    };
    let same = |a: &[f32], b: &[f32]| {
        let largest = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * largest)
    };
    let before = logits("a.gguf");
    assert!(same(&before, &logits("smooth.gguf")));
    // A choice for each group, also in a folder.
    let done = place.json("smooth a.gguf --stats stats --search --for q4_0 --out smooth --json");
    assert!(done["groups"].as_array().unwrap().iter().any(|group| group["alpha"].as_f64().is_some()));
    assert!(same(&before, &logits("smooth")));
    // What has no such channels, or is of another model.
    let sprout = fixture("../../models/sprout-nano.gguf");
    let sprout = sprout.display();
    fs::write(place.path("text"), "Mia has a red kite. The kite flies over the old mill.").unwrap();
    place.ok(&format!("calibrate {sprout} --text text --window 8 --out sprout.stats"));
    for (args, problem) in [
        ("a.gguf --stats stats --alpha 1.5".into(), "alpha is 1.5, expected 0 to 1"),
        ("a.gguf --stats sprout.stats".into(), "is a calibration of another model"),
        (format!("{sprout} --stats sprout.stats"), "would be PQ2_0"),
        ("a.gguf --stats nothing".into(), "nothing"),
    ] {
        place.fails(&format!("smooth {args} --out out.gguf"), problem);
        assert!(!place.path("out.gguf").exists(), "{args}");
    }
}
