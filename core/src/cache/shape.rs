//! The shape of a cache.
#![forbid(unsafe_code)]

/// Shape of a cache: `(layers, kv_heads, capacity, head_dim)` keys, and values of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Transformer layers.
    pub layers: usize,
    /// Key-value heads per layer.
    pub kv_heads: usize,
    /// Positions that can be held.
    pub capacity: usize,
    /// Elements per head.
    pub head_dim: usize,
}
