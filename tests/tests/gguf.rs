//! The GGUF reader and writer against gguf-py, against each other, and against themselves in pieces.

use shohin_core::gguf::{
    Array, Event, Gguf, GgufStream, GgufWriter, Id42, Kind, ReadOptions, TensorType, Value,
};
use shohin_core::{Error, Format};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::raw::{RawFile, RawTensor, RawValue};
use shohin_tests::reading::{assert_random_splits_agree, exercise, rewrite, streamed, whole};
use shohin_tests::vocabulary::Vocabulary;
use shohin_tests::{Random, data, meter};

const DEFAULT: ReadOptions = ReadOptions { limits: shohin_core::Limits::DEFAULT, id42: Id42::Auto };

fn raw(value: Value<'_>) -> Vec<u8> {
    RawValue::of(value).bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (i, entry) in table.iter_mut().enumerate() {
        *entry = (0..8).fold(i as u32, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 });
    }
    !bytes.iter().fold(!0, |c, b| table[((c ^ u32::from(*b)) & 255) as usize] ^ (c >> 8))
}

/// The lines of `oracle/gguf_readings.py`.
fn listing(name: &str, file: &[u8]) -> Vec<String> {
    let gguf = Gguf::parse(file).unwrap();
    exercise(&gguf);
    let mut lines = vec![format!("file {name} {}", file.len())];
    for (key, value) in gguf.metadata().iter() {
        let text = match value {
            Value::Str(s) => format!("string {:08x}", crc32(s)),
            Value::Array(a) => {
                format!("array {} {} {:08x}", a.kind().id(), a.len(), crc32(&raw(value)[12..]))
            }
            other => {
                let hex: String = raw(other).iter().map(|b| format!("{b:02x}")).collect();
                format!("{} {hex}", other.kind().id())
            }
        };
        lines.push(format!("kv {key} {text}"));
    }
    for t in gguf.tensors() {
        let dims: Vec<String> = t.dims().iter().map(u64::to_string).collect();
        let at = gguf.header().data_start() + t.offset();
        let (dims, crc) = (dims.join("x"), crc32(gguf.data(t)));
        lines.push(format!("tensor {} {} {dims} {at} {} {crc:08x}", t.name(), t.type_id(), t.len()));
    }
    lines
}

#[test]
fn readings_equal_gguf_py() {
    let readings = String::from_utf8(data("gguf_readings.txt").unwrap()).unwrap();
    let mut files = 0;
    for section in readings.split("file ").skip(1) {
        let name = section.split(' ').next().unwrap();
        let Some(file) = data(name) else { continue };
        let expected: Vec<String> = format!("file {section}").lines().map(String::from).collect();
        assert_eq!(listing(name, &file), expected);
        files += 1;
    }
    assert!(files >= 3, "the committed fixtures at least");
}

#[test]
fn writer_writes_what_gguf_py_writes() {
    let expected = data("gguf_py.gguf").unwrap();
    let mut w = GgufWriter::new();
    let mut write = || {
        w.set("general.architecture", "qwen3")?;
        w.set("kind.u8", 200u8)?;
        w.set("kind.i8", -100i8)?;
        w.set("kind.u16", 60000u16)?;
        w.set("kind.i16", -30000i16)?;
        w.set("kind.u32", 4_000_000_000u32)?;
        w.set("kind.i32", -2_000_000_000i32)?;
        w.set("kind.f32", 1.5e-6f32)?;
        w.set("kind.true", true)?;
        w.set("kind.false", false)?;
        w.set("kind.string", "こんにちは, 盆栽")?;
        w.set("kind.u64", (1u64 << 63) + 1)?;
        w.set("kind.i64", -(1i64 << 62))?;
        w.set("kind.f64", 1e300f64)?;
        w.set_strings("array.strings", ["a", "", "Ġthe"])?;
        w.set_array("array.i32", &[1i32, -2, 3])?;
        w.set_array("array.f32", &[0.5f32, -1.25])?;
        w.set_array("array.bool", &[true, false])?;
        w.tensor("f32.weight", &[5, 3], Format::F32)?;
        w.tensor("f16.weight", &[5, 3], Format::F16)?;
        w.tensor("q8_0.weight", &[32, 3], Format::Q8_0)?;
        w.tensor("q1_0.weight", &[256, 2], Format::Q1_0)?;
        w.tensor("one.weight", &[1], Format::F32)
    };
    write().unwrap();
    let f32s: Vec<u8> = (0..15).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let f16s: Vec<u8> = (0..15).flat_map(|i| half::f16::from_f32(i as f32 / 8.0).to_le_bytes()).collect();
    let counted = |n: usize| (0..n).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
    let file = w.to_vec([f32s, f16s, counted(102), counted(72), 7f32.to_le_bytes().into()]).unwrap();
    assert_eq!(file, expected);
}

fn rewritten(file: &[u8]) -> Vec<u8> {
    rewrite(&Gguf::parse(file).unwrap()).unwrap()
}

#[test]
fn files_survive_reading_and_writing() {
    let names = ["pq2_0", "ptq1_0", "q1_0", "q2_0_g128_legacy", "q2_0_g64", "tq1_0", "tq2_0"];
    let golden = names.map(|n| format!("golden_model/synth-micro-{n}.gguf"));
    let mut names: Vec<&str> = golden.iter().map(String::as_str).collect();
    names.extend(["gguf_py.gguf", "tiny/tiny-ternary-pq2_0.gguf", "vocab/ggml-vocab-qwen2.gguf"]);
    let mut files = 0;
    for file in names.iter().filter_map(|name| data(name)) {
        assert!(rewritten(&file) == file);
        files += 1;
    }
    assert!(files >= 3);
}

#[test]
fn golden_files_have_their_formats() {
    for (name, format) in [
        ("pq2_0", Format::Pq2_0),
        ("ptq1_0", Format::Ptq1_0),
        ("q1_0", Format::Q1_0),
        ("q2_0_g128_legacy", Format::Pq2_0),
        ("q2_0_g64", Format::Q2_0),
        ("tq1_0", Format::Tq1_0),
        ("tq2_0", Format::Tq2_0),
    ] {
        let Some(bytes) = data(&format!("golden_model/synth-micro-{name}.gguf")) else { continue };
        let gguf = Gguf::parse(&bytes).unwrap();
        let m = gguf.matrix("blk.0.attn_k.weight").unwrap();
        assert_eq!((m.format(), m.rows(), m.cols()), (format, 128, 256), "{name}");
        let norm = gguf.matrix("output_norm.weight").unwrap();
        assert_eq!((norm.format(), norm.rows(), norm.cols()), (Format::F32, 1, 256), "{name}");
    }
}

#[test]
fn every_type_is_measured_as_gguf_py_does() {
    // id, block, bytes: `gguf.GGML_QUANT_SIZES` of gguf-py 0.19. (Its Q8_1 of 40 bytes is older than ggml's
    // of 36.)
    let sizes: &[(u32, u32, u32)] = &[
        (0, 1, 4),
        (1, 1, 2),
        (2, 32, 18),
        (3, 32, 20),
        (6, 32, 22),
        (7, 32, 24),
        (8, 32, 34),
        (10, 256, 84),
        (11, 256, 110),
        (12, 256, 144),
        (13, 256, 176),
        (14, 256, 210),
        (15, 256, 292),
        (16, 256, 66),
        (17, 256, 74),
        (18, 256, 98),
        (19, 256, 50),
        (20, 32, 18),
        (21, 256, 110),
        (22, 256, 82),
        (23, 256, 136),
        (24, 1, 1),
        (25, 1, 2),
        (26, 1, 4),
        (27, 1, 8),
        (28, 1, 8),
        (29, 256, 56),
        (30, 1, 2),
        (34, 256, 54),
        (35, 256, 66),
        (36, 64, 16),
        (39, 32, 17),
        (40, 64, 36),
        (41, 128, 18),
    ];
    for (id, block, bytes) in sizes {
        let t = TensorType::of(*id).unwrap();
        assert_eq!((t.block, t.block_bytes), (*block, *bytes), "{}", t.name);
    }
    for t in TensorType::ALL {
        // Listed and measured, whether loadable or not.
        let row = u64::from(t.block);
        let file = RawFile::new()
            .tensor(RawTensor::new("t", &[row, 3], t.id, 0))
            .data((3 * t.block_bytes + t.tail) as usize);
        let file = file.build();
        let gguf = Gguf::parse(&file).unwrap();
        assert_eq!(gguf.tensors()[0].type_name(), t.name);
        assert_eq!(gguf.tensors()[0].len(), u64::from(3 * t.block_bytes + t.tail));
        match gguf.tensors()[0].format() {
            Some(f) => assert_eq!(gguf.matrix("t").unwrap().format(), f),
            None => assert_eq!(gguf.matrix("t").unwrap_err().code(), "tensor_type"),
        }
    }
    let loadable: Vec<_> = TensorType::ALL.iter().filter(|t| t.format().is_some()).map(|t| t.name).collect();
    let formats = Format::ALL.iter().filter(|f| f.gguf_id() != 42);
    assert!(formats.clone().all(|f| loadable.contains(&f.name())));
    assert_eq!(loadable.len(), formats.count());
}

#[test]
fn tensors_of_three_dimensions_are_stacked_matrices_and_others_are_refused() {
    let file = RawFile::new().tensor(RawTensor::new("t", &[4, 3, 2], 0, 0)).data(96).build();
    assert_eq!(Gguf::parse(&file).unwrap().matrix("t").unwrap().rows(), 6);
    let file = RawFile::new().tensor(RawTensor::new("t", &[4, 3, 1, 2], 0, 0)).data(96).build();
    let gguf = Gguf::parse(&file).unwrap();
    let error = gguf.matrix("t").unwrap_err();
    assert_eq!(error.to_string(), "tensor t is 4 x 3 x 1 x 2, expected 4 x 3");
    assert_eq!(gguf.matrix("u").unwrap_err().code(), "missing_tensor");
    let file = RawFile::new().tensor(RawTensor::new("t", &[4, 3, 1, 1], 0, 0)).data(48).build();
    assert_eq!(Gguf::parse(&file).unwrap().matrix("t").unwrap().rows(), 3);
    // A tensor of another file yields no bytes here, rather than wrong ones or a panic.
    let small = RawFile::new().build();
    let small = Gguf::parse(&small).unwrap();
    assert_eq!(small.data(&Gguf::parse(&file).unwrap().tensors()[0]), b"");
}

// Id 42.

/// A tiny model whose matrices have this storage.
fn tiny(stored: Stored) -> Vec<u8> {
    Model::new(Shape::tiny(), stored, 11).to_vec().unwrap()
}

fn format_of(file: &[u8], options: &ReadOptions) -> Format {
    Gguf::parse_with(file, options).unwrap().matrix("blk.1.ffn_up.weight").unwrap().format()
}

#[test]
fn id_42_is_told_apart() {
    assert_eq!(format_of(&tiny(Stored::new(Format::Q2_0)), &DEFAULT), Format::Q2_0);
    assert_eq!(format_of(&tiny(Stored::LEGACY), &DEFAULT), Format::Pq2_0);
    assert_eq!(format_of(&tiny(Stored::new(Format::Pq2_0)), &DEFAULT), Format::Pq2_0);
    // With the marker written by its converter.
    let marked = tiny(Stored::new(Format::Tq2_0G128));
    assert_eq!(format_of(&marked, &DEFAULT), Format::Tq2_0G128);
    // Without it, from the weights.
    let unmarked = RawFile::of(&marked).without("general.quantization_version").build();
    assert_eq!(format_of(&unmarked, &DEFAULT), Format::Tq2_0G128);
    let mut random = Random::new(3);
    for file in [tiny(Stored::new(Format::Q2_0)), tiny(Stored::LEGACY), marked, unmarked] {
        assert_random_splits_agree(&file, &DEFAULT, &mut random, 20);
        assert_eq!(streamed(&file, &DEFAULT, |_| 1), whole(&file, &DEFAULT));
    }
    // An option overrides the detected layout, if the sizes allow it.
    let legacy = tiny(Stored::LEGACY);
    assert_eq!(format_of(&legacy, &ReadOptions { id42: Id42::CodesFirst, ..DEFAULT }), Format::Tq2_0G128);
    assert_eq!(format_of(&legacy, &ReadOptions { id42: Id42::Group128, ..DEFAULT }), Format::Pq2_0);
    let wrong = whole(&legacy, &ReadOptions { id42: Id42::Group64, ..DEFAULT });
    assert_eq!(wrong.unwrap_err().code(), "tensor_range");
    // Id 142 has one meaning.
    let own = tiny(Stored::new(Format::Pq2_0));
    assert_eq!(format_of(&own, &ReadOptions { id42: Id42::CodesFirst, ..DEFAULT }), Format::Pq2_0);
}

#[test]
fn id_42_in_the_last_tensor_is_told_by_the_file_size() {
    // The embedding alone, with a norm before it.
    for (format, len) in [(Format::Q2_0, 36 * 40), (Format::Pq2_0, 34 * 40)] {
        for padded in [false, true] {
            let len = if padded { len + (32 - len % 32) % 32 } else { len };
            let file = RawFile::new()
                .tensor(RawTensor::new("norm", &[8], 0, 0))
                .tensor(RawTensor::new("embd", &[128, 40], 42, 32))
                .data(32 + len)
                .build();
            assert_eq!(Gguf::parse(&file).unwrap().matrix("embd").unwrap().format(), format);
            assert_eq!(streamed(&file, &DEFAULT, |_| 5), whole(&file, &DEFAULT));
        }
    }
}

#[test]
fn mixed_formats_are_read() {
    let formats: Vec<Stored> =
        Format::ALL.into_iter().filter(|f| *f != Format::Tq2_0G128).map(Stored::new).collect();
    let shape = Shape { layers: 5, ..Shape::tiny() };
    let model = Model { formats, ..Model::new(shape, Stored::LEGACY, 5) };
    let file = model.to_vec().unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    exercise(&gguf);
    let mut seen: Vec<Format> = gguf.tensors().iter().filter_map(|t| t.format()).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), Format::ALL.len() - 1);
    let untied = Shape { tied: false, ..Shape::tiny() };
    let file = Model::new(untied, Stored::new(Format::Q1_0), 5).to_vec().unwrap();
    assert_eq!(Gguf::parse(&file).unwrap().matrix("output.weight").unwrap().rows(), 320);
}

// Splits.

/// Small files of all sorts, also damaged ones.
fn small_files() -> Vec<Vec<u8>> {
    let sample = RawFile::sample();
    let mut cut = sample.build();
    cut.truncate(150);
    let mut junk = sample.build();
    junk.extend_from_slice(&[1; 40]);
    let nested = RawValue::array(
        9,
        2,
        &[RawValue::strings(&["a", "bc"]).bytes, RawValue::array(5, 1, &[1; 4]).bytes].concat(),
    );
    vec![
        Vec::new(),
        b"GGUF".into(),
        b"GGML\x03\0\0\0 and more".into(),
        RawFile::new().build(),
        sample.build(),
        cut,
        junk,
        sample.clone().entry("qwen3.block_count", RawValue::u32(2)).build(),
        RawFile::new().entry("nested", nested).entry("b", RawValue { kind: 7, bytes: vec![1] }).build(),
        RawFile::new().tensor(RawTensor::new("t", &[128, 2], 42, 0)).data(68).build(),
        RawFile::new()
            .tensor(RawTensor::new("b", &[4], 0, 64))
            .tensor(RawTensor::new("a", &[4], 0, 0))
            .data(96)
            .build(),
    ]
}

#[test]
fn every_split_of_small_files() {
    let (mut files, mut splits) = (0, 0);
    for file in small_files() {
        let expected = whole(&file, &DEFAULT);
        for piece in 1..=file.len() + 1 {
            assert_eq!(streamed(&file, &DEFAULT, |_| piece), expected, "pieces of {piece}");
        }
        // In two, and in three, at every place.
        for a in 1..file.len() {
            for b in a..file.len() {
                let cut = |at| {
                    if at < a {
                        a - at
                    } else if at < b {
                        b - at
                    } else {
                        usize::MAX - at
                    }
                };
                assert_eq!(streamed(&file, &DEFAULT, cut), expected, "at {a} and {b}");
                splits += 1;
            }
        }
        files += 1;
    }
    assert!(files > 10 && splits > 50_000, "{files} {splits}");
}

#[test]
fn random_splits_of_models() {
    let mut random = Random::new(17);
    let small = Shape { hidden: 256, layers: 1, ffn: 256, head_dim: 64, heads: 4, ..Shape::tiny() };
    for format in Format::ALL {
        let file = Model::new(small.clone(), Stored::new(format), 1).to_vec().unwrap();
        assert_random_splits_agree(&file, &DEFAULT, &mut random, 8);
    }
    for name in ["golden_model/synth-micro-q1_0.gguf", "golden_model/synth-micro-q2_0_g64.gguf"] {
        assert_random_splits_agree(&data(name).unwrap(), &DEFAULT, &mut random, 8);
    }
}

#[test]
fn stream_holds_no_weights() {
    let model = Model::new(Shape { hidden: 1024, vocab: 8192, ..Shape::tiny() }, Stored::LEGACY, 2);
    let file = model.to_vec().unwrap();
    // A tensor longer than the held-back window arrives complete, too.
    assert!(streamed(&file, &DEFAULT, |_| 30_000) == whole(&file, &DEFAULT));
    let header = Gguf::parse(&file).unwrap().header().data_start() as usize;
    let mut got = 0;
    let (done, used) = meter::measure(|| {
        let mut stream = GgufStream::new(file.len() as u64, DEFAULT);
        for chunk in file.chunks(100_000) {
            stream.push(chunk, &mut |event| {
                if let Event::TensorData { bytes, .. } = event {
                    got += bytes.len();
                }
                Ok(())
            })?;
        }
        stream.finish()
    });
    done.unwrap();
    assert!(got > 4 << 20, "{got}");
    // The header buffer may be growing, beside a step of 64 kB and the window of 70 kB.
    assert!(used.peak < 3 * header + (256 << 10), "{} for a header of {header}", used.peak);
}

#[test]
fn stream_refuses_misuse() {
    let file = RawFile::sample().build();
    let nothing = &mut |_: Event<'_>| Ok(());
    let mut stream = GgufStream::new(file.len() as u64, DEFAULT);
    assert_eq!(stream.header(), Ok(None));
    stream.push(&file[..100], nothing).unwrap();
    assert_eq!(stream.received(), 100);
    let missing = file.len() as u64 - 100;
    assert_eq!(stream.finish(), Err(Error::Truncated { what: "file", at: 100, need: missing, have: 0 }));
    stream.push(&file[100..], nothing).unwrap();
    stream.finish().unwrap();
    assert_eq!(stream.push(b"x", nothing).unwrap_err().code(), "length");
    // The host's own error ends it too.
    let mut stream = GgufStream::new(file.len() as u64, DEFAULT);
    let full = Error::Memory { need: 1, have: 0 };
    assert_eq!(stream.push(&file, &mut |_| Err(full)), Err(full));
    assert_eq!(stream.push(&[], nothing), Err(full));
    assert_eq!(stream.finish(), Err(full));
}

// Metadata.

#[test]
fn accessors_say_what_is_wrong() {
    let mut w = GgufWriter::new();
    w.set("int", 7u64).unwrap();
    w.set("negative", -7i32).unwrap();
    w.set("large", 1u64 << 32).unwrap();
    w.set("float", 0.5f64).unwrap();
    w.set("text", "yes").unwrap();
    w.set("bytes", Value::Str(b"\xff")).unwrap();
    w.set_array("numbers", &[1u32, 2]).unwrap();
    w.set("prism.hadamard.version", 1u32).unwrap();
    let file = w.header().unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.u32("int"), Ok(Some(7)));
    assert_eq!(m.u32("absent"), Ok(None));
    assert_eq!(m.need("absent", m.u32("absent").unwrap()).unwrap_err().code(), "missing_key");
    assert_eq!(m.u32("negative").unwrap_err().code(), "key_value");
    assert_eq!(m.u32("large").unwrap_err().code(), "key_value");
    assert_eq!(m.u64("large"), Ok(Some(1 << 32)));
    assert_eq!(m.u32("text").unwrap_err().code(), "key_type");
    assert_eq!(m.f32("float"), Ok(Some(0.5)));
    assert_eq!(m.f32("int").unwrap_err().code(), "key_type");
    assert_eq!(m.str("text"), Ok(Some("yes")));
    assert_eq!(m.str("bytes").unwrap_err().code(), "unsupported");
    assert_eq!(m.bool("text").unwrap_err().code(), "key_type");
    assert_eq!(m.u32s("numbers").unwrap().unwrap().collect::<Vec<_>>(), [1, 2]);
    assert!(m.strings("numbers").is_err_and(|e| e.to_string().contains("array of strings")));
    assert!(m.f32s("numbers").is_err());
    let refused = m.refuse("prism.hadamard.", "weights that are not rotated").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "prism.hadamard.version is \"u32\", which is not supported; expected weights that are not rotated"
    );
    assert_eq!(m.refuse("prism.other.", ""), Ok(()));
}

#[test]
fn random_metadata_survives_writing_and_reading() {
    let mut random = Random::new(5);
    for _ in 0..200 {
        let mut w = GgufWriter::new();
        let mut expected: Vec<(String, String)> = Vec::new();
        for i in 0..random.below(20) {
            let key = format!("k{}.{i}", "x".repeat(random.below(40)));
            let bits = random.next();
            let text = format!("{bits:x}");
            let value: Value<'_> = match random.below(12) {
                0 => (bits as u8).into(),
                1 => (bits as i8).into(),
                2 => (bits as u16).into(),
                3 => (bits as i16).into(),
                4 => (bits as u32).into(),
                5 => (bits as i32).into(),
                6 => random.unit().into(),
                7 => (bits & 1 == 1).into(),
                8 => text.as_str().into(),
                9 => bits.into(),
                10 => (bits as i64).into(),
                _ => f64::from(random.unit()).into(),
            };
            if random.below(4) == 0 {
                let strings: Vec<String> = (0..random.below(9)).map(|n| "é".repeat(n)).collect();
                w.set_strings(&key, &strings).unwrap();
                expected.push((key, format!("{strings:?}")));
            } else {
                w.set(&key, value).unwrap();
                expected.push((key, format!("{value:?}")));
            }
        }
        let file = w.header().unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        exercise(&gguf);
        let text = |a: Array<'_>| {
            let strings = a.iter().map(|v| match v {
                Value::Str(s) => String::from_utf8(s.into()).unwrap(),
                _ => panic!(),
            });
            format!("{:?}", strings.collect::<Vec<_>>())
        };
        let got: Vec<(String, String)> = gguf
            .metadata()
            .iter()
            .map(|(key, v)| {
                let shown = match v {
                    Value::Array(a) if a.kind() == Kind::Str => text(a),
                    other => format!("{other:?}"),
                };
                (key.into(), shown)
            })
            .collect();
        assert_eq!(got, expected);
        assert_eq!(rewritten(&file), file);
    }
}

#[test]
fn writer_refuses_what_the_reader_would() {
    let mut w = GgufWriter::new();
    w.set("a", 1u32).unwrap();
    assert_eq!(w.set("a", 2u32).unwrap_err().code(), "duplicate");
    assert_eq!(w.set("", 2u32).unwrap_err().code(), "unsupported");
    assert_eq!(w.set("general.alignment", 3u32).unwrap_err().code(), "key_value");
    assert_eq!(w.set("general.alignment", 1u32 << 21).unwrap_err().code(), "key_value");
    assert_eq!(w.set("general.alignment", 32u64).unwrap_err().code(), "key_value");
    w.tensor("t", &[128], Format::Q1_0).unwrap();
    assert_eq!(w.tensor("t", &[128], Format::Q1_0).unwrap_err().code(), "duplicate");
    for dims in [&[][..], &[0], &[64], &[128, 0], &[128, 1, 1, 1, 1], &[1 << 40, 1 << 40]] {
        assert_eq!(w.tensor("u", dims, Format::Q1_0).unwrap_err().code(), "tensor_type", "{dims:?}");
    }
    assert_eq!(w.to_vec([[0u8; 17]]).unwrap_err().code(), "length");
    assert_eq!(w.to_vec([[0u8; 19]]).unwrap_err().code(), "length");
    // The reader accepts any alignment that the writer accepts.
    let mut w = GgufWriter::new();
    w.set("general.alignment", 4096u32).unwrap();
    w.tensor("a", &[1], Format::F32).unwrap();
    w.tensor("b", &[1], Format::F32).unwrap();
    let file = w.to_vec([[1u8; 4], [2; 4]]).unwrap();
    assert_eq!(file.len(), 3 * 4096);
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(gguf.matrix("b").unwrap().data(), [2; 4]);
}

#[test]
fn published_shapes_have_the_published_sizes() {
    // Sizes of synthetic files with Qwen3's vocabulary and without chat template: 4.3 kB less than the
    // published files.
    let vocabulary = data("vocab/ggml-vocab-qwen2.gguf");
    let vocabulary = vocabulary.map(|file| Vocabulary::qwen3(&Gguf::parse(&file).unwrap()).unwrap());
    let Some(vocabulary) = vocabulary else { return };
    for (shape, format, bytes) in [("1.7b", "q1_0", 248_297_984), ("1.7b", "q2_0_legacy", 463_286_016)] {
        assert_eq!(model_len(shape, format, &vocabulary), bytes);
    }
    // The published files also contain a chat template and some descriptive keys.
    for (shape, format, published) in [
        ("1.7b", "q1_0", 248_302_272),
        ("4b", "q1_0", 572_270_624),
        ("8b", "q1_0", 1_158_654_496),
        ("1.7b", "q2_0_legacy", 463_290_464),
        ("4b", "q2_0_legacy", 1_074_969_344),
        ("8b", "q2_0_legacy", 2_182_184_672),
    ] {
        let rest = published - model_len(shape, format, &vocabulary);
        assert!((4_000..5_000).contains(&rest), "{shape} {format}: {rest}");
    }
}

fn model_len(shape: &str, format: &str, vocabulary: &Vocabulary) -> u64 {
    let name = format!("random-{shape}-{format}");
    let model = Model::new(Shape::published(shape).unwrap(), Stored::named(format).unwrap(), 1);
    Model { name, ..model }.file_len(vocabulary).unwrap()
}
