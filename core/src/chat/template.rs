//! Chat templates, ChatML as Qwen3 has it, that of Llama 3 and that of Gemma: a conversation to text, and to token ids.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::calls::CallForm;
use super::file_style::FileStyle;
use crate::bytes::{find, find_last};
use crate::error::{Error, Name, Result};
use crate::gguf::Metadata;
use crate::json;
use crate::tokenizer::{EncodeBuffers, EncodeOptions, Tokenizer};

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The person or program that asks.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role's name in the template.
    pub const fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A function call by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCall<'m> {
    /// Name of the function.
    pub name: &'m str,
    /// Its arguments, inserted verbatim; [`json::reformat`](crate::json::reformat) gives the layout models
    /// are used to.
    pub arguments: &'m str,
}

/// One message of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'m> {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: &'m str,
    /// The model's reasoning before the text (only of an assistant). If `None`, it is taken from a `<think>`
    /// block in `content`.
    pub reasoning: Option<&'m str>,
    /// Calls the model made (only of an assistant).
    pub tool_calls: &'m [ToolCall<'m>],
}

impl<'m> Message<'m> {
    /// A message with only text.
    pub const fn new(role: Role, content: &'m str) -> Self {
        Message { role, content, reasoning: None, tool_calls: &[] }
    }

    /// Reasoning, empty if there is none, and content of a reply.
    fn parts(&self) -> (&'m str, &'m str) {
        let after = |text: &'m str, at: usize, word: &str| text.get(at + word.len()..).unwrap_or("");
        if self.reasoning.is_none()
            && let (Some(first), Some(last)) =
                (find(self.content, THINK_END), find_last(self.content, THINK_END))
        {
            let thoughts = self.content.get(..first).unwrap_or("").trim_end_matches('\n');
            let begin = find_last(thoughts, THINK).map_or(thoughts, |at| after(thoughts, at, THINK));
            let answer = after(self.content, last, THINK_END);
            return (begin.trim_start_matches('\n'), answer.trim_start_matches('\n'));
        }
        (self.reasoning.unwrap_or(""), self.content)
    }
}

/// The format of a rendered conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Qwen3's: tools, thinking, tool results inside user turns.
    Qwen3,
    /// That of Qwen3's Thinking models of 2507: as [`Style::Qwen3`], but every reply begins inside its thoughts, and
    /// thinking cannot be turned off.
    Qwen3Thinking,
    /// That of Qwen3's Instruct models of 2507: tools as in [`Style::Qwen3`], without thinking.
    Qwen3Instruct,
    /// `<|im_start|>role\ncontent<|im_end|>\n` for every message and nothing else but
    /// [`Template::system`]. Has no tools.
    Plain,
    /// Llama 3's, with the feature `variants`: `<|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>` for every message, whose content is trimmed.
    /// Has no tools.
    Llama3,
    /// That of Llama 3.1 to 3.3: as [`Style::Llama3`], but every conversation has a system message, which begins with dates. The
    /// date of the day is the one that the template states if it is given none, 26 July 2024: replies do not depend on a clock.
    Llama31,
    /// Gemma 3's, with the feature `sentencepiece`: `<start_of_turn>role\ncontent<end_of_turn>\n` for every message, whose
    /// content is trimmed; the model's role is `model`. A system message goes before the first message, with a blank line between
    /// them. Has no tools, and no system messages later.
    Gemma,
    /// That of the file, which is not built in: a [`Renderer`](super::Renderer) of the host renders conversations.
    File(FileStyle),
}

impl Style {
    /// Whether replies may begin with thoughts.
    pub const fn can_think(self) -> bool {
        match self {
            Style::Qwen3 | Style::Qwen3Thinking => true,
            Style::Qwen3Instruct | Style::Plain | Style::Llama3 | Style::Llama31 | Style::Gemma => false,
            Style::File(file) => file.thinks,
        }
    }

    /// Whether a reply begins inside its thoughts, with or without thinking.
    pub const fn opens_thoughts(self, thinking: bool) -> bool {
        match self {
            Style::File(file) => file.opens[thinking as usize],
            style => style.always_thinks(),
        }
    }

    /// Whether every reply begins inside its thoughts, whatever [`ChatOptions::thinking`] says.
    pub const fn always_thinks(self) -> bool {
        match self {
            Style::Qwen3Thinking => true,
            Style::Qwen3
            | Style::Qwen3Instruct
            | Style::Plain
            | Style::Llama3
            | Style::Llama31
            | Style::Gemma => false,
            Style::File(file) => file.opens[0] && file.opens[1],
        }
    }

    /// Reasoning and content of a reply. Without thoughts, what looks like them is content.
    pub(super) fn parts<'m>(self, reply: &Message<'m>) -> (&'m str, &'m str) {
        match self {
            Style::Qwen3 | Style::Qwen3Thinking => reply.parts(),
            Style::File(FileStyle { thinks: true, .. }) => reply.parts(),
            Style::Qwen3Instruct
            | Style::Plain
            | Style::Llama3
            | Style::Llama31
            | Style::Gemma
            | Style::File(_) => ("", reply.content),
        }
    }

    /// Whether it has tool calls: never without the feature `tools`.
    pub const fn has_tools(self) -> bool {
        self.calls().is_some()
    }

    /// The form of its tool calls, if it has them: never without the feature `tools`.
    pub const fn calls(self) -> Option<CallForm> {
        match self {
            Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct if cfg!(feature = "tools") => {
                Some(CallForm::Hermes)
            }
            Style::File(file) if cfg!(feature = "tools") => file.calls,
            Style::Qwen3
            | Style::Qwen3Thinking
            | Style::Qwen3Instruct
            | Style::Plain
            | Style::Llama3
            | Style::Llama31
            | Style::Gemma
            | Style::File(_) => None,
        }
    }

    /// How its messages begin and end.
    const fn frame(self) -> &'static Frame {
        match self {
            Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct | Style::Plain => &CHATML,
            Style::Llama3 | Style::Llama31 if HAS_LLAMA3 => &LLAMA3,
            Style::Gemma if HAS_GEMMA => &GEMMA,
            Style::File(_) => &FILE,
            Style::Llama3 | Style::Llama31 | Style::Gemma => &CHATML,
        }
    }

    /// Whether it has results of tools.
    const fn has_results(self) -> bool {
        match self {
            Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct | Style::Plain => true,
            Style::Llama3 | Style::Llama31 | Style::Gemma | Style::File(_) => false,
        }
    }
}

/// How a message begins and ends.
#[derive(Debug)]
struct Frame {
    /// The control token before the role.
    start: &'static str,
    /// The one after it, if any.
    header_end: Option<&'static str>,
    /// The text before the content.
    before: &'static str,
    /// The name of the model's role.
    assistant: &'static str,
    /// The control token after the content.
    end: &'static str,
    /// The text after that.
    after: &'static str,
    /// The control tokens that it needs, and what an error says without them.
    needs: &'static [(&'static str, &'static str)],
    /// What the error expects.
    expected: &'static str,
}

impl Default for &Frame {
    fn default() -> Self {
        &CHATML
    }
}

static CHATML: Frame = Frame {
    start: "<|im_start|>",
    header_end: None,
    before: "\n",
    assistant: "assistant",
    end: "<|im_end|>",
    after: "\n",
    needs: &[("<|im_start|>", "without <|im_start|>"), ("<|im_end|>", "without <|im_end|>")],
    expected: "a vocabulary with the control tokens of ChatML",
};

static LLAMA3: Frame = Frame {
    start: "<|start_header_id|>",
    header_end: Some("<|end_header_id|>"),
    before: "\n\n",
    assistant: "assistant",
    end: "<|eot_id|>",
    after: "",
    needs: &[
        ("<|start_header_id|>", "without <|start_header_id|>"),
        ("<|end_header_id|>", "without <|end_header_id|>"),
        ("<|eot_id|>", "without <|eot_id|>"),
    ],
    expected: "a vocabulary with the control tokens of Llama 3",
};

static GEMMA: Frame = Frame {
    start: "<start_of_turn>",
    header_end: None,
    before: "\n",
    assistant: "model",
    end: "<end_of_turn>",
    after: "\n",
    needs: &[("<start_of_turn>", "without <start_of_turn>"), ("<end_of_turn>", "without <end_of_turn>")],
    expected: "a vocabulary with the control tokens of Gemma",
};

/// Messages that a host renders have none.
static FILE: Frame = Frame {
    start: "",
    header_end: None,
    before: "",
    assistant: "assistant",
    end: "",
    after: "",
    needs: &[],
    expected: "",
};

/// Whether this build has Gemma's template.
const HAS_GEMMA: bool = cfg!(feature = "sentencepiece");

/// Whether this build computes Qwen2.
const HAS_QWEN2: bool = cfg!(feature = "variants");

/// Whether this build has several frames of messages.
const HAS_FRAMES: bool = HAS_LLAMA3 || HAS_GEMMA;

/// Whether this build has Llama 3's template.
const HAS_LLAMA3: bool = cfg!(feature = "variants");

/// What Python's `strip` removes at both ends.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c))
}

/// The dates that the template of Llama 3.1 to 3.3 states if it is given none.
const LLAMA31_DATES: &str = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

/// A model's chat template, as far as it was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// The style to write.
    pub style: Style,
    /// Whether that style is the model's. If not, it is the closest one, and a host should warn.
    pub known: bool,
    /// The system message of a conversation that starts without one.
    pub system: Option<&'static str>,
}

impl Template {
    /// Qwen3's and Bonsai's.
    pub const QWEN3: Template = Template { style: Style::Qwen3, known: true, system: None };
    /// That of Qwen3's Thinking models of 2507.
    pub const QWEN3_THINKING: Template = Template { style: Style::Qwen3Thinking, ..Template::QWEN3 };
    /// That of Qwen3's Instruct models of 2507.
    pub const QWEN3_INSTRUCT: Template = Template { style: Style::Qwen3Instruct, ..Template::QWEN3 };
    /// Plain ChatML.
    pub const PLAIN: Template = Template { style: Style::Plain, known: true, system: None };
    /// Llama 3's.
    pub const LLAMA3: Template = Template { style: Style::Llama3, known: true, system: None };
    /// That of Llama 3.1 to 3.3.
    pub const LLAMA31: Template = Template { style: Style::Llama31, ..Template::LLAMA3 };
    /// SmolLM2's: plain ChatML with a default system message.
    pub const SMOLLM2: Template = Template {
        system: Some("You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        ..Template::PLAIN
    };
    /// Qwen2's: plain ChatML with a default system message.
    pub const QWEN2: Template = Template { system: Some("You are a helpful assistant."), ..Template::PLAIN };
    /// Qwen2.5's: as [`Template::QWEN3_INSTRUCT`], with a default system message.
    pub const QWEN25: Template = Template {
        system: Some("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        ..Template::QWEN3_INSTRUCT
    };
    /// Gemma 3's.
    pub const GEMMA: Template = Template { style: Style::Gemma, known: true, system: None };

    /// Detects the template from `tokenizer.chat_template`; see [`Template::detect`].
    ///
    /// # Errors
    /// If the template is not a string.
    pub fn from_metadata(metadata: &Metadata<'_>, tokenizer: &Tokenizer<'_>) -> Result<Template> {
        Ok(Template::detect(metadata.str("tokenizer.chat_template")?, tokenizer))
    }

    /// Chooses the style of a template by the words in it:
    ///
    /// | style | words |
    /// |---|---|
    /// | Qwen3's | `last_query_index`, `<tool_response>` and `enable_thinking`, and calls in JSON |
    /// | that of Thinking models of 2507 | `last_query_index`, `<tool_response>` and a reply that begins with `<think>`, without `enable_thinking` |
    /// | that of Instruct models of 2507 | `<tools>`, `<tool_response>` and `<function-name>`, without any mention of thinking or a default system prompt |
    /// | plain | ChatML's markers without any mention of thinking, tools or a system prompt |
    /// | Qwen2.5's | as that of Instruct models, with Qwen2.5's system prompt for conversations without one |
    /// | SmolLM2's, Qwen2's | as plain, with that model's system prompt for conversations without one |
    /// | Llama 3's | its markers and contents that are trimmed, without any mention of a system prompt or tools |
    /// | that of Llama 3.1 to 3.3 | as Llama 3's, with the dates that [`Style::Llama31`] writes |
    /// | Gemma 3's | its markers, contents that are trimmed, and a system prompt before the first message, without tools |
    ///
    /// Anything else is unknown. With Llama 3's markers it is written as that of Llama 3.1 if it states dates, else as Llama 3's;
    /// with Gemma's as Gemma 3's; otherwise as Qwen3's if it mentions `<think>`, else plain. Without a template the vocabulary decides:
    /// Llama 3's or Gemma's with its control tokens, Qwen3's if `<think>` is a token.
    pub fn detect(template: Option<&str>, tokenizer: &Tokenizer<'_>) -> Template {
        let unknown = |nearest: Template| Template { known: false, ..nearest };
        let Some(text) = template else {
            let has_all =
                |frame: &Frame| frame.needs.iter().all(|(word, _)| tokenizer.added_id(word).is_some());
            return unknown(if HAS_LLAMA3 && has_all(&LLAMA3) {
                Template::LLAMA3
            } else if HAS_GEMMA && has_all(&GEMMA) {
                Template::GEMMA
            } else if tokenizer.added_id("<think>").is_some() {
                Template::QWEN3
            } else {
                Template::PLAIN
            });
        };
        let has = |word: &&str| find(text, word).is_some();
        let has_all = |frame: &Frame| frame.needs.iter().all(|(word, _)| has(word));
        if HAS_LLAMA3 && has_all(&LLAMA3) {
            let trims = has(&"add_generation_prompt") && has(&"message['content'] | trim");
            let [dates, default_date @ ..] = LLAMA31_WORDS;
            return if has(&dates) {
                let known = trims && default_date.iter().all(has);
                Template { known, ..Template::LLAMA31 }
            } else {
                let known = trims && !["system", "tool", "Date"].iter().any(has);
                Template { known, ..Template::LLAMA3 }
            };
        }
        if HAS_GEMMA && has_all(&GEMMA) {
            let known = GEMMA_WORDS.iter().all(has) && !["tool", "developer"].iter().any(has);
            return Template { known, ..Template::GEMMA };
        }
        Template::detect_chatml(text).unwrap_or(if has(&"<think>") {
            unknown(Template::QWEN3)
        } else {
            unknown(Template::PLAIN)
        })
    }

    /// The template of ChatML with these words, if it is known.
    fn detect_chatml(text: &str) -> Option<Template> {
        let has = |word: &&str| find(text, word).is_some();
        let chatml = ["<|im_start|>", "<|im_end|>"].iter().all(has);
        let prompts = chatml && has(&"add_generation_prompt");
        let plain = prompts && !["think", "tool"].iter().any(has);
        let thinks = chatml && ["last_query_index", "<tool_response>"].iter().all(has) && !has(&"<function=");
        let instruct = prompts && INSTRUCT.iter().all(has) && !["think", "<function="].iter().any(has);
        if thinks && has(&"enable_thinking") {
            Some(Template::QWEN3)
        } else if thinks && prompts && THINKING_PROMPT.iter().any(has) {
            Some(Template::QWEN3_THINKING)
        } else if instruct
            && has(&"messages[0].role == 'system'")
            && !["You are Qwen", "assistant.<|im_end|>"].iter().any(has)
        {
            Some(Template::QWEN3_INSTRUCT)
        } else if HAS_QWEN2
            && instruct
            && QWEN25_DEFAULT.iter().all(has)
            && has_twice(text, QWEN25_DEFAULT[2])
        {
            Some(Template::QWEN25)
        } else if plain && !has(&"system") {
            Some(Template::PLAIN)
        } else if plain && has(&DEFAULT_SYSTEM) && has_twice(text, "system") {
            let default = |words: &[&str; 2]| words.iter().any(has);
            if default(&SMOLLM2_DEFAULT) {
                Some(Template::SMOLLM2)
            } else {
                (HAS_QWEN2 && default(&QWEN2_DEFAULT)).then_some(Template::QWEN2)
            }
        } else {
            None
        }
    }
}

/// How the templates of Llama 3.1 to 3.3 state dates; the last two tell the date of the day.
const LLAMA31_WORDS: [&str; 3] = ["Cutting Knowledge Date: December 2023", "Today Date: ", "\"26 Jul 2024\""];

/// How replies begin that always think; whether line breaks are escaped depends on the converter.
const THINKING_PROMPT: [&str; 2] =
    ["<|im_start|>assistant\\n<think>\\n'", "<|im_start|>assistant\n<think>\n'"];

/// Tools as Qwen3 describes them, and calls in JSON, which Qwen3-Coder's are not.
const INSTRUCT: [&str; 3] = ["<tools>", "<tool_response>", "<function-name>"];

/// How Qwen2.5's template adds its system message, with tools and without.
const QWEN25_DEFAULT: [&str; 3] = [
    "messages[0]['role'] == 'system'",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
];

/// How Gemma 3's template trims contents, and puts a system prompt before the first of them.
const GEMMA_WORDS: [&str; 4] = [
    "add_generation_prompt",
    "message['content'] | trim",
    "messages[0]['content'] + '",
    "first_user_prefix if loop.first",
];

/// Whether `word` occurs twice, and not more often.
fn has_twice(text: &str, word: &str) -> bool {
    let later = |text| find(text, word).and_then(|at| text.get(at + word.len()..));
    later(text).and_then(later).is_some_and(|rest| find(rest, word).is_none())
}

/// How the templates of SmolLM2 and Qwen2 add their system messages; whether a line break is escaped depends on the converter.
const DEFAULT_SYSTEM: &str = "loop.first and messages[0]['role'] != 'system'";
const SMOLLM2_DEFAULT: [&str; 2] = [
    "<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>",
];
const QWEN2_DEFAULT: [&str; 2] = [
    "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>",
];

impl Default for Template {
    fn default() -> Self {
        Template::QWEN3
    }
}

/// How a conversation is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatOptions<'m> {
    /// The template, from [`Template::from_metadata`].
    pub template: Template,
    /// `Some(false)` makes the model answer without reasoning. `Some(true)` and `None` render alike and leave
    /// it to the model. Only of effect on [`Style::Qwen3`].
    pub thinking: Option<bool>,
    /// Descriptions of the functions the model may call, each a JSON text.
    pub tools: &'m [&'m str],
    /// Whether to end with the start of the model's reply.
    pub add_generation_prompt: bool,
    /// How message texts are encoded; `special` is ignored, since they are always plain text.
    pub encode: EncodeOptions,
}

impl Default for ChatOptions<'_> {
    fn default() -> Self {
        ChatOptions {
            template: Template::QWEN3,
            thinking: None,
            tools: &[],
            add_generation_prompt: true,
            encode: EncodeOptions::default(),
        }
    }
}

/// Begins the thoughts of a reply.
pub(super) const THINK: &str = "<think>";
/// Ends them.
pub(super) const THINK_END: &str = "</think>";

/// Renders a conversation as text, identical to the output of the model's template.
///
/// The text is for people and tests: encoded as a whole, a user's `<|im_start|>` would become a control
/// token. Use [`encode`] to get token ids.
///
/// # Errors
/// If a tool is not JSON, if there are tools or tool calls, or with [`Style::Llama3`] and [`Style::Llama31`] results of tools,
/// and the style has none, or if this build lacks the style; with [`Style::File`] always.
pub fn render(messages: &[Message<'_>], options: &ChatOptions<'_>) -> Result<String> {
    Ok(Script::of(messages, options, true)?.text)
}

/// Encodes a conversation to token ids.
///
/// # Errors
/// As [`render`], and if the vocabulary lacks the control tokens that begin and end messages.
pub fn encode(
    tokenizer: &Tokenizer<'_>,
    messages: &[Message<'_>],
    options: &ChatOptions<'_>,
) -> Result<Vec<u32>> {
    encode_next(tokenizer, &[], messages, options)
}

/// The ids of new messages that follow `fed`, which are all tokens fed so far up to the end of the model's
/// last reply (with the control token that ends it or, if it was cut off, without). If `fed` is empty, it is [`encode`].
/// Tools are described only at the start of a conversation.
///
/// # Errors
/// As [`encode`].
pub fn encode_next(
    tokenizer: &Tokenizer<'_>,
    fed: &[u32],
    messages: &[Message<'_>],
    options: &ChatOptions<'_>,
) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    ChatEncoder::default().encode_next(tokenizer, fed, messages, options, &mut ids)?;
    Ok(ids)
}

/// [`encode_next`] with memory that is kept from call to call, for hosts without a heap.
#[derive(Debug, Default)]
pub struct ChatEncoder {
    script: Script,
    buffers: EncodeBuffers,
}

impl ChatEncoder {
    /// Enough for calls whose messages have up to `bytes` with the template's own text: encoding them then
    /// allocates nothing but `ids`, unless they are normalized first.
    pub fn with_capacity(bytes: usize) -> Self {
        // The shortest markers have seven bytes.
        let markers = Vec::with_capacity(bytes.div_ceil(7));
        let script = Script { text: String::with_capacity(bytes), markers, ..Script::default() };
        ChatEncoder { script, buffers: EncodeBuffers::with_capacity(bytes) }
    }

    /// Appends what [`encode_next`] returns to `ids`.
    ///
    /// # Errors
    /// As [`encode`]. `ids` may then have some of the ids.
    pub fn encode_next(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        fed: &[u32],
        messages: &[Message<'_>],
        options: &ChatOptions<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let ChatEncoder { script, buffers } = self;
        script.text.clear();
        script.markers.clear();
        script.frame = options.template.style.frame();
        match fed.last() {
            None => ids.extend(tokenizer.leading_bos()),
            Some(last) => {
                let &Frame { end, after, .. } = script.frame();
                if tokenizer.added_id(end) != Some(*last) {
                    script.special(end);
                }
                script.text(after);
            }
        }
        script.messages(messages, options, fed.is_empty())?;
        script.encode(tokenizer, &options.encode, buffers, ids)
    }
}

/// Appends the ids of a reply that the model is to continue, as it writes one after the generation prompt (which may
/// have opened its thoughts), and returns their text. Without content and calls, thoughts stay open. A call that is cut
/// off is left out if there are tools.
///
/// # Errors
/// As [`encode`].
pub(super) fn encode_unfinished(
    tokenizer: &Tokenizer<'_>,
    reply: &Message<'_>,
    options: &ChatOptions<'_>,
    ids: &mut Vec<u32>,
) -> Result<String> {
    let mut script = Script::new(options);
    check_tools(options, !reply.tool_calls.is_empty())?;
    match options.template.style {
        Style::Plain | Style::Llama3 | Style::Llama31 | Style::Gemma => script.text(reply.content),
        style @ (Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct) => {
            let (reasoning, mut content) = style.parts(reply);
            if !options.tools.is_empty() {
                content = content.split_once("<tool_call>").map_or(content, |(before, _)| before);
            }
            if style.always_thinks() || style.can_think() && !reasoning.is_empty() {
                if !style.always_thinks() {
                    script.literal("<think>\n");
                }
                script.text(reasoning);
                if !content.is_empty() || !reply.tool_calls.is_empty() {
                    script.literal("\n</think>\n\n");
                }
            }
            script.text(content);
            script.tool_calls(reply.tool_calls, content.is_empty());
        }
        Style::File(file) => {
            let (reasoning, content) = options.template.style.parts(reply);
            let opened = file.opens[usize::from(options.thinking == Some(true))];
            if opened || file.thinks && !reasoning.is_empty() {
                if !opened {
                    script.literal("<think>\n");
                }
                script.text(reasoning);
                if !content.is_empty() || !reply.tool_calls.is_empty() {
                    script.literal("\n</think>\n\n");
                }
            }
            script.text(content);
            if !reply.tool_calls.is_empty() {
                return Err(error!(Template { lacks: "replies with calls that continue" }));
            }
        }
    }
    script.encode(tokenizer, &options.encode, &mut EncodeBuffers::default(), ids)?;
    Ok(script.text)
}

/// As [`encode_replies`](super::encode_replies), of messages that are borrowed already.
pub(super) fn encode_replies(
    tokenizer: &Tokenizer<'_>,
    messages: &[Message<'_>],
    options: &ChatOptions<'_>,
    ids: &mut Vec<u32>,
) -> Result<Vec<Range<usize>>> {
    let style = options.template.style;
    let end = style.frame().end;
    let Some(end) = tokenizer.added_id(end) else {
        let (key, found) = (Name::new("control token"), Name::new(end));
        return Err(error!(Unsupported { key, found, expected: "one of the vocabulary" }));
    };
    let (mut replies, mut encoder) = (Vec::new(), ChatEncoder::default());
    let (mut rest, mut fed) = (messages, None);
    while let Some(i) = rest.iter().position(|message| message.role == Role::Assistant) {
        let (before, after) = rest.split_at(i);
        let Some((reply, after)) = after.split_first() else { break };
        let (reasoning, content) = style.parts(reply);
        let options =
            ChatOptions { thinking: Some(!reasoning.is_empty()), add_generation_prompt: true, ..*options };
        encoder.encode_next(tokenizer, fed.as_slice(), before, &options, ids)?;
        let start = ids.len();
        let reply = Message { reasoning: Some(reasoning), content, ..*reply };
        // With tools, what looks like a call in the text would be taken for one that was cut off.
        encode_unfinished(tokenizer, &reply, &ChatOptions { tools: &[], ..options }, ids)?;
        ids.push(end);
        replies.push(start..ids.len());
        (rest, fed) = (after, Some(end));
    }
    if replies.is_empty() {
        let problem = "needs a message of the assistant to learn from";
        return Err(error!(Argument { name: Name::new("messages"), problem }));
    }
    Ok(replies)
}

/// Refuses tools, and calls of them, where the template has none.
fn check_tools(options: &ChatOptions<'_>, has_calls: bool) -> Result<()> {
    if (has_calls || !options.tools.is_empty()) && !options.template.style.has_tools() {
        let lacks = if cfg!(feature = "tools") { "tools" } else { "tools in this build" };
        return Err(error!(Template { lacks }));
    }
    Ok(())
}

/// A rendered conversation with the positions of the template's own markers.
#[derive(Debug, Default)]
struct Script {
    text: String,
    /// Start and end of each marker in `text`, in ascending order.
    markers: Vec<(usize, usize)>,
    /// How its messages begin and end.
    frame: &'static Frame,
}

impl Script {
    fn new(options: &ChatOptions<'_>) -> Script {
        Script { frame: options.template.style.frame(), ..Script::default() }
    }

    fn of(messages: &[Message<'_>], options: &ChatOptions<'_>, opening: bool) -> Result<Script> {
        let mut script = Script::new(options);
        script.messages(messages, options, opening)?;
        Ok(script)
    }

    /// Known at compile time if there is only one.
    fn frame(&self) -> &'static Frame {
        if HAS_FRAMES { self.frame } else { &CHATML }
    }

    fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn special(&mut self, marker: &str) {
        let start = self.text.len();
        self.text.push_str(marker);
        self.markers.push((start, self.text.len()));
    }

    /// Writes the template's own text, in which each `<...>` that is a token is a marker.
    fn literal(&mut self, text: &str) {
        const MARKERS: [&str; 6] =
            [THINK, THINK_END, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];
        let mut rest = text;
        while let Some(at) = find(rest, "<") {
            let from = rest.get(at..).unwrap_or("");
            self.text(rest.get(..at).unwrap_or(""));
            match MARKERS.iter().find(|m| from.starts_with(**m)) {
                Some(marker) => {
                    self.special(marker);
                    rest = from.get(marker.len()..).unwrap_or("");
                }
                None => {
                    self.text("<");
                    rest = from.get(1..).unwrap_or("");
                }
            }
        }
        self.text(rest);
    }

    fn open(&mut self, role: Role) {
        let &Frame { start, header_end, before, assistant, .. } = self.frame();
        self.special(start);
        self.text(if role == Role::Assistant { assistant } else { role.name() });
        if let Some(marker) = header_end {
            self.special(marker);
        }
        self.text(before);
    }

    fn close(&mut self) {
        self.special(self.frame().end);
        self.text(self.frame().after);
    }

    /// Writes messages; `opening` tells whether the first one starts the conversation.
    fn messages(&mut self, messages: &[Message<'_>], options: &ChatOptions<'_>, opening: bool) -> Result<()> {
        let results = options.template.style.has_results();
        let uses_tools = |m: &Message<'_>| !m.tool_calls.is_empty() || !results && m.role == Role::Tool;
        check_tools(options, messages.iter().any(uses_tools))?;
        match options.template.style {
            Style::Qwen3 | Style::Qwen3Thinking | Style::Qwen3Instruct => {
                self.qwen3(messages, options, opening)?;
            }
            Style::Plain => {
                let first = messages.first().filter(|m| opening && m.role != Role::System);
                if let (Some(_), Some(system)) = (first, options.template.system) {
                    self.message(Role::System, system);
                }
                for m in messages {
                    self.message(m.role, m.content);
                }
            }
            Style::Llama3 | Style::Llama31 if !HAS_LLAMA3 => {
                return Err(error!(Template { lacks: "Llama 3's messages in this build" }));
            }
            style @ (Style::Llama3 | Style::Llama31) => {
                let mut messages = messages;
                if opening && style == Style::Llama31 {
                    let system = messages.first().filter(|m| m.role == Role::System);
                    self.open(Role::System);
                    self.text(LLAMA31_DATES);
                    self.text(system.map_or("", |m| trim(m.content)));
                    self.close();
                    messages = messages.get(usize::from(system.is_some())..).unwrap_or_default();
                }
                for m in messages {
                    self.message(m.role, trim(m.content));
                }
            }
            Style::Gemma if !HAS_GEMMA => {
                return Err(error!(Template { lacks: "Gemma's messages in this build" }));
            }
            Style::Gemma => self.gemma(messages, opening)?,
            Style::File(_) => return Err(error!(Template { lacks: "form that is built in" })),
        }
        if options.add_generation_prompt {
            self.open(Role::Assistant);
            match options.template.style {
                Style::Qwen3 if options.thinking == Some(false) => self.literal("<think>\n\n</think>\n\n"),
                Style::Qwen3Thinking => self.literal("<think>\n"),
                Style::Qwen3
                | Style::Qwen3Instruct
                | Style::Plain
                | Style::Llama3
                | Style::Llama31
                | Style::Gemma
                | Style::File(_) => {}
            }
        }
        Ok(())
    }

    fn message(&mut self, role: Role, content: &str) {
        self.open(role);
        self.text(content);
        self.close();
    }

    /// Gemma 3's template.
    fn gemma(&mut self, messages: &[Message<'_>], opening: bool) -> Result<()> {
        let mut system = None;
        for (i, m) in messages.iter().enumerate() {
            match m.role {
                Role::System if opening && i == 0 => system = Some(m.content),
                Role::System => return Err(error!(Template { lacks: "system messages after the first" })),
                Role::User | Role::Assistant | Role::Tool => {
                    self.open(m.role);
                    if let Some(system) = system.take() {
                        self.text(system);
                        self.text("\n\n");
                    }
                    self.text(trim(m.content));
                    self.close();
                }
            }
        }
        Ok(())
    }

    /// Qwen3's template, in the order of its branches.
    fn qwen3(&mut self, messages: &[Message<'_>], options: &ChatOptions<'_>, opening: bool) -> Result<()> {
        let first = messages.first().filter(|m| opening && m.role == Role::System).map(|m| m.content);
        let system = first.or(options.template.system.filter(|_| opening && !messages.is_empty()));
        if cfg!(feature = "tools") && opening && !options.tools.is_empty() {
            self.open(Role::System);
            if let Some(system) = system {
                self.text(system);
                self.text("\n\n");
            }
            self.text("# Tools\n\nYou may call one or more functions to assist with the user query.\n\n");
            self.text("You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
            for tool in options.tools {
                self.text("\n");
                json::reformat(tool, &mut self.text)?;
            }
            self.text("\n</tools>\n\nFor each function call, return a json object with function name and ");
            self.literal("arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n");
            self.literal("{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
            self.close();
        } else if let Some(system) = system {
            self.message(Role::System, system);
        }

        // Reasoning is kept from the last real question on.
        let is_query = |m: &Message<'_>| {
            let response =
                m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>");
            m.role == Role::User && !response
        };
        let last_query = messages.iter().rposition(is_query).unwrap_or(messages.len().saturating_sub(1));

        for (i, m) in messages.iter().enumerate() {
            let next = messages.get(i + 1);
            match m.role {
                Role::System if i == 0 && opening => {}
                Role::User | Role::System => self.message(m.role, m.content),
                Role::Assistant => {
                    let current = i > last_query && options.template.style.can_think();
                    let (reasoning, content) = options.template.style.parts(m);
                    let thinks = current && (next.is_none() || !reasoning.is_empty());
                    self.assistant(thinks.then_some(reasoning), content, m.tool_calls);
                }
                Role::Tool => {
                    let previous = i.checked_sub(1).and_then(|i| messages.get(i));
                    if previous.is_none_or(|p| p.role != Role::Tool) {
                        self.special(self.frame().start);
                        self.text("user");
                    }
                    self.literal("\n<tool_response>\n");
                    self.text(m.content);
                    self.literal("\n</tool_response>");
                    if next.is_none_or(|n| n.role != Role::Tool) {
                        self.close();
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a reply, with its thoughts if they are shown.
    fn assistant(&mut self, reasoning: Option<&str>, content: &str, calls: &[ToolCall<'_>]) {
        self.open(Role::Assistant);
        match reasoning {
            Some(reasoning) => {
                self.literal("<think>\n");
                self.text(reasoning.trim_matches('\n'));
                self.literal("\n</think>\n\n");
                self.text(content.trim_start_matches('\n'));
            }
            None => self.text(content),
        }
        if cfg!(feature = "tools") {
            self.tool_calls(calls, content.is_empty());
        }
        self.close();
    }

    /// Writes the calls of a reply, whose content may be empty.
    fn tool_calls(&mut self, calls: &[ToolCall<'_>], at_start: bool) {
        for (i, call) in calls.iter().enumerate() {
            if i > 0 || !at_start {
                self.text("\n");
            }
            self.literal("<tool_call>\n{\"name\": \"");
            self.text(call.name);
            self.text("\", \"arguments\": ");
            self.text(call.arguments);
            self.literal("}\n</tool_call>");
        }
    }

    /// Appends the ids. Text between two markers is encoded in one piece, as in training; a marker that is
    /// not a token of this vocabulary is text.
    fn encode(
        &self,
        tokenizer: &Tokenizer<'_>,
        options: &EncodeOptions,
        buffers: &mut EncodeBuffers,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        for (marker, problem) in self.frame().needs {
            if tokenizer.added_id(marker).is_none() {
                return Err(error!(Unsupported {
                    key: Name::new("tokenizer.ggml.tokens"),
                    found: Name::new(problem),
                    expected: self.frame().expected,
                }));
            }
        }
        let plain = options.plain();
        let mut done = 0;
        for (start, end) in &self.markers {
            let Some(id) = self.text.get(*start..*end).and_then(|marker| tokenizer.added_id(marker)) else {
                continue;
            };
            tokenizer.encode_in(self.text.get(done..*start).unwrap_or(""), &plain, buffers, out);
            out.push(id);
            done = *end;
        }
        tokenizer.encode_in(self.text.get(done..).unwrap_or(""), &plain, buffers, out);
        Ok(())
    }
}
