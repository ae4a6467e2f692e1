//! One constructor per operation: its shader with the shapes filled in, its buffers, its grid.

use crate::gpu::Gpu;
use crate::kv::KvStorage;
use crate::packed;
use crate::shader::{Extensions, Source, part};
use crate::upload::Chunk;
use shohin_core::attention::{MAX_RANDOM, PATTERN_BLOCK};
use shohin_core::model::program::{Activation, Heads, RopePairing};
use shohin_core::{Activations, AttentionPattern};
use wgpu::{BindGroup, Buffer, ComputePass, ComputePipeline};

/// Words of the step buffer before the tokens; the first is the number of rows.
pub(crate) const STEP_HEAD: usize = 4;

/// Words of parameters for the rows of one sequence, see `sequence.wgsl`.
pub(crate) const SEQUENCE_WORDS: usize = 4;

/// Maximum number of parts of flash decoding.
pub(crate) const MAX_PARTS: usize = 32;

/// Positions per iteration of attention.
pub(crate) const TILE: usize = 128;

/// Workgroups of the first pass of argmax.
pub(crate) const ARGMAX_GROUPS: usize = 64;

/// Maximum number of tokens that top-k keeps.
pub(crate) const MAX_TOP: usize = 256;

/// Logits sorted by a workgroup.
pub(crate) const SORTED: usize = 1024;

/// Number of workgroups of a dispatch, as a function of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    /// A constant number.
    Fixed(usize),
    /// One per row.
    EachRow,
    /// This many per row.
    PerRow(usize),
    /// This many per tile of 32 rows.
    PerTile(usize),
    /// One per head and tile of attention's rows; a row of the batch has `share` of those.
    Attention { heads: usize, share: usize, tile: usize },
    /// The same, for each part of flash decoding.
    Parts { heads: usize, share: usize, tile: usize },
}

/// The shape of a dispatch: rows of the batch (or of a sequence in it), and the parts into which attention is
/// divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchShape {
    pub(crate) rows: usize,
    pub(crate) parts: usize,
}

impl Grid {
    fn size(self, shape: DispatchShape) -> [u32; 3] {
        let DispatchShape { rows, parts } = shape;
        let size = match self {
            Grid::Fixed(n) => [n, 1, 1],
            Grid::EachRow => [rows, 1, 1],
            Grid::PerRow(n) => [n, rows, 1],
            Grid::PerTile(n) => [n, rows.div_ceil(32), 1],
            Grid::Attention { heads, share, tile } => [heads, (rows * share).div_ceil(tile), 1],
            Grid::Parts { heads, share, tile } => [heads, (rows * share).div_ceil(tile), parts],
        };
        size.map(|n| n as u32)
    }
}

/// A dispatch, ready to be recorded.
#[derive(Clone)]
pub(crate) struct Kernel {
    pipeline: ComputePipeline,
    bindings: BindGroup,
    grid: Grid,
    /// Bytes of weights it reads.
    pub(crate) weight_bytes: u64,
}

impl Kernel {
    pub(crate) fn new(
        gpu: &Gpu,
        entry: &str,
        source: Source,
        buffers: &[(u32, &Buffer)],
        grid: Grid,
    ) -> Kernel {
        let pipeline = gpu.pipeline(entry, source.text());
        let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
            .iter()
            .map(|&(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let bindings = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(entry),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        Kernel { pipeline, bindings, grid, weight_bytes: 0 }
    }

    pub(crate) fn record(&self, pass: &mut ComputePass<'_>, shape: DispatchShape) {
        let [x, y, z] = self.grid.size(shape);
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bindings, &[]);
        pass.dispatch_workgroups(x, y, z);
    }
}

/// The input of matrix products, in the chosen precision.
#[derive(Clone)]
pub(crate) enum Acts {
    Int8 { words: Buffer, scale: Buffer },
    F32(Buffer),
}

impl Acts {
    /// Bytes for `units` of 32: of the words (or floats), and of the scales.
    pub(crate) fn bytes(activations: Activations, units: usize) -> [u64; 2] {
        match activations {
            Activations::Int8 => [32 * units as u64, 8 * units as u64],
            Activations::F32 => [128 * units as u64, 0],
        }
    }

    fn bindings(&self) -> Vec<(u32, &Buffer)> {
        match self {
            Acts::Int8 { words, scale } => vec![(2, words), (3, scale)],
            Acts::F32(act) => vec![(2, act)],
        }
    }

    /// Appends the code that writes it.
    fn put(&self, source: Source) -> Source {
        source.part(match self {
            Acts::Int8 { .. } => part!("act_int8"),
            Acts::F32(_) => part!("act_f32"),
        })
    }
}

/// How a product is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Store,
    Add,
    Swiglu,
}

/// The constants of the attention shaders.
fn head_constants(heads: &Heads, source: Source) -> Source {
    source
        .u32("HEADS", heads.query)
        .u32("KV_HEADS", heads.kv)
        .u32("HEAD_DIM", heads.dim)
        .u32("QUADS", heads.dim / 4)
        .u32("MAX_PARTS", MAX_PARTS)
        .f32("LOWEST", -1e30)
}

/// Query heads per key-value head.
const fn share(heads: &Heads) -> usize {
    heads.query / heads.kv
}

/// Keys and values of one layer of a sequence.
pub(crate) struct Layer<'c> {
    pub(crate) storage: &'static KvStorage,
    pub(crate) capacity: usize,
    pub(crate) attention: AttentionPattern,
    /// What scores are multiplied by.
    pub(crate) score_scale: f32,
    pub(crate) keys: &'c Buffer,
    pub(crate) values: &'c Buffer,
    /// Parameters of the sequence's rows in the batch.
    pub(crate) sequence: &'c Buffer,
}

/// Columns of a buffer, from `first` on, with `stride` per row.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) buffer: Buffer,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

/// Looks up rows of the embedding: `x (tokens, cols)`.
pub(crate) fn embed(gpu: &Gpu, cols: usize, chunk: &Chunk, step: &Buffer, x: &Buffer) -> Kernel {
    let source = Source::default().u32("STEP_TOKENS", STEP_HEAD).u32("FIRST_ROW", chunk.first_row);
    let source = packed::shader(chunk.packed, source, chunk.rows, cols).part(part!("embed"));
    let mut buffers = chunk.bindings();
    buffers.extend([(4, x), (5, step)]);
    Kernel::new(gpu, "embed", source, &buffers, Grid::EachRow)
}

/// The rows that an operation reads.
#[derive(Clone, Copy)]
pub(crate) enum RowSource<'b> {
    All,
    ReadOut(&'b Buffer),
}

/// `acts (rows, cols) = factor * rmsnorm(x, weight)`
pub(crate) fn rmsnorm(
    gpu: &Gpu,
    cols: usize,
    [eps, factor]: [f32; 2],
    rows: RowSource<'_>,
    x: &Buffer,
    weight: &Buffer,
    acts: &Acts,
) -> Kernel {
    let source = Source::default().u32("UNITS", cols / 32).f32("EPS", eps).f32("FACTOR", factor);
    let mut buffers = vec![(0, x), (1, weight)];
    let rows = match rows {
        RowSource::All => part!("rows_all"),
        RowSource::ReadOut(list) => {
            buffers.push((5, list));
            part!("rows_read_out")
        }
    };
    let source = acts.put(source.group(gpu.extensions(), 128)).part(rows).part(part!("rmsnorm"));
    buffers.extend(acts.bindings());
    Kernel::new(gpu, "rmsnorm", source, &buffers, Grid::EachRow)
}

/// `acts (tokens, cols) = x`
pub(crate) fn quantize(gpu: &Gpu, cols: usize, x: &Buffer, acts: &Acts) -> Kernel {
    let source = acts.put(Source::default().u32("UNITS", cols / 32)).part(part!("quantize"));
    let mut buffers = vec![(0, x)];
    buffers.extend(acts.bindings());
    Kernel::new(gpu, "quantize", source, &buffers, Grid::PerRow((cols / 32).div_ceil(64)))
}

/// `gate (tokens, cols) = f(gate) * up`
pub(crate) fn gate(gpu: &Gpu, f: Activation, cols: usize, gate: &Buffer, up: &Buffer) -> Kernel {
    let gated = match f {
        Activation::Silu => part!("swiglu"),
        Activation::GeluTanh => part!("gelu"),
        Activation::Relu2 => part!("relu2"),
        Activation::Sigmoid => part!("sigmoid"),
    };
    let source = Source::default().u32("PAIRS", cols / 2).part(gated).part(part!("gate"));
    let grid = Grid::PerRow((cols / 2).div_ceil(64));
    Kernel::new(gpu, "gate", source, &[(0, gate), (1, up)], grid)
}

/// What happens to each element of a view.
pub(crate) enum Element<'b> {
    /// `x += bias`, of `(cols)`
    Bias(&'b Buffer),
    /// `x += other`, of `(tokens, cols)`
    Sum(&'b View),
    /// `x *= factor`
    Factor(f32),
}

/// Changes `x (tokens, cols)`.
pub(crate) fn elementwise(gpu: &Gpu, cols: usize, x: &View, change: &Element<'_>) -> Kernel {
    let source = Source::default().u32("COLS", cols).u32("FIRST", x.first).u32("STRIDE", x.stride);
    let mut buffers = vec![(0, &x.buffer)];
    let source = match *change {
        Element::Bias(bias) => {
            buffers.push((1, bias));
            source.part(part!("element_bias"))
        }
        Element::Sum(other) => {
            buffers.push((1, &other.buffer));
            let source = source.u32("OTHER_FIRST", other.first).u32("OTHER_STRIDE", other.stride);
            source.part(part!("element_sum"))
        }
        Element::Factor(factor) => source.f32("FACTOR", factor).part(part!("element_factor")),
    };
    let grid = Grid::PerRow(cols.div_ceil(64));
    Kernel::new(gpu, "elementwise", source.part(part!("elementwise")), &buffers, grid)
}

/// A packed matrix, its input and its output.
pub(crate) struct Product<'b> {
    pub(crate) cols: usize,
    pub(crate) chunk: &'b Chunk,
    pub(crate) acts: &'b Acts,
    pub(crate) output: Output,
    pub(crate) into: &'b View,
}

impl Product<'_> {
    fn source(&self, ext: Extensions) -> Source {
        let View { first, stride, .. } = *self.into;
        let source =
            Source::default().u32("OUTPUT_STRIDE", stride).u32("FIRST_ROW", first + self.chunk.first_row);
        let source = packed::shader(self.chunk.packed, source, self.chunk.rows, self.cols);
        let source = match self.acts {
            Acts::Int8 { .. } => source.dot4(ext).part(part!("input_int8")),
            Acts::F32(_) => source.part(part!("input_f32")),
        };
        match self.output {
            Output::Store => source.bool("ADD", false).part(part!("output_plain")),
            Output::Add => source.bool("ADD", true).part(part!("output_plain")),
            Output::Swiglu => source.part(part!("swiglu")).part(part!("output_swiglu")),
        }
    }

    fn kernel(&self, gpu: &Gpu, entry: &str, source: Source, step: Option<&Buffer>, grid: Grid) -> Kernel {
        let mut buffers = self.chunk.bindings();
        buffers.push((4, &self.into.buffer));
        buffers.extend(self.acts.bindings());
        buffers.extend(step.map(|step| (5, step)));
        let mut kernel = Kernel::new(gpu, entry, source, &buffers, grid);
        kernel.weight_bytes = self.chunk.packed.bytes(self.chunk.rows, self.cols);
        kernel
    }

    /// Each row by itself: for one row.
    pub(crate) fn gemv(&self, gpu: &Gpu) -> Kernel {
        let ext = gpu.extensions();
        let halves = self.chunk.packed.has_half_units();
        let source = self.source(ext).group(ext, 64).part(match self.acts {
            Acts::Int8 { .. } => part!("gemv_int8"),
            Acts::F32(_) if halves || self.chunk.packed.is_float() => part!("gemv_float"),
            Acts::F32(_) => part!("gemv_f32"),
        });
        self.kernel(gpu, "gemv", source, None, Grid::PerRow(self.chunk.rows.div_ceil(4)))
    }

    /// Tiles of 32 rows.
    pub(crate) fn gemm(&self, gpu: &Gpu, step: &Buffer) -> Kernel {
        let source = self.source(gpu.extensions()).part(match self.acts {
            Acts::Int8 { .. } => part!("gemm_int8"),
            Acts::F32(_) => part!("gemm_f32"),
        });
        self.kernel(gpu, "gemm", source, Some(step), Grid::PerTile(self.chunk.rows.div_ceil(64)))
    }
}

/// The arguments of [`rope`].
pub(crate) struct RopeStore<'b> {
    pub(crate) q: &'b View,
    pub(crate) k: &'b View,
    pub(crate) v: &'b View,
    /// Weights `(head_dim)` of the norms of queries and of keys.
    pub(crate) norm: Option<[&'b Buffer; 2]>,
    pub(crate) eps: f32,
    pub(crate) pairing: RopePairing,
    /// Pairs of a head that are rotated, the first ones.
    pub(crate) pairs: usize,
    /// The rotation, whose angles `step` has after those of the others before it.
    pub(crate) rotation: usize,
    pub(crate) step: &'b Buffer,
    /// Maximum number of rows of a batch.
    pub(crate) batch: usize,
}

/// Normalizes and rotates queries and keys, which share one buffer with the values; stores keys and values in
/// the cache.
pub(crate) fn rope(gpu: &Gpu, heads: &Heads, layer: &Layer<'_>, op: &RopeStore<'_>) -> Kernel {
    let source = head_constants(heads, Source::default())
        .u32("CAPACITY", layer.capacity)
        .u32("STRIDE", op.q.stride)
        .u32("Q_FIRST", op.q.first)
        .u32("K_FIRST", op.k.first)
        .u32("V_FIRST", op.v.first)
        .u32("PAIRS", op.pairs)
        .u32("STEP_ANGLES", STEP_HEAD + op.batch + op.rotation * op.batch * heads.dim)
        .f32("EPS", op.eps)
        .group(gpu.extensions(), 64)
        .part(part!("sequence"))
        .part(layer.storage.put)
        .part(match op.pairing {
            RopePairing::Neox => part!("rope_neox"),
            RopePairing::Interleaved => part!("rope_interleaved"),
        });
    let mut buffers =
        vec![(0, &op.q.buffer), (2, layer.keys), (3, layer.values), (5, op.step), (6, layer.sequence)];
    let norm = match op.norm {
        Some([q, k]) => {
            buffers.extend([(1, q), (4, k)]);
            part!("head_norm")
        }
        None => part!("head_plain"),
    };
    let grid = Grid::PerRow(heads.query + 2 * heads.kv);
    Kernel::new(gpu, "rope", source.part(norm).part(part!("rope")), &buffers, grid)
}

/// Rows of attention per workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionTile {
    /// Those of one row of the batch.
    One,
    /// Those of several.
    Many,
}

fn attention_source(gpu: &Gpu, heads: &Heads, layer: &Layer<'_>, q: &View, tile: usize) -> Source {
    let native = gpu.extensions().f16;
    let source = head_constants(heads, Source::default())
        .u32("CAPACITY", layer.capacity)
        .u32("ROWS_TILE", tile)
        .u32("Q_FIRST", q.first)
        .u32("Q_STRIDE", q.stride)
        .f32("SCORE_SCALE", layer.score_scale)
        .group(gpu.extensions(), TILE)
        .part(part!("sequence"))
        .part(if native { layer.storage.get_native } else { layer.storage.get });
    pattern(layer.attention, source)
}

/// The positions that rows see.
fn pattern(pattern: AttentionPattern, source: Source) -> Source {
    const DILATED: u32 = 0;
    const STRIDED: u32 = 1;
    const BIG_BIRD: u32 = 2;
    let (kind, blocks, apart, global, random) = match pattern {
        AttentionPattern::Full => return source.part(part!("pattern_full")),
        AttentionPattern::Window { window, sinks } => {
            let source = source.u32("WINDOW", window as usize).u32("SINKS", sinks as usize);
            return source.part(part!("pattern_window"));
        }
        AttentionPattern::Dilated { blocks, step } => (DILATED, blocks, step, 0, 0),
        AttentionPattern::Strided { blocks, stride } => (STRIDED, blocks, stride, 0, 0),
        AttentionPattern::BigBird { blocks, global, random } => (BIG_BIRD, blocks, 1, global, random),
    };
    let constants = [
        ("PATTERN", kind),
        ("DILATED", DILATED),
        ("STRIDED", STRIDED),
        ("PATTERN_BLOCK", PATTERN_BLOCK as u32),
        ("MAX_RANDOM", MAX_RANDOM),
        ("BLOCKS", blocks),
        ("BLOCKS_APART", apart),
        ("BLOCKS_GLOBAL", global),
        ("BLOCKS_RANDOM", random),
    ];
    let source = constants.into_iter().fold(source, |source, (name, value)| {
        // More than any context has; sums do not overflow.
        source.u32(name, value.min(1 << 24) as usize)
    });
    source.part(part!("pattern_blocks"))
}

/// Attention of every row over all positions it sees, written to `acts`.
pub(crate) fn attention(
    gpu: &Gpu,
    heads: &Heads,
    layer: &Layer<'_>,
    tile: AttentionTile,
    q: &View,
    acts: &Acts,
) -> Kernel {
    let tile = if tile == AttentionTile::Many { 8 } else { share(heads).min(8) };
    let source = acts.put(attention_source(gpu, heads, layer, q, tile));
    let source = source.part(part!("attention")).part(part!("attention_whole"));
    let mut buffers = vec![(0, layer.keys), (1, layer.values), (4, &q.buffer), (6, layer.sequence)];
    buffers.extend(acts.bindings());
    let grid = Grid::Attention { heads: heads.kv, share: share(heads), tile };
    Kernel::new(gpu, "attention", source, &buffers, grid)
}

/// The same for one row, with the positions divided into parts.
pub(crate) fn attention_part(
    gpu: &Gpu,
    heads: &Heads,
    layer: &Layer<'_>,
    q: &View,
    parts: &Buffer,
) -> Kernel {
    let tile = share(heads).min(8);
    let source = attention_source(gpu, heads, layer, q, tile);
    let source = source.part(part!("attention")).part(part!("attention_part"));
    let buffers = [(0, layer.keys), (1, layer.values), (2, parts), (4, &q.buffer), (6, layer.sequence)];
    let grid = Grid::Parts { heads: heads.kv, share: share(heads), tile };
    Kernel::new(gpu, "attention", source, &buffers, grid)
}

/// Merges the parts into `acts`.
pub(crate) fn attention_combine(
    gpu: &Gpu,
    heads: &Heads,
    parts: &Buffer,
    sequence: &Buffer,
    acts: &Acts,
) -> Kernel {
    let source = acts.put(head_constants(heads, Source::default()).part(part!("sequence")));
    let source = source.part(part!("attention_combine"));
    let mut buffers = vec![(0, parts), (6, sequence)];
    buffers.extend(acts.bindings());
    Kernel::new(gpu, "attention_combine", source, &buffers, Grid::Fixed(heads.query))
}

/// The two passes of argmax over `logits (rows, vocab)`, through `candidates (rows, ARGMAX_GROUPS)` to `best (rows)`.
pub(crate) fn argmax(
    gpu: &Gpu,
    vocab: usize,
    logits: &Buffer,
    candidates: &Buffer,
    best: &Buffer,
) -> [Kernel; 2] {
    let source =
        || Source::default().u32("VOCAB", vocab).u32("ARGMAX_GROUPS", ARGMAX_GROUPS).part(part!("argmax"));
    [
        Kernel::new(gpu, "argmax", source(), &[(0, logits), (1, candidates)], Grid::PerRow(ARGMAX_GROUPS)),
        Kernel::new(gpu, "argmax_last", source(), &[(1, candidates), (2, best)], Grid::EachRow),
    ]
}

/// The `top` most likely tokens of the first row of `logits (rows, vocab)`, in as many rounds as needed.
/// Returns the index of the buffer with the result.
pub(crate) fn topk(
    gpu: &Gpu,
    vocab: usize,
    top: usize,
    logits: &Buffer,
    top_k: &[Buffer; 2],
) -> (Vec<Kernel>, usize) {
    let mut kernels = Vec::new();
    let (mut count, mut into) = (vocab, 0);
    loop {
        let first = kernels.is_empty();
        let part = if first { part!("topk_logits") } else { part!("topk_kept") };
        let source = Source::default().u32("COUNT", count).u32("TOP", top).part(part).part(part!("topk"));
        let from = if first { logits } else { &top_k[1 - into] };
        let groups = count.div_ceil(SORTED);
        kernels.push(Kernel::new(gpu, "topk", source, &[(0, from), (1, &top_k[into])], Grid::Fixed(groups)));
        if groups == 1 {
            return (kernels, into);
        }
        count = groups * top;
        into = 1 - into;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;
    use shohin_core::quant::packed::PackedFormat;
    use shohin_core::quant::unpack;
    use shohin_tests::{Random, weights};
    use wgpu::BufferUsages;

    async fn open(extensions: bool) -> Gpu {
        let options = GpuOptions {
            name: std::env::var("SHOHIN_GPU").ok(),
            software: true,
            subgroups: extensions,
            f16: extensions,
            packed_dot: extensions,
            ..GpuOptions::default()
        };
        Gpu::open(&options).await.expect("a GPU, if only in software")
    }

    async fn upload(gpu: &Gpu, bytes: &[u8]) -> Buffer {
        let buffer = gpu.storage("test", bytes.len() as u64).await.expect("a buffer");
        gpu.queue.write_buffer(&buffer, 0, bytes);
        buffer
    }

    /// Runs kernels over `rows` rows and returns the first `count` words of `from`.
    async fn run(gpu: &Gpu, kernels: &[Kernel], rows: usize, from: &Buffer, count: usize) -> Vec<u32> {
        let size = 4 * count as u64;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let read = gpu.buffer("read", size, usage).await.expect("a buffer");
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            kernels.iter().for_each(|kernel| kernel.record(&mut pass, DispatchShape { rows, parts: 1 }));
        }
        encoder.copy_buffer_to_buffer(from, 0, &read, 0, size);
        gpu.queue.submit([encoder.finish()]);
        let mut bytes = vec![0; size as usize];
        gpu.read(&read, &mut bytes).await.unwrap_or_else(|e| panic!("{e}: {:?}", gpu.report()));
        bytemuck::pod_collect_to_vec(&bytes)
    }

    fn as_floats(words: Vec<u32>) -> Vec<f32> {
        words.into_iter().map(f32::from_bits).collect()
    }

    /// Runs a product for `tokens` tokens and returns `(tokens, rows)`.
    async fn multiply(gpu: &Gpu, chunk: &Chunk, cols: usize, acts: &Acts, tokens: usize) -> Vec<f32> {
        let count = tokens * chunk.rows;
        let buffer = gpu.storage("output", 4 * count as u64).await.expect("a buffer");
        let into = &View { buffer, first: 0, stride: chunk.rows };
        let step = upload(gpu, bytemuck::cast_slice(&[tokens as u32, 0, 0, 0])).await;
        let product = Product { cols, chunk, acts, output: Output::Store, into };
        let kernel = if tokens == 1 { product.gemv(gpu) } else { product.gemm(gpu, &step) };
        as_floats(run(gpu, &[kernel], tokens, &into.buffer, count).await)
    }

    #[test]
    fn halves_that_were_computed_apart_are_gated() {
        pollster::block_on(async {
            let (gpu, cols, tokens) = (open(true).await, 160, 3);
            let gates: Vec<f32> = (0..tokens * cols).map(|i| 0.4 * (i as f32 - 240.0)).collect();
            let ups: Vec<f32> = (0..tokens * cols).map(|i| (i % 7) as f32 - 3.0).collect();
            let [to, from] = [
                upload(&gpu, bytemuck::cast_slice(&gates)).await,
                upload(&gpu, bytemuck::cast_slice(&ups)).await,
            ];
            let kernel = gate(&gpu, Activation::Silu, cols, &to, &from);
            let got = as_floats(run(&gpu, &[kernel], tokens, &to, tokens * cols).await);
            for ((got, gate), up) in got.iter().zip(gates).zip(ups) {
                let want = f64::from(gate) / (1.0 + f64::from(-gate).exp()) * f64::from(up);
                assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs() + 1e-30, "{gate} {up}: {got}");
            }
        });
    }

    /// Every format in every layout that can hold it, times integers and floats, for one token and for
    /// several, against products of core's weights in 64-bit floats.
    #[test]
    fn products_are_those_of_cores_weights() {
        let (rows, cols, most) = (70, 768, 35);
        let mut random = Random::new(5);
        let integers: Vec<i8> = (0..most * cols).map(|_| (random.below(255) as i32 - 127) as i8).collect();
        let scales: Vec<f32> = (0..most * cols / 32).map(|_| 0.01 * (1.5 + random.unit())).collect();
        let sum = |q: &[i8]| q.iter().map(|&q| f32::from(q)).sum();
        let with_sums: Vec<[f32; 2]> =
            scales.iter().zip(integers.chunks(32)).map(|(&scale, q)| [scale, sum(q)]).collect();
        let floats: Vec<f32> = (0..most * cols).map(|i| f32::from(integers[i]) * scales[i / 32]).collect();
        for extensions in [true, false] {
            pollster::block_on(async {
                let gpu = open(extensions).await;
                let upload = async |bytes: &[u8]| upload(&gpu, bytes).await;
                let int8 = Acts::Int8 {
                    words: upload(bytemuck::cast_slice(&integers)).await,
                    scale: upload(bytemuck::cast_slice(&with_sums)).await,
                };
                let float = Acts::F32(upload(bytemuck::cast_slice(&floats)).await);
                // Without extensions all share the same few replacements.
                let every = if extensions { 1 } else { 4 };
                for (format, packed) in PackedFormat::pairs().into_iter().step_by(every) {
                    let mut bytes = vec![0; rows * format.row_bytes(cols).expect("whole blocks")];
                    weights::fill(format, 0.3, &mut random, &mut bytes);
                    let mut w = vec![0.0; rows * cols];
                    unpack(format, &bytes, &mut w).expect("whole blocks");
                    let (mut codes, mut scales) = (Vec::new(), Vec::new());
                    for row in bytes.chunks(bytes.len() / rows) {
                        packed.repack(format, row, &mut codes, &mut scales);
                    }
                    let scales = match &scales[..] {
                        [] => None,
                        scales => Some(upload(bytemuck::cast_slice(scales)).await),
                    };
                    let codes = upload(bytemuck::cast_slice(&codes)).await;
                    let chunk = Chunk { first_row: 0, rows, packed, codes, scales };
                    let looked_up = [69u32, 0, 33];
                    let step = [&[3, 0, 0, 0], &looked_up[..]].concat();
                    let step = upload(bytemuck::cast_slice(&step)).await;
                    let x = gpu.storage("x", 4 * 3 * cols as u64).await.expect("a buffer");
                    let kernel = embed(&gpu, cols, &chunk, &step, &x);
                    let got = as_floats(run(&gpu, &[kernel], 3, &x, 3 * cols).await);
                    for (row, got) in looked_up.into_iter().zip(got.chunks(cols)) {
                        assert_eq!(got, &w[row as usize * cols..][..cols], "{format:?} as {packed:?}");
                    }
                    for (acts, tokens) in [(&int8, 1), (&int8, most), (&float, 1), (&float, most)] {
                        if packed.is_float() && matches!(acts, Acts::Int8 { .. }) {
                            continue;
                        }
                        let got = multiply(&gpu, &chunk, cols, acts, tokens).await;
                        for (i, got) in got.into_iter().enumerate() {
                            let (x, w) = (&floats[i / rows * cols..][..cols], &w[i % rows * cols..][..cols]);
                            // Unoptimised iterators take longer than the GPU's stand-in.
                            let (mut want, mut size, mut j) = (0.0, 0.0, 0);
                            while j < cols {
                                let term = x[j] as f64 * w[j] as f64;
                                want += term;
                                size += if term < 0.0 { -term } else { term };
                                j += 1;
                            }
                            let error = (f64::from(got) - want).abs() / size;
                            assert!(
                                error < 1e-6,
                                "{format:?} as {packed:?}, {tokens} tokens, {i}: {got} {want}"
                            );
                        }
                    }
                }
            });
        }
    }

    /// Norm and rotation in both pairings, with and without a norm, of a sequence that begins in the middle
    /// of a batch, against the formulas in 64-bit floats.
    #[test]
    fn heads_are_normalized_rotated_and_stored() {
        let (heads, d, capacity, batch) = (Heads { query: 4, kv: 2, dim: 64 }, 64, 9, 8);
        let (first_row, rows, start) = (2, 3, 5);
        let stride = 8 * d;
        let mut random = Random::new(3);
        let mut uniform = |count: usize| (0..count).map(|_| random.unit()).collect::<Vec<f32>>();
        let (qkv, norms) = (uniform(batch * stride), [uniform(d), uniform(d)]);
        let angles: Vec<f32> = uniform(batch * d / 2)
            .chunks(d / 2)
            .flat_map(|angles| {
                angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect::<Vec<_>>()
            })
            .collect();
        let eps = 1e-5;
        let all = [RopePairing::Neox, RopePairing::Interleaved];
        let cases = all.into_iter().flat_map(|pairing| [(pairing, true), (pairing, false)]);
        for (pairing, normed) in cases {
            pollster::block_on(async {
                let gpu = open(true).await;
                let on_gpu = upload(&gpu, bytemuck::cast_slice(&qkv)).await;
                let mut step = vec![0u32; STEP_HEAD + batch];
                step.extend(angles.iter().map(|angle| angle.to_bits()));
                let step = &upload(&gpu, bytemuck::cast_slice(&step)).await;
                let sequence = [rows, start, first_row, 128].map(|word| word as u32);
                let sequence = &upload(&gpu, bytemuck::cast_slice(&sequence)).await;
                let [q_norm, k_norm] = &norms;
                let q_norm = upload(&gpu, bytemuck::cast_slice(q_norm)).await;
                let k_norm = upload(&gpu, bytemuck::cast_slice(k_norm)).await;
                let size = 4 * (heads.kv * capacity * d) as u64;
                let keys = &gpu.storage("keys", size).await.expect("a buffer");
                let values = &gpu.storage("values", size).await.expect("a buffer");
                let storage = KvStorage::of(shohin_core::KvFormat::F32);
                let attention = AttentionPattern::Full;
                let score_scale = 1.0;
                let layer = Layer { storage, capacity, attention, score_scale, keys, values, sequence };
                let view = |first| View { buffer: on_gpu.clone(), first, stride };
                let (q, k, v) = (&view(0), &view(4 * d), &view(6 * d));
                let norm = normed.then_some([&q_norm, &k_norm]);
                let (pairs, rotation) = (d / 2, 0);
                let op = RopeStore { q, k, v, norm, eps, pairing, pairs, rotation, step, batch };
                let kernels = &[rope(&gpu, &heads, &layer, &op)];
                let got = as_floats(run(&gpu, kernels, rows, &on_gpu, qkv.len()).await);
                gpu.queue.write_buffer(&on_gpu, 0, bytemuck::cast_slice(&qkv));
                let count = heads.kv * capacity * d;
                let stored_keys = as_floats(run(&gpu, kernels, rows, keys, count).await);
                gpu.queue.write_buffer(&on_gpu, 0, bytemuck::cast_slice(&qkv));
                let stored_values = as_floats(run(&gpu, kernels, rows, values, count).await);

                for row in 0..batch {
                    let inside = (first_row..first_row + rows).contains(&row);
                    for head in 0..8 {
                        let at = row * stride + head * d;
                        let x: Vec<f64> = qkv[at..at + d].iter().map(|&x| f64::from(x)).collect();
                        let mean = x.iter().map(|x| x * x).sum::<f64>() / d as f64;
                        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
                        let weight = &norms[usize::from(head >= 4)];
                        let y = |i: usize| if normed { x[i] * scale * f64::from(weight[i]) } else { x[i] };
                        let stored = |from: &[f32], head: usize| {
                            let position = start + row - first_row;
                            from[(head * capacity + position) * d..][..d].to_vec()
                        };
                        if head >= 6 {
                            if inside {
                                assert_eq!(stored(&stored_values, head - 6), qkv[at..at + d]);
                            }
                            continue;
                        }
                        let found = match (head, inside) {
                            (0..4, true) => got[at..at + d].to_vec(),
                            (_, true) => stored(&stored_keys, head - 4),
                            // Others are unchanged.
                            (_, false) => {
                                assert_eq!(got[at..at + d], qkv[at..at + d]);
                                continue;
                            }
                        };
                        for i in 0..d / 2 {
                            let (a, b) = match pairing {
                                RopePairing::Neox => (i, i + d / 2),
                                RopePairing::Interleaved => (2 * i, 2 * i + 1),
                            };
                            let angle = |at| f64::from(angles[row * d + at]);
                            let (c, s) = (angle(i), angle(d / 2 + i));
                            for (at, want) in [(a, y(a) * c - y(b) * s), (b, y(a) * s + y(b) * c)] {
                                let error = (f64::from(found[at]) - want).abs();
                                assert!(error < 1e-6, "{pairing:?}, {normed}, row {row}, head {head}, {at}");
                            }
                        }
                    }
                }
            });
        }
    }

    /// Equal, infinite and missing logits, including NaN as the first of a workgroup's share.
    #[test]
    fn odd_logits_are_ordered_as_core_orders_them() {
        pollster::block_on(async {
            let gpu = open(true).await;
            let vocab = 3000;
            let mut logits = vec![-1.0f32; 2 * vocab];
            let row = &mut logits[..vocab];
            (row[0], row[1], row[2]) = (f32::NAN, f32::NEG_INFINITY, -f32::NAN);
            (row[1500], row[2999], row[7], row[8]) = (2.5, 2.5, 0.0, -1e-40);
            logits[vocab + 2998] = 1.0;
            let on_gpu = upload(&gpu, bytemuck::cast_slice(&logits)).await;
            let candidates = gpu.storage("candidates", 16 * ARGMAX_GROUPS as u64).await.expect("a buffer");
            let best = gpu.storage("best", 16).await.expect("a buffer");
            let kernels = argmax(&gpu, vocab, &on_gpu, &candidates, &best);
            let found = run(&gpu, &kernels, 2, &best, 4).await;
            assert_eq!(Ok(found[1]), shohin_core::cpu::op::argmax(&logits[..vocab]));
            assert_eq!(found[3], 2998);

            let kept = [
                gpu.storage("top-k", 8 * 3 * 5).await.expect("a"),
                gpu.storage("top-k", 8 * 3 * 5).await.expect("b"),
            ];
            let (kernels, into) = topk(&gpu, vocab, 5, &on_gpu, &kept);
            let found = run(&gpu, &kernels, 1, &kept[into], 10).await;
            let tokens: Vec<u32> = found.as_chunks::<2>().0.iter().map(|pair| pair[1]).collect();
            assert_eq!(tokens, [1500, 2999, 7, 8, 3]);

            // Nothing to choose from.
            gpu.queue.write_buffer(&on_gpu, 0, bytemuck::cast_slice(&vec![f32::NAN; vocab]));
            let kernels = argmax(&gpu, vocab, &on_gpu, &candidates, &best);
            let found = run(&gpu, &kernels, 1, &best, 2).await;
            assert_eq!(found[0], 0);
        });
    }
}
