//! GPU memory of the published models, computed from their headers: no GPU needed.

use shohin_core::gguf::{GgufStream, ReadOptions};
use shohin_core::{Error as CoreError, Format, KvFormat, SessionOptions};
use shohin_gpu::{GpuDeviceOptions, UploadPlan};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::vocabulary::Vocabulary;

/// The header of a model and the length of its file, without the weights.
fn upload(shape: Shape, format: Format) -> (UploadPlan, u64) {
    let vocabulary = Vocabulary::synthetic(shape.vocab, 1);
    let model = Model::new(shape, Stored::new(format), 1);
    let len = model.file_len(&vocabulary).unwrap();
    let mut stream = GgufStream::new(len, ReadOptions::default());
    let enough = CoreError::Logits { problem: "that was the header" };
    let written = model.write(&vocabulary, |bytes| {
        stream.push(bytes, &mut |_| Ok(()))?;
        if stream.header()?.is_some() { Err(enough) } else { Ok(()) }
    });
    assert_eq!(written, Err(enough));
    (UploadPlan::new(&stream.header().unwrap().unwrap()).unwrap(), len)
}

/// File, cache and 64 MB. Base-3 formats are expanded to the size of 2-bit ones.
#[test]
fn published_sizes_fit() {
    for name in ["1.7b", "4b", "8b"] {
        let shape = Shape::published(name).unwrap();
        for format in [Format::Q1_0, Format::Q2_0, Format::Pq2_0, Format::Ptq1_0] {
            let (upload, mut file) = upload(shape.clone(), format);
            if format == Format::Ptq1_0 {
                file = file * 34 / 28;
            }
            for (kv, head) in [
                (KvFormat::F16, 2 * shape.head_dim),
                (KvFormat::Q8, shape.head_dim / 8 * 9),
                (KvFormat::Q4, shape.head_dim / 8 * 5),
                (KvFormat::F32, 4 * shape.head_dim),
            ] {
                let options = GpuDeviceOptions { context: 8192, ..Default::default() };
                let plan = upload.memory_plan(&options, &SessionOptions { context: 8192, kv }).unwrap();
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
