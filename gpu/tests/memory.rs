//! What published models take on a GPU, computed from their headers: no GPU needed.

use shohin_core::gguf::{GgufStream, ReadOptions};
use shohin_core::{Error as CoreError, Format};
use shohin_gpu::{GpuSessionOptions, Kv, Layout, memory_plan};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::vocabulary::Vocabulary;

/// The header of a model and the length of its file, without the weights.
fn layout(shape: Shape, format: Format) -> (Layout, u64) {
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
    (Layout::new(&stream.header().unwrap().unwrap()).unwrap(), len)
}

/// File, cache and 64 MB. Base-3 formats are expanded, and take what 2-bit ones do.
#[test]
fn published_sizes_fit() {
    for name in ["1.7b", "4b", "8b"] {
        let shape = Shape::published(name).unwrap();
        for format in [Format::Q1_0, Format::Q2_0, Format::Pq2_0, Format::Ptq1_0] {
            let (layout, mut file) = layout(shape.clone(), format);
            if format == Format::Ptq1_0 {
                file = file * 34 / 28;
            }
            for kv in [Kv::F16, Kv::Q8, Kv::F32] {
                let options = GpuSessionOptions { context: 8192, kv, ..Default::default() };
                let plan = memory_plan(layout.config(), &options).unwrap();
                let heads = 2 * shape.layers * shape.kv_heads * 8192;
                assert_eq!(plan.kv, heads as u64 * kv.bytes(shape.head_dim));
                let all = layout.bytes() + plan.kv + plan.scratch;
                let (weights, scratch) = (layout.bytes() >> 20, plan.scratch >> 20);
                println!("{name} {format:?}: weights {weights} MiB, scratch {scratch} MiB");
                assert!(all <= file + plan.kv + 64_000_000, "{name} {format:?}: {all} of {file}");
            }
        }
    }
}
