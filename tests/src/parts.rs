//! Models split into several files, as by llama.cpp's `gguf-split`.

use shohin_core::Result;
use shohin_core::gguf::{Gguf, GgufWriter, TensorType};

/// Splits a file into parts of at most `most` tensors; the first has no tensors if `bare` is set.
pub fn split(file: &[u8], most: usize, bare: bool) -> Result<Vec<Vec<u8>>> {
    let gguf = Gguf::parse(file)?;
    let mut groups: Vec<_> = gguf.tensors().chunks(most).collect();
    if bare {
        groups.insert(0, &[]);
    }
    let mut parts = Vec::new();
    for (no, group) in groups.iter().enumerate() {
        let mut writer = GgufWriter::new();
        if no == 0 {
            for (key, value) in gguf.metadata().iter() {
                writer.set(key, value)?;
            }
        }
        writer.set("split.no", no as u16)?;
        writer.set("split.count", groups.len() as u16)?;
        writer.set("split.tensors.count", gguf.tensors().len() as i32)?;
        for t in *group {
            let (block, block_bytes) =
                t.format().map_or((1, 4), |f| (f.block() as u32, f.block_bytes() as u32));
            let kind = TensorType { id: t.type_id(), name: t.type_name(), block, block_bytes, tail: 0 };
            writer.tensor_of(t.name(), t.dims(), &kind)?;
        }
        parts.push(writer.to_vec(group.iter().map(|t| gguf.data(t)))?);
    }
    Ok(parts)
}
