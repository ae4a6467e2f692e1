//! Interleaving whole files in memory.

use shohin_core::gguf::{Gguf, ReadOptions, interleave};
use shohin_core::quant::{self, Layout};
use shohin_core::{Format, Serial};
use shohin_tests::model::Model;

fn interleaved(file: &[u8], layout: Layout) -> Vec<u8> {
    let mut bytes = file.to_vec();
    interleave(&mut bytes, &ReadOptions::default(), |_| layout, &Serial).unwrap();
    bytes
}

#[test]
fn every_weight_of_a_file_is_found_again() {
    for format in Format::ALL {
        let file = Model::tiny(format);
        let before = Gguf::parse(&file).unwrap();
        for layout in [Layout::Words, Layout::Bytes] {
            let bytes = interleaved(&file, layout);
            let after = Gguf::parse(&bytes).unwrap();
            let mut moved = 0;
            for (a, b) in before.tensors().iter().zip(after.tensors()) {
                assert_eq!(
                    (a.name(), a.dims(), a.offset(), a.len()),
                    (b.name(), b.dims(), b.offset(), b.len())
                );
                moved += usize::from(b.layout() == layout);
                let (a, b) = (before.matrix(a.name()).unwrap(), after.matrix(b.name()).unwrap());
                let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; a.cols()]);
                for row in 0..a.rows() {
                    a.unpack_row(row, &mut x).unwrap();
                    b.unpack_row(row, &mut y).unwrap();
                    assert_eq!(x, y);
                }
            }
            assert_eq!(moved > 0, quant::interleaved_format(format).is_some(), "{format:?}");
        }
    }
}

#[test]
fn a_second_time_changes_nothing() {
    let once = interleaved(&Model::tiny(Format::Pq2_0), Layout::Words);
    assert_eq!(interleaved(&once, Layout::Words), once);
    assert_eq!(interleaved(&once, Layout::Bytes), once);
}

#[test]
fn a_file_that_is_refused_is_left_alone() {
    let file = Model::tiny(Format::Q1_0);
    for len in (0..file.len()).step_by(997) {
        let mut cut = file[..len].to_vec();
        let error = interleave(&mut cut, &ReadOptions::default(), |_| Layout::Words, &Serial).unwrap_err();
        assert_eq!(error, Gguf::parse(&file[..len]).unwrap_err());
        assert_eq!(cut, file[..len]);
    }
}
