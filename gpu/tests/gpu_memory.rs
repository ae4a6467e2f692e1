//! GPU memory of the published models, computed from their headers: no GPU needed.

use shohin_core::gguf::{GgufStream, ReadOptions};
use shohin_core::{Error as CoreError, Format, Gguf, KvFormat, SessionOptions};
use shohin_gpu::{Error, GpuDeviceOptions, UploadPlan};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::vocabulary::{QWEN3, Vocabulary};
use std::sync::LazyLock;

/// That of all published models, which takes a second to make.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary::synthetic(QWEN3, 1));

/// The plan for a model of these formats, in turn by matrix, and the length of its file, without the weights.
fn upload(shape: Shape, formats: &[Format]) -> (UploadPlan, u64) {
    let vocabulary = &*VOCABULARY;
    let formats = formats.iter().copied().map(Stored::new).collect();
    let model = Model { formats, ..Model::new(shape, Stored::new(Format::F32), 1) };
    let len = model.file_len(vocabulary).unwrap();
    let mut stream = GgufStream::new(len, ReadOptions::default());
    let enough = CoreError::Logits { problem: "that was the header" };
    let written = model.write(vocabulary, |bytes| {
        stream.push(bytes, &mut |_| Ok(()))?;
        if stream.header()?.is_some() { Err(enough) } else { Ok(()) }
    });
    assert_eq!(written, Err(enough));
    (UploadPlan::new(&stream.header().unwrap().unwrap()).unwrap(), len)
}

#[test]
fn alibi_is_refused_by_name() {
    let file =
        Model::new(Shape { max_alibi_bias: 8.0, ..Shape::tiny() }, Stored::new(Format::Q1_0), 1).to_vec();
    let refused = UploadPlan::new(Gguf::parse(&file.unwrap()).unwrap().header()).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("attention.max_alibi_bias, or the option alibi") && text.contains("the CPU"),
        "{text}"
    );
}

#[test]
fn mixtures_of_depths_are_refused_by_name() {
    let shape = Shape { depth_routers: true, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let refused = UploadPlan::new(Gguf::parse(&file).unwrap().header()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("blk.N.depth_router.weight") && text.contains("the CPU"), "{text}");
}

/// File, cache and 64 MB. Base-3 formats are expanded to the size of 2-bit ones.
#[test]
fn published_sizes_fit() {
    for name in ["1.7b", "4b", "8b"] {
        let shape = Shape::published(name).unwrap();
        for format in [Format::Q1_0, Format::Q2_0, Format::Pq2_0, Format::Ptq1_0] {
            let (upload, mut file) = upload(shape.clone(), &[format]);
            if format == Format::Ptq1_0 {
                file = file * 34 / 28;
            }
            for (kv, head) in [
                (KvFormat::F16, 2 * shape.head_dim),
                (KvFormat::Q8, shape.head_dim / 8 * 9),
                (KvFormat::Q4, shape.head_dim / 8 * 5),
                (KvFormat::F32, 4 * shape.head_dim),
                (KvFormat::Fp8E4M3, shape.head_dim),
                (KvFormat::Fp8E5M2, shape.head_dim),
            ] {
                let options = GpuDeviceOptions { context: 8192, ..Default::default() };
                let plan = upload
                    .memory_plan(&options, &SessionOptions { context: 8192, kv, ..SessionOptions::default() })
                    .unwrap();
                let heads = 2 * shape.layers * shape.kv_heads * 8192;
                assert_eq!(plan.kv, (heads * head) as u64);
                let all = upload.bytes() + plan.kv + plan.scratch;
                let (weights, scratch) = (upload.bytes() >> 20, plan.scratch >> 20);
                println!("{name} {format:?}: weights {weights} MiB, scratch {scratch} MiB");
                assert!(all <= file + plan.kv + 64_000_000, "{name} {format:?}: {all} of {file}");
            }
        }
    }
}

/// As the documentation of the layouts has them.
#[test]
fn formats_take_few_bits() {
    let shape = Shape { layers: 1, ..Shape::published("1.7b").unwrap() };
    let Shape { hidden, heads, kv_heads, head_dim, ffn, vocab, .. } = shape;
    let weights = hidden * (vocab + 2 * head_dim * (heads + kv_heads) + 3 * ffn);
    let bytes = |formats: &[Format]| upload(shape.clone(), formats).0.bytes();
    let vectors = bytes(&[Format::F32]) - 4 * weights as u64;
    for (format, bits) in [
        (Format::Q1_0, 1.125),
        (Format::Tq1_0, 2.0625),
        (Format::Tq2_0, 2.0625),
        (Format::Ptq1_0, 2.125),
        (Format::Pq2_0, 2.125),
        (Format::Tq2_0G128, 2.125),
        (Format::Q2_0, 2.25),
        (Format::Q2K, 3.25),
        (Format::Iq4Xs, 4.375),
        (Format::Iq4Nl, 4.5),
        (Format::Q4_0, 4.5),
        (Format::Q3K, 4.625),
        (Format::Q4K, 4.75),
        (Format::Mxfp4, 5.0),
        (Format::Nvfp4, 5.0),
        (Format::Q4_1, 5.0),
        (Format::Q5_0, 6.5),
        (Format::Q6K, 6.625),
        (Format::Q5K, 6.75),
        (Format::Q5_1, 7.0),
        (Format::Q8K, 8.125),
        (Format::Q8_0, 8.5),
    ] {
        let found = 8.0 * (bytes(&[format]) - vectors) as f64 / weights as f64;
        assert_eq!(found, bits, "{}", format.name());
    }
    // A value matrix of more bits does not widen those of queries and keys.
    use Format::{Q4K, Q6K};
    let mixed = bytes(&[Q4K, Q4K, Q4K, Q6K, Q4K, Q4K, Q4K, Q4K]) - bytes(&[Q4K]);
    let values = hidden * kv_heads * head_dim;
    assert_eq!(mixed as f64, values as f64 * (6.625 - 4.75) / 8.0);
}
