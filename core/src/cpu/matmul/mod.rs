//! Matrix products over packed weights: the scalar reference and one file per instruction set.
//!
//! [`matmul`] picks the kernel from a table {format x operation x instruction set}; if an instruction set has
//! no kernel, the reference is used. All kernels of an operation add in the order that `scalar.rs` defines,
//! so that the same model gives the same bits on every machine, for every number of workers and for every
//! number of tokens at once.
//!
//! | kernel | weights | instruction sets |
//! |---|---|---|
//! | row kernel | row-major, more than 32 weights per scale | AVX2, NEON, simd128 |
//! | run kernel | row-major, at most 32 weights per scale | AVX2, AVX-VNNI, AVX-512, NEON, simd128 |
//! | panel kernel | 32-bit panels of 16 rows | AVX2, AVX-VNNI, AVX-512, AMX, NEON with `sdot` and `smmla`, relaxed SIMD |
//! | LUT kernel, one token at a time | 8-bit panels of 16 rows | AVX2, AVX-512, simd128 |
//! | pair kernel | row-major, 1-bit and ternary | Cortex-M with DSP, Helium |
//! | byte-table kernel | row-major, 1-bit and ternary | 32-bit processors without vectors |
//! | LUT kernel, several tokens, in registers | 8-bit panels of 16 rows | AVX-512 of AMD |
//! | LUT kernel, tokens in lanes | panels of 16 rows | AVX2, AVX-512, NEON, simd128, relaxed SIMD |

#[cfg(target_arch = "x86_64")]
mod amx;
mod args;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_panel;
#[cfg(target_arch = "x86_64")]
mod avx2_runs;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_panel;
#[cfg(target_arch = "x86_64")]
mod avx512_runs;
#[cfg(target_arch = "x86_64")]
mod avx512_words;
mod built;
#[cfg(any(target_arch = "arm", target_arch = "riscv32", test))]
mod byte_tables;
#[cfg(all(target_arch = "arm", feature = "dsp"))]
mod dsp;
#[cfg(all(target_arch = "arm", feature = "helium"))]
mod helium;
mod lut;
#[cfg(target_arch = "x86_64")]
mod lut_kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_panel;
#[cfg(target_arch = "aarch64")]
mod neon_runs;
#[cfg(all(target_arch = "arm", any(feature = "dsp", feature = "helium")))]
mod pair_kernel;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod panel_kernel;
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
mod relaxed_panel;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod row_kernel;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod run_format;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod run_isa;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod run_kernel;
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128_lut;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128_runs;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod token_lanes;

use heapless::Vec as ArrayVec;

use super::activation_lut::ActivationLut;
use super::activations::{Q8Block, q8_blocks};
use super::isa::{Isa, Kind};
use super::parallel::{Output, OutputRows, for_each_rows, for_each_rows_of};
use super::repack::{Layout, PANEL_ROWS, PackedMatrix};
use crate::error::{Error, Name, Result};
use crate::model::program::MAX_OUTPUTS;
use crate::pool::Pool;
use crate::quant::Format;
use args::{Kernel, MatmulArgs};
pub(crate) use lut::Lookups;
pub use lut::{build_lut, lut_len};

/// The activations of a [`matmul`].
#[derive(Clone, Copy, Debug)]
pub struct Input<'x> {
    /// The activations, `(tokens, cols)`. May be empty if `q8` is used.
    pub f32: &'x [f32],
    /// The same activations quantized by [`quantize`](super::activations::quantize),
    /// `(tokens, q8_blocks(cols))`. If given, the quantized formats are multiplied in integers; float formats
    /// always use `f32`.
    pub q8: Option<&'x [Q8Block]>,
    /// The output of [`build_lut`] for `q8`, or empty: faster for matrices in [`Layout::Panels8`], and with AMX for
    /// all repacked ones.
    pub luts: &'x [ActivationLut],
}

/// The kernels of an instruction set by format; `None` where the reference is used.
struct Table {
    /// For f32 activations.
    float: fn(Format) -> Option<Kernel>,
    /// For int8 activations and row-major weights; never called for float formats.
    integer: fn(Format) -> Option<Kernel>,
    /// For int8 activations and repacked rows.
    repacked: fn(Format, Layout) -> Option<Kernel>,
}

fn table(kind: Kind) -> Table {
    // The others are only there to compare with.
    #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
    let kind =
        if cfg!(feature = "portable-kernels") { kind } else { const { Kind::ALL[Kind::ALL.len() - 1] } };
    match kind {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            Table { float: avx2::float, integer: avx2_runs::integer, repacked: avx2_panel::repacked }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::AvxVnni => Table {
            float: avx2::float,
            integer: avx2_runs::integer_vnni,
            repacked: avx2_panel::repacked_vnni,
        },
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => {
            Table { float: avx512::float, integer: avx512_runs::integer, repacked: avx512_panel::repacked }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Words => {
            Table { float: avx512::float, integer: avx512_runs::integer, repacked: avx512_words::repacked }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Amx => {
            Table { float: avx512::float, integer: avx512_runs::integer, repacked: amx::repacked }
        }
        #[cfg(target_arch = "aarch64")]
        // Plain loops over floats are vectorized by the compiler here.
        Kind::Neon => Table { float: |_| None, integer: neon_runs::integer, repacked: neon_panel::repacked },
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDot => Table {
            float: |_| None,
            integer: neon_runs::integer_dotprod,
            repacked: neon_panel::repacked_dotprod,
        },
        #[cfg(target_arch = "aarch64")]
        Kind::NeonI8mm => {
            Table { float: |_| None, integer: neon_runs::integer_i8mm, repacked: neon_panel::repacked_i8mm }
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        // Plain loops over floats are vectorized by the compiler here.
        Kind::Simd128 => {
            Table { float: |_| None, integer: simd128_runs::integer, repacked: simd128_lut::repacked }
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => {
            Table { float: |_| None, integer: simd128_runs::integer, repacked: relaxed_panel::repacked }
        }
        #[cfg(any(target_arch = "arm", target_arch = "riscv32"))]
        Kind::Tables => Table { float: |_| None, integer: byte_tables::integer, repacked: |_, _| None },
        #[cfg(all(target_arch = "arm", feature = "dsp"))]
        Kind::Dsp => Table { float: |_| None, integer: dsp::integer, repacked: |_, _| None },
        #[cfg(all(target_arch = "arm", feature = "helium"))]
        Kind::Helium => Table { float: |_| None, integer: helium::integer, repacked: |_, _| None },
        Kind::Scalar => Table { float: |_| None, integer: |_| None, repacked: |_, _| None },
    }
}

/// `y = x w^T`, with `w` of shape `(rows, cols)`, `x` of shape `(tokens, cols)` and `y` of shape
/// `(tokens, rows)`. The rows of `w` are spread over `pool`. Allocates nothing.
///
/// A token's outputs do not depend on `isa`, on the pool, or on the other tokens: not even in the last bit,
/// except that the bits of a NaN may differ.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes.
pub fn matmul(
    isa: Isa,
    pool: &dyn Pool,
    w: &PackedMatrix<'_>,
    x: &Input<'_>,
    tokens: usize,
    y: &mut [f32],
) -> Result<()> {
    matmul_each(isa, pool, x, tokens, &mut [(*w, y)])
}

/// Maximum number of matrices of a [`matmul_each`].
pub const MAX_PRODUCTS: usize = MAX_OUTPUTS;

/// [`matmul`] with several matrices, each with its `y`. Their rows are spread over `pool` together, so that
/// workers synchronize once and not once per matrix.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes, or for more than [`MAX_PRODUCTS`]; nothing is
/// computed then.
pub fn matmul_each(
    isa: Isa,
    pool: &dyn Pool,
    x: &Input<'_>,
    tokens: usize,
    products: &mut [(PackedMatrix<'_>, &mut [f32])],
) -> Result<()> {
    let too_many =
        error!(Length { what: "products", expected: MAX_PRODUCTS as u64, found: products.len() as u64 });
    let mut kernels: ArrayVec<(Kernel, MatmulArgs<'_>), MAX_PRODUCTS> = ArrayVec::new();
    let mut rows = 0;
    for (w, y) in products.iter() {
        kernels.push(kernel_of(isa, w, x, tokens, y.len())?).map_err(|_| too_many)?;
        rows += w.rows();
    }
    let outputs: ArrayVec<_, MAX_PRODUCTS> = products
        .iter_mut()
        .map(|(w, y)| Output { chunk: chunk_rows(isa, pool, w, rows, tokens), rows: w.rows(), y })
        .collect();
    for_each_rows(pool, tokens, outputs, &|i, out| {
        if let Some((kernel, args)) = kernels.get(i) {
            run(*kernel, args, out);
        }
    });
    Ok(())
}

/// [`matmul`] with some rows of a matrix of `at.0` rows, those from row `at.1` on: fills their columns of `y`, whose shape
/// is `(tokens, at.0)`.
pub(crate) fn matmul_rows(
    isa: Isa,
    pool: &dyn Pool,
    w: &PackedMatrix<'_>,
    x: &Input<'_>,
    tokens: usize,
    y: &mut [f32],
    at: (usize, usize),
) -> Result<()> {
    let (all, first) = at;
    let expected = tokens.checked_mul(all).filter(|_| first <= all && w.rows() <= all - first);
    if expected != Some(y.len()) {
        let (expected, found) = (expected.map_or(u64::MAX, |len| len as u64), y.len() as u64);
        return Err(error!(Length { what: "output of a matrix product", expected, found }));
    }
    let (kernel, args) = kernel_of(isa, w, x, tokens, tokens * w.rows())?;
    let chunk = chunk_rows(isa, pool, w, w.rows(), tokens);
    let output = Output { y, rows: w.rows(), chunk };
    for_each_rows_of(pool, tokens, output, at, &|out| run(kernel, &args, out));
    Ok(())
}

/// Computes the rows of `out` with what [`kernel_of`] gave.
fn run(kernel: Kernel, args: &MatmulArgs<'_>, mut out: OutputRows<'_>) {
    if args.w.cols() == 0 {
        return out.zero();
    }
    // SAFETY: the table gave this kernel for an instruction set that an `Isa` proved to be there.
    #[allow(unsafe_code)]
    unsafe {
        kernel(args, &mut out);
    }
}

/// The kernel for `w` and its arguments; checks the lengths.
fn kernel_of<'a>(
    isa: Isa,
    w: &PackedMatrix<'a>,
    x: &Input<'a>,
    tokens: usize,
    y_len: usize,
) -> Result<(Kernel, MatmulArgs<'a>)> {
    let check = |what, expected: Option<usize>, found: usize| match expected {
        Some(n) if n == found => Ok(()),
        n => Err(error!(Length { what, expected: n.map_or(u64::MAX, |n| n as u64), found: found as u64 })),
    };
    check("output of a matrix product", tokens.checked_mul(w.rows()), y_len)?;
    let table = table(isa.kind());
    Ok(match x.q8 {
        Some(q8) if !w.format().is_float() => {
            check("quantized activations", tokens.checked_mul(q8_blocks(w.cols())), q8.len())?;
            if !x.luts.is_empty() {
                check("lookup tables", Some(lut_len(isa, tokens, w.cols())), x.luts.len())?;
            }
            let kernel = match w.layout() {
                Layout::RowMajor => (table.integer)(w.format()),
                layout => (table.repacked)(w.format(), layout),
            };
            let reference: Option<Kernel> =
                if cfg!(feature = "portable-kernels") { Some(scalar::integer) } else { None };
            let kernel = kernel.or(reference).ok_or(error!(Unsupported {
                key: Name::new("weight format"),
                found: Name::new(w.format().name()),
                expected: "one with kernels for this processor, or a build with the feature `portable-kernels`",
            }))?;
            (kernel, MatmulArgs { w: *w, x: &[], q8, luts: x.luts, tokens })
        }
        _ => {
            check("activations", tokens.checked_mul(w.cols()), x.f32.len())?;
            let kernel = (table.float)(w.format()).unwrap_or(scalar::float);
            (kernel, MatmulArgs { w: *w, x: x.f32, q8: &[], luts: &[], tokens })
        }
    })
}

/// Rows per job: large enough to make the cost of claiming a job negligible, several jobs per worker so that
/// a worker paused by the system does not hold up the others, and a multiple of the kernels' tiles. `all` rows are
/// computed together with these.
fn chunk_rows(isa: Isa, pool: &dyn Pool, w: &PackedMatrix<'_>, all: usize, tokens: usize) -> usize {
    const JOBS_PER_WORKER: usize = 4;
    const MIN_PRODUCTS: usize = 1 << 18; // some microseconds
    const ROW_TILE: usize = 4 * PANEL_ROWS;
    let rows = w.rows();
    if pool.workers() <= 1 {
        // Each job builds its own tables.
        return rows.max(1);
    }
    let products = w.cols().saturating_mul(tokens).max(1);
    let share = all.div_ceil(pool.workers());
    // A job builds the tables it uses.
    let shared = share.min(lut::rows_per_table(isa, w, share, tokens));
    let chunk = share.div_ceil(JOBS_PER_WORKER).max(MIN_PRODUCTS / products).max(shared);
    chunk.clamp(1, rows.max(1)).next_multiple_of(ROW_TILE)
}
