//! A damaged header: an error, or a model that runs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::cpu::{Cpu, CpuWeights};
use shohin_core::gguf::Gguf;
use shohin_core::{BonsaiModel, CpuOptions, Serial, Session, SessionOptions};
use std::sync::Arc;

fuzz_target!(|file: &[u8]| {
    let Ok(gguf) = Gguf::parse(file) else { return };
    let Ok(model) = BonsaiModel::from_gguf(&gguf) else { return };
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
    session.forward_prefill(&mut device, &[0, last]).expect("checked ids");
    session.forward(&mut device, last / 2).expect("checked ids");
    assert!(session.forward(&mut device, last + 1).is_err());
});
