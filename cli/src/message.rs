//! A message that is typed on one or several lines.

/// What begins and ends a block of lines.
const BLOCK: &str = "\"\"\"";

/// Lines that are typed one after another.
#[derive(Debug, Default)]
pub(crate) struct Lines(String);

impl Lines {
    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a line; returns the message or the command if it is complete. A line that ends in a backslash goes on in the next,
    /// and a block in quotes until they are closed.
    pub(crate) fn push(&mut self, line: &str) -> Option<String> {
        self.0.push_str(line);
        if is_open(&self.0) {
            self.0.push('\n');
            return None;
        }
        if !self.0.trim_start().starts_with(BLOCK) && self.0.ends_with('\\') {
            self.0.pop();
            self.0.push('\n');
            return None;
        }
        Some(self.finish())
    }

    /// The text so far, as there are no more lines.
    pub(crate) fn finish(&mut self) -> String {
        let text = std::mem::take(&mut self.0);
        let text = text.trim();
        let Some(inner) = text.strip_prefix(BLOCK) else { return text.into() };
        let inner = inner.strip_suffix(BLOCK).unwrap_or(inner).trim_matches('\n');
        // A block is never a command.
        if inner.starts_with('/') { format!("/{inner}") } else { inner.into() }
    }
}

/// Whether a text begins with a block that has no end yet.
pub(crate) fn is_open(text: &str) -> bool {
    let text = text.trim();
    text.strip_prefix(BLOCK).is_some_and(|inner| !inner.ends_with(BLOCK))
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn a_block_has_several_lines_and_is_no_command() {
        let typed = |lines: &[&str]| {
            let mut all = Lines::default();
            let mut done: Vec<String> = lines.iter().filter_map(|line| all.push(line)).collect();
            done.extend(Some(all.finish()).filter(|rest| !rest.is_empty()));
            done
        };
        assert_eq!(typed(&["a", "b\\", "c "]), ["a", "b\nc"]);
        assert_eq!(typed(&["\"\"\"", "a\\", "", "b", "\"\"\"", "c"]), ["a\\\n\nb", "c"]);
        assert_eq!(typed(&["\"\"\"one line\"\"\"", "c"]), ["one line", "c"]);
        assert_eq!(typed(&["\"\"\"/usr", "/bin\"\"\""]), ["//usr\n/bin"]);
        assert_eq!(typed(&["\"\"\"never", "closed"]), ["never\nclosed"]);
    }
}
