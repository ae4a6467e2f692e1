//! Matrices in tiles, see `kernels/tiles.cu`.

use crate::args::{MatrixArgs, RetileArgs};
use crate::driver::{Driver, LaunchSize, Memory};
use crate::error::Result;
use shohin_accelerator::{repack, staged_rows};
use shohin_core::model::Program;
use shohin_core::model::program::{Op, TensorId};
use shohin_core::quant::Matrix;
use shohin_core::quant::packed::{Codes, PackedFormat, Scales};
use std::sync::Arc;

/// Outputs of a tile.
pub(crate) const TILE: usize = 16;

/// Units of 32 columns of a chunk.
const CHUNK: usize = 8;

/// `scale_kind` of a matrix in tiles.
pub(crate) const IN_TILES: u32 = 3;

/// Matrices whose products are one launch at most.
pub(crate) const MOST: usize = 3;

/// Bytes of a block's memory that kernels use at most. Every GPU has more, see [`Driver::block_memory`]. A chunk of a single row
/// takes [`CHUNK_SHARED`].
pub(crate) const MAX_SHARED: usize = 40 << 10;
pub(crate) const CHUNK_SHARED: usize = 320;

/// Whether kernels for tiles compute with these weights: integers of 1 or 2 bits with a scale for 2, 4 or 8 units, or of 4 or 8
/// bits with one for each unit.
pub(crate) fn fits(packed: PackedFormat) -> bool {
    use Codes::{Bits1, Bits2, Bits2Unsigned, Bits4, Bits4Unsigned, Bits8};
    let group = match packed.codes {
        Bits1 | Bits2 | Bits2Unsigned => [64, 128, 256].contains(&packed.group),
        Bits4 | Bits4Unsigned | Bits8 => packed.group == 32,
        _ => false,
    };
    group && packed.scales == Scales::F16 && !packed.minima
}

/// Sums that the kernel for a single row makes of so many chunks of a tile, as in `tiles.cu`.
pub(crate) fn sums(chunks: usize) -> usize {
    chunks.div_ceil(if chunks > 8 { 2 } else { 1 })
}

/// Chunks of a row.
pub(crate) fn chunks(cols: usize) -> usize {
    cols.div_ceil(32 * CHUNK)
}

/// Matrices with the same input that are stored together: one after the other, or with tiles that alternate.
pub(crate) struct Together {
    pub(crate) tensors: Vec<TensorId>,
    pub(crate) alternate: bool,
}

/// Those of a program's matrices that are stored in tiles.
pub(crate) fn together(program: &Program, layouts: &[Option<PackedFormat>]) -> Vec<Together> {
    let mut found: Vec<Together> = Vec::new();
    let mut add = |tensors: &[TensorId], alternate| {
        found.push(Together { tensors: tensors.to_vec(), alternate });
    };
    let mut of_experts = Vec::new();
    for op in &program.body {
        match op {
            Op::Linear { outputs, .. } => {
                let ids: Vec<TensorId> = outputs.iter().map(|(weight, _)| *weight).collect();
                let same = |a: &TensorId, b: &TensorId| {
                    layouts[a.index()] == layouts[b.index()] && program.tensor(*a).rows.is_multiple_of(TILE)
                };
                ids.chunk_by(same).flat_map(|run| run.chunks(MOST)).for_each(|run| add(run, false));
            }
            Op::LinearAdd { weight, .. } => add(&[*weight], false),
            Op::LinearSwiglu { gate, up, .. } => add(&[*gate, *up], true),
            Op::Experts(e) => of_experts.extend([e.router, e.gate, e.up, e.down]),
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::Gated { .. }
            | Op::Bias { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Conv(_)
            | Op::DeltaNet(_)
            | Op::GatedNorm(_)
            | Op::SplitHeads { .. }
            | Op::Factor { .. }
            | Op::Hadamard(_)
            | Op::RopeStore { .. }
            | Op::Attention { .. }
            | Op::Exchange(_)
            | Op::Select { .. }
            | Op::Merge { .. } => {}
        }
    }
    if !program.head.is_empty() {
        add(&[program.output], false);
    }
    // Only those of a single product. Matrices of experts count twice, and are never in tiles.
    let mut uses = vec![0; layouts.len()];
    let all = found.iter().flat_map(|together| &together.tensors).chain(&of_experts).chain(&of_experts);
    all.for_each(|id| uses[id.index()] += 1);
    let tiled = |id: &TensorId| uses[id.index()] == 1 && layouts[id.index()].is_some_and(fits);
    found.retain(|together| together.tensors.iter().all(tiled));
    found
}

/// Codes and scales of matrices that are stored together.
pub(crate) struct Storage<D: Driver>([Memory<D>; 2]);

impl<D: Driver> Storage<D> {
    /// Room for the tiles of `rows` rows of each matrix.
    pub(crate) fn new(driver: &Arc<D>, packed: PackedFormat, rows: &[usize], cols: usize) -> Result<Self> {
        let tiles: usize = rows.iter().map(|rows| rows.div_ceil(TILE)).sum();
        let [codes, scales] = tile_bytes(packed, cols).map(|bytes| Memory::new(driver, bytes * tiles));
        Ok(Storage([codes?, scales?]))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|memory| memory.bytes() as u64).sum()
    }

    /// The arguments of a matrix that begins with tile `first` and has every `apart`th, from those of its packed rows.
    pub(crate) fn args(
        &self,
        packed: PackedFormat,
        args: MatrixArgs,
        first: usize,
        apart: usize,
    ) -> MatrixArgs {
        let [codes, scales] = tile_bytes(packed, 32 * args.units as usize);
        let [at, scales_at] = self.0.each_ref().map(Memory::address);
        MatrixArgs {
            codes: at + (first * codes) as u64,
            scales: scales_at + (first * scales) as u64,
            scale_words: apart as u32,
            scale_kind: IN_TILES,
            ..args
        }
    }
}

/// Bytes of the codes and of the scales of a row of tiles.
fn tile_bytes(packed: PackedFormat, cols: usize) -> [usize; 2] {
    let chunks = chunks(cols);
    [chunks * 512 * packed.codes.facts().bits, chunks * (32 * CHUNK / packed.group) * 2 * TILE]
}

/// Repacks the rows of a matrix, and puts them in tiles on the GPU. `args` are from [`Storage::args`], `packed_args` are those of
/// packed rows.
pub(crate) fn upload<D: Driver>(
    driver: &Arc<D>,
    packed: PackedFormat,
    matrix: Matrix<'_>,
    args: MatrixArgs,
    packed_args: MatrixArgs,
) -> Result<()> {
    let cols = 32 * args.units as usize;
    let words = [packed.code_words(cols), packed.scale_words(cols)];
    let most = staged_rows(matrix, TILE).min(args.rows as usize);
    let [codes, scales] = words.map(|words| Memory::new(driver, 4 * words * most));
    let (codes, scales, kernel) = (codes?, scales?, driver.kernel("retile")?);
    let mut done = 0;
    repack(packed, matrix, TILE, |code_words, scale_words| {
        driver.write(codes.address(), bytemuck::cast_slice(code_words))?;
        driver.write(scales.address(), bytemuck::cast_slice(scale_words))?;
        let count = code_words.len() / words[0];
        let retile = RetileArgs {
            codes: codes.address(),
            scales: scales.address(),
            tiles: args.codes,
            tile_scales: args.scales,
            rows: count as u32,
            units: args.units,
            scale_words: packed_args.scale_words,
            bits: packed.codes.facts().bits as u32,
            shift: (packed.group / 32).trailing_zeros(),
            first: (done / TILE) as u32 * args.scale_words,
            apart: args.scale_words,
            unused: 0,
        };
        done += count;
        let size =
            LaunchSize { grid: [count.div_ceil(TILE) as u32, 1, 1], threads: 256, shared: 0, cluster: 1 };
        driver.launch(kernel, size, bytemuck::bytes_of(&retile))
    })
}

/// Warps of a block of `tiles_one`: one block of each multiprocessor leaves registers for one of the next launch.
pub(crate) const ONE_WARPS: usize = 16;

/// How the blocks of `tiles_one` divide the tiles of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Tiles of a block at a time.
    pub(crate) tiles: usize,
    pub(crate) blocks: usize,
    /// Bytes of a block's memory.
    pub(crate) shared: usize,
}

impl Share {
    /// That of a matrix with so many chunks of columns. Blocks of gated products have whole units of 32 outputs. `None` if a
    /// row is too long for the kernel.
    pub(crate) fn of(tiles: usize, chunks: usize, gated: bool, processors: usize) -> Option<Share> {
        let (row, sums_of_tile) = (chunks * CHUNK_SHARED, 4 * TILE * 4 * sums(chunks));
        let unit = if gated { 4 } else { 1 };
        let most = (MAX_SHARED.checked_sub(row)? / sums_of_tile).min(ONE_WARPS) / unit * unit;
        if most == 0 {
            return None;
        }
        let each = tiles.div_ceil(processors.max(1)).next_multiple_of(unit).clamp(unit, most);
        let blocks = tiles.div_ceil(each).clamp(1, processors.max(1));
        Some(Share { tiles: each, blocks, shared: row + each * sums_of_tile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_divide_tiles_evenly() {
        let of = |rows: usize, cols: usize, gated| {
            Share::of(rows / TILE, chunks(cols), gated, 132).map(|s| (s.tiles, s.blocks, s.shared))
        };
        assert_eq!(of(2048, 2048, false), Some((1, 128, 8 * 320 + 8 * 256)));
        assert_eq!(of(6144, 4096, false), Some((3, 128, 16 * 320 + 3 * 8 * 256)));
        assert_eq!(of(2 * 12288, 4096, true), Some((12, 128, 16 * 320 + 12 * 8 * 256)));
        assert_eq!(of(151_936, 4096, false), Some((16, 132, 16 * 320 + 16 * 8 * 256)));
        assert_eq!(of(2 * 6144, 2048, true), Some((8, 96, 8 * 320 + 8 * 8 * 256)));
        assert_eq!(of(16, 96, false), Some((1, 1, 320 + 256)));
        // No more tiles than a block has memory for.
        assert_eq!(of(65_536, 14_336, false).map(|(tiles, ..)| tiles), Some(3));
        assert_eq!(of(4096, 65_536, false), None);
    }
}
