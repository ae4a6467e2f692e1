//! Kinds of tokens, and which of them a text may form.
#![forbid(unsafe_code)]

/// Which added tokens a text may form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Special {
    /// None: every text is plain text. For anything written by a user, a tool or a web page. User-defined tokens of a
    /// SentencePiece vocabulary are plain text: line breaks, for example.
    #[default]
    Text,
    /// User-defined ones (Qwen3: `<think>`, `<tool_call>`, ...) but no control tokens, as in llama.cpp with
    /// `parse_special` off.
    UserDefined,
    /// All: `<|im_start|>` becomes the control token. Only for trusted text.
    Parse,
}

/// The kind of a token, from `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Produced by merges, or of a byte.
    Normal,
    /// Controls the model (`<|im_start|>`); not part of any text.
    Control,
    /// Shown as its own text, but not produced by merges (`<think>`).
    UserDefined,
}
