//! Reads a file in every possible way and compares the results.

use shohin_core::gguf::{Event, Gguf, GgufStream, GgufWriter, Header, ReadOptions, TensorType, Value};
use shohin_core::{Error, Format, Result};

use crate::Random;

/// FNV-1a, to compare long values.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Calls every accessor of a parsed file. Panics if one contradicts another.
pub fn exercise(gguf: &Gguf<'_>) {
    fn walk(value: Value<'_>) -> u64 {
        match value {
            Value::Array(a) => {
                let mut count = 0;
                a.iter().for_each(|v| {
                    walk(v);
                    count += 1;
                });
                assert_eq!(count, a.len());
                a.len() as u64
            }
            Value::Str(s) => fnv(s),
            other => other.integer().unwrap_or(0) as u64,
        }
    }
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        walk(value);
        assert_eq!(format!("{:?}", metadata.get(key)), format!("{:?}", Some(value)));
        let _ = (metadata.u32(key), metadata.u64(key), metadata.f32(key), metadata.bool(key));
        let _ = metadata.str(key);
        if let Ok(Some(strings)) = metadata.strings(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
        if let Ok(Some(numbers)) = metadata.i32s(key) {
            assert_eq!(numbers.count(), metadata.array(key).unwrap().unwrap().len());
        }
        let _ = metadata.f32s(key).map(|v| v.map(|v| v.sum::<f32>()));
        let _ = metadata.refuse(key, "nothing of the kind");
    }
    for t in gguf.tensors() {
        assert_eq!(gguf.tensor(t.name()), Some(t));
        assert_eq!(gguf.data(t).len() as u64, t.len());
        assert!(t.elements() > 0 && !t.type_name().is_empty());
        if let Ok(m) = gguf.matrix(t.name()) {
            assert_eq!(m.data().len() as u64, t.len());
            assert_eq!(m.rows() as u64 * m.cols() as u64, t.elements());
            assert_eq!(m.data().len(), m.rows() * m.row_bytes());
            assert_eq!(Some(m.format()), t.format());
        }
    }
    assert_eq!(gguf.tensor("no such tensor"), None);
    assert_eq!(gguf.metadata().get("no such key"), None);
}

/// A description of everything before the weights, equal if and only if the headers are equal. (NaN equals
/// itself here.)
pub fn describe(header: &Header<'_>) -> String {
    format!("{header:?}")
}

/// The result of a reader: the header, and each tensor's bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// [`describe`] of the header.
    pub header: String,
    /// The tensors' bytes, in the order of the table.
    pub tensors: Vec<Vec<u8>>,
}

/// Reads the whole file at once.
pub fn whole(file: &[u8], options: &ReadOptions) -> Result<Reading> {
    let gguf = Gguf::parse_with(file, options)?;
    let tensors = gguf.tensors().iter().map(|t| gguf.data(t).to_vec()).collect();
    Ok(Reading { header: describe(gguf.header()), tensors })
}

/// Reads the file in pieces: `cut(at)` is the length of the piece starting at byte `at`.
pub fn streamed(file: &[u8], options: &ReadOptions, mut cut: impl FnMut(usize) -> usize) -> Result<Reading> {
    let mut stream = GgufStream::new(file.len() as u64, *options);
    let mut tensors: Vec<Vec<u8>> = Vec::new();
    let mut formats: Vec<Option<Format>> = Vec::new();
    let mut headers = 0;
    let mut at = 0;
    while at < file.len() {
        let end = file.len().min(at + cut(at));
        stream.push(&file[at..end], &mut |event| {
            match event {
                Event::Header(header) => {
                    headers += 1;
                    tensors.resize(header.tensors().len(), Vec::new());
                    formats = header.tensors().iter().map(|t| t.format()).collect();
                }
                Event::CodesFirst => {
                    // The event alone must be enough to know the formats.
                    for f in formats.iter_mut().filter(|f| **f == Some(Format::Pq2_0)) {
                        *f = Some(Format::Tq2_0G128);
                    }
                }
                Event::TensorData { index, offset, bytes } => {
                    assert!(!bytes.is_empty());
                    assert_eq!(tensors[index].len() as u64, offset, "a gap in tensor {index}");
                    tensors[index].extend_from_slice(bytes);
                }
            }
            Ok(())
        })?;
        at = end;
    }
    stream.finish()?;
    assert_eq!(headers, 1);
    let header = stream.header()?.ok_or(Error::Length { what: "header", expected: 1, found: 0 })?;
    if header.tensors().iter().all(|t| t.type_id() == 42 || t.format() != Some(Format::Pq2_0)) {
        let told: Vec<_> = header.tensors().iter().map(|t| t.format()).collect();
        assert_eq!(told, formats);
    }
    Ok(Reading { header: describe(&header), tensors })
}

/// Asserts that the stream agrees with the whole-file reader, error for error, for `tries` random splits.
pub fn assert_random_splits_agree(file: &[u8], options: &ReadOptions, random: &mut Random, tries: usize) {
    let expected = whole(file, options);
    for _ in 0..tries {
        // Pieces of very different sizes: half a dozen bytes, or half the file.
        let scale = 1 + random.below(file.len().max(1));
        let scale = 1 + random.below(scale);
        let got = streamed(file, options, |_| 1 + random.below(scale));
        assert_eq!(got, expected);
    }
}

/// Copies a file through reader and writer.
pub fn rewrite(gguf: &Gguf<'_>) -> Result<Vec<u8>> {
    let mut w = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        w.set(key, value)?;
    }
    for t in gguf.tensors() {
        let kind = TensorType::of(t.type_id()).expect("only known types are read");
        match t.format() {
            Some(f) if t.type_id() == 42 => {
                let (block, block_bytes) = (f.block() as u32, f.block_bytes() as u32);
                w.tensor_of(t.name(), t.dims(), &TensorType { block, block_bytes, ..*kind })?;
            }
            _ => w.tensor_of(t.name(), t.dims(), kind)?,
        }
    }
    w.to_vec(gguf.tensors().iter().map(|t| gguf.data(t)))
}
