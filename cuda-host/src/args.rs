//! Arguments of kernels: the structs of `kernels/*.cu`, field by field. An address is a `u64`.

use crate::tiles::IN_TILES;
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

impl MatrixArgs {
    /// Whether it is stored in tiles.
    pub(crate) fn is_tiled(&self) -> bool {
        self.scale_kind == IN_TILES
    }
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

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GateArgs {
    pub(crate) gate: u64,
    pub(crate) up: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) units: u32,
    pub(crate) activation: u32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ChangeArgs {
    pub(crate) x: u64,
    pub(crate) other: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) units: u32,
    pub(crate) cols: u32,
    pub(crate) change: u32,
    pub(crate) factor: f32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ProductArgs {
    pub(crate) m: [MatrixArgs; 4],
    pub(crate) out: [u64; 4],
    pub(crate) x: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) norm: u64,
    pub(crate) rounded: u64,
    pub(crate) rounded_meta: u64,
    pub(crate) tiles: u64,
    pub(crate) order: u64,
    pub(crate) experts: u64,
    pub(crate) weights: u64,
    pub(crate) tokens: u32,
    pub(crate) count: u32,
    pub(crate) epilogue: u32,
    pub(crate) passes: u32,
    pub(crate) share: u32,
    pub(crate) used: u32,
    pub(crate) eps: f32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TilesArgs {
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    pub(crate) out: [u64; 3],
    pub(crate) x: u64,
    pub(crate) norm: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) rounded: u64,
    pub(crate) rounded_meta: u64,
    pub(crate) ends: [u32; 3],
    pub(crate) tiles: u32,
    pub(crate) chunks: u32,
    pub(crate) units: u32,
    pub(crate) tokens: u32,
    pub(crate) groups: u32,
    pub(crate) epilogue: u32,
    pub(crate) block_tiles: u32,
    pub(crate) split: u32,
    pub(crate) zero: u32,
    pub(crate) factor: i32,
    pub(crate) offset: i32,
    pub(crate) eps: f32,
    pub(crate) per_column: f32,
    pub(crate) sums_reciprocal: u32,
    pub(crate) offset_of_code: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RetileArgs {
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    pub(crate) tiles: u64,
    pub(crate) tile_scales: u64,
    pub(crate) rows: u32,
    pub(crate) units: u32,
    pub(crate) scale_words: u32,
    pub(crate) bits: u32,
    pub(crate) shift: u32,
    pub(crate) first: u32,
    pub(crate) apart: u32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RouteArgs {
    pub(crate) logits: u64,
    pub(crate) experts: u64,
    pub(crate) weights: u64,
    pub(crate) tiles: u64,
    pub(crate) order: u64,
    pub(crate) count: u32,
    pub(crate) used: u32,
    pub(crate) rows: u32,
    pub(crate) normalize: u32,
    pub(crate) tile: u32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ExpertsAddArgs {
    pub(crate) weights: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) cols: u32,
    pub(crate) used: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CacheArgs {
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) layer: u64,
    pub(crate) capacity: u32,
    pub(crate) kv_heads: u32,
    pub(crate) dim: u32,
    pub(crate) bits: u32,
    pub(crate) mantissa: u32,
    pub(crate) pattern: [u32; 4],
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RopeArgs {
    pub(crate) caches: u64,
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) q_norm: u64,
    pub(crate) k_norm: u64,
    pub(crate) positions: u64,
    pub(crate) angles: u64,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) dim: u32,
    pub(crate) layer: u32,
    pub(crate) halves: u32,
    pub(crate) eps: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AttentionArgs {
    pub(crate) rope: RopeArgs,
    pub(crate) parts: u64,
    pub(crate) ended: u64,
    pub(crate) out: u64,
    pub(crate) words: u64,
    pub(crate) meta: u64,
    pub(crate) parts_count: u32,
    pub(crate) clustered: u32,
    pub(crate) cluster_most: u32,
    pub(crate) scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GatherArgs {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) rows: u32,
    pub(crate) part: u32,
    pub(crate) cols: u32,
    pub(crate) add: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ArgmaxArgs {
    pub(crate) logits: u64,
    pub(crate) best: u64,
    pub(crate) found: u64,
    pub(crate) ended: u64,
    pub(crate) vocab: u32,
    pub(crate) unused: u32,
}
