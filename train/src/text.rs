//! Options as words between colons, such as `adamw:0.9:0.95`.
#![forbid(unsafe_code)]

use alloc::string::ToString;
use core::fmt;
use core::str::FromStr;

use shohin_core::error::Name;
use shohin_core::{Error, Result};

/// The value of a word, or `default` if there is none; `None` for a word that is no value of the type.
pub(crate) fn value<T: FromStr>(word: Option<&str>, default: T) -> Option<T> {
    word.map_or(Some(default), |word| word.parse().ok())
}

/// Formats a number with as many digits as it takes to parse the same number.
pub(crate) struct Number(pub(crate) f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Number(x) = *self;
        let plain = x == 0.0 || (1e-4..1e9).contains(&libm::fabs(x)) || !x.is_finite();
        if plain { write!(f, "{x}") } else { write!(f, "{x:e}") }
    }
}

/// [`Error::Unsupported`] unless `is_valid`.
pub(crate) fn check(is_valid: bool, key: &str, found: f64, expected: &'static str) -> Result<()> {
    let (key, found) = (Name::new(key), Name::new(Number(found).to_string()));
    if is_valid { Ok(()) } else { Err(Error::Unsupported { key, found, expected }) }
}
