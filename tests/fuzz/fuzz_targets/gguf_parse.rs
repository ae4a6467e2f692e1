//! Any bytes: an error, or a file whose accessors all work, within the memory limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::gguf::Gguf;
use shohin_tests::{meter, reading};

fuzz_target!(|file: &[u8]| {
    let (parsed, used) = meter::measure(|| Gguf::parse(file));
    let items = parsed.as_ref().map_or(0, |g| g.tensors().len() + g.metadata().len());
    // If the file fails late, its items existed and were allocated.
    let items = items.max(file.len() / 13);
    assert!(used.peak <= (64 << 10) + 96 * items);
    if let Ok(gguf) = parsed {
        reading::exercise(&gguf);
    }
});
