//! The inside of a JSON string: escapes and UTF-8, byte by byte.
#![forbid(unsafe_code)]

/// The state within a JSON string after the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoted {
    /// Expects a character or the end.
    Plain,
    /// After a backslash.
    Escape,
    /// Expects this many hex digits; [`Quoted::HexD`] expects three after a `d` that do not make a surrogate.
    Hex4,
    HexD,
    Hex3,
    Hex2,
    Hex1,
    /// Expects this many continuation bytes; the other variants restrict the next one and are named for the
    /// first byte.
    Tail1,
    Tail2,
    Tail3,
    AfterE0,
    AfterEd,
    AfterF0,
    AfterF4,
    /// Not a prefix of any string.
    Dead,
}

impl Quoted {
    /// The states within a character.
    pub(super) const WITHIN: [Quoted; 13] = {
        use Quoted::*;
        [Escape, Hex4, HexD, Hex3, Hex2, Hex1, Tail1, Tail2, Tail3, AfterE0, AfterEd, AfterF0, AfterF4]
    };

    /// The closing quote is handled by the caller. `short` allows only the escapes that Python's `json.dumps`
    /// writes, except four-digit ones: every text then has one spelling.
    pub(super) fn step(self, byte: u8, short: bool) -> Quoted {
        use Quoted::*;
        match (self, byte) {
            (Plain, b'\\') => Escape,
            (Plain, b'"' | 0..0x20) => Dead,
            (Plain, 0x20..0x80) => Plain,
            (Plain, 0xC2..=0xDF) => Tail1,
            (Plain, 0xE0) => AfterE0,
            (Plain, 0xED) => AfterEd,
            (Plain, 0xE1..=0xEF) => Tail2,
            (Plain, 0xF0) => AfterF0,
            (Plain, 0xF1..=0xF3) => Tail3,
            (Plain, 0xF4) => AfterF4,
            (Escape, b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => Plain,
            (Escape, b'/') if !short => Plain,
            (Escape, b'u') if !short => Hex4,
            (Hex4, b'd' | b'D') => HexD,
            (Hex4, b) if b.is_ascii_hexdigit() => Hex3,
            (HexD, b'0'..=b'7') => Hex2,
            (Hex3, b) if b.is_ascii_hexdigit() => Hex2,
            (Hex2, b) if b.is_ascii_hexdigit() => Hex1,
            (Hex1, b) if b.is_ascii_hexdigit() => Plain,
            (Tail1, 0x80..=0xBF) => Plain,
            (Tail2, 0x80..=0xBF) | (AfterE0, 0xA0..=0xBF) | (AfterEd, 0x80..=0x9F) => Tail1,
            (Tail3, 0x80..=0xBF) | (AfterF0, 0x90..=0xBF) | (AfterF4, 0x80..=0x8F) => Tail2,
            _ => Dead,
        }
    }

    /// The state in plain text, where no character is escaped.
    pub(super) fn step_plain(self, byte: u8) -> Quoted {
        match (self, byte) {
            (Quoted::Plain, 0..0x80) => Quoted::Plain,
            _ => self.step(byte, true),
        }
    }

    /// Bytes until the character is complete.
    pub(super) fn pending(self) -> u32 {
        use Quoted::*;
        match self {
            Plain | Dead => 0,
            Escape | Hex1 | Tail1 => 1,
            Hex2 | Tail2 | AfterE0 | AfterEd => 2,
            Hex3 | HexD | Tail3 | AfterF0 | AfterF4 => 3,
            Hex4 => 4,
        }
    }
}

/// If `bytes` are whole characters that a JSON string holds unescaped: how many.
pub(super) fn plain(bytes: &[u8]) -> Option<u16> {
    let text = core::str::from_utf8(bytes).ok()?;
    let plain = bytes.iter().all(|&b| b >= 0x20 && b != b'"' && b != b'\\');
    plain.then(|| text.chars().count() as u16)
}
