//! Whole models by the CUDA kernels and the host code of this crate, on a CPU, against core.

mod shim;

use shim::Shim;
use shohin_core::device::{Output, Readout, ScratchOptions, SessionOptions, Wants, ready};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::session::{Feed, run_batch};
use shohin_core::{Activations, Format, Gguf, KvFormat, Session};
use shohin_cuda::{CudaDevice, CudaModel, Driver, Error, LaunchSize};
use shohin_tests::adapted::check_adapted;
use shohin_tests::device::{
    Golden, On, check_experts, check_unread_experts, check_variants, error, on_cpu, tokens,
};
use shohin_tests::model::{Model, Shape, Stored};
use shohin_tests::random_models::{Refused, check_random_models};
use std::sync::Arc;

fn kv(kv: KvFormat) -> SessionOptions {
    SessionOptions { kv, ..SessionOptions::default() }
}

#[expect(clippy::arc_with_non_send_sync, reason = "used by one thread, as graphs of CUDA are")]
fn driver(seed: u32) -> Arc<Shim> {
    Arc::new(Shim::new(seed))
}

fn device(file: &[u8], activations: Activations, seed: u32) -> CudaDevice<Shim> {
    let model = CudaModel::from_gguf(driver(seed), &Gguf::parse(file).unwrap()).unwrap();
    // Prompts are divided.
    let options = ScratchOptions { activations, batch: 31, ..ScratchOptions::default() };
    model.device(&options).unwrap()
}

fn cuda(file: &[u8], activations: Activations, options: &SessionOptions) -> On<CudaDevice<Shim>> {
    On::new(device(file, activations, 7), options)
}

/// One layer: the second computes nothing new.
fn small() -> Shape {
    Shape { layers: 1, ..Shape::tiny() }
}

/// The logits of all tokens: the first at once, the last alone.
fn both_ways(on: &mut On<CudaDevice<Shim>>, tokens: &[u32]) -> Vec<f32> {
    let (first, last) = tokens.split_at(tokens.len() - 1);
    [on.logits(first, true), on.logits(last, false)].concat()
}

#[test]
fn adapted_models_agree() {
    check_adapted(|model, activations| {
        let model = CudaModel::from_model(driver(3), model).unwrap();
        let options = ScratchOptions { activations, ..ScratchOptions::default() };
        On::new(model.device(&options).unwrap(), &kv(KvFormat::F32))
    });
}

#[test]
fn other_architectures_agree() {
    check_variants(|file, activations| cuda(file, activations, &kv(KvFormat::F32)));
}

#[test]
fn mixtures_of_depths_are_refused_by_name() {
    let shape = Shape { depth_routers: true, layers: 2, ..small() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let refused = CudaModel::from_gguf(driver(1), &Gguf::parse(&file).unwrap()).err().unwrap();
    let text = refused.to_string();
    assert!(text.contains("blk.N.depth_router.weight") && text.contains("the CPU"), "{text}");
}

#[test]
fn alibi_is_refused_by_name() {
    let file =
        Model::new(Shape { max_alibi_bias: 8.0, ..small() }, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let refused = CudaModel::from_gguf(driver(1), &Gguf::parse(&file).unwrap()).err().unwrap();
    let text = refused.to_string();
    assert!(
        text.contains("attention.max_alibi_bias, or the option alibi") && text.contains("the CPU"),
        "{text}"
    );
}

/// Every format, with threads in another order: with 32-bit activations only the order of additions differs.
#[test]
fn formats_agree() {
    let options = kv(KvFormat::F32);
    for format in Format::ALL {
        let file = Model::new(small(), Stored::new(format), 1).to_vec().unwrap();
        let tokens = tokens(3, 320);
        let want = on_cpu(&file, Activations::F32, &options).logits(&tokens, true);
        let floats = PackedFormat::of(format).unwrap().is_float();
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.05)] {
            let bound = if floats { 1e-5 } else { bound };
            let mut on = On::new(device(&file, activations, 5), &options);
            let error = error(&both_ways(&mut on, &tokens), &want);
            println!("{format:?}, {activations:?}: {error:.2e}");
            assert!(error < bound, "{format:?}, {activations:?}: {error}");
        }
    }
}

/// Checks that a prompt of each of these numbers of rows has the same bits on tensor cores as by the kernels without, which
/// compute up to 8 rows at once. `codes` is their number in the kernels' names.
fn check_tensor_cores(shape: &Shape, format: Format, codes: usize, counts: &[usize]) {
    let file = Model::new(shape.clone(), Stored::new(format), 6).to_vec().unwrap();
    let on = |batch| {
        let model = CudaModel::from_gguf(driver(3), &Gguf::parse(&file).unwrap()).unwrap();
        let options = ScratchOptions { batch, logit_rows: batch, ..ScratchOptions::default() };
        On::new(model.device(&options).unwrap(), &kv(KvFormat::F16))
    };
    let ran = |on: &On<CudaDevice<Shim>>, rows: &str| {
        on.device.backend().model().driver().ran(&format!("product_int8_{codes}_{rows}"))
    };
    for &count in counts {
        let tokens = tokens(count, shape.vocab);
        // The last part is not a single row, whose attention has another order.
        let (mut with, mut without) = (on(128), on(if count % 8 == 1 { 7 } else { 8 }));
        let same = with.logits(&tokens, true) == without.logits(&tokens, true);
        assert!(same, "{format:?}, {count} rows");
        assert_eq!([ran(&with, "mma"), ran(&with, "many")], [count > 8, count > 1 && count <= 8]);
        assert_eq!([ran(&without, "mma"), ran(&without, "many")], [false, count > 1]);
    }
}

/// All codes, with groups of half a unit, of one and of several, with minima, and all types of scales.
#[test]
fn tensor_cores_have_the_bits_of_kernels_without() {
    use Format::{Iq4Xs, Mxfp4, Nvfp4, Q2K, Q3K, Q4_1, Q5K, Q6K, Q8K};
    let shape = Shape { heads: 8, kv_heads: 1, head_dim: 32, ffn: 256, vocab: 301, ..small() };
    let all = [&[Q2K][..], &[Q3K, Q4_1], &[Q5K, Q6K], &[Q8K], &[Iq4Xs, Nvfp4, Mxfp4]];
    for (codes, formats) in (1..).zip(all) {
        formats.iter().for_each(|&format| check_tensor_cores(&shape, format, codes, &[12]));
    }
}

/// Tiles of rows that are full or not, and rows of more units than a warp has lanes.
#[test]
fn tensor_cores_take_any_number_of_rows() {
    let shape = Shape { hidden: 64, heads: 1, kv_heads: 1, head_dim: 32, ffn: 96, vocab: 301, ..small() };
    check_tensor_cores(&shape, Format::Q4_1, 2, &[1, 2, 8, 9, 16, 17, 32, 33, 100]);
    let wide = Shape { hidden: 1152, head_dim: 128, ffn: 1152, ..shape };
    check_tensor_cores(&wide, Format::Q5_0, 3, &[11]);
}

/// Matrices in tiles: groups of one unit to eight, rows that are no whole tiles and columns that are no whole chunks, as many
/// numbers of rows as make a difference. Prompts have the same bits whichever way they are divided, up to 128 rows.
#[test]
fn tiles_take_any_number_of_rows() {
    use Format::{Q1_0, Q2_0, Q4_0, Q8_0, Tq2_0};
    let narrow = Shape {
        hidden: 96,
        heads: 3,
        kv_heads: 1,
        head_dim: 32,
        ffn: 160,
        vocab: 301,
        context: 512,
        ..small()
    };
    let wide = Shape { hidden: 1536, heads: 5, kv_heads: 5, head_dim: 256, ffn: 768, vocab: 301, ..small() };
    let one_head = Shape { heads: 1, kv_heads: 1, head_dim: 32, vocab: 301, ..small() };
    // Two chunks that are added up at once; rows that a kernel of their own normalizes; rows that a block has no room for.
    let wider = Shape { hidden: 2304, ffn: 4352, head_dim: 128, ..one_head.clone() };
    let widest = Shape { hidden: 8448, ffn: 32, ..one_head.clone() };
    let gated = Shape { hidden: 32, ffn: 33_024, ..one_head };
    let cases = [
        (&narrow, Q4_0, &[2, 3, 8, 9, 31, 32, 33, 100, 130][..]),
        (&narrow, Q8_0, &[33, 257]),
        (&wide, Q1_0, &[3, 33]),
        (&wide, Q2_0, &[9]),
        (&wide, Tq2_0, &[9]),
        (&wide, Q8_0, &[2]),
        (&wider, Q1_0, &[2]),
        (&widest, Q8_0, &[2]),
        (&gated, Q4_0, &[2]),
    ];
    for (shape, format, counts) in cases {
        let file = Model::new(shape.clone(), Stored::new(format), 6).to_vec().unwrap();
        let bits = PackedFormat::of(format).unwrap().codes.facts().bits;
        let options = kv(KvFormat::F32);
        let on = |batch| {
            let model = CudaModel::from_gguf(driver(3), &Gguf::parse(&file).unwrap()).unwrap();
            let options_of = ScratchOptions { batch, logit_rows: batch, ..ScratchOptions::default() };
            On::new(model.device(&options_of).unwrap(), &options)
        };
        for &count in counts {
            let tokens = tokens(count + 1, shape.vocab);
            let (prompt, last) = tokens.split_at(count);
            // The last part is not a single row.
            let parts = (2 + count / 16..).find(|part| count % part != 1).unwrap();
            let (mut whole, mut divided) = (on(320), on(parts));
            let all = whole.logits(prompt, true);
            let same = divided.logits(prompt, true) == all;
            assert_eq!(same, count <= 128, "{format:?}, {count} rows");
            let found = [all, whole.logits(last, false)].concat();
            let want = on_cpu(&file, Activations::Int8, &options).logits(&tokens, true);
            let error = error(&found, &want);
            println!("{format:?}, {count} rows: {error:.1e}");
            // Some numbers are rounded the other way.
            assert!(error < 0.03, "{format:?}, {count} rows: {error}");
            let ran =
                |kernel: &str| whole.device.backend().model().driver().ran(&format!("tiles_{kernel}_{bits}"));
            assert!(ran(if count > 8 { "many" } else { "few" }));
            assert!(ran("norm") || shape.hidden > 8192 && ran("one"));
        }
    }
}

/// Formats that differ from matrix to matrix, also among those that share an input, and a separate head.
#[test]
fn formats_may_mix() {
    use Format::{Bf16, F16, F32, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q1_0, Q2_0, Q4_0, Q5_0, Q5_1, Q6K, Q8_0, Q8K};
    let all = [Q4_0, F16, Q8_0, Bf16, F32, Q8_0, Q1_0, F16, Q8_0, Q4_0, Q2_0, Q4_0, F16, F32, Q8_0, Bf16];
    let others =
        [Q8K, Iq4Xs, Mxfp4, Iq4Nl, Nvfp4, Q5_0, Iq4Nl, Q5_1, Nvfp4, Q6K, Q8_0, Iq4Xs, Mxfp4, Q1_0, Q6K, Q5_0];
    for formats in [all, others] {
        let shape = Shape { tied: false, yarn: None, rope_factors: true, ..Shape::tiny() };
        let formats = formats.into_iter().map(Stored::new).collect();
        let file = Model { formats, ..Model::new(shape, Stored::new(Q1_0), 5) }.to_vec().unwrap();
        let (tokens, options) = (tokens(4, 320), kv(KvFormat::F32));
        let want = on_cpu(&file, Activations::F32, &options).logits(&tokens, true);
        for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int8, 0.05)] {
            // Threads in their order.
            let mut on = On::new(device(&file, activations, 0), &options);
            let error = error(&both_ways(&mut on, &tokens), &want);
            assert!(error < bound, "{activations:?}: {error}");
        }
    }
}

#[test]
fn random_models_agree() {
    let mut order = 0;
    let floats_beside_integers = "gate and up matrices of floats and of";
    let refused = Refused { experts: None, floats_beside_integers };
    check_random_models("cuda", 18, &refused, |file, options, session| {
        order += 1;
        let model = CudaModel::from_gguf(driver(order), &Gguf::parse(file)?)?;
        model.device(options).map(|device| On::new(device, session))
    });
}

#[test]
fn golden_logits() {
    let golden = Golden::one_bit();
    let options = kv(KvFormat::F32);
    golden.check(|activations| cuda(&golden.file, activations, &options).logits(&golden.tokens, true));
}

/// Every cache format, with one, three and twelve query heads per key-value head, of one and two times 128 elements and of
/// parts of them: rows at once, and a row whose positions are divided.
#[test]
fn caches_agree() {
    for (heads, kv_heads, head_dim) in [(6, 2, 64), (12, 1, 32), (1, 1, 256), (4, 2, 96)] {
        let shape = Shape { heads, kv_heads, head_dim, context: 512, ..small() };
        let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
        // Two parts of the positions, or one.
        let count = if head_dim == 96 { 140 } else { 20 };
        let tokens = tokens(count, 320);
        let want = on_cpu(&file, Activations::F32, &kv(KvFormat::F32)).logits(&tokens, true);
        let last = &want[want.len() - 320..];
        for format in KvFormat::ALL {
            let bound = match format {
                KvFormat::F32 => 1e-5,
                KvFormat::F16 => 1e-3,
                KvFormat::Q8 => 2e-2,
                KvFormat::Q4 => 0.4,
                KvFormat::Fp8E4M3 => 0.1,
                KvFormat::Fp8E5M2 => 0.2,
            };
            let On { mut device, mut session } = cuda(&file, Activations::F32, &kv(format));
            let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), last);
            session.truncate(count - 1).unwrap();
            let logits = session.forward(&mut device, tokens[count - 1]).unwrap().to_vec();
            let decoded = error(&logits, last);
            assert!(prefilled < bound && decoded < bound, "{format:?}: {prefilled} {decoded}");
            assert!(format == KvFormat::F32 || prefilled > 1e-6, "{format:?} must round");
            // The CPU computes with the same numbers, but for those between two that are rounded the other way.
            if matches!(format, KvFormat::Fp8E4M3 | KvFormat::Fp8E5M2) {
                let want = on_cpu(&file, Activations::F32, &kv(format)).logits(&tokens, true);
                let error = error(&logits, &want[want.len() - 320..]);
                assert!(error < 1e-3, "{format:?}: {error}");
            }
        }
    }
}

/// Parts of the positions, whose result is rounded to integers: those of a cluster, and more.
#[test]
fn parts_are_joined() {
    let shape = Shape { hidden: 32, heads: 3, kv_heads: 1, head_dim: 32, ffn: 32, context: 2200, ..small() };
    let file = Model::new(shape, Stored::new(Format::Q8_0), 3).to_vec().unwrap();
    let options = kv(KvFormat::F16);
    let (tokens, count) = (tokens(140, 320), 139);
    let On { device: mut cpu, mut session } = on_cpu(&file, Activations::Int8, &options);
    let want = session.forward_prefill(&mut cpu, &tokens).unwrap().to_vec();
    let on = |activations, multiprocessors| {
        let on = cuda(&file, activations, &options);
        on.device.backend().model().driver().multiprocessors.set(multiprocessors);
        on
    };
    let mut divided = on(Activations::Int8, 80);
    divided.session.forward_prefill(&mut divided.device, &tokens[..count]).unwrap();
    let decoded = error(divided.session.forward(&mut divided.device, tokens[count]).unwrap(), &want);
    assert!(decoded < 0.03, "{decoded}");
    // Any keys and values: 2, 4 and 8 parts of a cluster, and 16 apart.
    let mut both = [1, 80].map(|multiprocessors| on(Activations::F32, multiprocessors));
    for len in [100, 200, 512, 2047] {
        let mut random = 7_u32;
        // Between -2 and 2.
        let mut half = || {
            random = random.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            ((random >> 16) as u16 & 0xbfff).to_le_bytes()
        };
        let bytes: Vec<u8> = (0..2 * 32 * len).flat_map(|_| half()).collect();
        let logits = both.each_mut().map(|on| {
            on.session.import(&mut on.device, len, &bytes).unwrap();
            on.session.forward(&mut on.device, 5).unwrap().to_vec()
        });
        let joined = error(&logits[1], &logits[0]);
        assert!(joined < 1e-5, "{len}: {joined}");
    }
}

/// Units of 32 activations: an infinity, NaN and a number that is too large show in every output.
#[test]
fn units_without_a_scale_show() {
    let driver = driver(1);
    let units = [
        [2.0; 32],
        std::array::from_fn(|i| if i == 7 { f32::NAN } else { 1.0 }),
        [f32::NAN; 32],
        std::array::from_fn(|i| if i == 31 { f32::NEG_INFINITY } else { 1.0 }),
        std::array::from_fn(|i| if i == 0 { 3e38 } else { 1.0 }),
        [0.0; 32],
        [1e-32; 32],
    ];
    let count = units.len();
    let [x, words, meta] = [128, 32, 8].map(|bytes| driver.alloc(bytes * count).unwrap());
    driver.write(x, bytemuck::cast_slice(&units)).unwrap();
    let size = LaunchSize { grid: [count.div_ceil(4) as u32, 1, 1], threads: 128, shared: 0, cluster: 1 };
    let args = [x, words, meta, count as u64];
    driver.launch(driver.kernel("quantize").unwrap(), size, bytemuck::cast_slice(&args)).unwrap();
    let mut read = vec![0; 8 * count];
    driver.read(meta, &mut read).unwrap();
    [x, words, meta].into_iter().for_each(|address| driver.free(address));
    let scales: Vec<f32> =
        read.chunks_exact(8).map(|m| f32::from_le_bytes(m[..4].try_into().unwrap())).collect();
    let sums: Vec<i16> =
        read.chunks_exact(8).map(|m| i16::from_le_bytes(m[4..6].try_into().unwrap())).collect();
    assert_eq!((scales[0], sums[0]), (2.0 / 127.0, 16 * 127));
    assert!(scales[1..5].iter().all(|scale| scale.is_nan()), "{scales:?}");
    // As many integers are 0 as numbers are too small.
    assert_eq!((scales[5], &sums[5..]), (0.0, &[0, 0][..]));
}

/// A weight of a norm that is NaN shows in all logits, of prompts and of tokens alone.
#[test]
fn norms_that_are_no_numbers_show() {
    let mut file = Model::new(small(), Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let start = file.as_ptr() as usize;
    let weights = ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"].map(|name| {
        let gguf = Gguf::parse(&file).unwrap();
        gguf.data(gguf.tensor(name).unwrap()).as_ptr() as usize - start + 4 * 5
    });
    for at in weights {
        let kept: [u8; 4] = file[at..at + 4].try_into().unwrap();
        file[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let logits = both_ways(&mut cuda(&file, Activations::Int8, &kv(KvFormat::F32)), &tokens(4, 320));
        assert!(logits.iter().all(|logit| logit.is_nan()));
        file[at..at + 4].copy_from_slice(&kept);
    }
}

/// Every pattern, as on the CPU.
#[test]
fn patterns_agree() {
    let shape = Shape { heads: 2, kv_heads: 1, context: 1024, ..small() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let tokens = tokens(80, 320);
    let full = on_cpu(&file, Activations::F32, &kv(KvFormat::F32)).logits(&tokens, true);
    for text in ["window:40", "window:30:3", "dilated:2:2", "strided:1:2", "bigbird:1:1:1"] {
        let options = SessionOptions { attention: text.parse().unwrap(), ..kv(KvFormat::F32) };
        let On { device: mut cpu, mut session } = on_cpu(&file, Activations::F32, &options);
        let want = session.forward_prefill(&mut cpu, &tokens).unwrap().to_vec();
        let On { mut device, mut session } = cuda(&file, Activations::F32, &options);
        let prefilled = error(session.forward_prefill(&mut device, &tokens).unwrap(), &want);
        session.truncate(79).unwrap();
        let decoded = error(session.forward(&mut device, tokens[79]).unwrap(), &want);
        assert!(prefilled < 1e-4 && decoded < 1e-4, "{text}: {prefilled} {decoded}");
        // With one block before the last, BigBird sees all.
        let masks = error(&want, &full[full.len() - 320..]) > 1e-3;
        assert!(masks || text.starts_with("bigbird"), "{text} must mask");
    }
}

/// Exported keys and values continue in a session of another capacity, to the bit.
#[test]
fn exported_caches_go_on_elsewhere() {
    let file = Model::new(small(), Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let tokens = tokens(10, 320);
    let mut device = device(&file, Activations::Int8, 3);
    for format in KvFormat::ALL {
        let mut open =
            |context| Session::new(&mut device, &SessionOptions { context, ..kv(format) }).unwrap();
        let (mut first, mut other) = (open(24), open(30));
        first.forward_prefill(&mut device, &tokens).unwrap();
        let mut bytes = Vec::new();
        let exported = first.export(&mut device, &mut bytes);
        ready(exported).unwrap().unwrap();
        other.import(&mut device, tokens.len(), &bytes).unwrap();
        let want = first.forward(&mut device, 5).unwrap().to_vec();
        assert_eq!(other.forward(&mut device, 5).unwrap(), want, "{format:?}");
    }
}

/// Products of q, k and v; rotation and attention; its product; gate and up; down.
const KERNELS_PER_LAYER: usize = 5;

/// A token is one launch of a graph, of a known number of kernels, and greedy text is that of the CPU.
#[test]
fn a_token_is_one_graph_and_text_is_that_of_the_cpu() -> Result<(), Error> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let file = std::fs::read(path).unwrap();
    let mut cpu = on_cpu(&file, Activations::F32, &kv(KvFormat::F16));
    let mut cuda = cuda(&file, Activations::F32, &kv(KvFormat::F16));
    let shim = Arc::clone(cuda.device.backend().model().driver());
    let layers = cuda.device.backend().model().program().layers;
    let mut token = 1;
    for step in 0..4 {
        let logits = cpu.session.forward(&mut cpu.device, token).unwrap();
        let want = shohin_core::cpu::op::argmax(logits).unwrap();
        let before = (shim.launches.get(), shim.replays.get(), shim.replayed.get());
        let (found, logit) = cuda.best(&[token])?;
        assert_eq!(found, want, "step {step}");
        assert!((logit - logits[want as usize]).abs() < 0.02, "{logit}");
        assert_eq!(shim.launches.get(), before.0);
        assert_eq!(shim.replays.get(), before.1 + 1);
        // Besides the layers: embedding, norm, logits, the most likely token.
        assert_eq!(shim.replayed.get() - before.2, 4 + KERNELS_PER_LAYER * layers);
        token = want;
    }
    Ok(())
}

/// A token of each of several sequences, whose caches differ, is one graph too. It serves other sequences: what they are is in
/// memory. The logits are close to those of the CPU.
#[test]
fn a_token_of_each_sequence_is_one_graph() {
    let shape = Shape { layers: 2, context: 512, ..small() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 3).to_vec().unwrap();
    let mut options = [kv(KvFormat::F16); 9];
    (options[0].kv, options[0].context, options[2].kv) = (KvFormat::F32, 40, KvFormat::F32);
    options[2].attention = "window:5".parse().unwrap();
    let mut cpu = on_cpu(&file, Activations::F32, &options[0]).device;
    let mut cuda = device(&file, Activations::F32, 2);
    let mut sessions = options
        .each_ref()
        .map(|options| (Session::new(&mut cpu, options).unwrap(), Session::new(&mut cuda, options).unwrap()));
    for (i, (on_cpu, on_cuda)) in sessions.iter_mut().enumerate() {
        let prompt = tokens(if i < 3 { 3 + 34 * i } else { 2 }, 320);
        on_cpu.forward_prefill(&mut cpu, &prompt).unwrap();
        on_cuda.forward_prefill(&mut cuda, &prompt).unwrap();
    }
    let shim = Arc::clone(cuda.backend().model().driver());
    // Those of the last are more than logits are read of at once.
    for which in [&[0, 1, 2][..], &[2, 0], &[1, 2], &[0, 1, 2], &[5, 1, 7, 0, 6, 8, 3, 2, 4]] {
        let before = (shim.launches.get(), shim.replays.get());
        let mut feeds: Vec<_> = sessions.iter_mut().map(|(_, session)| Some(session)).collect();
        let mut feeds: Vec<_> = which
            .iter()
            .map(|&i| Feed {
                session: feeds[i].take().unwrap(),
                tokens: &[7],
                wants: Wants::Last(Readout::Logits),
            })
            .collect();
        let mut found = vec![Vec::new(); which.len()];
        let mut sink = |sequence: usize, _: usize, output: Output<'_>| {
            if let Output::Logits(logits) = output {
                found[sequence] = logits.to_vec();
            }
        };
        ready(run_batch(&mut cuda, &mut feeds, &mut sink)).unwrap().unwrap();
        for (&i, found) in which.iter().zip(&found) {
            let want = sessions[i].0.forward(&mut cpu, 7).unwrap();
            let error = error(found, want);
            assert!(error < 2e-3, "sequence {i} of {which:?}: {error}");
        }
        assert_eq!(shim.replays.get(), before.1 + 1);
        assert_eq!(shim.launches.get() == before.0, which.len() <= 8);
    }
}

#[test]
fn experts_agree() {
    check_experts(|file, activations| On::new(device(file, activations, 5), &kv(KvFormat::F32)));
}

/// A row whose kernels are fused has the bits of one among others, as long as the parts of its positions are one each, but for
/// products of matrices in tiles: with codes that differ among q, k and v, in several cache formats.
#[test]
fn a_row_alone_has_the_bits_of_rows_together() {
    use Format::{F16, Q1_0, Q4K, Q6K};
    let cases = [
        (vec![Q1_0], KvFormat::F16, None),
        (vec![Q4K, Q4K, Q4K, Q6K, Q4K, Q4K, Q4K, Q6K], KvFormat::Q8, None),
        (vec![Q1_0, F16, Q1_0, F16, Q6K, Q6K, Q4K, F16], KvFormat::Q4, None),
        (vec![Q1_0], KvFormat::Fp8E4M3, None),
        (vec![Q1_0, Q1_0, Q1_0, Q1_0, Q1_0, Q4K, Q4K, Q6K], KvFormat::F32, Some([6, 2, 256])),
    ];
    for (formats, format, experts) in cases {
        let has_tiles = formats.contains(&Q1_0);
        let formats = formats.into_iter().map(Stored::new).collect();
        let model = Model { formats, ..Model::new(Shape { experts, ..small() }, Stored::new(Q1_0), 4) };
        let (file, tokens) = (model.to_vec().unwrap(), tokens(4, 320));
        for activations in [Activations::Int8, Activations::F32] {
            let mut on = cuda(&file, activations, &kv(format));
            let together = on.logits(&tokens, true);
            on.session.truncate(0).unwrap();
            let alone = on.logits(&tokens, false);
            let tiled = activations == Activations::Int8 && has_tiles;
            let error = error(&alone, &together);
            assert!(error < if tiled { 1e-3 } else { 1e-30 }, "{format:?}, {activations:?}: {error}");
        }
    }
}

/// Rows that are too wide for the memory of a block are normalized by a kernel of their own.
#[test]
fn wide_rows_take_more_kernels() {
    // (Norm and product), attention, product, then (norm, gate and up), down; or norm, router, choice, gate and
    // up, down, sum.
    for (experts, kernels) in [(None, 7), (Some([3, 2, 32]), 10)] {
        let shape =
            Shape { hidden: 10_496, heads: 1, kv_heads: 1, head_dim: 32, ffn: 32, experts, ..small() };
        let file = Model::new(shape, Stored::new(Format::F16), 2).to_vec().unwrap();
        let (tokens, options) = (tokens(2, 320), kv(KvFormat::F32));
        let want = on_cpu(&file, Activations::F32, &options).logits(&tokens, true);
        let mut on = cuda(&file, Activations::F32, &options);
        let error = error(&both_ways(&mut on, &tokens), &want);
        assert!(error < 1e-5, "{experts:?}: {error}");
        // Two tokens.
        assert_eq!(on.device.backend().model().driver().replayed.get(), 2 * (3 + kernels), "{experts:?}");
    }
}

#[test]
fn experts_that_are_not_chosen_are_not_read() {
    check_unread_experts(|file| cuda(file, Activations::F32, &kv(KvFormat::F32)));
}

/// `ptx.py` writes a hash of the sources into the committed kernels.
#[test]
fn committed_kernels_are_those_of_the_sources() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let sources = files.iter().filter(|path| path.extension().is_some_and(|e| e == "cu" || e == "cuh"));
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in sources.flat_map(|path| std::fs::read(path).unwrap()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    for (name, target) in [("shohin.ptx", "sm_75"), ("shohin_90.ptx", "sm_90")] {
        let ptx = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        assert_eq!(ptx.lines().next(), Some(&*format!("// sources: {hash:016x}")), "run cuda-host/ptx.py");
        assert!(ptx.contains(&format!(".target {target}")));
        // On those GPUs a launch begins before the one before has ended.
        let waits = |kernel: &str| kernel.contains("griddepcontrol.wait");
        for kernel in ptx.split(".visible .entry ").skip(1) {
            assert_eq!(waits(kernel), target == "sm_90", "{name}: {}", kernel.lines().next().unwrap());
        }
    }
}
