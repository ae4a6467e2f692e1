//! Checkpoints: what was written is read, what another program wrote too, and no damage passes.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use shohin_train::checkpoint::{Checkpoint, SHA256, Tensor, write};
use shohin_train::{Error, Result};

fn written(metadata: &[(&str, &str)], tensors: &[Tensor<'_>]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write::<Error>(metadata, tensors, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

fn bits(values: impl Iterator<Item = f32>) -> Vec<u32> {
    values.map(f32::to_bits).collect()
}

/// Where the tensors of a file begin.
fn section(bytes: &[u8]) -> usize {
    28 + u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize
}

#[test]
fn what_was_written_is_read() {
    let metadata =
        [("step", "7"), ("a \u{e4}\u{2028}", "lines\nand \"quotes\" \\ \t\r \u{1F98A}"), ("empty", "")];
    let large: Vec<f32> = (0..5000).map(|i| f32::from_bits(i * 858_993)).collect();
    let tensors = [
        Tensor { name: "b", shape: &[2, 1, 2500], data: &large },
        Tensor {
            name: "a.weight",
            shape: &[3],
            data: &[1.5, f32::NEG_INFINITY, f32::from_bits(0x7fc0_1234)],
        },
        Tensor { name: "scalar", shape: &[], data: &[-0.0] },
        Tensor { name: "", shape: &[1 << 40, 0], data: &[] },
    ];
    let bytes = written(&metadata, &tensors).unwrap();
    // At any alignment.
    for shift in 0..4 {
        let mut moved = vec![0; shift];
        moved.extend_from_slice(&bytes);
        let read = Checkpoint::parse(&moved[shift..]).unwrap();
        assert_eq!(read.tensors().len(), tensors.len());
        for (expected, found) in tensors.iter().zip(read.tensors()) {
            assert_eq!((expected.name, expected.shape), (found.name(), found.shape()));
            assert_eq!(bits(expected.data.iter().copied()), bits(found.values()));
            assert_eq!((found.len(), found.is_empty()), (expected.data.len(), expected.data.is_empty()));
            assert_eq!(read.tensor(expected.name), Some(found));
        }
        assert_eq!(read.tensor("c"), None);
        assert!(read.metadata().take(3).eq(metadata));
        assert_eq!(read.get("none"), None);
        let start = section(&bytes);
        let hash: String = Sha256::digest(&bytes[start..]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(read.get(SHA256), Some(hash.as_str()));
    }
    let empty = written(&[], &[]).unwrap();
    assert_eq!(Checkpoint::parse(&empty).unwrap().metadata().len(), 1);
}

#[test]
fn files_of_another_program_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oxck-v1.bin");
    let bytes = fs::read(path).unwrap();
    let read = Checkpoint::parse(&bytes).unwrap();
    let expected = [("step", "7"), ("note", "a \"b\" \\ c\nd"), ("gr\u{f6}\u{df}e", "\u{221e}")];
    assert!(read.metadata().eq(expected));
    assert_eq!(read.get(SHA256), None);
    let (inf, least) = (f32::INFINITY, f32::from_bits(1));
    let expected: [(&str, &[u64], &[f32]); 5] = [
        ("layer.0.weight", &[2, 3], &[1.0, -2.5, 0.0, -0.0, least, f32::MAX]),
        ("bias", &[4], &[inf, -inf, 0.1, -1.0]),
        ("empty", &[0, 5], &[]),
        ("\u{3b1}", &[], &[0.5]),
        ("nothing", &[], &[]),
    ];
    for ((name, shape, data), found) in expected.iter().zip(read.tensors()) {
        assert_eq!((*name, *shape), (found.name(), found.shape()));
        assert_eq!(bits(data.iter().copied()), bits(found.values()));
    }
    assert_eq!(read.tensors().len(), 5);
}

/// A file of tensors that are named, with dimensions, a count and numbers.
fn file(metadata: &str, tensors: &[(&str, &[u64], u64, &[f32])]) -> Vec<u8> {
    let mut bytes = b"OXCK\x01\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u32).to_le_bytes());
    bytes.extend(metadata.as_bytes());
    for (name, shape, count, data) in tensors {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(count.to_le_bytes());
        data.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    }
    bytes
}

#[track_caller]
fn refused(bytes: &[u8], expected: &str) {
    let error = Checkpoint::parse(bytes).unwrap_err().to_string();
    assert_eq!(error, expected);
}

/// A file with bytes replaced from `at` on.
fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

#[test]
fn damages_are_named_with_their_place() {
    // Tensors begin at byte 30: name 34, dimensions 36, shape 40, count 48, numbers 56.
    let whole = || file("{}", &[("ab", &[2], 2, &[1.0, 2.0])]);
    Checkpoint::parse(&whole()).unwrap();
    let ff = [0xff; 8];
    let longer = |n: usize| [whole(), vec![0; n]].concat();
    let table: [(Vec<u8>, &str); 16] = [
        (
            Vec::new(),
            "byte 0 of the checkpoint: expected 4 bytes of the letters OXCK, found the end of the file after 0",
        ),
        (patched(whole(), 0, b"GGUF"), "byte 0 of the checkpoint: expected the letters OXCK, found \"GGUF\""),
        (
            patched(whole(), 1, b"\x1b\xff"),
            "byte 0 of the checkpoint: expected the letters OXCK, found \"O??K\"",
        ),
        (patched(whole(), 4, &[2]), "byte 4 of the checkpoint: expected version 1, found 2"),
        (patched(whole(), 4, &[0]), "byte 4 of the checkpoint: expected version 1, found 0"),
        (patched(whole(), 15, &[1]), "byte 8 of the checkpoint: expected no flags, found 0x100000000000000"),
        (
            patched(whole(), 16, &ff),
            "byte 16 of the checkpoint: expected at most 2 tensors in the bytes that follow, found 18446744073709551615",
        ),
        (
            patched(whole(), 16, &[2]),
            "byte 64 of the checkpoint: expected 4 bytes of the length of the name of a tensor, found the end of the file after 0",
        ),
        (
            patched(whole(), 16, &[0]),
            "byte 30 of the checkpoint: expected the end of the file, found 34 more bytes",
        ),
        (longer(1), "byte 64 of the checkpoint: expected the end of the file, found 1 more bytes"),
        (
            patched(whole(), 24, &ff[..4]),
            "byte 24 of the checkpoint: expected at most 16777216 bytes of the metadata, found 4294967295",
        ),
        (
            patched(whole(), 24, &[37]),
            "byte 28 of the checkpoint: expected 37 bytes of the metadata, found the end of the file after 36",
        ),
        (
            patched(whole(), 30, &ff[..4]),
            "byte 30 of the checkpoint: expected at most 65535 bytes of the name of a tensor, found 4294967295",
        ),
        (
            patched(whole(), 35, &[0x80]),
            "byte 35 of the checkpoint: expected UTF-8 in the name of a tensor, found the byte 0x80",
        ),
        (
            patched(whole(), 36, &[9]),
            "byte 36 of the checkpoint: expected at most 8 dimensions of \"ab\", found 9",
        ),
        (
            patched(whole(), 48, &[3]),
            "byte 48 of the checkpoint: expected 2 numbers for the shape [2] of \"ab\", found 3",
        ),
    ];
    for (bytes, expected) in table {
        refused(&bytes, expected);
    }
    refused(
        &file("", &[("a", &[1 << 62, 4], 0, &[])]),
        "byte 53 of the checkpoint: expected fewer than 2^64 numbers for the shape [4611686018427387904, 4] of \"a\", found 0",
    );
    refused(
        &file("", &[("a", &[1 << 62], 1 << 62, &[])]),
        "byte 53 of the checkpoint: expected 18446744073709551615 bytes of the numbers of \"a\", found the end of the file after 0",
    );
    refused(
        &file("", &[("a", &[], 2, &[1.0, 2.0])]),
        "byte 37 of the checkpoint: expected 1 numbers for the shape [] of \"a\", found 2",
    );
    refused(
        &file("", &[("a", &[0], 0, &[]), ("b", &[0], 0, &[]), ("a", &[0], 0, &[])]),
        "byte 78 of the checkpoint: expected a name that no other tensor has, found \"a\"",
    );
}

#[test]
fn metadata_are_an_object_of_strings() {
    for (text, expected) in [
        ("[]", "byte 28 of the checkpoint: expected '{' in the metadata, found \"[\""),
        (
            "{",
            "byte 29 of the checkpoint: expected a string in double quotes in the metadata, found the end of the metadata",
        ),
        ("{\"a\"}", "byte 32 of the checkpoint: expected ':' in the metadata, found \"}\""),
        (
            "{\"a\":1}",
            "byte 33 of the checkpoint: expected a string in double quotes in the metadata, found \"1\"",
        ),
        (
            "{\"a\":\"1\",}",
            "byte 37 of the checkpoint: expected a string in double quotes in the metadata, found \"}\"",
        ),
        (
            "{\"a\":\"1\" \"b\":\"2\"}",
            "byte 37 of the checkpoint: expected ',' in the metadata, found \"\"\"",
        ),
        (
            "{\"a\":\"1\",\"a\":\"2\"}",
            "byte 37 of the checkpoint: expected a key that no other metadata have, found \"a\"",
        ),
        ("{\"a\":\"1}", "byte 33 of the checkpoint: expected a closing quote, found the end of the metadata"),
        (
            "{\"a\":\"\\x\"}",
            "byte 33 of the checkpoint: expected a string with escapes of JSON, found \"\\x\"",
        ),
        ("{} {}", "byte 31 of the checkpoint: expected the end of the metadata, found \"{\""),
    ] {
        refused(&file(text, &[]), expected);
    }
    for text in ["", " \n", "{}", "{ }", " {\r\n}\t"] {
        assert_eq!(Checkpoint::parse(&file(text, &[])).unwrap().metadata().len(), 0);
    }
    let many: Vec<String> = (0..4097).map(|i| format!("\"{i}\":\"\"")).collect();
    let error = Checkpoint::parse(&file(&format!("{{{}}}", many.join(",")), &[])).unwrap_err().to_string();
    assert!(error.contains("at most 4096 keys"), "{error}");
    let text = "{\"\\u00e4\\n\\/\":\"\\ud83e\\udd8a\"}";
    let bytes = file(text, &[]);
    assert_eq!(Checkpoint::parse(&bytes).unwrap().get("\u{e4}\n/"), Some("\u{1F98A}"));
}

#[test]
fn a_changed_bit_of_a_tensor_and_a_cut_anywhere_are_found() {
    let tensors = [
        Tensor { name: "a", shape: &[2, 3], data: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0] },
        Tensor { name: "b", shape: &[1], data: &[7.0] },
    ];
    let bytes = written(&[("step", "3")], &tensors).unwrap();
    let start = section(&bytes);
    for at in 0..bytes.len() {
        assert!(Checkpoint::parse(&bytes[..at]).is_err(), "{at}");
        // Of the metadata, only the hash is protected.
        for bit in (0..8).filter(|_| !(28..start).contains(&at)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(Checkpoint::parse(&damaged).is_err(), "{at} {bit}");
        }
    }
    // The lowest bit of the first number.
    let number = start + 4 + 1 + 4 + 16 + 8;
    let error = Checkpoint::parse(&patched(bytes.clone(), number, &[1])).unwrap_err().to_string();
    let prefix = format!("byte {start} of the checkpoint: expected tensors with the SHA-256 \"");
    assert!(error.starts_with(&prefix) && error.contains(", found \""), "{error}");
    let hash = start - 66;
    let error = Checkpoint::parse(&patched(bytes, hash, b"zz")).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{prefix}zz")), "{error}");
}

#[test]
fn random_bytes_are_refused() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let whole = file("{\"a\":\"b\"}", &[("ab", &[2], 2, &[1.0, 2.0]), ("c", &[1, 1], 1, &[3.0])]);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(next() as usize % (2 * whole.len()));
        // It may be valid; it must not panic.
        if let Ok(read) = Checkpoint::parse(&bytes) {
            assert_eq!(read.tensors().iter().map(|tensor| tensor.values().count()).sum::<usize>(), 3);
        }
    }
}

#[test]
fn what_other_readers_do_not_read_is_not_written() {
    let tensor = |name, shape, data| Tensor { name, shape, data };
    let long = "n".repeat(65_536);
    let one: &[f32] = &[1.0];
    let refused = |metadata: &[(&str, &str)], tensors: &[Tensor<'_>], expected: &str| {
        assert_eq!(written(metadata, tensors).unwrap_err().to_string(), expected);
    };
    let names = "expected names without quotes, backslashes and control characters, found";
    refused(&[], &[tensor("a\"b", &[1], one)], &format!("{names} \"a\"b\""));
    refused(&[], &[tensor("a\\b", &[1], one)], &format!("{names} \"a\\b\""));
    refused(&[], &[tensor("a\nb", &[1], one)], &format!("{names} \"a?b\""));
    refused(&[("a\"", "")], &[], &format!("{names} \"a\"\""));
    refused(
        &[],
        &[tensor("a", &[1], one), tensor("a", &[1], one)],
        "expected different names, found \"a\" twice",
    );
    refused(&[("a", ""), ("a", "")], &[], "expected different names, found \"a\" twice");
    refused(&[(SHA256, "")], &[], "expected different names, found \"shohin.sha256\" twice");
    refused(
        &[("a", "\u{1b}[2J")],
        &[],
        "expected no control characters in the metadata \"a\", found \"?[2J\"",
    );
    refused(&[], &[tensor("a", &[2], one)], "expected numbers of \"a\" for its shape [2], found 1");
    refused(&[], &[tensor("a", &[], &[1.0, 2.0])], "expected numbers of \"a\" for its shape [], found 2");
    refused(
        &[],
        &[tensor("a", &[1 << 63, 2], &[])],
        "expected numbers of \"a\" for its shape [9223372036854775808, 2], found 0",
    );
    refused(&[], &[tensor("a", &[1; 9], one)], "expected at most 8 dimensions of \"a\", found 9");
    let error = written(&[], &[tensor(&long, &[1], one)]).unwrap_err().to_string();
    assert!(error.starts_with("expected names of at most 65535 bytes, found \"nnnn"), "{error}");
    let error = written(&[("a", &"x".repeat(1 << 24))], &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("expected at most 16777216 bytes of metadata in 4096 entries, found 1677"),
        "{error}"
    );
}

#[test]
fn the_writer_stops_at_the_first_error() {
    let mut calls = 0;
    let stopped = write::<Error>(&[], &[], |_| {
        calls += 1;
        Err(Error::NotFinite { what: "it", step: 1, row: None })
    });
    assert_eq!((stopped, calls), (Err(Error::NotFinite { what: "it", step: 1, row: None }), 1));
}
