//! The kernels: their source, and one constructor per operation with its buffers, parameters and grid.
#![forbid(unsafe_code)]

use crate::driver::{Dispatch, Driver};
use crate::error::{Error, Result};
use crate::weights::Matrix;
use shohin_core::model::program::{Activation, Heads};
use shohin_core::quant::packed::{BLOCK, Codes, PackedFormat, Scales};
use shohin_core::{Activations, AttentionPattern, KvFormat};
use std::collections::BTreeMap;

/// The source of every kernel, in the Metal Shading Language.
pub const SOURCE: &str = concat!(
    include_str!("../kernels/prelude.metal"),
    include_str!("../kernels/weights.metal"),
    include_str!("../kernels/embed.metal"),
    include_str!("../kernels/linear.metal"),
    include_str!("../kernels/quantize.metal"),
    include_str!("../kernels/rmsnorm.metal"),
    include_str!("../kernels/route.metal"),
    include_str!("../kernels/cache.metal"),
    include_str!("../kernels/rope_store.metal"),
    include_str!("../kernels/attention.metal"),
    include_str!("../kernels/argmax.metal"),
);

/// Maximum number of parts of flash decoding.
pub(crate) const MAX_PARTS: usize = 32;

/// The fewest positions in a part, a multiple of a SIMD group's lanes.
const TILE: usize = 128;

/// Threadgroups per row of the first pass of argmax.
pub(crate) const ARGMAX_SHARES: usize = 64;

// The following are enums of the kernels, too.

/// SIMD groups of a threadgroup of a product, and rows of the matrix that each takes.
const LINEAR_SIMDS: usize = 2;
const LINEAR_ROWS: usize = 4;

/// SIMD groups of the kernels that take a row of the batch.
const ROW_SIMDS: usize = 4;

/// Maximum number of query heads of a threadgroup of attention.
const ATTENTION_SIMDS: usize = 8;

/// SIMD groups of argmax.
const ARGMAX_SIMDS: usize = 8;

/// Words of [`BatchShape`] in front of a kernel's other parameters.
const BATCH_WORDS: usize = 6;

/// What changes from run to run: `Batch` of the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchShape {
    /// Rows of the batch, or of a sequence in it.
    pub(crate) rows: usize,
    /// The first of them.
    pub(crate) first: usize,
    /// Its position in the sequence.
    pub(crate) position: usize,
    /// Positions in each part of flash decoding.
    pub(crate) span: usize,
    /// Positions that the cache holds.
    pub(crate) capacity: usize,
    /// Parts of flash decoding.
    pub(crate) parts: usize,
}

impl BatchShape {
    /// All `rows` rows of a batch.
    pub(crate) fn rows(rows: usize) -> BatchShape {
        BatchShape { rows, ..BatchShape::default() }
    }

    /// Rows of a sequence: attention of a single one is divided into parts.
    pub(crate) fn segment(rows: usize, first: usize, position: usize, capacity: usize) -> BatchShape {
        let positions = position + rows;
        let wanted = if rows == 1 { positions.div_ceil(TILE).min(MAX_PARTS) } else { 1 };
        let span = positions.div_ceil(wanted).next_multiple_of(TILE);
        BatchShape { rows, first, position, span, capacity, parts: positions.div_ceil(span) }
    }

    fn words(self) -> [u32; BATCH_WORDS] {
        // The last is the stride of the buffer of parts.
        let stride = if self.parts > 1 { MAX_PARTS } else { 0 };
        [self.rows, self.first, self.position, self.span, self.capacity, stride].map(|word| word as u32)
    }
}

/// Number of threadgroups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    /// This many for each tile of so many rows.
    PerTile(usize, usize),
    /// This many per row.
    EachRow(usize),
    /// This many for each tile of pairs of a row and an expert, of `pairs` in each row and this many `experts`.
    PerPairs { n: usize, tile: usize, pairs: usize, experts: usize },
    /// This many.
    Fixed(usize),
    /// This many for each row and each part of flash decoding.
    PerPart(usize),
}

impl Grid {
    fn size(self, shape: BatchShape) -> [u32; 3] {
        let size = match self {
            Grid::PerTile(n, tile) => [n, shape.rows.div_ceil(tile), 1],
            Grid::EachRow(n) => [n * shape.rows, 1, 1],
            // The pairs of a single row are tiles as they are.
            Grid::PerPairs { n, pairs, .. } if shape.rows == 1 => [n, pairs, 1],
            Grid::PerPairs { n, tile, pairs, experts } => [n, shape.rows * pairs / tile + experts, 1],
            Grid::Fixed(n) => [n, 1, 1],
            Grid::PerPart(n) => [n, shape.rows, shape.parts.max(1)],
        };
        size.map(|n| n as u32)
    }
}

/// A kernel whose buffers and constants are known.
pub(crate) struct Kernel<D: Driver> {
    pipeline: D::Pipeline,
    buffers: Vec<D::Buffer>,
    /// Those after [`BatchShape`].
    parameters: Vec<u32>,
    grid: Grid,
    simds: usize,
    /// Bytes of threadgroup memory.
    shared: usize,
}

impl<D: Driver> Kernel<D> {
    /// The dispatch for the rows of `shape`.
    pub(crate) fn dispatch(&self, shape: BatchShape) -> Dispatch<'_, D> {
        Dispatch {
            pipeline: &self.pipeline,
            buffers: self.buffers.iter().collect(),
            parameters: shape.words().into_iter().chain(self.parameters.iter().copied()).collect(),
            grid: self.grid.size(shape),
            simds: self.simds as u32,
            shared: self.shared as u32,
        }
    }
}

/// Pipelines by the name of their kernel, each made once.
pub(crate) struct Pipelines<D: Driver>(BTreeMap<String, D::Pipeline>);

impl<D: Driver> Pipelines<D> {
    pub(crate) fn new() -> Pipelines<D> {
        Pipelines(BTreeMap::new())
    }

    fn get(&mut self, driver: &D, name: &str) -> Result<D::Pipeline> {
        if let Some(made) = self.0.get(name) {
            return Ok(made.clone());
        }
        let made = driver.pipeline(name)?;
        self.0.insert(name.into(), made.clone());
        Ok(made)
    }
}

/// How a kernel's name says which codes it reads.
const fn codes_name(codes: Codes) -> &'static str {
    match codes {
        Codes::Bits1 => "1bit",
        Codes::Bits2 | Codes::Bits2Unsigned => "2bit",
        Codes::Bits4 | Codes::Bits4Unsigned => "4bit",
        Codes::Bits6 => "6bit",
        Codes::Bits8 => "8bit",
        Codes::Iq4 | Codes::Fp4 | Codes::Iq1 | Codes::Iq2 | Codes::Iq3Xxs | Codes::Iq3S => "levels",
        Codes::F16 => "f16",
        Codes::Bf16 => "bf16",
        Codes::F32 => "f32",
    }
}

/// The kernels of products have names such as `linear_1bit_plain_int8_8` and `swiglu_f16_1`, after the operation.
fn product_name(packed: PackedFormat, activations: Activations, tile: usize) -> String {
    let codes = codes_name(packed.codes);
    if packed.is_float() {
        return format!("{codes}_{tile}");
    }
    let simple = packed.scales == Scales::F16 && !packed.minima && !packed.has_half_units();
    let plain = simple && matches!(codes, "1bit" | "2bit" | "4bit" | "8bit");
    let scales = if plain { "plain" } else { "general" };
    let input = match packed.input(activations) {
        Activations::Int8 => "int8",
        Activations::F32 => "f32",
    };
    format!("{codes}_{scales}_{input}_{tile}")
}

/// The name of every kernel that a device may ask for.
pub fn kernel_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "quantize",
        "rmsnorm",
        "attention_combine",
        "argmax",
        "argmax_last",
        "route",
        "route_tiles",
        "experts_add",
        "gate",
        "change",
    ]
    .map(String::from)
    .to_vec();
    for kv in KvFormat::ALL {
        names.extend(["rope_store", "attention"].map(|op| format!("{op}_{}", kv.name())));
    }
    for (_, packed) in PackedFormat::pairs() {
        names.push(format!("embed_{}", codes_name(packed.codes)));
        for (activations, tile) in
            [Activations::Int8, Activations::F32].into_iter().flat_map(|a| [(a, 1), (a, 8)])
        {
            let name = product_name(packed, activations, tile);
            names.extend(["linear", "swiglu"].map(|op| format!("{op}_{name}")));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// `Matrix` of the kernels, without the batch.
fn matrix_words<B>(matrix: &Matrix<B>, stride: usize, output: Output, share: usize) -> Vec<u32> {
    let Matrix { rows, cols, packed, .. } = *matrix;
    let facts = packed.codes.facts();
    let kind = match packed.scales {
        Scales::F16 => 0,
        Scales::F32 => 1,
        Scales::Block => 2,
    };
    let half = usize::from(packed.has_half_units());
    let group_shift = packed.group.div_ceil(32).ilog2() as usize;
    let words = [
        rows,
        cols / 32,
        stride,
        output as usize,
        packed.scale_words(cols),
        kind,
        packed.parts(),
        group_shift,
        1 + half,
        BLOCK / packed.group,
        packed.block_words(),
    ];
    let mut words: Vec<u32> = words.map(|word| word as u32).to_vec();
    words.extend([facts.factor.cast_unsigned(), facts.offset.cast_unsigned()]);
    let levels = facts.levels.copied().unwrap_or_default().map(i8::cast_unsigned);
    words.extend(levels.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)));
    words.push(share as u32);
    words
}

/// Rows of a batch or pairs that products take at once, if there are several rows.
pub(crate) const TILE_ROWS: usize = 8;

/// The pairs of a row and an expert, of which products compute all; see `route.metal`.
pub(crate) struct Pairs<'b, B> {
    pub(crate) tiles: &'b B,
    pub(crate) order: &'b B,
    /// How many experts there are, and how many a row uses.
    pub(crate) experts: usize,
    pub(crate) used: usize,
    /// Pairs that read the same row of the input: those of a row, or 1 if the input has pairs, too.
    pub(crate) share: usize,
}

impl<B> Clone for Pairs<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Pairs<'_, B> {}

/// The choices of a mixture of experts; see `route.metal`.
pub(crate) struct Choices<B> {
    /// `(batch, used)`
    pub(crate) experts: B,
    /// `(batch, used)`
    pub(crate) weights: B,
    /// `(batch * used)`
    pub(crate) order: B,
    /// `(tiles)`
    pub(crate) tiles: B,
}

/// How a product is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Store = 0,
    Add = 1,
}

/// What happens to each element of a buffer.
pub(crate) enum Change<'b, B> {
    /// `(cols)` are added to each row.
    Bias(&'b B),
    /// `(rows, cols)` are added.
    Sum(&'b B),
    Factor(f32),
}

/// The input of a product: floats, or words and scales of integers.
pub(crate) type Input<'b, B> = [&'b B; 2];

/// The constructors of a device's kernels.
pub(crate) struct Kernels<'k, D: Driver> {
    pub(crate) driver: &'k D,
    pub(crate) pipelines: &'k mut Pipelines<D>,
}

impl<D: Driver> Kernels<'_, D> {
    fn make(
        &mut self,
        name: &str,
        buffers: &[&D::Buffer],
        parameters: Vec<u32>,
        grid: Grid,
        simds: usize,
        shared: usize,
    ) -> Result<Kernel<D>> {
        let pipeline = self.pipelines.get(self.driver, name)?;
        let buffers = buffers.iter().map(|&buffer| buffer.clone()).collect();
        // Metal wants a multiple of 16.
        let shared = shared.max(1).next_multiple_of(16);
        Ok(Kernel { pipeline, buffers, parameters, grid, simds, shared })
    }

    /// `x (rows, cols)` = the rows of `table` of the tokens.
    pub(crate) fn embed(
        &mut self,
        table: &Matrix<D::Buffer>,
        tokens: &D::Buffer,
        x: &D::Buffer,
    ) -> Result<Kernel<D>> {
        let name = format!("embed_{}", codes_name(table.packed.codes));
        let buffers = [&table.codes, &table.scales, tokens, x];
        self.make(&name, &buffers, matrix_words(table, 0, Output::Store, 0), Grid::EachRow(1), 2, 0)
    }

    /// `words` and `scale` = the rows `(rows, cols)` of `x` as integers, of which there are `each` per row of the batch.
    pub(crate) fn quantize(
        &mut self,
        (cols, each): (usize, usize),
        x: &D::Buffer,
        integers: &[D::Buffer; 2],
    ) -> Result<Kernel<D>> {
        let [words, scale] = integers;
        let units = vec![(cols / 32) as u32];
        self.make("quantize", &[x, words, scale], units, Grid::EachRow(each), ROW_SIMDS, 4 * ROW_SIMDS)
    }

    /// `y (rows, cols) = rmsnorm(x, weight)` of all rows, or of those that `gather` has the indices of; and the
    /// same as integers.
    pub(crate) fn rmsnorm(
        &mut self,
        cols: usize,
        eps: f32,
        x: &D::Buffer,
        weight: &D::Buffer,
        gather: Option<&D::Buffer>,
        y: &D::Buffer,
        integers: Option<&[D::Buffer; 2]>,
    ) -> Result<Kernel<D>> {
        let words =
            [(cols / 32) as u32, eps.to_bits(), u32::from(gather.is_some()), u32::from(integers.is_some())];
        let (codes, scale) = integers.map_or((y, y), |[codes, scale]| (codes, scale));
        let buffers = [x, weight, gather.unwrap_or(weight), y, codes, scale];
        self.make("rmsnorm", &buffers, words.to_vec(), Grid::EachRow(1), ROW_SIMDS, 4 * ROW_SIMDS)
    }

    /// `output (rows, stride) = x W^T`, or added to it, for tiles of `tile` rows or pairs: 1 or 8.
    pub(crate) fn linear(
        &mut self,
        matrix: &Matrix<D::Buffer>,
        activations: Activations,
        input: Input<'_, D::Buffer>,
        output: &D::Buffer,
        how: Output,
        (tile, pairs): (usize, Option<Pairs<'_, D::Buffer>>),
    ) -> Result<Kernel<D>> {
        let name = format!("linear_{}", product_name(matrix.packed, activations, tile));
        let (tiles, order) = pairs.map_or((output, output), |pairs| (pairs.tiles, pairs.order));
        let buffers = [&matrix.codes, &matrix.scales, input[0], input[1], output, tiles, order];
        let words = matrix_words(matrix, matrix.rows, how, pairs.map_or(0, |pairs| pairs.share));
        self.make(&name, &buffers, words, product_grid(matrix, tile, pairs), LINEAR_SIMDS, 0)
    }

    /// `output (rows, stride) = silu(x G^T) * (x U^T)`: both matrices have one layout.
    pub(crate) fn swiglu(
        &mut self,
        [gate, up]: [&Matrix<D::Buffer>; 2],
        activations: Activations,
        input: Input<'_, D::Buffer>,
        output: &D::Buffer,
        (tile, pairs): (usize, Option<Pairs<'_, D::Buffer>>),
    ) -> Result<Kernel<D>> {
        let name = format!("swiglu_{}", product_name(gate.packed, activations, tile));
        let (tiles, order) = pairs.map_or((output, output), |pairs| (pairs.tiles, pairs.order));
        let buffers =
            [&gate.codes, &gate.scales, &up.codes, &up.scales, input[0], input[1], output, tiles, order];
        let words = matrix_words(gate, gate.rows, Output::Store, pairs.map_or(0, |pairs| pairs.share));
        self.make(&name, &buffers, words, product_grid(gate, tile, pairs), LINEAR_SIMDS, 0)
    }

    /// `gate (rows, cols) = f(gate) * up`
    pub(crate) fn gate(
        &mut self,
        f: Activation,
        cols: usize,
        gate: &D::Buffer,
        up: &D::Buffer,
    ) -> Result<Kernel<D>> {
        let activation = match f {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::Relu2 => 2,
            Activation::Sigmoid => {
                return Err(Error::Operation {
                    found: "layers with a recurrent state",
                    expected: "attention in every layer; the CPU computes both",
                });
            }
        };
        let grid = Grid::PerTile(cols.div_ceil(LINEAR_SIMDS * 32), 1);
        self.make("gate", &[gate, up], vec![cols as u32, activation], grid, LINEAR_SIMDS, 0)
    }

    /// `x (rows, cols)`, changed element by element.
    pub(crate) fn change(
        &mut self,
        cols: usize,
        x: &D::Buffer,
        change: &Change<'_, D::Buffer>,
    ) -> Result<Kernel<D>> {
        let (kind, other, factor) = match *change {
            Change::Bias(bias) => (0, bias, 1.0),
            Change::Sum(other) => (1, other, 1.0),
            Change::Factor(factor) => (2, x, factor),
        };
        let grid = Grid::PerTile(cols.div_ceil(LINEAR_SIMDS * 32), 1);
        let words = vec![cols as u32, kind, factor.to_bits()];
        self.make("change", &[x, other], words, grid, LINEAR_SIMDS, 0)
    }

    /// The choice of each row's experts from `logits (rows, experts)`, and its pairs as tiles if there are several rows.
    pub(crate) fn route(
        &mut self,
        [experts, used]: [usize; 2],
        normalize: bool,
        logits: &D::Buffer,
        to: &Choices<D::Buffer>,
    ) -> Result<[Kernel<D>; 2]> {
        let words = || [experts, used, usize::from(normalize), TILE_ROWS].map(|n| n as u32).to_vec();
        let Choices { experts: chosen, weights, order, tiles } = to;
        let buffers = [logits, chosen, weights, order, tiles];
        let route = self.make("route", &buffers, words(), Grid::EachRow(1), 1, 0)?;
        let tiles = self.make("route_tiles", &buffers[1..], words(), Grid::Fixed(experts), 1, 0)?;
        Ok([route, tiles])
    }

    /// `to (rows, cols) +=` the results `from (rows, used, cols)` times `weights (rows, used)`.
    pub(crate) fn experts_add(
        &mut self,
        [cols, used]: [usize; 2],
        [weights, from, to]: [&D::Buffer; 3],
    ) -> Result<Kernel<D>> {
        let words = vec![cols as u32, used as u32];
        self.make("experts_add", &[weights, from, to], words, Grid::EachRow(1), ROW_SIMDS, 0)
    }

    /// Normalizes and rotates queries and keys, and stores keys and values.
    pub(crate) fn rope_store(
        &mut self,
        heads: &Heads,
        op: &RopeStore<D::Buffer>,
        kv: KvFormat,
        [keys, values]: &[D::Buffer; 2],
    ) -> Result<Kernel<D>> {
        let RopeStore { q, k, v, norm, angles, eps, halves, .. } = op;
        let [q_norm, k_norm] = norm.as_ref().map_or([angles, angles], |[q, k]| [q, k]);
        let words = heads_words(heads, [*eps, 1.0], norm.is_some(), *halves, AttentionPattern::Full);
        let buffers = [keys, values, q, k, v, q_norm, k_norm, angles];
        let grid = Grid::PerTile(heads.query + 2 * heads.kv, 1);
        self.make(&format!("rope_store_{}", kv.name()), &buffers, words, grid, 1, 4 * heads.dim)
    }

    /// Attention of `q (rows, query heads, dim)`, times a factor, to `out`, or to `parts (query heads, MAX_PARTS, dim + 2)`.
    pub(crate) fn attention(
        &mut self,
        heads: &Heads,
        (kv, pattern, query_scale): (KvFormat, AttentionPattern, f32),
        [keys, values]: &[D::Buffer; 2],
        [q, out, parts]: [&D::Buffer; 3],
    ) -> Result<Kernel<D>> {
        let share = heads.query / heads.kv;
        let simds = share.min(ATTENTION_SIMDS);
        let grid = Grid::PerPart(heads.kv * share.div_ceil(ATTENTION_SIMDS));
        let words = heads_words(heads, [0.0, query_scale], false, 0, pattern);
        let shared = 4 * simds * (heads.dim + 32);
        self.make(
            &format!("attention_{}", kv.name()),
            &[keys, values, q, out, parts],
            words,
            grid,
            simds,
            shared,
        )
    }

    /// Joins `parts` to `out`.
    pub(crate) fn attention_combine(
        &mut self,
        heads: &Heads,
        parts: &D::Buffer,
        out: &D::Buffer,
    ) -> Result<Kernel<D>> {
        let words = heads_words(heads, [0.0, 1.0], false, 0, AttentionPattern::Full);
        self.make("attention_combine", &[parts, out], words, Grid::Fixed(heads.query), 1, 0)
    }

    /// The most likely token of each row of `logits (rows, vocab)`: two kernels.
    pub(crate) fn argmax(
        &mut self,
        vocab: usize,
        logits: &D::Buffer,
        candidates: &D::Buffer,
        best: &D::Buffer,
    ) -> Result<[Kernel<D>; 2]> {
        let words = || vec![vocab as u32, ARGMAX_SHARES as u32];
        let (simds, shared) = (ARGMAX_SIMDS, 8 * ARGMAX_SIMDS);
        let grid = Grid::PerTile(ARGMAX_SHARES, 1);
        let first = self.make("argmax", &[logits, candidates], words(), grid, simds, shared)?;
        let last = self.make("argmax_last", &[candidates, best], words(), Grid::EachRow(1), simds, shared)?;
        Ok([first, last])
    }
}

fn product_grid<B>(matrix: &Matrix<B>, tile: usize, pairs: Option<Pairs<'_, B>>) -> Grid {
    let n = matrix.rows.div_ceil(LINEAR_SIMDS * LINEAR_ROWS);
    match pairs {
        Some(Pairs { experts, used, .. }) => Grid::PerPairs { n, tile, pairs: used, experts },
        None => Grid::PerTile(n, tile),
    }
}

/// `Heads` of the kernels, without the batch.
fn heads_words(
    heads: &Heads,
    [eps, query_scale]: [f32; 2],
    normed: bool,
    halves: usize,
    pattern: AttentionPattern,
) -> Vec<u32> {
    let [query, kv, dim] = [heads.query, heads.kv, heads.dim].map(|n| n as u32);
    let scale = query_scale / (heads.dim as f32).sqrt();
    let words = [query, kv, dim, eps.to_bits(), u32::from(normed), halves as u32, scale.to_bits()];
    [&words[..], &pattern.words()].concat()
}

/// The operands of [`Kernels::rope_store`].
pub(crate) struct RopeStore<B> {
    pub(crate) layer: usize,
    pub(crate) q: B,
    pub(crate) k: B,
    pub(crate) v: B,
    /// Weights `(head_dim)` for queries and for keys.
    pub(crate) norm: Option<[B; 2]>,
    /// `(rows of the batch, head_dim)`: cosines, then sines.
    pub(crate) angles: B,
    pub(crate) eps: f32,
    /// Element `i` is rotated with `i + halves` if `i` is less, elements after these in pairs.
    pub(crate) halves: usize,
}

#[cfg(test)]
mod tests;
