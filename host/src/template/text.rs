//! Strings of templates, which know which of their bytes come from messages.

use std::ops::Range;
use std::rc::Rc;

/// A string, and the parts of it that are not the template's own.
#[derive(Clone, Debug, Default)]
pub(super) struct Text(Rc<Pieces>);

/// A string that is being written. It takes no more than its limit, and remembers that there was more.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    text: String,
    /// Byte ranges in ascending order, not empty; none begins where another ends.
    foreign: Vec<Range<usize>>,
    limit: usize,
    is_over: bool,
}

impl Text {
    /// A text of the template.
    pub(super) fn own(text: &str) -> Text {
        let mut pieces = Pieces::new(text.len());
        pieces.own(text);
        pieces.into()
    }

    /// A text of a message, or of a description of a tool.
    pub(super) fn foreign(text: &str) -> Text {
        let mut pieces = Pieces::new(text.len());
        pieces.foreign(text);
        pieces.into()
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0.text
    }

    pub(super) fn len(&self) -> usize {
        self.0.text.len()
    }

    /// The part at these bytes, which are boundaries of characters.
    pub(super) fn slice(&self, range: Range<usize>) -> Text {
        if range == (0..self.len()) {
            return self.clone();
        }
        let mut pieces = Pieces::new(range.len());
        pieces.slice(self, range);
        pieces.into()
    }

    /// The characters, each as a text.
    pub(super) fn chars(&self) -> impl Iterator<Item = Text> + '_ {
        self.as_str().char_indices().map(|(at, c)| self.slice(at..at + c.len_utf8()))
    }

    /// Calls `visit` with each character and whether it is foreign.
    pub(super) fn each(&self, mut visit: impl FnMut(char, bool)) {
        let mut foreign = self.0.foreign.iter().peekable();
        for (at, c) in self.as_str().char_indices() {
            while foreign.next_if(|range| range.end <= at).is_some() {}
            visit(c, foreign.peek().is_some_and(|range| range.contains(&at)));
        }
    }
}

impl From<Pieces> for Text {
    fn from(pieces: Pieces) -> Text {
        Text(Rc::new(pieces))
    }
}

impl Pieces {
    /// Nothing yet, and at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Pieces {
        Pieces { limit, ..Pieces::default() }
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether there was more than the limit.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    fn add(&mut self, text: &str) -> bool {
        self.is_over |= text.len() > self.limit.saturating_sub(self.text.len());
        if !self.is_over {
            self.text.push_str(text);
        }
        !self.is_over
    }

    /// Adds text of the template.
    pub(super) fn own(&mut self, text: &str) {
        self.add(text);
    }

    /// Adds text that is not the template's.
    pub(super) fn foreign(&mut self, text: &str) {
        let from = self.text.len();
        if self.add(text) && !text.is_empty() {
            self.mark(from..self.text.len());
        }
    }

    pub(super) fn char(&mut self, c: char, is_foreign: bool) {
        let mut utf8 = [0; 4];
        let text = c.encode_utf8(&mut utf8);
        if is_foreign { self.foreign(text) } else { self.own(text) }
    }

    fn mark(&mut self, range: Range<usize>) {
        match self.foreign.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.foreign.push(range),
        }
    }

    pub(super) fn text(&mut self, text: &Text) {
        self.slice(text, 0..text.len());
    }

    /// Adds a part of a text.
    pub(super) fn slice(&mut self, text: &Text, range: Range<usize>) {
        let at = self.text.len();
        if !self.add(text.as_str().get(range.clone()).unwrap_or_default()) {
            return;
        }
        let all = &text.0.foreign;
        let first = all.partition_point(|foreign| foreign.end <= range.start);
        for foreign in all.iter().skip(first).take_while(|foreign| foreign.start < range.end) {
            let (start, end) = (foreign.start.max(range.start), foreign.end.min(range.end));
            self.mark(at + start - range.start..at + end - range.start);
        }
    }

    /// The whole text, and its foreign parts.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.text, self.foreign)
    }
}
