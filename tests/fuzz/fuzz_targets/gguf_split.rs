//! The streaming reader agrees with the whole-file reader on any bytes, cut anywhere.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::gguf::ReadOptions;
use shohin_tests::{Random, reading};

fuzz_target!(|file: &[u8]| {
    // The cuts depend on the input, so that a failure is reproducible.
    let mut random = Random::new(reading::fnv(file));
    reading::assert_random_splits_agree(file, &ReadOptions::default(), &mut random, 2);
});
