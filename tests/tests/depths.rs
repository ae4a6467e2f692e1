//! Mixtures of depths against the formulas in f64 (`oracle/depths.py`).

use std::fs;
use std::path::Path;

use shohin_core::cpu::{Cpu, CpuOptions, Isa, MemoryPlan};
use shohin_core::device::{BlockingDevice, Output, Readout, Wants, ready};
use shohin_core::model::{ModelConfigBuilder, Split};
use shohin_core::session::{Feed, run_batch};
use shohin_core::{BonsaiModel, Format, Gguf, KvFormat, ModelConfig, Session, SessionOptions};
use shohin_tests::cpu::{all_logits, exact, in_format, repacked};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::raw::{RawFile, RawTensor, RawValue};

type Machine = Cpu<'static, Vec<u8>>;

const VOCAB: usize = 257;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)).unwrap()
}

fn file() -> Vec<u8> {
    fixture("qwen3-depths.gguf")
}

fn tokens() -> Vec<u32> {
    b"The fox ran home, all alone.".iter().copied().map(u32::from).collect()
}

/// The largest difference from the logits of a file.
fn worst(got: &[f32], want: &str) -> f32 {
    let want: Vec<f32> = fixture(want).as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d <= m { m } else { d })
}

#[test]
fn the_formulas_agree() {
    for isa in Isa::available() {
        for (batch, logit_rows) in [(1, 1), (2, 1), (5, 2), (28, 28)] {
            let options = CpuOptions { batch, logit_rows, isa, ..exact() };
            let mut device = repacked(&file(), &options).unwrap();
            for (kv, bound) in [(KvFormat::F32, 1e-4), (KvFormat::F16, 3e-2)] {
                let got = all_logits(&mut device, &tokens(), &in_format(kv)).unwrap();
                let worst = worst(&got, "qwen3-depths.logits");
                println!("{isa:?} batch {batch} {kv:?}: {worst}");
                assert!(worst < bound, "{isa:?} batch {batch} {kv:?}: {worst}");
            }
        }
    }
}

/// Also where no token of a part takes part in a block, and with every format of the cache.
#[test]
fn bits_do_not_depend_on_how_many_tokens_are_computed_at_once() {
    for kv in KvFormat::ALL {
        for isa in [Isa::SCALAR, Isa::detect()] {
            let at_once = |batch: usize| {
                let options = CpuOptions { isa, batch, ..CpuOptions::default() };
                all_logits(&mut repacked(&file(), &options).unwrap(), &tokens(), &in_format(kv)).unwrap()
            };
            let want = at_once(1);
            assert!(want.iter().all(|x| x.is_finite()));
            for batch in [2, 3, 7, 28] {
                assert!(at_once(batch) == want, "{kv:?} {isa:?} {batch}");
            }
        }
    }
}

/// Of a size that the kernels are made for, and with experts in the blocks that tokens skip.
#[test]
fn bits_do_not_depend_on_the_kernels_nor_on_experts() {
    for shape in [Shape::tiny(), Shape::tiny_experts()] {
        let shape = Shape { depth_routers: true, layers: 4, vocab: 293, ..shape };
        for format in [Format::Q1_0, Format::Pq2_0] {
            let file = Model::new(shape.clone(), Stored::new(format), 5).to_vec().unwrap();
            let tokens: Vec<u32> = (0..150u32).map(|i| (i * i + 7 * i) % 293).collect();
            let bits = |isa, batch| {
                let options = CpuOptions { isa, batch, ..CpuOptions::default() };
                let in_session = in_format(KvFormat::Q8);
                all_logits(&mut repacked(&file, &options).unwrap(), &tokens, &in_session).unwrap()
            };
            let want = bits(Isa::detect(), 1);
            assert!(bits(Isa::SCALAR, 64) == want && bits(Isa::detect(), 64) == want, "{format:?}");
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    let bytes = file();
    let mut device = repacked(&bytes, &CpuOptions { batch: 9, ..CpuOptions::default() }).unwrap();
    let texts: [&[u8]; 4] = [b"The fox ran home", b"a", b"all alone.", b"home, all"];
    let texts = texts.map(|text| text.iter().copied().map(u32::from).collect::<Vec<u32>>());
    let mut sessions: Vec<_> =
        texts.iter().map(|_| Session::new(&mut device, &in_format(KvFormat::F16)).unwrap()).collect();
    let mut got = vec![Vec::new(); 4];
    // Two steps, of which the second begins where sequences have different numbers of tokens.
    for (from, to) in [(0, 1), (1, 99)] {
        let part = |text: &[u32]| text[from.min(text.len() - 1)..to.min(text.len())].to_vec();
        let parts = texts.each_ref().map(|text| part(text));
        let mut feeds: Vec<_> = sessions
            .iter_mut()
            .zip(&parts)
            .filter(|(_, tokens)| !tokens.is_empty())
            .map(|(session, tokens)| Feed { session, tokens, wants: Wants::Each(Readout::Logits) })
            .collect();
        let sink = &mut |sequence: usize, _: usize, output: Output<'_>| {
            if let Output::Logits(logits) = output {
                got[sequence].extend_from_slice(logits);
            }
        };
        ready(run_batch(&mut device, &mut feeds, sink)).unwrap().unwrap();
    }
    // Of one letter, it was fed twice.
    let texts = texts.map(|text| if text.len() == 1 { [text.clone(), text].concat() } else { text });
    for (text, got) in texts.iter().zip(got) {
        assert!(all_logits(&mut device, text, &in_format(KvFormat::F16)).unwrap() == got);
    }
}

#[test]
fn truncated_exported_and_forked_sessions_go_on_with_the_same_bits() {
    let (bytes, tokens) = (file(), tokens());
    let mut device = repacked(&bytes, &CpuOptions { batch: 6, ..CpuOptions::default() }).unwrap();
    for kv in KvFormat::ALL {
        let options = SessionOptions { kv, context: 40, ..SessionOptions::default() };
        let want = all_logits(&mut device, &tokens, &options).unwrap();
        for held in [1, 5, 15, 16, 17, 27] {
            let want = &want[held * VOCAB..];
            let rest = |device: &mut Machine, session: &mut Session<Machine>| {
                let mut got = Vec::new();
                let mut sink = |_: usize, row: &[f32]| got.extend_from_slice(row);
                session.forward_logits(device, &tokens[held..], &mut sink).unwrap();
                got
            };
            for paged in [false, true] {
                let open = if paged { Session::paged } else { Session::new };
                let what = format!("{kv:?} {held} paged {paged}");
                let mut first = open(&mut device, &options).unwrap();
                first.forward_prefill(&mut device, &tokens[..held]).unwrap();
                let mut clean = Vec::new();
                Machine::wait(first.export(&mut device, &mut clean)).unwrap();
                // Others take part than those that come later.
                first.forward_prefill(&mut device, &[7, 77, 177, 207, 9]).unwrap();
                first.truncate(held).unwrap();
                let mut out = Vec::new();
                Machine::wait(first.export(&mut device, &mut out)).unwrap();
                assert_eq!(out.len(), first.export_len(&device));
                assert!(out == clean, "{what}: forgotten tokens are exported");

                first.forward_prefill(&mut device, &[7, 77, 177, 207, 9]).unwrap();
                let mut short = ready(first.fork(&mut device, held)).unwrap().unwrap();
                let ahead = first.forward(&mut device, 3).unwrap().to_vec();
                first.truncate(held).unwrap();
                first.forward_prefill(&mut device, &[7, 77, 177, 207, 9]).unwrap();
                assert!(
                    first.forward(&mut device, 3).unwrap() == ahead,
                    "{what}: a fork changes the first one"
                );
                first.truncate(held).unwrap();
                assert!(rest(&mut device, &mut short) == want, "{what}: forked earlier");
                let mut fork = ready(first.fork(&mut device, held)).unwrap().unwrap();
                fork.forward_prefill(&mut device, &[1, 2, 3, 4, 5]).unwrap();
                let mut second = ready(first.fork(&mut device, held)).unwrap().unwrap();
                assert!(rest(&mut device, &mut first) == want, "{what}: truncated");
                assert!(rest(&mut device, &mut second) == want, "{what}: forked");
                fork.truncate(held).unwrap();
                assert!(rest(&mut device, &mut fork) == want, "{what}: forked and truncated");

                let mut other = open(&mut device, &SessionOptions { context: 33, ..options }).unwrap();
                other.forward_prefill(&mut device, &[1, 2, 3]).unwrap();
                other.import(&mut device, held, &out).unwrap();
                assert!(rest(&mut device, &mut other) == want, "{what}: imported");
                out.pop();
                assert_eq!(other.import(&mut device, held, &out).map_err(|e| e.code()), Err("length"));
            }
        }
    }
}

/// Bytes that nobody checks can be wrong, but not read or write anything else.
#[test]
fn any_bytes_can_be_imported() {
    let bytes = file();
    let mut device = repacked(&bytes, &CpuOptions::default()).unwrap();
    let options = SessionOptions { context: 40, ..SessionOptions::default() };
    for byte in [0x00, 0x5a, 0xff] {
        for paged in [false, true] {
            let open = if paged { Session::paged } else { Session::new };
            let mut session = open(&mut device, &options).unwrap();
            session.set_len(40).unwrap();
            let wrong = vec![byte; session.export_len(&device)];
            session.import(&mut device, 40, &wrong).unwrap();
            session.shift(&mut device, 3, 20).unwrap();
            session.forward_prefill(&mut device, &tokens()[..17]).unwrap();
        }
    }
}

#[test]
fn pages_are_copied_where_blocks_without_some_tokens_have_theirs() {
    let bytes = RawFile::of(&file()).set("qwen3.context_length", RawValue::u32(600)).build();
    let mut device = repacked(&bytes, &CpuOptions::default()).unwrap();
    let options = SessionOptions { context: 500, ..SessionOptions::default() };
    let text: Vec<u32> = (0..400u32).map(|i| (i * i + 5 * i) % 251).collect();
    let want = all_logits(&mut device, &text, &options).unwrap();
    let want = &want[399 * VOCAB..];
    for len in [130, 256, 300, 384] {
        let mut first = Session::paged(&mut device, &options).unwrap();
        first.forward_prefill(&mut device, &text[..399]).unwrap();
        let mut fork = ready(first.fork(&mut device, len)).unwrap().unwrap();
        fork.forward_prefill(&mut device, &tokens()).unwrap();
        assert_eq!(first.forward(&mut device, text[399]).unwrap(), want, "{len}");
        fork.truncate(len).unwrap();
        assert_eq!(fork.forward_prefill(&mut device, &text[len..]).unwrap(), want, "{len}");
    }
}

#[test]
fn a_shifted_context_has_the_logits_of_the_formulas() {
    let bytes = file();
    for paged in [false, true] {
        let mut device = repacked(&bytes, &exact()).unwrap();
        let open = if paged { Session::paged } else { Session::new };
        let mut session = open(&mut device, &in_format(KvFormat::F32)).unwrap();
        session.forward_prefill(&mut device, &tokens()[..20]).unwrap();
        session.shift(&mut device, 4, 7).unwrap();
        let mut got = Vec::new();
        let mut sink = |_: usize, row: &[f32]| got.extend_from_slice(row);
        session.forward_logits(&mut device, &tokens()[20..], &mut sink).unwrap();
        let worst = worst(&got, "qwen3-depths.shifted");
        assert!(worst < 1e-4, "{worst}");
    }
}

#[test]
fn sessions_in_given_memory_need_no_zeros() {
    let bytes = file();
    let mut device = repacked(&bytes, &CpuOptions { batch: 4, ..exact() }).unwrap();
    let options = SessionOptions { context: 30, kv: KvFormat::F32, ..SessionOptions::default() };
    let plan: MemoryPlan = device.memory_plan(&options).unwrap();
    assert_eq!(plan.total, plan.device + plan.session);
    let mut session = device.session_in(&options, vec![0xff; plan.session]).unwrap();
    let mut got = Vec::new();
    let mut sink = |_: usize, row: &[f32]| got.extend_from_slice(row);
    session.forward_logits(&mut device, &tokens(), &mut sink).unwrap();
    assert!(worst(&got, "qwen3-depths.logits") < 1e-4);
    assert!(device.session_in(&options, vec![0; plan.session - 1]).is_err());
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    let bytes = file();
    let gguf = Gguf::parse(&bytes).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    assert_eq!(config.depth_routers, [0, 2, 3]);
    let router = "blk.N.depth_router.weight";

    let alibi = ModelConfigBuilder::from(config.clone()).alibi(8.0).build().unwrap_err().to_string();
    assert!(alibi.contains("attention.max_alibi_bias") && alibi.contains(router), "{alibi}");
    let mut device = repacked(&bytes, &CpuOptions::default()).unwrap();
    for attention in ["window:5", "strided:2:2"] {
        let options = SessionOptions { attention: attention.parse().unwrap(), ..SessionOptions::default() };
        let error = Session::new(&mut device, &options).map(drop).unwrap_err().to_string();
        assert!(error.contains("attention") && error.contains(router), "{error}");
    }
    for split in [Split::Pipeline(2), Split::Tensor(2), Split::TensorReduce(2)] {
        let error = config.program().split(split, 0).map(drop).unwrap_err().to_string();
        assert!(error.contains("a mixture of depths"), "{error}");
    }
    // A cache of a model of the same shape without routers.
    let plain = ModelConfig { depth_routers: Vec::new(), ..config };
    assert_eq!(BonsaiModel::with_config(&gguf, plain).map(drop).unwrap_err().code(), "unsupported");
    let other = fixture_without_routers(&bytes);
    let mut other = repacked(&other, &CpuOptions::default()).unwrap();
    let mut session = Session::new(&mut other, &SessionOptions::default()).unwrap();
    assert_eq!(session.forward(&mut device, 1).map(<[f32]>::len).map_err(|e| e.code()), Err("device"));
}

fn fixture_without_routers(bytes: &[u8]) -> Vec<u8> {
    let mut file = RawFile::of(bytes);
    file.tensors.retain(|tensor| !tensor.name.windows(12).any(|part| part == b"depth_router"));
    file.build()
}

#[test]
fn routers_of_another_shape_are_refused_by_name() {
    let error = |change: fn(&mut RawTensor)| {
        let mut raw = RawFile::of(&file());
        change(raw.tensors.iter_mut().find(|tensor| tensor.name == b"blk.3.depth_router.weight").unwrap());
        let bytes = raw.build();
        BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).map(drop).unwrap_err()
    };
    for shape in
        [|tensor: &mut RawTensor| tensor.dims = vec![16], |tensor: &mut RawTensor| tensor.dims = vec![16, 2]]
    {
        let error = error(shape);
        assert_eq!(error.code(), "tensor_shape");
        let text = error.to_string();
        assert!(text.contains("blk.3.depth_router.weight") && text.contains("32"), "{text}");
    }
    // Of integers.
    assert_eq!(error(|tensor| tensor.id = 26).code(), "tensor_type");
    // Of a block that does not exist.
    for name in ["blk.9.depth_router.weight", "blk.4294967295.depth_router.weight"] {
        let mut raw = RawFile::of(&file());
        raw.tensors
            .iter_mut()
            .filter(|t| t.name.starts_with(b"blk.3.depth"))
            .for_each(|t| t.name = name.into());
        let bytes = raw.build();
        let error = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).map(drop).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("only tensors of the architecture"), "{error}");
    }
}
