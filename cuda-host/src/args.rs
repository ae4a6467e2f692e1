//! Arguments of kernels: the structs of `kernels/*.cu`, field by field. An address is a `u64`.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Default, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MatrixArgs {
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    pub(crate) rows: u32,
    pub(crate) units: u32,
    pub(crate) scale_words: u32,
    pub(crate) group: u32,
    pub(crate) scale_kind: u32,
    pub(crate) parts: u32,
    pub(crate) block_words: u32,
    pub(crate) factor: i32,
    pub(crate) offset: i32,
    pub(crate) kind: u32,
    pub(crate) levels: [u32; 4],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct EmbedArgs {
    pub(crate) table: MatrixArgs,
    pub(crate) tokens: u64,
    pub(crate) x: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct NormArgs {
    pub(crate) x: u64,
    pub(crate) weight: u64,
    pub(crate) rows: u64,
    pub(crate) out: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) cols: u32,
    pub(crate) eps: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct QuantizeArgs {
    pub(crate) x: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) units: u32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ProductArgs {
    pub(crate) m: [MatrixArgs; 4],
    pub(crate) out: [u64; 4],
    pub(crate) x: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) tokens: u32,
    pub(crate) count: u32,
    pub(crate) epilogue: u32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CacheArgs {
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) capacity: u32,
    pub(crate) kv_heads: u32,
    pub(crate) dim: u32,
    pub(crate) bits: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RopeArgs {
    pub(crate) cache: CacheArgs,
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) q_norm: u64,
    pub(crate) k_norm: u64,
    pub(crate) positions: u64,
    pub(crate) angles: u64,
    pub(crate) heads: u32,
    pub(crate) first_row: u32,
    pub(crate) interleaved: u32,
    pub(crate) eps: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AttentionArgs {
    pub(crate) cache: CacheArgs,
    pub(crate) q: u64,
    pub(crate) positions: u64,
    pub(crate) parts: u64,
    pub(crate) out: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) heads: u32,
    pub(crate) first_row: u32,
    pub(crate) parts_count: u32,
    pub(crate) pattern: u32,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) c: u32,
    pub(crate) scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ArgmaxArgs {
    pub(crate) logits: u64,
    pub(crate) best: u64,
    pub(crate) vocab: u32,
    pub(crate) unused: u32,
}
