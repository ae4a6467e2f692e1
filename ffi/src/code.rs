//! Codes and messages of errors.

use alloc::borrow::Cow;
use alloc::string::ToString;
use core::ffi::{CStr, c_char};

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal $name:literal)*) => {
        /// The result of a call.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum shohin_code {
            $($(#[$doc])* $code = $number),*
        }

        /// Every code and its name.
        const CODES: &[(shohin_code, &CStr)] = &[$((shohin_code::$code, $name)),*];
    };
}

// Numbers never change. From 16 on, the names are those of the Rust API's errors.
codes! {
    /// It worked.
    SHOHIN_OK = 0 c"ok"
    /// The reply has no further piece.
    SHOHIN_DONE = 1 c"done"
    /// A pointer is NULL.
    SHOHIN_NULL = 2 c"null"
    /// A handle is of another kind, or was freed.
    SHOHIN_HANDLE = 3 c"handle"
    /// A text is not UTF-8.
    SHOHIN_UTF8 = 4 c"utf8"
    /// A buffer is too short; the required length was written.
    SHOHIN_SHORT_BUFFER = 5 c"short_buffer"
    /// The chat is in use, by another thread or by the caller of this callback.
    SHOHIN_BUSY = 6 c"busy"
    /// A struct's `size` is not one that this library knows.
    SHOHIN_SIZE = 7 c"size"
    /// A bug in the library; the handle can only be freed.
    SHOHIN_PANIC = 8 c"panic"
    /// An error without a code of its own in this version.
    SHOHIN_OTHER = 9 c"other"
    /// The system reported an error for a file.
    SHOHIN_IO = 16 c"io"
    /// A path that cannot be a model.
    SHOHIN_NOT_A_FILE = 17 c"not_a_file"
    /// The system refused to start threads.
    SHOHIN_THREADS = 18 c"threads"
    /// A folder of another format cannot be converted.
    SHOHIN_CONVERT = 19 c"convert"
    /// A model cannot be taught like this.
    SHOHIN_TRAIN = 20 c"train"
    /// A model of the Hugging Face Hub cannot be downloaded.
    SHOHIN_HUB = 21 c"hub"
    /// The input ends too early.
    SHOHIN_TRUNCATED = 32 c"truncated"
    /// A count or length is over a limit.
    SHOHIN_LIMIT = 33 c"limit"
    /// The input is malformed.
    SHOHIN_MALFORMED = 34 c"malformed"
    /// A name occurs twice.
    SHOHIN_DUPLICATE = 35 c"duplicate"
    /// A grammar is malformed.
    SHOHIN_GRAMMAR = 36 c"grammar"
    /// A session file was changed or cut off.
    SHOHIN_SNAPSHOT_DAMAGED = 37 c"snapshot_damaged"
    /// A session file of another model or other options.
    SHOHIN_SNAPSHOT_FOREIGN = 38 c"snapshot_foreign"
    /// A metadata key is missing.
    SHOHIN_MISSING_KEY = 39 c"missing_key"
    /// A metadata key has the wrong type.
    SHOHIN_KEY_TYPE = 40 c"key_type"
    /// A metadata value is out of range.
    SHOHIN_KEY_VALUE = 41 c"key_value"
    /// This version does not support it.
    SHOHIN_UNSUPPORTED = 42 c"unsupported"
    /// A tensor is missing.
    SHOHIN_MISSING_TENSOR = 43 c"missing_tensor"
    /// A tensor has the wrong shape.
    SHOHIN_TENSOR_SHAPE = 44 c"tensor_shape"
    /// A tensor has a type that cannot be used for it.
    SHOHIN_TENSOR_TYPE = 45 c"tensor_type"
    /// A tensor's bytes are invalid.
    SHOHIN_TENSOR_RANGE = 46 c"tensor_range"
    /// Something has the wrong number of elements.
    SHOHIN_LENGTH = 47 c"length"
    /// An option is outside its range.
    SHOHIN_OPTION = 48 c"option"
    /// An argument is invalid.
    SHOHIN_ARGUMENT = 49 c"argument"
    /// A token is not in the vocabulary.
    SHOHIN_TOKEN = 50 c"token"
    /// The context cannot hold more tokens.
    SHOHIN_CONTEXT_FULL = 51 c"context_full"
    /// Memory could not be allocated.
    SHOHIN_MEMORY = 52 c"memory"
    /// The model's output is not finite.
    SHOHIN_LOGITS = 53 c"logits"
    /// A device, such as a GPU, failed.
    SHOHIN_DEVICE = 54 c"device"
}

impl shohin_code {
    /// The code of this name.
    fn named(name: &str) -> shohin_code {
        let found = CODES.iter().find(|(_, known)| known.to_bytes() == name.as_bytes());
        found.map_or(shohin_code::SHOHIN_OTHER, |(code, _)| *code)
    }
}

/// The name of a code, such as `context_full`; NULL for a number that is not a code.
#[unsafe(no_mangle)]
pub extern "C" fn shohin_code_name(code: i32) -> *const c_char {
    let found = CODES.iter().find(|(known, _)| *known as i32 == code);
    found.map_or(core::ptr::null(), |(_, name)| name.as_ptr())
}

/// The reason why a call failed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_error {
    /// Its code.
    pub code: i32,
    /// A sentence in UTF-8, with a NUL at its end.
    pub message: [c_char; 508],
}

impl shohin_error {
    fn new(code: shohin_code, message: &str) -> shohin_error {
        let mut error = shohin_error { code: code as i32, message: [0; 508] };
        let room = error.message.len() - 1;
        let mut len = 0;
        for c in message.chars() {
            let mut bytes = [0; 4];
            // A NUL, such as of a path, would end the message.
            let text = if c == '\0' { "\\0" } else { c.encode_utf8(&mut bytes) };
            if len + text.len() > room {
                break;
            }
            for (to, from) in error.message[len..].iter_mut().zip(text.bytes()) {
                *to = from as c_char;
            }
            len += text.len();
        }
        error
    }
}

/// An error on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: shohin_code,
    message: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: shohin_code, message: impl Into<Cow<'static, str>>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Failure {
        Failure::new(shohin_code::named(error.code()), error.to_string())
    }
}

pub(crate) type Result<T> = core::result::Result<T, Failure>;

/// Runs a call, and writes why it failed to `error`, if that is not NULL.
///
/// # Safety
/// `error` is NULL or can be written.
pub(crate) unsafe fn call(
    error: *mut shohin_error,
    work: impl FnOnce() -> Result<shohin_code>,
) -> shohin_code {
    let (code, message) = match crate::panics::caught(work) {
        Ok(code) => (code, Cow::Borrowed("")),
        Err(failure) => (failure.code, failure.message),
    };
    if !error.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { error.write_unaligned(shohin_error::new(code, &message)) };
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;
    use shohin_code::*;

    #[test]
    fn every_code_of_the_rust_api_has_a_number() {
        for source in [include_str!("../../core/src/error.rs"), include_str!("../../host/src/error.rs")] {
            let body = source.split("pub fn code").chain(source.split("pub const fn code")).nth(1);
            let body = source.split_once(" fn code(").map(|(_, rest)| rest).or(body).unwrap();
            let body = body.split("\n    }\n").next().unwrap();
            let names: Vec<&str> =
                body.split("=> \"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
            assert!(names.len() > 8, "{body}");
            // Features that this library does not have.
            let elsewhere = ["corpus", "checkpoint"];
            for name in names.into_iter().filter(|name| !elsewhere.contains(name)) {
                assert_ne!(shohin_code::named(name), SHOHIN_OTHER, "{name}");
            }
        }
    }

    #[test]
    fn codes_have_their_names() {
        for (code, name) in CODES {
            // SAFETY: a name of the table.
            assert_eq!(unsafe { CStr::from_ptr(shohin_code_name(*code as i32)) }, *name);
        }
        assert!(shohin_code_name(-1).is_null());
    }

    fn message(error: &shohin_error) -> &str {
        // SAFETY: it ends with a NUL.
        unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap()
    }

    #[test]
    fn a_panic_is_a_code() {
        let mut error = shohin_error::new(SHOHIN_OK, "");
        // SAFETY: a variable.
        let code = unsafe { call(&mut error, || panic!("seven {}", 7)) };
        assert_eq!((code, error.code), (SHOHIN_PANIC, 8));
        assert_eq!(message(&error), "a bug in the library: seven 7");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let error = shohin_error::new(SHOHIN_OTHER, &"é".repeat(300));
        assert_eq!(message(&error), "é".repeat(253));
        let error = shohin_error::new(SHOHIN_OTHER, &format!("a{}", "é".repeat(300)));
        assert_eq!(message(&error), format!("a{}", "é".repeat(253)));
    }

    #[test]
    fn a_nul_does_not_end_a_message() {
        let error = shohin_error::new(SHOHIN_OTHER, "a\0b: no such file");
        assert_eq!(message(&error), "a\\0b: no such file");
        let error = shohin_error::new(SHOHIN_OTHER, &"\0".repeat(600));
        assert_eq!(message(&error), "\\0".repeat(253));
    }
}
