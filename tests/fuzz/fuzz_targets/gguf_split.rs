//! The streaming reader says of any bytes, cut anywhere, what the whole-file reader says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::gguf::ReadOptions;
use shohin_tests::{Random, reading};

fuzz_target!(|input: (u64, &[u8])| {
    let (seed, file) = input;
    reading::assert_random_splits_agree(file, &ReadOptions::default(), &mut Random::new(seed), 2);
});
