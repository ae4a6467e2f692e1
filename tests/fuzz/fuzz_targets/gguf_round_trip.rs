//! Any file that the reader accepts can be written, and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shohin_core::gguf::Gguf;
use shohin_tests::reading::rewrite;

fuzz_target!(|file: &[u8]| {
    let Ok(gguf) = Gguf::parse(file) else { return };
    let again = rewrite(&gguf).expect("what was read can be written");
    let second = match Gguf::parse(&again) {
        Ok(second) => second,
        // Padding can hide the layout of a lone tensor of id 42.
        Err(error) => {
            assert!(gguf.tensors().iter().any(|t| t.type_id() == 42), "{error}");
            return;
        }
    };
    assert_eq!(format!("{:?}", second.metadata()), format!("{:?}", gguf.metadata()));
    assert_eq!(second.tensors().len(), gguf.tensors().len());
    for (a, b) in gguf.tensors().iter().zip(second.tensors()) {
        assert_eq!((a.name(), a.dims(), a.type_id()), (b.name(), b.dims(), b.type_id()));
        assert!(gguf.data(a) == second.data(b));
    }
    assert_eq!(rewrite(&second).expect("twice"), again);
});
