//! The arguments of a kernel.
#![forbid(unsafe_code)]

use crate::cpu::activation_lut::ActivationLut;
use crate::cpu::activations::{Q8Block, q8_blocks};
use crate::cpu::parallel::OutputRows;
use crate::cpu::repack::PackedMatrix;

/// The arguments of a kernel; their lengths have been checked.
pub(crate) struct MatmulArgs<'a> {
    pub(super) w: PackedMatrix<'a>,
    /// `(tokens, cols)` for a float kernel.
    pub(super) x: &'a [f32],
    /// `(tokens, q8_blocks(cols))` for an integer kernel.
    pub(super) q8: &'a [Q8Block],
    /// [`lut_len`](super::lut_len) tables, or none.
    #[allow(dead_code, reason = "not every target has kernels that look sums up")]
    pub(super) luts: &'a [ActivationLut],
    pub(super) tokens: usize,
}

impl MatmulArgs<'_> {
    /// The step of the quantized activations of `token`.
    #[inline(always)]
    pub(super) fn step(&self, token: usize) -> f32 {
        // Products without columns never reach a kernel.
        self.q8[token * q8_blocks(self.w.cols())].step
    }
}

/// Fills the rows of `y` that it is given.
///
/// Safety: only called on a machine that has the instruction set of the kernel's table.
pub(super) type Kernel = unsafe fn(&MatmulArgs<'_>, &mut OutputRows<'_>);
