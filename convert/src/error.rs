//! Why a model cannot be converted.

use shohin_core::Format;
use std::fmt;
use std::path::{Path, PathBuf};

/// The reason why a conversion failed.
pub enum Error {
    /// A file cannot be read or written.
    File(shohin_files::Error),
    /// A model cannot be converted.
    Convert {
        /// The folder, or the file of it that is wrong.
        path: PathBuf,
        /// The reason.
        source: Box<ConvertError>,
    },
}

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A stable machine-readable name: `convert`, or that of the file's error ([`shohin_files::Error::code`]).
    pub fn code(&self) -> &'static str {
        match self {
            Error::File(source) => source.code(),
            Error::Convert { .. } => "convert",
        }
    }
}

impl fmt::Debug for Error {
    /// As `Display`: what `main` and `unwrap` print is for people, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File(source) => source.fmt(f),
            Error::Convert { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File(source) => source.source(),
            Error::Convert { source, .. } => Some(&**source),
        }
    }
}

impl From<shohin_files::Error> for Error {
    fn from(error: shohin_files::Error) -> Self {
        Error::File(error)
    }
}

/// Why a model cannot be converted.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum ConvertError {
    /// The file to write exists.
    Exists,
    /// The file to write is a folder, a pipe or a device.
    NotRegular,
    /// The file to write is named like a part of a model in several files.
    NameOfPart,
    /// No tensor has a name that matches the pattern of a [`TensorRule`](crate::TensorRule).
    Unmatched {
        /// The pattern.
        pattern: String,
    },
    /// Two formats of one file would have the same id in it, so that readers could not tell them apart.
    SameId {
        /// A tensor of each.
        tensors: [String; 2],
        /// The formats.
        formats: [Format; 2],
    },
    /// A file is larger than any such file is.
    Large {
        /// Its length.
        found: u64,
        /// The longest that is read.
        most: u64,
    },
    /// A file is not valid JSON, or not UTF-8.
    Json {
        /// What is wrong, and where.
        problem: String,
    },
    /// A value has another type, or a value that is not supported, or is missing.
    Value {
        /// Where it is in the file.
        key: String,
        /// What was found.
        found: String,
        /// What can be there.
        expected: &'static str,
    },
    /// The header of a safetensors file is invalid.
    SafeTensors {
        /// What is wrong.
        problem: String,
    },
    /// An ONNX file is damaged.
    Onnx {
        /// What is wrong.
        problem: String,
    },
    /// A tensor is missing, unknown, or does not fit the others.
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The GGUF file would be invalid.
    Gguf(shohin_core::Error),
}

impl ConvertError {
    /// Adds the folder, or the file of it that is wrong.
    pub(crate) fn at(self, path: &Path) -> Error {
        Error::Convert { path: path.into(), source: Box::new(self) }
    }

    pub(crate) fn tensor(name: &str, problem: impl Into<String>) -> Self {
        ConvertError::Tensor { name: name.into(), problem: problem.into() }
    }
}

impl fmt::Debug for ConvertError {
    /// As `Display`: what `main` and `unwrap` print is for people, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConvertError::Exists => f.write_str("it exists already"),
            ConvertError::NotRegular => {
                f.write_str("it is a folder, a pipe or a device, expected the name of a file")
            }
            ConvertError::NameOfPart => f.write_str(
                "it is the name of a part of a model, whose other parts readers would look for; expected another name",
            ),
            ConvertError::Unmatched { pattern } => {
                write!(f, "no tensor matches {pattern:?}, expected a pattern such as blk.*.attn_v")
            }
            ConvertError::SameId { tensors: [a, b], formats: [of_a, of_b] } => write!(
                f,
                "tensor {a} would be {} and {b} {}, which have the same id {} in GGUF, expected one of these formats in a file",
                of_a.name(),
                of_b.name(),
                of_a.gguf_id()
            ),
            ConvertError::Large { found, most } => {
                write!(f, "the file has {found} bytes, the limit is {most}")
            }
            ConvertError::Json { problem } => write!(f, "invalid JSON: {problem}"),
            ConvertError::Value { key, found, expected } => {
                write!(f, "{key} is {found}, expected {expected}")
            }
            ConvertError::SafeTensors { problem } => write!(f, "not a valid safetensors file: {problem}"),
            ConvertError::Onnx { problem } => write!(f, "not a valid ONNX file: {problem}"),
            ConvertError::Tensor { name, problem } => write!(f, "tensor {name} {problem}"),
            ConvertError::Gguf(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConvertError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConvertError::Gguf(error) => Some(error),
            _ => None,
        }
    }
}

impl From<shohin_core::Error> for ConvertError {
    fn from(error: shohin_core::Error) -> Self {
        ConvertError::Gguf(error)
    }
}
