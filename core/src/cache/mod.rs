//! Key-value caches: the keys and values of the tokens a sequence has seen.
//!
//! A cache is a *format*, which defines how a block of 16 positions of one head is stored, and how a row is on a GPU
//! (`KvCodec`: one file and one row of the table below each), times a *placement*, which defines where the blocks of all
//! heads are: in chunks (`chunked.rs`) of one slice of memory, or each chunk in a page that sequences share
//! (`paged.rs`). `KvStorage` combines the two.
//!
//! Within a block, values are stored position by position. Keys are interleaved: element 0 of each position,
//! then element 1 of each, and so on, so that sixteen scores are computed side by side without a horizontal
//! add.
#![forbid(unsafe_code)]

mod chunked;
mod flat;
mod float;
mod float8;
#[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
mod paged;
pub(crate) mod presence;
mod quantized;
mod relayout;
mod shape;
mod storage;
#[cfg(not(all(target_has_atomic = "ptr", feature = "serving")))]
mod unpaged;

pub(crate) use chunked::{CHUNK_POSITIONS, ChunkedPlacement};
pub use flat::FlatKv;
pub(crate) use float::{Element, Float};
pub(crate) use float8::Float8;
#[cfg(all(target_has_atomic = "ptr", feature = "serving"))]
pub(crate) use paged::{PagePool, Pages};
pub(crate) use quantized::{Codes, PairCodec, Quantized, SCALE_GROUP, largest, round};
pub use relayout::{blocks_to_rows, rows_to_blocks};
pub use shape::KvShape;
pub(crate) use storage::{KvStorage, KvView};
#[cfg(not(all(target_has_atomic = "ptr", feature = "serving")))]
pub(crate) use unpaged::Pages;

/// Positions per block, whose keys are interleaved.
pub const BLOCK_POSITIONS: usize = 16;

/// How a head's keys and values of [`BLOCK_POSITIONS`] positions are stored.
pub(crate) trait KvCodec: Copy + Send + Sync + 'static {
    /// How GPUs store it.
    const FLAT: FlatKv;

    /// Whether CPUs [rotate](crate::hadamard::rotate_head) heads before they are stored, and the result of attention back: outliers are
    /// spread over their blocks, and steps get smaller.
    const ROTATED: bool = false;

    /// Bytes of a block's keys.
    fn key_block(head_dim: usize) -> usize;

    /// Bytes of a block's values.
    fn value_block(head_dim: usize) -> usize;

    /// Stores `key` `(head_dim)` at position `t` of a block of keys.
    fn put_key(block: &mut [u8], t: usize, key: &[f32]);

    /// Stores `value` `(head_dim)` at position `t` of a block of values.
    fn put_value(block: &mut [u8], t: usize, value: &[f32]);

    /// Reads the key `(head_dim)` at position `t` of a block of keys.
    fn get_key(block: &[u8], t: usize, key: &mut [f32]);

    /// Reads the value `(head_dim)` at position `t` of a block of values.
    fn get_value(block: &[u8], t: usize, value: &mut [f32]);

    /// Copies a stored value of `head_dim` elements from position `from.1` of the block of values at byte
    /// `from.0` of `source` (`data` if that is `None`) to position `to.1` of the block at byte `to.0` of `data`.
    fn copy_value(
        data: &mut [u8],
        source: Option<&[u8]>,
        head_dim: usize,
        from: (usize, usize),
        to: (usize, usize),
    );

    /// Stores `row` `(head_dim)` as the codes and scales of [`KvCodec::FLAT`].
    fn put_row(codes: &mut [u8], scales: &mut [u8], row: &[f32]);

    /// Reads such a row.
    fn get_row(codes: &[u8], scales: &[u8], row: &mut [f32]);
}

/// The codec of a format, if it is part of this build.
#[cfg(feature = "cache-formats")]
macro_rules! in_build {
    ($name:ident, $codec:ty) => {
        $codec
    };
}
#[cfg(not(feature = "cache-formats"))]
macro_rules! in_build {
    ($name:ident, $codec:ty) => {
        crate::cache::Quantized<crate::cache::Codes<8>>
    };
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident $text:literal $codec:ty),* $(,)?) => {
        /// How cached keys and values are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub enum KvFormat {
            $($(#[$doc])* $name),*
        }

        impl KvFormat {
            /// Every format.
            pub const ALL: [KvFormat; [$($text),*].len()] = [$(KvFormat::$name),*];

            /// The format's name in options.
            pub const fn name(self) -> &'static str {
                match self {
                    $(KvFormat::$name => $text),*
                }
            }
        }

        impl FlatKv {
            /// The layout for a format.
            pub const fn of(format: KvFormat) -> FlatKv {
                match format {
                    $(KvFormat::$name => <$codec as KvCodec>::FLAT),*
                }
            }
        }

        /// The codec of each format.
        pub(crate) mod codecs {
            $(pub(crate) type $name = in_build!($name, $codec);)*
        }

        /// Evaluates an expression with the codec of a [`KvFormat`] as a type: `with_codec!(format, C => ...)`.
        macro_rules! with_codec {
            ($format:expr, $c:ident => $body:expr) => {
                match $format {
                    $($crate::cache::KvFormat::$name => {
                        type $c = $crate::cache::codecs::$name;
                        $body
                    })*
                }
            };
        }
    };
}

// One row per format.
formats! {
    /// 32-bit floats: exact.
    F32 "f32" crate::cache::Float<f32>,
    /// 16-bit floats: half the memory, relative rounding error 2^-11.
    #[cfg_attr(feature = "cache-formats", default)]
    F16 "f16" crate::cache::Float<half::f16>,
    /// 8-bit integers with one scale per 32 elements of a key and one per value: half the memory of F16.
    /// Absolute error at most 1/254 of the largest magnitude in the group.
    #[cfg_attr(not(feature = "cache-formats"), default)]
    Q8 "q8" crate::cache::Quantized<crate::cache::Codes<8>>,
    /// 4-bit integers with one scale per 32 elements: a little over half the memory of Q8. CPUs store
    /// heads rotated, with the best scale of a few; on GPUs, absolute error at most 1/14 of the largest magnitude in the group.
    Q4 "q4" crate::cache::Quantized<crate::cache::Codes<4>>,
    /// 8-bit floats with 3 bits of mantissa and no scales: half the memory of F16, relative error 2^-4.
    /// Magnitudes over 448 become 448.
    Fp8E4M3 "fp8_e4m3" crate::cache::Float<crate::cache::Float8<3>>,
    /// 8-bit floats with 2 bits of mantissa: relative error 2^-3. Magnitudes over 57344 become 57344.
    Fp8E5M2 "fp8_e5m2" crate::cache::Float<crate::cache::Float8<2>>,
}
pub(crate) use with_codec;

impl KvFormat {
    /// Whether this build can store the format: without the feature `cache-formats`, only Q8.
    pub const fn is_available(self) -> bool {
        cfg!(feature = "cache-formats") || matches!(self, KvFormat::Q8)
    }

    /// Whether CPUs store heads rotated by a Hadamard matrix.
    pub const fn is_rotated_on_cpus(self) -> bool {
        with_codec!(self, C => <C as KvCodec>::ROTATED)
    }

    /// The format called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}
