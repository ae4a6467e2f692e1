//! GPT-2's byte alphabet: vocabularies spell each byte as one printable character.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 are U+0100 onwards in order, so that a
//! space is `Ġ`.
#![forbid(unsafe_code)]

/// The character that spells `byte`.
pub(super) const fn spell(byte: u8) -> char {
    let code = match byte {
        0x00..=0x20 => 0x100 + byte as u32,
        0x7F..=0xA0 => 0x121 + (byte as u32 - 0x7F),
        0xAD => 0x143,
        _ => byte as u32,
    };
    match char::from_u32(code) {
        Some(c) => c,
        None => '\u{fffd}', // not reached: every code is below U+0144
    }
}

/// The byte that `c` spells, if it is in the alphabet.
pub(super) const fn byte(c: char) -> Option<u8> {
    match c as u32 {
        c @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(c as u8),
        c @ 0x100..=0x120 => Some((c - 0x100) as u8),
        c @ 0x121..=0x142 => Some((c - 0x121) as u8 + 0x7F),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Whether a vocabulary may lack a token for `byte` (SmolLM2's does): control characters that are not white
/// space, and bytes that do not occur in the UTF-8 of any assigned character. Encoding leaves such bytes out.
pub(super) const fn may_lack_token(byte: u8) -> bool {
    match byte {
        b'\t'..=b'\r' => false,
        0x00..=0x1F | 0x7F => true,
        0xC0 | 0xC1 | 0xF1 | 0xF2 | 0xF5..=0xFF => true,
        _ => false,
    }
}

/// SentencePiece's character for a space.
#[cfg(feature = "sentencepiece")]
pub(super) const SPACE: char = '\u{2581}';
/// Its bytes.
#[cfg(feature = "sentencepiece")]
const SPACE_BYTES: &[u8] = "\u{2581}".as_bytes();

/// The bytes of a token, in order; see [`super::Tokenizer::token_bytes`].
#[derive(Clone, Debug)]
pub struct TokenBytes<'a>(Spelling<'a>);

#[derive(Clone, Debug)]
enum Spelling<'a> {
    Alphabet(core::str::Chars<'a>),
    Literal(core::slice::Iter<'a, u8>),
    #[cfg(feature = "sentencepiece")]
    Byte(core::option::IntoIter<u8>),
    #[cfg(feature = "sentencepiece")]
    Sentence(&'a [u8]),
}

impl<'a> TokenBytes<'a> {
    /// A token in the byte alphabet. A token with any other character is taken literally, as in Hugging Face
    /// tokenizers.
    pub(super) fn spelled(text: &'a [u8]) -> Self {
        match core::str::from_utf8(text) {
            Ok(t) if t.chars().all(|c| byte(c).is_some()) => TokenBytes(Spelling::Alphabet(t.chars())),
            _ => TokenBytes::literal(text),
        }
    }

    /// A token that is taken literally.
    pub(super) fn literal(text: &'a [u8]) -> Self {
        TokenBytes(Spelling::Literal(text.iter()))
    }

    /// A token for one byte.
    #[cfg(feature = "sentencepiece")]
    pub(super) fn byte(byte: u8) -> Self {
        TokenBytes(Spelling::Byte(Some(byte).into_iter()))
    }

    /// A token whose spaces are [`SPACE`].
    #[cfg(feature = "sentencepiece")]
    pub(super) fn sentence(text: &'a [u8]) -> Self {
        TokenBytes(Spelling::Sentence(text))
    }
}

impl Iterator for TokenBytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        match &mut self.0 {
            Spelling::Alphabet(chars) => chars.next().and_then(byte),
            Spelling::Literal(bytes) => bytes.next().copied(),
            #[cfg(feature = "sentencepiece")]
            Spelling::Byte(byte) => byte.next(),
            #[cfg(feature = "sentencepiece")]
            Spelling::Sentence(text) => {
                let (byte, rest) = match text.strip_prefix(SPACE_BYTES) {
                    Some(rest) => (b' ', rest),
                    None => text.split_first().map(|(byte, rest)| (*byte, rest))?,
                };
                *text = rest;
                Some(byte)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn spelling_is_a_bijection_onto_printable_characters() {
        let chars: BTreeSet<char> = (0..=255).map(spell).collect();
        assert_eq!(chars.len(), 256);
        assert!(chars.iter().all(|c| !c.is_whitespace() && !c.is_control()));
        for b in 0..=255 {
            assert_eq!(byte(spell(b)), Some(b));
        }
        assert_eq!((spell(b' '), spell(b'\n'), spell(0xA0), spell(0xAD)), ('Ġ', 'Ċ', 'ł', 'Ń'));
        assert_eq!(('\0'..=char::MAX).filter(|c| byte(*c).is_some()).count(), 256);
    }
}
