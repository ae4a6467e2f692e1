//! Files with false claims about their own layout.

use shohin_core::gguf::{Gguf, Id42, Kind, ReadOptions, TensorType};
use shohin_core::{Error, Limits};

use super::cases;
use crate::raw::{RawFile, RawTensor, RawValue, string};
use crate::reading::{assert_random_splits_agree, exercise, streamed, whole};
use crate::{Random, meter};

/// Memory that the parser may take for any file, whatever it claims.
const PARSE_BYTES: usize = 64 << 10;
/// Memory per tensor or metadata entry that exists.
const ITEM_BYTES: usize = 96;

/// Values for lengths and counts; `remaining` is one that would just fit.
fn claims(remaining: u64) -> [u64; 13] {
    [
        0,
        1,
        remaining,
        remaining + 1,
        1 << 31,
        1 << 32,
        // On a 32-bit machine these must not be truncated to 1 and `remaining`.
        (1 << 32) + 1,
        (1 << 32) + remaining,
        (1 << 63) - 1,
        1 << 63,
        (1 << 63) + remaining,
        u64::MAX - 1,
        u64::MAX,
    ]
}

/// Reads a file in all ways. No panic, no disagreement, no memory beyond the limit.
fn survive(file: &[u8]) -> Result<(), Error> {
    let (parsed, used) = meter::measure(|| Gguf::parse(file));
    let items = parsed.as_ref().map_or(0, |g| g.tensors().len() + g.metadata().len());
    assert!(used.peak <= PARSE_BYTES + ITEM_BYTES * items, "{} bytes for {items} items", used.peak);
    let options = ReadOptions::default();
    let expected = whole(file, &options);
    for piece in [1, 7, 64, 1000] {
        assert_eq!(streamed(file, &options, |_| piece), expected, "in pieces of {piece}");
    }
    exercise(&parsed?);
    Ok(())
}

/// Asserts that the file is refused with an error of one of these codes.
#[track_caller]
fn refused(file: &[u8], codes: &[&str]) {
    let error = survive(file).expect_err("this file must be refused");
    assert!(codes.contains(&error.code()), "{error:?}, expected one of {codes:?}");
    assert!(!error.to_string().is_empty());
}

#[track_caller]
fn accepted(file: &[u8]) {
    survive(file).unwrap();
}

cases! {
    /// The sample that everything else modifies.
    fn sample_is_valid() {
        accepted(&RawFile::sample().build());
        accepted(&RawFile::new().build());
    }

    /// CVE-2024-23605, CVE-2025-66960: the counts at the start.
    fn counts() {
        let sample = RawFile::sample();
        let rest = sample.build().len() as u64 - 24;
        for claim in claims(rest) {
            for (tensors, entries) in [(Some(claim), None), (None, Some(claim)), (Some(claim), Some(claim))] {
                let file = RawFile { n_tensors: tensors, n_entries: entries, ..sample.clone() }.build();
                if claim > 1 {
                    refused(&file, &["limit", "truncated", "malformed", "tensor_type", "unsupported"]);
                } else {
                    let _ = survive(&file);
                }
            }
        }
        // As many as the limits allow, in a file without any.
        let empty = RawFile { n_tensors: Some(1 << 16), n_entries: Some(1 << 12), ..RawFile::new() };
        refused(&empty.build(), &["truncated"]);
    }

    /// CVE-2024-21802: lengths of keys, names, strings and arrays.
    fn lengths() {
        let sample = RawFile::sample().build();
        let find = |needle: &[u8]| {
            sample.windows(needle.len()).position(|w| w == needle).expect("part of the sample")
        };
        let key = find(b"qwen3.block_count") - 8;
        let text = find(b"qwen3") - 8;
        let name = find(b"second") - 8;
        let token = find(b"bcd") - 8;
        let array = find(b"tokenizer.ggml.tokens") + 21 + 4 + 4;
        for at in [key, text, name, token, array] {
            let remaining = (sample.len() - at - 8) as u64;
            let honest = sample[at..at + 8].to_vec();
            for claim in claims(remaining) {
                let mut file = sample.clone();
                file[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                if claim.to_le_bytes() == honest[..] {
                    continue;
                }
                if claim > remaining {
                    refused(&file, &["limit", "truncated"]);
                } else {
                    assert!(survive(&file).is_err(), "length {claim} at {at}");
                }
            }
        }
    }

    /// An array's length against elements of every size.
    fn array_lengths() {
        for kind in Kind::ALL {
            for claim in claims(64) {
                let file = RawFile::new().entry("a", RawValue::array(kind.id(), claim, &[0; 64])).build();
                let honest = kind.size().is_some_and(|size| claim.checked_mul(size) == Some(64));
                if honest || (claim == 0 && kind == Kind::U8) {
                    continue;
                }
                if claim > 64 {
                    refused(&file, &["limit", "truncated"]);
                } else {
                    // The rest of the array is after the header: unused bytes, which no tensor needs.
                    let _ = survive(&file);
                }
            }
        }
    }

    /// Lengths that a host has allowed, and that overflow when they are multiplied.
    fn array_sizes() {
        let limits = Limits { array: u64::MAX, ..Limits::DEFAULT };
        let options = ReadOptions { limits, ..ReadOptions::default() };
        for kind in Kind::ALL {
            for claim in [1 << 61, (1 << 61) + 8, 1 << 62, 1 << 63, (1 << 63) + 8, u64::MAX / 2, u64::MAX] {
                let file = RawFile::new().entry("a", RawValue::array(kind.id(), claim, &[0; 64])).build();
                let (result, used) = meter::measure(|| Gguf::parse_with(&file, &options).map(drop));
                assert_eq!(result.map_err(|e| e.code()), Err("truncated"), "{claim} of {}", kind.name());
                assert!(used.peak <= PARSE_BYTES);
            }
        }
    }

    /// The number of dimensions of a tensor, and their sizes.
    fn dimension_counts() {
        for n in [0, 5, 6, 64, 1 << 16, 1 << 31, u32::MAX] {
            let lie = RawTensor { n_dims: Some(n), ..RawTensor::new("t", &[4, 3], 0, 0) };
            refused(&RawFile::new().tensor(lie).data(48).build(), &["malformed"]);
        }
        for n in [1, 3, 4] {
            let lie = RawTensor { n_dims: Some(n), ..RawTensor::new("t", &[4, 3], 0, 0) };
            assert!(survive(&RawFile::new().tensor(lie).data(48).build()).is_err());
        }
        for dims in [&[4][..], &[4, 3], &[4, 3, 2], &[4, 3, 2, 2]] {
            accepted(&RawFile::new().tensor(RawTensor::new("t", dims, 0, 0)).data(4 * 48).build());
        }
    }

    /// CVE-2025-53630, CVE-2026-27940: sums of padded sizes that overflow.
    fn padded_sums() {
        let huge = 0x7fff_ffff_ffff_ffc0_u64;
        for dims in [&[huge][..], &[huge / 2, 2], &[huge / 64, 64]] {
            // 1-byte elements (I8), so that the size is the element count.
            let file = RawFile::new()
                .tensor(RawTensor::new("a", dims, 24, 0))
                .tensor(RawTensor::new("b", dims, 24, huge))
                .tensor(RawTensor::new("c", &[32], 24, huge.wrapping_mul(2)))
                .data(256);
            refused(&file.build(), &["tensor_range", "truncated"]);
        }
        for size in [u64::MAX, u64::MAX - 1, u64::MAX - 30, u64::MAX - 31, 1 << 63, (1 << 63) - 1] {
            let file = RawFile::new().tensor(RawTensor::new("a", &[size], 24, 0)).data(64);
            refused(&file.build(), &["tensor_range", "truncated"]);
            let file = RawFile::new().tensor(RawTensor::new("a", &[32], 24, size)).data(64);
            refused(&file.build(), &["tensor_range", "truncated"]);
            let file = RawFile::new().tensor(RawTensor::new("a", &[32], 24, size & !31)).data(64);
            refused(&file.build(), &["tensor_range", "truncated"]);
        }
    }

    /// CVE-2026-33298: products of dimensions that overflow, also through the block size.
    fn element_products() {
        let big = u64::MAX;
        for dims in [
            &[1 << 40, 1 << 40][..],
            &[1 << 32, 1 << 32],
            &[1 << 32, 1 << 31, 2],
            &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
            &[(1 << 42) + 1],
            &[(1 << 42) + 256],
            &[(1 << 32) + 256],
            &[256, (1 << 32) + 1],
            &[256, 1 << 56],
            &[big],
            &[big - 127],
            &[big - 255],
            &[256, big],
            &[1 << 63, 2],
        ] {
            for kind in TensorType::ALL {
                let file = RawFile::new().tensor(RawTensor::new("t", dims, kind.id, 0)).data(1024);
                refused(&file.build(), &["tensor_range", "tensor_type", "truncated"]);
            }
        }
    }

    /// CVE-2026-7482: a tensor that ends after the file, by any amount.
    fn ranges() {
        let file = |offset, data| {
            RawFile::new().tensor(RawTensor::new("t", &[16], 24, offset)).data(data).build()
        };
        accepted(&file(32, 48));
        refused(&file(32, 47), &["truncated"]);
        for offset in [64, 1 << 31, 1 << 32, (1 << 32) + 32, 1 << 63, u64::MAX - 31] {
            refused(&file(offset, 48), &["tensor_range", "truncated"]);
        }
    }

    /// A valid file, cut at every byte.
    fn truncation() {
        let file = RawFile::sample().build();
        for len in 0..file.len() {
            let error = survive(&file[..len]).expect_err("a part is no whole");
            assert!(["truncated", "tensor_range"].contains(&error.code()), "{len}: {error:?}");
        }
        accepted(&file);
        // Only bytes after the last tensor can be missing unnoticed.
        let mut padded = file.clone();
        padded.extend_from_slice(&[0; 22]);
        accepted(&padded);
    }

    /// Invalid alignments.
    fn alignment() {
        const KEY: &str = "general.alignment";
        let file = |value| {
            let mut file = RawFile::sample().entry(KEY, value);
            file.entries.rotate_right(1);
            file
        };
        for bad in [0, 3, 24, 33, 1 << 21, 1 << 31, u32::MAX] {
            refused(&file(RawValue::u32(bad)).build(), &["key_value"]);
        }
        for wrong in [RawValue::u64(32), RawValue::u64(1 << 32), RawValue::f32(32.0), RawValue::str("32")] {
            refused(&file(wrong).build(), &["key_type"]);
        }
        refused(&file(RawValue::u32(32)).entry(KEY, RawValue::u32(32)).build(), &["duplicate"]);
        accepted(&file(RawValue::u32(32)).build());
        accepted(&file(RawValue::u32(1)).build());
        let wide = RawFile { alignment: 64, ..file(RawValue::u32(64)) };
        accepted(&wide.build());
        // An offset between the multiples.
        refused(&RawFile::new().tensor(RawTensor::new("t", &[4], 0, 16)).data(64).build(), &["tensor_range"]);
    }

    /// A zero in each dimension, and rows that are not a whole number of blocks.
    fn shapes() {
        for at in 0..4 {
            let mut dims = [4, 4, 4, 4];
            dims[at] = 0;
            refused(&RawFile::new().tensor(RawTensor::new("t", &dims, 0, 0)).data(1024).build(), &["malformed"]);
        }
        for kind in TensorType::ALL.iter().filter(|t| t.block > 1) {
            for row in [1, u64::from(kind.block) - 1, u64::from(kind.block) + 1] {
                let tensor = RawTensor::new("t", &[row, u64::from(kind.block)], kind.id, 0);
                refused(&RawFile::new().tensor(tensor).data(1 << 17).build(), &["tensor_type"]);
            }
        }
    }

    /// Names and keys that are empty, duplicate, not text, or endless.
    fn names() {
        let long = vec![b'x'; 65_536];
        for bad in [&b""[..], b"\xff\xfe", b"a\0b", b"\0", b"\xed\xa0\x80", &long] {
            let key = RawFile::new().entry(bad, RawValue::u32(1)).build();
            refused(&key, &["malformed", "unsupported", "limit"]);
            let tensor = RawFile::new().tensor(RawTensor::new(bad, &[4], 0, 0)).data(16).build();
            refused(&tensor, &["malformed", "unsupported", "limit"]);
        }
        accepted(&RawFile::new().entry(&long[1..], RawValue::u32(1)).build());
        accepted(&RawFile::new().tensor(RawTensor::new(&long[..64], &[4], 0, 0)).data(16).build());
        refused(&RawFile::new().tensor(RawTensor::new(&long[..65], &[4], 0, 0)).data(16).build(), &["limit"]);
        let twice = RawFile::sample().entry("qwen3.block_count", RawValue::u32(2));
        refused(&twice.build(), &["duplicate"]);
        let twice = RawFile::sample().tensor(RawTensor::new("first", &[4], 0, 96)).data(112);
        refused(&twice.build(), &["duplicate"]);
    }

    /// Deeply nested arrays, which would exhaust the stack.
    fn nesting() {
        let nested = |depth: usize| {
            let mut value = RawValue::array(0, 1, &[7]);
            for _ in 1..depth {
                value = RawValue::array(9, 1, &value.bytes);
            }
            RawFile::new().entry("a", value).build()
        };
        for depth in 1..=4 {
            accepted(&nested(depth));
        }
        for depth in [5, 8, 9, 100, 10_000] {
            refused(&nested(depth), &["limit"]);
        }
        // Even a host that allows everything gets no recursion.
        let limits = Limits { nesting: u64::MAX, ..Limits::DEFAULT };
        let options = ReadOptions { limits, ..ReadOptions::default() };
        assert_eq!(whole(&nested(10_000), &options).unwrap_err().code(), "limit");
        assert!(whole(&nested(7), &options).is_ok());
        // Siblings on every level.
        let pair = RawValue::array(9, 2, &[RawValue::strings(&["a", "b"]).bytes, RawValue::array(0, 0, &[]).bytes].concat());
        accepted(&RawFile::new().entry("a", pair).entry("b", RawValue::u32(1)).build());
        // Millions of empty arrays take no memory.
        let many = RawValue::array(0, 0, &[]).bytes.repeat(50_000);
        accepted(&RawFile::new().entry("a", RawValue::array(9, 50_000, &many)).build());
    }

    /// Unknown types, also as negative numbers.
    fn enums() {
        let unknown = |known: &dyn Fn(u32) -> bool| {
            let low = (0..300).filter(move |id| !known(*id)).collect::<Vec<u32>>();
            low.into_iter().chain([1 << 16, 1 << 31, u32::MAX, u32::MAX - 41, (-1_i32) as u32])
        };
        for kind in unknown(&|id| id <= 12) {
            let value = RawValue { kind, bytes: vec![0; 64] };
            refused(&RawFile::new().entry("a", value).build(), &["malformed"]);
            refused(&RawFile::new().entry("a", RawValue::array(kind, 1, &[0; 64])).build(), &["malformed"]);
        }
        for id in unknown(&|id| TensorType::of(id).is_some()) {
            refused(&RawFile::new().tensor(RawTensor::new("t", &[256], id, 0)).data(2048).build(), &["tensor_type"]);
        }
        for value in 2..=255 {
            let value = RawValue { kind: 7, bytes: vec![value] };
            refused(&RawFile::new().entry("a", value).build(), &["malformed"]);
        }
        let third = RawValue::array(7, 4, &[0, 1, 2, 1]);
        refused(&RawFile::new().entry("a", third).build(), &["malformed"]);
    }

    /// Another format, another version, the other byte order.
    fn starts() {
        for start in [b"GGML\x03\0\0\0", b"gguf\x03\0\0\0", b"PK\x03\x04\x03\0\0\0", b"FUGG\x03\0\0\0"] {
            refused(&RawFile { start: *start, ..RawFile::sample() }.build(), &["malformed"]);
        }
        for version in [0, 1, 4, 0x0300_0000, u32::MAX] {
            let mut start = *b"GGUF\0\0\0\0";
            start[4..].copy_from_slice(&u32::to_le_bytes(version));
            refused(&RawFile { start, ..RawFile::sample() }.build(), &["malformed"]);
        }
        accepted(&RawFile { start: *b"GGUF\x02\0\0\0", ..RawFile::sample() }.build());
    }

    /// Overlapping tensors; gaps and unused bytes, which are harmless.
    fn overlap() {
        let two = |a, b| {
            RawFile::new()
                .tensor(RawTensor::new("a", &[12], 0, a))
                .tensor(RawTensor::new("b", &[12], 0, b))
                .data(512)
                .build()
        };
        refused(&two(0, 0), &["tensor_range"]);
        refused(&two(0, 32), &["tensor_range"]);
        refused(&two(32, 0), &["tensor_range"]);
        accepted(&two(0, 64));
        // In any order, with gaps, with trailing bytes.
        accepted(&two(64, 0));
        accepted(&two(256, 32));
    }

    /// Id 42 in files that do not determine the layout.
    fn id_42_untold() {
        // One tensor of 64 rows: 64 * 36 or 64 * 34 bytes.
        let one = |data| RawFile::new().tensor(RawTensor::new("t", &[128, 64], 42, 0)).data(data).build();
        accepted(&one(64 * 36));
        accepted(&one(64 * 34));
        for data in [64 * 33, 64 * 34 - 1, 64 * 35, 64 * 36 - 1, 64 * 36 + 1, 64 * 50] {
            refused(&one(data), &["tensor_range", "truncated"]);
        }
        for (id42, len) in [(Id42::Group64, 64 * 36), (Id42::Group128, 64 * 34), (Id42::CodesFirst, 64 * 34)] {
            let options = ReadOptions { id42, ..ReadOptions::default() };
            let told = whole(&one(64 * 50), &options).unwrap();
            assert_eq!(told.tensors[0].len(), len);
        }
        // So few that the padding hides the difference: 36 or 34 bytes, padded to 64.
        let few = |data| RawFile::new().tensor(RawTensor::new("t", &[128], 42, 0)).data(data).build();
        accepted(&few(36));
        accepted(&few(34));
        refused(&few(64), &["tensor_range", "truncated"]);
        // With a gap the running sums are useless.
        let gap = RawFile::new()
            .tensor(RawTensor::new("a", &[128, 64], 42, 0))
            .tensor(RawTensor::new("b", &[32], 24, 64 * 40));
        refused(&gap.data(64 * 40 + 32).build(), &["tensor_range", "truncated"]);
        // Rows that only groups of 64 can fill.
        let narrow = RawFile::new().tensor(RawTensor::new("t", &[64, 64], 42, 0));
        accepted(&narrow.clone().data(64 * 18).build());
        refused(&narrow.data(64 * 17).build(), &["tensor_range", "truncated"]);
    }

    /// Limits that a host has lowered.
    fn limits() {
        let file = RawFile::sample().build();
        let with = |limits| whole(&file, &ReadOptions { limits, ..ReadOptions::default() });
        assert!(with(Limits::DEFAULT).is_ok());
        for limits in [
            Limits { tensors: 1, ..Limits::DEFAULT },
            Limits { entries: 2, ..Limits::DEFAULT },
            Limits { name: 4, ..Limits::DEFAULT },
            Limits { string: 2, ..Limits::DEFAULT },
            Limits { array: 2, ..Limits::DEFAULT },
            Limits { nesting: 0, ..Limits::DEFAULT },
        ] {
            assert_eq!(with(limits).unwrap_err().code(), "limit", "{limits:?}");
        }
    }

    /// Each bit of a small valid file, flipped.
    fn every_bit() {
        let file = RawFile::sample().build();
        for bit in 0..file.len() * 8 {
            let mut file = file.clone();
            file[bit / 8] ^= 1 << (bit % 8);
            let _ = survive(&file);
        }
    }

    /// Thousands of files with random bytes in random places, read whole and in random pieces.
    fn random_flips() {
        let samples = [
            RawFile::sample().build(),
            RawFile::sample().tensor(RawTensor::new("t", &[128, 4], 42, 96)).data(96 + 4 * 34).build(),
            RawFile::new()
                .entry("nested", RawValue::array(9, 1, &RawValue::strings(&["x", "yz"]).bytes))
                .entry("numbers", RawValue::array(5, 3, &[0; 12]))
                .tensor(RawTensor::new("q", &[256, 2], 12, 0))
                .data(288)
                .build(),
        ];
        let options = ReadOptions::default();
        let mut random = Random::new(42);
        for round in 0..6000 {
            let mut file = samples[round % samples.len()].clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(file.len());
                let interesting = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8];
                file[at] = interesting[random.below(interesting.len())];
            }
            if random.below(4) == 0 {
                let len = random.below(file.len() + 1);
                file.truncate(len);
            }
            let (parsed, used) = meter::measure(|| Gguf::parse(&file));
            let items = parsed.as_ref().map_or(0, |g| g.tensors().len() + g.metadata().len());
            assert!(used.peak <= PARSE_BYTES + ITEM_BYTES * items);
            if let Ok(gguf) = parsed {
                exercise(&gguf);
            }
            assert_random_splits_agree(&file, &options, &mut random, 1);
        }
    }

    /// The memory limit, with as many items as the limits allow.
    fn memory_of_many_items() {
        let mut file = RawFile::new();
        for i in 0..4096 {
            file = file.entry(format!("k{i}"), RawValue::u32(i));
        }
        for i in 0..10_000_u64 {
            file = file.tensor(RawTensor::new(format!("t{i}"), &[8], 0, i * 32));
        }
        let file = file.data(320_000).build();
        let (parsed, used) = meter::measure(|| Gguf::parse(&file).map(|g| g.tensors().len()));
        assert_eq!(parsed, Ok(10_000));
        assert!(used.peak <= PARSE_BYTES + ITEM_BYTES * 14_096, "{}", used.peak);
        // A vocabulary stays in the file.
        let tokens: Vec<String> = (0..100_000).map(|i| format!("token{i}")).collect();
        let file = RawFile::new().entry("tokenizer.ggml.tokens", RawValue::strings(&tokens)).build();
        let (parsed, used) = meter::measure(|| Gguf::parse(&file).map(|g| g.metadata().len()));
        assert_eq!(parsed, Ok(1));
        assert!(used.peak <= 1024, "{}", used.peak);
        // A long string too.
        let file = RawFile::new().entry("a", RawValue { kind: 8, bytes: string(&[b'x'; 1 << 20]) }).build();
        let (parsed, used) = meter::measure(|| Gguf::parse(&file).map(|g| g.metadata().len()));
        assert_eq!(parsed, Ok(1));
        assert!(used.peak <= 1024, "{}", used.peak);
    }
}
