//! The texts of calls, for grammars.
#![forbid(unsafe_code)]

use crate::json;
use alloc::string::String;

/// What surrounds the name and the arguments of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spelling {
    /// Before the first call.
    pub(crate) opening: &'static str,
    /// Before the name.
    pub(crate) before: &'static str,
    /// Between the name and the arguments.
    pub(crate) between: &'static str,
    /// Whether the name is a JSON string.
    pub(crate) quoted: bool,
    /// After the arguments.
    pub(crate) end: &'static str,
    /// Between a call and the next; `None` if there is only one.
    pub(crate) again: Option<&'static str>,
    /// After the last call.
    pub(crate) last: &'static str,
    /// Whether arguments are elements instead of a JSON object.
    pub(crate) elements: bool,
    /// Whether free text can come before a call: what begins one is told from it by its first bytes.
    pub(crate) in_text: bool,
}

impl Spelling {
    /// That of Hermes and Qwen3.
    pub(crate) const HERMES: Spelling = Spelling {
        opening: "<tool_call>",
        before: "\n{\"name\": ",
        between: ", \"arguments\": ",
        quoted: true,
        end: "}\n</tool_call>",
        again: Some("\n<tool_call>"),
        last: "",
        elements: false,
        in_text: true,
    };

    /// The text of a call up to its arguments; `None` if the name would not be told from what follows.
    pub(crate) fn head(&self, name: &str) -> Option<String> {
        if !self.quoted && (name.is_empty() || name.contains(['<', '>', '[', ']', '{', '\n'])) {
            return None;
        }
        let mut head = String::from(self.before);
        if self.quoted {
            json::string(name, &mut head);
        } else {
            head.push_str(name);
        }
        head.push_str(self.between);
        Some(head)
    }
}
