//! Text on a terminal: words that do not fit on a line begin the next one.

use unicode_width::UnicodeWidthChar;

/// Columns between two tab stops.
const TAB: usize = 8;

/// Breaks lines of a text that arrives in pieces. A word is held back until its end is known; code between lines of ``` is
/// left as it is.
#[derive(Debug, Default)]
pub(crate) struct Wrap {
    /// Columns of the line so far.
    column: usize,
    /// White space that no word follows yet.
    gap: String,
    word: String,
    /// How the line begins, as far as that matters.
    start: String,
    is_code: bool,
}

impl Wrap {
    /// What can be shown of the text so far, on a terminal of `width` columns.
    pub(crate) fn push(&mut self, text: &str, width: usize) -> String {
        let mut shown = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\n' => {
                    self.flush(width, &mut shown);
                    shown.push_str(&std::mem::take(&mut self.gap));
                    shown.push('\n');
                    if self.start.starts_with("```") || self.start.starts_with("~~~") {
                        self.is_code = !self.is_code;
                    }
                    (self.column, self.start) = (0, String::new());
                    continue;
                }
                _ if self.is_code => shown.push(c),
                ' ' | '\t' => {
                    self.flush(width, &mut shown);
                    self.gap.push(c);
                }
                // Scripts without spaces break anywhere.
                _ if c.width() == Some(2) => {
                    self.flush(width, &mut shown);
                    self.word.push(c);
                    self.flush(width, &mut shown);
                }
                _ => self.word.push(c),
            }
            if self.start.len() < 3 && !(self.start.is_empty() && c == ' ') {
                self.start.push(c);
            }
        }
        shown
    }

    /// What was held back.
    pub(crate) fn finish(&mut self, width: usize) -> String {
        let mut shown = String::new();
        self.flush(width, &mut shown);
        shown.push_str(&std::mem::take(&mut self.gap));
        shown
    }

    fn flush(&mut self, width: usize, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let after_gap = self.column + columns(&self.gap, self.column);
        let end = after_gap + columns(&self.word, after_gap);
        if end > width && self.column > 0 {
            shown.push('\n');
            self.column = columns(&self.word, 0);
        } else {
            shown.push_str(&self.gap);
            self.column = end;
        }
        // What is longer than a line goes on in the next.
        if width > 0 && self.column > width {
            self.column %= width;
        }
        self.gap.clear();
        shown.push_str(&std::mem::take(&mut self.word));
    }
}

/// Columns of a text that begins at a column.
fn columns(text: &str, from: usize) -> usize {
    let end = text.chars().fold(from, |at, c| match c {
        '\t' => at + TAB - at % TAB,
        c => at + c.width().unwrap_or(1),
    });
    end - from
}

#[cfg(test)]
mod tests {
    use super::Wrap;

    /// The same however the text is cut.
    fn wrapped(text: &str, width: usize) -> String {
        let mut whole = Wrap::default();
        let want = whole.push(text, width) + &whole.finish(width);
        let mut single = Wrap::default();
        let mut shown: String =
            text.chars().map(|c| single.push(c.encode_utf8(&mut [0; 4]), width)).collect();
        shown += &single.finish(width);
        assert_eq!(shown, want);
        want
    }

    #[test]
    fn words_begin_the_next_line_where_they_do_not_fit() {
        assert_eq!(wrapped("The quick brown fox jumps", 10), "The quick\nbrown fox\njumps");
        assert_eq!(wrapped("The quick  brown", 10), "The quick\nbrown");
        assert_eq!(wrapped("ten column and\n\n- a b", 10), "ten column\nand\n\n- a b");
        assert_eq!(wrapped("  indented text", 20), "  indented text");
        assert_eq!(wrapped("a trailing space ", 40), "a trailing space ");
        assert_eq!(wrapped("a\tb", 80), "a\tb");
    }

    #[test]
    fn wide_characters_take_two_columns_and_long_words_stay_whole() {
        assert_eq!(wrapped("日本語の文章", 6), "日本語\nの文章");
        assert_eq!(wrapped("see https://example.com now", 10), "see\nhttps://example.com\nnow");
        assert_eq!(wrapped("é̀é̀é̀ ab", 6), "é̀é̀é̀ ab");
    }

    #[test]
    fn code_is_not_touched() {
        let code = "```rust\nlet a_long_line = of(code, that, stays);\n```\n";
        assert_eq!(wrapped(code, 12), code);
        assert_eq!(wrapped(&format!("{code}and words wrap"), 10), format!("{code}and words\nwrap"));
    }
}
