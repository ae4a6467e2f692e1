//! Uploading a model to the GPU: tensor by tensor, in pieces, in the order of the file.

use crate::error::{Error, Result};
use crate::gpu::{Gpu, MAX_BINDING};
use shohin_accelerator::{Supported, check};
use shohin_core::gguf::{Event, Header};
use shohin_core::model::program::{BufferId, Op, TensorId, TensorRole};
use shohin_core::model::{ModelBytes, ModelConfig, Program};
use shohin_core::quant::packed::PackedFormat;
use shohin_core::{BonsaiModel, Error as CoreError, Format, Gguf, Name, quant};
use std::sync::Arc;
use wgpu::Buffer;

/// Bytes repacked before they are passed to the driver.
const STAGING: usize = 1 << 20;

/// Bytes passed to the driver before it is forced to process them.
const IN_FLIGHT: usize = 16 << 20;

/// A matrix, split by rows if it is too large for one binding or if its formats have no common layout.
pub(crate) struct Matrix {
    pub(crate) cols: usize,
    /// 2 for a matrix whose upper and lower half are combined row by row, otherwise 1.
    halves: usize,
    pub(crate) chunks: Vec<Chunk>,
}

/// Rows of a [`Matrix`]: those from `first_row` on, of each half.
pub(crate) struct Chunk {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) packed: PackedFormat,
    pub(crate) codes: Buffer,
    /// `None` for floats.
    pub(crate) scales: Option<Buffer>,
}

impl Chunk {
    /// The bindings for shaders of [`shader`](crate::packed::shader).
    pub(crate) fn bindings(&self) -> Vec<(u32, &Buffer)> {
        [(0, &self.codes)].into_iter().chain(self.scales.as_ref().map(|scales| (1, scales))).collect()
    }
}

/// A model whose weights are on a GPU, shared by any number of devices.
pub struct GpuModel {
    pub(crate) gpu: Arc<Gpu>,
    plan: UploadPlan,
    matrices: Vec<Matrix>,
    vectors: Vec<Buffer>,
}

impl core::fmt::Debug for GpuModel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuModel").field("gpu", &self.gpu).field("bytes", &self.bytes()).finish()
    }
}

impl GpuModel {
    /// Uploads a whole file to the GPU.
    ///
    /// # Errors
    /// If the file is malformed or not supported; [`Error::OutOfMemory`].
    pub async fn from_gguf(gpu: Arc<Gpu>, gguf: &Gguf<'_>) -> Result<Arc<GpuModel>> {
        Self::with_config(gpu, gguf, ModelConfig::from_gguf(gguf)?).await
    }

    /// As [`GpuModel::from_gguf`], with values of the configuration overridden (RoPE scaling, for example).
    ///
    /// # Errors
    /// As [`GpuModel::from_gguf`], and for an invalid configuration.
    pub async fn with_config(gpu: Arc<Gpu>, gguf: &Gguf<'_>, config: ModelConfig) -> Result<Arc<GpuModel>> {
        let mut upload = Upload::start(gpu, UploadPlan::with_config(gguf.header(), config)?).await?;
        for (index, tensor) in gguf.tensors().iter().enumerate() {
            upload.push(index, 0, gguf.data(tensor))?;
        }
        upload.finish()
    }

    /// Uploads a model, with the adapters that were applied to it; it is not needed any more then.
    ///
    /// # Errors
    /// If the model is not supported; [`Error::OutOfMemory`].
    pub async fn from_model<B: ModelBytes>(gpu: Arc<Gpu>, model: &BonsaiModel<B>) -> Result<Arc<GpuModel>> {
        let mut upload = Upload::start(gpu, UploadPlan::of_model(model)?).await?;
        for (index, id) in model.program().tensor_ids().enumerate() {
            upload.push(index, 0, model.weights().matrix(id)?.data())?;
        }
        upload.finish()
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.plan.config
    }

    /// Its forward pass.
    pub fn program(&self) -> &Program {
        &self.plan.program
    }

    /// The location of each tensor.
    pub fn plan(&self) -> &UploadPlan {
        &self.plan
    }

    /// Bytes of weights on the GPU.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// The matrix that holds `tensor`, which is its first one.
    pub(crate) fn matrix(&self, tensor: TensorId) -> Result<&Matrix> {
        match self.plan.places[tensor.index()] {
            Place::Rows { matrix, first: 0 } => Ok(&self.matrices[matrix]),
            Place::Rows { .. } | Place::Vector(_) => Err(shared(self.program(), tensor)),
        }
    }

    /// The buffer that holds `tensor`, a vector.
    pub(crate) fn vector(&self, tensor: TensorId) -> Result<&Buffer> {
        match self.plan.places[tensor.index()] {
            Place::Vector(vector) => Ok(&self.vectors[vector]),
            Place::Rows { .. } => Err(shared(self.program(), tensor)),
        }
    }
}

/// The error for a tensor that operations use in different ways.
fn shared(program: &Program, tensor: TensorId) -> Error {
    CoreError::Unsupported {
        key: Name::new("tensor"),
        found: Name::new(&program.tensor(tensor).name),
        expected: "tensors that all operations combine with the same others",
    }
    .into()
}

/// The location of a tensor of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A vector.
    Vector(usize),
    /// Rows from `first` of a matrix.
    Rows { matrix: usize, first: usize },
}

/// A tensor of the file.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    place: Place,
    /// The type id in the file, if it is one.
    id: Option<u32>,
    format: Format,
    rows: usize,
    cols: usize,
    len: u64,
    received: u64,
}

/// A matrix on the GPU.
#[derive(Clone, Debug)]
struct Shape {
    cols: usize,
    halves: usize,
    /// Rows by layout, first to last.
    parts: Vec<Part>,
}

/// Rows of one layout.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: usize,
    rows: usize,
    packed: PackedFormat,
}

impl Shape {
    /// Uses the same layout for all rows if there is a common one that takes little more memory, and for those
    /// of equal formats otherwise. Halves are combined row by row, so their layout must be the same.
    fn merge(&mut self) -> Result<()> {
        let bytes = |part: &Part, packed: PackedFormat| packed.bytes(part.rows, self.cols);
        let separate: u64 = self.parts.iter().map(|part| bytes(part, part.packed)).sum();
        let small = |all: PackedFormat| {
            let joined: u64 = self.parts.iter().map(|part| bytes(part, all)).sum();
            joined <= separate + separate / 4
        };
        let all = self.parts.iter().map(|part| Some(part.packed)).reduce(|a, b| a?.with(b?)).flatten();
        let all = all.filter(|&all| self.halves > 1 || small(all));
        let mut merged: Vec<Part> = Vec::new();
        for part in self.parts.drain(..) {
            match (merged.last_mut(), all) {
                (Some(last), Some(packed)) => (last.rows, last.packed) = (last.rows + part.rows, packed),
                (Some(last), None) if last.packed == part.packed => last.rows += part.rows,
                _ => merged.push(Part { packed: all.unwrap_or(part.packed), ..part }),
            }
        }
        self.parts = merged;
        if self.halves > 1 && self.parts.len() > 1 {
            return Err(Error::Unsupported {
                what: "the number of kinds of weights in the gate and up matrices of a block",
                found: self.parts.len() as u64,
                expected: "1: both floats or both integers",
            });
        }
        Ok(())
    }
}

/// Whether these outputs of a product are queries, keys and values: they are then stored side by side, and their matrices as one.
pub(crate) fn are_joined(program: &Program, outputs: &[(TensorId, BufferId)]) -> bool {
    program.body.iter().any(|op| match op {
        Op::RopeStore { q, k, v, .. } => outputs.iter().all(|(_, out)| [q, k, v].contains(&out)),
        _ => false,
    })
}

/// The tensors that an operation multiplies by the same input and that are stored as one matrix, for each matrix; and how many
/// of them are combined row by row.
fn combined(program: &Program, op: &Op) -> Vec<(Vec<TensorId>, usize)> {
    match op {
        Op::Embed { table, .. } => vec![(vec![*table], 1)],
        Op::Linear { outputs, .. } => {
            let tensors = outputs.iter().map(|(tensor, _)| *tensor);
            match are_joined(program, outputs) {
                true => vec![(tensors.collect(), 1)],
                false => tensors.map(|tensor| (vec![tensor], 1)).collect(),
            }
        }
        Op::LinearAdd { weight, .. } => vec![(vec![*weight], 1)],
        Op::LinearSwiglu { gate, up, .. } => vec![(vec![*gate, *up], 2)],
        Op::RmsNorm { .. }
        | Op::Experts(_)
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
        | Op::Select { .. }
        | Op::Merge { .. }
        | Op::Exchange(_) => Vec::new(),
    }
}

/// The contents of the GPU, computed from a file's header alone.
#[derive(Debug)]
pub struct UploadPlan {
    config: ModelConfig,
    program: Program,
    /// Indexed by tensor of the program.
    places: Vec<Place>,
    /// Indexed by tensor of the file.
    tensors: Vec<Tensor>,
    matrices: Vec<Shape>,
    /// Number of elements of each.
    vectors: Vec<usize>,
    /// Whether the program has the rotary frequencies that its factors divide already.
    divided: bool,
}

/// A tensor that is to be uploaded.
struct Stored {
    /// The type id in the file, if it is one.
    id: Option<u32>,
    format: Option<Format>,
    len: u64,
}

impl UploadPlan {
    /// Finds the place of every tensor.
    ///
    /// # Errors
    /// If the file is not a model of a known architecture, or has a format without kernels on the GPU.
    pub fn new(header: &Header<'_>) -> Result<UploadPlan> {
        Self::with_config(header, ModelConfig::from_header(header)?)
    }

    /// As [`UploadPlan::new`], with values of the configuration overridden.
    fn with_config(header: &Header<'_>, config: ModelConfig) -> Result<UploadPlan> {
        config.check()?;
        let program = config.program();
        let bound = program.bind(header)?;
        let tensors = header.tensors().iter();
        let stored =
            tensors.map(|info| Stored { id: Some(info.type_id()), format: info.format(), len: info.len() });
        Self::place(config, program, &stored.collect::<Vec<_>>(), bound)
    }

    /// That of a model, whose tensors come in the order of its program.
    fn of_model<B: ModelBytes>(model: &BonsaiModel<B>) -> Result<UploadPlan> {
        let (program, weights) = (model.program().clone(), model.weights());
        let stored = program.tensor_ids().map(|id| Stored {
            id: None,
            format: Some(weights.format(id)),
            len: weights.len(id) as u64,
        });
        let stored: Vec<Stored> = stored.collect();
        let bound = (0..stored.len()).collect();
        let plan = Self::place(model.config().clone(), program, &stored, bound)?;
        Ok(UploadPlan { divided: true, ..plan })
    }

    /// Finds the place of every tensor: those of the program are the ones of `stored` with the indices `bound`.
    fn place(
        config: ModelConfig,
        program: Program,
        stored: &[Stored],
        bound: Vec<usize>,
    ) -> Result<UploadPlan> {
        check(&program, Supported { experts: false, ranks: false })?;
        let mut vectors = Vec::new();
        let mut places: Vec<Option<Place>> = Vec::new();
        for spec in &program.tensors {
            places.push(match spec.role {
                TensorRole::Vector => {
                    vectors.push(spec.rows * spec.cols);
                    Some(Place::Vector(vectors.len() - 1))
                }
                TensorRole::Matrix => None,
            });
        }
        let mut matrices: Vec<Shape> = Vec::new();
        let mut lists = Vec::new();
        let ops = program.body.iter().chain(&program.head).flat_map(|op| combined(&program, op));
        for (list, halves) in ops.chain([(vec![program.output], 1)]) {
            let Some(&first) = list.first() else { continue };
            // The embedding may be the output, too.
            if lists.contains(&(list.clone(), halves)) {
                continue;
            }
            let (matrix, mut row) = (matrices.len(), 0);
            matrices.push(Shape { cols: program.tensor(first).cols, halves, parts: Vec::new() });
            for &tensor in &list {
                if places[tensor.index()].replace(Place::Rows { matrix, first: row }).is_some() {
                    return Err(shared(&program, tensor));
                }
                row += program.tensor(tensor).rows;
            }
            lists.push((list, halves));
        }
        let mut placed = Vec::new();
        for (place, spec) in places.into_iter().zip(&program.tensors) {
            // Every matrix must be used by a product.
            placed.push(place.ok_or(CoreError::Unsupported {
                key: Name::new("tensor"),
                found: Name::new(&spec.name),
                expected: "tensors that an operation uses",
            })?);
        }
        let mut tensors: Vec<Option<Tensor>> = vec![None; stored.len()];
        for ((spec, &place), index) in program.tensors.iter().zip(&placed).zip(bound) {
            let Stored { id, format, len } = stored[index];
            let usable = |format: &Format| match place {
                Place::Vector(_) => format.is_float(),
                Place::Rows { .. } => PackedFormat::of(*format).is_some(),
            };
            let format = format.filter(usable).ok_or(Error::Unsupported {
                what: "the type of a tensor",
                found: id.map_or(0, u64::from),
                expected: "one that the GPU computes with",
            })?;
            if let (Place::Rows { matrix, first }, Some(packed)) = (place, PackedFormat::of(format)) {
                if !spec.cols.is_multiple_of(32) {
                    return Err(Error::Unsupported {
                        what: "a matrix's number of columns",
                        found: spec.cols as u64,
                        expected: "a multiple of 32",
                    });
                }
                matrices[matrix].parts.push(Part { first, rows: spec.rows, packed });
            }
            tensors[index] =
                Some(Tensor { place, id, format, rows: spec.rows, cols: spec.cols, len, received: 0 });
        }
        for shape in &mut matrices {
            shape.parts.sort_unstable_by_key(|part| part.first);
            shape.merge()?;
        }
        // Every tensor of the file belongs to the program.
        let tensors = tensors.into_iter().flatten().collect();
        Ok(UploadPlan { config, program, places: placed, tensors, matrices, vectors, divided: false })
    }

    /// Takes the frequencies for a context. Places stay, as the program has the same tensors.
    fn for_context(&mut self, tokens: usize) {
        self.config = self.config.clone().for_context(tokens);
        self.program = self.config.program();
    }

    /// Whether the rotary frequencies of some context are divided by the vector at `place`.
    fn are_factors(&self, place: Place) -> bool {
        let mut tensors = self.places.iter().zip(&self.program.tensors);
        tensors.any(|(&found, spec)| found == place && spec.name.starts_with("rope_"))
    }

    /// Divides the frequencies by those of `all` that are for the context, if any are.
    fn divide_rope(&mut self, all: &Factors) -> Result<()> {
        let divides = !self.divided && self.config.positions.divides_rope();
        let Some(id) = self.program.rope_factors.filter(|_| divides) else {
            return Ok(());
        };
        let found = all.iter().find(|(place, _)| *place == self.places[id.index()]);
        let (_, factors) =
            found.ok_or(CoreError::Device { problem: "the factors of the frequencies were not kept" })?;
        Ok(self.program.divide_rope(factors)?)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its forward pass.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The layouts of the matrix that holds `tensor`.
    pub(crate) fn layouts(&self, tensor: TensorId) -> impl Iterator<Item = PackedFormat> {
        let matrix = match self.places[tensor.index()] {
            Place::Rows { matrix, .. } => Some(&self.matrices[matrix]),
            Place::Vector(_) => None,
        };
        matrix.into_iter().flat_map(|matrix| &matrix.parts).map(|part| part.packed)
    }

    /// Bytes of weights on the GPU.
    pub fn bytes(&self) -> u64 {
        let bytes = |m: &Shape| m.parts.iter().map(|p| p.packed.bytes(p.rows, m.cols)).sum::<u64>();
        self.matrices.iter().map(bytes).sum::<u64>() + 4 * self.vectors.iter().sum::<usize>() as u64
    }
}

/// The tensors of the file that the rotary frequencies can be divided by. The context says by which.
type Factors = Vec<(Place, Vec<f32>)>;

/// A model being uploaded. Only a few megabytes of it are in this program's memory at a time.
pub struct Upload {
    gpu: Arc<Gpu>,
    plan: UploadPlan,
    matrices: Vec<Matrix>,
    vectors: Vec<Buffer>,
    factors: Factors,
    /// The tensor whose bytes come now, and its bytes that are not a whole row yet.
    current: usize,
    carry: Vec<u8>,
    codes: Vec<u32>,
    scales: Vec<u32>,
    in_flight: usize,
}

impl core::fmt::Debug for Upload {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Upload").field("current", &self.current).finish()
    }
}

impl Upload {
    /// Allocates memory for the model that `header` describes.
    ///
    /// # Errors
    /// Those of [`UploadPlan::new`], and [`Error::OutOfMemory`].
    pub async fn new(gpu: Arc<Gpu>, header: &Header<'_>) -> Result<Upload> {
        Self::start(gpu, UploadPlan::new(header)?).await
    }

    /// Allocates memory for the tensors of `plan`.
    async fn start(gpu: Arc<Gpu>, plan: UploadPlan) -> Result<Upload> {
        let mut matrices = Vec::new();
        for shape in &plan.matrices {
            let &Shape { cols, halves, .. } = shape;
            let mut chunks = Vec::new();
            for part in &shape.parts {
                let packed = part.packed;
                let (code_words, scale_words) = (packed.code_words(cols), packed.scale_words(cols));
                let fit = MAX_BINDING as usize / (4 * code_words.max(scale_words)).max(1);
                let max = fit.min(gpu.split_rows) / halves / 64 * 64;
                if max == 0 {
                    let (what, found) = ("a matrix's number of columns", cols as u64);
                    return Err(Error::Unsupported { what, found, expected: "64 rows in 128 MiB" });
                }
                let end = part.first + part.rows / halves;
                for first_row in (part.first..end).step_by(max) {
                    let rows = max.min(end - first_row) * halves;
                    let codes = gpu.storage("codes", 4 * (rows * code_words) as u64).await?;
                    let scales = match scale_words {
                        0 => None,
                        _ => Some(gpu.storage("scales", 4 * (rows * scale_words) as u64).await?),
                    };
                    chunks.push(Chunk { first_row, rows, packed, codes, scales });
                }
            }
            matrices.push(Matrix { cols, halves, chunks });
        }
        let mut vectors = Vec::new();
        for &len in &plan.vectors {
            vectors.push(gpu.storage("vector", 4 * len as u64).await?);
        }
        Ok(Upload {
            gpu,
            plan,
            matrices,
            vectors,
            factors: Vec::new(),
            current: 0,
            carry: Vec::new(),
            codes: Vec::new(),
            scales: Vec::new(),
            in_flight: 0,
        })
    }

    /// The plan of the upload.
    pub fn plan(&self) -> &UploadPlan {
        &self.plan
    }

    /// Takes an event of a [`shohin_core::gguf::GgufStream`].
    ///
    /// # Errors
    /// Those of [`Upload::push`].
    pub fn event(&mut self, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Header(_) => Ok(()),
            Event::CodesFirst => {
                // Type 142 always means one of the three layouts.
                let doubtful = |t: &&mut Tensor| t.id == Some(42) && t.format == Format::Pq2_0;
                for tensor in self.plan.tensors.iter_mut().filter(doubtful) {
                    tensor.format = Format::Tq2_0G128;
                }
                Ok(())
            }
            Event::TensorData { index, offset, bytes } => self.push(index, offset, bytes),
        }
    }

    /// Takes the next bytes of tensor `index` of the header, which begin at byte `offset` of it. A tensor's
    /// bytes come in order, and all of them before the next tensor's.
    ///
    /// # Errors
    /// [`CoreError::Length`] for bytes out of order; errors of the GPU.
    pub fn push(&mut self, index: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let out_of_turn =
            |expected, found| Error::Core(CoreError::Length { what: "uploaded tensor", expected, found });
        let count = self.plan.tensors.len() as u64;
        let tensor = self.plan.tensors.get_mut(index).ok_or(out_of_turn(count, index as u64))?;
        let end = offset.saturating_add(bytes.len() as u64);
        if tensor.received != offset || end > tensor.len || (index != self.current && !self.carry.is_empty())
        {
            return Err(out_of_turn(tensor.received, offset));
        }
        tensor.received = end;
        let tensor = *tensor;
        self.current = index;
        match tensor.place {
            Place::Vector(vector) => {
                self.carry.extend_from_slice(bytes);
                if tensor.received == tensor.len {
                    let mut weight = vec![0.0; tensor.cols];
                    quant::unpack(tensor.format, &self.carry, &mut weight)?;
                    self.carry.clear();
                    let bytes = bytemuck::cast_slice(&weight);
                    self.gpu.queue.write_buffer(&self.vectors[vector], 0, bytes);
                    if self.plan.are_factors(tensor.place) {
                        self.factors.push((tensor.place, weight));
                    }
                }
            }
            Place::Rows { matrix, first } => self.rows(&tensor, matrix, first, offset, bytes)?,
        }
        self.gpu.check()
    }

    fn rows(
        &mut self,
        tensor: &Tensor,
        matrix: usize,
        first: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let row_bytes = (tensor.len / tensor.rows as u64) as usize;
        let mut row = first + ((offset - self.carry.len() as u64) / row_bytes as u64) as usize;
        let mut rest = bytes;
        if !self.carry.is_empty() {
            let (now, after) = rest.split_at(rest.len().min(row_bytes - self.carry.len()));
            self.carry.extend_from_slice(now);
            rest = after;
            if self.carry.len() < row_bytes {
                return Ok(());
            }
            let whole = core::mem::take(&mut self.carry);
            self.write(tensor.format, matrix, row, &whole, row_bytes);
            row += 1;
        }
        let whole = rest.len() / row_bytes * row_bytes;
        let (now, after) = rest.split_at(whole);
        self.write(tensor.format, matrix, row, now, row_bytes);
        self.carry.extend_from_slice(after);
        Ok(())
    }

    /// Repacks whole rows and writes them from row `row` of the matrix on.
    fn write(&mut self, format: Format, matrix: usize, mut row: usize, packed: &[u8], row_bytes: usize) {
        let m = &self.matrices[matrix];
        let mut rest = packed;
        let half = m.chunks.iter().map(|chunk| chunk.rows / m.halves).sum::<usize>().max(1);
        while !rest.is_empty() {
            let (in_half, within) = (row / half, row % half);
            let rows_of = |chunk: &Chunk| chunk.first_row..chunk.first_row + chunk.rows / m.halves;
            // Chunks cover all rows.
            let Some(chunk) = m.chunks.iter().find(|chunk| rows_of(chunk).contains(&within)) else { return };
            let (code_words, scale_words) =
                (chunk.packed.code_words(m.cols), chunk.packed.scale_words(m.cols));
            let staged = (STAGING / (4 * code_words).max(1)).max(1);
            let count = staged.min(rows_of(chunk).end - within).min(rest.len() / row_bytes);
            let (now, after) = rest.split_at(count * row_bytes);
            rest = after;
            for row in now.chunks_exact(row_bytes) {
                chunk.packed.repack(format, row, &mut self.codes, &mut self.scales);
            }
            let at = in_half * chunk.rows / m.halves + within - chunk.first_row;
            let queue = &self.gpu.queue;
            queue.write_buffer(&chunk.codes, 4 * (at * code_words) as u64, bytemuck::cast_slice(&self.codes));
            if let Some(scales) = &chunk.scales {
                queue.write_buffer(scales, 4 * (at * scale_words) as u64, bytemuck::cast_slice(&self.scales));
            }
            row += count;
            self.in_flight += 4 * (self.codes.len() + self.scales.len());
            self.codes.clear();
            self.scales.clear();
            if self.in_flight >= IN_FLIGHT {
                self.in_flight = 0;
                // Otherwise the driver would keep a copy of everything until the first token.
                queue.submit([]);
                self.gpu.wait();
            }
        }
    }

    /// The complete model for contexts of at most `context` tokens, see [`ModelConfig::for_context`].
    ///
    /// # Errors
    /// As [`Upload::finish`].
    pub fn finish_for(mut self, context: usize) -> Result<Arc<GpuModel>> {
        self.plan.for_context(context);
        self.finish()
    }

    /// The complete model.
    ///
    /// # Errors
    /// [`CoreError::Truncated`] if it is incomplete; for factors of the rotary frequencies that are not positive.
    pub fn finish(self) -> Result<Arc<GpuModel>> {
        if let Some(tensor) = self.plan.tensors.iter().find(|t| t.received != t.len) {
            let (at, need) = (tensor.received, tensor.len - tensor.received);
            return Err(CoreError::Truncated { what: "uploaded tensor", at, need, have: 0 }.into());
        }
        self.gpu.queue.submit([]);
        self.gpu.wait();
        self.gpu.check()?;
        let Upload { gpu, mut plan, matrices, vectors, factors, .. } = self;
        plan.divide_rope(&factors)?;
        Ok(Arc::new(GpuModel { gpu, plan, matrices, vectors }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::BonsaiModel;
    use shohin_tests::long_rope::long_rope;

    /// In a browser the file arrives before the context is known.
    #[test]
    fn the_context_chooses_the_frequencies_after_the_upload() {
        let file = long_rope(&shohin_tests::model::Model::tiny(Format::Q8_0), 8, 64).unwrap();
        let gguf = Gguf::parse(&file).unwrap();
        let upload = |context: Option<usize>| {
            let mut plan = UploadPlan::new(gguf.header()).unwrap();
            let mut factors = Factors::new();
            for tensor in gguf.tensors().iter().filter(|tensor| tensor.name().starts_with("rope_")) {
                let place = plan.tensors[gguf.header().tensor_index(tensor.name()).unwrap()].place;
                assert!(plan.are_factors(place));
                let (bytes, _) = gguf.data(tensor).as_chunks();
                factors.push((place, bytes.iter().map(|&b| f32::from_le_bytes(b)).collect()));
            }
            assert_eq!(factors.len(), 2);
            context.into_iter().for_each(|tokens| plan.for_context(tokens));
            plan.divide_rope(&factors).unwrap();
            plan
        };
        let expected = |context| {
            let config = ModelConfig::from_gguf(&gguf).unwrap().for_context(context);
            BonsaiModel::with_config(&gguf, config).unwrap()
        };
        assert_ne!(expected(8).program().rotations, expected(9).program().rotations);
        for context in [8, 9, 64] {
            assert_eq!(upload(Some(context)).program.rotations, expected(context).program().rotations);
        }
        assert_eq!(upload(None).program.rotations, expected(64).program().rotations);
    }
}
