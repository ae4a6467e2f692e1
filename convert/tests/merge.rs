//! Adapters merged into weights, against the formula in f64, also as `tests/oracle/lora.py` computed it.

use shohin_convert::{ConvertOptions, Converted, Error, Int8, Mix, convert, merge};
use shohin_core::gguf::{Gguf, GgufWriter, Value};
use shohin_core::{Format, KvFormat, quant};
use shohin_tests::cpu::{all_logits, device, exact, in_format};
use shohin_tests::lora::Adapter;
use shohin_tests::model::Model;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// A folder with a model and an adapter of some of its matrices.
struct Place {
    dir: TempDir,
    base: Vec<u8>,
    adapter: Adapter,
}

impl Place {
    fn new(format: Format) -> Place {
        let dir = TempDir::new().unwrap();
        let base = Model::tiny(format);
        let names = ["attn_q.", "attn_v.", "ffn_up", "ffn_down"];
        let adapter = Adapter::random(&Gguf::parse(&base).unwrap(), &names, 4, 0.1, 1);
        fs::write(dir.path().join("base.gguf"), &base).unwrap();
        fs::write(dir.path().join("lora.gguf"), adapter.to_vec()).unwrap();
        Place { dir, base, adapter }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `from`, merged with the adapter at `scale`.
    fn merged(
        &self,
        from: &str,
        scale: f32,
        options: &ConvertOptions,
    ) -> Result<(Converted, Vec<u8>), Error> {
        merged(&self.path(from), &[(self.path("lora.gguf"), scale)], options)
    }
}

fn merged(
    base: &Path,
    adapters: &[(PathBuf, f32)],
    options: &ConvertOptions,
) -> Result<(Converted, Vec<u8>), Error> {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.gguf");
    let (mut last, mut whole) = (0, 0);
    let done = merge(base, adapters, &out, options, |written, of| {
        assert!(written > last && written <= of);
        (last, whole) = (written, of);
    });
    let Ok(done) = done else {
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        return Err(done.unwrap_err());
    };
    let bytes = fs::read(&out).unwrap();
    assert_eq!((done.bytes, last, whole), (bytes.len() as u64, done.bytes, done.bytes));
    Ok((done, bytes))
}

/// All weights by the names of their tensors.
fn weights(file: &[u8]) -> Vec<(String, Format, Vec<f32>)> {
    let gguf = Gguf::parse(file).unwrap();
    let tensor = |tensor: &shohin_core::gguf::TensorInfo<'_>| {
        let mut weights = vec![0.0; tensor.elements() as usize];
        let format = tensor.format().unwrap();
        quant::unpack(format, gguf.data(tensor), &mut weights).unwrap();
        (tensor.name().to_string(), format, weights)
    };
    gguf.tensors().iter().map(tensor).collect()
}

/// A model of a few tokens without a tokenizer, with one, and rows of zeros for the tokens that it has more.
fn with_tokenizer(file: &[u8]) -> Vec<u8> {
    let (file, other) = (Gguf::parse(file).unwrap(), Model::tiny(Format::F16));
    let other = Gguf::parse(&other).unwrap();
    let mut w = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        w.set(key, value).unwrap();
    }
    for (key, value) in other.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        w.set(key, value).unwrap();
    }
    let vocab = other.tensor("token_embd.weight").unwrap().dims()[1];
    let mut data = Vec::new();
    for tensor in file.tensors() {
        let (mut dims, mut bytes) = (tensor.dims().to_vec(), file.data(tensor).to_vec());
        if ["token_embd.weight", "output.weight"].contains(&tensor.name()) {
            bytes.resize(bytes.len() / dims[1] as usize * vocab as usize, 0);
            dims[1] = vocab;
        }
        w.tensor(tensor.name(), &dims, tensor.format().unwrap()).unwrap();
        data.push(bytes);
    }
    w.to_vec(data).unwrap()
}

fn logits(file: &[u8]) -> Vec<f32> {
    let tokens: Vec<u32> = (0..24).map(|i| (7 * i * i + 3 * i + 1) % 96).collect();
    all_logits(&mut device(file, &exact()).unwrap(), &tokens, &in_format(KvFormat::F32)).unwrap()
}

fn floats(path: &Path) -> Vec<f32> {
    fs::read(path).unwrap().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d <= m { m } else { d })
}

fn f32s() -> ConvertOptions {
    ConvertOptions::new().file_type(Format::F32)
}

#[test]
fn weights_are_the_sum_in_f64() {
    for format in [Format::F32, Format::Bf16, Format::Q8_0, Format::Q1_0, Format::Pq2_0] {
        let place = Place::new(format);
        for scale in [1.0, 0.5, -2.0] {
            let (done, file) = place.merged("base.gguf", scale, &f32s()).unwrap();
            let expected = weights(&place.adapter.merged(&Gguf::parse(&place.base).unwrap(), scale.into()));
            for ((name, format, found), (other, _, expected)) in weights(&file).iter().zip(&expected) {
                assert_eq!((name, *format), (other, Format::F32));
                assert!(found == expected, "{format:?} {scale} {name}");
            }
            for tensor in &done.tensors {
                let is_adapted = place.adapter.pairs.iter().any(|pair| pair.name == tensor.name);
                assert_eq!(tensor.merge.is_some(), is_adapted, "{}", tensor.name);
                let Some(merge) = tensor.merge else { continue };
                assert!(merge.relative_error() < 1e-7 && tensor.error < 1e-7, "{merge:?}");
                assert!(
                    (merge.kept() - 1.0).abs() < 1e-5 && (merge.change() - 1.0).abs() < 1e-5,
                    "{merge:?}"
                );
            }
        }
    }
}

/// `tests/oracle/lora.py`
#[test]
fn merged_models_say_what_the_formula_says() {
    let dir = TempDir::new().unwrap();
    let base = dir.path().join("base.gguf");
    fs::write(&base, with_tokenizer(&fs::read(fixture("qwen3-untied.gguf")).unwrap())).unwrap();
    let [every, some] = ["lora/all.gguf", "lora/some.gguf"].map(fixture);
    for (want, adapters) in [
        ("lora/all.logits", vec![(every.clone(), 1.0)]),
        ("lora/both.logits", vec![(every.clone(), 0.5), (some, -2.0)]),
    ] {
        let (_, file) = merged(&base, &adapters, &f32s()).unwrap();
        let found = logits(&file);
        let found: Vec<f32> = found.chunks(found.len() / 24).flat_map(|row| &row[..96]).copied().collect();
        let worst = apart(&found, &floats(&fixture(want)));
        assert!(worst < 1e-4, "{want}: {worst}");
    }
    // Folders of both, with Llama's order of rows.
    let (base, lora) = (fixture("hf/llama"), fixture("hf/llama-lora"));
    let (_, file) = merged(&base, &[(lora.clone(), 1.0)], &f32s()).unwrap();
    let texts = fs::read(base.join("texts.json")).unwrap();
    let texts: Vec<(String, Vec<u32>)> = serde_json::from_slice(&texts).unwrap();
    let run = |file: &[u8]| {
        all_logits(&mut device(file, &exact()).unwrap(), &texts[0].1, &in_format(KvFormat::F32)).unwrap()
    };
    let worst = apart(&run(&file), &floats(&lora.join("logits.f32")));
    assert!(worst < 1e-4, "{worst}");
    // And of a GGUF file.
    let gguf = dir.path().join("llama.gguf");
    convert(&base, &gguf, &ConvertOptions::new(), |_, _| ()).unwrap();
    let (_, other) = merged(&gguf, &[(lora, 1.0)], &f32s()).unwrap();
    let [other, file] = [other, file].map(|file| weights(&file));
    assert!(other.iter().all(|tensor| file.contains(tensor)));
}

#[test]
fn a_negative_scale_takes_an_adapter_out() {
    let place = Place::new(Format::F32);
    let (_, file) = place.merged("base.gguf", 1.0, &f32s()).unwrap();
    fs::write(place.path("merged.gguf"), &file).unwrap();
    let (_, back) = place.merged("merged.gguf", -1.0, &f32s()).unwrap();
    let (base, merged, back) = (weights(&place.base), weights(&file), weights(&back));
    assert!(base != merged);
    for ((name, _, base), ((_, _, merged), (_, _, back))) in
        base.iter().zip(merged.iter().map(|m| (&m.0, m.1, &m.2)).zip(back.iter().map(|b| (&b.0, b.1, &b.2))))
    {
        for ((base, merged), back) in base.iter().zip(merged).zip(back) {
            // Each of two sums is rounded once.
            let most = f32::EPSILON * base.abs().max(merged.abs());
            assert!((base - back).abs() <= most, "{name}: {base} {back}");
        }
    }
}

#[test]
fn what_no_adapter_changes_keeps_its_bytes() {
    let place = Place::new(Format::Q8_0);
    let base = Gguf::parse(&place.base).unwrap();
    let check = |file: &[u8], is_changed: &dyn Fn(&str) -> bool| {
        let gguf = Gguf::parse(file).unwrap();
        assert_eq!(gguf.tensors().len(), base.tensors().len());
        for tensor in gguf.tensors() {
            let before = base.tensor(tensor.name()).unwrap();
            assert_eq!(tensor.format(), before.format());
            let same = gguf.data(tensor) == base.data(before);
            assert_eq!(same, !is_changed(tensor.name()), "{}", tensor.name());
        }
    };
    let adapted = |name: &str| place.adapter.pairs.iter().any(|pair| pair.name == name);
    for options in [ConvertOptions::new(), ConvertOptions::new().file_type(Format::Q8_0)] {
        let (_, file) = place.merged("base.gguf", 1.0, &options).unwrap();
        check(&file, &adapted);
        // At 0, all do.
        check(&place.merged("base.gguf", 0.0, &options).unwrap().1, &|_| false);
    }
    // Also rows to which 0 is added.
    let mut begun = place.adapter.clone();
    begun.pairs.iter_mut().for_each(|pair| pair.b.fill(0.0));
    fs::write(place.path("lora.gguf"), begun.to_vec()).unwrap();
    let (done, file) = place.merged("base.gguf", 1.0, &ConvertOptions::new()).unwrap();
    check(&file, &|_| false);
    assert!(done.tensors.iter().all(|tensor| tensor.error == 0.0));
    // Others are written as `quantize` does.
    let (_, file) = place.merged("base.gguf", 1.0, &ConvertOptions::new().file_type(Format::F16)).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(gguf.metadata().get("general.file_type"), Some(Value::U32(1)));
    assert!(gguf.tensors().iter().all(|t| matches!(t.format(), Some(Format::F16 | Format::F32))));
    let out = place.path("plain.gguf");
    convert(place.path("base.gguf"), &out, &ConvertOptions::new().file_type(Format::F16), |_, _| ()).unwrap();
    let plain = fs::read(out).unwrap();
    let plain = Gguf::parse(&plain).unwrap();
    for tensor in gguf.tensors().iter().filter(|tensor| !adapted(tensor.name())) {
        assert!(gguf.data(tensor) == plain.data(plain.tensor(tensor.name()).unwrap()));
    }
}

#[test]
fn the_error_is_what_was_stored_against_the_sum() {
    let place = Place::new(Format::F32);
    let base = weights(&place.base);
    let exact = weights(&place.merged("base.gguf", 1.0, &f32s()).unwrap().1);
    let types = [
        Format::F16.into(),
        Format::Q8_0.into(),
        Format::Q4_0.into(),
        Mix::Q4KM.into(),
        Int8::PerTensor.into(),
        Int8::PerChannel.into(),
    ];
    for (options, most) in types.into_iter().map(|t: shohin_convert::FileType| {
        (ConvertOptions::new().file_type(t), if t == Format::F16.into() { 1e-3 } else { 0.2 })
    }) {
        let (done, file) = place.merged("base.gguf", 1.0, &options).unwrap();
        let mut adapted = 0;
        for (((tensor, (_, _, stored)), (_, _, sum)), (_, _, base)) in
            done.tensors.iter().zip(weights(&file)).zip(&exact).zip(&base)
        {
            let Some(merge) = tensor.merge else { continue };
            adapted += 1;
            let norm = |x: &dyn Fn(usize) -> f32| {
                (0..sum.len()).map(|i| f64::from(x(i)).powi(2)).sum::<f64>().sqrt()
            };
            let delta = norm(&|i| sum[i] - base[i]);
            let product: f64 =
                (0..sum.len()).map(|i| f64::from(sum[i] - base[i]) * f64::from(stored[i] - base[i])).sum();
            let near = |found: f64, want: f64| assert!((found / want - 1.0).abs() < 1e-4, "{found} {want}");
            near(merge.relative_error(), norm(&|i| stored[i] - sum[i]) / norm(&|i| sum[i]));
            near(tensor.error, merge.relative_error());
            near(merge.change(), norm(&|i| stored[i] - base[i]) / delta);
            near(merge.kept(), product / delta.powi(2));
            assert!(tensor.error > 0.0 && tensor.error < most, "{} {}", tensor.name, tensor.error);
        }
        assert_eq!(adapted, place.adapter.pairs.len());
    }
}

#[test]
fn formats_of_one_bit_are_refused_unless_asked_for() {
    for (format, kind) in [(Format::Q1_0, "1-bit"), (Format::Pq2_0, "ternary"), (Format::Tq2_0, "ternary")] {
        let place = Place::new(if format == Format::Tq2_0 { Format::F16 } else { format });
        let options = ConvertOptions::new().file_type(format);
        let error = place.merged("base.gguf", 1.0, &options).unwrap_err().to_string();
        let of = format!("would be {} with what is added to it, but {kind} weights round", format.name());
        assert!(error.contains("tensor blk.0.") && error.contains(&of), "{error}");
        let (done, _) = place.merged("base.gguf", 1.0, &options.requantize(true)).unwrap();
        assert!(done.tensors.iter().any(|tensor| tensor.to == format && tensor.merge.is_some()));
        // Tensors beside the adapted ones may be so.
        let rules = place.adapter.pairs.iter().map(|pair| format!("{}=f16", pair.name).parse().unwrap());
        place.merged("base.gguf", 1.0, &ConvertOptions::new().rules(rules.collect())).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let place = Place::new(Format::F16);
    let refused = |adapter: &Adapter, expected: &str| {
        fs::write(place.path("lora.gguf"), adapter.to_vec()).unwrap();
        let error = place.merged("base.gguf", 1.0, &f32s()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("lora.gguf"), "{error}");
    };
    let changed = |change: &dyn Fn(&mut Adapter)| {
        let mut adapter = place.adapter.clone();
        change(&mut adapter);
        adapter
    };
    refused(
        &changed(&|adapter| adapter.architecture = "llama".into()),
        "general.architecture is \"llama\", expected qwen3",
    );
    refused(
        &changed(&|adapter| adapter.pairs[0].name = "blk.99.attn_q.weight".into()),
        "is not one of the model's",
    );
    for name in ["token_embd.weight", "blk.0.attn_norm.weight"] {
        refused(
            &changed(&|adapter| adapter.pairs[0].name = name.into()),
            "cannot be adapted, expected one of",
        );
    }
    refused(&changed(&|adapter| drop(adapter.pairs[0].b.drain(..4))), "has the shape [");
    let adapter = [(place.path("lora.gguf"), f32::NAN)];
    fs::write(&adapter[0].0, place.adapter.to_vec()).unwrap();
    let error = merged(&place.path("base.gguf"), &adapter, &f32s()).unwrap_err().to_string();
    assert!(error.contains("the scale of an adapter is NaN, expected a finite number"), "{error}");
    // An adapter is no base.
    let error = place.merged("lora.gguf", 1.0, &f32s()).unwrap_err().to_string();
    assert!(error.contains("lora.gguf"), "{error}");
}
