//! Matrix products over packed weights: the scalar reference and one file per instruction set.
//!
//! [`matmul`] picks the kernel from a table {format x operation x instruction set}; where an
//! instruction set has none of its own, the reference serves. All kernels of an operation add in the
//! order that `scalar.rs` defines, so that the same model gives the same bits on every machine, for
//! every number of workers and for every number of tokens at once.

mod act;
#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_words;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_words;
mod isa;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lookups;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_words;
mod parallel;
#[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
mod relaxed_words;
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128_tables;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod tables;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod tiles;
mod vectorize;
#[allow(dead_code, reason = "not every target has an instruction set that uses it")]
mod words;

pub use act::{Q8_LEN, Q8Block, q8_blocks, quantize};
pub use isa::Isa;
pub use parallel::for_each_chunk;
pub(crate) use parallel::for_each_tile;
pub use tables::{TABLES_LEN, Tables, fill_tables, tables};
pub use vectorize::{Vectorize, vectorize};

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::quant::{Format, Layout, Matrix};
use isa::Kind;
use parallel::{OutRows, Output, for_each_rows};

/// The right-hand side of [`matmul`].
#[derive(Clone, Copy, Debug)]
pub struct Input<'x> {
    /// The activations, `(tokens, cols)`. May be empty if `q8` is used.
    pub f32: &'x [f32],
    /// The same activations quantized by [`quantize`], `(tokens, q8_blocks(cols))`. If given, the
    /// quantized formats are multiplied in integers; float formats always use `f32`.
    pub q8: Option<&'x [Q8Block]>,
    /// What [`fill_tables`] makes of `q8`, or nothing: only faster with matrices in
    /// [`Layout::Bytes`].
    pub tables: &'x [Tables],
}

/// What a kernel computes with; its lengths have been checked.
pub(crate) struct Work<'a> {
    w: Matrix<'a>,
    /// `(tokens, cols)` for a float kernel.
    x: &'a [f32],
    /// `(tokens, q8_blocks(cols))` for an integer kernel.
    q8: &'a [Q8Block],
    /// As many as [`tables`] says, or none.
    #[allow(dead_code, reason = "not every target has kernels that look sums up")]
    tables: &'a [Tables],
    tokens: usize,
}

impl Work<'_> {
    /// The step of the quantized activations of `token`.
    #[inline(always)]
    fn step(&self, token: usize) -> f32 {
        // A product without columns never gets to a kernel.
        self.q8[token * q8_blocks(self.w.cols())].step
    }
}

/// Fills the rows of `y` that it is given.
///
/// Safety: only called on a machine that has the instruction set of the table it stands in.
type Kernel = unsafe fn(&Work<'_>, &mut OutRows<'_>);

/// The kernels of an instruction set by format; `None` where the reference serves.
struct Table {
    /// For f32 activations.
    float: fn(Format) -> Option<Kernel>,
    /// For int8 activations and rows as in the file; float formats never ask.
    integer: fn(Format) -> Option<Kernel>,
    /// For int8 activations and interleaved rows.
    interleaved: fn(Format, Layout) -> Option<Kernel>,
}

fn table(kind: Kind) -> Table {
    match kind {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            Table { float: avx2::float, integer: avx2::integer, interleaved: avx2_words::interleaved }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => {
            // Wider vectors gain nothing where sums cross lanes.
            Table { float: avx512::float, integer: avx2::integer, interleaved: avx512_words::interleaved }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Amx => {
            Table { float: avx512::float, integer: avx2::integer, interleaved: amx::interleaved }
        }
        #[cfg(target_arch = "aarch64")]
        // Plain loops over floats are vectorized by the compiler here.
        Kind::Neon => Table { float: |_| None, integer: neon::integer, interleaved: neon_words::interleaved },
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDot => Table {
            float: |_| None,
            integer: neon::integer_dotprod,
            interleaved: neon_words::interleaved_dotprod,
        },
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        // Plain loops over floats are vectorized by the compiler here.
        Kind::Simd128 => {
            Table { float: |_| None, integer: simd128::integer, interleaved: simd128_tables::interleaved }
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "relaxed-simd"))]
        Kind::RelaxedDot => {
            Table { float: |_| None, integer: simd128::integer, interleaved: relaxed_words::interleaved }
        }
        #[allow(unreachable_patterns, reason = "the kinds differ by target")]
        _ => Table { float: |_| None, integer: |_| None, interleaved: |_, _| None },
    }
}

/// `y = x w^T`, with `w` of shape `(rows, cols)`, `x` of shape `(tokens, cols)` and `y` of shape
/// `(tokens, rows)`. The rows of `w` are spread over `pool`. Allocates nothing.
///
/// A token's outputs do not depend on `isa`, on the pool, or on the other tokens: not even in the last
/// bit, except that the bits of a NaN may differ.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes.
pub fn matmul(
    isa: Isa,
    pool: &dyn Pool,
    w: &Matrix<'_>,
    x: &Input<'_>,
    tokens: usize,
    y: &mut [f32],
) -> Result<()> {
    matmul_each(isa, pool, x, tokens, [(w, y)])
}

/// [`matmul`] with several matrices, each with its `y`, whose rows are spread over `pool` together: workers
/// meet once, not once a matrix.
///
/// # Errors
/// [`Error::Length`] if a length does not fit the shapes; then nothing has been computed.
pub fn matmul_each<const N: usize>(
    isa: Isa,
    pool: &dyn Pool,
    x: &Input<'_>,
    tokens: usize,
    products: [(&Matrix<'_>, &mut [f32]); N],
) -> Result<()> {
    let mut kernels: [Option<(Kernel, Work<'_>)>; N] = [const { None }; N];
    let mut rows = 0;
    for ((w, y), kernel) in products.iter().zip(&mut kernels) {
        *kernel = Some(kernel_of(isa, w, x, tokens, y.len())?);
        rows += w.rows();
    }
    let chunk = |w: &Matrix<'_>| chunk_rows(pool, w, rows, tokens);
    let outputs = products.map(|(w, y)| Output { chunk: chunk(w), rows: w.rows(), y });
    for_each_rows(pool, tokens, outputs, &|i, mut out| {
        let Some((kernel, work)) = &kernels[i] else { return };
        if work.w.cols() == 0 {
            return out.zero();
        }
        // SAFETY: the table gave this kernel for an instruction set that `isa` proves to be there.
        #[allow(unsafe_code)]
        unsafe {
            kernel(work, &mut out);
        }
    });
    Ok(())
}

/// The kernel for `w`, and what it works on; checks the lengths.
fn kernel_of<'a>(
    isa: Isa,
    w: &Matrix<'a>,
    x: &Input<'a>,
    tokens: usize,
    y_len: usize,
) -> Result<(Kernel, Work<'a>)> {
    let check = |what, expected: Option<usize>, found: usize| match expected {
        Some(n) if n == found => Ok(()),
        n => Err(Error::Length { what, expected: n.map_or(u64::MAX, |n| n as u64), found: found as u64 }),
    };
    check("output of a matrix product", tokens.checked_mul(w.rows()), y_len)?;
    let table = table(isa.kind());
    Ok(match x.q8 {
        Some(q8) if !w.format().is_float() => {
            check("quantized activations", tokens.checked_mul(q8_blocks(w.cols())), q8.len())?;
            if !x.tables.is_empty() {
                check("tables", Some(self::tables(isa, tokens, w.cols())), x.tables.len())?;
            }
            let kernel = match w.layout() {
                Layout::Rows => (table.integer)(w.format()),
                layout => (table.interleaved)(w.format(), layout),
            };
            (kernel.unwrap_or(scalar::integer), Work { w: *w, x: &[], q8, tables: x.tables, tokens })
        }
        _ => {
            check("activations", tokens.checked_mul(w.cols()), x.f32.len())?;
            let kernel = (table.float)(w.format()).unwrap_or(scalar::float);
            (kernel, Work { w: *w, x: x.f32, q8: &[], tables: &[], tokens })
        }
    })
}

/// Rows per job: large enough that claiming a job costs nothing beside it, several jobs a worker so
/// that a worker the system has paused does not hold up the others, a multiple of the kernels' tiles.
/// `all` rows are computed together with these.
fn chunk_rows(pool: &dyn Pool, w: &Matrix<'_>, all: usize, tokens: usize) -> usize {
    const JOBS_PER_WORKER: usize = 4;
    const MIN_PRODUCTS: usize = 1 << 18; // some microseconds
    const TILE: usize = 4 * crate::quant::GROUP;
    let rows = w.rows();
    let products = w.cols().saturating_mul(tokens).max(1);
    let chunk =
        all.div_ceil(pool.workers().saturating_mul(JOBS_PER_WORKER).max(1)).max(MIN_PRODUCTS / products);
    chunk.clamp(1, rows.max(1)).next_multiple_of(TILE)
}
