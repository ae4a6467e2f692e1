//! Limits on the sizes that a file claims, each with its reason.
#![forbid(unsafe_code)]

/// Limits on counts and lengths claimed by a file. The defaults admit every published Bonsai file with room
/// to spare; a host that knows its files may lower or raise them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tensors in a file. Qwen3-8B has 399; a 100-layer MoE stays under 2,000.
    pub tensors: u64,
    /// Metadata entries. Real files have about 30.
    pub entries: u64,
    /// Bytes of one metadata key or tensor name. GGUF itself allows 65,535 and 64.
    pub name: u64,
    /// Bytes of one metadata string. Chat templates are some 10 kB.
    pub string: u64,
    /// Elements of one metadata array. The largest real vocabulary has 262,144 tokens.
    pub array: u64,
    /// Depth of arrays of arrays; no real file nests them.
    pub nesting: u64,
    /// Bytes of one vocabulary token.
    pub token: u64,
    /// Transformer layers, so that a header alone cannot cause unbounded bookkeeping.
    pub layers: u64,
    /// Positions of a session.
    pub context: u64,
}

impl Limits {
    /// The default limits.
    pub const DEFAULT: Limits = Limits {
        tensors: 1 << 16,
        entries: 1 << 12,
        name: 65_535,
        string: 1 << 24,
        array: 1 << 22,
        nesting: 4,
        token: 1 << 12,
        layers: 1 << 10,
        context: 1 << 22,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}
