//! Matrix products in f32, whose bits are defined.
//!
//! ```text
//! C (m, n) = A (m, k) B (k, n)        or, added to what is there, C += A B
//! s_b = fma(a[i][p], b[p][j], s_b)    for p in block b of 256, in order, from s_b = 0
//! c   = s_0 + s_1 + ... , each sum rounded, in order; with the old c before s_0 if it is added to
//! ```
//!
//! This holds for every instruction set with a fused multiply-add, every number of threads and every `m` and `n`: an element
//! depends on its row of `A` and its column of `B` alone. WebAssembly rounds product and sum separately and has bits of its
//! own.
//!
//! `B` is repacked into panels of as many columns as the kernel has, by an implementation of [`Panels`]: weights go from
//! their packed format straight into a panel, and a whole matrix of floats exists nowhere.
//!
//! The scheme is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

mod block;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operand;
mod panels;
mod prepared;
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(target_arch = "x86_64")]
mod x86;

use alloc::vec::Vec;
use core::ops::Range;

use shohin_core::cpu::Isa;
use shohin_core::cpu::parallel::for_each_chunk;
use shohin_core::pool::Pool;

pub use block::Block;
use kernel::{Kernel, Target, kernel};
pub(crate) use operand::Line;
pub use operand::{BLOCK, Left, Store};
use operand::{SLAB, pack_slab};
pub use panels::{Columns, Panels, Rows, Weight, WeightColumns, WeightRows};
pub use prepared::{Prepared, Small};

/// Columns of `B` that a worker packs at once: its panels stay in the second cache.
const GROUP: usize = 256;

/// Rows of `A` that are multiplied by a group, which stay in the cache as well.
const ROWS: usize = 112;

/// What a worker packs.
struct Packed {
    /// `(GROUP / width, BLOCK, width)`
    b: Vec<Line>,
    /// `(ROWS / rows, BLOCK, SLAB)`
    a: Vec<Line>,
}

/// Computes products on the workers of a pool, with memory of its own for what it packs.
pub struct Gemm<'p> {
    kernel: Kernel,
    isa: Isa,
    pool: &'p dyn Pool,
    packed: Vec<Packed>,
}

impl core::fmt::Debug for Gemm<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gemm").field("isa", &self.isa).field("workers", &self.packed.len()).finish()
    }
}

impl<'p> Gemm<'p> {
    /// For the instructions of `isa`.
    pub fn new(isa: Isa, pool: &'p dyn Pool) -> Self {
        let packed = (0..pool.workers().max(1)).map(|_| Packed { b: Vec::new(), a: Vec::new() });
        Gemm { kernel: kernel(isa), isa, pool, packed: packed.collect() }
    }

    /// Bytes that it packs into, of each worker.
    pub const fn worker_bytes() -> usize {
        (GROUP * BLOCK + ROWS / 4 * BLOCK * SLAB) * size_of::<f32>()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The workers.
    pub fn pool(&self) -> &'p dyn Pool {
        self.pool
    }

    /// `C (m, n) = A (m, k) B (k, n)`, or added to it, for the shape `(m, n)` of `c`.
    ///
    /// # Panics
    /// If the left operand is too short.
    pub fn product<B: Panels>(&mut self, k: usize, a: Left<'_>, b: &B, mut c: Block<'_>, store: Store) {
        let (m, n) = (c.rows(), c.cols());
        assert!(a.holds(m, k), "the left operand has {} elements", a.data.len());
        if m == 0 || n == 0 {
            return;
        }
        let (kernel, isa) = (self.kernel, self.isa);
        let workers = self.packed.len();
        // Each worker computes columns; rows, if there are too few of those.
        let panels = n.div_ceil(kernel.width);
        let by_columns = panels >= 2 * workers;
        let parts = if by_columns { workers } else { workers.min(m.div_ceil(kernel.rows)) };
        let (c, stride) = c.pointer();
        let target = Target { c, stride };
        let part = |w: usize, of: usize, unit: usize, len: usize| -> Range<usize> {
            let units = len.div_ceil(unit);
            (units * w / of * unit).min(len)..(units * (w + 1) / of * unit).min(len)
        };
        let job = |w: usize, packed: &mut [Packed]| {
            let (rows, cols) = match by_columns {
                true => (0..m, part(w, parts, kernel.width, n)),
                false => (part(w, parts, kernel.rows, m), 0..n),
            };
            let [packed] = packed else { return };
            let task = Task { kernel, isa, k, a, rows, cols, target: &target, store };
            task.run(b, packed);
        };
        let pool: &dyn Pool = self.pool;
        for_each_chunk(pool, &mut self.packed[..parts], 1, &job);
    }
}

/// A worker's rows and columns of a product.
struct Task<'a> {
    kernel: Kernel,
    isa: Isa,
    k: usize,
    a: Left<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    target: &'a Target,
    store: Store,
}

impl Task<'_> {
    fn run<B: Panels>(&self, b: &B, packed: &mut Packed) {
        let Kernel { width, rows: mr, .. } = self.kernel;
        let slabs = ROWS / mr;
        packed.b.resize(GROUP * BLOCK / 16, Line::ZERO);
        let pack_a = self.a.col != 1;
        if pack_a {
            packed.a.resize(slabs * BLOCK * SLAB / 16, Line::ZERO);
        }
        let panels: &mut [f32] = bytemuck::cast_slice_mut(&mut packed.b);
        let packed_a: &mut [f32] = bytemuck::cast_slice_mut(&mut packed.a);
        for start in self.cols.clone().step_by(GROUP) {
            let cols = start..(start + GROUP).min(self.cols.end);
            for p in (0..self.k.max(1)).step_by(BLOCK) {
                let block = p..(p + BLOCK).min(self.k);
                let len = block.len();
                if len > 0 {
                    b.pack(self.isa, block.clone(), cols.clone(), width, &mut panels[..]);
                }
                let add = p > 0 || self.store == Store::Add;
                for i in self.rows.clone().step_by(slabs * mr) {
                    let rows = i..(i + slabs * mr).min(self.rows.end);
                    if pack_a {
                        self.pack_a(rows.clone(), block.clone(), packed_a);
                    }
                    for (panel, j) in panels.chunks_exact(len.max(1) * width).zip(cols.clone().step_by(width))
                    {
                        let valid = width.min(cols.end - j);
                        for (slab, i) in rows.clone().step_by(mr).enumerate() {
                            let (data, row, col) = match pack_a {
                                true => (&packed_a[slab * BLOCK * SLAB..], 1, SLAB),
                                false => (&self.a.data[i * self.a.row + p..], self.a.row, 1),
                            };
                            let a = Left { data, row, col };
                            let count = mr.min(rows.end - i);
                            // SAFETY: the operands hold what the caller has asserted, and this worker's rows or columns of
                            // the product are written by no other.
                            #[allow(unsafe_code)]
                            unsafe {
                                self.kernel.run(count, len, a, panel, self.target, (i, j), valid, add);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The left operand's rows, a slab for each run of the kernel.
    fn pack_a(&self, rows: Range<usize>, block: Range<usize>, out: &mut [f32]) {
        let mr = self.kernel.rows;
        for (slab, i) in out.chunks_exact_mut(BLOCK * SLAB).zip(rows.clone().step_by(mr)) {
            pack_slab(self.a, i..(i + mr).min(rows.end), block.clone(), slab);
        }
    }
}
