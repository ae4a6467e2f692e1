//! What `Model::info` tells of a file and a device.

use shohin_core::chat::Template;
use shohin_core::gguf::Header;
use shohin_core::model::Pooling;
use shohin_core::tokenizer::Tokenizer;
use shohin_core::{Format, Result};

/// Facts about the file for `info`, and its chat template.
pub(crate) struct FileInfo {
    pub(crate) name: String,
    pub(crate) architecture: String,
    /// Type names of the matrices, most bytes first.
    pub(crate) formats: Vec<&'static str>,
    /// Of most of the layers' bytes.
    pub(crate) format: Format,
    pub(crate) bytes: u64,
    /// The layout of tensors of type 42; empty if there are none.
    pub(crate) layout_42: &'static str,
    pub(crate) template: Template,
    /// How the file combines the states of a text, or why that is not computed.
    pub(crate) pooling: Result<Pooling>,
}

/// Facts about the device for `info`.
pub(crate) struct DeviceInfo {
    pub(crate) backend: &'static str,
    /// Instruction set, or the GPU's name.
    pub(crate) isa: String,
    pub(crate) threads: usize,
    /// Bytes.
    pub(crate) weights: usize,
    pub(crate) kv: usize,
    pub(crate) scratch: usize,
}

impl FileInfo {
    /// Of a file of `bytes`.
    pub(crate) fn new(header: &Header<'_>, tokenizer: &Tokenizer<'_>, bytes: u64) -> Result<FileInfo> {
        let text = |key| header.metadata().str(key).map(|found| found.unwrap_or_default().to_owned());
        let mut formats: Vec<(&'static str, u64)> = Vec::new();
        for tensor in header.tensors().iter().filter(|tensor| tensor.dims().len() > 1) {
            let name = tensor.type_name();
            match formats.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += tensor.len(),
                None => formats.push((name, tensor.len())),
            }
        }
        let mut sorted = Vec::new();
        // A sort would be several kilobytes of the module.
        while let Some(most) = formats.iter().map(|format| format.1).max()
            && let Some(at) = formats.iter().position(|format| format.1 == most)
        {
            sorted.push(formats.remove(at).0);
        }
        Ok(FileInfo {
            name: text("general.name")?,
            architecture: text("general.architecture")?,
            formats: sorted,
            format: header.layer_format().unwrap_or(Format::F32),
            bytes,
            layout_42: header.format_of_42().map_or("", Format::name),
            template: Template::from_metadata(header.metadata(), tokenizer)?,
            pooling: Pooling::from_metadata(header.metadata()),
        })
    }
}
