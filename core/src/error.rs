//! One error for the whole crate: small, `Copy`, without heap strings, with a stable code.
#![forbid(unsafe_code)]

use core::fmt;

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A name or value taken from a file, cut to 38 bytes so that an error owns no heap memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    len: u8,
    cut: bool,
    bytes: [u8; 38],
}

impl Name {
    /// Keeps the first 38 bytes of `text`; bytes that are not UTF-8 are shown as `?`.
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        let mut bytes = [0; 38];
        if !cfg!(feature = "messages") {
            // No error shows it.
            return Name { len: 0, cut: false, bytes };
        }
        let text = text.as_ref();
        let len = text.len().min(bytes.len());
        bytes[..len].copy_from_slice(&text[..len]);
        Name { len: len as u8, cut: text.len() > len, bytes }
    }
}

/// Whether a character of a file can be printed: not if it controls a terminal, or hides or reverses text.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{AD}' | '\u{61C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes[..usize::from(self.len)].utf8_chunks() {
            for c in chunk.valid().chars() {
                fmt::Write::write_char(f, if is_printable(c) { c } else { '?' })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_str("?")?;
            }
        }
        if self.cut { f.write_str("...") } else { Ok(()) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Constructs an [`Error`]: `error!(Memory { need, have: 0 })`. Its fields are not evaluated in a build without them.
#[cfg(feature = "messages")]
macro_rules! error {
    ($variant:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        Error::$variant { $($field $(: $value)?),* }
    };
}

#[cfg(not(feature = "messages"))]
macro_rules! error {
    ($variant:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {{
        $(let _ = || error!(@ $field $($value)?);)*
        Error::$variant {}
    }};
    (@ $field:ident $value:expr) => { $value };
    (@ $field:ident) => { $field };
}

/// Leaves the fields of an enum out in a build without the feature `messages`: results are then a byte instead of a hundred.
macro_rules! errors {
    ($(#[$about:meta])* pub enum Error {
        $($(#[$doc:meta])* $variant:ident $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })?,)*
    }) => {
        $(#[$about])*
        pub enum Error {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* #[cfg(feature = "messages")] $field: $type),* })?,)*
        }
    };
}

errors! {
    /// The error of this crate: the problem, the expected and found values, and the place. Without the feature `messages`,
    /// its variants have no fields.
    #[allow(missing_docs, reason = "each variant documents its fields in its sentence")]
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[non_exhaustive]
    pub enum Error {
        /// The input ends inside `what`, which starts at byte `at` and needs `need` bytes.
        Truncated { what: &'static str, at: u64, need: u64, have: u64 },
        /// A count or length is over a cap of [`crate::Limits`].
        Limit { what: &'static str, found: u64, max: u64 },
        /// The file does not start like GGUF; these are its first bytes.
        NotGguf { starts: Name },
        /// The tensors end after the end of the file, which has `have` bytes.
        Incomplete { need: u64, have: u64 },
        /// The text is not JSON at byte `at`, at the character `found` or at the end.
        Json { at: u64, found: Option<char>, expected: &'static str },
        /// A number read from the file at byte `at` is not one of the allowed ones.
        Malformed { what: &'static str, at: u64, found: u64, expected: &'static str },
        /// A name occurs twice.
        Duplicate { what: &'static str, name: Name },
        /// A grammar in GBNF is malformed; `found` is what the sentence is about.
        #[allow(missing_docs)]
        Grammar { line: usize, problem: &'static str, found: Name },
        /// A regular expression is malformed at byte `at`, which begins with `found`.
        Regex { at: u64, found: Name, expected: &'static str },
        /// A snapshot was changed or cut off.
        SnapshotDamaged,
        /// A snapshot of something else.
        SnapshotForeign {
            /// Of what, as in `another model`.
            what: &'static str,
        },
        /// A required metadata key is missing.
        MissingKey { key: Name },
        /// A metadata key has the wrong type.
        KeyType { key: Name, expected: &'static str, found: &'static str },
        /// A metadata number is out of range.
        KeyValue { key: Name, found: f64, expected: &'static str },
        /// A metadata string names something that this runtime does not support.
        Unsupported { key: Name, found: Name, expected: &'static str },
        /// The description of tool number `index`, counted from 0, is invalid.
        Tool { index: u32, problem: &'static str },
        /// The parameters of tool number `index`, counted from 0, have something unsupported at the JSON pointer `key`, and must
        /// be followed.
        ToolSchema { index: u32, key: Name, expected: &'static str },
        /// The model's chat template does not support something.
        Template { lacks: &'static str },
        /// The chat template of the file failed at `line`, or cannot be used; `found` is what the sentence is about.
        #[allow(missing_docs)]
        Rendering { line: u32, problem: &'static str, found: Name },
        /// A required tensor is missing.
        MissingTensor { name: Name },
        /// A tensor's shape differs from the configuration. Dimensions are as in the file, columns first; missing
        /// ones are 1, and one over 2^32 is shown as 2^32 - 1 where it is expected.
        TensorShape { name: Name, expected: [u32; 3], found: [u64; 4] },
        /// A tensor has a type that cannot be used for it.
        TensorType { name: Name, found: u32, expected: &'static str },
        /// A tensor's bytes are invalid: outside the file, overlapping, or misaligned.
        TensorRange { name: Name, offset: u64, len: u64, problem: &'static str },
        /// A buffer has the wrong number of elements.
        Length { what: &'static str, expected: u64, found: u64 },
        /// An option is outside its range.
        Option { what: &'static str, found: f64, expected: &'static str },
        /// An argument, such as a field of a request, is invalid.
        Argument { name: Name, problem: &'static str },
        /// A token id is not in the vocabulary.
        Token { id: u32, vocab: u32 },
        /// The session cannot hold more tokens.
        ContextFull { position: u64, adding: u64, capacity: u64 },
        /// Memory of this size could not be allocated.
        Memory { need: u64, have: u64 },
        /// The model's output has no finite number, so no token can be chosen.
        Logits { problem: &'static str },
        /// A device, such as a GPU, cannot continue.
        Device { problem: &'static str },
        /// A [`ModelReader`](crate::paging::ModelReader) could not read `len` bytes of `what`, a tensor or the header, from
        /// byte `at` of the file on. The call can be repeated.
        Read { what: Name, at: u64, len: u64, problem: &'static str, code: i32 },
    }
}

impl Error {
    /// [`Error::Device`], for hosts in builds with and without the feature `messages`.
    pub fn device(problem: &'static str) -> Error {
        error!(Device { problem })
    }

    /// [`Error::Rendering`], for hosts in builds with and without the feature `messages`.
    #[cfg_attr(not(feature = "messages"), allow(unused_variables, reason = "there are no fields"))]
    pub fn rendering(line: u32, problem: &'static str, found: &str) -> Error {
        error!(Rendering { line, problem, found: Name::new(found) })
    }

    /// The same [`Error::Truncated`] as seen from the beginning of the file: at byte `at`, before the last `have` bytes.
    #[cfg_attr(not(feature = "messages"), allow(unused_variables, reason = "there are no fields"))]
    pub(crate) fn placed(self, at: u64, have: u64) -> Error {
        match self {
            #[cfg(feature = "messages")]
            Error::Truncated { what, need, .. } => Error::Truncated { what, at, need, have },
            other => other,
        }
    }

    /// [`Error::Unsupported`] in a schema as that of the parameters of tool number `index`.
    #[cfg_attr(not(feature = "messages"), allow(unused_variables, reason = "there are no fields"))]
    pub(crate) fn of_tool(self, index: u32) -> Error {
        match self {
            #[cfg(feature = "messages")]
            Error::Unsupported { key, expected, .. } => Error::ToolSchema { index, key, expected },
            other => other,
        }
    }

    /// A stable machine-readable name, the same in every host language.
    pub const fn code(&self) -> &'static str {
        match self {
            Error::Truncated { .. } | Error::Incomplete { .. } => "truncated",
            Error::Limit { .. } => "limit",
            Error::Malformed { .. } | Error::NotGguf { .. } | Error::Json { .. } | Error::Regex { .. } => {
                "malformed"
            }
            Error::Duplicate { .. } => "duplicate",
            Error::Grammar { .. } => "grammar",
            Error::SnapshotDamaged => "snapshot_damaged",
            Error::SnapshotForeign { .. } => "snapshot_foreign",
            Error::MissingKey { .. } | Error::Tool { .. } => "missing_key",
            Error::KeyType { .. } => "key_type",
            Error::KeyValue { .. } => "key_value",
            Error::Unsupported { .. }
            | Error::Template { .. }
            | Error::Rendering { .. }
            | Error::ToolSchema { .. } => "unsupported",
            Error::MissingTensor { .. } => "missing_tensor",
            Error::TensorShape { .. } => "tensor_shape",
            Error::TensorType { .. } => "tensor_type",
            Error::TensorRange { .. } => "tensor_range",
            Error::Length { .. } => "length",
            Error::Option { .. } => "option",
            Error::Argument { .. } => "argument",
            Error::Token { .. } => "token",
            Error::ContextFull { .. } => "context_full",
            Error::Memory { .. } => "memory",
            Error::Logits { .. } => "logits",
            Error::Device { .. } | Error::Read { .. } => "device",
        }
    }
}

/// Without the feature `messages`, the code.
#[cfg(not(feature = "messages"))]
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(feature = "messages")]
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Truncated { what, at, need, have } => {
                write!(
                    f,
                    "{what} at byte {at} needs {need} bytes, but only {have} are left: the input is incomplete"
                )
            }
            Error::Limit { what, found, max } => write!(f, "{what} is {found}, over the limit of {max}"),
            Error::NotGguf { starts } => {
                write!(f, "the file begins with {starts:?}, expected \"GGUF\"")?;
                f.write_str(hint(&starts))
            }
            Error::Incomplete { need, have } => {
                write!(f, "the file is incomplete: it has {have} bytes, at least {need} are needed")
            }
            Error::Json { at, found: Some(found), expected } => {
                write!(f, "JSON at byte {at} is {found:?}, expected {expected}")
            }
            Error::Json { at, found: None, expected } => {
                write!(f, "JSON ends at byte {at}, expected {expected}")
            }
            Error::Tool { index, problem } => write!(f, "tool {index}: {problem}"),
            Error::ToolSchema { index, key, expected } => {
                write!(f, "tool {index}: parameters{key} is not supported; expected {expected}")
            }
            Error::Template { lacks } => write!(f, "this model's chat template has no {lacks}"),
            Error::Rendering { line, problem, found } => {
                write!(f, "line {line} of this model's chat template {problem}")?;
                if found.len == 0 { Ok(()) } else { write!(f, ": {found}") }
            }
            Error::Malformed { what, at, found, expected } => {
                write!(f, "{what} at byte {at} is {found}, expected {expected}")
            }
            Error::Duplicate { what, name } => write!(f, "{what} {name:?} occurs twice"),
            Error::Grammar { line, problem, found } => {
                write!(f, "line {line} of the grammar {problem}")?;
                if found.len == 0 { Ok(()) } else { write!(f, ": {found}") }
            }
            Error::Regex { at, found, expected } => {
                write!(f, "the regular expression at byte {at} is {found:?}, expected {expected}")
            }
            Error::SnapshotDamaged => write!(f, "the snapshot is damaged"),
            Error::SnapshotForeign { what } => write!(f, "the snapshot is of {what}"),
            Error::MissingKey { key } => write!(f, "metadata key {key} is missing"),
            Error::KeyType { key, expected, found } => {
                write!(f, "metadata key {key} is of type {found}, expected {expected}")
            }
            Error::KeyValue { key, found, expected } => {
                write!(f, "metadata key {key} is {}, expected {expected}", Number(found))
            }
            Error::Unsupported { key, found, expected } => {
                write!(f, "{key} is {found:?}, which is not supported; expected {expected}")
            }
            Error::MissingTensor { name } => write!(f, "tensor {name} is missing"),
            Error::TensorShape { name, expected, found } => {
                write!(f, "tensor {name} is {}, expected {}", Shape(&found), Shape(&expected.map(u64::from)))
            }
            Error::TensorType { name, found, expected } => {
                write!(f, "tensor {name} is of type {found}, expected {expected}")
            }
            Error::TensorRange { name, offset, len, problem } => {
                write!(f, "tensor {name} ({len} bytes at data offset {offset}) {problem}")
            }
            Error::Length { what, found: 0, .. } => write!(f, "{what}: there are none"),
            Error::Length { what, expected, found } => {
                write!(f, "{what} has {found} elements, expected {expected}")
            }
            Error::Option { what, found, expected } => {
                write!(f, "{what} is {}, expected {expected}", Number(found))
            }
            Error::Argument { name, problem } => write!(f, "{name} {problem}"),
            Error::Token { id, vocab } => write!(f, "token {id} is not in the vocabulary of {vocab}"),
            Error::ContextFull { position, adding, capacity } => write!(
                f,
                "{} tokens do not fit into a context of {capacity}",
                position.saturating_add(adding)
            ),
            Error::Memory { need, have: 0 } => write!(f, "there is no memory for {need} bytes"),
            Error::Memory { need, have } => write!(f, "{need} bytes are needed, {have} were available"),
            Error::Logits { problem } => write!(f, "no token can be chosen: {problem}"),
            Error::Device { problem } => write!(f, "the device cannot go on: {problem}"),
            Error::Read { what, at, len, problem, code } => {
                write!(f, "{what}: {len} bytes at byte {at} of the file could not be read: {problem}")?;
                let sign = if code < 0 { "-" } else { "" };
                if code == 0 { Ok(()) } else { write!(f, " (code {sign}{})", code.unsigned_abs()) }
            }
        }
    }
}

impl core::error::Error for Error {}

/// A hint for the two kinds of non-GGUF files that are most often passed by mistake.
fn hint(starts: &Name) -> &'static str {
    let starts = &starts.bytes[..usize::from(starts.len)];
    if starts.starts_with(b"version https://git-lfs") {
        ": this is a pointer of Git LFS to the file, not the file; `git lfs pull` gets that"
    } else if starts.trim_ascii_start().starts_with(b"<") {
        ": this looks like a web page; download the file itself, not the page about it"
    } else {
        ""
    }
}

/// Formats the dimensions of a tensor: two, and those up to the last that is not 1.
struct Shape<'d>(&'d [u64]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = self.0.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
        for (at, dim) in self.0.iter().take(more.max(2)).enumerate() {
            write!(f, "{}{dim}", if at == 0 { "" } else { " x " })?;
        }
        Ok(())
    }
}

/// Formats a number for people: very large and small ones with an exponent.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Number(x) = *self;
        let plain = x == 0.0 || !x.is_finite() || (1e-5..1e15).contains(&libm::fabs(x));
        // Hide digits that only come from the conversion of an f32.
        let single = x as f32;
        let single = (f64::from(single) == x && (!plain || libm::trunc(x) != x)).then_some(single);
        match (plain, single) {
            (true, Some(x)) => write!(f, "{x}"),
            (false, Some(x)) => write!(f, "{x:e}"),
            (true, None) => write!(f, "{x}"),
            (false, None) => write!(f, "{x:e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn error_stays_small_and_copy() {
        fn is_copy<T: Copy>() {}
        is_copy::<Error>();
        assert!(size_of::<Error>() <= 112, "{}", size_of::<Error>());
    }

    #[test]
    fn names_are_cut_and_made_printable() {
        assert_eq!(Name::new("blk.0.attn_q.weight").to_string(), "blk.0.attn_q.weight");
        assert_eq!(Name::new(b"a\x1b[2J\xffb").to_string(), "a?[2J?b");
        assert_eq!(Name::new("a\u{202E}b\u{200B}c é").to_string(), "a?b?c é");
        assert!(Name::new("x".repeat(100)).to_string().ends_with("..."));
    }

    #[test]
    fn very_large_and_small_numbers_are_short() {
        let shown = |found| Error::Option { what: "x", found, expected: "less" }.to_string();
        for (found, want) in [
            (f64::from(1e30f32), "x is 1e30, expected less"),
            (f64::from(0.3f32), "x is 0.3, expected less"),
            (9007199254740992.0, "x is 9.007199e15, expected less"),
            (1e-9, "x is 1e-9, expected less"),
            (-0.25, "x is -0.25, expected less"),
            (4294967296.0, "x is 4294967296, expected less"),
            (0.0, "x is 0, expected less"),
            (f64::NAN, "x is NaN, expected less"),
        ] {
            assert_eq!(shown(found), want);
        }
    }
}
