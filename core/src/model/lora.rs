//! LoRA adapters (Hu et al. 2021, arXiv:2106.09685), applied while the model runs: its own weights stay packed.
//!
//! ```text
//! y = W x + s (alpha / r) B (A x)      A: (r, inputs)   B: (outputs, r)   s: the scale at which it is applied
//! ```
//! An adapter is a GGUF file as llama.cpp reads it: `general.type` is `adapter`, `adapter.type` is `lora`,
//! `general.architecture` that of the model, and for each adapted matrix `NAME` of the model, which has `(outputs, inputs)`,
//!
//! | tensor | dimensions in the file, the innermost first |
//! |---|---|
//! | `NAME.lora_a` | `inputs, r` |
//! | `NAME.lora_b` | `r, outputs` |
//!
//! `adapter.lora.alpha` is `alpha`; if it is 0 or missing, `alpha / r` is 1. Factors are computed in f32 with f32 inputs,
//! also where the model's own matrices are multiplied in integers.
//!
//! For GPUs, ranks are filled up with zeros to a multiple of [`UNIT`].
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use half::{bf16, f16};
use heapless::Vec as ArrayVec;

use super::program::{Activation, BufferId, MAX_OUTPUTS, Op, Program, TensorId, TensorRole, TensorSpec};
use super::weights::StoredTensor;
use crate::error::{Error, Name, Result};
use crate::gguf::{Gguf, Metadata};
use crate::quant::{Format, Matrix};

/// The value of `general.type` in an adapter's file.
pub const ADAPTER: &str = "adapter";

/// Columns that the kernels of GPUs take at once: for them, ranks are filled up to a multiple of it, see
/// [`BonsaiModel::adapt_padded`](super::BonsaiModel::adapt_padded).
pub const UNIT: usize = 32;

/// End of the name of the factor that is multiplied first, `(r, inputs)`.
pub const A: &str = ".lora_a";
/// End of the name of the second, `(outputs, r)`.
pub const B: &str = ".lora_b";

/// Kernels read whole cache lines.
const ALIGNMENT: usize = 64;

/// Names of the buffers between two factors, `(rows, r)`.
const BETWEEN: [&str; MAX_OUTPUTS] = ["lora 0", "lora 1", "lora 2", "lora 3"];

/// Refuses an adapter in the place of a model.
///
/// # Errors
/// [`Error::Unsupported`].
pub fn refuse_adapter(gguf: &Gguf<'_>) -> Result<()> {
    let key = "general.type";
    match gguf.metadata().str(key) {
        Ok(Some(ADAPTER)) => Err(error!(Unsupported {
            key: Name::new(key),
            found: Name::new(ADAPTER),
            expected: "a model, to which adapters are applied (--lora)",
        })),
        _ => Ok(()),
    }
}

/// What an adapter's metadata says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraConfig<'g> {
    /// The name, which may be empty.
    pub name: &'g str,
    /// The architecture of the models it is for.
    pub architecture: &'g str,
    /// Scales all factors, divided by their rank; 0 for none.
    pub alpha: f32,
}

impl<'g> LoraConfig<'g> {
    /// Reads the metadata of an adapter.
    ///
    /// # Errors
    /// If the file is no adapter or one of another kind; if `alpha` is not finite.
    pub fn from_metadata(metadata: &Metadata<'g>) -> Result<Self> {
        for (key, expected) in [("general.type", ADAPTER), ("adapter.type", "lora")] {
            let found = metadata.need(key, metadata.str(key)?)?;
            if found != expected {
                return Err(error!(Unsupported { key: Name::new(key), found: Name::new(found), expected }));
            }
        }
        // Those begin at a token of the sequence.
        metadata.refuse("adapter.alora.", "an adapter that applies to all tokens")?;
        let key = "general.architecture";
        let architecture = metadata.need(key, metadata.str(key)?)?;
        let alpha = metadata.f32("adapter.lora.alpha")?.unwrap_or(0.0);
        if !alpha.is_finite() {
            let (key, found) = (Name::new("adapter.lora.alpha"), f64::from(alpha));
            return Err(error!(KeyValue { key, found, expected: "a finite number" }));
        }
        Ok(LoraConfig { name: metadata.str("general.name")?.unwrap_or_default(), architecture, alpha })
    }

    /// The factor of `B A x` for factors of rank `rank`, at scale 1: `alpha / r`, or 1 without alpha.
    pub fn factor(&self, rank: usize) -> f64 {
        if self.alpha == 0.0 { 1.0 } else { f64::from(self.alpha) / rank as f64 }
    }
}

/// The factors of one matrix.
#[derive(Clone, Copy, Debug)]
pub struct LoraPair<'g> {
    /// The name of the model's matrix.
    pub name: &'g str,
    /// `(r, inputs)`
    pub a: Matrix<'g>,
    /// `(outputs, r)`
    pub b: Matrix<'g>,
}

impl LoraPair<'_> {
    /// `r`
    pub fn rank(&self) -> usize {
        self.a.rows()
    }
}

/// An adapter in the bytes of its file. Its factors fit each other; [`BonsaiModel::adapt`](super::BonsaiModel::adapt)
/// checks that they fit the model.
#[derive(Clone, Debug)]
pub struct LoraAdapter<'g> {
    config: LoraConfig<'g>,
    pairs: Vec<LoraPair<'g>>,
}

impl<'g> LoraAdapter<'g> {
    /// Reads the adapter in `gguf`.
    ///
    /// # Errors
    /// As [`LoraConfig::from_metadata`]; if there are no factors, one of two is missing, their ranks differ, they are of a
    /// type that cannot be read, or the file has other tensors.
    pub fn from_gguf(gguf: &Gguf<'g>) -> Result<Self> {
        let config = LoraConfig::from_metadata(gguf.metadata())?;
        let mut pairs = Vec::new();
        for tensor in gguf.tensors() {
            let full = tensor.name();
            let Some(name) = full.strip_suffix(A) else {
                let other = full.strip_suffix(B).map(|name| [name, A].concat());
                match other {
                    Some(a) if gguf.tensor(&a).is_none() => {
                        return Err(error!(MissingTensor { name: Name::new(&a) }));
                    }
                    Some(_) => continue,
                    None => {
                        let (key, found) = (Name::new("tensor of the adapter"), Name::new(full));
                        let expected = "only names that end in .lora_a or .lora_b";
                        return Err(error!(Unsupported { key, found, expected }));
                    }
                }
            };
            let (a, b) = (gguf.matrix(full)?, gguf.matrix(&[name, B].concat())?);
            if b.cols() != a.rows() {
                let dims = [a.rows(), b.rows(), 1].map(|dim| u32::try_from(dim).unwrap_or(u32::MAX));
                let found = [b.cols() as u64, b.rows() as u64, 1, 1];
                return Err(error!(TensorShape {
                    name: Name::new([name, B].concat()),
                    expected: dims,
                    found
                }));
            }
            pairs.push(LoraPair { name, a, b });
        }
        if pairs.is_empty() {
            return Err(error!(Length { what: "tensors of the adapter", expected: 2, found: 0 }));
        }
        Ok(LoraAdapter { config, pairs })
    }

    /// What its metadata says.
    pub fn config(&self) -> &LoraConfig<'g> {
        &self.config
    }

    /// The factors, in the order of the file.
    pub fn pairs(&self) -> &[LoraPair<'g>] {
        &self.pairs
    }

    /// The smallest and the largest rank.
    pub fn ranks(&self) -> (usize, usize) {
        let ranks = || self.pairs.iter().map(LoraPair::rank);
        (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0))
    }

    /// Number of weights.
    pub fn num_parameters(&self) -> u64 {
        let of = |matrix: &Matrix<'_>| matrix.rows() as u64 * matrix.cols() as u64;
        self.pairs.iter().map(|pair| of(&pair.a) + of(&pair.b)).sum()
    }
}

/// A [`Program`] with adapters, and the tensors that it has more.
pub(super) struct Adapted {
    pub(super) program: Program,
    /// Those from the model's last one on, in the part `part`.
    pub(super) tensors: Vec<StoredTensor>,
    pub(super) bytes: Vec<u8>,
}

/// One adapted matrix: the tensors of its factors, of which `B` has the scale.
struct Factors {
    matrix: TensorId,
    a: TensorId,
    b: TensorId,
}

/// Adds `adapters`, each with its scale, to `program`, of a model of `architecture`. Their factors will be in part number
/// `part` of the model, with ranks that are filled up to a multiple of `multiple`.
pub(super) fn adapt(
    program: &Program,
    architecture: &'static str,
    adapters: &[(&LoraAdapter<'_>, f32)],
    part: usize,
    multiple: usize,
) -> Result<Adapted> {
    let adapted = Adapted { program: program.clone(), tensors: Vec::new(), bytes: Vec::new() };
    let mut pass = Pass { adapted, part, multiple: multiple.max(1), factors: Vec::new() };
    for &(adapter, scale) in adapters {
        if !scale.is_finite() {
            let (what, found) = ("scale of an adapter", f64::from(scale));
            return Err(error!(Option { what, found, expected: "a finite number" }));
        }
        let found = adapter.config.architecture;
        if found != architecture {
            let key = Name::new("general.architecture");
            return Err(error!(Unsupported { key, found: Name::new(found), expected: architecture }));
        }
        for pair in &adapter.pairs {
            let matrix = program.adaptable(pair)?;
            // Without an effect, it takes no time.
            if scale != 0.0 {
                let factor = f64::from(scale) * adapter.config.factor(pair.rank());
                pass.hold(matrix, pair, factor)?;
            }
        }
    }
    pass.run();
    Ok(pass.adapted)
}

impl Program {
    /// The matrix that `pair` adapts.
    fn adaptable(&self, pair: &LoraPair<'_>) -> Result<TensorId> {
        let refused = |expected| {
            let (key, found) = (Name::new("matrix that is adapted"), Name::new(pair.name));
            Err(error!(Unsupported { key, found, expected }))
        };
        let found = self.tensor_ids().find(|id| self.tensor(*id).name == pair.name);
        // Those of an adapter that was applied before are not the model's.
        let found = found.filter(|_| ![A, B].iter().any(|suffix| pair.name.ends_with(suffix)));
        let Some(id) = found else { return refused("one of the model") };
        if self.output == id || self.embedding() == Some(id) {
            return refused("one of attention or of a feed-forward block, not the embedding or the output");
        }
        if self.mixtures().any(|experts| Op::Experts(*experts).matrices().contains(&id)) {
            return refused("one of attention or of a feed-forward block, not of a mixture of experts");
        }
        // Adapters are trained beside weights that are not rotated, or beside rotated ones: files do not say which.
        if !self.bases.is_empty() {
            return refused("one of a model whose weights are not rotated (prism.hadamard.*)");
        }
        if self.has_factors() {
            return refused("one of a model without factors of single matrices (blk.N.attn_q.scale)");
        }
        let spec = self.tensor(id);
        if spec.role != TensorRole::Matrix {
            return refused("one of attention or of a feed-forward block, not a vector");
        }
        let dim = |dim: usize| u32::try_from(dim).unwrap_or(u32::MAX);
        for (matrix, suffix, expected) in [
            (&pair.a, A, [spec.cols, pair.rank(), 1].map(dim)),
            (&pair.b, B, [pair.rank(), spec.rows, 1].map(dim)),
        ] {
            let found = [matrix.cols() as u64, matrix.rows() as u64, 1, 1];
            if found != [u64::from(expected[0]), u64::from(expected[1]), 1, 1] {
                let name = Name::new([pair.name, suffix].concat());
                return Err(error!(TensorShape { name, expected, found }));
            }
        }
        Ok(id)
    }
}

/// The rewriting of a program.
struct Pass {
    adapted: Adapted,
    part: usize,
    /// Of ranks.
    multiple: usize,
    factors: Vec<Factors>,
}

impl Pass {
    /// Takes the factors of a matrix over, `B` times `factor`.
    fn hold(&mut self, matrix: TensorId, pair: &LoraPair<'_>, factor: f64) -> Result<()> {
        let rank = pair.rank().next_multiple_of(self.multiple);
        let a = self.tensor([pair.name, A].concat(), &pair.a, [rank, pair.a.cols()], 1.0)?;
        let b = self.tensor([pair.name, B].concat(), &pair.b, [pair.b.rows(), rank], factor)?;
        self.factors.push(Factors { matrix, a, b });
        Ok(())
    }

    /// A copy of `matrix` times `factor`: in its format if that is a float which has all products, else in F32. It is filled up
    /// with zeros to `rows` and `cols`.
    fn tensor(
        &mut self,
        name: String,
        matrix: &Matrix<'_>,
        [rows, cols]: [usize; 2],
        factor: f64,
    ) -> Result<TensorId> {
        let bytes = &mut self.adapted.bytes;
        let need = rows.saturating_mul(cols).saturating_mul(size_of::<f32>()).saturating_add(ALIGNMENT);
        bytes.try_reserve(need).map_err(|_| error!(Memory { need: need as u64, have: 0 }))?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let start = bytes.len();
        let mut row = vec![0.0; cols];
        let mut write = |format: Format, bytes: &mut Vec<u8>| -> Result<bool> {
            for i in 0..rows {
                match i < matrix.rows() {
                    true => matrix.unpack_row(i, &mut row[..matrix.cols()])?,
                    false => row.fill(0.0),
                }
                for &x in &row {
                    let x = (f64::from(x) * factor) as f32;
                    let stored = if format == Format::F16 {
                        let half = f16::from_f32(x);
                        bytes.extend_from_slice(&half.to_le_bytes());
                        half.to_f32()
                    } else if format == Format::Bf16 {
                        let half = bf16::from_f32(x);
                        bytes.extend_from_slice(&half.to_le_bytes());
                        half.to_f32()
                    } else {
                        bytes.extend_from_slice(&x.to_le_bytes());
                        x
                    };
                    if stored != x && format != Format::F32 {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        };
        let mut format = matrix.format();
        if !matches!(format, Format::F16 | Format::Bf16) {
            format = Format::F32;
        }
        if !write(format, bytes)? {
            bytes.truncate(start);
            format = Format::F32;
            write(format, bytes)?;
        }
        let range = start..bytes.len();
        self.adapted.tensors.push(StoredTensor { part: self.part, range, format, rows, cols });
        let tensors = &mut self.adapted.program.tensors;
        tensors.push(TensorSpec { name, rows, cols, role: TensorRole::Matrix, matrices: 1, read: 1 });
        Ok(TensorId::at(tensors.len() - 1))
    }

    /// Rewrites the body.
    fn run(&mut self) {
        let old = core::mem::take(&mut self.adapted.program.body);
        let blocks = core::mem::take(&mut self.adapted.program.blocks);
        let mut body = Vec::with_capacity(old.len());
        for (i, op) in old.into_iter().enumerate() {
            if blocks.contains(&i) {
                self.adapted.program.blocks.push(body.len());
            }
            self.op(op, &mut body);
        }
        self.adapted.program.body = body;
    }

    fn is_adapted(&self, id: TensorId) -> bool {
        self.factors.iter().any(|factors| factors.matrix == id)
    }

    fn op(&mut self, op: Op, body: &mut Vec<Op>) {
        match op {
            Op::Linear { x, ref outputs } => {
                let outputs = outputs.clone();
                body.push(op);
                self.products(x, &outputs, body);
            }
            Op::LinearAdd { x, weight, to } => {
                body.push(op);
                self.products(x, &[(weight, to)], body);
            }
            Op::LinearSwiglu { x, gate, up, out } if self.is_adapted(gate) || self.is_adapted(up) => {
                let cols = self.adapted.program.tensor(up).rows;
                let outputs = [(gate, out), (up, self.adapted.program.buffer("up", cols))];
                body.push(Op::Linear { x, outputs: outputs.into_iter().collect() });
                self.products(x, &outputs, body);
                let activation = Activation::Silu;
                body.push(Op::Gated { activation, gate: out, up: outputs[1].1, cols });
            }
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::LinearSwiglu { .. }
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
            | Op::Experts(_)
            | Op::RopeStore { .. }
            | Op::Attention { .. }
            | Op::Select { .. }
            | Op::Merge { .. }
            | Op::Exchange(_) => body.push(op),
        }
    }

    /// Adds `B (A x)` to each output whose matrix is adapted.
    fn products(&mut self, x: BufferId, outputs: &[(TensorId, BufferId)], body: &mut Vec<Op>) {
        let mut pairs: Vec<(TensorId, TensorId, BufferId)> = Vec::new();
        for &(matrix, out) in outputs {
            let of_matrix = self.factors.iter().filter(|factors| factors.matrix == matrix);
            pairs.extend(of_matrix.map(|factors| (factors.a, factors.b, out)));
        }
        for pairs in pairs.chunks(MAX_OUTPUTS) {
            let mut list = ArrayVec::new();
            for (&(a, ..), name) in pairs.iter().zip(BETWEEN) {
                let rank = self.adapted.program.tensor(a).rows;
                // There is room for each of a chunk.
                let _ = list.push((a, self.adapted.program.buffer(name, rank)));
            }
            let adds =
                pairs.iter().zip(&list).map(|(&(_, b, to), &(_, x))| Op::LinearAdd { x, weight: b, to });
            let adds: Vec<Op> = adds.collect();
            body.push(Op::Linear { x, outputs: list });
            body.extend(adds);
        }
    }
}
