//! Products of one worker, with operands that are used several times.

use alloc::vec::Vec;

use shohin_core::cpu::Isa;

use super::block::Block;
use super::kernel::{Kernel, Target, kernel};
use super::operand::{BLOCK, Left, Line, SLAB, Store};
use super::panels::Panels;

/// A right operand `B (k, n)`, packed whole.
#[derive(Debug, Default)]
pub struct Prepared {
    /// `(blocks, panels, BLOCK, width)`
    panels: Vec<Line>,
    k: usize,
    n: usize,
}

/// Computes the products of one worker. The bits are those of [`Gemm`](super::Gemm).
pub struct Small {
    kernel: Kernel,
    isa: Isa,
    /// `(BLOCK, SLAB)`
    a: Vec<Line>,
}

impl core::fmt::Debug for Small {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Small").field("isa", &self.isa).finish()
    }
}

impl Small {
    /// For the instructions of `isa`.
    pub fn new(isa: Isa) -> Self {
        Small { kernel: kernel(isa), isa, a: Vec::new() }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Floats that [`Small::prepare`] needs for an operand `(k, n)`, for any instruction set.
    pub const fn prepared_len(k: usize, n: usize) -> usize {
        k.div_ceil(BLOCK) * BLOCK * n.next_multiple_of(32)
    }

    /// Packs `b (k, n)`.
    pub fn prepare<B: Panels>(&self, b: &B, k: usize, n: usize, to: &mut Prepared) {
        let width = self.kernel.width;
        let row = n.div_ceil(width) * BLOCK * width;
        to.panels.resize(k.div_ceil(BLOCK) * row / 16, Line::ZERO);
        (to.k, to.n) = (k, n);
        let panels: &mut [f32] = bytemuck::cast_slice_mut(&mut to.panels);
        for (row, p) in panels.chunks_exact_mut(row.max(1)).zip((0..k).step_by(BLOCK)) {
            let block = p..(p + BLOCK).min(k);
            for (panel, j) in row.chunks_exact_mut(BLOCK * width).zip((0..n).step_by(width)) {
                let panel = &mut panel[..block.len() * width];
                b.pack(self.isa, block.clone(), j..(j + width).min(n), width, panel);
            }
        }
    }

    /// `C = A B` or `C += A B` with the first `k` rows of `b` and as many of its columns as `c` has.
    ///
    /// # Panics
    /// If an operand is too short.
    pub fn product(&mut self, k: usize, a: Left<'_>, b: &Prepared, mut c: Block<'_>, store: Store) {
        let (m, n) = (c.rows(), c.cols());
        assert!(a.holds(m, k), "the left operand has {} elements", a.data.len());
        assert!(k <= b.k && n <= b.n, "a right operand of {} x {} for {k} x {n}", b.k, b.n);
        if m == 0 || n == 0 {
            return;
        }
        let Kernel { width, rows: mr, .. } = self.kernel;
        let (c, stride) = c.pointer();
        let target = Target { c, stride };
        let panels: &[f32] = bytemuck::cast_slice(&b.panels);
        let row = b.n.div_ceil(width) * BLOCK * width;
        let pack_a = a.col != 1;
        if pack_a {
            self.a.resize(BLOCK * SLAB / 16, Line::ZERO);
        }
        for p in (0..k.max(1)).step_by(BLOCK) {
            let block = p..(p + BLOCK).min(k);
            let add = p > 0 || store == Store::Add;
            for i in (0..m).step_by(mr) {
                let count = mr.min(m - i);
                let left = match pack_a {
                    true => {
                        let slab: &mut [f32] = bytemuck::cast_slice_mut(&mut self.a);
                        super::operand::pack_slab(a, i..i + count, block.clone(), slab);
                        Left { data: slab, row: 1, col: SLAB }
                    }
                    false => Left { data: &a.data[(i * a.row + p).min(a.data.len())..], row: a.row, col: 1 },
                };
                for (panel, j) in (0..n).step_by(width).enumerate() {
                    let at = p / BLOCK * row + panel * BLOCK * width;
                    let panel = if block.is_empty() { &[][..] } else { &panels[at..][..block.len() * width] };
                    // SAFETY: the operands hold what was just asserted, and the product's elements are borrowed here.
                    #[allow(unsafe_code)]
                    unsafe {
                        self.kernel.run(
                            count,
                            block.len(),
                            left,
                            panel,
                            &target,
                            (i, j),
                            width.min(n - j),
                            add,
                        );
                    }
                }
            }
        }
    }
}
