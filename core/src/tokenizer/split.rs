//! Cuts a text into the pieces that byte-pair merges may not cross, by hand-written matching of the
//! model's pre-tokenizer expression.
//!
//! ```text
//! qwen2   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}
//!         |  ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
//! qwen35  the same with [\p{L}\p{M}]+ for \p{L}+ and [^\s\p{L}\p{M}\p{N}]+ for [^\s\p{L}\p{N}]+
//! ```
//!
//! Alternatives are tried in order at each place, as in the regex; every character starts some
//! alternative, so the pieces joined are the text. Each character is looked at a bounded number of
//! times, whatever the text.
#![forbid(unsafe_code)]

use super::unicode::{Class, class};

/// The pre-tokenizer, `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pre {
    /// `qwen2`: Qwen2, Qwen2.5, Qwen3 and Bonsai.
    Qwen2,
    /// `qwen35`: Qwen3.5 and later; combining marks belong to words.
    Qwen35,
}

/// Iterator over the pieces of a text.
pub(super) struct Split<'t> {
    rest: &'t str,
    pre: Pre,
    /// Characters classified so far, for tests of linear time.
    #[cfg(test)]
    pub(super) looked_at: core::cell::Cell<usize>,
}

impl<'t> Split<'t> {
    pub(super) fn new(text: &'t str, pre: Pre) -> Self {
        Split {
            rest: text,
            pre,
            #[cfg(test)]
            looked_at: core::cell::Cell::new(0),
        }
    }

    fn class(&self, c: char) -> Class {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
        match class(c) {
            // To qwen2 a mark is like punctuation.
            Class::Mark if self.pre == Pre::Qwen2 => Class::Other,
            other => other,
        }
    }

    /// Bytes at the start of `text` whose characters satisfy `is`.
    fn run(&self, text: &str, is: impl Fn(Class) -> bool) -> usize {
        text.find(|c| !is(self.class(c))).unwrap_or(text.len())
    }

    /// Bytes of the piece that `first` starts; `after` is the text behind `first`.
    fn piece(&self, first: char, after: &str) -> usize {
        let word = |c| matches!(c, Class::Letter | Class::Mark);
        let symbol = |c| c == Class::Other;
        let len = first.len_utf8();
        if first == '\''
            && let Some(suffix) = contraction(after)
        {
            return len + suffix;
        }
        let kind = self.class(first);
        let newline = matches!(first, '\r' | '\n');
        // [^\r\n\p{L}\p{N}]?\p{L}+
        if kind != Class::Number && !newline {
            let letters = self.run(after, word);
            if letters > 0 || word(kind) {
                return len + letters;
            }
        }
        // \p{N}
        if kind == Class::Number {
            return len;
        }
        // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
        if first == ' ' || symbol(kind) {
            let symbols = self.run(after, symbol);
            if symbols > 0 || symbol(kind) {
                let end = len + symbols;
                let tail = after.get(symbols..).unwrap_or("");
                return end + tail.find(|c| !matches!(c, '\r' | '\n')).unwrap_or(tail.len());
            }
        }
        // Only white space is left.
        let spaces = len + self.run(after, |c| c == Class::Space);
        let run = &self.rest.get(..spaces).unwrap_or(self.rest);
        // \s*[\r\n]+
        if let Some(last) = run.rfind(['\r', '\n']) {
            return last + 1;
        }
        // \s+(?!\S): all but the last one, unless the text ends here. \s+: a single one.
        match run.char_indices().next_back() {
            Some((last, _)) if last > 0 && spaces < self.rest.len() => last,
            _ => spaces,
        }
    }
}

/// Bytes behind an apostrophe of `(?i:'s|'t|'re|'ve|'m|'ll|'d)`.
fn contraction(after: &str) -> Option<usize> {
    let mut chars = after.chars();
    // The long s folds to s; no other character folds to one of these letters.
    match chars.next()? {
        's' | 'S' | 't' | 'T' | 'm' | 'M' | 'd' | 'D' => Some(1),
        'ſ' => Some('ſ'.len_utf8()),
        'r' | 'R' | 'v' | 'V' => matches!(chars.next()?, 'e' | 'E').then_some(2),
        'l' | 'L' => matches!(chars.next()?, 'l' | 'L').then_some(2),
        _ => None,
    }
}

impl<'t> Iterator for Split<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let mut chars = self.rest.chars();
        let first = chars.next()?;
        let len = self.piece(first, chars.as_str());
        // A cut inside a character cannot happen; if it did, the rest would be one piece.
        let (piece, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.rest = rest;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    fn split(text: &str, pre: Pre) -> Vec<&str> {
        Split::new(text, pre).collect()
    }

    #[test]
    fn pieces_follow_the_expression() {
        // Expected values: Hugging Face tokenizers, Split(Regex(...), "isolated").
        let q2 = |t| split(t, Pre::Qwen2);
        assert_eq!(q2("Hello, world!"), ["Hello", ",", " world", "!"]);
        assert_eq!(q2("  a"), [" ", " a"]);
        assert_eq!(q2("   "), ["   "]);
        assert_eq!(q2("a \n b"), ["a", " \n", " b"]);
        assert_eq!(q2("a\n\n  \n  b"), ["a", "\n\n  \n", " ", " b"]);
        assert_eq!(q2("12 3"), ["1", "2", " ", "3"]);
        assert_eq!(q2("I'LL we're x'y '"), ["I", "'LL", " we", "'re", " x", "'y", " '"]);
        assert_eq!(q2("'ſx"), ["'ſ", "x"]);
        assert_eq!(q2("a\u{301}b"), ["a", "\u{301}b"]);
        assert_eq!(q2("!!\r\n\nx"), ["!!\r\n\n", "x"]);
        assert_eq!(split("a\u{301}b\u{301}", Pre::Qwen35), ["a\u{301}b\u{301}"]);
        assert_eq!(split(" \u{301}!", Pre::Qwen35), [" \u{301}", "!"]);
    }

    #[test]
    fn every_character_is_looked_at_a_bounded_number_of_times() {
        for unit in ["a", " ", "\n", " \n", "!", "' ", "1", "\u{301}", "'r", " \u{301}", "\u{3000}x", "  !"] {
            let text: String = unit.repeat(20_000);
            for pre in [Pre::Qwen2, Pre::Qwen35] {
                let mut split = Split::new(&text, pre);
                let bytes: usize = split.by_ref().map(str::len).sum();
                assert_eq!(bytes, text.len());
                assert!(split.looked_at.get() <= 5 * text.chars().count(), "{unit:?}");
            }
        }
    }
}
