//! An NVIDIA GPU as a [`Device`]: scratch memory, and the launches of each operation.

use crate::args::{
    ArgmaxArgs, AttentionArgs, CacheArgs, EmbedArgs, NormArgs, ProductArgs, QuantizeArgs, RopeArgs,
};
use crate::driver::{Driver, Memory};
use crate::error::{Error, Result};
use crate::model::CudaModel;
use bytemuck::{Pod, bytes_of, cast_slice};
use shohin_core::cache::FlatKv;
use shohin_core::device::{
    Batch, BlockingDevice, Output, Readout, ScratchOptions, SessionOptions, Sink, check_caches, ready,
    unordered,
};
use shohin_core::model::program::{BufferId, Op, RopePairing, TensorId};
use shohin_core::model::{ModelConfig, Program};
use shohin_core::rows::{ReadoutGroup, Rows, Segment, tokens_and_angles};
use shohin_core::{Activations, AttentionPattern, Device, Error as CoreError, KvFormat, Name};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The formats of caches that the kernels store.
pub const KV_FORMATS: [KvFormat; 4] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4];

/// Parts of the positions among which the attention of a single row is divided.
const PARTS: usize = 16;

/// Codes of `codes.cuh`, and how many of the first are integers.
const KINDS: usize = 9;
const INTEGER_KINDS: usize = 6;

const THREADS: u32 = 128;

/// How a product is stored, see `product.cu`.
#[derive(Clone, Copy)]
enum Epilogue {
    Store = 0,
    Add = 1,
    Swiglu = 2,
}

/// Kernels by name.
struct Kernels<K> {
    embed: K,
    rmsnorm: K,
    quantize: K,
    rope_store: K,
    attention: K,
    attention_join: K,
    argmax: K,
    /// By codes: for one row, for many.
    int8: Vec<[K; 2]>,
    f32: Vec<[K; 2]>,
}

impl<K> Kernels<K> {
    fn new<D: Driver<Kernel = K>>(driver: &D) -> Result<Kernels<K>> {
        let products = |input: &str, kinds: usize| {
            let one = |kind| {
                let name = format!("product_{input}_{kind}");
                Ok([driver.kernel(&name)?, driver.kernel(&format!("{name}_many"))?])
            };
            (0..kinds).map(one).collect::<Result<Vec<_>>>()
        };
        Ok(Kernels {
            embed: driver.kernel("embed")?,
            rmsnorm: driver.kernel("rmsnorm")?,
            quantize: driver.kernel("quantize")?,
            rope_store: driver.kernel("rope_store")?,
            attention: driver.kernel("attention")?,
            attention_join: driver.kernel("attention_join")?,
            argmax: driver.kernel("argmax")?,
            int8: products("int8", INTEGER_KINDS)?,
            f32: products("f32", KINDS)?,
        })
    }
}

/// A buffer of the program.
struct Buffer<D: Driver> {
    /// `(batch, cols)`
    floats: Memory<D>,
    /// The same as integers, and their scales; only of inputs of products.
    integers: Option<[Memory<D>; 2]>,
}

/// The words of a step: tokens, positions and rows to read out `(batch)` each, then angles `(batch, head_dim)`.
struct Step<D: Driver> {
    memory: Memory<D>,
    batch: usize,
}

impl<D: Driver> Step<D> {
    fn at(&self, part: usize) -> u64 {
        self.memory.address() + 4 * (part * self.batch) as u64
    }

    fn tokens(&self) -> u64 {
        self.at(0)
    }

    fn positions(&self) -> u64 {
        self.at(1)
    }

    fn read_out(&self) -> u64 {
        self.at(2)
    }

    fn angles(&self) -> u64 {
        self.at(3)
    }
}

/// Keys and values of one sequence. All memory is allocated when it is created.
pub struct CudaCache<D: Driver> {
    /// The device that it was made by: its graphs use that device's buffers.
    device: u64,
    options: SessionOptions,
    /// Keys and values of each layer.
    layers: Vec<[Memory<D>; 2]>,
    /// A single row, by what is read out.
    graphs: Vec<(Option<Readout>, D::Graph)>,
}

impl<D: Driver> core::fmt::Debug for CudaCache<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaCache").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A model on an NVIDIA GPU: scratch memory for a batch. Runs any number of sequences.
pub struct CudaDevice<D: Driver> {
    /// Unique among the devices of the process.
    id: u64,
    model: Arc<CudaModel<D>>,
    options: ScratchOptions,
    kernels: Kernels<D::Kernel>,
    buffers: Vec<Buffer<D>>,
    step: Step<D>,
    /// Of attention: `(rows, heads, parts, head_dim + 2)`.
    parts: Memory<D>,
    logits_memory: Memory<D>,
    best: Memory<D>,
    logits: Vec<f32>,
    bytes: Vec<u8>,
}

impl<D: Driver> core::fmt::Debug for CudaDevice<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CudaDevice").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The inputs of products.
fn inputs(program: &Program) -> Vec<(BufferId, TensorId)> {
    let mut found = vec![(program.hidden, program.output)];
    for op in &program.body {
        match op {
            Op::Linear { x, outputs } => found.extend(outputs.iter().map(|(weight, _)| (*x, *weight))),
            Op::LinearAdd { x, weight, .. } => found.push((*x, *weight)),
            Op::LinearSwiglu { x, gate, .. } => found.push((*x, *gate)),
            // Refused when the model is uploaded.
            Op::Experts(_) | Op::Select { .. } | Op::Merge { .. } | Op::Exchange(_) => {}
            Op::Embed { .. } | Op::RmsNorm { .. } | Op::RopeStore { .. } | Op::Attention { .. } => {}
        }
    }
    found
}

/// The numbers of a pattern, see `attention.cu`.
fn pattern(pattern: AttentionPattern) -> [u32; 4] {
    match pattern {
        AttentionPattern::Full => [0; 4],
        AttentionPattern::Window { window, sinks } => [1, window, sinks, 0],
        AttentionPattern::Dilated { blocks, step } => [2, blocks, step, 0],
        AttentionPattern::Strided { blocks, stride } => [3, blocks, stride, 0],
        AttentionPattern::BigBird { blocks, global, random } => [4, blocks, global, random],
    }
}

impl<D: Driver> CudaDevice<D> {
    /// Allocates scratch memory.
    ///
    /// # Errors
    /// For an option outside its range, or [`Error::OutOfMemory`].
    pub fn new(model: &Arc<CudaModel<D>>, options: &ScratchOptions) -> Result<CudaDevice<D>> {
        let options = options.fitted(model.config())?;
        let (driver, program, batch) = (&model.driver, model.program(), options.batch);
        let mut integers = vec![false; program.buffers.len()];
        for (x, weight) in inputs(program) {
            let int8 = model.matrix(weight)?.1.input(options.activations) == Activations::Int8;
            integers[x.index()] |= int8;
        }
        let mut buffers = Vec::new();
        for (spec, integers) in program.buffers.iter().zip(integers) {
            let count = batch * spec.cols;
            let integers = match integers {
                true => Some([Memory::new(driver, count)?, Memory::new(driver, count / 32 * 8)?]),
                false => None,
            };
            buffers.push(Buffer { floats: Memory::new(driver, 4 * count)?, integers });
        }
        let heads = program.heads;
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Ok(CudaDevice {
            id: DEVICES.fetch_add(1, Ordering::Relaxed),
            model: Arc::clone(model),
            options,
            kernels: Kernels::new(&**driver)?,
            buffers,
            step: Step { memory: Memory::new(driver, 4 * batch * (3 + heads.dim))?, batch },
            parts: Memory::new(driver, 4 * heads.query * batch.max(PARTS) * (heads.dim + 2))?,
            logits_memory: Memory::new(driver, 4 * options.logit_rows * program.vocab())?,
            best: Memory::new(driver, 8 * options.logit_rows)?,
            logits: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// The model this device runs.
    pub fn model(&self) -> &Arc<CudaModel<D>> {
        &self.model
    }

    /// The effective options.
    pub fn options(&self) -> &ScratchOptions {
        &self.options
    }

    fn driver(&self) -> &D {
        &self.model.driver
    }

    fn launch<A: Pod>(&self, kernel: D::Kernel, grid: [usize; 3], threads: u32, args: A) -> Result<()> {
        self.driver().launch(kernel, grid.map(|n| n as u32), threads, bytes_of(&args))
    }

    fn floats(&self, id: BufferId) -> u64 {
        self.buffers[id.index()].floats.address()
    }

    /// Integers and scales of a buffer; 0 without.
    fn integers(&self, id: BufferId) -> [u64; 2] {
        let integers = self.buffers[id.index()].integers.as_ref();
        integers.map_or([0; 2], |integers| integers.each_ref().map(Memory::address))
    }

    /// The integers of a buffer that was written as floats only, if a product reads them.
    fn quantize(&self, id: BufferId, rows: usize, cols: usize) -> Result<()> {
        let [words, meta] = self.integers(id);
        if words == 0 {
            return Ok(());
        }
        let units = rows * cols / 32;
        let args = QuantizeArgs { x: self.floats(id), words, meta, units: units as u32, unused: 0 };
        self.launch(self.kernels.quantize, [units.div_ceil(4), 1, 1], THREADS, args)
    }

    /// Products with the same input, in as many launches as they have different codes.
    fn products(
        &self,
        x: BufferId,
        outputs: &[(TensorId, u64)],
        epilogue: Epilogue,
        rows: usize,
    ) -> Result<()> {
        let mut rest = outputs;
        while let [(first, _), ..] = rest {
            let (matrix, packed) = self.model.matrix(*first)?;
            let [words, meta] = self.integers(x);
            let mut args = ProductArgs { x: self.floats(x), words, meta, ..Default::default() };
            let (mut count, mut blocks) = (0, 0);
            for (id, out) in rest {
                let (other, _) = self.model.matrix(*id)?;
                if other.kind != matrix.kind {
                    break;
                }
                (args.m[count], args.out[count]) = (other, *out);
                count += 1;
                blocks += other.rows.div_ceil(4) as usize;
            }
            if matches!(epilogue, Epilogue::Swiglu) {
                blocks = matrix.rows.div_ceil(4) as usize;
            }
            (args.tokens, args.count, args.epilogue) = (rows as u32, count as u32, epilogue as u32);
            let int8 = packed.input(self.options.activations) == Activations::Int8;
            let (kernels, many) = if int8 { (&self.kernels.int8, 8) } else { (&self.kernels.f32, 2) };
            let kernel = kernels[matrix.kind as usize][usize::from(rows > 1)];
            let tiles = if rows > 1 { rows.div_ceil(many) } else { 1 };
            self.launch(kernel, [blocks, tiles, 1], THREADS, args)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn rmsnorm(&self, op: &Op, rows: usize, list: u64) -> Result<()> {
        let Op::RmsNorm { x, weight, eps, out } = *op else { return Ok(()) };
        let cols = self.model.program().tensor(weight).cols as u32;
        let ([words, meta], weight) = (self.integers(out), self.model.vector(weight)?);
        let (x, out) = (self.floats(x), self.floats(out));
        let args = NormArgs { x, weight, rows: list, out, words, meta, cols, eps };
        self.launch(self.kernels.rmsnorm, [rows, 1, 1], THREADS, args)
    }

    fn cache_args(&self, cache: &CudaCache<D>, layer: usize) -> CacheArgs {
        let heads = self.model.program().heads;
        let [keys, values] = cache.layers[layer].each_ref().map(Memory::address);
        CacheArgs {
            keys,
            values,
            capacity: cache.options.context as u32,
            kv_heads: heads.kv as u32,
            dim: heads.dim as u32,
            bits: FlatKv::of(cache.options.kv).bits as u32,
        }
    }

    /// The launches of an operation.
    fn op(&self, op: &Op, segments: &[Segment<'_>], caches: &[&mut CudaCache<D>]) -> Result<()> {
        let program = self.model.program();
        let heads = program.heads;
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        match op {
            Op::Embed { table, out } => {
                let args = EmbedArgs {
                    table: self.model.matrix(*table)?.0,
                    tokens: self.step.tokens(),
                    x: self.floats(*out),
                };
                self.launch(self.kernels.embed, [rows, 1, 1], THREADS, args)?;
                self.quantize(*out, rows, program.tensor(*table).cols)
            }
            Op::RmsNorm { .. } => self.rmsnorm(op, rows, 0),
            Op::Linear { x, outputs } => {
                let list: Vec<_> = outputs.iter().map(|(weight, out)| (*weight, self.floats(*out))).collect();
                self.products(*x, &list, Epilogue::Store, rows)?;
                outputs
                    .iter()
                    .try_for_each(|(weight, out)| self.quantize(*out, rows, program.tensor(*weight).rows))
            }
            Op::LinearAdd { x, weight, to } => {
                self.products(*x, &[(*weight, self.floats(*to))], Epilogue::Add, rows)?;
                self.quantize(*to, rows, program.tensor(*weight).rows)
            }
            Op::LinearSwiglu { x, gate, up, out } => {
                let into = self.floats(*out);
                self.products(*x, &[(*gate, into), (*up, into)], Epilogue::Swiglu, rows)?;
                self.quantize(*out, rows, program.tensor(*gate).rows)
            }
            Op::Experts(_) => {
                Err(CoreError::Device { problem: "CUDA does not compute mixtures of experts" }.into())
            }
            Op::Select { .. } | Op::Merge { .. } => {
                Err(CoreError::Device { problem: "CUDA does not compute mixtures of depths" }.into())
            }
            Op::Exchange(_) => {
                Err(CoreError::Device { problem: "CUDA does not compute split programs" }.into())
            }
            Op::RopeStore { layer, q, k, v, norm, eps } => {
                let [q_norm, k_norm] = match norm {
                    Some(norm) => [self.model.vector(norm.q)?, self.model.vector(norm.k)?],
                    None => [0; 2],
                };
                for segment in segments {
                    let args = RopeArgs {
                        cache: self.cache_args(caches[segment.sequence], *layer),
                        q: self.floats(*q),
                        k: self.floats(*k),
                        v: self.floats(*v),
                        q_norm,
                        k_norm,
                        positions: self.step.positions(),
                        angles: self.step.angles(),
                        heads: heads.query as u32,
                        first_row: segment.row as u32,
                        interleaved: u32::from(program.pairing == RopePairing::Interleaved),
                        eps: *eps,
                    };
                    let grid = [heads.query + 2 * heads.kv, segment.tokens.len(), 1];
                    self.launch(self.kernels.rope_store, grid, 32, args)?;
                }
                Ok(())
            }
            Op::Attention { layer, q, out } => {
                // The parts of a graph do not depend on the position.
                let parts = if rows == 1 { PARTS } else { 1 };
                for segment in segments {
                    let cache = &*caches[segment.sequence];
                    let [words, meta] = self.integers(*out);
                    let [pattern, a, b, c] = pattern(cache.options.attention);
                    let args = AttentionArgs {
                        cache: self.cache_args(cache, *layer),
                        q: self.floats(*q),
                        positions: self.step.positions(),
                        parts: self.parts.address(),
                        out: self.floats(*out),
                        words,
                        meta,
                        heads: heads.query as u32,
                        first_row: segment.row as u32,
                        parts_count: parts as u32,
                        pattern,
                        a,
                        b,
                        c,
                        scale: 1.0 / (heads.dim as f32).sqrt(),
                    };
                    let rows = segment.tokens.len();
                    self.launch(self.kernels.attention, [heads.query, rows, parts], THREADS, args)?;
                    self.launch(self.kernels.attention_join, [heads.query, rows, 1], 32, args)?;
                }
                Ok(())
            }
        }
    }

    /// From the residual stream of the rows that are read out to what is read.
    fn head(&self, kind: Readout, rows: usize) -> Result<()> {
        let program = self.model.program();
        for op in &program.head {
            self.rmsnorm(op, rows, self.step.read_out())?;
        }
        if kind == Readout::Hidden {
            return Ok(());
        }
        let logits = self.logits_memory.address();
        self.products(program.hidden, &[(program.output, logits)], Epilogue::Store, rows)?;
        if kind != Readout::Best {
            return Ok(());
        }
        let vocab = program.vocab() as u32;
        let args = ArgmaxArgs { logits, best: self.best.address(), vocab, unused: 0 };
        self.launch(self.kernels.argmax, [rows, 1, 1], 256, args)
    }

    /// Writes tokens, positions, the rows that are read out first, and angles.
    fn write_step(&self, segments: &[Segment<'_>], group: Option<&ReadoutGroup>) -> Result<()> {
        let (program, batch) = (self.model.program(), self.options.batch);
        let (tokens, angles) = tokens_and_angles(program, segments);
        let mut words = vec![0; 3 * batch];
        words[..tokens.len()].copy_from_slice(&tokens);
        let positions = segments.iter().flat_map(|s| s.position..s.position + s.tokens.len());
        words[batch..].iter_mut().zip(positions).for_each(|(word, position)| *word = position as u32);
        for (word, wanted) in words[2 * batch..].iter_mut().zip(group.iter().flat_map(|group| &group.rows)) {
            *word = wanted.row as u32;
        }
        words.extend(angles.iter().map(|angle| angle.to_bits()));
        self.driver().write(self.step.tokens(), cast_slice(&words))
    }

    fn body(&self, segments: &[Segment<'_>], caches: &[&mut CudaCache<D>]) -> Result<()> {
        self.model.program().body.iter().try_for_each(|op| self.op(op, segments, caches))
    }

    /// A single row: one graph, recorded the first time.
    fn single(
        &mut self,
        segment: Segment<'_>,
        group: Option<&ReadoutGroup>,
        caches: &mut [&mut CudaCache<D>],
    ) -> Result<()> {
        let (kind, at) = (group.map(|group| group.readout), segment.sequence);
        if !caches[at].graphs.iter().any(|(known, _)| *known == kind) {
            self.driver().begin()?;
            let launched = self.body(&[segment], caches);
            let launched = launched.and_then(|()| kind.map_or(Ok(()), |kind| self.head(kind, 1)));
            // Recording has to end in any case.
            let graph = self.driver().end();
            launched?;
            caches[at].graphs.push((kind, graph?));
        }
        let found = caches[at].graphs.iter().find(|(known, _)| *known == kind);
        found.map_or(Ok(()), |(_, graph)| self.driver().replay(graph))
    }

    fn part(
        &mut self,
        segments: &[Segment<'_>],
        groups: &[ReadoutGroup],
        caches: &mut [&mut CudaCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.write_step(segments, groups.first())?;
        if let ([segment], [] | [_]) = (segments, groups)
            && segment.tokens.len() == 1
        {
            self.single(*segment, groups.first(), caches)?;
            return groups.iter().try_for_each(|group| self.read(group, sink));
        }
        self.body(segments, caches)?;
        for (i, group) in groups.iter().enumerate() {
            if i > 0 {
                let rows: Vec<u32> = group.rows.iter().map(|wanted| wanted.row as u32).collect();
                self.driver().write(self.step.read_out(), cast_slice(&rows))?;
            }
            self.head(group.readout, group.rows.len())?;
            self.read(group, sink)?;
        }
        Ok(())
    }

    fn read(&mut self, group: &ReadoutGroup, sink: &mut Sink<'_>) -> Result<()> {
        let program = self.model.program();
        let (from, row) = match group.readout {
            Readout::Logits | Readout::Top(_) => (self.logits_memory.address(), 4 * program.vocab()),
            Readout::Best => (self.best.address(), 8),
            Readout::Hidden => (self.floats(program.hidden), 4 * program.tensor(program.output).cols),
        };
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.resize(row * group.rows.len(), 0);
        let read = self.driver().read(from, &mut bytes);
        self.bytes = bytes;
        read?;
        self.logits.clear();
        for (wanted, bytes) in group.rows.iter().zip(self.bytes.chunks_exact(row.max(1))) {
            let floats = bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word));
            let mut output = |output: Output<'_>| sink(wanted.sequence, wanted.run_row, output);
            match group.readout {
                Readout::Logits | Readout::Top(_) => {
                    self.logits.clear();
                    self.logits.extend(floats);
                    output(Output::Logits(&self.logits));
                }
                Readout::Hidden => output(Output::Hidden(&floats.collect::<Vec<_>>())),
                Readout::Best => {
                    let words: Vec<u32> =
                        bytes.as_chunks().0.iter().map(|&w| u32::from_le_bytes(w)).collect();
                    match words[..] {
                        [token, bits] if bits != 0 => output(Output::Top(&[(!token, unordered(bits))])),
                        // Nothing to choose from.
                        _ => output(Output::Top(&[])),
                    }
                }
            }
        }
        Ok(())
    }

    /// The outputs to read from `rows`, in order. All logits are read for [`Readout::Top`].
    fn groups(&self, rows: Rows<'_>) -> Vec<ReadoutGroup> {
        rows.groups(|readout| match readout {
            Readout::Logits | Readout::Top(_) => (Readout::Logits, self.options.logit_rows),
            Readout::Best => (Readout::Best, self.options.logit_rows),
            Readout::Hidden => (Readout::Hidden, self.options.batch),
        })
    }

    /// The spans of the first `len` positions of each head, in a buffer of keys or of values.
    fn spans(
        &self,
        cache: &CudaCache<D>,
        len: usize,
    ) -> impl Iterator<Item = core::ops::Range<u64>> + use<D> {
        let heads = self.model.program().heads;
        let [kv, capacity, d, len] = [heads.kv, cache.options.context, heads.dim, len].map(|n| n as u64);
        FlatKv::of(cache.options.kv).spans(kv, capacity, d, len)
    }
}

impl<D: Driver> Device for CudaDevice<D> {
    type Cache = CudaCache<D>;
    type Error = Error;

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn program(&self) -> &Program {
        self.model.program()
    }

    fn batch(&self) -> usize {
        self.options.batch
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<CudaCache<D>> {
        if options.context == 0 {
            return Err(CoreError::Option { what: "context", found: 0.0, expected: "at least 1" }.into());
        }
        if !KV_FORMATS.contains(&options.kv) {
            let (key, found) = (Name::new("cache format"), Name::new(options.kv.name()));
            return Err(CoreError::Unsupported { key, found, expected: "f32, f16, q8 or q4" }.into());
        }
        options.attention.check()?;
        let options = SessionOptions { context: options.context.min(self.options.context), ..*options };
        let (program, driver) = (self.model.program(), &self.model.driver);
        let heads = program.heads;
        let numbers = heads.kv as u64 * options.context as u64 * heads.dim as u64;
        let bytes = FlatKv::of(options.kv).bytes(numbers) as usize;
        let mut layers = Vec::new();
        for _ in 0..program.layers {
            layers.push([Memory::new(driver, bytes)?, Memory::new(driver, bytes)?]);
        }
        Ok(CudaCache { device: self.id, options, layers, graphs: Vec::new() })
    }

    fn cache_options(&self, cache: &CudaCache<D>) -> SessionOptions {
        cache.options
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut CudaCache<D>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        check_caches(batch, caches.iter().map(|cache| cache.device), self.id)?;
        for rows in Rows::parts(batch, self.options.batch) {
            let segments: Vec<Segment<'_>> = rows.segments().collect();
            self.part(&segments, &self.groups(rows), caches, sink)?;
        }
        Ok(())
    }

    fn logits(&mut self) -> &[f32] {
        &self.logits
    }

    /// Keys cannot be moved yet.
    fn shift(&mut self, _: &mut CudaCache<D>, _: usize, keep: usize, _: usize) -> Result<usize> {
        Ok(keep)
    }

    fn export_len(&self, cache: &CudaCache<D>, len: usize) -> usize {
        let bytes: u64 = self.spans(cache, len).map(|span| span.end - span.start).sum();
        2 * cache.layers.len() * bytes as usize
    }

    async fn export(&mut self, cache: &mut CudaCache<D>, len: usize, out: &mut Vec<u8>) -> Result<()> {
        for memory in cache.layers.iter().flatten() {
            for span in self.spans(cache, len) {
                let at = out.len();
                out.resize(at + (span.end - span.start) as usize, 0);
                self.driver().read(memory.address() + span.start, &mut out[at..])?;
            }
        }
        Ok(())
    }

    fn import(&mut self, cache: &mut CudaCache<D>, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(cache, len) as u64, from.len() as u64);
        if expected != found {
            return Err(CoreError::Length { what: "imported keys and values", expected, found }.into());
        }
        let mut rest = from;
        for memory in cache.layers.iter().flatten() {
            for span in self.spans(cache, len) {
                let (part, after) = rest.split_at((span.end - span.start) as usize);
                self.driver().write(memory.address() + span.start, part)?;
                rest = after;
            }
        }
        Ok(())
    }
}

impl<D: Driver> BlockingDevice for CudaDevice<D> {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        // No call of this device waits for anything but the driver.
        ready(future).unwrap_or(Err(CoreError::Device { problem: "a future of another one" }.into()))
    }
}
