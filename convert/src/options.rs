//! What to write.

use crate::file_type::FileType;
use crate::importance::Importance;
use crate::rules::TensorRule;
use crate::ternary::Id36;
use shohin_core::gguf::{Id42, ReadOptions};

/// What to write.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The formats of matrices; those that keep every bit of the source unless set. Norms are F32.
    pub file_type: Option<FileType>,
    /// Formats of single tensors; the last one that matches counts.
    pub rules: Vec<TensorRule>,
    /// How much errors of the columns of matrices count, where they are quantized.
    pub importance: Option<Importance>,
    /// Whether a file of that name is replaced.
    pub replace: bool,
    /// The layout of tensors of type 42 in a GGUF file that does not say it.
    pub id42: Id42,
    /// The layout of tensors of type 36 (I2_S) in a GGUF file.
    pub id36: Id36,
    /// Whether matrices that [adapters change](crate::merge) may become 1-bit or ternary.
    pub requantize: bool,
}

impl ConvertOptions {
    /// Options that keep every bit of the source, and every file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`ConvertOptions::file_type`](#structfield.file_type).
    pub fn file_type(mut self, file_type: impl Into<FileType>) -> Self {
        self.file_type = Some(file_type.into());
        self
    }

    /// Sets [`ConvertOptions::rules`](#structfield.rules).
    pub fn rules(mut self, rules: Vec<TensorRule>) -> Self {
        self.rules = rules;
        self
    }

    /// Sets [`ConvertOptions::importance`](#structfield.importance).
    pub fn importance(mut self, importance: Importance) -> Self {
        self.importance = Some(importance);
        self
    }

    /// Sets [`ConvertOptions::replace`](#structfield.replace).
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets [`ConvertOptions::id42`](#structfield.id42).
    pub fn id42(mut self, id42: Id42) -> Self {
        self.id42 = id42;
        self
    }

    /// Sets [`ConvertOptions::id36`](#structfield.id36).
    pub fn id36(mut self, id36: Id36) -> Self {
        self.id36 = id36;
        self
    }

    /// Sets [`ConvertOptions::requantize`](#structfield.requantize).
    pub fn requantize(mut self, requantize: bool) -> Self {
        self.requantize = requantize;
        self
    }

    pub(crate) fn read_options(&self) -> ReadOptions {
        ReadOptions { id42: self.id42, ..ReadOptions::default() }
    }
}
