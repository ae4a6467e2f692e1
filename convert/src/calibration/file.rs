//! The database of a calibration: a safetensors file. Beside `format`, `version`, `model` and `texts` (JSON) in its metadata it has,
//! for each matrix, `NAME.counts`, `NAME.min`, `NAME.max`, `NAME.sum_abs`, `NAME.sum_squares` and `NAME.histogram`.

use super::{BINS, Calibration, CalibrationText, InputStatistics};
use crate::error::{ConvertError, Result};
use crate::output::new_file;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use shohin_files::{failed, open_mapped};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

const FORMAT: &str = "shohin-calibration";
const VERSION: &str = "1";
/// A row of statistics is at most as long as the widest matrix is read.
const MAX_LEN: usize = 1 << 31;

impl Calibration {
    /// Writes the database `out`. One that is there is replaced only if `replace` says so.
    ///
    /// # Errors
    /// [`ConvertError::Exists`]; those of the system.
    pub fn write(&self, out: &Path, replace: bool) -> Result<()> {
        let texts = self.texts.iter();
        let texts: Value =
            texts.map(|t| json!({"name": t.name, "windows": t.windows, "window": t.window})).collect();
        let metadata = HashMap::from(
            [("format", FORMAT.to_string()), ("version", VERSION.into()), ("model", self.model.clone())]
                .map(|(key, value)| (key.to_string(), value)),
        );
        let metadata = metadata.into_iter().chain([("texts".to_string(), texts.to_string())]).collect();
        let mut parts: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, inputs) in &self.inputs {
            let (matrices, cols) = (inputs.counts.len(), inputs.cols);
            let mut part = |of: &str, dtype, shape: &[usize], bytes| {
                parts.push((format!("{name}.{of}"), dtype, shape.to_vec(), bytes));
            };
            let u64s = |numbers: &[u64]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            let f32s = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            let f64s = |numbers: &[f64]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            part("counts", Dtype::U64, &[matrices], u64s(&inputs.counts));
            part("min", Dtype::F32, &[matrices, cols], f32s(&inputs.min));
            part("max", Dtype::F32, &[matrices, cols], f32s(&inputs.max));
            part("sum_abs", Dtype::F64, &[matrices, cols], f64s(&inputs.sum_abs));
            part("sum_squares", Dtype::F64, &[matrices, cols], f64s(&inputs.sum_squares));
            part("histogram", Dtype::U64, &[BINS], u64s(&inputs.histogram));
        }
        let invalid = |error: safetensors::SafeTensorError| {
            ConvertError::SafeTensors { problem: error.to_string() }.at(out)
        };
        let views = parts.iter().map(|(name, dtype, shape, bytes)| {
            Ok((name, TensorView::new(*dtype, shape.clone(), bytes).map_err(invalid)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let bytes = serialize(views, Some(metadata)).map_err(invalid)?;
        let mut file = new_file(out, replace)?;
        file.write_all(&bytes).map_err(failed("write", out))?;
        Ok(file.finish().map_err(failed("write", out))?)
    }

    /// Reads the database `path`, or a file of llama.cpp's importance matrices (GGUF), which has counts and squares alone.
    ///
    /// # Errors
    /// If it is neither, or of another version, or its statistics do not fit together; those of the system.
    pub fn read(path: &Path) -> Result<Calibration> {
        let map = open_mapped(path)?;
        let read = match map.starts_with(b"GGUF") {
            true => super::imatrix::read(&map),
            false => read(&map),
        };
        read.map_err(|error| error.at(path))
    }
}

fn read(bytes: &[u8]) -> Result<Calibration, ConvertError> {
    let invalid =
        |error: safetensors::SafeTensorError| ConvertError::SafeTensors { problem: error.to_string() };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    let file = SafeTensors::deserialize(bytes).map_err(invalid)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let get = |key: &str| metadata.get(key).map(String::as_str);
    for (key, expected) in [("format", FORMAT), ("version", VERSION)] {
        let found = get(key).unwrap_or("missing");
        if found != expected {
            let found = format!("{found:?}");
            let expected = if key == "format" { "\"shohin-calibration\"" } else { "\"1\"" };
            return Err(ConvertError::Value { key: key.into(), found, expected });
        }
    }
    let texts: Value = serde_json::from_str(get("texts").unwrap_or("[]"))
        .map_err(|error| ConvertError::Json { problem: error.to_string() })?;
    let text = |text: &Value| CalibrationText {
        name: text["name"].as_str().unwrap_or_default().into(),
        windows: text["windows"].as_u64().unwrap_or(0) as usize,
        window: text["window"].as_u64().unwrap_or(0) as usize,
    };
    let mut inputs = BTreeMap::new();
    for name in file.names().iter().filter_map(|name| name.strip_suffix(".counts")) {
        inputs.insert(name.to_string(), statistics(&file, name)?);
    }
    Ok(Calibration {
        model: get("model").unwrap_or_default().into(),
        texts: texts.as_array().into_iter().flatten().map(text).collect(),
        inputs,
    })
}

/// The statistics of the matrix `name`.
fn statistics(file: &SafeTensors<'_>, name: &str) -> Result<InputStatistics, ConvertError> {
    let part = |of: &str, dtype: Dtype, shape: &[usize]| {
        let name = format!("{name}.{of}");
        let tensor = file.tensor(&name).map_err(|_| ConvertError::tensor(&name, "is missing"))?;
        if tensor.dtype() != dtype || (!shape.is_empty() && tensor.shape() != shape) {
            let found = (tensor.dtype(), tensor.shape());
            let problem = format!("has type and shape {found:?}, expected {:?}", (dtype, shape));
            return Err(ConvertError::tensor(&name, problem));
        }
        Ok(tensor)
    };
    let min = part("min", Dtype::F32, &[])?;
    let [matrices, cols] = *min.shape() else {
        return Err(ConvertError::tensor(
            &format!("{name}.min"),
            "has another shape than matrices and columns",
        ));
    };
    if matrices.saturating_mul(cols) > MAX_LEN {
        return Err(ConvertError::tensor(&format!("{name}.min"), "is too large"));
    }
    let shape = [matrices, cols];
    let eight = |bytes: &[u8]| bytes.as_chunks::<8>().0.to_vec();
    let f32s =
        |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<_>>();
    let f64s =
        |tensor: TensorView<'_>| eight(tensor.data()).into_iter().map(f64::from_le_bytes).collect::<Vec<_>>();
    let u64s =
        |tensor: TensorView<'_>| eight(tensor.data()).into_iter().map(u64::from_le_bytes).collect::<Vec<_>>();
    let found = InputStatistics {
        cols,
        counts: u64s(part("counts", Dtype::U64, &shape[..1])?),
        min: f32s(min.data()),
        max: f32s(part("max", Dtype::F32, &shape)?.data()),
        sum_abs: f64s(part("sum_abs", Dtype::F64, &shape)?),
        sum_squares: f64s(part("sum_squares", Dtype::F64, &shape)?),
        histogram: u64s(part("histogram", Dtype::U64, &[BINS])?),
    };
    let sums = found.sum_abs.iter().chain(&found.sum_squares);
    match sums.clone().find(|sum| !sum.is_finite() || **sum < 0.0) {
        None => Ok(found),
        Some(sum) => {
            Err(ConvertError::tensor(name, format!("has the sum {sum}, expected one of at least 0")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_all_statistics_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats");
        let mut inputs = InputStatistics::new(2, 3);
        inputs.add(0, &[1.0, -2.0, 0.5, 0.25, 8.0, -1.0]);
        let mut calibration = Calibration::new("abc");
        calibration.inputs.insert("blk.0.ffn_up.weight".into(), inputs);
        calibration.texts.push(CalibrationText::new("a \"text\"", 2, 64));
        calibration.write(&path, false).unwrap();
        assert_eq!(Calibration::read(&path).unwrap(), calibration);
        assert!(calibration.write(&path, false).unwrap_err().to_string().contains("exists"));
        let bytes = std::fs::read(&path).unwrap();
        for (from, to, expected) in [
            ("shohin-calibration", "shohin-calibratioN", "format is \"shohin-calibratioN\""),
            ("weight.max", "weight.mux", "blk.0.ffn_up.weight.max is missing"),
        ] {
            let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            let mut damaged = bytes.clone();
            damaged[at..][..to.len()].copy_from_slice(to.as_bytes());
            std::fs::write(&path, damaged).unwrap();
            let error = Calibration::read(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len}");
        }
    }
}
