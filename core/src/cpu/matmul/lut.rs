//! Building the lookup tables of activations, or their tiles, for the instruction sets whose kernels use them.
#![allow(unsafe_code)]

use super::token_lanes::{self, Lanes};
use crate::cpu::activation_lut::{ActivationLut, LUT_COLS};
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::isa::{Isa, Kind};
use crate::cpu::repack::{Layout, PackedMatrix};
use crate::error::{Error, Result};
use crate::quant::Format;

/// Which products with a matrix use lookup tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lookups {
    /// None.
    Never,
    /// Those of several tokens, by vectors with a lane per token or by tiles.
    InLanes,
    /// All.
    Always,
}

impl Lookups {
    /// Those of matrices of `format` in `layout`.
    pub(crate) const fn of(isa: Isa, layout: Layout, format: Format) -> Lookups {
        match layout {
            Layout::RowMajor => Lookups::Never,
            Layout::Panels8 => Lookups::Always,
            Layout::Panels32 => {
                if in_lanes(isa, layout, format) || has_tiles(isa, usize::MAX) {
                    Lookups::InLanes
                } else {
                    Lookups::Never
                }
            }
        }
    }

    /// Whether a product with `tokens` is one of them.
    pub(crate) const fn include(self, isa: Isa, tokens: usize) -> bool {
        match self {
            Lookups::Never => false,
            Lookups::InLanes => lanes(isa).tokens(tokens) > 0 || has_tiles(isa, tokens),
            Lookups::Always => true,
        }
    }
}

/// Number of lookup tables that the kernels of `isa` use in a product of `(tokens, cols)` with matrices in
/// [`Layout::Panels8`](crate::cpu::repack::Layout::Panels8); 0 if they use none. With AMX the memory holds tiles of
/// several tokens instead, which all repacked matrices use. Without tables slower kernels or the reference compute.
pub const fn lut_len(isa: Isa, tokens: usize, cols: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_tiles(isa, tokens) {
        return super::amx::lut_len(tokens, cols);
    }
    cols.div_ceil(LUT_COLS).saturating_mul(lut_tokens(isa, tokens))
}

/// Whether the kernels of `isa` multiply so many tokens in tiles, which then are in the memory of the tables.
const fn has_tiles(isa: Isa, tokens: usize) -> bool {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Amx => tokens >= super::amx::FEWEST_TOKENS,
        _ => {
            let _ = tokens;
            false
        }
    }
}

/// How many of `tokens` the kernels of `isa` compute by table lookup, where they do not use tiles.
const fn lut_tokens(isa: Isa, tokens: usize) -> usize {
    let _ = tokens;
    match isa.kind() {
        Kind::Scalar => 0,
        #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
        Kind::Tables => 0,
        #[cfg(all(target_arch = "arm", feature = "dsp"))]
        Kind::Dsp => 0,
        #[cfg(all(target_arch = "arm", feature = "helium"))]
        Kind::Helium => 0,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::AvxVnni | Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => tokens,
        #[cfg(target_arch = "aarch64")]
        Kind::Neon | Kind::NeonDot | Kind::NeonI8mm => lanes(isa).tokens(tokens),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Kind::Simd128 => tokens,
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => tokens,
    }
}

/// The kernels of `isa` that compute several tokens at once by table lookup.
const fn lanes(isa: Isa) -> Lanes {
    match isa.kind() {
        Kind::Scalar => Lanes::NONE,
        #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
        Kind::Tables => Lanes::NONE,
        #[cfg(all(target_arch = "arm", feature = "dsp"))]
        Kind::Dsp => Lanes::NONE,
        #[cfg(all(target_arch = "arm", feature = "helium"))]
        Kind::Helium => Lanes::NONE,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::AvxVnni => super::avx2_panel::LANES,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni | Kind::Avx512Words => super::avx512_panel::LANES,
        // AMX multiplies.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Amx => Lanes::NONE,
        #[cfg(target_arch = "aarch64")]
        Kind::Neon | Kind::NeonDot => super::neon_panel::LANES,
        // Its products take fewer instructions than lookups.
        #[cfg(target_arch = "aarch64")]
        Kind::NeonI8mm => Lanes::NONE,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Kind::Simd128 => super::simd128_lut::LANES,
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => super::simd128_lut::LANES,
    }
}

/// Whether the kernels for matrices of `format` in `layout` compute several tokens at once by table lookup.
const fn in_lanes(isa: Isa, layout: Layout, format: Format) -> bool {
    let _ = format;
    match (layout, isa.kind()) {
        (Layout::RowMajor, _) => false,
        (Layout::Panels8, _) => lanes(isa).vector > 0,
        (Layout::Panels32, Kind::Scalar) => false,
        #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
        (Layout::Panels32, Kind::Tables) => false,
        #[cfg(all(target_arch = "arm", feature = "dsp"))]
        (Layout::Panels32, Kind::Dsp) => false,
        #[cfg(all(target_arch = "arm", feature = "helium"))]
        (Layout::Panels32, Kind::Helium) => false,
        #[cfg(target_arch = "x86_64")]
        (
            Layout::Panels32,
            Kind::Avx2 | Kind::AvxVnni | Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx,
        ) => false,
        #[cfg(target_arch = "aarch64")]
        (Layout::Panels32, Kind::Neon) => true,
        // Products of 2-bit codes take fewer instructions than lookups.
        #[cfg(target_arch = "aarch64")]
        (Layout::Panels32, Kind::NeonDot) => matches!(format, Format::Q1_0),
        #[cfg(target_arch = "aarch64")]
        (Layout::Panels32, Kind::NeonI8mm) => false,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        (Layout::Panels32, Kind::Simd128) => false,
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        (Layout::Panels32, Kind::RelaxedDot) => true,
    }
}

/// Rows that should share the tables of several tokens in a product with `w`, where `rows` are a worker's share; 0 if there are
/// no such tables.
pub(super) const fn rows_per_table(isa: Isa, w: &PackedMatrix<'_>, rows: usize, tokens: usize) -> usize {
    let _ = rows;
    #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
    if !matches!(isa.kind(), Kind::Scalar) && super::byte_tables::has(w.format()) {
        return usize::MAX;
    }
    #[cfg(target_arch = "x86_64")]
    if matches!((isa.kind(), w.layout()), (Kind::Avx512Words, Layout::Panels8)) {
        return super::avx512_words::rows_per_table(rows, tokens, lanes(isa).tokens(tokens));
    }
    if in_lanes(isa, w.layout(), w.format()) && lanes(isa).tokens(tokens) > 0 { lanes(isa).rows } else { 0 }
}

/// Fills `out`, of [`lut_len`] elements, from `q8` of shape `(tokens, q8_blocks(cols))`.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes.
pub fn build_lut(isa: Isa, q8: &[Q8Block], cols: usize, out: &mut [ActivationLut]) -> Result<()> {
    let (blocks, each) = (q8_blocks(cols), cols.div_ceil(LUT_COLS));
    let tokens = q8.len().checked_div(blocks).unwrap_or(0);
    let lengths = [
        ("quantized activations (a multiple of the columns)", tokens * blocks, q8.len()),
        ("lookup tables", lut_len(isa, tokens, cols), out.len()),
    ];
    for (what, expected, found) in lengths {
        if expected != found {
            return Err(error!(Length { what, expected: expected as u64, found: found as u64 }));
        }
    }
    if out.is_empty() {
        return Ok(());
    }
    #[cfg(target_arch = "x86_64")]
    if has_tiles(isa, tokens) {
        super::amx::fill(q8, blocks, out);
        return Ok(());
    }
    let lanes = lanes(isa);
    let (q8_in_lanes, q8) = q8.split_at(lanes.tokens(tokens) * blocks);
    let (in_lanes, out) = out.split_at_mut(lanes.tokens(tokens) * each);
    token_lanes::fill(lanes, blocks, q8_in_lanes, each, in_lanes);
    let Some(build) = builder(isa.kind()) else { return Ok(()) };
    for (q8, out) in q8.chunks_exact(blocks).zip(out.chunks_exact_mut(each)) {
        // SAFETY: an `Isa` of this kind exists only where its instructions do.
        unsafe { build(q8, out) };
    }
    Ok(())
}

/// Builds the tables of one token. Safety: the processor has the instruction set.
type Builder = unsafe fn(&[Q8Block], &mut [ActivationLut]);

fn builder(kind: Kind) -> Option<Builder> {
    match kind {
        Kind::Scalar => None,
        #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
        Kind::Tables => None,
        #[cfg(all(target_arch = "arm", feature = "dsp"))]
        Kind::Dsp => None,
        #[cfg(all(target_arch = "arm", feature = "helium"))]
        Kind::Helium => None,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::AvxVnni | Kind::Avx512Vnni | Kind::Avx512Words | Kind::Avx512Amx => {
            Some(super::avx2_panel::build_lut)
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon | Kind::NeonDot | Kind::NeonI8mm => None,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Kind::Simd128 => Some(super::simd128_lut::build_lut),
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => Some(super::simd128_lut::build_lut),
    }
}
