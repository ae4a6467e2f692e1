//! libFuzzer over the target that `SHOHIN_FUZZ` names. `fuzz --seeds DIR` writes the seeds there instead.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use shohin_fuzz::{Target, mutate};
use shohin_tests::Random;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("SHOHIN_FUZZ").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| panic!("SHOHIN_FUZZ names no target: {name:?}"))
});

static INPUTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| TARGET.inputs());

fuzz_target!(
    init: {
        if let Some(folder) = std::env::var_os("SHOHIN_FUZZ_SEEDS") {
            for (i, seed) in INPUTS.iter().enumerate() {
                let path = std::path::Path::new(&folder).join(format!("seed{i}"));
                std::fs::write(&path, seed).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    },
    |input: &[u8]| (TARGET.run)(input)
);

// Every other mutation is libFuzzer's own, which knows the constants that the code compares with.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = Random::new(seed.into());
    if random.below(2) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut input = data[..size].to_vec();
    mutate::mutate(&TARGET.form, &mut input, &INPUTS, &mut random);
    let len = input.len().min(max_size);
    data[..len].copy_from_slice(&input[..len]);
    len
});
