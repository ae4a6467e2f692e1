//! Forms in which models write tool calls.
#![forbid(unsafe_code)]

/// The form in which a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// That of Qwen3 and Hermes: `<tool_call>`, a JSON object with `name` and `arguments`, `</tool_call>`.
    Hermes,
}
