//! The model on the GPU, and the way it gets there: tensor by tensor, in pieces, in the order of the file.

use crate::device::{Gpu, MAX_BINDING};
use crate::error::{Error, Result};
use crate::form::Form;
use shohin_core::gguf::{Event, Header};
use shohin_core::model::Qwen3Config;
use shohin_core::{Error as CoreError, Format, Gguf, Name, quant};
use std::sync::Arc;
use wgpu::Buffer;

/// Bytes repacked before they are handed to the driver.
const STAGING: usize = 1 << 20;

/// Bytes handed to the driver before it is made to take them.
const IN_FLIGHT: usize = 16 << 20;

/// A matrix in the form of [`Form`], split by rows where it is too large for one binding.
pub(crate) struct Matrix {
    pub(crate) form: Form,
    pub(crate) cols: usize,
    pub(crate) chunks: Vec<Chunk>,
}

/// Rows of a [`Matrix`].
pub(crate) struct Chunk {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) codes: Buffer,
    pub(crate) scales: Buffer,
}

/// A transformer block. What reads the same input is one matrix.
pub(crate) struct Block {
    /// `(hidden)`
    pub(crate) attn_norm: Buffer,
    /// `(2, head_dim)`: of queries, of keys.
    pub(crate) qk_norm: Buffer,
    /// `(hidden)`
    pub(crate) ffn_norm: Buffer,
    /// `(q_size + 2 kv_size, hidden)`
    pub(crate) qkv: Matrix,
    /// `(hidden, q_size)`
    pub(crate) attn_output: Matrix,
    /// `(2 intermediate, hidden)`: gate, up.
    pub(crate) gate_up: Matrix,
    /// `(hidden, intermediate)`
    pub(crate) ffn_down: Matrix,
}

/// A model whose weights are on a GPU, shared by any number of sessions.
pub struct GpuModel {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) config: Qwen3Config,
    pub(crate) token_embd: Matrix,
    pub(crate) blocks: Vec<Block>,
    pub(crate) output_norm: Buffer,
    /// `None` where the embedding is the head.
    output: Option<Matrix>,
    bytes: u64,
}

impl core::fmt::Debug for GpuModel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GpuModel").field("gpu", &self.gpu).field("bytes", &self.bytes).finish()
    }
}

impl GpuModel {
    /// Puts a whole file onto the GPU.
    ///
    /// # Errors
    /// What is wrong with the file, or [`Error::OutOfMemory`].
    pub async fn from_gguf(gpu: Arc<Gpu>, gguf: &Gguf<'_>) -> Result<Arc<GpuModel>> {
        let mut upload = Upload::new(gpu, gguf.header()).await?;
        for (index, tensor) in gguf.tensors().iter().enumerate() {
            upload.push(index, 0, gguf.data(tensor))?;
        }
        upload.finish()
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The model's numbers.
    pub fn config(&self) -> &Qwen3Config {
        &self.config
    }

    /// Bytes of weights on the GPU.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn output(&self) -> &Matrix {
        self.output.as_ref().unwrap_or(&self.token_embd)
    }
}

/// Where a tensor goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// Elements from `first` of a norm.
    Norm { norm: usize, first: usize },
    /// Rows from `first` of a matrix.
    Rows { matrix: usize, first: usize },
}

/// A tensor of the file.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    target: Target,
    /// The type in the file.
    id: u32,
    format: Format,
    rows: usize,
    cols: usize,
    len: u64,
    received: u64,
}

/// Rows, columns, form of a matrix on the GPU.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    cols: usize,
    form: Option<Form>,
}

/// What will be on the GPU, known from a file's header alone.
#[derive(Debug)]
pub struct Layout {
    config: Qwen3Config,
    tensors: Vec<Tensor>,
    /// Embedding, four a block, and the head if it is not the embedding.
    matrices: Vec<Shape>,
    /// Elements of each: three a block, and the last one.
    norms: Vec<usize>,
}

impl Layout {
    /// Finds every tensor's place.
    ///
    /// # Errors
    /// For a file that is no Qwen3 model, a shape that its metadata contradicts, or a format without kernels on the
    /// GPU.
    pub fn new(header: &Header<'_>) -> Result<Layout> {
        let config = Qwen3Config::from_header(header)?;
        let (h, f, d) = (config.hidden_size, config.intermediate_size, config.head_dim);
        let (q, kv, v) = (config.q_size(), config.kv_size(), config.vocab_size);
        if !d.is_multiple_of(32) || d > 256 {
            let what = "the number of dimensions of a head";
            return Err(Error::Unsupported {
                what,
                found: d as u64,
                expected: "a multiple of 32, at most 256",
            });
        }
        let mut matrices = vec![Shape { rows: v, cols: h, form: None }];
        let mut norms = Vec::new();
        for _ in 0..config.num_layers {
            for (rows, cols) in [(q + 2 * kv, h), (h, q), (2 * f, h), (h, f)] {
                matrices.push(Shape { rows, cols, form: None });
            }
            norms.extend([h, 2 * d, h]);
        }
        norms.push(h);
        if !config.tied_embeddings {
            matrices.push(Shape { rows: v, cols: h, form: None });
        }
        let mut tensors = Vec::new();
        for info in header.tensors() {
            let name = Name::new(info.name());
            let (target, rows, cols) = place(info.name(), &config).ok_or(CoreError::Unsupported {
                key: Name::new("tensor"),
                found: name,
                expected: "only tensors of qwen3",
            })?;
            let dims = info.dims();
            let (found_cols, found_rows) = (dims[0], info.elements() / dims[0]);
            if (found_rows, found_cols) != (rows as u64, cols as u64) {
                let (expected, found) = ([cols as u64, rows as u64], [found_cols, found_rows]);
                return Err(CoreError::TensorShape { name, expected, found }.into());
            }
            let usable = |format: &Format| match target {
                Target::Norm { .. } => format.is_float(),
                Target::Rows { .. } => Form::of(*format).is_some(),
            };
            let format = info.format().filter(usable).ok_or(Error::Unsupported {
                what: "the type of a tensor",
                found: u64::from(info.type_id()),
                expected: "1-bit or ternary",
            })?;
            if let Target::Rows { matrix, .. } = target
                && let Some(form) = Form::of(format)
            {
                let shared = &mut matrices[matrix].form;
                *shared = Some(shared.map_or(form, |other| other.with(form)));
            }
            let (id, len) = (info.type_id(), info.len());
            tensors.push(Tensor { target, id, format, rows, cols, len, received: 0 });
        }
        let wanted = 2 + 11 * config.num_layers + usize::from(!config.tied_embeddings);
        if tensors.len() != wanted {
            // Names are unique and each was known, so something is not there.
            let name = missing(header, &config).unwrap_or_default();
            return Err(CoreError::MissingTensor { name: Name::new(name) }.into());
        }
        Ok(Layout { config, tensors, matrices, norms })
    }

    /// The model's numbers.
    pub fn config(&self) -> &Qwen3Config {
        &self.config
    }

    /// Bytes of weights on the GPU.
    pub fn bytes(&self) -> u64 {
        let matrices = self.matrices.iter().filter_map(|m| m.form.map(|form| form.bytes(m.rows, m.cols)));
        matrices.sum::<u64>() + 4 * self.norms.iter().sum::<usize>() as u64
    }
}

/// The parts of a block: matrix (or, from 4 on, norm) within the block.
const BLOCK: [(&str, usize); 11] = [
    ("attn_q", 0),
    ("attn_k", 0),
    ("attn_v", 0),
    ("attn_output", 1),
    ("ffn_gate", 2),
    ("ffn_up", 2),
    ("ffn_down", 3),
    ("attn_norm", 4),
    ("attn_q_norm", 5),
    ("attn_k_norm", 5),
    ("ffn_norm", 6),
];

/// Where the tensor of this name goes, and its shape (rows, columns).
fn place(name: &str, c: &Qwen3Config) -> Option<(Target, usize, usize)> {
    let (h, f, d, q, kv) = (c.hidden_size, c.intermediate_size, c.head_dim, c.q_size(), c.kv_size());
    match name {
        "token_embd.weight" => return Some((Target::Rows { matrix: 0, first: 0 }, c.vocab_size, h)),
        "output.weight" => {
            return Some((Target::Rows { matrix: 1 + 4 * c.num_layers, first: 0 }, c.vocab_size, h));
        }
        "output_norm.weight" => return Some((Target::Norm { norm: 3 * c.num_layers, first: 0 }, 1, h)),
        _ => {}
    }
    let (index, part) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    let layer = index.parse().ok().filter(|&i: &usize| i < c.num_layers && index == i.to_string())?;
    let (_, within) = *BLOCK.iter().find(|(known, _)| *known == part)?;
    let (first, rows, cols) = match part {
        "attn_q" => (0, q, h),
        "attn_k" => (q, kv, h),
        "attn_v" => (q + kv, kv, h),
        "attn_output" => (0, h, q),
        "ffn_gate" => (0, f, h),
        "ffn_up" => (f, f, h),
        "ffn_down" => (0, h, f),
        "attn_q_norm" => (0, 1, d),
        "attn_k_norm" => (d, 1, d),
        _ => (0, 1, h),
    };
    let target = match within {
        0..4 => Target::Rows { matrix: 1 + 4 * layer + within, first },
        norm => Target::Norm { norm: 3 * layer + norm - 4, first },
    };
    Some((target, rows, cols))
}

fn missing(header: &Header<'_>, config: &Qwen3Config) -> Option<String> {
    let blocks = (0..config.num_layers).flat_map(|i| BLOCK.map(|(part, _)| format!("blk.{i}.{part}.weight")));
    let mut all = ["token_embd.weight".into(), "output_norm.weight".into()].into_iter().chain(blocks);
    all.find(|name| header.tensor(name).is_none())
}

/// A model on its way to the GPU. Only a few megabytes of it are in this program's memory at a time.
pub struct Upload {
    gpu: Arc<Gpu>,
    layout: Layout,
    matrices: Vec<Matrix>,
    norms: Vec<Buffer>,
    /// The tensor whose bytes come now, and those of its bytes that are no whole row yet.
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
    /// Takes memory for the model that `header` describes.
    ///
    /// # Errors
    /// Those of [`Layout::new`], and [`Error::OutOfMemory`].
    pub async fn new(gpu: Arc<Gpu>, header: &Header<'_>) -> Result<Upload> {
        let layout = Layout::new(header)?;
        let mut matrices = Vec::new();
        for (i, shape) in layout.matrices.iter().enumerate() {
            let &Shape { rows, cols, form: Some(form) } = shape else { continue };
            let (code_words, scale_words) = (form.code_words(cols), form.scale_words(cols));
            // Only the embedding and the head may be split: the others are computed with as one.
            let whole = i != 0 && i <= 4 * layout.config.num_layers;
            let fit = MAX_BINDING as usize / (4 * code_words.max(scale_words)).max(1);
            let most = if whole { fit } else { fit.min(gpu.split_rows) } / 64 * 64;
            if most == 0 || (whole && rows > most) {
                let what = "a tensor's number of rows";
                return Err(Error::Unsupported { what, found: rows as u64, expected: "what fits 128 MiB" });
            }
            let mut chunks = Vec::new();
            for first_row in (0..rows).step_by(most) {
                let rows = most.min(rows - first_row);
                let codes = gpu.storage("codes", 4 * (rows * code_words) as u64).await?;
                let scales = gpu.storage("scales", 4 * (rows * scale_words) as u64).await?;
                chunks.push(Chunk { first_row, rows, codes, scales });
            }
            matrices.push(Matrix { form, cols, chunks });
        }
        let mut norms = Vec::new();
        for &len in &layout.norms {
            norms.push(gpu.storage("norm", 4 * len as u64).await?);
        }
        Ok(Upload {
            gpu,
            layout,
            matrices,
            norms,
            current: 0,
            carry: Vec::new(),
            codes: Vec::new(),
            scales: Vec::new(),
            in_flight: 0,
        })
    }

    /// What is being uploaded.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Takes an event of a [`shohin_core::gguf::GgufStream`].
    ///
    /// # Errors
    /// Those of [`Upload::push`].
    pub fn event(&mut self, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Header(_) => Ok(()),
            Event::CodesFirst => {
                // Type 142 is another name for one of the three, and means what it says.
                let doubtful = |t: &&mut Tensor| t.id == 42 && t.format == Format::Pq2_0;
                for tensor in self.layout.tensors.iter_mut().filter(doubtful) {
                    tensor.format = Format::Tq2_0G128;
                }
                Ok(())
            }
            Event::TensorData { index, offset, bytes } => self.push(index, offset, bytes),
        }
    }

    /// Takes the next bytes of tensor `index` of the header, which begin at byte `offset` of it. A tensor's bytes
    /// come in order, and all of them before the next tensor's.
    ///
    /// # Errors
    /// [`CoreError::Length`] for bytes out of turn; whatever the GPU says.
    pub fn push(&mut self, index: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let out_of_turn =
            |expected, found| Error::Core(CoreError::Length { what: "uploaded tensor", expected, found });
        let count = self.layout.tensors.len() as u64;
        let tensor = self.layout.tensors.get_mut(index).ok_or(out_of_turn(count, index as u64))?;
        let end = offset.saturating_add(bytes.len() as u64);
        if tensor.received != offset || end > tensor.len || (index != self.current && !self.carry.is_empty())
        {
            return Err(out_of_turn(tensor.received, offset));
        }
        tensor.received = end;
        let tensor = *tensor;
        self.current = index;
        match tensor.target {
            Target::Norm { norm, first } => {
                self.carry.extend_from_slice(bytes);
                if tensor.received == tensor.len {
                    let mut weight = vec![0.0; tensor.cols];
                    quant::unpack(tensor.format, &self.carry, &mut weight)?;
                    self.carry.clear();
                    let bytes = bytemuck::cast_slice(&weight);
                    self.gpu.queue.write_buffer(&self.norms[norm], 4 * first as u64, bytes);
                }
            }
            Target::Rows { matrix, first } => self.rows(&tensor, matrix, first, offset, bytes)?,
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
        let form = self.matrices[matrix].form;
        let mut row = first + ((offset - self.carry.len() as u64) / row_bytes as u64) as usize;
        let mut rest = bytes;
        if !self.carry.is_empty() {
            let (now, behind) = rest.split_at(rest.len().min(row_bytes - self.carry.len()));
            self.carry.extend_from_slice(now);
            rest = behind;
            if self.carry.len() < row_bytes {
                return Ok(());
            }
            let whole = core::mem::take(&mut self.carry);
            form.repack(tensor.format, &whole, &mut self.codes, &mut self.scales);
            self.flush(matrix, row, 1);
            row += 1;
        }
        let rows = rest.chunks_exact(row_bytes);
        self.carry.extend_from_slice(rows.remainder());
        let mut held = 0;
        for packed in rows {
            form.repack(tensor.format, packed, &mut self.codes, &mut self.scales);
            held += 1;
            if 4 * self.codes.len() >= STAGING {
                self.flush(matrix, row, held);
                row += held;
                held = 0;
            }
        }
        self.flush(matrix, row, held);
        Ok(())
    }

    /// Writes the repacked rows from `row` on.
    fn flush(&mut self, matrix: usize, mut row: usize, count: usize) {
        let m = &self.matrices[matrix];
        let (code_words, scale_words) = (m.form.code_words(m.cols), m.form.scale_words(m.cols));
        let end = row + count;
        let (mut codes, mut scales) = (&self.codes[..], &self.scales[..]);
        for chunk in &m.chunks {
            let behind = chunk.first_row + chunk.rows;
            if row < chunk.first_row || row >= behind || row >= end {
                continue;
            }
            let rows = end.min(behind) - row;
            let at = row - chunk.first_row;
            let (now, later) = codes.split_at(rows * code_words);
            self.gpu.queue.write_buffer(
                &chunk.codes,
                4 * (at * code_words) as u64,
                bytemuck::cast_slice(now),
            );
            codes = later;
            let (now, later) = scales.split_at(rows * scale_words);
            self.gpu.queue.write_buffer(
                &chunk.scales,
                4 * (at * scale_words) as u64,
                bytemuck::cast_slice(now),
            );
            scales = later;
            row += rows;
        }
        self.in_flight += 4 * (self.codes.len() + self.scales.len());
        self.codes.clear();
        self.scales.clear();
        if self.in_flight >= IN_FLIGHT {
            self.in_flight = 0;
            // Otherwise the driver would keep a copy of everything until the first token.
            self.gpu.queue.submit([]);
            self.gpu.wait();
        }
    }

    /// The model, once all of it is there.
    ///
    /// # Errors
    /// [`CoreError::Truncated`] if something is missing.
    pub fn finish(self) -> Result<Arc<GpuModel>> {
        if let Some(tensor) = self.layout.tensors.iter().find(|t| t.received != t.len) {
            let (at, need) = (tensor.received, tensor.len - tensor.received);
            return Err(CoreError::Truncated { what: "uploaded tensor", at, need, have: 0 }.into());
        }
        self.gpu.queue.submit([]);
        self.gpu.wait();
        self.gpu.check()?;
        let bytes = self.layout.bytes();
        let config = self.layout.config;
        let absent = CoreError::MissingTensor { name: Name::new("token_embd.weight") };
        let mut matrices = self.matrices.into_iter();
        let mut norms = self.norms.into_iter();
        let token_embd = matrices.next().ok_or(absent)?;
        let mut blocks = Vec::new();
        for _ in 0..config.num_layers {
            let mut matrix = || matrices.next().ok_or(absent);
            let mut norm = || norms.next().ok_or(absent);
            blocks.push(Block {
                attn_norm: norm()?,
                qk_norm: norm()?,
                ffn_norm: norm()?,
                qkv: matrix()?,
                attn_output: matrix()?,
                gate_up: matrix()?,
                ffn_down: matrix()?,
            });
        }
        let output_norm = norms.next().ok_or(absent)?;
        let gpu = self.gpu;
        Ok(Arc::new(GpuModel {
            gpu,
            config,
            token_embd,
            blocks,
            output_norm,
            output: matrices.next(),
            bytes,
        }))
    }
}
