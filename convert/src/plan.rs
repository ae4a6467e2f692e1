//! A GGUF file to be: its header, and where its tensors come from.

use crate::config::Config;
use crate::delta::{Deltas, Sums};
use crate::edit::Edit;
use crate::error::{ConvertError, Error, Result};
use crate::file_type::{FileType, Layers};
use crate::folder::Folder;
use crate::names::is_router;
use crate::options::ConvertOptions;
use crate::report::ConvertedTensor;
use crate::rules::{TensorRule, choose};
use crate::tensor::{self, Tensor};
use crate::{importance, pooling, tokenizer};
use shohin_core::gguf::{Gguf, GgufBody, GgufStream, GgufWriter, Header, ReadOptions, Value};
use shohin_core::model::lora;
use shohin_core::quant::WeightClass;
use shohin_core::{Format, ModelConfig, Tokenizer};
use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

/// A GGUF file to be.
pub(crate) struct Plan<'f> {
    source: &'f Path,
    header: Vec<u8>,
    body: GgufBody,
    /// In the order of the file.
    tensors: Vec<(Tensor<'f>, Format)>,
    /// What computes weights from those of the source.
    edit: Option<&'f dyn Edit>,
}

/// Metadata that depend on the formats of tensors.
const VERSION: &str = "general.quantization_version";
const FILE_TYPE: &str = "general.file_type";

impl<'f> Plan<'f> {
    pub(crate) fn of_folder(
        folder: &'f Folder,
        options: &ConvertOptions,
        deltas: &Deltas<'f>,
    ) -> Result<Self> {
        let mut w = GgufWriter::new();
        let mut config = folder.config().at(Config::read(&folder.config().root, &mut w))?;
        pooling::write(folder, config.architecture.name, &mut w)?;
        tokenizer::write(folder, config.vocab, &mut w)?;
        let modules = folder.modules(&mut config)?;
        let tensors = tensor::of_modules(&config, modules).and_then(|tensors| {
            let embedding = tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
            let expected = [config.vocab as usize, config.hidden as usize];
            match embedding.map(|tensor| [tensor.rows, tensor.cols]).filter(|shape| *shape != expected) {
                None => Ok(tensors),
                Some(shape) => {
                    let problem =
                        format!("has the shape {shape:?}, but vocab_size and hidden_size are {expected:?}");
                    Err(ConvertError::tensor("model.embed_tokens.weight", problem))
                }
            }
        });
        let plan = tensors.and_then(|tensors| {
            w.set("general.name", folder.name().as_str())?;
            let plan = Plan::new(folder.source(), w, merged(tensors, deltas)?, options, None);
            plan.map_err(tokenizer::of_folder)
        });
        folder.at(plan)
    }

    pub(crate) fn of_gguf(
        source: &'f Path,
        gguf: &Gguf<'f>,
        options: &ConvertOptions,
        deltas: &Deltas<'f>,
    ) -> Result<Self> {
        let plan = || {
            lora::refuse_adapter(gguf)?;
            let mut w = GgufWriter::new();
            // The parts of a model become one file.
            let written_anew = |key: &str| {
                [VERSION, FILE_TYPE].contains(&key)
                    || options.importance.is_some() && key.starts_with(importance::KEYS)
            };
            let others = |key: &str| !written_anew(key) && !key.starts_with("split.");
            for (key, value) in gguf.metadata().iter().filter(|(key, _)| others(key)) {
                w.set(key, value)?;
            }
            let keeps_types = options.file_type.is_none() && options.rules.is_empty();
            let file_type = gguf.metadata().get(FILE_TYPE).filter(|_| keeps_types);
            Plan::new(source, w, merged(tensor::of_gguf(gguf, options.id36)?, deltas)?, options, file_type)
        };
        plan().map_err(|error: ConvertError| error.at(source))
    }

    /// `file_type` is written where the formats of tensors have no number of their own.
    fn new(
        source: &'f Path,
        mut w: GgufWriter,
        tensors: Vec<Tensor<'f>>,
        options: &ConvertOptions,
        file_type: Option<Value<'f>>,
    ) -> Result<Self, ConvertError> {
        let is_unmatched = |rule: &&TensorRule| !tensors.iter().any(|tensor| rule.matches(&tensor.name));
        if let Some(rule) = options.rules.iter().find(is_unmatched) {
            return Err(ConvertError::Unmatched { pattern: rule.pattern().into() });
        }
        let model = Layers::of(tensors.iter().map(|tensor| tensor.name.as_str()));
        let choose = |mut tensor: Tensor<'f>| {
            let (format, int8) = choose(&tensor, options.file_type, &options.rules, &model)?;
            if tensor.is_merged() && !options.requantize {
                holds_deltas(&tensor.name, format)?;
            }
            if !tensor.copies(format) {
                has_quantizer(&tensor.name, format)?;
            }
            if let Some(int8) = int8 {
                tensor.share_scale(int8)?;
            }
            Ok((tensor, format))
        };
        let mut tensors: Vec<_> = tensors.into_iter().map(choose).collect::<Result<_, ConvertError>>()?;
        if let Some(importance) = &options.importance {
            importance.assign(&mut tensors)?;
            importance.describe(&mut w)?;
        }
        one_format_for_each_id(&tensors)?;
        // The mark by which its readers tell this layout of id 42 from the others.
        if tensors.iter().any(|(_, format)| *format == Format::Tq2_0G128) {
            w.set(VERSION, "TQ2_0_G128")?;
        } else {
            w.set(VERSION, 2u32)?;
        }
        let common = options.file_type.or_else(|| {
            let is_float = |tensor: &Tensor<'_>| tensor.vector || is_router(&tensor.name);
            let mut formats =
                tensors.iter().filter(|(tensor, _)| !is_float(tensor)).map(|(_, format)| *format);
            let first = formats.next()?;
            formats.all(|format| format == first).then_some(FileType::All(first))
        });
        if let Some(value) = common.and_then(FileType::id).map(Value::from).or(file_type) {
            w.set(FILE_TYPE, value)?;
        }
        for (tensor, format) in &tensors {
            let dims: Vec<u64> = tensor.shape().iter().rev().map(|dim| *dim as u64).collect();
            w.tensor(
                &tensor.name,
                if tensor.vector && tensor.rows == 1 { &dims[..1] } else { &dims },
                *format,
            )?;
        }
        let (header, body) = (w.header()?, w.body());
        let plan = Plan { source, header, body, tensors, edit: None };
        plan.check()?;
        Ok(plan)
    }

    /// Checks that this library would load the file, and find in it what is planned: nothing has been written yet.
    fn check(&self) -> Result<(), ConvertError> {
        self.header(|header| self.check_header(header))
    }

    fn check_header(&self, header: &Header<'_>) -> Result<(), ConvertError> {
        // An id may mean several formats, of which readers choose one by the rest of the header.
        for ((tensor, format), info) in self.tensors.iter().zip(header.tensors()) {
            let len = (tensor.rows * tensor.row_bytes(*format)) as u64;
            if (info.name(), info.format(), info.len()) != (tensor.name.as_str(), Some(*format), len) {
                let problem = format!(
                    "would be read as {} bytes of {}, expected {len} of {}",
                    info.len(),
                    info.type_name(),
                    format.name()
                );
                return Err(ConvertError::tensor(&tensor.name, problem));
            }
        }
        ModelConfig::from_header(header)?.program().bind(header)?;
        Tokenizer::from_metadata(header.metadata())?;
        Ok(())
    }

    /// Has `edit` compute weights.
    ///
    /// # Errors
    /// Those of [`Edit::check`].
    pub(crate) fn edited(mut self, edit: &'f dyn Edit) -> Result<Self> {
        let mut changed = self.tensors.iter().filter(|(tensor, _)| edit.changes(tensor));
        let checked = changed.try_for_each(|(tensor, format)| {
            has_quantizer(&tensor.name, *format)?;
            edit.check(tensor, *format)
        });
        checked.map_err(|error| error.at(self.source))?;
        self.edit = Some(edit);
        Ok(self)
    }

    /// The tensors, in the order of the file.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor<'f>> {
        self.tensors.iter().map(|(tensor, _)| tensor)
    }

    /// The tensors with their formats in the file.
    pub(crate) fn formats(&self) -> &[(Tensor<'f>, Format)] {
        &self.tensors
    }

    /// Where the weights come from.
    pub(crate) fn source(&self) -> &Path {
        self.source
    }

    /// The same model with other tensors, and other values of some keys.
    pub(crate) fn reshaped(
        &self,
        tensors: Vec<Tensor<'f>>,
        values: &[(String, u32)],
        options: &ConvertOptions,
    ) -> Result<Self> {
        let others = |key: &str| {
            ![VERSION, FILE_TYPE].contains(&key) && !values.iter().any(|(changed, _)| changed == key)
        };
        let metadata = self.header(|header| {
            let mut w = GgufWriter::new();
            for (key, value) in header.metadata().iter().filter(|(key, _)| others(key)) {
                w.set(key, value)?;
            }
            for (key, value) in values {
                w.set(key, *value)?;
            }
            Ok(w)
        });
        let plan = metadata.and_then(|w| Plan::new(self.source, w, tensors, options, None));
        plan.map_err(|error| error.at(self.source))
    }

    /// Calls `read` with the header of the file.
    pub(crate) fn header<T>(
        &self,
        read: impl FnOnce(&Header<'_>) -> Result<T, ConvertError>,
    ) -> Result<T, ConvertError> {
        let mut stream = GgufStream::new(self.len(), ReadOptions::default());
        stream.push(&self.header, &mut |_| Ok(()))?;
        let (expected, found) = (self.len(), self.header.len() as u64);
        let incomplete = shohin_core::Error::Length { what: "header", expected, found };
        read(&stream.header()?.ok_or(incomplete)?)
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.header.len() as u64 + self.body.len()
    }

    /// Passes the bytes of the file to `out`, piece by piece.
    pub(crate) fn write(&self, mut out: impl FnMut(&[u8]) -> Result<()>) -> Result<Vec<ConvertedTensor>> {
        out(&self.header)?;
        let mut body = self.body.clone();
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let mut piece = Vec::new();
        let mut report = Vec::new();
        for (tensor, format) in &self.tensors {
            let edit = self.edit.filter(|edit| edit.changes(tensor));
            let new = edit.map(|edit| edit.weights(tensor)).transpose();
            let new = new.map_err(|error| error.at(self.source))?;
            let edited = new.as_deref().map(|new| tensor.edited(new));
            let tensor = edited.as_ref().unwrap_or(tensor);
            let row_bytes = tensor.row_bytes(*format);
            let mut sums = Sums::default();
            let most = tensor.share() * workers;
            for first in (0..tensor.rows).step_by(most) {
                piece.resize(most.min(tensor.rows - first) * row_bytes, 0);
                let more = tensor.write(first, *format, &mut piece).map_err(|error| error.at(self.source))?;
                sums = sums.plus(more);
                body.push(&piece, |bytes| out(bytes).map_err(Stopped::Out)).map_err(
                    |stopped| match stopped {
                        Stopped::Out(error) => error,
                        Stopped::Body(error) => error.at(self.source),
                    },
                )?;
            }
            report.push(tensor.report(&tensor.name, *format, sums));
        }
        body.finish().map_err(|error| ConvertError::from(error).at(self.source))?;
        Ok(report)
    }
}

/// `tensors`, to which `deltas` are added.
fn merged<'f>(tensors: Vec<Tensor<'f>>, deltas: &Deltas<'f>) -> Result<Vec<Tensor<'f>>, ConvertError> {
    deltas.check(|name| tensors.iter().any(|tensor| tensor.name == name))?;
    let merge = |mut tensor: Tensor<'f>| {
        tensor.merge(deltas.of(&tensor.name))?;
        Ok(tensor)
    };
    tensors.into_iter().map(merge).collect()
}

/// Refuses formats in which deltas would be rounded away.
pub(crate) fn holds_deltas(name: &str, format: Format) -> Result<(), ConvertError> {
    let kind = match format.class() {
        WeightClass::Float | WeightClass::Integer => return Ok(()),
        WeightClass::OneBit => "1-bit",
        WeightClass::Ternary => "ternary",
    };
    let problem = format!(
        "would be {} with what is added to it, but {kind} weights round such small changes away, expected a format of more bits such as f16 or q8_0",
        format.name()
    );
    Err(ConvertError::tensor(name, problem))
}

/// Refuses formats that are only read.
fn has_quantizer(name: &str, format: Format) -> Result<(), ConvertError> {
    if format.has_quantizer() {
        return Ok(());
    }
    let problem = format!(
        "would be {}, which is only read, expected a format that is written such as q2_k or iq4_xs",
        format.name()
    );
    Err(ConvertError::tensor(name, problem))
}

/// What ends the writing of a body.
enum Stopped {
    Out(Error),
    Body(ConvertError),
}

impl From<shohin_core::Error> for Stopped {
    fn from(error: shohin_core::Error) -> Self {
        Stopped::Body(error.into())
    }
}

/// Refuses formats that GGUF tells apart only by a mark for the whole file.
fn one_format_for_each_id(tensors: &[(Tensor<'_>, Format)]) -> Result<(), ConvertError> {
    let mut first: BTreeMap<u32, &(Tensor<'_>, Format)> = BTreeMap::new();
    for planned in tensors {
        let (tensor, format) = planned;
        let (other, known) = first.entry(format.gguf_id()).or_insert(planned);
        if known != format {
            let tensors = [other.name.clone(), tensor.name.clone()];
            return Err(ConvertError::SameId { tensors, formats: [*known, *format] });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the id of a tensor's format were read as another one.
    #[test]
    fn a_header_that_would_be_read_as_another_format_is_refused() {
        let source = Path::new("sprout-nano.gguf");
        let gguf = Gguf::parse(include_bytes!("../../models/sprout-nano.gguf")).unwrap();
        let mut plan = Plan::of_gguf(source, &gguf, &ConvertOptions::new(), &Deltas::default()).unwrap();
        plan.check().unwrap();
        let matrix = plan.tensors.iter_mut().find(|(tensor, _)| !tensor.vector).unwrap();
        let read = matrix.1;
        matrix.1 = Format::Tq2_0G128;
        let name = matrix.0.name.clone();
        let error = plan.check().unwrap_err().to_string();
        assert!(error.contains(&format!("tensor {name} would be read as ")), "{error}");
        assert!(error.contains(&format!("bytes of {}, expected ", read.name())), "{error}");
        assert!(error.ends_with(" of TQ2_0_G128"), "{error}");
    }
}
