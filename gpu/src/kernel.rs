//! One constructor an operation: its shader with the shapes put in, its buffers, its grid.

use crate::device::{Extensions, Gpu};
use crate::error::{Error, Result};
use crate::form::Form;
use crate::shader::{Source, part};
use crate::weights::Chunk;
use shohin_core::{Activations, KvFormat};
use wgpu::{BindGroup, Buffer, ComputePass, ComputePipeline};

/// Words of the step buffer before the tokens: number of tokens, first position, the row whose logits are wanted,
/// positions of a part of flash decoding.
pub(crate) const STEP_HEAD: usize = 4;

/// Most parts of flash decoding.
pub(crate) const MAX_PARTS: usize = 32;

/// Positions that attention takes at a time.
pub(crate) const TILE: usize = 128;

/// Workgroups of the first pass of argmax.
pub(crate) const ARGMAX_GROUPS: usize = 64;

/// Logits that a workgroup sorts.
pub(crate) const SORTED: usize = 1024;

/// Workgroups of a dispatch, as far as they depend on the step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    /// Always the same.
    Fixed(usize),
    /// One token a workgroup.
    EachToken,
    /// So many a token.
    PerToken(usize),
    /// So many a tile of 32 tokens.
    PerTile(usize),
    /// So many a tile of attention's rows, of which a token has `share`.
    Attention { heads: usize, share: usize, tile: usize },
    /// The same, for each part of flash decoding.
    Parts { heads: usize, share: usize, tile: usize },
}

/// How many tokens a step has, and into how many parts its attention is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) tokens: usize,
    pub(crate) parts: usize,
}

impl Grid {
    fn size(self, extent: Extent) -> [u32; 3] {
        let Extent { tokens, parts } = extent;
        let size = match self {
            Grid::Fixed(n) => [n, 1, 1],
            Grid::EachToken => [tokens, 1, 1],
            Grid::PerToken(n) => [n, tokens, 1],
            Grid::PerTile(n) => [n, tokens.div_ceil(32), 1],
            Grid::Attention { heads, share, tile } => [heads, (tokens * share).div_ceil(tile), 1],
            Grid::Parts { heads, share, tile } => [heads, (tokens * share).div_ceil(tile), parts],
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

    pub(crate) fn record(&self, pass: &mut ComputePass<'_>, extent: Extent) {
        let [x, y, z] = self.grid.size(extent);
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bindings, &[]);
        pass.dispatch_workgroups(x, y, z);
    }
}

/// The input of matrix products, in the precision chosen.
pub(crate) enum Acts {
    Int8 { words: Buffer, scale: Buffer },
    F32(Buffer),
}

impl Acts {
    /// Bytes for `units` of 32: of the words (or floats), of the scales.
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

    /// What writes it.
    fn put(&self, source: Source) -> Source {
        source.part(match self {
            Acts::Int8 { .. } => part!("act_int8"),
            Acts::F32(_) => part!("act_f32"),
        })
    }
}

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Store,
    Add,
    Swiglu,
}

/// The cache's storage of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kv {
    /// 32-bit floats: exact.
    F32,
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit integers with one scale per 32.
    Q8,
}

impl TryFrom<KvFormat> for Kv {
    type Error = Error;

    fn try_from(format: KvFormat) -> Result<Kv> {
        match format {
            KvFormat::F32 => Ok(Kv::F32),
            KvFormat::F16 => Ok(Kv::F16),
            KvFormat::Q8 => Ok(Kv::Q8),
            KvFormat::Q4 => {
                let what = "the number of bits of cached keys and values";
                Err(Error::Unsupported { what, found: 4, expected: "8, 16 or 32" })
            }
        }
    }
}

impl Kv {
    /// Bytes of so many numbers, a multiple of 32.
    pub const fn bytes(self, numbers: usize) -> u64 {
        match self {
            Kv::F32 => 4 * numbers as u64,
            Kv::F16 => 2 * numbers as u64,
            Kv::Q8 => numbers as u64 + numbers as u64 / 8,
        }
    }
}

/// Shapes that attention's shaders know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) capacity: usize,
    pub(crate) batch: usize,
    pub(crate) eps: f32,
    pub(crate) kv: Kv,
}

impl Heads {
    fn source(&self) -> Source {
        Source::default()
            .u32("HEADS", self.heads)
            .u32("KV_HEADS", self.kv_heads)
            .u32("HEAD_DIM", self.head_dim)
            .u32("QUADS", self.head_dim / 4)
            .u32("CAPACITY", self.capacity)
            .u32("MAX_PARTS", MAX_PARTS)
            .f32("LOWEST", -1e30)
    }

    fn share(&self) -> usize {
        self.heads / self.kv_heads
    }
}

fn weights(source: Source, form: Form, cols: usize, rows: usize) -> Source {
    source
        .u32("UNITS", cols / 32)
        .u32("ROWS", rows)
        .u32("GROUP_SHIFT", (form.group / 32).ilog2() as usize)
        .u32("SCALE_WORDS", form.scale_words(cols))
        .part(if form.bits == 1 { part!("weights_1bit") } else { part!("weights_2bit") })
        .part(part!("weights"))
}

/// Rows of the embedding: `x (tokens, cols)`.
pub(crate) fn embed(gpu: &Gpu, form: Form, cols: usize, chunk: &Chunk, step: &Buffer, x: &Buffer) -> Kernel {
    let source = Source::default().u32("STEP_TOKENS", STEP_HEAD).u32("FIRST_ROW", chunk.first_row);
    let source = weights(source, form, cols, chunk.rows).part(part!("embed"));
    Kernel::new(
        gpu,
        "embed",
        source,
        &[(0, &chunk.codes), (1, &chunk.scales), (4, x), (5, step)],
        Grid::EachToken,
    )
}

/// `acts (tokens, cols) = rmsnorm(x, weight)`, or of one row of the batch.
pub(crate) fn rmsnorm(
    gpu: &Gpu,
    cols: usize,
    eps: f32,
    one_row: bool,
    x: &Buffer,
    weight: &Buffer,
    step: &Buffer,
    acts: &Acts,
) -> Kernel {
    let source = Source::default().u32("UNITS", cols / 32).f32("EPS", eps).bool("ONE_ROW", one_row);
    let source = acts.put(source.group(gpu.extensions(), 128)).part(part!("rmsnorm"));
    let mut buffers = vec![(0, x), (1, weight), (5, step)];
    buffers.extend(acts.bindings());
    let grid = if one_row { Grid::Fixed(1) } else { Grid::EachToken };
    Kernel::new(gpu, "rmsnorm", source, &buffers, grid)
}

/// `acts (tokens, cols) = x`
pub(crate) fn quantize(gpu: &Gpu, cols: usize, x: &Buffer, acts: &Acts) -> Kernel {
    let source = acts.put(Source::default().u32("UNITS", cols / 32)).part(part!("quantize"));
    let mut buffers = vec![(0, x)];
    buffers.extend(acts.bindings());
    Kernel::new(gpu, "quantize", source, &buffers, Grid::PerToken((cols / 32).div_ceil(64)))
}

/// A packed matrix, what it is multiplied with, and where the result goes.
pub(crate) struct Product<'b> {
    pub(crate) form: Form,
    pub(crate) cols: usize,
    pub(crate) chunk: &'b Chunk,
    pub(crate) acts: &'b Acts,
    pub(crate) output: Output,
    pub(crate) into: &'b Buffer,
    /// Numbers between the results of two tokens.
    pub(crate) stride: usize,
}

impl Product<'_> {
    fn source(&self, ext: Extensions) -> Source {
        let source =
            Source::default().u32("OUTPUT_STRIDE", self.stride).u32("FIRST_ROW", self.chunk.first_row);
        let source = weights(source, self.form, self.cols, self.chunk.rows);
        let source = match self.acts {
            Acts::Int8 { .. } => source.dot4(ext).part(part!("input_int8")),
            Acts::F32(_) => source.part(part!("input_f32")),
        };
        source.part(match self.output {
            Output::Store => part!("output_store"),
            Output::Add => part!("output_add"),
            Output::Swiglu => part!("output_swiglu"),
        })
    }

    fn kernel(&self, gpu: &Gpu, entry: &str, source: Source, step: Option<&Buffer>, grid: Grid) -> Kernel {
        let mut buffers = vec![(0, &self.chunk.codes), (1, &self.chunk.scales), (4, self.into)];
        buffers.extend(self.acts.bindings());
        buffers.extend(step.map(|step| (5, step)));
        let mut kernel = Kernel::new(gpu, entry, source, &buffers, grid);
        kernel.weight_bytes = self.form.bytes(self.chunk.rows, self.cols);
        kernel
    }

    /// Each token by itself: for one token.
    pub(crate) fn gemv(&self, gpu: &Gpu) -> Kernel {
        let ext = gpu.extensions();
        let source = self.source(ext).group(ext, 64).part(match self.acts {
            Acts::Int8 { .. } => part!("gemv_int8"),
            Acts::F32(_) => part!("gemv_f32"),
        });
        self.kernel(gpu, "gemv", source, None, Grid::PerToken(self.chunk.rows.div_ceil(4)))
    }

    /// 32 tokens at a time.
    pub(crate) fn gemm(&self, gpu: &Gpu, step: &Buffer) -> Kernel {
        let source = self.source(gpu.extensions()).part(match self.acts {
            Acts::Int8 { .. } => part!("gemm_int8"),
            Acts::F32(_) => part!("gemm_f32"),
        });
        self.kernel(gpu, "gemm", source, Some(step), Grid::PerTile(self.chunk.rows.div_ceil(64)))
    }
}

/// Norm and rotation of queries and keys in `qkv`; keys and values into the cache.
pub(crate) fn rope(
    gpu: &Gpu,
    heads: &Heads,
    qkv: &Buffer,
    norms: &Buffer,
    keys: &Buffer,
    values: &Buffer,
    step: &Buffer,
) -> Kernel {
    let source = heads.source().f32("EPS", heads.eps).u32("STEP_ANGLES", STEP_HEAD + heads.batch);
    let source = source.group(gpu.extensions(), 64).part(match heads.kv {
        Kv::F32 => part!("kv_put_f32"),
        Kv::F16 => part!("kv_put_f16"),
        Kv::Q8 => part!("kv_put_q8"),
    });
    let buffers = [(0, qkv), (1, norms), (2, keys), (3, values), (5, step)];
    let grid = Grid::PerToken(heads.heads + 2 * heads.kv_heads);
    Kernel::new(gpu, "rope", source.part(part!("rope")), &buffers, grid)
}

fn attention_source(gpu: &Gpu, heads: &Heads, tile: usize) -> Source {
    let source =
        heads.source().u32("ROWS_TILE", tile).f32("SCORE_SCALE", 1.0 / (heads.head_dim as f32).sqrt());
    source.group(gpu.extensions(), TILE).part(match (heads.kv, gpu.extensions().f16) {
        (Kv::F32, _) => part!("kv_get_f32"),
        (Kv::F16, false) => part!("kv_get_f16"),
        (Kv::F16, true) => part!("kv_get_f16_native"),
        (Kv::Q8, _) => part!("kv_get_q8"),
    })
}

/// Attention of every token over all it sees, into `acts`; `many` for more than one token.
pub(crate) fn attention(
    gpu: &Gpu,
    heads: &Heads,
    many: bool,
    qkv: &Buffer,
    keys: &Buffer,
    values: &Buffer,
    step: &Buffer,
    acts: &Acts,
) -> Kernel {
    let tile = if many { 8 } else { heads.share().min(8) };
    let source = acts.put(attention_source(gpu, heads, tile));
    let source = source.part(part!("attention")).part(part!("attention_whole"));
    let mut buffers = vec![(0, keys), (1, values), (4, qkv), (5, step)];
    buffers.extend(acts.bindings());
    let grid = Grid::Attention { heads: heads.kv_heads, share: heads.share(), tile };
    Kernel::new(gpu, "attention", source, &buffers, grid)
}

/// The same for one token, the positions in parts.
pub(crate) fn attention_part(
    gpu: &Gpu,
    heads: &Heads,
    qkv: &Buffer,
    keys: &Buffer,
    values: &Buffer,
    step: &Buffer,
    parts: &Buffer,
) -> Kernel {
    let tile = heads.share().min(8);
    let source = attention_source(gpu, heads, tile).part(part!("attention")).part(part!("attention_part"));
    let buffers = [(0, keys), (1, values), (2, parts), (4, qkv), (5, step)];
    let grid = Grid::Parts { heads: heads.kv_heads, share: heads.share(), tile };
    Kernel::new(gpu, "attention", source, &buffers, grid)
}

/// Joins the parts into `acts`.
pub(crate) fn attention_combine(
    gpu: &Gpu,
    heads: &Heads,
    parts: &Buffer,
    step: &Buffer,
    acts: &Acts,
) -> Kernel {
    let source = acts.put(heads.source()).part(part!("attention_combine"));
    let mut buffers = vec![(0, parts), (5, step)];
    buffers.extend(acts.bindings());
    Kernel::new(gpu, "attention_combine", source, &buffers, Grid::Fixed(heads.heads))
}

/// The two passes of argmax over `logits (vocab)`; the result is `best[0]`.
pub(crate) fn argmax(gpu: &Gpu, vocab: usize, logits: &Buffer, best: &Buffer) -> [Kernel; 2] {
    let source =
        || Source::default().u32("VOCAB", vocab).u32("ARGMAX_GROUPS", ARGMAX_GROUPS).part(part!("argmax"));
    [
        Kernel::new(gpu, "argmax", source(), &[(0, logits), (1, best)], Grid::Fixed(ARGMAX_GROUPS)),
        Kernel::new(gpu, "argmax_last", source(), &[(1, best)], Grid::Fixed(1)),
    ]
}

/// The `top` most likely of `logits (vocab)`, in as many rounds as it takes; the result is in the buffer whose
/// index is returned.
pub(crate) fn topk(
    gpu: &Gpu,
    vocab: usize,
    top: usize,
    logits: &Buffer,
    kept: &[Buffer; 2],
) -> (Vec<Kernel>, usize) {
    let mut kernels = Vec::new();
    let (mut count, mut into) = (vocab, 0);
    loop {
        let first = kernels.is_empty();
        let part = if first { part!("topk_logits") } else { part!("topk_kept") };
        let source = Source::default().u32("COUNT", count).u32("TOP", top).part(part).part(part!("topk"));
        let from = if first { logits } else { &kept[1 - into] };
        let groups = count.div_ceil(SORTED);
        kernels.push(Kernel::new(gpu, "topk", source, &[(0, from), (1, &kept[into])], Grid::Fixed(groups)));
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
    use crate::device::GpuOptions;
    use wgpu::BufferUsages;

    /// Runs kernels over `logits` and returns the first `count` pairs of `from`.
    async fn choose(gpu: &Gpu, kernels: &[Kernel], from: &Buffer, count: usize) -> Vec<[u32; 2]> {
        let size = 8 * count as u64;
        let read = gpu
            .buffer("read", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)
            .await
            .expect("a buffer");
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            kernels.iter().for_each(|kernel| kernel.record(&mut pass, Extent { tokens: 1, parts: 1 }));
        }
        encoder.copy_buffer_to_buffer(from, 0, &read, 0, size);
        gpu.queue.submit([encoder.finish()]);
        let mut bytes = Vec::new();
        gpu.read(&read, size, &mut bytes).await.expect("what was chosen");
        bytemuck::pod_collect_to_vec::<u8, [u32; 2]>(&bytes)
    }

    /// Equal, infinite and missing logits, where the first of a workgroup's share is none.
    #[test]
    fn odd_logits_are_ordered_as_core_orders_them() {
        let options = GpuOptions { software: true, ..GpuOptions::default() };
        pollster::block_on(async {
            let gpu = Gpu::open(&options).await.expect("a GPU, if only in software");
            let vocab = 3000;
            let mut logits = vec![-1.0f32; vocab];
            (logits[0], logits[1], logits[2]) = (f32::NAN, f32::NEG_INFINITY, -f32::NAN);
            (logits[1500], logits[2999], logits[7], logits[8]) = (2.5, 2.5, 0.0, -1e-40);
            let size = 4 * vocab as u64;
            let on_gpu = gpu.storage("logits", size).await.expect("a buffer");
            gpu.queue.write_buffer(&on_gpu, 0, bytemuck::cast_slice(&logits));
            let best = gpu.storage("best", 8 * (1 + ARGMAX_GROUPS as u64)).await.expect("a buffer");
            let found = choose(&gpu, &argmax(&gpu, vocab, &on_gpu, &best), &best, 1).await;
            assert_eq!(Ok(found[0][1]), shohin_core::cpu::op::argmax(&logits));

            let kept = [
                gpu.storage("kept", 8 * 3 * 5).await.expect("a"),
                gpu.storage("kept", 8 * 3 * 5).await.expect("b"),
            ];
            let (kernels, into) = topk(&gpu, vocab, 5, &on_gpu, &kept);
            let found = choose(&gpu, &kernels, &kept[into], 5).await;
            assert_eq!(found.iter().map(|pair| pair[1]).collect::<Vec<_>>(), [1500, 2999, 7, 8, 3]);

            // Nothing to choose from.
            gpu.queue.write_buffer(&on_gpu, 0, bytemuck::cast_slice(&vec![f32::NAN; vocab]));
            let found = choose(&gpu, &argmax(&gpu, vocab, &on_gpu, &best), &best, 1).await;
            assert_eq!(found[0][0], 0);
        });
    }
}
