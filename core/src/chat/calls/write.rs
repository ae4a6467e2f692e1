//! The texts of calls, for grammars.
#![forbid(unsafe_code)]

use super::CallForm;
use crate::constrain::Spelling;

impl CallForm {
    /// Its texts.
    pub(crate) const fn spelling(self) -> Spelling {
        let hermes = Spelling::HERMES;
        match self {
            CallForm::Hermes => hermes,
            CallForm::List => Spelling {
                opening: "<tool_call>[",
                before: "{\"name\": ",
                end: "}",
                again: Some(", "),
                last: "]</tool_call>",
                in_text: false,
                ..hermes
            },
            CallForm::Xml => Spelling {
                before: "\n<function=",
                between: ">\n",
                quoted: false,
                end: "</function>\n</tool_call>",
                elements: true,
                ..hermes
            },
            CallForm::Llama3 | CallForm::Gemma => Spelling {
                opening: "",
                before: "{\"name\": ",
                between: ", \"parameters\": ",
                end: "}",
                again: None,
                in_text: false,
                ..hermes
            },
            CallForm::Mistral => Spelling {
                opening: "[TOOL_CALLS][",
                before: "{\"name\": ",
                end: "}",
                again: Some(", "),
                last: "]",
                in_text: false,
                ..hermes
            },
            CallForm::MistralNamed => Spelling {
                opening: "[TOOL_CALLS]",
                before: "",
                between: "[ARGS]",
                quoted: false,
                end: "",
                again: Some("[TOOL_CALLS]"),
                in_text: false,
                ..hermes
            },
        }
    }
}
