//! [`Cursor`]: the only code that turns an integer from a file into a length or an offset.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// Where `word`, which is not empty, first occurs in `text`. The standard library's search is faster in long texts, but
/// takes 3 kB of machine code.
pub(crate) fn find(text: &str, word: &str) -> Option<usize> {
    text.as_bytes().windows(word.len().max(1)).position(|window| window == word.as_bytes())
}

/// As [`find`], where it last occurs.
pub(crate) fn find_last(text: &str, word: &str) -> Option<usize> {
    text.as_bytes().windows(word.len().max(1)).rposition(|window| window == word.as_bytes())
}

/// A cursor over a slice that reads little-endian values and keeps its offset.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The length of the last read.
    asked: u64,
}

macro_rules! read {
    ($($name:ident -> $t:ty),*) => {$(
        #[doc = concat!("Reads a little-endian `", stringify!($t), "`; `what` names it in errors.")]
        pub fn $name(&mut self, what: &'static str) -> Result<$t> {
            let mut raw = [0; size_of::<$t>()];
            raw.copy_from_slice(self.take(size_of::<$t>() as u64, what)?);
            Ok(<$t>::from_le_bytes(raw))
        }
    )*};
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0, asked: 0 }
    }

    /// Bytes consumed so far.
    pub const fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not consumed yet.
    pub const fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Bytes of the last read, which may be more than remained.
    pub(crate) const fn asked(&self) -> u64 {
        self.asked
    }

    /// The next `len` bytes. `len` is compared with what remains before it becomes a `usize`, so a
    /// 64-bit length cannot alias a short one on a 32-bit machine.
    pub fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8]> {
        self.asked = len;
        if len > self.remaining() {
            return Err(error!(Truncated { what, at: self.position(), need: len, have: self.remaining() }));
        }
        let taken = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    read!(u8 -> u8, u16 -> u16, u32 -> u32, u64 -> u64, f32 -> f32, f64 -> f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_little_endian_and_stops_at_the_end() {
        let mut c = Cursor::new(&[1, 2, 0, 9]);
        assert_eq!(c.u8("a"), Ok(1));
        assert_eq!(c.u16("b"), Ok(2));
        assert_eq!(c.u32("c"), Err(error!(Truncated { what: "c", at: 3, need: 4, have: 1 })));
        assert_eq!(c.take(u64::MAX, "d").unwrap_err().code(), "truncated");
        assert_eq!(c.take((1 << 32) + 1, "alias").unwrap_err().code(), "truncated");
        assert_eq!(c.u8("e"), Ok(9));
    }
}
