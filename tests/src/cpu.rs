//! Models on the CPU, on the calling thread.

use shohin_core::cpu::{Cpu, CpuOptions};
use shohin_core::{Activations, BonsaiModel, Gguf, KvFormat, Result, Serial, Session, SessionOptions};

/// A device over the weights of `file`, in its layout.
pub fn device<'f>(file: &'f [u8], options: &CpuOptions) -> Result<Cpu<'f, &'f [u8]>> {
    Cpu::new(BonsaiModel::from_gguf(&Gguf::parse(file)?)?, options, Serial)
}

/// A device over a copy of `file`, repacked for its kernels.
pub fn repacked(file: &[u8], options: &CpuOptions) -> Result<Cpu<'static, Vec<u8>>> {
    Cpu::repacked(BonsaiModel::load(file.to_vec())?, options, Serial)
}

/// Only f32 arithmetic rounds, if the cache is f32 too.
pub fn exact() -> CpuOptions {
    CpuOptions { activations: Activations::F32, ..CpuOptions::default() }
}

/// A session of the default length with this cache format.
pub fn in_format(kv: KvFormat) -> SessionOptions {
    SessionOptions { kv, ..SessionOptions::default() }
}

/// Logits after every token of a new session, `(tokens, vocab)`.
pub fn all_logits<B: shohin_core::model::ModelBytes>(
    device: &mut Cpu<'_, B>,
    tokens: &[u32],
    options: &SessionOptions,
) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    Session::new(device, options)?.forward_logits(device, tokens, &mut |i, row| {
        assert_eq!(all.len(), i * row.len());
        all.extend_from_slice(row);
    })?;
    Ok(all)
}
