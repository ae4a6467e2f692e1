//! Memory limits, with a counting allocator: a device and a session take exactly the planned memory, and
//! tokens take none.

use std::sync::Arc;

use shohin_core::cpu::{Cpu, CpuWeights, Isa};
use shohin_core::device::{Readout, Wants, ready};
use shohin_core::model::LoraAdapter;
use shohin_core::session::{Feed, run_batch};
use shohin_core::{
    Activations, BonsaiModel, CpuOptions, Format, Gguf, KvFormat, Serial, Session, SessionOptions,
};
use shohin_tests::lora::Adapter;
use shohin_tests::meter::measure;
use shohin_tests::model::{Model, Shape, Stored};

fn weights() -> BonsaiModel<Vec<u8>> {
    BonsaiModel::load(shohin_tests::data("golden_model/synth-micro-q1_0.gguf").unwrap()).unwrap()
}

#[test]
fn devices_and_sessions_take_their_plan_once_and_tokens_take_nothing() {
    let in_file = Arc::new(CpuWeights::new(weights()).unwrap());
    let repacked = Arc::new(CpuWeights::repack(weights(), Isa::detect(), &Serial).unwrap());
    let experts = Model::new(Shape::tiny_experts(), Stored::new(Format::Q1_0), 2).to_vec().unwrap();
    let experts = CpuWeights::repack(BonsaiModel::load(experts).unwrap(), Isa::detect(), &Serial).unwrap();
    let file = Model::tiny(Format::Pq2_0);
    let lora = Adapter::random(&Gguf::parse(&file).unwrap(), &["blk."], 4, 0.1, 1).to_vec();
    let lora = Gguf::parse(&lora).unwrap();
    let adapter = LoraAdapter::from_gguf(&lora).unwrap();
    let adapted = BonsaiModel::load(file).unwrap().adapt(&[(&adapter, 1.0)], |bytes| bytes).unwrap();
    let adapted = CpuWeights::repack(adapted, Isa::detect(), &Serial).unwrap();
    for weights in [in_file, repacked, Arc::new(experts), Arc::new(adapted)] {
        for activations in [Activations::Int8, Activations::F32] {
            for kv in KvFormat::ALL {
                let options = CpuOptions { context: 64, activations, ..CpuOptions::default() };
                let in_session = SessionOptions { context: 50, kv, ..SessionOptions::default() };
                let plan = weights.memory_plan(&options, &in_session).unwrap();
                assert_eq!(plan.total, plan.device + plan.session);
                let shared = weights.clone();
                let (device, made) = measure(|| Cpu::with_weights(shared, &options, Serial));
                let mut device = device.unwrap();
                assert_eq!((made.calls, made.peak), (1, plan.device));
                assert_eq!(device.memory_plan(&in_session), Ok(plan));
                let mut open = || {
                    let (session, made) = measure(|| Session::new(&mut device, &in_session));
                    assert_eq!((made.calls, made.peak), (1, plan.session));
                    session.unwrap()
                };
                let (mut session, mut other) = (open(), open());
                assert_eq!(session.capacity(), 50);
                let ((), fed) = measure(|| {
                    session.forward_prefill(&mut device, &[1, 2, 3, 4, 5]).unwrap();
                    for token in 0..20 {
                        session.forward(&mut device, token).unwrap();
                    }
                    session.shift(&mut device, 4, 10).unwrap();
                    session.truncate(3).unwrap();
                    session.forward_prefill_verify(&mut device, &[6, 7], &mut [0; 2]).unwrap();
                    session.forward_hidden(&mut device, &[8, 9], &mut |_, _| ()).unwrap();
                    let mut feeds = [
                        Feed { session: &mut session, tokens: &[1, 2], wants: Wants::Each(Readout::Logits) },
                        Feed { session: &mut other, tokens: &[3], wants: Wants::Last(Readout::Best) },
                    ];
                    ready(run_batch(&mut device, &mut feeds, &mut |_, _, _| ())).unwrap().unwrap();
                });
                assert_eq!(fed.calls, 0);
            }
        }
    }
}

#[test]
fn devices_and_sessions_keep_memory_that_they_are_given() {
    let weights = Arc::new(CpuWeights::new(weights()).unwrap());
    let options = CpuOptions { context: 128, ..CpuOptions::default() };
    let in_session = SessionOptions { context: 128, ..SessionOptions::default() };
    let plan = weights.memory_plan(&options, &in_session).unwrap();
    let (scratch, memory, shared) = (vec![0xff; plan.device], vec![0xff; plan.session], weights.clone());
    let (device, made) = measure(|| Cpu::new_in(shared, &options, Serial, scratch));
    // The memory is referenced, not copied.
    assert!(made.peak < 100);
    let mut device = device.unwrap();
    let (session, made) = measure(|| device.session_in(&in_session, memory));
    assert!(made.peak < 100);
    let mut session = session.unwrap();
    let mut owner = Cpu::with_weights(weights.clone(), &options, Serial).unwrap();
    let mut other = Session::new(&mut owner, &in_session).unwrap();
    let tokens: Vec<u32> = (0..128).map(|i| i * 7 % 50).collect();
    let (ours, fed) = measure(|| session.forward_prefill(&mut device, &tokens).unwrap());
    assert_eq!((ours, fed.calls), (other.forward_prefill(&mut owner, &tokens).unwrap(), 0));
    let error = device.session_in(&in_session, vec![0; plan.session - 1]).unwrap_err();
    assert_eq!(error.code(), "memory");
    let error = Cpu::new_in(weights, &options, Serial, vec![0; plan.device - 1]).unwrap_err();
    assert_eq!(error.code(), "memory");
}
