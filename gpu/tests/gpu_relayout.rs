//! Keys and values that a CPU exports go on on the GPU, and those of the GPU on a CPU.
//!
//! `SHOHIN_GPU` selects the adapter, as in `model.rs`.

use shohin_core::cache::{KvShape, blocks_to_rows, rows_to_blocks};
use shohin_core::device::{BlockingDevice, Device};
use shohin_core::{
    Activations, BonsaiModel, Cpu, CpuOptions, Format, Gguf, KvFormat, Serial, Session, SessionOptions,
};
use shohin_gpu::{Gpu, GpuDeviceOptions, GpuModel, GpuOptions};
use shohin_tests::model::{Model, Shape, Stored};
use std::fmt::Debug;
use std::sync::Arc;

/// Tokens that are computed before they move, more than a block of 16 positions and not a number of whole ones.
const SEEN: usize = 45;

/// The logits after the last token, and the keys and values of all before it.
fn computed<D: BlockingDevice<Error: Debug>>(
    device: &mut D,
    options: &SessionOptions,
    tokens: &[u32],
) -> (Vec<f32>, Vec<u8>) {
    let mut session = Session::new(device, options).unwrap();
    session.forward_prefill(device, &tokens[..SEEN]).unwrap();
    let mut kept = Vec::new();
    D::wait(session.export(device, &mut kept)).unwrap();
    (session.forward(device, tokens[SEEN]).unwrap().to_vec(), kept)
}

fn goes_on<D: BlockingDevice<Error: Debug>>(
    device: &mut D,
    options: &SessionOptions,
    kept: &[u8],
    token: u32,
) -> Vec<f32> {
    let mut session = Session::new(device, options).unwrap();
    session.import(device, SEEN, kept).unwrap();
    session.forward(device, token).unwrap().to_vec()
}

/// The largest difference, relative to the largest logit.
fn error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most
}

#[test]
fn conversations_pass_between_devices() {
    let options =
        GpuOptions { name: std::env::var("SHOHIN_GPU").ok(), software: true, ..GpuOptions::default() };
    let gpu = Arc::new(pollster::block_on(Gpu::open(&options)).expect("a GPU, if only in software"));
    let file = Model::new(Shape::tiny(), Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let activations = Activations::F32;
    let mut on_gpu = pollster::block_on(async {
        let model = GpuModel::from_gguf(Arc::clone(&gpu), &gguf).await.unwrap();
        model.device(&GpuDeviceOptions { activations, ..Default::default() }).await.unwrap()
    });
    let cpu = CpuOptions { activations, ..CpuOptions::default() };
    let mut on_cpu = Cpu::new(BonsaiModel::from_gguf(&gguf).unwrap(), &cpu, Serial).unwrap();
    let tokens: Vec<u32> = (0..=SEEN as u32).map(|i| (i * i * 31 + i * 7 + 3) % 320).collect();
    let c = on_cpu.config();
    let shape =
        KvShape { layers: c.num_layers, kv_heads: c.num_kv_heads, capacity: SEEN, head_dim: c.head_dim };
    // Where a CPU rounds values again, to one scale each, a step is 1/254 of the largest, or 1/14.
    for (kv, most) in [
        (KvFormat::F32, 1e-4),
        (KvFormat::F16, 1e-2),
        (KvFormat::Q8, 3e-2),
        (KvFormat::Q4, 0.3),
        (KvFormat::Fp8E4M3, 0.15),
        (KvFormat::Fp8E5M2, 0.3),
    ] {
        let options = SessionOptions { kv, ..SessionOptions::default() };
        let (want_cpu, blocks) = computed(&mut on_cpu, &options, &tokens);
        let (want_gpu, rows) = computed(&mut on_gpu, &options, &tokens);
        let moved = blocks_to_rows(kv, shape, &blocks).unwrap();
        let there = error(&goes_on(&mut on_gpu, &options, &moved, tokens[SEEN]), &want_cpu);
        let moved = rows_to_blocks(kv, shape, &rows).unwrap();
        let back = error(&goes_on(&mut on_cpu, &options, &moved, tokens[SEEN]), &want_gpu);
        println!("{kv:?}: {there} on the GPU, {back} on the CPU; both alone {}", error(&want_gpu, &want_cpu));
        assert!(there < most && back < most, "{kv:?}: {there} {back}");
    }
}
