//! Tensor types by their GGUF id, and the description of a tensor in a file.
#![forbid(unsafe_code)]

use crate::quant::Format;

/// A tensor type as numbered in GGUF files. All types here can be listed and measured; those with a
/// [`Format`] can be computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The number in the file.
    pub id: u32,
    /// The name used in GGUF tooling.
    pub name: &'static str,
    /// Elements in one block.
    pub block: u32,
    /// Bytes of one block.
    pub block_bytes: u32,
    /// Bytes after the blocks of a tensor.
    pub tail: u32,
}

/// The id that has three incompatible layouts in use; see [`super::Id42`].
pub(super) const ID_42: u32 = 42;

/// A row of [`TensorType::ALL`]: a format, or the id, name, block, bytes and perhaps the tail of a type without one.
macro_rules! tensor_type {
    ($format:ident) => {
        TensorType {
            id: Format::$format.gguf_id(),
            name: Format::$format.name(),
            block: Format::$format.block() as u32,
            block_bytes: Format::$format.block_bytes() as u32,
            tail: 0,
        }
    };
    ($id:literal $name:literal $block:literal $bytes:literal) => {
        TensorType { id: $id, name: $name, block: $block, block_bytes: $bytes, tail: 0 }
    };
    ($id:literal $name:literal $block:literal $bytes:literal $tail:literal) => {
        TensorType { id: $id, name: $name, block: $block, block_bytes: $bytes, tail: $tail }
    };
}

macro_rules! types {
    ($(($($row:tt)*))*) => {
        &[$(tensor_type!($($row)*)),*]
    };
}

// Their sizes are computed by shifts.
const _: () = {
    let mut i = 0;
    while i < TensorType::ALL.len() {
        // Fails when compiled.
        assert!(TensorType::ALL[i].block.is_power_of_two());
        i += 1;
    }
};

impl TensorType {
    /// Every recognised type, sorted by id. Id 42 is listed as mainline llama.cpp defines it.
    #[rustfmt::skip]
    pub const ALL: &'static [TensorType] = types![
        (F32) (F16) (Q4_0) (Q4_1) (Q5_0) (Q5_1) (Q8_0) (9 "Q8_1" 32 36) (Q2K) (Q3K) (Q4K) (Q5K) (Q6K) (Q8K)
        (Iq2Xxs) (Iq2Xs) (Iq3Xxs) (Iq1S) (Iq4Nl) (Iq3S) (Iq2S)
        (Iq4Xs) (24 "I8" 1 1) (25 "I16" 1 2) (26 "I32" 1 4) (27 "I64" 1 8) (28 "F64" 1 8)
        (Iq1M) (Bf16) (Tq1_0) (Tq2_0) (36 "I2_S" 64 16 32) (Mxfp4) (Nvfp4) (Q1_0) (Q2_0)
        (Pq2_0) (Ptq1_0)
    ];

    /// The type with this id, or `None` if it is unknown.
    pub fn of(id: u32) -> Option<&'static TensorType> {
        TensorType::ALL.iter().find(|t| t.id == id)
    }

    /// The format this type is computed with, if it is loadable; `None` for id 42, which needs the whole
    /// file.
    pub fn format(&self) -> Option<Format> {
        let id = (self.id != ID_42).then_some(self.id)?;
        Format::ALL.into_iter().find(|f| f.gguf_id() == id && f.is_available())
    }
}

/// One tensor of a file: its name, shape, type and place, validated when the file was parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorInfo<'a> {
    pub(super) name: &'a str,
    pub(super) dims: [u64; 4],
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) id: u32,
    /// Offset of `id` in the file.
    pub(super) id_at: u64,
    pub(super) n_dims: u8,
    pub(super) format: Option<Format>,
    pub(super) part: u16,
}

impl<'a> TensorInfo<'a> {
    /// The tensor's name, unique in the file.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The shape, fastest-varying dimension (input features) first; 1 to 4 non-zero numbers.
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..usize::from(self.n_dims)).unwrap_or(&self.dims)
    }

    /// The GGUF type id in the file.
    pub const fn type_id(&self) -> u32 {
        self.id
    }

    /// Dimensions as in the file; missing ones are 1.
    pub(crate) const fn shape(&self) -> [u64; 4] {
        self.dims
    }

    /// The type's name; for id 42 the name of the layout that the file uses.
    pub fn type_name(&self) -> &'static str {
        match self.format {
            Some(format) => format.name(),
            None => TensorType::of(self.id).map_or("unknown", |t| t.name),
        }
    }

    /// How the weights are stored, or `None` if this runtime cannot compute with them.
    pub const fn format(&self) -> Option<Format> {
        self.format
    }

    /// Index of the file that holds the bytes.
    pub const fn part(&self) -> u16 {
        self.part
    }

    /// Offset of the bytes in that file's data section.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset of the type in that file; the offset field follows it.
    pub(crate) const fn type_at(&self) -> u64 {
        self.id_at
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "no tensor is empty")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The parser has checked that the product fits.
        self.dims().iter().fold(1, |n: u64, &d| n.saturating_mul(d))
    }
}
