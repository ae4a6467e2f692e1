//! Tensors under their GGUF names, and their rows in the order and format of a GGUF file.

use crate::config::{Config, ROPE_FACTORS, folder_of};
use crate::delta::{Delta, DeltaRows, Sums};
use crate::error::ConvertError;
use crate::file_type::Int8;
use crate::float8::Float8;
use crate::grouped::{Grouped, mlx};
use crate::names::{self, InGguf};
use crate::order::{Direction, HeadCounts, Order, orders};
use crate::report::ConvertedTensor;
use crate::stored::{Stored, float};
use crate::ternary::{self, I2_S, Id36, Ternary};
use shohin_core::gguf::{Gguf, TensorInfo};
use shohin_core::model::hugging_face::Values;
use shohin_core::{Format, ModelConfig, quant};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

/// A tensor to write.
#[derive(Clone)]
pub(crate) struct Tensor<'f> {
    /// Its name in GGUF.
    pub(crate) name: String,
    /// Those of all its matrices together.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) vector: bool,
    /// One matrix, or one for each expert, all of the same shape.
    matrices: Vec<Weights<'f>>,
    order: Order,
    /// That of the numbers in a row.
    columns: Order,
    /// What shares a scale of Q8_0, and the largest absolute value in it; `None` for a block.
    shared: Option<Shared>,
    /// What is added to the weights, in the order of the rows that are written.
    deltas: Vec<Delta<'f>>,
    /// `(rows, cols)`: the weights to write, in place of those of the source.
    new: Option<&'f [f32]>,
    /// `(matrices, cols)`: how much errors of columns count.
    pub(crate) importance: Option<Arc<[f32]>>,
}

#[derive(Clone, Copy, Debug)]
enum Shared {
    Row,
    /// The largest absolute weight, and its row.
    Matrix(f32, usize),
}

/// A module's weights.
pub(crate) struct Module<'f> {
    /// The name of its weights in a folder, such as `model.layers.0.mlp.up_proj.weight`.
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) vector: bool,
    pub(crate) weights: Weights<'f>,
    /// What its product is multiplied by.
    pub(crate) factor: Option<f32>,
}

/// Weights as the source stores them.
#[derive(Clone)]
pub(crate) enum Weights<'f> {
    /// Rows of this format.
    Stored(Format, &'f [u8]),
    /// Columns of floats.
    Transposed(Format, &'f [u8]),
    Float8(Float8<'f>),
    Grouped(Grouped<'f>),
    Ternary(Ternary<'f>),
    /// Numbers of a vector that the source has in another form.
    Computed(Vec<f32>),
    /// Some rows of a tensor, as they are written, and of these some columns, or all.
    Picked(Box<Tensor<'f>>, Vec<usize>, Option<Vec<usize>>),
}

/// The tensors of a GGUF file, in its order.
pub(crate) fn of_gguf<'f>(gguf: &Gguf<'f>, id36: Id36) -> Result<Vec<Tensor<'f>>, ConvertError> {
    let mut all = Vec::new();
    for info in gguf.tensors() {
        if info.type_id() != I2_S {
            all.push(stored_tensor(gguf, info)?);
            continue;
        }
        let [cols, rows] = *info.dims() else {
            let problem = format!("has the shape {:?}, expected a matrix of type I2_S", info.dims());
            return Err(ConvertError::tensor(info.name(), problem));
        };
        let (rows, cols) = (rows as usize, cols as usize);
        let (matrix, factor) = ternary::of_gguf(info, [rows, cols], gguf.data(info), id36)?;
        all.push(Tensor::of(info.name().into(), [rows, cols], false, Weights::Ternary(matrix)));
        all.extend(factor.map(|factor| Tensor::factor(info.name(), factor)));
    }
    Ok(all)
}

fn stored_tensor<'f>(gguf: &Gguf<'f>, info: &TensorInfo<'f>) -> Result<Tensor<'f>, ConvertError> {
    let format = info.format().ok_or_else(|| {
        ConvertError::tensor(info.name(), format!("has type {}, which is not supported", info.type_name()))
    })?;
    let (rows, cols, count) = match *info.dims() {
        [cols] => (1, cols, 1),
        [cols, rows] => (rows, cols, 1),
        [cols, rows, count] if count > 0 => (rows, cols, count),
        ref dims => {
            let problem = format!("has the shape {dims:?}, expected one to three dimensions");
            return Err(ConvertError::tensor(info.name(), problem));
        }
    };
    // The parser has checked that the bytes are there.
    let data = gguf.data(info);
    let each = data.len() / count as usize;
    let matrices = (0..count as usize).map(|i| Weights::Stored(format, &data[i * each..][..each]));
    let vector = info.dims().len() == 1 || names::is_convolution(info.name());
    let shape = [(rows * count) as usize, cols as usize];
    Ok(Tensor::with(info.name().into(), shape, vector, matrices.collect()))
}

/// The modules whose tensors are `stored`.
pub(crate) fn modules<'f>(
    config: &Config,
    stored: &BTreeMap<String, Stored<'f>>,
) -> Result<Vec<Module<'f>>, ConvertError> {
    let mut all = Vec::new();
    // Models of embeddings are stored without their head, and without the name that the rest has beside it.
    let prefix = if stored.contains_key("embed_tokens.weight") { "model." } else { "" };
    for (name, tensor) in stored {
        if name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        let Some((module, part)) = name.rsplit_once('.') else {
            return Err(ConvertError::tensor(name, "is not part of this architecture"));
        };
        match part {
            "weight" => {}
            // Read with the weights.
            "scales" | "biases" if config.mlx.is_some() => continue,
            "weight_scale_inv" | "weight_scale" | "input_scale" | "input_scale_ub" | "activation_scale"
                if config.float8.is_some() =>
            {
                continue;
            }
            "weight_scale" if config.bitnet.is_some() => continue,
            _ if names::to_gguf(&format!("{prefix}{name}"), config).is_ok() => {}
            _ => return Err(ConvertError::tensor(name, "is not part of this architecture")),
        }
        let scales = stored.get(&format!("{module}.scales"));
        let (ternary, factor) = match config.bitnet {
            Some(bitnet) => ternary::of_folder(name, tensor, stored, bitnet)?,
            None => (None, None),
        };
        let mut rows = tensor.rows;
        let (cols, weights) = match (&config.mlx, scales, ternary) {
            (Some(packed), Some(scales), _) => {
                let biases = stored.get(&format!("{module}.biases"));
                let weights = mlx(name, tensor, scales, biases, packed.of(module))?;
                (weights.cols, Weights::Grouped(weights))
            }
            (_, _, Some(ternary)) => {
                rows = ternary.rows();
                (tensor.cols, Weights::Ternary(ternary))
            }
            _ => (tensor.cols, one_by_one(name, tensor, stored, config)?),
        };
        let name = format!("{prefix}{name}");
        all.push(Module { name, rows, cols, vector: tensor.vector, weights, factor });
    }
    Ok(all)
}

/// The tensors of a folder's modules, in the order of the layers.
pub(crate) fn of_modules<'f>(
    config: &Config,
    modules: Vec<Module<'f>>,
) -> Result<Vec<Tensor<'f>>, ConvertError> {
    let mut all = Vec::new();
    let mut experts: BTreeMap<String, BTreeMap<u32, Module<'f>>> = BTreeMap::new();
    for module in modules {
        let Some(InGguf { name, expert, order, values }) = names::to_gguf(&module.name, config)? else {
            continue;
        };
        if let Some(expert) = expert {
            experts.entry(name).or_default().insert(expert, module);
            continue;
        }
        let Module { rows, cols, vector, weights, factor, .. } = module;
        let factor = factor.map(|factor| Tensor::factor(&name, factor));
        let (order, columns) = orders(order, &name, [rows, cols], &config.head_counts(), Direction::ToGguf)?;
        let weights = weights.changed(values, Direction::ToGguf, rows * cols)?;
        all.push(Tensor { order, columns, ..Tensor::of(name, [rows, cols], vector, weights) });
        all.extend(factor);
    }
    for (name, experts) in experts {
        all.push(stacked(name, experts, config.experts)?);
    }
    for (name, factors) in &config.rope_factors {
        let weights = Weights::Computed(factors.clone());
        all.push(Tensor::of((*name).into(), [1, factors.len()], true, weights));
    }
    // Layer 2 before layer 10.
    let place = |tensor: &Tensor<'_>| {
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        layer.unwrap_or(if tensor.name.starts_with("token_embd") { -1i64 } else { i64::MAX })
    };
    all.sort_by_key(place);
    Ok(all)
}

/// The tensor `name` of all of a layer's experts.
fn stacked<'f>(
    name: String,
    experts: BTreeMap<u32, Module<'f>>,
    count: u32,
) -> Result<Tensor<'f>, ConvertError> {
    let (mut rows, mut shape, mut matrices) = (0, None, Vec::new());
    for (expert, module) in experts {
        let found = [module.rows, module.cols];
        let expected = *shape.get_or_insert(found);
        if found != expected || module.vector {
            let problem = format!("has the shape {found:?}, but that of another expert is {expected:?}");
            return Err(ConvertError::tensor(&module.name, problem));
        }
        if expert as usize != matrices.len() {
            break;
        }
        rows += module.rows;
        matrices.push(module.weights);
    }
    if matrices.len() != count as usize {
        let problem = format!("has no expert {}, but num_experts is {count}", matrices.len());
        return Err(ConvertError::tensor(&name, problem));
    }
    let [_, cols] = shape.unwrap_or_default();
    Ok(Tensor::with(name, [rows, cols], false, matrices))
}

/// The tensors of a GGUF file under the names of a folder, in its order.
pub(crate) fn to_folder<'f>(
    gguf: &Gguf<'f>,
    config: &ModelConfig,
) -> Result<Vec<(String, Tensor<'f>)>, ConvertError> {
    let folder = folder_of(config)?;
    let counts = HeadCounts {
        heads: config.num_attention_heads as u32,
        kv_heads: config.num_kv_heads as u32,
        recurrence: config.recurrence.unwrap_or_default(),
    };
    let mut all = Vec::new();
    for tensor in of_gguf(gguf, Id36::Auto)?.into_iter().filter(|tensor| tensor.name != ROPE_FACTORS) {
        let (theirs, row) = names::to_folder(folder, &tensor.name, tensor.matrices.len())?;
        let shape = [tensor.rows, tensor.cols];
        let (order, columns) = orders(row.order, &tensor.name, shape, &counts, Direction::ToFolder)?;
        let rows = tensor.rows_each();
        let mut tensor = tensor;
        let len = rows * tensor.cols;
        let weights = tensor.matrices.into_iter();
        let weights = weights.map(|weights| weights.changed(row.values, Direction::ToFolder, len));
        tensor.matrices = weights.collect::<Result<_, _>>()?;
        let matrices = theirs.into_iter().zip(tensor.matrices);
        all.extend(matrices.map(|(name, weights)| {
            let (deltas, importance, matrices) = (Vec::new(), None, vec![weights]);
            (name.clone(), Tensor { name, rows, matrices, order, columns, deltas, importance, ..tensor })
        }));
    }
    Ok(all)
}

/// The weights of tensor `name` with one number each.
fn one_by_one<'f>(
    name: &str,
    tensor: &Stored<'f>,
    stored: &BTreeMap<String, Stored<'f>>,
    config: &Config,
) -> Result<Weights<'f>, ConvertError> {
    let suffix = config.float8.map_or("_scale_inv", |scales| scales.suffix);
    let scales = stored.get(&format!("{name}{suffix}"));
    Ok(match Float8::of(name, tensor, scales, config.float8)? {
        Some(float8) => Weights::Float8(float8),
        None if scales.is_some() => {
            let problem =
                format!("has type {:?}, expected a float of 8 bits beside its scales", tensor.dtype);
            return Err(ConvertError::tensor(name, problem));
        }
        None => Weights::Stored(float(name, tensor.dtype)?, tensor.data),
    })
}

impl<'f> Weights<'f> {
    /// The `len` numbers of a vector, as the other kind of file has them.
    fn changed(self, values: Values, direction: Direction, len: usize) -> Result<Weights<'f>, ConvertError> {
        let change: fn(f32) -> f32 = match (values, direction) {
            (Values::Same, _) => return Ok(self),
            (Values::PlusOne, Direction::ToGguf) => |x| x + 1.0,
            (Values::PlusOne, Direction::ToFolder) => |x| x - 1.0,
            (Values::NegativeExp, Direction::ToGguf) => |x| -(f64::from(x).exp()) as f32,
            (Values::NegativeExp, Direction::ToFolder) => |x| f64::from(-x).ln() as f32,
        };
        let Weights::Stored(format, data) = self else { return Ok(self) };
        let mut numbers = vec![0.0; len];
        quant::unpack(format, data, &mut numbers)?;
        numbers.iter_mut().for_each(|x| *x = change(*x));
        Ok(Weights::Computed(numbers))
    }
}

impl<'f> Tensor<'f> {
    /// One matrix or vector, as the source has it.
    fn of(name: String, [rows, cols]: [usize; 2], vector: bool, weights: Weights<'f>) -> Self {
        Tensor::with(name, [rows, cols], vector, vec![weights])
    }

    /// Matrices one below the other, as the source has them.
    fn with(name: String, [rows, cols]: [usize; 2], vector: bool, matrices: Vec<Weights<'f>>) -> Self {
        Tensor {
            name,
            rows,
            cols,
            vector,
            matrices,
            order: Order::Same,
            columns: Order::Same,
            shared: None,
            deltas: Vec::new(),
            new: None,
            importance: None,
        }
    }

    /// The factor of the matrix `name`.
    fn factor(name: &str, factor: f32) -> Self {
        let name = format!("{}.scale", name.trim_end_matches(".weight"));
        Tensor::of(name, [1, 1], true, Weights::Computed(vec![factor]))
    }

    /// The format that keeps every bit.
    pub(crate) fn exact(&self) -> Result<Format, ConvertError> {
        if let [Weights::Picked(tensor, ..)] = &self.matrices[..] {
            return tensor.exact();
        }
        let of = |weights: &Weights<'_>| match weights {
            Weights::Stored(format, _) | Weights::Transposed(format, _) => *format,
            Weights::Float8(float8) => float8.exact(),
            Weights::Grouped(grouped) => grouped.exact(),
            Weights::Ternary(ternary) => ternary.exact(),
            Weights::Computed(_) | Weights::Picked(..) => Format::F32,
        };
        let mut formats = self.matrices.iter().map(of);
        let first = formats.next().unwrap_or(Format::F32);
        match formats.find(|format| *format != first) {
            None => Ok(first),
            Some(other) if first.is_float() && other.is_float() && formats.all(Format::is_float) => {
                Ok(Format::F32)
            }
            Some(other) => {
                let problem = format!("has experts of types {} and {}", first.name(), other.name());
                Err(ConvertError::tensor(&self.name, problem))
            }
        }
    }

    /// Rows of each of its matrices.
    pub(crate) fn rows_each(&self) -> usize {
        self.rows / self.matrices.len().max(1)
    }

    /// Rows and columns, for several matrices with their number before.
    pub(crate) fn shape(&self) -> Vec<usize> {
        match self.matrices.len() {
            1 => vec![self.rows, self.cols],
            count => vec![count, self.rows_each(), self.cols],
        }
    }

    /// The row of the source that becomes row `row`.
    fn source(&self, row: usize) -> usize {
        self.order.source(row)
    }

    /// Bytes of a row in `format`, whose blocks fit.
    pub(crate) fn row_bytes(&self, format: Format) -> usize {
        format.row_bytes(self.cols).unwrap_or(0)
    }

    /// Rows of some megabytes together.
    pub(crate) fn share(&self) -> usize {
        ((1 << 20) / self.cols.max(1)).max(1)
    }

    /// What is known when it has been written under `name`, with the sums that [`Tensor::write`] returned.
    pub(crate) fn report(&self, name: &str, format: Format, sums: Sums) -> ConvertedTensor {
        ConvertedTensor {
            name: name.into(),
            shape: self.shape(),
            from: self.format(),
            to: format,
            bytes: (self.rows * self.row_bytes(format)) as u64,
            error: if sums.error == 0.0 { 0.0 } else { (sums.error / sums.weights).sqrt() },
            merge: self.is_merged().then(|| sums.merge()),
        }
    }

    /// Its format in the source, if that is one.
    pub(crate) fn format(&self) -> Option<Format> {
        match self.matrices.first()? {
            Weights::Stored(format, _) | Weights::Transposed(format, _) => Some(*format),
            Weights::Float8(_) | Weights::Grouped(_) | Weights::Ternary(_) | Weights::Computed(_) => None,
            Weights::Picked(tensor, ..) => tensor.format(),
        }
    }

    /// Adds `deltas` to the weights.
    pub(crate) fn merge(&mut self, deltas: Vec<Delta<'f>>) -> Result<(), ConvertError> {
        for delta in &deltas {
            let count = if self.vector { 0 } else { self.matrices.len() };
            delta.fits(count, self.rows, self.cols)?;
        }
        self.deltas = deltas;
        Ok(())
    }

    /// Whether something is added to the weights.
    pub(crate) fn is_merged(&self) -> bool {
        !self.deltas.is_empty() || self.new.is_some()
    }

    /// This tensor with other weights, `(rows, cols)` in the order that is written.
    pub(crate) fn edited<'n>(&self, new: &'n [f32]) -> Tensor<'n>
    where
        'f: 'n,
    {
        let shared = self.shared.map(|shared| match shared {
            Shared::Row => Shared::Row,
            Shared::Matrix(..) => {
                let most = largest(new);
                let at = new.iter().position(|value| value.abs() == most).unwrap_or(0);
                Shared::Matrix(most, at / self.cols.max(1))
            }
        });
        Tensor {
            name: self.name.clone(),
            rows: self.rows,
            cols: self.cols,
            vector: self.vector,
            matrices: self.matrices.clone(),
            order: self.order,
            columns: self.columns,
            shared,
            deltas: Vec::new(),
            new: Some(new),
            importance: self.importance.clone(),
        }
    }

    /// Some of its rows and columns, or all, in the order that is written.
    pub(crate) fn picked(&self, rows: Option<&[usize]>, cols: Option<&[usize]>) -> Tensor<'f> {
        if rows.is_none() && cols.is_none() {
            return self.clone();
        }
        let rows = rows.map_or_else(|| (0..self.rows).collect(), <[usize]>::to_vec);
        let shape = [rows.len(), cols.map_or(self.cols, <[usize]>::len)];
        let weights = Weights::Picked(Box::new(self.clone()), rows, cols.map(<[usize]>::to_vec));
        Tensor::of(self.name.clone(), shape, self.vector, weights)
    }

    /// All weights, `(rows, cols)`, in the order that is written.
    pub(crate) fn numbers(&self) -> Result<Vec<f32>, ConvertError> {
        let mut numbers = vec![0.0; self.rows * self.cols];
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let share = self.rows.div_ceil(workers).max(1);
        let read = |first: usize, numbers: &mut [f32]| -> Result<(), ConvertError> {
            let mut rows = Rows::of(self)?;
            for (i, out) in numbers.chunks_exact_mut(self.cols.max(1)).enumerate() {
                rows.read(first + i)?;
                out.copy_from_slice(&rows.values);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let shares = numbers.chunks_mut((share * self.cols).max(1)).enumerate();
            let work = shares.map(|(i, numbers)| scope.spawn(move || read(i * share, numbers)));
            let workers: Vec<_> = work.collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            workers.into_iter().try_for_each(join)
        })?;
        Ok(numbers)
    }

    /// Writes rows from `first` to `out`, whole rows of `format`, on all cores; returns sums over the weights, as far as
    /// they may differ.
    pub(crate) fn write(&self, first: usize, format: Format, out: &mut [u8]) -> Result<Sums, ConvertError> {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        if workers == 1 {
            return self.write_rows(first, format, out);
        }
        let row_bytes = self.row_bytes(format).max(1);
        let share = (out.len() / row_bytes).div_ceil(workers).max(1);
        let shares = out.chunks_mut(share * row_bytes).enumerate();
        thread::scope(|scope| {
            let work =
                shares.map(|(i, out)| scope.spawn(move || self.write_rows(first + i * share, format, out)));
            let workers: Vec<_> = work.collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let add = |a: Sums, b: Result<Sums, ConvertError>| b.map(|b| a.plus(b));
            workers.into_iter().map(join).try_fold(Sums::default(), add)
        })
    }

    /// Writes row `row` of the source, if it is stored in `format`.
    fn copy(&self, row: usize, format: Format, out: &mut [u8]) -> bool {
        if self.columns != Order::Same {
            return false;
        }
        let (matrix, row) = (row / self.rows_each(), row % self.rows_each());
        match &self.matrices[matrix] {
            Weights::Stored(stored, data) if *stored == format => {
                out.copy_from_slice(&data[row * out.len()..][..out.len()]);
                true
            }
            Weights::Grouped(grouped) => grouped.copy(row, format, out),
            Weights::Picked(tensor, rows, None) => tensor.copy(tensor.source(rows[row]), format, out),
            _ => false,
        }
    }

    /// Whether rows of `format` are copies of those of the source, or of a tensor that they are picked from.
    pub(crate) fn copies(&self, format: Format) -> bool {
        let copies = |weights: &Weights<'_>| match weights {
            Weights::Stored(stored, _) => *stored == format,
            Weights::Picked(tensor, _, None) => tensor.copies(format),
            _ => false,
        };
        self.columns == Order::Same && !self.is_merged() && self.matrices.iter().all(copies)
    }

    /// The weights of row `row` of the source.
    fn unpack(&self, row: usize, values: &mut [f32]) -> Result<(), ConvertError> {
        let rows = self.rows_each();
        let (matrix, at) = (row / rows, row % rows);
        self.unpack_stored(matrix, at, rows, values)?;
        if self.columns != Order::Same {
            let stored = values.to_vec();
            values.iter_mut().enumerate().for_each(|(i, value)| *value = stored[self.columns.source(i)]);
        }
        Ok(())
    }

    fn unpack_stored(
        &self,
        matrix: usize,
        row: usize,
        rows: usize,
        values: &mut [f32],
    ) -> Result<(), ConvertError> {
        match &self.matrices[matrix] {
            Weights::Stored(stored, data) => {
                let len = data.len() / rows;
                quant::unpack(*stored, &data[row * len..][..len], values)?;
            }
            Weights::Transposed(stored, data) => {
                let size = stored.block_bytes();
                for (k, value) in values.iter_mut().enumerate() {
                    let bytes = &data[(k * rows + row) * size..][..size];
                    quant::unpack(*stored, bytes, std::slice::from_mut(value))?;
                }
            }
            Weights::Float8(float8) => float8.unpack(row, values)?,
            Weights::Grouped(grouped) => grouped.unpack(row, values),
            Weights::Ternary(ternary) => ternary.unpack(row, values),
            Weights::Computed(computed) => values.copy_from_slice(computed),
            Weights::Picked(tensor, rows, None) => tensor.unpack(tensor.source(rows[row]), values)?,
            Weights::Picked(tensor, rows, Some(cols)) => {
                let mut all = vec![0.0; tensor.cols];
                tensor.unpack(tensor.source(rows[row]), &mut all)?;
                values.iter_mut().zip(cols).for_each(|(value, col)| *value = all[*col]);
            }
        }
        Ok(())
    }

    /// Makes the blocks of Q8_0 of a row or of the matrix share a scale.
    pub(crate) fn share_scale(&mut self, int8: Int8) -> Result<(), ConvertError> {
        self.shared = Some(match int8 {
            Int8::PerChannel => Shared::Row,
            Int8::PerTensor => {
                let mut rows = Rows::of(self)?;
                let mut most = (0.0f32, 0);
                for row in 0..self.rows {
                    rows.read(row)?;
                    let largest = largest(&rows.values);
                    if largest > most.0 {
                        most = (largest, self.source(row));
                    }
                }
                Shared::Matrix(most.0, most.1)
            }
        });
        Ok(())
    }

    /// Checks the weights of `row`.
    fn finite(&self, row: usize, values: &[f32]) -> Result<(), ConvertError> {
        let Some(value) = values.iter().find(|value| !value.is_finite()) else { return Ok(()) };
        let problem = format!("has the weight {value} in row {row}, expected finite numbers");
        Err(ConvertError::tensor(&self.name, problem))
    }

    /// The importance of the columns of `row`.
    fn importance_of(&self, row: usize) -> Option<&[f32]> {
        let matrix = row / self.rows_each().max(1);
        self.importance.as_ref()?.get(matrix * self.cols..)?.get(..self.cols)
    }

    fn write_rows(&self, first: usize, format: Format, out: &mut [u8]) -> Result<Sums, ConvertError> {
        let row_bytes = self.row_bytes(format).max(1);
        let mut rows = Rows::of(self)?;
        let mut written = vec![0.0; self.cols];
        let mut sums = Sums::default();
        for (i, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let row = self.source(first + i);
            rows.read(first + i)?;
            let keeps = !rows.is_changed() && self.shared.is_none();
            if keeps && self.copy(row, format, out) {
                if self.is_merged() {
                    rows.count(&rows.values, &mut sums);
                }
                continue;
            }
            let values = &rows.values;
            match self.shared {
                Some(shared) if format == Format::Q8_0 => {
                    let largest = match shared {
                        Shared::Row => largest(values),
                        Shared::Matrix(largest, _) => largest,
                    };
                    pack_int8(values, largest, out);
                }
                _ => match self.importance_of(first + i) {
                    Some(importance) => quant::pack_by_importance(format, values, importance, out)?,
                    None => quant::pack(format, values, out)?,
                },
            }
            quant::unpack(format, out, &mut written)?;
            if written.iter().any(|value| !value.is_finite()) {
                let (most, row) = match self.shared {
                    // Its scale is too large for all rows.
                    Some(Shared::Matrix(most, row)) if format == Format::Q8_0 => (most, row),
                    _ => (largest(values), row),
                };
                let name = format.name();
                let problem = format!(
                    "has weights up to {most:e} in row {row}, too large for {name}, expected a format with a wider range such as f32"
                );
                return Err(ConvertError::tensor(&self.name, problem));
            }
            rows.count(&written, &mut sums);
        }
        Ok(sums)
    }
}

/// Reads the rows of a tensor, and what is added to them.
struct Rows<'t, 'f> {
    tensor: &'t Tensor<'f>,
    deltas: Option<DeltaRows<'t, 'f>>,
    /// Those of the source.
    base: Vec<f32>,
    delta: Vec<f64>,
    /// The weights to write.
    values: Vec<f32>,
}

impl<'t, 'f> Rows<'t, 'f> {
    fn of(tensor: &'t Tensor<'f>) -> Result<Self, ConvertError> {
        let cols = tensor.cols;
        let merged = tensor.is_merged();
        let added = !tensor.deltas.is_empty();
        let deltas = added.then(|| DeltaRows::new(&tensor.deltas, cols)).transpose()?;
        let own = if merged { cols } else { 0 };
        Ok(Rows { tensor, deltas, base: vec![0.0; own], delta: vec![0.0; own], values: vec![0.0; cols] })
    }

    /// Reads the row that is written as row `row`.
    fn read(&mut self, row: usize) -> Result<(), ConvertError> {
        let source = self.tensor.source(row);
        self.tensor.unpack(source, &mut self.values)?;
        self.tensor.finite(source, &self.values)?;
        if let Some(deltas) = &mut self.deltas {
            self.base.copy_from_slice(&self.values);
            self.delta.copy_from_slice(deltas.read(row)?);
            let both = self.values.iter_mut().zip(&self.delta);
            both.for_each(|(value, delta)| *value = (f64::from(*value) + delta) as f32);
            self.tensor.finite(source, &self.values)?;
        }
        if let Some(new) = self.tensor.new {
            self.base.copy_from_slice(&self.values);
            let cols = self.values.len();
            self.values.copy_from_slice(&new[row * cols..][..cols]);
            self.tensor.finite(row, &self.values)?;
            for (delta, (new, base)) in self.delta.iter_mut().zip(self.values.iter().zip(&self.base)) {
                *delta = f64::from(*new) - f64::from(*base);
            }
        }
        Ok(())
    }

    /// Whether anything is added to the row that was read.
    fn is_changed(&self) -> bool {
        self.delta.iter().any(|delta| *delta != 0.0)
    }

    /// Counts the row that was read, and stored as `written`.
    fn count(&self, written: &[f32], sums: &mut Sums) {
        if self.tensor.is_merged() {
            return sums.merged(&self.base, &self.delta, written);
        }
        for (&w, &written) in self.values.iter().zip(written) {
            sums.error += f64::from(w - written).powi(2);
            sums.weights += f64::from(w).powi(2);
        }
    }
}

/// The largest absolute value.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// Packs a row as Q8_0 with one scale, `largest / 127` in f16.
fn pack_int8(values: &[f32], largest: f32, out: &mut [u8]) {
    let scale = half::f16::from_f32(largest / 127.0);
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    let blocks =
        out.chunks_exact_mut(Format::Q8_0.block_bytes()).zip(values.chunks_exact(Format::Q8_0.block()));
    for (out, values) in blocks {
        out[..2].copy_from_slice(&scale.to_le_bytes());
        for (out, value) in out[2..].iter_mut().zip(values) {
            // Also where the scale was rounded down.
            *out = (value * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
        }
    }
}
