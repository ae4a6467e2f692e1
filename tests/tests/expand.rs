//! Expanding base-3 weights of whole files.

use shohin_core::cpu::{CpuOptions, Expansion, Isa, expand_file, expansion};
use shohin_core::gguf::{Gguf, ReadOptions};
use shohin_core::{Format, Serial, SessionOptions};
use shohin_tests::cpu::{all_logits, device, repacked};
use shohin_tests::meter::measure;
use shohin_tests::model::{Model, Shape, Stored};

#[test]
fn every_weight_stays_what_it_was() {
    for (format, isa) in Format::ALL.into_iter().flat_map(|f| Isa::available().map(move |isa| (f, isa))) {
        let file = Model::tiny(format);
        let before = Gguf::parse(&file).unwrap();
        let Some(Expansion { len, room }) = expansion(&before, file.len()).unwrap() else {
            assert_eq!(format.expanded(), None);
            continue;
        };
        assert_eq!(room, len);
        let mut bytes = at_the_end(&file, room);
        assert_eq!(expand_file(&mut bytes, file.len(), &ReadOptions::default(), isa, &Serial), Ok(len));
        let after = Gguf::parse(&bytes).unwrap();
        assert_eq!(expansion(&after, len).unwrap(), None);
        let mut expanded = 0;
        for (a, b) in before.tensors().iter().zip(after.tensors()) {
            assert_eq!((a.name(), a.dims()), (b.name(), b.dims()));
            expanded += usize::from(a.format() == Some(format) && b.format() == format.expanded());
            let (a, b) = (before.matrix(a.name()).unwrap(), after.matrix(b.name()).unwrap());
            let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; a.cols()]);
            for row in 0..a.rows() {
                a.unpack_row(row, &mut x).unwrap();
                b.unpack_row(row, &mut y).unwrap();
                assert_eq!(x, y);
            }
        }
        assert!(expanded > 0, "{format:?}");
        // And the result is an ordinary model.
        let options = CpuOptions { isa, ..CpuOptions::default() };
        let (tokens, session) = ([3, 1, 4, 1, 5, 9], SessionOptions::default());
        let as_expanded = all_logits(&mut device(&bytes, &options).unwrap(), &tokens, &session);
        let repacked = all_logits(&mut repacked(&bytes, &options).unwrap(), &tokens, &session);
        assert_eq!(repacked.unwrap(), as_expanded.unwrap(), "{format:?} {isa:?}");
    }
}

/// A buffer of `room` bytes with `file` at its end.
fn at_the_end(file: &[u8], room: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; room];
    bytes[room - file.len()..].copy_from_slice(file);
    bytes
}

#[test]
fn expanding_takes_a_megabyte_beside_the_expanded_file() {
    // Several windows, and more growth than that.
    let shape = Shape { hidden: 1024, ffn: 4096, vocab: 8192, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Ptq1_0), 1).to_vec().unwrap();
    let Expansion { len, room } = expansion(&Gguf::parse(&file).unwrap(), file.len()).unwrap().unwrap();
    assert!(room == len && len > file.len() + (1 << 20), "{len}, {room} of {}", file.len());
    let mut bytes = at_the_end(&file, room);
    let options = ReadOptions::default();
    let (done, used) = measure(|| expand_file(&mut bytes, file.len(), &options, Isa::detect(), &Serial));
    assert_eq!(done, Ok(len));
    assert!(used.peak < (1 << 20) + (1 << 16), "{used:?}");
    let (before, after) = (Gguf::parse(&file).unwrap(), Gguf::parse(&bytes).unwrap());
    for t in before.tensors().iter().filter(|t| t.format() == Some(Format::Ptq1_0)) {
        let (a, b) = (before.matrix(t.name()).unwrap(), after.matrix(t.name()).unwrap());
        let (mut x, mut y) = (vec![0.0; a.cols()], vec![0.0; a.cols()]);
        for row in [0, a.rows() / 3, a.rows() - 1] {
            a.unpack_row(row, &mut x).unwrap();
            b.unpack_row(row, &mut y).unwrap();
            assert_eq!(x, y, "{} {row}", t.name());
        }
    }
}

#[test]
fn what_follows_the_tensors_needs_room_but_no_place() {
    let mut file = Model::tiny(Format::Tq1_0);
    let plain = expansion(&Gguf::parse(&file).unwrap(), file.len()).unwrap().unwrap();
    file.resize(file.len() + 500_000, 0x55);
    let more = expansion(&Gguf::parse(&file).unwrap(), file.len()).unwrap().unwrap();
    assert_eq!((more.len, more.room), (plain.len, plain.room + 500_000));
    let mut bytes = at_the_end(&file, more.room);
    assert_eq!(
        expand_file(&mut bytes, file.len(), &ReadOptions::default(), Isa::SCALAR, &Serial),
        Ok(plain.len)
    );
    Gguf::parse(&bytes[..plain.len]).unwrap();
}

#[test]
fn a_file_without_tensors_is_no_panic() {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend([0; 16]);
    for room in [file.len(), 100] {
        let mut bytes = at_the_end(&file, room);
        let done = expand_file(&mut bytes, file.len(), &ReadOptions::default(), Isa::SCALAR, &Serial);
        assert!(done.is_err() || done == Ok(file.len()), "{done:?}");
    }
}

#[test]
fn too_little_room_is_refused() {
    let file = Model::tiny(Format::Ptq1_0);
    let options = ReadOptions::default();
    let room = expansion(&Gguf::parse(&file).unwrap(), file.len()).unwrap().unwrap().room;
    for room in [file.len(), room - 1] {
        let mut bytes = at_the_end(&file, room);
        let error = expand_file(&mut bytes, file.len(), &options, Isa::SCALAR, &Serial).unwrap_err();
        assert_eq!(error.code(), "length");
    }
    let error = expand_file(&mut [0; 9], 10, &options, Isa::SCALAR, &Serial).unwrap_err();
    assert_eq!(error.code(), "length");
}
