//! Expanding base-3 weights of whole files.

use shohin_core::gguf::{Gguf, ReadOptions, expand, expanded_len, interleave};
use shohin_core::kernel::Isa;
use shohin_core::quant::{Layout, expanded_format};
use shohin_core::{Format, Serial};
use shohin_tests::model::Model;

#[test]
fn every_weight_stays_what_it_was() {
    for (format, isa) in Format::ALL.into_iter().flat_map(|f| Isa::available().map(move |isa| (f, isa))) {
        let file = Model::tiny(format);
        let before = Gguf::parse(&file).unwrap();
        let Some(len) = expanded_len(&before).unwrap() else {
            assert_eq!(expanded_format(format), None);
            continue;
        };
        let mut bytes = vec![0xaa; len];
        expand(&file, &ReadOptions::default(), isa, &Serial, &mut bytes).unwrap();
        let after = Gguf::parse(&bytes).unwrap();
        assert_eq!(expanded_len(&after).unwrap(), None);
        let mut expanded = 0;
        for (a, b) in before.tensors().iter().zip(after.tensors()) {
            assert_eq!((a.name(), a.dims()), (b.name(), b.dims()));
            expanded += usize::from(a.format() == Some(format) && b.format() == expanded_format(format));
            let (a, b) = (before.matrix(a.name()).unwrap(), after.matrix(b.name()).unwrap());
            let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; a.cols()]);
            for row in 0..a.rows() {
                a.unpack_row(row, &mut x).unwrap();
                b.unpack_row(row, &mut y).unwrap();
                assert_eq!(x, y);
            }
        }
        assert!(expanded > 0, "{format:?}");
        interleave(&mut bytes, &ReadOptions::default(), Layout::Words, &Serial).unwrap();
    }
}

#[test]
fn a_buffer_of_another_size_is_refused() {
    let file = Model::tiny(Format::Ptq1_0);
    let len = expanded_len(&Gguf::parse(&file).unwrap()).unwrap().unwrap();
    for len in [0, len - 1, len + 1] {
        let options = ReadOptions::default();
        let error = expand(&file, &options, Isa::SCALAR, &Serial, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.code(), "length");
    }
}
