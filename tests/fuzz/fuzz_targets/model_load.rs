//! A damaged header: an error, or a model that runs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::gguf::Gguf;
use shohin_core::{BonsaiModel, Serial, Session, SessionOptions};

fuzz_target!(|file: &[u8]| {
    let Ok(gguf) = Gguf::parse(file) else { return };
    let Ok(model) = BonsaiModel::from_gguf(&gguf) else { return };
    let options = SessionOptions { context: 8, batch: 4, ..SessionOptions::default() };
    // The limits let a small file ask for long scratch rows; that is a matter of memory, not of safety.
    if !model.memory_plan(&options).is_ok_and(|plan| plan.total < 64 << 20) {
        return;
    }
    let mut session = Session::new(&model, &options).expect("planned memory");
    let last = model.config().vocab_size as u32 - 1;
    if session.capacity() < 3 {
        return;
    }
    session.forward_prefill(&[0, last], &Serial).expect("checked ids");
    session.forward(last / 2, &Serial).expect("checked ids");
    assert!(session.forward(last + 1, &Serial).is_err());
});
