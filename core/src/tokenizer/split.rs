//! Splits a text into the pieces that byte-pair merges may not cross, with hand-written matching of the
//! model's pre-tokenizer expression.
//!
//! ```text
//! qwen2   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}
//!         |  ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
//! qwen35  the same with [\p{L}\p{M}]+ for \p{L}+ and [^\s\p{L}\p{M}\p{N}]+ for [^\s\p{L}\p{N}]+
//! llama-bpe, smaug-bpe  qwen2 with \p{N}{1,3} for \p{N}
//! gpt-2   's|'t|'re|'ve|'m|'ll|'d |  ?\p{L}+ |  ?\p{N}+ |  ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
//! smollm  first \p{N} alone; then, in the text between two numbers, gpt-2
//! ```
//!
//! llama.cpp has other names for some of them, for models that do not differ otherwise.
//!
//! Alternatives are tried in order at each position, as in the regex; every character starts some
//! alternative, so the pieces joined are the text. Each character is examined a bounded number of times,
//! whatever the text.
#![forbid(unsafe_code)]

use super::unicode::{Class, class};

/// The pre-tokenizer, `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pre {
    /// `qwen2`: Qwen2, Qwen2.5, Qwen3 and Bonsai.
    Qwen2,
    /// `qwen35`: Qwen3.5 and later; combining marks are part of words.
    Qwen35,
    /// `smollm`: SmolLM and SmolLM2; every digit is a piece, white space is split as in GPT-2.
    SmolLm,
    /// `llama-bpe`: Llama 3 and later, LFM2; up to three digits are a piece. Pieces that are tokens are not merged.
    LlamaBpe,
    /// `smaug-bpe`: SmolLM3, Granite 4; as `llama-bpe`, but every piece is merged.
    SmaugBpe,
    /// `gpt-2`: GPT-2, OLMo; all digits of a number are a piece.
    Gpt2,
}

impl Pre {
    /// The pre-tokenizer with this name in GGUF files.
    pub fn from_name(name: &str) -> Option<Pre> {
        Some(match name {
            "qwen2" => Pre::Qwen2,
            "smollm" => Pre::SmolLm,
            "llama-bpe" => Pre::LlamaBpe,
            // Of models that builds without it do not compute.
            _ if !cfg!(feature = "variants") => return None,
            "qwen35" => Pre::Qwen35,
            "deepseek-r1-qwen" | "megrez" => Pre::Qwen2,
            "starcoder" | "refact" | "codeshell" => Pre::SmolLm,
            "llama3" | "llama-v3" | "lfm2" | "falcon3" => Pre::LlamaBpe,
            "smaug-bpe" | "dbrx" => Pre::SmaugBpe,
            "gpt-2" | "phi-2" | "olmo" | "granite-docling" => Pre::Gpt2,
            _ => return None,
        })
    }

    /// Whether a piece that is a token stays whole even if merges do not produce it (`ignore_merges` in
    /// Hugging Face tokenizers). GGUF files do not state this; llama.cpp, too, decides by the pre-tokenizer.
    pub const fn keeps_whole_tokens(self) -> bool {
        match self {
            Pre::LlamaBpe => true,
            Pre::Qwen2 | Pre::Qwen35 | Pre::SmolLm | Pre::SmaugBpe | Pre::Gpt2 => false,
        }
    }

    /// Whether texts start with the beginning-of-sequence token if a file lacks
    /// `tokenizer.ggml.add_bos_token`.
    pub(super) const fn adds_bos(self) -> bool {
        self.keeps_whole_tokens()
    }
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
        match (class(c), self.pre) {
            // In these expressions a mark is like punctuation.
            (Class::Mark, Pre::Qwen2 | Pre::SmolLm | Pre::LlamaBpe | Pre::SmaugBpe | Pre::Gpt2) => {
                Class::Other
            }
            (class, _) => class,
        }
    }

    /// Length of the prefix of `text` whose characters satisfy `is`, in bytes.
    fn run(&self, text: &str, is: impl Fn(Class) -> bool) -> usize {
        text.find(|c| !is(self.class(c))).unwrap_or(text.len())
    }

    /// Length of the piece that starts with `first`, in bytes; `after` is the text after `first`.
    fn piece(&self, first: char, after: &str) -> usize {
        match self.pre {
            Pre::Qwen2 | Pre::Qwen35 => self.qwen_piece(first, after, 1),
            Pre::LlamaBpe | Pre::SmaugBpe => self.qwen_piece(first, after, 3),
            Pre::SmolLm => self.gpt2_piece(first, after, true),
            Pre::Gpt2 => self.gpt2_piece(first, after, false),
        }
    }

    /// A piece of `qwen2`, `qwen35`, `llama-bpe` and `smaug-bpe`, which differ in the maximum `digits` of a number.
    fn qwen_piece(&self, first: char, after: &str, digits: usize) -> usize {
        let word = |c| matches!(c, Class::Letter | Class::Mark);
        let symbol = |c| c == Class::Other;
        let len = first.len_utf8();
        if first == '\''
            && let Some(suffix) = contraction_any_case(after)
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
        // \p{N} or \p{N}{1,3}
        if kind == Class::Number {
            let more = after.chars().take(digits - 1).take_while(|c| self.class(*c) == Class::Number);
            return len + more.map(char::len_utf8).sum::<usize>();
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
        all_but_last(run, spaces == self.rest.len())
    }

    /// A piece of `gpt-2`, or with single `digits` of `smollm`.
    fn gpt2_piece(&self, first: char, after: &str, digits: bool) -> usize {
        let digits = digits || !cfg!(feature = "variants");
        let len = first.len_utf8();
        if first == '\''
            && let Some(suffix) = contraction(after)
        {
            return len + suffix;
        }
        let run = |kind| self.run(after, |c| c == kind);
        let kind = self.class(first);
        match kind {
            Class::Number if digits => return len,
            Class::Number | Class::Letter | Class::Mark | Class::Other => return len + run(kind),
            Class::Space => {}
        }
        // ` ?\p{L}+`, ` ?\p{N}+` and ` ?[^\s\p{L}\p{N}]+` with the space
        if first == ' '
            && let Some(next) = after.chars().next()
        {
            let kind = self.class(next);
            if kind != Class::Space && (kind != Class::Number || !digits) {
                return len + run(kind);
            }
        }
        let spaces = len + run(Class::Space);
        let (run, rest) = self.rest.split_at_checked(spaces).unwrap_or((self.rest, ""));
        // The text that the expression sees ends at a single digit.
        let ends = |c| digits && self.class(c) == Class::Number;
        all_but_last(run, rest.chars().next().is_none_or(ends))
    }
}

/// Bytes that `\s+(?!\S) | \s+` matches of a run of white space: all of it `at_end`, otherwise all but its
/// last character, and a single character in any case.
fn all_but_last(run: &str, at_end: bool) -> usize {
    match run.char_indices().next_back() {
        Some((last, _)) if last > 0 && !at_end => last,
        _ => run.len(),
    }
}

/// Bytes after an apostrophe of `(?i:'s|'t|'re|'ve|'m|'ll|'d)`.
fn contraction_any_case(after: &str) -> Option<usize> {
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

/// Bytes after an apostrophe of `'s|'t|'re|'ve|'m|'ll|'d`.
fn contraction(after: &str) -> Option<usize> {
    ["s", "t", "re", "ve", "m", "ll", "d"].iter().find(|s| after.starts_with(**s)).map(|s| s.len())
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
        let smol = |t| split(t, Pre::SmolLm);
        assert_eq!(smol("Hello, world 12!"), ["Hello", ",", " world", " ", "1", "2", "!"]);
        assert_eq!(smol("a  1  b\n\nc \n"), ["a", "  ", "1", " ", " b", "\n", "\n", "c", " \n"]);
        assert_eq!(smol("I'll 'LL x's 's"), ["I", "'ll", " '", "LL", " x", "'s", " '", "s"]);
        assert_eq!(smol("a\u{301}b !?\n"), ["a", "\u{301}", "b", " !?", "\n"]);
        let gpt2 = |t| split(t, Pre::Gpt2);
        assert_eq!(gpt2("Hello, world 12!"), ["Hello", ",", " world", " 12", "!"]);
        assert_eq!(gpt2("a  123  b\n\nc \n"), ["a", " ", " 123", " ", " b", "\n", "\n", "c", " \n"]);
        assert_eq!(
            gpt2("I'll 'LL \u{301}x²3 \t4"),
            ["I", "'ll", " '", "LL", " \u{301}", "x", "²3", " ", "\t", "4"]
        );
        assert_eq!(split("123456 7", Pre::SmaugBpe), ["123", "456", " ", "7"]);
        let llama = |t| split(t, Pre::LlamaBpe);
        assert_eq!(llama("12345 67²x"), ["123", "45", " ", "67²", "x"]);
        assert_eq!(llama("I'LL a\u{301}b!\n\n  c"), ["I", "'LL", " a", "\u{301}b", "!\n\n", " ", " c"]);
        assert_eq!(split("a\u{301}b\u{301}", Pre::Qwen35), ["a\u{301}b\u{301}"]);
        assert_eq!(split(" \u{301}!", Pre::Qwen35), [" \u{301}", "!"]);
    }

    #[test]
    fn every_character_is_looked_at_a_bounded_number_of_times() {
        for unit in
            ["a", " ", "\n", " \n", "!", "' ", "1", "\u{301}", "'r", " \u{301}", "\u{3000}x", "  !", "  1"]
        {
            let text: String = unit.repeat(20_000);
            for pre in [Pre::Qwen2, Pre::Qwen35, Pre::SmolLm, Pre::LlamaBpe, Pre::Gpt2] {
                let mut split = Split::new(&text, pre);
                let bytes: usize = split.by_ref().map(str::len).sum();
                assert_eq!(bytes, text.len());
                assert!(split.looked_at.get() <= 5 * text.chars().count(), "{unit:?}");
            }
        }
    }
}
