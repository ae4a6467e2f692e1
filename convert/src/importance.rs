//! How much the columns of matrices count when they are quantized: importance matrices.

use crate::calibration::{Calibration, InputStatistics};
use crate::error::{ConvertError, Result};
use crate::tensor::Tensor;
use shohin_core::gguf::GgufWriter;
use shohin_core::{Format, Result as CoreResult};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where llama.cpp writes what a file was quantized with.
pub(crate) const KEYS: &str = "quantize.imatrix.";

/// Matrices that llama.cpp's importance matrices need not have.
const NEED_NOT: [&str; 2] = ["token_embd.weight", "output.weight"];

/// The importance of the columns of a model's matrices: mean squares of what they are multiplied with, by which
/// [`convert`](crate::convert()) weighs the errors of weights, for formats that
/// [have such a quantizer](Format::weighs_importance).
#[derive(Clone, Debug)]
pub struct Importance {
    file: PathBuf,
    dataset: String,
    chunks: u32,
    matrices: BTreeMap<String, Columns>,
}

/// The importance of a tensor's columns.
#[derive(Clone, Debug)]
struct Columns {
    matrices: usize,
    cols: usize,
    /// `(matrices, cols)`
    values: Arc<[f32]>,
}

impl Importance {
    /// Reads a GGUF file of llama.cpp's `llama-imatrix` or of [`Calibration::write_importance`], or one of [`Calibration::write`].
    ///
    /// # Errors
    /// Those of [`Calibration::read`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Ok(Importance::of(path, &Calibration::read(path)?))
    }

    fn of(path: &Path, calibration: &Calibration) -> Self {
        let columns = |(name, inputs): (&String, &InputStatistics)| {
            let each = inputs.sum_squares.chunks_exact(inputs.cols.max(1)).zip(&inputs.counts);
            // As in llama.cpp: in f32, and all columns alike of an expert that no input reached.
            let mean = |(sums, count): (&[f64], &u64)| -> Vec<f32> {
                let mean = |sum: &f64| if *count > 0 { *sum as f32 / *count as f32 } else { 1.0 };
                sums.iter().map(mean).collect()
            };
            let values: Arc<[f32]> = each.flat_map(mean).collect();
            (name.clone(), Columns { matrices: inputs.counts.len(), cols: inputs.cols, values })
        };
        let texts: Vec<&str> = calibration.texts.iter().map(|text| text.name.as_str()).collect();
        let windows: usize = calibration.texts.iter().map(|text| text.windows).sum();
        Importance {
            file: path.into(),
            dataset: texts.join(", "),
            chunks: u32::try_from(windows).unwrap_or(u32::MAX),
            matrices: calibration.inputs.iter().map(columns).collect(),
        }
    }

    /// Gives `tensors`, which become these formats, their importance.
    ///
    /// # Errors
    /// If it is that of another model: if a matrix lacks it, has other columns, or is not in the model.
    pub(crate) fn assign(&self, tensors: &mut [(Tensor<'_>, Format)]) -> Result<(), ConvertError> {
        let file = self.file.display();
        let is_known = |name: &String| tensors.iter().any(|(tensor, _)| tensor.name == *name);
        let unknown = self.matrices.keys().find(|name| !is_known(name) && !NEED_NOT.contains(&name.as_str()));
        if let Some(name) = unknown {
            let problem = format!("has importance in {file}, but the model has no such tensor");
            return Err(ConvertError::tensor(name, problem));
        }
        for (tensor, format) in tensors.iter_mut() {
            let Some(columns) = self.matrices.get(&tensor.name) else {
                if tensor.vector || !format.weighs_importance() || NEED_NOT.contains(&tensor.name.as_str()) {
                    continue;
                }
                return Err(ConvertError::tensor(&tensor.name, format!("has no importance in {file}")));
            };
            let expected = [tensor.rows / tensor.rows_each().max(1), tensor.cols];
            let found = [columns.matrices, columns.cols];
            if found != expected {
                let problem = format!(
                    "has importance for {} x {} columns in {file}, expected {} x {}",
                    found[0], found[1], expected[0], expected[1]
                );
                return Err(ConvertError::tensor(&tensor.name, problem));
            }
            tensor.importance = Some(Arc::clone(&columns.values));
        }
        Ok(())
    }

    /// Writes what llama.cpp does about it.
    pub(crate) fn describe(&self, w: &mut GgufWriter) -> CoreResult<()> {
        let name = self.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        w.set(&format!("{KEYS}file"), name.as_str())?;
        w.set(&format!("{KEYS}dataset"), self.dataset.as_str())?;
        w.set(&format!("{KEYS}entries_count"), u32::try_from(self.matrices.len()).unwrap_or(u32::MAX))?;
        w.set(&format!("{KEYS}chunks_count"), self.chunks)
    }
}
