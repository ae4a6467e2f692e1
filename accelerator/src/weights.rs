//! Matrices in the layouts of kernels.

use crate::error::Result;
use shohin_core::quant::Matrix;
use shohin_core::quant::packed::PackedFormat;

/// Bytes repacked before they are passed to the driver.
const STAGING: usize = 4 << 20;

/// Maximum number of rows that [`repack`] passes at once.
pub fn staged_rows(matrix: Matrix<'_>, step: usize) -> usize {
    (STAGING / matrix.row_bytes().max(1)).max(1).next_multiple_of(step)
}

/// Passes the codes and scales of all rows of a matrix to `write`, some megabytes and a multiple of `step` rows at a time.
///
/// # Errors
/// Those of `write`.
pub fn repack<F>(
    packed: PackedFormat,
    matrix: Matrix<'_>,
    step: usize,
    mut write: impl FnMut(&[u32], &[u32]) -> Result<(), F>,
) -> Result<(), F> {
    let (row_bytes, rows) = (matrix.row_bytes().max(1), staged_rows(matrix, step));
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for part in matrix.data().chunks(rows * row_bytes) {
        for row in part.chunks_exact(row_bytes) {
            packed.repack(matrix.format(), row, &mut codes, &mut scales);
        }
        write(&codes, &scales)?;
        codes.clear();
        scales.clear();
    }
    Ok(())
}
