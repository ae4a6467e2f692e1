//! The bytes that are tokens by themselves, and so the characters that can be written.
//!
//! A vocabulary may lack bytes. Texts with them are no texts of a grammar then, and no byte is taken from which only such bytes
//! lead on.
#![forbid(unsafe_code)]

use super::characters::{ESCAPES, Range};
use super::quoted::Quoted;

/// A set of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writable {
    bytes: [u64; 4],
    /// A bit for each [`Quoted`] within a character that can be completed.
    ways: u32,
}

/// Bytes that no grammar asks for: zero, and those that UTF-8 does not have.
const UNUSED: [u64; 4] = [1, 0, 0, 0xFFE0_0000_0000_0003];
/// ASCII characters that a JSON string holds as they are.
const LITERAL: u128 = !0 << 0x20 & !(1 << 0x22 | 1 << 0x5C);

/// The bits `from..=to`; none if `to` is less.
fn bits(from: u32, to: u32) -> u64 {
    u64::MAX << from & u64::MAX >> (63 - to)
}

impl Writable {
    pub(super) const ALL: Writable = Writable { bytes: [u64::MAX; 4], ways: u32::MAX };

    /// Those for which `is_token` returns true.
    pub(super) fn new(is_token: impl Fn(u8) -> bool) -> Writable {
        let mut bytes = UNUSED;
        for byte in (0..=255).filter(|&byte| is_token(byte)) {
            if let Some(word) = bytes.get_mut(usize::from(byte / 64)) {
                *word |= 1 << (byte % 64);
            }
        }
        let mut writable = Writable { bytes, ways: 1 << Quoted::Plain as u32 };
        // Each round finds those one byte further from the end of the character; without `/` and `u`, as names are escaped.
        for _ in 0..5 {
            for state in Quoted::WITHIN {
                let leads_on = |byte: u8| writable.step(state, byte, true) != Quoted::Dead;
                if (0..=255).any(leads_on) {
                    writable.ways |= 1 << state as u32;
                }
            }
        }
        writable
    }

    pub(super) fn has(&self, byte: u8) -> bool {
        self.bytes.get(usize::from(byte / 64)).is_some_and(|word| word >> (byte % 64) & 1 == 1)
    }

    pub(super) fn has_all(&self, text: &[u8]) -> bool {
        text.iter().all(|&byte| self.has(byte))
    }

    /// The first byte of texts that is not in the set, printable if there is such a one.
    pub(super) fn missing(&self) -> Option<u8> {
        (b' '..=u8::MAX).chain(0..b' ').find(|&byte| !self.has(byte))
    }

    /// As [`Quoted::step`], if the character can then be completed.
    pub(super) fn step(&self, from: Quoted, byte: u8, short: bool) -> Quoted {
        let next = from.step(byte, short);
        if self.has(byte) && self.ways >> next as u32 & 1 == 1 { next } else { Quoted::Dead }
    }

    /// Whether a JSON string can hold a character of one byte.
    pub(super) fn has_literal(&self) -> bool {
        self.ascii() & LITERAL != 0
    }

    /// The number of characters of one or two bytes, as a JSON string has them.
    pub(super) fn short_characters(&self) -> u32 {
        let [.., tails, leads] = self.bytes;
        let escapes = ESCAPES.iter().filter(|(_, letter)| self.has(b'\\') && self.has(*letter)).count();
        let two = (leads & bits(2, 31)).count_ones() * tails.count_ones();
        (self.ascii() & LITERAL).count_ones() + escapes as u32 + two
    }

    fn ascii(&self) -> u128 {
        let [low, high, ..] = self.bytes;
        u128::from(high) << 64 | u128::from(low)
    }

    /// The fewest bytes that write one of these characters, none of them a surrogate, in plain text or in a JSON string.
    pub(super) fn fewest(&self, (from, to): Range, plain: bool) -> Option<u32> {
        let within = |c: u32| (from..=to).contains(&c);
        let literal = self.ascii() & if plain { !1 } else { LITERAL };
        if from < 0x80 && literal >> from << from << (127 - to.min(127)) != 0 {
            return Some(1);
        }
        let escape = |&(c, letter): &(u32, u8)| within(c) && self.has(letter);
        if !plain && self.has(b'\\') && ESCAPES.iter().any(escape) {
            return Some(2);
        }
        (2..=4).find(|&len| self.has_character(len, (from, to)))
    }

    /// Whether a character of `len` bytes in the range, two to four, can be written.
    fn has_character(&self, len: u32, (from, to): Range) -> bool {
        let (first, last, lead) = match len {
            2 => (0x80, 0x7FF, bits(0, 31)),
            3 => (0x800, 0xFFFF, bits(32, 47)),
            _ => (0x1_0000, 0x10_FFFF, bits(48, 55)),
        };
        let (from, to) = (from.max(first), to.min(last));
        let [.., leads] = self.bytes;
        from <= to && self.has_digits((leads & lead) >> lead.trailing_zeros(), len - 1, from, to)
    }

    /// Whether a number of the range has a first digit of `first` and, in base 64, `rest` others that are continuation bytes.
    fn has_digits(&self, first: u64, rest: u32, from: u32, to: u32) -> bool {
        let (unit, [_, _, tails, _]) = (6 * rest, self.bytes);
        let (low, high) = (from >> unit, to >> unit);
        let Some(rest) = rest.checked_sub(1) else { return first & bits(low, high) != 0 };
        let below = (1 << unit) - 1;
        let has = |digit: u32, from: u32, to: u32| {
            first >> digit & 1 == 1 && self.has_digits(tails, rest, from & below, to & below)
        };
        if low == high {
            return has(low, from, to);
        }
        // Between the two, all other digits will do.
        let between = first & bits(low, high) & !(1 << low | 1 << high);
        between != 0 && tails != 0 || has(low, from, below) || has(high, 0, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against each character of the range, spelled by Rust.
    #[test]
    fn the_shortest_character_is_found() {
        let edges = [0, 1, 9, 0x1F, 0x22, 0x5C, 0x7F, 0x80, 0xBF, 0xC0, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF];
        let more = [0xE000, 0xFFFF, 0x1_0000, 0x1_003F, 0x1_0040, 0x3_FFFF, 0x4_0000, 0xF_FFFF, 0x10_FFFF];
        let edges: alloc::vec::Vec<u32> = edges.into_iter().chain(more).collect();
        let sets: [fn(u8) -> bool; 6] = [
            |_| true,
            |byte| !(0xF1..0xF3).contains(&byte),
            |byte| byte != 0x80,
            |byte| byte % 3 > 0,
            |byte| byte >= 0x80 && byte != 0xBF,
            |byte| byte.count_ones() % 2 == 0,
        ];
        for set in sets {
            let writable = Writable::new(set);
            for (i, &from) in edges.iter().enumerate() {
                // Ranges have no surrogates.
                let last = if from < 0xD800 { 0xD7FF } else { 0x10_FFFF };
                for &to in edges.iter().skip(i).take(3).filter(|to| **to <= last) {
                    for plain in [true, false] {
                        let cost = |c: char| {
                            let escape = ESCAPES.iter().find(|(of, _)| *of == u32::from(c) && !plain);
                            let mut buffer = [0; 4];
                            let text = match escape {
                                Some((_, letter)) => &[b'\\', *letter],
                                None => c.encode_utf8(&mut buffer).as_bytes(),
                            };
                            let is_control = c < ' ' && (!plain || c == '\0') && escape.is_none();
                            (!is_control && writable.has_all(text)).then_some(text.len() as u32)
                        };
                        let expected = (from..=to).filter_map(char::from_u32).filter_map(cost).min();
                        assert_eq!(writable.fewest((from, to), plain), expected, "{from:x}..={to:x} {plain}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_character_that_cannot_be_completed_is_not_begun() {
        // Of the continuation bytes only one, which 0xED and 0xF4 do not have next.
        let writable = Writable::new(|byte| !matches!(byte, 0x80..=0xBF) || byte == 0xB0);
        for (lead, expected) in [
            (0xC3, Quoted::Tail1),
            (0xE0, Quoted::AfterE0),
            (0xE1, Quoted::Tail2),
            (0xED, Quoted::Dead),
            (0xF0, Quoted::AfterF0),
            (0xF1, Quoted::Tail3),
            (0xF4, Quoted::Dead),
        ] {
            assert_eq!(writable.step(Quoted::Plain, lead, false), expected, "{lead:x}");
        }
        // Nor are four digits without digits.
        let writable = Writable::new(|byte| !byte.is_ascii_hexdigit());
        assert_eq!(writable.step(Quoted::Plain, b'\\', false), Quoted::Escape);
        assert_eq!(writable.step(Quoted::Escape, b'u', false), Quoted::Dead);
        assert_eq!(Writable::ALL.step(Quoted::Escape, b'u', false), Quoted::Hex4);
    }
}
