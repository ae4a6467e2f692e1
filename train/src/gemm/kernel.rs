//! The kernel of an instruction set: a few rows times a panel.
#![allow(unsafe_code)]

#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    all(target_arch = "wasm32", target_feature = "simd128")
))]
use shohin_core::cpu::Fused;
use shohin_core::cpu::Isa;

use super::operand::Left;

/// Maximum number of columns of a panel.
const MAX_WIDTH: usize = 32;

/// Maximum number of rows of a kernel.
const MAX_ROWS: usize = 16;

/// The product that kernels write.
pub(super) struct Target {
    pub(super) c: *mut f32,
    pub(super) stride: usize,
}

// SAFETY: each worker writes elements of its own.
unsafe impl Sync for Target {}

/// `rows (at most the kernel's), k, a, stride of rows, stride of columns, panel (k, width), c, stride of c, add`
type Rows = unsafe fn(usize, usize, *const f32, usize, usize, *const f32, *mut f32, usize, bool);

/// A kernel and its shape.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    /// Columns of a panel.
    pub(super) width: usize,
    /// Rows that it computes at once.
    pub(super) rows: usize,
    run: Rows,
}

impl Kernel {
    /// `valid` columns of `count` rows of the product from `(i, j)` on.
    ///
    /// # Safety
    /// `a` has `(count, k)` elements, `panel` `(k, width)`, and the target these rows and columns, which nobody else uses.
    pub(super) unsafe fn run(
        &self,
        count: usize,
        k: usize,
        a: Left<'_>,
        panel: &[f32],
        target: &Target,
        (i, j): (usize, usize),
        valid: usize,
        add: bool,
    ) {
        let (a, row, col) = (a.data.as_ptr(), a.row, a.col);
        // SAFETY: within the target.
        let c = unsafe { target.c.add(i * target.stride + j) };
        if valid == self.width {
            // SAFETY: the caller's promise; the instruction set is there, as an `Isa` was.
            unsafe { (self.run)(count, k, a, row, col, panel.as_ptr(), c, target.stride, add) };
            return;
        }
        let mut tile = [0.0f32; MAX_ROWS * MAX_WIDTH];
        // SAFETY: as above; the tile has room for any kernel's rows.
        unsafe { (self.run)(count, k, a, row, col, panel.as_ptr(), tile.as_mut_ptr(), self.width, false) };
        for (r, sums) in tile.chunks_exact(self.width).take(count).enumerate() {
            for (l, s) in sums.iter().take(valid).enumerate() {
                // SAFETY: a valid column of a row of the target.
                let c = unsafe { &mut *c.add(r * target.stride + l) };
                *c = if add { *c + s } else { *s };
            }
        }
    }
}

/// The fastest kernel of `isa`.
pub(super) fn kernel(isa: Isa) -> Kernel {
    match isa.fused() {
        #[cfg(target_arch = "x86_64")]
        Fused::Avx512 => Kernel { width: 32, rows: 14, run: super::x86::avx512 },
        #[cfg(target_arch = "x86_64")]
        Fused::Avx2 => Kernel { width: 16, rows: 6, run: super::x86::avx2 },
        #[cfg(target_arch = "aarch64")]
        Fused::Neon => Kernel { width: 8, rows: 8, run: super::neon::rows },
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Fused::Simd128 => Kernel { width: 8, rows: 4, run: super::simd128::rows },
        _ => Kernel { width: 4, rows: 4, run: super::scalar::rows },
    }
}

/// An instruction set's registers of floats.
pub(super) trait Vector {
    /// Floats in a register.
    const LANES: usize;
    /// A register.
    type V: Copy;
    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: *const f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, x: Self::V);
    /// `a b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
}

/// `R` rows times a panel of `N` registers; the arguments of [`Rows`].
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    k: usize,
    mut a: *const f32,
    row: usize,
    col: usize,
    mut panel: *const f32,
    c: *mut f32,
    stride: usize,
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        for _ in 0..k {
            let mut b = [V::zero(); N];
            for l in 0..N {
                b[l] = V::load(panel.add(l * V::LANES));
            }
            for r in 0..R {
                let x = V::splat(a.add(r * row));
                for l in 0..N {
                    sums[r][l] = V::fma(x, b[l], sums[r][l]);
                }
            }
            panel = panel.add(N * V::LANES);
            a = a.wrapping_add(col);
        }
        for r in 0..R {
            for l in 0..N {
                let p = c.add(r * stride + l * V::LANES);
                let sum = if add { V::add(V::load(p), sums[r][l]) } else { sums[r][l] };
                V::store(p, sum);
            }
        }
    }
}

/// Calls [`tile`] for as many rows as there are.
macro_rules! rows {
    ($count:ident, $v:ty, $n:literal, [$($r:literal)*], $args:tt) => {
        match $count {
            $($r => rows!(@ $v, $r, $n, $args),)*
            _ => {}
        }
    };
    (@ $v:ty, $r:literal, $n:literal, ($($arg:expr),*)) => {
        $crate::gemm::kernel::tile::<$v, $r, $n>($($arg),*)
    };
}
pub(super) use rows;
