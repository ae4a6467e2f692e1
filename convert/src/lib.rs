//! Converting a Hugging Face folder (`config.json`, `tokenizer.json` and safetensors, also as MLX packs them, or ONNX)
//! or a GGUF file to a GGUF file with weights in any format, or back to a folder.
//!
//! Weights are mapped, converted a few rows at a time on all cores and written as they are ready, so that memory does
//! not depend on the size of the model. The file appears under its name when it is complete.

#![forbid(unsafe_code)]

mod budget;
mod calibration;
mod combine;
mod config;
mod delta;
mod edit;
mod error;
mod estimate;
mod file_type;
mod float8;
mod folder;
mod grouped;
mod importance;
mod initial;
mod json;
mod kind;
mod merge;
mod names;
mod onnx;
mod options;
mod order;
mod output;
mod peft;
mod plan;
mod pooling;
mod protobuf;
mod prune;
mod report;
mod rules;
mod sentencepiece;
mod smooth;
mod source;
mod stored;
mod tensor;
mod ternary;
mod to_folder;
mod to_gguf;
mod to_peft;
mod tokenizer;
mod vocabulary;

pub use budget::{FormatChoice, FormatTrial, FormatTrials, TriedFormat, size_range, try_formats};
pub use calibration::{Calibration, CalibrationText, InputStatistics, Range, RangeMethod};
pub use combine::{MergeMethod, ModelMerge, merge_models};
pub use error::{ConvertError, Error, Result};
pub use estimate::{Estimate, EstimatedTensor, estimate};
pub use file_type::{FileType, Int8, Mix};
pub use importance::Importance;
pub use initial::initial;
pub use kind::{is_adapter_folder, is_folder};
pub use merge::merge;
pub use options::ConvertOptions;
#[doc(hidden)]
pub use output::new_file;
pub use peft::{adapter_in_memory, convert_adapter};
pub use prune::{PruneMethod, PruneOptions, Pruned, Structure, prune};
pub use report::{Converted, ConvertedTensor, Merge};
pub use rules::TensorRule;
pub use shohin_files::Error as FileError;
pub use smooth::{SmoothOptions, Smoothed, SmoothedGroup, smooth};
pub use source::{in_memory, in_memory_gguf};
pub use ternary::Id36;
pub use to_folder::convert_to_folder;
pub use to_gguf::convert;
pub use to_peft::{adapter_to_folder, convert_adapter_to_folder};
