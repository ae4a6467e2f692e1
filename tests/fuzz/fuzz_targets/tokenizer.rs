//! A hostile vocabulary and hostile text: ids within the vocabulary, which spell the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::Tokenizer;
use shohin_core::gguf::Gguf;
use shohin_core::tokenizer::Special;

fuzz_target!(|file: &[u8]| {
    // The text is the end of the file, which only contains weights.
    let text = String::from_utf8_lossy(&file[file.len() - file.len().min(200)..]);
    let Ok(gguf) = Gguf::parse(file) else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else { return };
    for special in [Special::Text, Special::Parse] {
        let mut ids = Vec::new();
        tokenizer.encode(&text, special, &mut ids);
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        let spelled: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).expect("an id")).collect();
        assert_eq!(spelled, text.as_bytes());
    }
});
