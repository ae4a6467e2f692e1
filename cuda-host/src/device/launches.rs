//! The launches of a program's operations.
//!
//! With many rows, an operation is a launch or two, and each buffer is rounded to integers when it is written. A single row
//! takes fewer launches: blocks of a product normalize their input themselves, queries and keys are rotated where attention
//! reads them, and blocks of gated products round their results.

use super::backend::CudaBackend;
use super::kernels::{FEW_TOKENS, FLOAT_TOKENS, INTEGER_TOKENS, MMA_OUTPUTS, MMA_TOKENS, THREADS};
use super::shape::{Shape, attention_blocks};
use crate::args::{
    AttentionArgs, ChangeArgs, EmbedArgs, ExpertsAddArgs, GateArgs, NormArgs, ProductArgs, RopeArgs,
    RouteArgs, TilesArgs,
};
use crate::driver::{Driver, LaunchSize};
use crate::error::Result;
use crate::tiles::{self, MOST, Share, TILE};
use bytemuck::bytes_of;
use core::num::NonZeroU32;
use shohin_accelerator::{Head, head};
use shohin_core::model::Program;
use shohin_core::model::program::{Activation, BufferId, Experts, Op, QkNorm, RopePairing, TensorId};
use shohin_core::{Activations, Error as CoreError};

/// The most columns of a row that products of matrices in tiles normalize: a block has memory for those of any matrix.
const TILE_NORM_COLS: usize = 8192;

/// Threads of a block of attention.
const ATTENTION_THREADS: u32 = 256;

/// Warps of a block of `tiles_few` and `tiles_many`.
const MANY_WARPS: usize = 8;

/// How a product is stored, see `product.cu`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Epilogue {
    Store = 0,
    Add = 1,
    Swiglu = 2,
    Experts = 3,
}

/// What happens to each element of a buffer, see `change.cu`.
#[derive(Clone, Copy)]
enum Change {
    /// `(cols)` are added to each row.
    Bias(TensorId),
    /// `(rows, cols)` are added.
    Sum(BufferId),
    Factor(f32),
}

/// The norm of a single row, which each block of a product computes.
#[derive(Clone, Copy)]
struct Norm {
    /// `(cols)`
    weight: u64,
    eps: f32,
}

/// Products with the same input.
#[derive(Clone, Copy)]
pub(super) struct Products<'p> {
    /// `(rows, cols)`
    x: BufferId,
    /// The first row that is read, if it is normalized.
    row: usize,
    norm: Option<Norm>,
    outputs: &'p [(TensorId, BufferId)],
    /// Where they are stored, if not in their buffers: `(rows, outputs)`.
    out: Option<u64>,
    epilogue: Epilogue,
    rows: usize,
    experts: Option<OfExperts>,
}

impl<'p> Products<'p> {
    pub(super) fn new(
        x: BufferId,
        outputs: &'p [(TensorId, BufferId)],
        epilogue: Epilogue,
        rows: usize,
    ) -> Products<'p> {
        Products { x, row: 0, norm: None, outputs, out: None, epilogue, rows, experts: None }
    }

    /// Stored at this address.
    pub(super) fn at(self, out: u64) -> Products<'p> {
        Products { out: Some(out), ..self }
    }
}

/// Products of the experts that rows use: with `tiles` of pairs of a row and an expert, or [`Epilogue::Experts`].
#[derive(Clone, Copy)]
struct OfExperts {
    tiles: Option<usize>,
    used: usize,
    /// Pairs that read the same row of the input.
    share: usize,
}

/// Whether nothing but operation `at + 1` reads what operation `at` passes to it: fused, they do not store it.
fn may_be_fused(program: &Program, at: usize) -> bool {
    let unread = |buffer: &BufferId| !program.reads_later(at + 2, *buffer);
    match &program.body[at] {
        Op::RmsNorm { out, .. } => unread(out),
        Op::RopeStore { q, k, v, .. } => [q, k, v].into_iter().all(unread),
        _ => false,
    }
}

impl<D: Driver> CudaBackend<D> {
    /// The type of the input that a matrix is multiplied by.
    fn input(&self, weight: TensorId) -> Result<Activations> {
        Ok(self.model.matrix(weight)?.1.input(self.options.activations))
    }

    /// Bytes of a row in a block's memory, for products with the matrix.
    fn shared(&self, weight: TensorId) -> Result<usize> {
        let cols = self.model.program().tensor(weight).cols;
        Ok(match self.input(weight)? {
            Activations::Int8 if self.model.matrix(weight)?.0.is_tiled() => {
                tiles::chunks(cols) * tiles::CHUNK_SHARED
            }
            Activations::Int8 => cols / 32 * (32 + 8),
            Activations::F32 => 4 * cols,
        })
    }

    /// Whether each block can normalize a single row for products with these matrices.
    fn normalizes(&self, weights: impl IntoIterator<Item = TensorId>) -> Result<bool> {
        for weight in weights {
            let tiled = self.model.matrix(weight)?.0.is_tiled();
            let cols = self.model.program().tensor(weight).cols;
            if self.shared(weight)? > tiles::MAX_SHARED || (tiled && cols > TILE_NORM_COLS) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The product with the output matrix of a row of the residual stream, if its blocks can normalize the row.
    pub(super) fn normalized_head<'p>(
        &self,
        outputs: &'p [(TensorId, BufferId)],
        row: usize,
    ) -> Result<Option<Products<'p>>> {
        let program = self.model.program();
        let Some(Head { x, weight, eps, .. }) = head(program)? else { return Ok(None) };
        // The blocks of others are too many.
        let tiled = self.model.matrix(program.output)?.0.is_tiled();
        if !tiled || self.input(program.output)? != Activations::Int8 || !self.normalizes([program.output])? {
            return Ok(None);
        }
        let norm = Some(Norm { weight: self.model.vector(weight)?, eps });
        Ok(Some(Products { norm, row, ..Products::new(x, outputs, Epilogue::Store, 1) }))
    }

    /// Products of matrices in tiles, of as many of `outputs` as are stored together: returns how many these are.
    fn tiles(&self, products: Products<'_>, outputs: &[(TensorId, BufferId)]) -> Result<usize> {
        let Products { x, row, norm, out, epilogue, rows, .. } = products;
        let gated = epilogue == Epilogue::Swiglu;
        let (first_id, to) = outputs[0];
        let first = self.model.matrix(first_id)?.0;
        let Some(kernels) = self.kernels.tiles.get(first.kind as usize).copied().flatten() else {
            return Err(
                CoreError::Device { problem: "CUDA has no kernels for codes that are in tiles" }.into()
            );
        };
        let chunks = tiles::chunks(32 * first.units as usize);
        let [words, meta] = self.integers(x);
        let mut args = TilesArgs {
            codes: first.codes,
            scales: first.scales,
            x: self.floats(x) + 4 * (row * self.model.program().cols(x)) as u64,
            words,
            meta,
            chunks: chunks as u32,
            units: first.units,
            tokens: rows as u32,
            groups: 256 / first.group,
            epilogue: epilogue as u32,
            factor: first.factor,
            offset: first.offset,
            offset_of_code: first.offset as f32 / first.factor as f32,
            ..TilesArgs::default()
        };
        let (mut count, mut tiles, mut end) = (0, 0, 0);
        for (id, to) in outputs.iter().take(if gated { 1 } else { MOST }) {
            let matrix = self.model.matrix(*id)?.0;
            if !self.model.together(first_id, *id) {
                break;
            }
            end += matrix.rows;
            tiles += (matrix.rows as usize).div_ceil(TILE);
            args.ends[count..].fill(end);
            args.out[count] = out.unwrap_or_else(|| self.floats(*to));
            count += 1;
        }
        if gated {
            (count, tiles) = (2, 2 * tiles);
        }
        args.tiles = tiles as u32;
        let processors = self.driver().multiprocessors();
        let share = if rows == 1 { Share::of(tiles, chunks, gated, processors) } else { None };
        if norm.is_some() && share.is_none() {
            return Err(CoreError::Device { problem: "a row that blocks normalize is too long" }.into());
        }
        let (kernel, size) = if let Some(share) = share {
            args.block_tiles = share.tiles as u32;
            args.sums_reciprocal = (1_u32 << 20).div_ceil(tiles::sums(chunks) as u32);
            args.per_column = 1.0 / (32 * first.units) as f32;
            let kernel = match norm {
                None => kernels.one,
                Some(norm) => {
                    (args.norm, args.eps) = (norm.weight, norm.eps);
                    if gated {
                        [args.rounded, args.rounded_meta] = self.integers(to);
                    }
                    kernels.norm
                }
            };
            // A multiprocessor that is done with the launch before may be free when the others are not. It would get two blocks, and
            // all wait for it: those whose input is not normalized take so much memory that it does not have room for two. A launch
            // that normalizes follows one of these.
            let shared = if norm.is_none() { self.driver().block_memory() } else { share.shared };
            let (grid, threads) = ([share.blocks as u32, 1, 1], 32 * tiles::ONE_WARPS as u32);
            (kernel, LaunchSize { grid, threads, shared: shared as u32, cluster: 1 })
        } else {
            let batches = rows.div_ceil(MMA_TOKENS);
            // More warps for a tile if there are few blocks. Sums depend on it, so that it does not depend on the matrix' rows.
            let split: usize = match batches {
                0..=4 => 4,
                5..=8 => 2,
                _ => 1,
            };
            args.split = split.trailing_zeros();
            let blocks = tiles.div_ceil(2 * MANY_WARPS / split);
            let (grid, threads) = ([blocks as u32, batches as u32, 1], 32 * MANY_WARPS as u32);
            let kernel = if rows > FEW_TOKENS { kernels.many } else { kernels.few };
            (kernel, LaunchSize { grid, threads, shared: 0, cluster: 1 })
        };
        self.driver().launch(kernel, size, bytes_of(&args))?;
        Ok(count)
    }

    /// As few launches as the matrices allow: those of one have the same input, and the same codes if there are many
    /// rows.
    pub(super) fn products(&self, products: Products<'_>) -> Result<()> {
        let Products { x, row, norm, outputs, out, epilogue, rows, experts } = products;
        let gated = epilogue == Epilogue::Swiglu;
        let mut rest = outputs;
        while let [(first, to), ..] = rest {
            let (matrix, input) = (self.model.matrix(*first)?.0, self.input(*first)?);
            if matrix.is_tiled() && input == Activations::Int8 {
                rest = &rest[self.tiles(products, rest)?..];
                continue;
            }
            let kernels = match input {
                Activations::Int8 => &self.kernels.int8,
                Activations::F32 => &self.kernels.f32,
            };
            // A single row that is normalized takes larger blocks, as all of them do that again. Those of gated products
            // have whole units of 32 outputs, which they round.
            let (warps, passes) = match norm {
                Some(_) => (8, if gated { 4 } else { 2 }),
                None => (4, 1),
            };
            // With fewer rows, the kernel without tensor cores reads the weights once as well.
            let mma = match kernels.mma.get(matrix.kind as usize) {
                Some(kernel) if rows > kernels.tokens && experts.is_none() => *kernel,
                _ => None,
            };
            let (block_outputs, block_rows) = match mma {
                Some(_) => (MMA_OUTPUTS, MMA_TOKENS),
                None => (warps * passes, kernels.tokens),
            };
            let [words, meta] = self.integers(x);
            let mut args = ProductArgs {
                x: self.floats(x) + 4 * (row * self.model.program().cols(x)) as u64,
                words,
                meta,
                tokens: rows as u32,
                epilogue: epilogue as u32,
                passes: passes as u32,
                ..ProductArgs::default()
            };
            let (mut count, mut blocks, mut mixed) = (0, 0, false);
            for (id, to) in rest {
                let (other, _) = self.model.matrix(*id)?;
                let differs = other.kind != matrix.kind;
                let stored_apart = input == Activations::Int8 && other.is_tiled() != matrix.is_tiled();
                if self.input(*id)? != input || (differs && rows > 1) || stored_apart {
                    break;
                }
                mixed |= differs;
                (args.m[count], args.out[count]) = (other, out.unwrap_or_else(|| self.floats(*to)));
                if count == 0 || !gated {
                    blocks += (other.rows as usize).div_ceil(block_outputs);
                }
                count += 1;
            }
            args.count = count as u32;
            let mut shared = 0;
            if let Some(norm) = norm {
                (args.norm, args.eps, shared) = (norm.weight, norm.eps, self.shared(*first)?);
                if gated {
                    [args.rounded, args.rounded_meta] = self.integers(*to);
                }
            }
            let mut tiles = if rows > 1 { rows.div_ceil(block_rows) } else { 1 };
            if let (Some(of), Some(choices)) = (experts, &self.choices) {
                args.order = choices.order.address();
                args.experts = choices.experts.address();
                args.weights = choices.weights.address();
                (args.share, args.used) = (of.share as u32, of.used as u32);
                if let Some(some) = of.tiles {
                    (args.tiles, tiles) = (choices.tiles.address(), some);
                }
            }
            let kernel = match (mma, kernels.each[matrix.kind as usize]) {
                (Some(mma), _) => mma,
                _ if mixed => kernels.mixed,
                (None, [one, _]) if rows == 1 => one,
                (None, [_, many]) => many,
            };
            let grid = [blocks as u32, tiles as u32, 1];
            let size = LaunchSize { grid, threads: 32 * warps as u32, shared: shared as u32, cluster: 1 };
            self.driver().launch(kernel, size, bytes_of(&args))?;
            rest = &rest[count..];
        }
        Ok(())
    }

    pub(super) fn rmsnorm(&self, op: &Op, rows: usize, list: u64) -> Result<()> {
        let Op::RmsNorm { x, weight, eps, out } = *op else { return Ok(()) };
        let cols = self.model.program().tensor(weight).cols as u32;
        let ([words, meta], weight) = (self.integers(out), self.model.vector(weight)?);
        let (x, out) = (self.floats(x), self.floats(out));
        let args = NormArgs { x, weight, rows: list, out, words, meta, cols, eps };
        // Threads wait for memory: as many as a row has work for.
        let threads = THREADS * (cols / THREADS).clamp(1, 4);
        self.launch(self.kernels.rmsnorm, [rows, 1, 1], threads, args)
    }

    /// A gated product whose halves were computed apart.
    fn gate(&self, f: Activation, gate: BufferId, up: BufferId, rows: usize) -> Result<()> {
        let units = rows * self.model.program().cols(up) / 32;
        let [words, meta] = self.integers(gate);
        let (gate, up) = (self.floats(gate), self.floats(up));
        let activation = match f {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::Relu2 => 2,
            Activation::Sigmoid => {
                return Err(CoreError::Device { problem: "CUDA does not compute layers with a state" }.into());
            }
        };
        let args = GateArgs { gate, up, words, meta, units: units as u32, activation };
        self.launch(self.kernels.gate, [units.div_ceil(4), 1, 1], THREADS, args)
    }

    /// `x (rows, cols)`, changed element by element.
    fn change(&self, x: BufferId, change: Change, rows: usize, cols: usize) -> Result<()> {
        let units = rows * cols / 32;
        let [words, meta] = self.integers(x);
        let (change, other, factor) = match change {
            Change::Bias(bias) => (0, self.model.vector(bias)?, 1.0),
            Change::Sum(other) => (1, self.floats(other), 1.0),
            Change::Factor(factor) => (2, 0, factor),
        };
        let (x, cols) = (self.floats(x), cols as u32);
        let args = ChangeArgs { x, other, words, meta, units: units as u32, cols, change, factor };
        self.launch(self.kernels.change, [units.div_ceil(4), 1, 1], THREADS, args)
    }

    fn rope_args(
        &self,
        layer: usize,
        (rotation, window): (usize, Option<NonZeroU32>),
        heads: [Option<BufferId>; 3],
        norm: Option<QkNorm>,
        eps: f32,
    ) -> Result<RopeArgs> {
        let program = self.model.program();
        let [q_norm, k_norm] = match norm {
            Some(norm) => [self.model.vector(norm.q)?, self.model.vector(norm.k)?],
            None => [0; 2],
        };
        let [q, k, v] = heads.map(|id| id.map_or(0, |id| self.floats(id)));
        let heads = program.heads;
        Ok(RopeArgs {
            caches: self.caches(window),
            q,
            k,
            v,
            q_norm,
            k_norm,
            positions: self.step.positions(),
            angles: self.step.angles(rotation, heads.dim),
            heads: heads.query as u32,
            kv_heads: heads.kv as u32,
            dim: heads.dim as u32,
            layer: layer as u32,
            halves: match (program.pairing, program.rotations.get(rotation)) {
                (RopePairing::Neox, Some(rope)) => rope.speeds().len() as u32,
                (RopePairing::Interleaved, _) | (_, None) => 0,
            },
            eps,
        })
    }

    /// Attention, with keys and values that it stores first if `rope` has them.
    fn attention(
        &self,
        rope: RopeArgs,
        out: BufferId,
        Shape { rows, parts, cluster_most }: Shape,
    ) -> Result<()> {
        let program = self.model.program();
        let (heads, [words, meta]) = (program.heads, self.integers(out));
        let args = AttentionArgs {
            rope,
            parts: self.parts.address(),
            ended: self.ended.address(),
            out: self.floats(out),
            words,
            meta,
            parts_count: parts as u32,
            clustered: u32::from(parts > 1 && parts <= cluster_most),
            cluster_most: cluster_most as u32,
            scale: program.query_scale * core::f32::consts::LOG2_E / (heads.dim as f32).sqrt(),
        };
        let blocks = attention_blocks(self.model.program());
        let grid = [blocks, rows, parts].map(|n| n as u32);
        let cluster = if args.clustered == 0 { 1 } else { parts as u32 };
        let size = LaunchSize { grid, threads: ATTENTION_THREADS, shared: 0, cluster };
        self.driver().launch(self.kernels.attention, size, bytes_of(&args))
    }

    /// The launches of an operation.
    pub(super) fn op(&self, op: &Op, shape: Shape) -> Result<()> {
        let (program, rows) = (self.model.program(), shape.rows);
        let heads = program.heads;
        match op {
            Op::Embed { table, out } => {
                let args = EmbedArgs {
                    table: self.model.matrix(*table)?.0,
                    tokens: self.step.tokens(),
                    x: self.floats(*out),
                };
                let cols = program.tensor(*table).cols;
                // Loads of a single row that do not wait for one another.
                let blocks = if rows == 1 { cols.div_ceil(THREADS as usize) } else { 1 };
                self.launch(self.kernels.embed, [rows, blocks, 1], THREADS, args)?;
                self.quantize(*out, rows, cols)
            }
            Op::RmsNorm { .. } => self.rmsnorm(op, rows, 0),
            Op::Linear { x, outputs } => {
                self.products(Products::new(*x, outputs, Epilogue::Store, rows))?;
                outputs
                    .iter()
                    .try_for_each(|(weight, out)| self.quantize(*out, rows, program.tensor(*weight).rows))
            }
            Op::LinearAdd { x, weight, to } => {
                self.products(Products::new(*x, &[(*weight, *to)], Epilogue::Add, rows))?;
                self.quantize(*to, rows, program.tensor(*weight).rows)
            }
            Op::LinearSwiglu { x, gate, up, out } => {
                self.products(Products::new(*x, &[(*gate, *out), (*up, *out)], Epilogue::Swiglu, rows))?;
                self.quantize(*out, rows, program.tensor(*gate).rows)
            }
            Op::Experts(experts) => self.experts(experts, rows),
            Op::Gated { activation, gate, up, .. } => self.gate(*activation, *gate, *up, rows),
            Op::Bias { x, bias } => self.change(*x, Change::Bias(*bias), rows, program.tensor(*bias).cols),
            Op::Add { x, to, cols } => self.change(*to, Change::Sum(*x), rows, *cols),
            Op::Scale { x, cols, factor } => self.change(*x, Change::Factor(*factor), rows, *cols),
            Op::Conv(_) | Op::DeltaNet(_) | Op::GatedNorm(_) | Op::SplitHeads { .. } => {
                Err(CoreError::Device { problem: "CUDA does not compute layers with a state" }.into())
            }
            Op::Factor { .. } | Op::Hadamard(_) => {
                Err(CoreError::Device { problem: "CUDA does not compute factors and rotations" }.into())
            }
            Op::Select { .. } | Op::Merge { .. } => {
                Err(CoreError::Device { problem: "CUDA does not compute mixtures of depths" }.into())
            }
            Op::Exchange(exchange) => self.exchange(*exchange, rows),
            Op::RopeStore { layer, rotation, q, k, v, norm, eps } => {
                let args =
                    self.rope_args(*layer, (*rotation, None), [Some(*q), Some(*k), Some(*v)], *norm, *eps)?;
                self.launch(self.kernels.rope_store, [heads.query + 2 * heads.kv, rows, 1], 32, args)
            }
            Op::Attention { layer, window, q, out } => {
                let rope = self.rope_args(*layer, (0, *window), [Some(*q), None, None], None, 0.0)?;
                self.attention(rope, *out, shape)
            }
        }
    }

    /// Chooses the experts of each row from the router's logits; pairs become tiles of at most `tile`. Returns how many.
    fn route(&self, experts: &Experts, rows: usize, tile: usize) -> Result<usize> {
        let count = self.model.program().tensor(experts.router).rows;
        let Some(choices) = &self.choices else { return Ok(0) };
        let args = RouteArgs {
            logits: self.floats(experts.probabilities),
            experts: choices.experts.address(),
            weights: choices.weights.address(),
            tiles: choices.tiles.address(),
            order: choices.order.address(),
            count: count as u32,
            used: experts.used as u32,
            rows: rows as u32,
            normalize: u32::from(experts.normalize),
            tile: tile as u32,
            unused: 0,
        };
        self.launch(self.kernels.route, [rows, 1, 1], 32, args)?;
        if rows == 1 {
            return Ok(experts.used);
        }
        self.launch(self.kernels.route_tiles, [count, 1, 1], 32, args)?;
        Ok(rows * experts.used / tile + count)
    }

    /// The most pairs of a tile of products with the matrix.
    fn tile(&self, weight: TensorId) -> Result<usize> {
        Ok(match self.input(weight)? {
            Activations::Int8 => INTEGER_TOKENS,
            Activations::F32 => FLOAT_TOKENS,
        })
    }

    /// A mixture of experts. Each expert computes the rows that use it; the weights of others are not read.
    fn experts(&self, e: &Experts, rows: usize) -> Result<()> {
        let program = self.model.program();
        let (used, cols) = (e.used, program.tensor(e.down).rows_each());
        self.products(Products::new(e.x, &[(e.router, e.probabilities)], Epilogue::Store, rows))?;
        let [tile, down_tile] = [self.tile(e.gate)?, self.tile(e.down)?];
        let mut tiles = self.route(e, rows, tile)?;
        let outputs = [(e.gate, e.gated), (e.up, e.gated)];
        let gated = Products::new(e.x, &outputs, Epilogue::Swiglu, rows);
        let of = OfExperts { tiles: Some(tiles), used, share: used };
        self.products(Products { experts: Some(of), ..gated })?;
        self.quantize(e.gated, rows * used, program.tensor(e.down).cols)?;
        if down_tile != tile {
            tiles = self.route(e, rows, down_tile)?;
        }
        let outputs = [(e.down, e.routed)];
        let down = Products::new(e.gated, &outputs, Epilogue::Store, rows);
        let of = OfExperts { tiles: Some(tiles), used, share: 1 };
        self.products(Products { experts: Some(of), ..down })?;
        self.add_experts(e, rows, cols)?;
        self.quantize(e.to, rows, cols)
    }

    /// Adds the rows of `routed`, times their weights.
    fn add_experts(&self, e: &Experts, rows: usize, cols: usize) -> Result<()> {
        let weights = self.choices.as_ref().map_or(0, |choices| choices.weights.address());
        let (from, to) = (self.floats(e.routed), self.floats(e.to));
        let args = ExpertsAddArgs { weights, from, to, cols: cols as u32, used: e.used as u32 };
        self.launch(self.kernels.experts_add, [rows, 1, 1], THREADS, args)
    }

    /// A mixture of experts of a single row, which is normalized by the products that read it.
    fn single_experts(&self, e: &Experts, x: BufferId, norm: Option<Norm>) -> Result<()> {
        let program = self.model.program();
        let (used, cols) = (e.used, program.tensor(e.down).rows_each());
        let router = [(e.router, e.probabilities)];
        let router = Products::new(x, &router, Epilogue::Store, 1);
        self.products(Products { norm, ..router })?;
        let tiles = Some(self.route(e, 1, 1)?);
        let gated = [(e.gate, e.gated), (e.up, e.gated)];
        let gated = Products::new(x, &gated, Epilogue::Swiglu, 1);
        let of = OfExperts { tiles, used, share: used };
        self.products(Products { norm, experts: Some(of), ..gated })?;
        let down = [(e.down, e.to)];
        let down = Products::new(e.gated, &down, Epilogue::Experts, 1);
        let of = OfExperts { tiles: None, used, share: 1 };
        self.products(Products { experts: Some(of), ..down })?;
        self.quantize(e.to, 1, cols)
    }

    /// The operations of the body from number `at` on for a single row, if the first two can be fused: returns how many they
    /// are, or 0. What passes between the two is not stored.
    fn fused(&self, at: usize, shape: Shape) -> Result<usize> {
        let program = self.model.program();
        if !may_be_fused(program, at) {
            return Ok(0);
        }
        match &program.body[at..] {
            [Op::RmsNorm { x: from, weight, eps, out }, next, ..] => {
                let norm = Some(Norm { weight: self.model.vector(*weight)?, eps: *eps });
                match next {
                    Op::Linear { x, outputs }
                        if x == out && self.normalizes(outputs.iter().map(|(weight, _)| *weight))? =>
                    {
                        let products = Products::new(*from, outputs, Epilogue::Store, 1);
                        self.products(Products { norm, ..products })?;
                        for (weight, out) in outputs {
                            self.quantize(*out, 1, program.tensor(*weight).rows)?;
                        }
                    }
                    Op::LinearSwiglu { x, gate, up, out: to } if x == out && self.normalizes([*gate])? => {
                        let outputs = [(*gate, *to), (*up, *to)];
                        let products = Products::new(*from, &outputs, Epilogue::Swiglu, 1);
                        self.products(Products { norm, ..products })?;
                    }
                    Op::Experts(e) if e.x == *out && self.normalizes([e.router, e.gate])? => {
                        self.single_experts(e, *from, norm)?;
                    }
                    _ => return Ok(0),
                }
                Ok(2)
            }
            [
                Op::RopeStore { layer, rotation, q, k, v, norm, eps },
                Op::Attention { layer: of, window, q: read, out },
                ..,
            ] if layer == of && q == read => {
                let rope = self.rope_args(
                    *layer,
                    (*rotation, *window),
                    [Some(*q), Some(*k), Some(*v)],
                    *norm,
                    *eps,
                )?;
                self.attention(rope, *out, shape)?;
                Ok(2)
            }
            _ => Ok(0),
        }
    }

    /// The launches of the program's body.
    pub(super) fn body(&self, shape: Shape) -> Result<()> {
        self.first_operations(self.model.program().body.len(), shape)
    }

    /// The launches of the operations that follow the body.
    pub(super) fn tail(&self, shape: Shape) -> Result<()> {
        self.model.program().tail.iter().try_for_each(|op| self.op(op, shape))
    }

    /// The launches of the first `end` operations of the body.
    pub(super) fn first_operations(&self, end: usize, shape: Shape) -> Result<()> {
        let body = &self.model.program().body[..end];
        let mut at = 0;
        while let Some(op) = body.get(at) {
            let fused = if shape.rows == 1 { self.fused(at, shape)? } else { 0 };
            if fused == 0 {
                self.op(op, shape)?;
            }
            at += fused.max(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::{Format, Gguf, ModelConfig};
    use shohin_tests::model::{Model, Shape, Stored};

    #[test]
    fn what_another_operation_reads_is_stored() {
        let file = Model::new(Shape { layers: 2, ..Shape::tiny() }, Stored::new(Format::Q1_0), 1);
        let file = file.to_vec().unwrap();
        let program = ModelConfig::from_gguf(&Gguf::parse(&file).unwrap()).unwrap().program();
        let found = |program: &Program| -> Vec<usize> {
            (0..program.body.len()).filter(|at| may_be_fused(program, *at)).collect()
        };
        let all = found(&program);
        // Two norms and attention in each layer.
        assert_eq!(all.len(), 6);
        for &at in &all {
            // A second operation that reads the same.
            let mut changed = program.clone();
            changed.body.insert(at + 2, program.body[at + 1].clone());
            assert!(!found(&changed).contains(&at), "operation {at}");
        }
    }
}
