//! Forms in which models write tool calls: what begins them, what they are made of for grammars, and how they are read.
#![forbid(unsafe_code)]

mod read;
mod write;

pub(super) use read::{Found, Scan, begins, read};

/// The form in which a model writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallForm {
    /// That of Qwen3 and Hermes: `<tool_call>`, a JSON object with `name` and `arguments`, `</tool_call>`.
    #[default]
    Hermes,
    /// That of SmolLM2: as [`CallForm::Hermes`], with a JSON array of all calls.
    List,
    /// That of Qwen3.5 and Qwen3-Coder: `<tool_call><function=NAME>`, for each argument `<parameter=NAME>`, its value and
    /// `</parameter>`, then `</function></tool_call>`. Strings are written without quotes.
    Xml,
    /// That of Llama 3: the whole reply is a JSON object with `name` and `parameters`, perhaps after `<|python_tag|>`.
    Llama3,
    /// That of Gemma 3: as [`CallForm::Llama3`], perhaps between lines of three backticks.
    Gemma,
    /// That of Mistral: `[TOOL_CALLS]` and a JSON array of objects with `name` and `arguments`.
    Mistral,
    /// That of later models of Mistral: for each call `[TOOL_CALLS]`, the name, `[ARGS]` and a JSON object.
    MistralNamed,
}

impl CallForm {
    /// The text that begins a call.
    pub(super) const fn marker(self) -> &'static str {
        match self {
            CallForm::Hermes | CallForm::List | CallForm::Xml => "<tool_call>",
            CallForm::Llama3 | CallForm::Gemma => "{",
            CallForm::Mistral | CallForm::MistralNamed => "[TOOL_CALLS]",
        }
    }

    /// Whether calls are all of a reply: text before them would not be told from them.
    pub(super) const fn leads(self) -> bool {
        matches!(self, CallForm::Llama3 | CallForm::Gemma)
    }
}
