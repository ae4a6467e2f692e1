//! Every target over its seeds, `corpus/`, and mutations of them with a fixed sequence. `SHOHIN_FUZZ_TIMES=20` makes twenty
//! times as many.

use shohin_fuzz::{Target, mutate};
use shohin_tests::Random;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Instant;

/// Runs a target; an input that fails is kept.
fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failed-{}", target.name));
        std::fs::write(&path, input).expect("room for it");
        eprintln!("{} failed; the input is {}", target.name, path.display());
        resume_unwind(panic);
    }
}

fn mutations_of(name: &str) {
    let target = Target::named(name).expect("a target");
    let times: f64 = std::env::var("SHOHIN_FUZZ_TIMES").ok().and_then(|n| n.parse().ok()).unwrap_or(1.0);
    let inputs = target.inputs();
    let start = Instant::now();
    inputs.iter().for_each(|input| run(target, input));
    let mut random = Random::new(17);
    let count = (target.quick as f64 * times) as usize;
    for _ in 0..count {
        let mut input = inputs[random.below(inputs.len())].clone();
        mutate::mutate(&target.form, &mut input, &inputs, &mut random);
        run(target, &input);
    }
    println!("{name}: {} inputs, {count} mutations in {:.1} s", inputs.len(), start.elapsed().as_secs_f64());
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            mutations_of(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested() {
            let tested = [$(stringify!($name)),*];
            Target::all().iter().for_each(|target| assert!(tested.contains(&target.name), "{}", target.name));
        }
    };
}

tests! {
    json reply requests gguf_parse gguf_split gguf_round_trip parts chat tokenizer model_load pattern gbnf schema safetensors
    config tokenizer_json onnx snapshot weight_cache http agree
}
