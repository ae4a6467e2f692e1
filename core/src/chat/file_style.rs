//! What is known of a template that is rendered from the file.
#![forbid(unsafe_code)]

use super::calls::CallForm;

/// What a host finds out about the template of a file before it renders conversations with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStyle {
    /// Whether replies may have thoughts between `<think>` and `</think>`.
    pub thinks: bool,
    /// Whether a reply begins inside its thoughts: without thinking, and with.
    pub opens: [bool; 2],
    /// Whether conversations can have a system message.
    pub system: bool,
    /// The form of calls; `None` if the template has no tools.
    pub calls: Option<CallForm>,
}
