//! The streaming reader says of any bytes, cut anywhere, what the whole-file reader says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::gguf::ReadOptions;
use shohin_tests::{Random, reading};

fuzz_target!(|file: &[u8]| {
    // Where it is cut depends on the input, so that a failure repeats.
    let mut random = Random::new(reading::fnv(file));
    reading::assert_random_splits_agree(file, &ReadOptions::default(), &mut random, 2);
});
