//! Builds without some of the features: what needs a part that is left out is refused, and nothing is computed wrongly.
//! The suite `no-std` runs it with `--no-default-features --features one-bit-formats`.
#![cfg(not(any(
    feature = "ternary-formats",
    feature = "sampling",
    feature = "tools",
    feature = "cache-formats",
    feature = "messages"
)))]

use shohin_core::chat::Style;
use shohin_core::gguf::{Event, Gguf, GgufStream, GgufWriter, ReadOptions};
use shohin_core::quant::{Matrix, pack, unpack};
use shohin_core::{Error, Format, KvFormat, Sampler, SamplerConfig};

#[test]
fn weights_of_other_formats_are_refused() {
    for format in Format::ALL.into_iter().filter(|format| !format.is_available()) {
        let weights = vec![1.0; format.block()];
        let mut packed = vec![0; format.block_bytes()];
        let name = format.name();
        assert!(matches!(pack(format, &weights, &mut packed), Err(Error::Unsupported { .. })), "{name}");
        assert!(packed.iter().all(|byte| *byte == 0), "{name}");
        let mut unpacked = weights.clone();
        assert!(matches!(unpack(format, &packed, &mut unpacked), Err(Error::Unsupported { .. })), "{name}");
        assert_eq!(unpacked, weights, "{name}");
        assert!(Matrix::new(format, 1, format.block(), &packed).is_err(), "{name}");
    }
    let left: Vec<_> = Format::ALL.into_iter().filter(|format| format.is_available()).collect();
    assert_eq!(left, [Format::F32, Format::F16, Format::Bf16, Format::Q1_0]);
}

#[test]
fn one_bit_weights_are_there() {
    let format = Format::Q1_0;
    let weights: Vec<f32> = (0..format.block()).map(|i| if i % 3 == 0 { 0.5 } else { -0.5 }).collect();
    let (mut packed, mut unpacked) = (vec![0; format.block_bytes()], vec![0.0; format.block()]);
    pack(format, &weights, &mut packed).unwrap();
    unpack(format, &packed, &mut unpacked).unwrap();
    assert_eq!(unpacked, weights);
}

#[test]
fn a_file_with_other_weights_has_a_tensor_that_is_not_read() {
    let mut file = GgufWriter::new();
    file.tensor("a", &[256], Format::Q4K).unwrap();
    file.tensor("b", &[128], Format::Q1_0).unwrap();
    let file =
        file.to_vec([vec![0; Format::Q4K.block_bytes()], vec![0; Format::Q1_0.block_bytes()]]).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    assert!(gguf.matrix("a").is_err());
    assert!(gguf.matrix("b").is_ok());
}

#[test]
fn choices_other_than_the_likeliest_token_are_refused() {
    assert_eq!(SamplerConfig::default(), SamplerConfig::greedy());
    assert!(Sampler::new(&SamplerConfig::default(), 16).is_ok());
    assert!(matches!(Sampler::new(&SamplerConfig::bonsai(), 16), Err(Error::Option { .. })));
    let mut sampler = Sampler::new(&SamplerConfig::greedy(), 4).unwrap();
    for (logits, want) in [
        ([1.0, 3.0, f32::NAN, 3.0], Ok(1)),
        ([f32::NEG_INFINITY, f32::MAX, f32::INFINITY, 0.0], Ok(1)),
        ([f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::NAN], Err(Error::Logits {})),
    ] {
        assert_eq!(sampler.sample(&logits), want, "{logits:?}");
    }
}

#[test]
fn errors_are_codes() {
    assert_eq!(size_of::<Error>(), 1);
    assert_eq!(Error::device("a sentence").to_string(), "device");
    let mut file = GgufWriter::new();
    // Whole multiples of the alignment, so that the file does not end with padding.
    file.tensor("a", &[2048], Format::Q1_0).unwrap();
    let file = file.to_vec([vec![0; 16 * Format::Q1_0.block_bytes()]]).unwrap();
    for len in 0..file.len() {
        assert_eq!(Gguf::parse(&file[..len]).map(drop).unwrap_err().code(), "truncated", "{len}");
    }
    assert_eq!(Gguf::parse(b"GGU?....").map(drop), Err(Error::NotGguf {}));
}

#[test]
fn a_header_that_arrives_in_parts_waits_for_the_rest() {
    let mut file = GgufWriter::new();
    file.tensor("a", &[128], Format::Q1_0).unwrap();
    let file = file.to_vec([vec![7; Format::Q1_0.block_bytes()]]).unwrap();
    let mut stream = GgufStream::new(file.len() as u64, ReadOptions::default());
    let mut data = Vec::new();
    for byte in &file {
        let taken = stream.push(&[*byte], &mut |event| {
            if let Event::TensorData { bytes, .. } = event {
                data.extend_from_slice(bytes);
            }
            Ok(())
        });
        assert_eq!(taken, Ok(()));
    }
    assert_eq!(stream.finish(), Ok(()));
    assert_eq!(data, vec![7; Format::Q1_0.block_bytes()]);
}

#[test]
fn caches_and_tools_are_said_to_be_missing() {
    let left: Vec<_> = KvFormat::ALL.into_iter().filter(|format| format.is_available()).collect();
    assert_eq!(left, [KvFormat::Q8]);
    assert!(!Style::Qwen3.has_tools());
}
