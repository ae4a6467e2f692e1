//! Models with a recurrent state: a sequence that goes back, forks or is saved says what a new one says, to the bit.

use std::fs;
use std::path::Path;

use shohin_core::cpu::Cpu;
use shohin_core::device::ready;
use shohin_core::{CpuOptions, Device, Error, KvFormat, Session, SessionOptions};
use shohin_tests::Random;
use shohin_tests::cpu::{device, exact, in_format};
use shohin_tests::raw::{RawFile, RawValue};

const MODELS: [&str; 2] = ["lfm2", "qwen35"];
const VOCAB: u32 = 268;

fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/{name}.gguf"))).unwrap()
}

fn fresh(bytes: &[u8], tokens: &[u32], options: &SessionOptions) -> Vec<f32> {
    let mut device = device(bytes, &exact()).unwrap();
    let mut session = Session::new(&mut device, options).unwrap();
    session.forward_prefill(&mut device, tokens).unwrap().to_vec()
}

fn open<'m>(device: &mut Cpu<'m, &'m [u8]>, paged: bool) -> Result<Session<Cpu<'m, &'m [u8]>>, Error> {
    match paged {
        true => Session::paged(device, &options()),
        false => Session::new(device, &options()),
    }
}

fn options() -> SessionOptions {
    SessionOptions { context: 64, ..in_format(KvFormat::F32) }
}

#[test]
fn steps_of_any_length_give_the_same_bits() {
    let tokens: Vec<u32> = (0..50).map(|i| (7 * i * i + 3 * i + 1) % VOCAB).collect();
    for name in MODELS {
        let bytes = file(name);
        let want = fresh(&bytes, &tokens, &options());
        for (batch, step) in [(64, 50), (64, 1), (7, 50), (16, 13), (1, 5)] {
            let mut device = device(&bytes, &CpuOptions { batch, ..exact() }).unwrap();
            let mut session = Session::new(&mut device, &options()).unwrap();
            let mut found = Vec::new();
            for tokens in tokens.chunks(step) {
                found = session.forward_prefill(&mut device, tokens).unwrap().to_vec();
            }
            assert!(found == want, "{name} batch {batch} step {step}");
        }
    }
}

/// Random steps forward and back; every other result is compared with that of a new sequence.
#[test]
fn a_sequence_that_goes_back_says_what_a_new_one_says() {
    for name in MODELS {
        let bytes = file(name);
        for (paged, batch) in [(false, 8), (true, 64)] {
            let mut random = Random::new(7);
            let mut device = device(&bytes, &CpuOptions { batch, ..exact() }).unwrap();
            let (mut session, mut tokens) = (open(&mut device, paged).unwrap(), Vec::<u32>::new());
            for round in 0..60 {
                let len = random.below(tokens.len() + 1);
                match random.below(5) {
                    0 => {
                        session.truncate(len).unwrap();
                        tokens.truncate(len);
                    }
                    1 => {
                        session = ready(session.fork(&mut device, len)).unwrap().unwrap();
                        tokens.truncate(len);
                    }
                    2 => {
                        let mut saved = Vec::new();
                        ready(session.export(&mut device, &mut saved)).unwrap().unwrap();
                        session = open(&mut device, paged).unwrap();
                        session.import(&mut device, tokens.len(), &saved).unwrap();
                        let short = session.import(&mut device, tokens.len() + 1, &saved).unwrap_err();
                        assert_eq!(short.code(), "length");
                        session.import(&mut device, tokens.len(), &saved).unwrap();
                    }
                    3 => {
                        // An error leaves it as it was.
                        let error = session.forward_prefill(&mut device, &[1, VOCAB]).unwrap_err();
                        assert_eq!(error.code(), "token");
                    }
                    _ => {}
                }
                let more = 1 + random.below(20);
                let more: Vec<u32> = (0..more.min(63 - tokens.len().min(62)))
                    .map(|_| random.below(VOCAB as usize) as u32)
                    .collect();
                tokens.extend(&more);
                if tokens.len() > 62 {
                    session = open(&mut device, paged).unwrap();
                    tokens = more.clone();
                }
                let found = session.forward_prefill(&mut device, &more).unwrap().to_vec();
                assert_eq!(session.position(), tokens.len());
                if round % 2 == 0 {
                    assert!(found == fresh(&bytes, &tokens, &options()), "{name} {round} {}", tokens.len());
                }
            }
        }
    }
}

/// Only what comes after the kept tokens is computed again.
#[test]
fn a_state_cannot_be_shifted_and_its_memory_is_planned() {
    for name in MODELS {
        let bytes = file(name);
        let mut device = device(&bytes, &exact()).unwrap();
        let state = device.program().state_len * 4;
        assert!(state > 0);
        let mut session = Session::new(&mut device, &options()).unwrap();
        let tokens: Vec<u32> = (0..40).collect();
        session.forward_prefill(&mut device, &tokens).unwrap();
        session.shift(&mut device, 4, 10).unwrap();
        assert_eq!(session.position(), 4);
        let found = session.forward_prefill(&mut device, &tokens[14..]).unwrap().to_vec();
        let left = [&tokens[..4], &tokens[14..]].concat();
        assert!(found == fresh(&bytes, &left, &options()));
        let plan = device.memory_plan(&options()).unwrap();
        assert!(plan.session >= plan.kv + 4 * state);
    }
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    let set = |values: [u32; 4]| {
        let keys = ["ssm.time_step_rank", "ssm.state_size", "ssm.group_count", "ssm.inner_size"];
        let file = keys.iter().zip(values).fold(RawFile::of(&file("qwen35")), |file, (key, value)| {
            file.set(&format!("qwen35.{key}"), RawValue::u32(value))
        });
        device(&file.build(), &exact()).map(|_| ())
    };
    assert!(set([6, 8, 2, 48]).is_ok());
    for values in [[0, 0, 0, 0], [0, 8, 2, 0], [6, 0, 2, 0], [6, 8, 0, 48], [6, 8, 4, 48], [6, 8, 2, 47]] {
        assert_eq!(set(values).map_err(|error| error.code()), Err("key_value"), "{values:?}");
    }
    for values in [[4096, 4096, 1, 1 << 24], [u32::MAX, u32::MAX, 1, 1], [12, 8, 2, 96]] {
        assert!(set(values).is_err(), "{values:?}");
    }
    for (key, value) in [("ssm.conv_kernel", 0), ("ssm.conv_kernel", 17), ("full_attention_interval", 0)] {
        let file = RawFile::of(&file("qwen35")).without("qwen35.attention.recurrent_layers");
        let file = file.set(&format!("qwen35.{key}"), RawValue::u32(value)).build();
        assert!(device(&file, &exact()).is_err(), "{key} {value}");
    }
}
