//! The table of weight formats: a format is a file with its [`Block`](super::Block) and a row here.
#![forbid(unsafe_code)]

use super::Block;

/// The class of a format's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightClass {
    /// Floats, stored one by one.
    Float,
    /// Integers of several bits times a scale, possibly plus a minimum.
    Integer,
    /// -1, 0 or +1 times a scale.
    Ternary,
    /// -1 or +1 times a scale.
    OneBit,
}

impl WeightClass {
    /// Whether this build computes with the class: floats always, others with the feature of their name.
    pub const fn is_available(self) -> bool {
        match self {
            WeightClass::Float => true,
            WeightClass::Integer => cfg!(feature = "integer-formats"),
            WeightClass::Ternary => cfg!(feature = "ternary-formats"),
            WeightClass::OneBit => cfg!(feature = "one-bit-formats"),
        }
    }
}

/// Picks the type that reads a format's blocks, if it is `AVAILABLE`; otherwise one that is in every build.
pub(crate) struct InBuild<const AVAILABLE: bool>;

pub(crate) trait Pick<B> {
    type Block: Block;
}

impl<B: Block> Pick<B> for InBuild<true> {
    type Block = B;
}

impl<B: Block> Pick<B> for InBuild<false> {
    type Block = crate::quant::float::F32;
}

macro_rules! optional {
    () => {
        None
    };
    ($format:ident) => {
        Some(Format::$format)
    };
}

macro_rules! formats {
    ($(
        $(#[$doc:meta])*
        $format:ident $name:literal $id:literal $class:ident $block:ty $(, expands to $expanded:ident)?;
    )*) => {
        /// A storage format of weight matrices that this runtime computes with.
        ///
        /// GGUF type ids do not determine the format: id 42 has three incompatible layouts in use. The GGUF
        /// reader distinguishes them; everything after it works with a `Format`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $format),*
        }

        impl Format {
            /// Every format, in the order of the documentation.
            pub const ALL: [Format; [$($name),*].len()] = [$(Format::$format),*];

            /// The name used in GGUF tooling.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Format::$format => $name),*
                }
            }

            /// The GGUF tensor type id this format is written with.
            pub const fn gguf_id(self) -> u32 {
                match self {
                    $(Format::$format => $id),*
                }
            }

            /// The class of its weights.
            pub const fn class(self) -> WeightClass {
                match self {
                    $(Format::$format => WeightClass::$class),*
                }
            }

            /// The 2-bit format to which a base-3 format is expanded; `None` for any other.
            pub const fn expanded(self) -> Option<Format> {
                match self {
                    $(Format::$format => optional!($($expanded)?)),*
                }
            }

            /// Weights in one block.
            pub const fn block(self) -> usize {
                match self {
                    $(Format::$format => <$block>::LEN),*
                }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(Format::$format => <$block>::BYTES),*
                }
            }

            /// Weights that share a scale; divides [`Format::block`].
            pub const fn group(self) -> usize {
                match self {
                    $(Format::$format => <$block>::GROUP),*
                }
            }

            /// Whether [`pack`](crate::quant::pack) writes the format. The others are only read.
            pub const fn has_quantizer(self) -> bool {
                match self {
                    $(Format::$format => <$block>::PACKS),*
                }
            }

            /// Whether [`pack_by_importance`](crate::quant::pack_by_importance) weighs errors by importance.
            pub const fn weighs_importance(self) -> bool {
                match self {
                    $(Format::$format => <$block>::BY_IMPORTANCE),*
                }
            }

            /// Whether each group has a minimum beside its scale.
            pub const fn has_minimum(self) -> bool {
                match self {
                    $(Format::$format => <$block>::MINIMUM),*
                }
            }
        }

        /// The block of each format.
        pub(crate) mod blocks {
            use super::{Format, InBuild, Pick};
            $(
                #[allow(non_camel_case_types)]
                pub(crate) type $format = <InBuild<{ Format::$format.is_available() }> as Pick<$block>>::Block;
            )*
        }

        /// Evaluates an expression with the [`Block`] of a [`Format`] as a type:
        /// `with_block!(format, B => ...)`. Formats that are not part of this build have no weights.
        macro_rules! with_block {
            ($f:expr, $b:ident => $body:expr) => {
                match $f {
                    $($crate::quant::Format::$format => {
                        type $b = $crate::quant::format::blocks::$format;
                        $body
                    })*
                }
            };
        }
    };
}

// One row per format: its name in Rust and in GGUF tooling, its GGUF tensor type id, its class, and the type
// that reads and writes its blocks.
formats! {
    /// 32-bit IEEE floats.
    F32 "F32" 0 Float crate::quant::float::F32;
    /// 16-bit IEEE floats.
    F16 "F16" 1 Float crate::quant::float::F16;
    /// The upper half of a 32-bit float.
    Bf16 "BF16" 30 Float crate::quant::float::Bf16;
    /// 32 weights: scale, 8-bit integers.
    Q8_0 "Q8_0" 8 Integer crate::quant::q8_0::Q8_0;
    /// 32 weights: scale, 4-bit integers.
    Q4_0 "Q4_0" 2 Integer crate::quant::q4_0::Q4_0;
    /// 32 weights: scale, minimum, 4-bit integers.
    Q4_1 "Q4_1" 3 Integer crate::quant::q4_1::Q4_1;
    /// 32 weights: scale, 5-bit integers.
    Q5_0 "Q5_0" 6 Integer crate::quant::q5_0::Q5_0;
    /// 32 weights: scale, minimum, 5-bit integers.
    Q5_1 "Q5_1" 7 Integer crate::quant::q5_1::Q5_1;
    /// 256 weights: 2-bit integers, 16 scales and minima of 4 bits.
    Q2K "Q2_K" 10 Integer crate::quant::k_quants::Q2K;
    /// 256 weights: 3-bit integers, 16 scales of 6 bits.
    Q3K "Q3_K" 11 Integer crate::quant::k_quants::Q3K;
    /// 256 weights: 4-bit integers, 8 scales and minima of 6 bits.
    Q4K "Q4_K" 12 Integer crate::quant::k_quants::Q4K;
    /// 256 weights: 5-bit integers, 8 scales and minima of 6 bits.
    Q5K "Q5_K" 13 Integer crate::quant::k_quants::Q5K;
    /// 256 weights: 6-bit integers, 16 scales of 8 bits.
    Q6K "Q6_K" 14 Integer crate::quant::k_quants::Q6K;
    /// 256 weights: 32-bit scale, 8-bit integers.
    Q8K "Q8_K" 15 Integer crate::quant::k_quants::Q8K;
    /// 32 weights: scale, 4-bit indices of unevenly spaced integers.
    Iq4Nl "IQ4_NL" 20 Integer crate::quant::iq4_nl::Iq4Nl;
    /// 256 weights: as IQ4_NL, with 8 scales of 6 bits.
    Iq4Xs "IQ4_XS" 23 Integer crate::quant::iq4_xs::Iq4Xs;
    /// 256 weights: indices of 2,048 points of eight weights, 8 scales of 3 bits. Only read.
    Iq1S "IQ1_S" 19 Integer crate::quant::codebook::Iq1S;
    /// 256 weights: as IQ1_S, with 16 scales of 3 bits. Only read.
    Iq1M "IQ1_M" 29 Integer crate::quant::codebook::Iq1M;
    /// 256 weights: indices of 256 points of eight weights, signs, 8 scales of 4 bits. Only read.
    Iq2Xxs "IQ2_XXS" 16 Integer crate::quant::codebook::Iq2Xxs;
    /// 256 weights: indices of 512 points of eight weights, signs, 16 scales of 4 bits. Only read.
    Iq2Xs "IQ2_XS" 17 Integer crate::quant::codebook::Iq2Xs;
    /// 256 weights: indices of 1,024 points of eight weights, signs, 16 scales of 4 bits. Only read.
    Iq2S "IQ2_S" 22 Integer crate::quant::codebook::Iq2S;
    /// 256 weights: indices of 256 points of four weights, signs, 8 scales of 4 bits. Only read.
    Iq3Xxs "IQ3_XXS" 18 Integer crate::quant::codebook::Iq3Xxs;
    /// 256 weights: indices of 512 points of four weights, signs, 8 scales of 4 bits. Only read.
    Iq3S "IQ3_S" 21 Integer crate::quant::codebook::Iq3S;
    /// 32 weights: power of two, 4-bit floats.
    Mxfp4 "MXFP4" 39 Integer crate::quant::mxfp4::Mxfp4;
    /// 64 weights: 4 scales as 8-bit floats, 4-bit floats.
    Nvfp4 "NVFP4" 40 Integer crate::quant::nvfp4::Nvfp4;
    /// 128 weights: scale, one sign bit each.
    Q1_0 "Q1_0" 41 OneBit crate::quant::q1_0::Q1_0;
    /// 64 weights: scale, 2-bit ternary codes (GGUF id 42 as mainline llama.cpp writes it).
    Q2_0 "Q2_0" 42 Ternary crate::quant::q2_0::Q2_0;
    /// 128 weights: scale, 2-bit ternary codes (GGUF id 142, and legacy id 42).
    Pq2_0 "PQ2_0" 142 Ternary crate::quant::q2_0::Pq2_0;
    /// 128 weights: 2-bit ternary codes, then the scale (id 42 as oxibonsai writes it).
    Tq2_0G128 "TQ2_0_G128" 42 Ternary crate::quant::q2_0::Tq2_0G128;
    /// 128 weights: base-3 digits, five per byte (GGUF id 143).
    Ptq1_0 "PTQ1_0" 143 Ternary crate::quant::trits::Ptq1_0, expands to Pq2_0;
    /// 256 weights: base-3 digits, five per byte (GGUF id 34).
    Tq1_0 "TQ1_0" 34 Ternary crate::quant::trits::Tq1_0, expands to Tq2_0;
    /// 256 weights: 2-bit ternary codes in four strided planes (GGUF id 35).
    Tq2_0 "TQ2_0" 35 Ternary crate::quant::tq2_0::Tq2_0;
}
pub(super) use with_block;

impl Format {
    /// Whether this build computes with the format: one of an [available class](WeightClass::is_available), without
    /// the feature `portable-kernels` a float, or one that all instruction sets but the reference have kernels for, and without
    /// the feature `codebook-formats` none of IQ1, IQ2 and IQ3.
    pub const fn is_available(self) -> bool {
        let portable = cfg!(feature = "portable-kernels") || self.is_float();
        let with_kernels = matches!(self, Format::Q1_0 | Format::Q2_0 | Format::Pq2_0 | Format::Tq2_0G128);
        let codebooks = cfg!(feature = "codebook-formats") || !self.has_codebook();
        self.class().is_available() && (portable || with_kernels) && codebooks
    }

    /// Whether weights are points of a codebook: IQ1, IQ2 and IQ3.
    pub const fn has_codebook(self) -> bool {
        matches!(
            self,
            Format::Iq1S
                | Format::Iq1M
                | Format::Iq2Xxs
                | Format::Iq2Xs
                | Format::Iq2S
                | Format::Iq3Xxs
                | Format::Iq3S
        )
    }

    /// Whether weights are floats stored one by one, whose dot products are computed in f32.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), WeightClass::Float)
    }

    /// Bytes of a row of `cols` weights, or `None` if `cols` is not a multiple of the block or the product
    /// overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block()) {
            None
        } else {
            (cols / self.block()).checked_mul(self.block_bytes())
        }
    }
}
