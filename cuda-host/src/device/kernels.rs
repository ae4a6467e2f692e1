//! Kernels by name, and their sizes.

use crate::driver::Driver;
use crate::error::Result;

/// Codes of `codes.cuh`, and how many of the first are integers.
const KINDS: usize = 9;
const INTEGER_KINDS: usize = 6;

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

/// Rows of the batch that a block of a product with integers computes at once, and of one with floats.
pub(super) const INTEGER_TOKENS: usize = 8;
pub(super) const FLOAT_TOKENS: usize = 2;

/// Outputs of a matrix and rows of the batch that a block of a product on tensor cores computes, see `product_mma.cu`.
pub(super) const MMA_OUTPUTS: usize = 16;
pub(super) const MMA_TOKENS: usize = 32;

/// The most rows of `tiles_few`.
pub(super) const FEW_TOKENS: usize = 8;

/// The kernels of a device.
pub(super) struct Kernels<K> {
    pub(super) embed: K,
    pub(super) rmsnorm: K,
    pub(super) quantize: K,
    pub(super) rope_store: K,
    pub(super) attention: K,
    pub(super) route: K,
    pub(super) route_tiles: K,
    pub(super) experts_add: K,
    pub(super) gate: K,
    pub(super) change: K,
    pub(super) argmax: K,
    pub(super) gather: K,
    pub(super) int8: Products<K>,
    pub(super) f32: Products<K>,
    /// For matrices in tiles, by codes: those without are `None`.
    pub(super) tiles: Vec<Option<Tiles<K>>>,
}

/// The products of matrices in tiles with integers.
#[derive(Clone, Copy)]
pub(super) struct Tiles<K> {
    /// For one row, and one that blocks normalize.
    pub(super) one: K,
    pub(super) norm: K,
    /// For up to [`FEW_TOKENS`] rows, and for up to [`MMA_TOKENS`] in a block.
    pub(super) few: K,
    pub(super) many: K,
}

/// The products with one type of input.
pub(super) struct Products<K> {
    /// By codes: for one row, for many.
    pub(super) each: Vec<[K; 2]>,
    /// For more than `tokens` rows, on tensor cores, by codes. Those of one bit, which are in tiles, and floats have none.
    pub(super) mma: Vec<Option<K>>,
    /// For one row and codes that differ from matrix to matrix.
    pub(super) mixed: K,
    /// Rows of the batch at once, if there are many.
    pub(super) tokens: usize,
}

impl<K> Kernels<K> {
    pub(super) fn new<D: Driver<Kernel = K>>(driver: &D) -> Result<Kernels<K>> {
        let products = |input: &str, kinds: usize, mma_kinds: usize, tokens| -> Result<Products<K>> {
            let one = |kind| {
                let name = format!("product_{input}_{kind}");
                Ok([driver.kernel(&name)?, driver.kernel(&format!("{name}_many"))?])
            };
            let mixed = driver.kernel(&format!("product_{input}_mixed"))?;
            let mma = (0..mma_kinds).map(|kind| match kind {
                0 => Ok(None),
                _ => driver.kernel(&format!("product_{input}_{kind}_mma")).map(Some),
            });
            let mma = mma.collect::<Result<Vec<_>>>()?;
            Ok(Products { each: (0..kinds).map(one).collect::<Result<Vec<_>>>()?, mma, mixed, tokens })
        };
        let tiles = |bits: Option<usize>| -> Result<Option<Tiles<K>>> {
            let Some(bits) = bits else { return Ok(None) };
            let kernel = |rows| driver.kernel(&format!("tiles_{rows}_{bits}"));
            Ok(Some(Tiles {
                one: kernel("one")?,
                norm: kernel("norm")?,
                few: kernel("few")?,
                many: kernel("many")?,
            }))
        };
        let tiles = [Some(1), Some(2), Some(4), None, Some(8)].into_iter().map(tiles);
        Ok(Kernels {
            tiles: tiles.collect::<Result<Vec<_>>>()?,
            embed: driver.kernel("embed")?,
            rmsnorm: driver.kernel("rmsnorm")?,
            quantize: driver.kernel("quantize")?,
            rope_store: driver.kernel("rope_store")?,
            attention: driver.kernel("attention")?,
            route: driver.kernel("route")?,
            route_tiles: driver.kernel("route_tiles")?,
            experts_add: driver.kernel("experts_add")?,
            gate: driver.kernel("gate")?,
            change: driver.kernel("change")?,
            argmax: driver.kernel("argmax")?,
            gather: driver.kernel("gather")?,
            int8: products("int8", INTEGER_KINDS, INTEGER_KINDS, INTEGER_TOKENS)?,
            f32: products("f32", KINDS, 0, FLOAT_TOKENS)?,
        })
    }
}
