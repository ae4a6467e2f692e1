//! What was written.

use shohin_core::Format;

/// What was written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Converted {
    /// The tensors, in the order of the file.
    pub tensors: Vec<ConvertedTensor>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A tensor that was written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConvertedTensor {
    /// Its name in the file.
    pub name: String,
    /// Rows and columns; before them the number of experts whose matrices it has.
    pub shape: Vec<usize>,
    /// Its format in the source; `None` for packed codes and floats of 8 bits.
    pub from: Option<Format>,
    /// Its format in the file.
    pub to: Format,
    /// Bytes in the file.
    pub bytes: u64,
    /// The root of the mean squared error, relative to that of the weights; 0 if no bit changed.
    pub error: f64,
}
