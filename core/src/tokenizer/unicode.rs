//! The Unicode properties used by the pre-tokenizers: `\p{L}`, `\p{N}`, `\p{M}` and `\s`, version 16.0.
#![forbid(unsafe_code)]

use super::unicode_tables::{CLASS_BLOCKS, CLASS_INDEX, CLASS_RUNS};

/// The class of a character for the pre-tokenizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// None of the others: punctuation, symbols, control characters, unassigned.
    Other,
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\p{M}`
    Mark,
    /// `\s`
    Space,
}

/// The class of `c`. The five are disjoint.
pub(super) fn class(c: char) -> Class {
    if is_space(c) {
        return Class::Space;
    }
    if c.is_ascii() {
        return match c {
            'A'..='Z' | 'a'..='z' => Class::Letter,
            '0'..='9' => Class::Number,
            _ => Class::Other,
        };
    }
    let c = c as usize;
    let bits = match CLASS_INDEX.get(c / BLOCK) {
        Some(block) => run_of(*block, c % BLOCK),
        // Variation selectors: the only classified characters after the table.
        None if (0xE0100..0xE01F0).contains(&c) => 3,
        None => 0,
    };
    match bits {
        1 => Class::Letter,
        2 => Class::Number,
        3 => Class::Mark,
        _ => Class::Other,
    }
}

/// Code points per block of the table.
const BLOCK: usize = 256;

/// The class of code point `at` of a block.
fn run_of(block: u8, at: usize) -> u8 {
    let first = CLASS_BLOCKS.get(usize::from(block)).map_or(0, |first| usize::from(*first));
    let mut end = 0;
    for run in CLASS_RUNS.get(first..).unwrap_or(&[]) {
        end += usize::from(run >> 2) + 1;
        if at < end {
            return run & 3;
        }
    }
    0
}

/// The property `White_Space`, which is `\s` in both reference regex engines.
fn is_space(c: char) -> bool {
    matches!(
        c,
        '\t'..='\r'
            | ' '
            | '\u{85}'
            | '\u{a0}'
            | '\u{1680}'
            | '\u{2000}'..='\u{200a}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202f}'
            | '\u{205f}'
            | '\u{3000}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_is_that_of_the_standard_library() {
        for c in '\0'..=char::MAX {
            assert_eq!(is_space(c), c.is_whitespace(), "{c:?}");
        }
    }

    #[test]
    fn classes_agree_with_the_standard_library_where_it_knows_them() {
        // The standard library may know a later Unicode version, so check only that it agrees where we claim
        // a property.
        for c in '\0'..=char::MAX {
            match class(c) {
                Class::Letter => assert!(c.is_alphabetic(), "{c:?}"),
                Class::Number => assert!(c.is_numeric(), "{c:?}"),
                Class::Mark => assert!(!c.is_numeric() && !c.is_whitespace(), "{c:?}"),
                Class::Space => assert!(c.is_whitespace(), "{c:?}"),
                Class::Other => assert!(!c.is_ascii_alphanumeric(), "{c:?}"),
            }
        }
    }

    #[test]
    fn counts_are_those_of_unicode_16() {
        // Counted by the regex engine inside Hugging Face tokenizers 0.23 over every code point.
        let count = |of| ('\0'..=char::MAX).filter(|c| class(*c) == of).count();
        assert_eq!(count(Class::Letter), 141_028);
        assert_eq!(count(Class::Number), 1_911);
        assert_eq!(count(Class::Mark), 2_501);
        assert_eq!(count(Class::Space), 25);
    }
}
