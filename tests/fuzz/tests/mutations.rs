//! Every target over its seeds, `corpus/`, and mutations of them with a fixed sequence. `SHOHIN_FUZZ_TIMES=20` makes twenty
//! times as many; `SHOHIN_FUZZ_SECONDS=60` goes on for a minute per target, `SHOHIN_FUZZ_SEED=N` takes another sequence.
//! `cargo xtask fuzz --plain` does the latter two.

use shohin_fuzz::{Target, mutate};
use shohin_tests::{meter, rounds};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Instant;

/// The most memory for one input: hundreds of times what valid inputs need.
const MEMORY: usize = 1 << 30;

thread_local! {
    /// The target that runs, and its input.
    static RUNNING: RefCell<(&'static str, Vec<u8>)> = const { RefCell::new(("", Vec::new())) };
}

/// Keeps the input of the target that runs.
fn keep() {
    RUNNING.with_borrow(|(name, input)| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failed-{name}"));
        std::fs::write(&path, input).expect("room for it");
        eprintln!("{name} failed; the input is {}", path.display());
    });
}

/// Runs a target; an input that fails is kept.
fn run(target: &Target, input: &[u8]) {
    RUNNING.with_borrow_mut(|running| {
        running.0 = target.name;
        running.1.clear();
        running.1.extend_from_slice(input);
    });
    let within = || meter::limit(MEMORY, keep, || (target.run)(input));
    if let Err(panic) = catch_unwind(AssertUnwindSafe(within)) {
        keep();
        resume_unwind(panic);
    }
}

fn mutations_of(name: &str) {
    let target = Target::named(name).expect("a target");
    let (start, inputs) = (Instant::now(), target.inputs());
    inputs.iter().for_each(|input| run(target, input));
    let count = rounds::repeat(target.quick, |random| {
        let mut input = inputs[random.below(inputs.len())].clone();
        mutate::mutate(&target.form, &mut input, &inputs, random);
        run(target, &input);
    });
    println!("{name}: {} inputs, {count} mutations in {:.1} s", inputs.len(), start.elapsed().as_secs_f64());
}

macro_rules! tests {
    ($($(#[cfg($when:meta)])? $name:ident)*) => {
        $($(#[cfg($when)])?
        #[test]
        fn $name() {
            mutations_of(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested() {
            let tested = [$($(#[cfg($when)])? stringify!($name)),*];
            let all: Vec<_> = Target::all().iter().map(|target| target.name).collect();
            assert!(all.iter().all(|name| tested.contains(name)) && all.len() == tested.len(), "{all:?}");
        }
    };
}

tests! {
    json reply requests gguf_parse gguf_split gguf_round_trip parts chat tokenizer model_load pattern gbnf schema agree
    #[cfg(not(target_family = "wasm"))] template
    #[cfg(not(target_family = "wasm"))] safetensors
    #[cfg(not(target_family = "wasm"))] config
    #[cfg(not(target_family = "wasm"))] tokenizer_json
    #[cfg(not(target_family = "wasm"))] onnx
    #[cfg(not(target_family = "wasm"))] checkpoint
    #[cfg(not(target_family = "wasm"))] facts
    #[cfg(not(target_family = "wasm"))] chats
    #[cfg(not(target_family = "wasm"))] adapter
    #[cfg(not(target_family = "wasm"))] peft_config
    #[cfg(not(target_family = "wasm"))] peft_weights
    #[cfg(not(target_family = "wasm"))] snapshot
    #[cfg(not(target_family = "wasm"))] weight_cache
    #[cfg(not(target_family = "wasm"))] http
}
