//! Errors a person can act on: each names the file or option, the expected and the found value.

use std::fmt;
use std::io;
#[cfg(feature = "convert")]
use std::path::PathBuf;

pub use shohin_files::Error as FileError;

/// The reason why a model cannot be opened or run.
#[non_exhaustive]
pub enum Error {
    /// A file cannot be used.
    File(FileError),
    /// An option has a value that this machine does not support.
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: String,
        /// Values it can have.
        expected: String,
    },
    /// An environment variable has a value that cannot be used, or is needed and not set.
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
        /// Values it can have.
        expected: String,
    },
    /// The system refused to start threads.
    Threads {
        /// Number of threads requested.
        count: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The engine refused a request.
    Engine(shohin_core::Error),
    /// The configuration from options and file is invalid.
    Config(shohin_core::Error),
    /// An empty text.
    EmptyText {
        /// Its number, from 1.
        number: usize,
    },
    /// A text with more tokens than the model supports.
    LongText {
        /// Its number, from 1.
        number: usize,
        /// Its number of tokens.
        found: usize,
        /// The model's longest context.
        most: usize,
    },
    /// The model's hidden states are not finite.
    NotFinite,
    /// A GPU was asked for, and this program was built without the feature `gpu`.
    NoGpuSupport,
    /// Metal was asked for, and this program was built without the feature `metal` or not for a Mac.
    NoMetalSupport,
    /// An NVIDIA GPU was asked for, and this program was built without the feature `cuda`.
    NoCudaSupport,
    /// MPI cannot be used, or a rank has a problem.
    #[cfg(feature = "mpi")]
    Mpi {
        /// The problem, with the rank.
        problem: String,
    },
    /// A model cannot be converted.
    #[cfg(feature = "convert")]
    Convert {
        /// The folder, or the file of it that is wrong.
        path: PathBuf,
        /// The reason.
        source: Box<shohin_convert::ConvertError>,
    },
    /// A model cannot be trained like this.
    #[cfg(feature = "train")]
    Train(Box<shohin_train::Error>),
    /// A training cannot go on from a checkpoint.
    #[cfg(feature = "train")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<shohin_train::Error>,
    },
    /// What a model is to learn from is invalid.
    #[cfg(feature = "train")]
    Corpus {
        /// The line, from 1, if it is of one.
        line: Option<usize>,
        /// The problem.
        problem: String,
    },
    /// A model of the Hub cannot be downloaded.
    #[cfg(feature = "hub")]
    Hub {
        /// The model.
        model: String,
        /// The reason.
        source: HubError,
    },
    /// The GPU failed, or there is none.
    #[cfg(feature = "gpu")]
    Gpu {
        /// The error.
        source: Box<shohin_gpu::Error>,
        /// GPUs of this machine, if another name could help.
        names: Vec<String>,
    },
    /// Metal failed, or there is no device.
    #[cfg(all(feature = "metal", target_os = "macos"))]
    Metal(Box<shohin_metal::Error>),
    /// The NVIDIA GPU failed, or there is none.
    #[cfg(feature = "cuda")]
    Cuda(Box<shohin_cuda::Error>),
}

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A stable machine-readable name: that of the engine's error ([`shohin_core::Error::code`]), or `io`, `not_a_file`,
    /// `threads`, `convert` or `hub`.
    pub fn code(&self) -> &'static str {
        match self {
            Error::File(source) => source.code(),
            Error::Engine(source) | Error::Config(source) => source.code(),
            Error::Option { .. } | Error::Environment { .. } => "option",
            Error::Threads { .. } => "threads",
            Error::EmptyText { .. } => "length",
            Error::LongText { .. } => "context_full",
            Error::NotFinite => "logits",
            Error::NoGpuSupport | Error::NoCudaSupport | Error::NoMetalSupport => "unsupported",
            #[cfg(feature = "mpi")]
            Error::Mpi { .. } => "device",
            #[cfg(feature = "convert")]
            Error::Convert { .. } => "convert",
            #[cfg(feature = "train")]
            Error::Train(error) => match &**error {
                shohin_train::Error::Core(error) => error.code(),
                _ => "train",
            },
            #[cfg(feature = "train")]
            Error::Checkpoint { .. } => "checkpoint",
            #[cfg(feature = "train")]
            Error::Corpus { .. } => "corpus",
            #[cfg(feature = "hub")]
            Error::Hub { .. } => "hub",
            #[cfg(feature = "gpu")]
            Error::Gpu { .. } => "device",
            #[cfg(feature = "cuda")]
            Error::Cuda(_) => "device",
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Error::Metal(_) => "device",
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
            Error::Option { name, found, expected } | Error::Environment { name, found, expected } => {
                write!(f, "{name} is {found:?}, expected {expected}")
            }
            Error::Threads { count, source } => write!(f, "cannot start {count} threads: {source}"),
            Error::Config(source) | Error::Engine(source) => source.fmt(f),
            Error::EmptyText { number } => write!(f, "text {number} is empty"),
            Error::LongText { number, found, most } => {
                write!(f, "text {number} has {found} tokens, but the model supports {most}")
            }
            Error::NotFinite => f.write_str("the model's hidden states are not all finite"),
            Error::NoGpuSupport => write!(
                f,
                "this program was built without wgpu (GPUs through Vulkan, Metal or Direct3D); build it with `{}`{}",
                features_with("gpu"),
                if cfg!(feature = "cuda") { ", or choose the device cuda, which it has" } else { "" }
            ),
            Error::NoMetalSupport => write!(
                f,
                "this program was built without Metal; build it on a Mac with `{}`",
                features_with("metal")
            ),
            Error::NoCudaSupport => {
                write!(f, "this program was built without CUDA; build it with `{}`", features_with("cuda"))
            }
            #[cfg(feature = "cuda")]
            Error::Cuda(source) => source.fmt(f),
            #[cfg(feature = "mpi")]
            Error::Mpi { problem } => f.write_str(problem),
            #[cfg(feature = "convert")]
            Error::Convert { path, source } => write!(f, "{}: {source}", path.display()),
            #[cfg(feature = "train")]
            Error::Train(source) => source.fmt(f),
            #[cfg(feature = "train")]
            Error::Checkpoint { path, source } => write!(f, "{}: {source}", path.display()),
            #[cfg(feature = "train")]
            Error::Corpus { line: Some(line), problem } => write!(f, "line {line}: {problem}"),
            #[cfg(feature = "train")]
            Error::Corpus { line: None, problem } => f.write_str(problem),
            #[cfg(feature = "hub")]
            Error::Hub { model, source } => write!(f, "{model}: {source}"),
            #[cfg(feature = "gpu")]
            Error::Gpu { source, names } if names.is_empty() => source.fmt(f),
            #[cfg(feature = "gpu")]
            Error::Gpu { source, names } => {
                write!(f, "{source}; GPUs of this machine: {}", names.join(", "))
            }
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Error::Metal(source) => source.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File(source) => source.source(),
            Error::Threads { source, .. } => Some(source),
            #[cfg(feature = "convert")]
            Error::Convert { source, .. } => Some(&**source),
            #[cfg(feature = "train")]
            Error::Train(source) | Error::Checkpoint { source, .. } => Some(source),
            #[cfg(feature = "train")]
            Error::Corpus { .. } => None,
            #[cfg(feature = "hub")]
            Error::Hub { source, .. } => Some(source),
            Error::Config(source) | Error::Engine(source) => Some(source),
            #[cfg(feature = "gpu")]
            Error::Gpu { source, .. } => Some(&**source),
            #[cfg(all(feature = "metal", target_os = "macos"))]
            Error::Metal(source) => Some(&**source),
            #[cfg(feature = "cuda")]
            Error::Cuda(source) => Some(&**source),
            #[cfg(feature = "mpi")]
            Error::Mpi { .. } => None,
            Error::Option { .. }
            | Error::Environment { .. }
            | Error::EmptyText { .. }
            | Error::LongText { .. }
            | Error::NotFinite
            | Error::NoGpuSupport
            | Error::NoMetalSupport
            | Error::NoCudaSupport => None,
        }
    }
}

#[cfg(feature = "train")]
impl From<shohin_train::Error> for Error {
    fn from(error: shohin_train::Error) -> Self {
        Error::Train(Box::new(error))
    }
}

impl From<shohin_core::Error> for Error {
    fn from(error: shohin_core::Error) -> Self {
        Error::Engine(error)
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Error::File(error)
    }
}

#[cfg(feature = "convert")]
impl From<shohin_convert::Error> for Error {
    fn from(error: shohin_convert::Error) -> Self {
        match error {
            shohin_convert::Error::File(error) => Error::File(error),
            shohin_convert::Error::Convert { path, source } => Error::Convert { path, source },
        }
    }
}

#[cfg(all(feature = "metal", target_os = "macos"))]
impl From<shohin_metal::Error> for Error {
    fn from(source: shohin_metal::Error) -> Self {
        Error::Metal(Box::new(source))
    }
}

#[cfg(feature = "gpu")]
impl From<shohin_gpu::Error> for Error {
    fn from(source: shohin_gpu::Error) -> Self {
        Error::Gpu { source: Box::new(source), names: Vec::new() }
    }
}

#[cfg(feature = "cuda")]
impl From<shohin_cuda::Error> for Error {
    fn from(source: shohin_cuda::Error) -> Self {
        Error::Cuda(Box::new(source))
    }
}

/// The option that adds a feature to those that this program has, as another build without them would lack their devices.
fn features_with(missing: &str) -> String {
    let built = [
        ("gpu", cfg!(feature = "gpu")),
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(all(feature = "metal", target_os = "macos"))),
        ("mpi", cfg!(feature = "mpi")),
    ];
    let built = built.iter().filter(|(_, built)| *built).map(|(name, _)| *name);
    format!("--features {}", std::iter::once(missing).chain(built).collect::<Vec<_>>().join(","))
}

/// The reason why a model cannot be downloaded.
#[cfg(feature = "hub")]
#[non_exhaustive]
pub enum HubError {
    /// It is not kept, and `HF_HUB_OFFLINE` is set.
    Offline,
    /// The repository, the revision or the file does not exist.
    Missing {
        /// Which of them, as far as the Hub says.
        what: &'static str,
    },
    /// The Hub requires another token.
    Denied {
        /// Whether one was sent.
        with_token: bool,
        /// The page of the repository, which may have terms to accept.
        page: String,
    },
    /// The repository does not have exactly one GGUF file.
    Ambiguous {
        /// Its GGUF files.
        files: Vec<String>,
    },
    /// The repository has no GGUF file of the format that was named.
    NoSuchFormat {
        /// The format.
        tag: String,
        /// Its GGUF files.
        files: Vec<String>,
    },
    /// The repository has neither a GGUF file nor a folder of safetensors.
    NoModel {
        /// Weights that only Python can read, if it has some.
        pickled: Option<String>,
    },
    /// An unexpected answer.
    Answer {
        /// Its meaning.
        problem: String,
    },
    /// The connection failed, or no byte arrived for too long.
    Network {
        /// The last failure.
        problem: String,
    },
    /// The bytes are not those that the Hub announced.
    Damaged {
        /// What differs.
        problem: String,
    },
    /// The file is not the one that was asked for.
    Changed {
        /// The SHA-256 it must have.
        expected: String,
        /// Its SHA-256.
        found: String,
        /// The name under which any version of it is accepted.
        file: String,
    },
    /// The caller cancelled the download; it can be continued.
    Cancelled,
}

#[cfg(feature = "hub")]
impl fmt::Debug for HubError {
    /// As `Display`: what `main` and `unwrap` print is for people, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "hub")]
impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HubError::Offline => f.write_str("is not on this machine, and HF_HUB_OFFLINE is set"),
            HubError::Missing { what } => write!(f, "the Hub has no such {what}"),
            HubError::Denied { with_token: false, page } => {
                write!(
                    f,
                    "the Hub requires a token: accept the terms at {page} if there are any, and set HF_TOKEN"
                )
            }
            HubError::Denied { with_token: true, page } => {
                write!(f, "the token does not give access; are there terms to accept at {page}?")
            }
            HubError::NoSuchFormat { tag, files } if files.is_empty() => {
                write!(f, "the repository has no GGUF files, and none of the format {tag}")
            }
            HubError::NoSuchFormat { tag, files } => {
                write!(f, "the repository has no GGUF file of the format {tag}, but {}", files.join(", "))
            }
            HubError::NoModel { pickled: None } => {
                f.write_str("the repository has no GGUF file, and no config.json with model.safetensors")
            }
            HubError::NoModel { pickled: Some(file) } => write!(
                f,
                "the repository has no GGUF file and no safetensors, but {file}, which only PyTorch reads; \
                 `save_pretrained` of transformers writes safetensors"
            ),
            HubError::Ambiguous { files } => {
                write!(f, "the repository has several GGUF files, add one of them: {}", files.join(", "))
            }
            HubError::Answer { problem } | HubError::Network { problem } => f.write_str(problem),
            HubError::Damaged { problem } => write!(f, "the download is damaged: {problem}"),
            HubError::Changed { expected, found, file } => write!(
                f,
                "expected the file with the SHA-256 {expected}, found {found}; {file} accepts any version of it"
            ),
            HubError::Cancelled => f.write_str("the download was cancelled; it continues the next time"),
        }
    }
}

#[cfg(feature = "hub")]
impl std::error::Error for HubError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever follows the advice of a build with one kind of device must not lose that kind.
    #[test]
    fn a_missing_device_is_added_to_those_that_are_there() {
        let feature = |on, name| if on { name } else { "" };
        let (gpu, cuda) = (feature(cfg!(feature = "gpu"), ",gpu"), feature(cfg!(feature = "cuda"), ",cuda"));
        let mpi = feature(cfg!(feature = "mpi"), ",mpi");
        let found = Error::NoMetalSupport.to_string();
        if cfg!(not(target_os = "macos")) {
            assert!(found.ends_with(&format!("`--features metal{gpu}{cuda}{mpi}`")), "{found}");
        }
        let found = Error::NoGpuSupport.to_string();
        assert!(found.contains("without wgpu") && !found.contains('\n'), "{found}");
        assert_eq!(found.contains("the device cuda"), cfg!(feature = "cuda"), "{found}");
    }
}
