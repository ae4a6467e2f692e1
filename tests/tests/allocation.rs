//! Memory promises, with a counting allocator: a session takes exactly what it planned, and tokens
//! take nothing.
#![cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]

use shohin_core::{Activations, BonsaiModel, Gguf, KvFormat, Serial, Session, SessionOptions};
use shohin_tests::meter::measure;

#[test]
fn a_session_takes_its_plan_once_and_tokens_take_nothing() {
    let bytes = shohin_tests::data("golden_model/synth-micro-q1_0.gguf").unwrap();
    let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    for activations in [Activations::Int8, Activations::F32] {
        for kv in [KvFormat::F16, KvFormat::F32] {
            let options = SessionOptions { context: 64, activations, kv, ..SessionOptions::default() };
            let plan = model.memory_plan(&options).unwrap();
            let (session, made) = measure(|| Session::new(&model, &options));
            let mut session = session.unwrap();
            assert_eq!((made.calls, made.peak), (1, plan.total));
            let ((), fed) = measure(|| {
                session.forward_prefill(&[1, 2, 3, 4, 5], &Serial).unwrap();
                for token in 0..20 {
                    session.forward(token, &Serial).unwrap();
                }
                session.truncate(3).unwrap();
                session.forward_prefill_verify(&[6, 7], &Serial, &mut [0; 2]).unwrap();
            });
            assert_eq!(fed.calls, 0);
        }
    }
}

#[test]
fn a_session_keeps_memory_that_it_is_given() {
    let bytes = shohin_tests::data("golden_model/synth-micro-q1_0.gguf").unwrap();
    let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    let options = SessionOptions { context: 128, ..SessionOptions::default() };
    let total = model.memory_plan(&options).unwrap().total;
    let memory = vec![0xff; total];
    let (session, made) = measure(|| Session::with_memory(&model, &options, memory));
    // Where it is, not what it is.
    assert!(made.peak < 100);
    let (mut session, mut other) = (session.unwrap(), Session::new(&model, &options).unwrap());
    let tokens: Vec<u32> = (0..128).map(|i| i * 7 % 50).collect();
    let (ours, fed) = measure(|| session.forward_prefill(&tokens, &Serial).unwrap());
    assert_eq!((ours, fed.calls), (other.forward_prefill(&tokens, &Serial).unwrap(), 0));
    let error = Session::with_memory(&model, &options, vec![0; total - 1]).unwrap_err();
    assert_eq!(error.code(), "memory");
}
