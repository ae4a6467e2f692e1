//! Adapted models on a device, compared with the CPU.

use core::fmt::Debug;

use shohin_core::device::{BlockingDevice, SessionOptions};
use shohin_core::gguf::Gguf;
use shohin_core::model::lora;
use shohin_core::{Activations, BonsaiModel, Cpu, CpuOptions, Format, KvFormat, Serial};

use crate::device::{On, error, tokens};
use crate::lora::{Adapter, adapted};
use crate::model::{Kind, Model, Shape, Stored};

/// Models with adapters against the CPU, all tokens but the last two at once, on a device with f32 caches: two adapters of ranks
/// 4 and 16, which share matrices or do not, for weights of several formats, once with biases and factors. With 32-bit activations only the order of
/// additions differs.
pub fn check_adapted<D>(mut on: impl FnMut(&BonsaiModel<Vec<u8>>, Activations) -> On<D>)
where
    D: BlockingDevice<Error: Debug>,
{
    use Format::{Bf16, F16, F32, Pq2_0, Q1_0, Q4K, Q8_0};
    let scaled = Shape { kind: Kind::Granite, qkv_biases: true, yarn: None, ..Shape::tiny() };
    // Embedding; q, k, v, o, gate, up, down. The last gates floats with integers, which only an adapter makes possible.
    let cases = [
        (Shape::tiny(), vec![Q1_0], &["blk.1."][..], &["blk."][..]),
        (
            Shape { layers: 1, ..scaled },
            vec![Pq2_0],
            &["attn_q.", "ffn_down"],
            &["attn_v", "attn_output", "ffn_down"],
        ),
        (Shape { layers: 1, ..Shape::tiny() }, vec![F16], &["blk."], &["attn_k", "ffn_up"]),
        (
            Shape { layers: 1, ..Shape::tiny() },
            vec![Q8_0, Q1_0, F16, Bf16, Q4K, F32, Q8_0, Q1_0],
            &["ffn_gate", "attn_k"],
            &["ffn_down"],
        ),
    ];
    let options = SessionOptions { kv: KvFormat::F32, ..SessionOptions::default() };
    for (shape, formats, first, second) in cases {
        let stored = formats.iter().copied().map(Stored::new).collect();
        let file = Model { formats: stored, ..Model::new(shape, Stored::new(Q1_0), 3) }.to_vec().unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let first = Adapter::random(&gguf, first, 4, 0.1, 1).to_vec();
        let second = Adapter::random(&gguf, second, 16, 0.05, 2).to_vec_in(F16);
        let adapters = [(&first[..], 1.0), (&second[..], -0.5)];
        let tokens = tokens(6, 320);
        let on_cpu = |adapters: &[(&[u8], f32)], activations| {
            let cpu = CpuOptions { activations, ..CpuOptions::default() };
            let model = adapted(&file, adapters, 1).unwrap();
            On::new(Cpu::new(model, &cpu, Serial).unwrap(), &options).logits(&tokens, true)
        };
        let exact = on_cpu(&adapters, Activations::F32);
        let effect = error(&exact, &on_cpu(&[], Activations::F32));
        assert!(effect > 0.1, "{formats:?}: {effect}");
        let padded = adapted(&file, &adapters, lora::UNIT).unwrap();
        for activations in [Activations::F32, Activations::Int8] {
            let want = on_cpu(&adapters, activations);
            let noise = error(&want, &exact);
            let mut on = on(&padded, activations);
            let (all, last) = tokens.split_at(tokens.len() - 2);
            let got = [on.logits(all, true), on.logits(last, false)].concat();
            let found = error(&got, &want);
            println!("{formats:?}, {activations:?}: {found:.1e}, rounding {noise:.1e}, effect {effect:.1e}");
            assert!(found < 2.0 * noise + 1e-5, "{formats:?}, {activations:?}: {found}, rounding {noise}");
        }
    }
}
