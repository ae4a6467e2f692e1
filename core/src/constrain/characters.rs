//! Characters, and how JSON escapes them.
#![forbid(unsafe_code)]

/// First and last character, inclusive.
pub(super) type Range = (u32, u32);

/// Characters that are escaped with a backslash, and the letter after it.
pub(super) const ESCAPES: [(u32, u8); 7] =
    [(8, b'b'), (9, b't'), (10, b'n'), (12, b'f'), (13, b'r'), (0x22, b'"'), (0x5C, b'\\')];
