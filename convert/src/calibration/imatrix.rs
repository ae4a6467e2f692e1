//! Importance matrices as llama.cpp writes them: a GGUF file with `NAME.in_sum2`, the sums of squares `(matrices, cols)`, and
//! `NAME.counts`, the numbers of inputs `(matrices)`, both in F32.

use super::{Calibration, CalibrationText, InputStatistics};
use crate::error::{ConvertError, Result};
use crate::output::new_file;
use shohin_core::gguf::{Gguf, GgufWriter};
use shohin_core::{Format, quant};
use shohin_files::failed;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl Calibration {
    /// Writes the squares as llama.cpp's importance matrices. A file that is there is replaced only if `replace` says so.
    ///
    /// # Errors
    /// [`ConvertError::Exists`]; those of the system.
    pub fn write_importance(&self, out: &Path, replace: bool) -> Result<()> {
        let (header, body) = self.importance().map_err(|error| error.at(out))?;
        let mut file = new_file(out, replace)?;
        file.write_all(&header).map_err(failed("write", out))?;
        file.write_all(&body).map_err(failed("write", out))?;
        Ok(file.finish().map_err(failed("write", out))?)
    }

    fn importance(&self) -> Result<(Vec<u8>, Vec<u8>), ConvertError> {
        let mut w = GgufWriter::new();
        w.set("general.type", "imatrix")?;
        let names: Vec<&str> = self.texts.iter().map(|text| text.name.as_str()).collect();
        w.set_strings("imatrix.datasets", &names)?;
        let windows: usize = self.texts.iter().map(|text| text.windows).sum();
        w.set("imatrix.chunk_count", u32::try_from(windows).unwrap_or(u32::MAX))?;
        let window = self.texts.first().map_or(0, |text| text.window);
        w.set("imatrix.chunk_size", u32::try_from(window).unwrap_or(u32::MAX))?;
        for (name, inputs) in &self.inputs {
            let (matrices, cols) = (inputs.counts.len() as u64, inputs.cols as u64);
            let dims = |cols| if matrices == 1 { vec![cols] } else { vec![cols, matrices] };
            w.tensor(&format!("{name}{SUMS}"), &dims(cols), Format::F32)?;
            w.tensor(&format!("{name}{COUNTS}"), &dims(1), Format::F32)?;
        }
        let (header, mut writer) = (w.header()?, w.body());
        let mut body = Vec::new();
        let mut push = |bytes: &[u8]| {
            writer.push(bytes, |bytes| {
                body.extend_from_slice(bytes);
                Ok::<(), shohin_core::Error>(())
            })
        };
        for inputs in self.inputs.values() {
            let sums: Vec<u8> = inputs.sum_squares.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            push(&sums)?;
            let counts: Vec<u8> = inputs.counts.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            push(&counts)?;
        }
        writer.finish()?;
        Ok((header, body))
    }
}

/// The squares and counts in such a file.
pub(super) fn read(bytes: &[u8]) -> Result<Calibration, ConvertError> {
    let gguf = Gguf::parse(bytes)?;
    let metadata = gguf.metadata();
    let kind = metadata.str("general.type")?.unwrap_or("missing");
    if kind != "imatrix" {
        let (key, found) = ("general.type".into(), format!("{kind:?}"));
        return Err(ConvertError::Value { key, found, expected: "\"imatrix\"" });
    }
    let numbers = |name: &str| -> Result<Vec<f32>, ConvertError> {
        let info = gguf.tensors().iter().find(|info| info.name() == name);
        let info = info.ok_or_else(|| ConvertError::tensor(name, "is missing"))?;
        if info.format() != Some(Format::F32) {
            let problem = format!("has type {}, expected F32", info.type_name());
            return Err(ConvertError::tensor(name, problem));
        }
        let data = gguf.data(info);
        let mut numbers = vec![0.0; data.len() / 4];
        quant::unpack(Format::F32, data, &mut numbers)?;
        match numbers.iter().find(|x| !x.is_finite() || **x < 0.0) {
            None => Ok(numbers),
            Some(x) => Err(ConvertError::tensor(name, format!("has {x}, expected numbers of at least 0"))),
        }
    };
    let mut inputs = BTreeMap::new();
    for name in gguf.tensors().iter().filter_map(|info| info.name().strip_suffix(SUMS)) {
        let (sums, counts) = (numbers(&format!("{name}{SUMS}"))?, numbers(&format!("{name}{COUNTS}"))?);
        if counts.is_empty() || sums.is_empty() || sums.len() % counts.len() != 0 {
            let problem = format!("has {} sums for {} matrices", sums.len(), counts.len());
            return Err(ConvertError::tensor(name, problem));
        }
        let mut of = InputStatistics::new(counts.len(), sums.len() / counts.len());
        of.counts = counts.into_iter().map(|count| count as u64).collect();
        of.sum_squares = sums.into_iter().map(f64::from).collect();
        inputs.insert(name.to_string(), of);
    }
    let windows = metadata.u32("imatrix.chunk_count")?.unwrap_or(0) as usize;
    let window = metadata.u32("imatrix.chunk_size")?.unwrap_or(0) as usize;
    let texts = vec![CalibrationText::new("importance matrices", windows, window)];
    Ok(Calibration { model: String::new(), texts, inputs })
}
