//! Options of a reply.
#![forbid(unsafe_code)]

use super::calls::CallForm;
use super::described::described;
use super::message::{ChatMessage, lend};
use super::model::ChatModel;
use super::reply::{CallBlocks, ReplyParser};
use super::template::{ChatOptions, Message, Role, encode_unfinished};
use crate::constrain::{Around, Grammar, Whitespace};
use crate::device::Readout;
use crate::error::{Error, Name, Result};
use crate::json;
use crate::sample::SamplerConfig;
use alloc::string::String;
use alloc::vec::Vec;

/// Whether a model that can reason does so before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// Answer at once.
    #[default]
    Off,
    /// Without a limit.
    On,
    /// For at most this many tokens; then the end of reasoning is inserted.
    Budget(usize),
}

impl Thinking {
    /// Whether the model may reason at all.
    pub const fn allowed(self) -> bool {
        match self {
            Thinking::Off => false,
            Thinking::On => true,
            Thinking::Budget(tokens) => tokens > 0,
        }
    }

    pub(super) const fn budget(self) -> usize {
        match self {
            Thinking::Off | Thinking::On => usize::MAX,
            Thinking::Budget(tokens) => tokens,
        }
    }
}

/// Which tools the model may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It must call at least one.
    Required,
    /// It must call the function of this name.
    Function(String),
}

/// The form of a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// A JSON value that matches this JSON Schema.
    JsonSchema(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that this regular expression matches from beginning to end.
    Regex(String),
    /// A text of this grammar in GBNF.
    Grammar(String),
}

/// Handling of a conversation that is longer than the session can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// A prompt that does not fit is an error; a reply ends with
    /// [`Reason::ContextFull`](crate::generate::Reason::ContextFull).
    #[default]
    Error,
    /// Drops the oldest exchanges, never system messages or the last message, and computes the rest again.
    Trim {
        /// Tokens to keep free for the reply; at most half of the context.
        reserve: usize,
        /// Tokens to free once something must be dropped, so that the next turns fit too; at most half of the
        /// context.
        free: usize,
    },
    /// Drops the older half of the tokens after the first `keep`, as often as needed.
    Shift {
        /// Tokens that are never dropped; fewer than the session can hold. `None` keeps all system messages,
        /// but at least the first four tokens and at most half of the context.
        keep: Option<usize>,
    },
}

impl OverflowPolicy {
    /// [`OverflowPolicy::Trim`] for chats: dropping turns costs a new prefill, so half of the context is freed.
    pub const TRIM: OverflowPolicy = OverflowPolicy::Trim { reserve: Self::RESERVE, free: usize::MAX };

    /// Tokens to keep free for a reply whose length is not limited.
    const RESERVE: usize = 256;

    /// [`OverflowPolicy::Trim`] that leaves out no more than a reply of at most `max_tokens` needs.
    pub fn trim_for(max_tokens: Option<usize>) -> OverflowPolicy {
        let room = max_tokens.unwrap_or(Self::RESERVE);
        OverflowPolicy::Trim { reserve: room, free: room }
    }
}

/// A reply that the model continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// Index of its first token in the prompt.
    pub start: usize,
    /// As the model writes it, markers included.
    pub text: String,
    /// Whether thoughts were allowed.
    pub thinks: bool,
}

/// The tokens of a prompt, which a host can make on another thread than the one that computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// `None` for raw text.
    pub(super) messages: Option<Vec<ChatMessage>>,
    pub(super) tokens: Vec<u32>,
    pub(super) unfinished: Option<Unfinished>,
}

impl Encoded {
    /// Encodes a conversation. The reply must be begun with the same options.
    ///
    /// # Errors
    /// As [`TurnOptions::encode`].
    pub fn new(model: &ChatModel<'_>, messages: Vec<ChatMessage>, options: &TurnOptions) -> Result<Encoded> {
        let (tokens, unfinished) = options.encode_prompt(model, &messages)?;
        Ok(Encoded { messages: Some(messages), tokens, unfinished })
    }

    /// A raw text to continue.
    pub(super) fn text(tokens: Vec<u32>) -> Encoded {
        Encoded { messages: None, tokens, unfinished: None }
    }

    /// Its tokens, up to where the reply begins or continues.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Options of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnOptions {
    /// Sampling options.
    pub sampler: SamplerConfig,
    /// What is added to the logits of tokens, `(token, bias)`.
    pub logit_bias: Vec<(u32, f32)>,
    /// Whether the random sequence starts at the sampler's seed, so that the same request has the same reply.
    /// Otherwise it continues from the previous turn.
    pub reseed: bool,
    /// Maximum number of tokens to generate.
    pub max_tokens: Option<usize>,
    /// Texts that end the reply. They are not part of it.
    pub stop_strings: Vec<String>,
    /// Measures log-probabilities, with this many of the most likely tokens.
    pub logprobs: Option<usize>,
    /// Whether the model may reason.
    pub thinking: Thinking,
    /// Descriptions of the functions that the model may call, each a JSON text. [`Grammar::tool_calls`] says how `strict`
    /// counts.
    pub tools: Vec<String>,
    /// Whether a template without tools gets them described in the system message, in the form of Hermes; otherwise they are
    /// refused with one. Without effect on templates with tools.
    pub describe_tools: bool,
    /// Which of the tools it may call.
    pub tool_choice: ToolChoice,
    /// Whether a reply may have several calls; otherwise the first one ends it.
    pub parallel_tool_calls: bool,
    /// The format of a reply. With tools, one that has no call; calls then come first and alone.
    pub response_format: ResponseFormat,
    /// White space in a JSON reply. Tool calls may always have it.
    pub json_whitespace: Whitespace,
    /// Whether the reply continues the last message, which is one of the model that was cut off, instead of
    /// answering it.
    pub continue_final_message: bool,
    /// Handling of a full session.
    pub overflow: OverflowPolicy,
    /// Maximum number of prompt tokens per decoding step.
    pub batch: usize,
}

impl Default for TurnOptions {
    fn default() -> Self {
        TurnOptions {
            sampler: SamplerConfig::default(),
            logit_bias: Vec::new(),
            reseed: true,
            max_tokens: None,
            stop_strings: Vec::new(),
            logprobs: None,
            thinking: Thinking::Off,
            tools: Vec::new(),
            describe_tools: false,
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            response_format: ResponseFormat::Text,
            json_whitespace: Whitespace::None,
            continue_final_message: false,
            overflow: OverflowPolicy::Error,
            batch: 256,
        }
    }
}

impl TurnOptions {
    /// The grammar that constrains replies, if any: calls of tools, the response format, or one of the two.
    ///
    /// # Errors
    /// Those of the grammar's constructor; [`Error::Argument`] for a choice of a tool that does not exist.
    pub fn grammar(&self) -> Result<Option<Grammar>> {
        self.grammar_in(CallForm::Hermes)
    }

    /// As [`TurnOptions::grammar`], with calls of this form.
    ///
    /// # Errors
    /// As [`TurnOptions::grammar`].
    pub fn grammar_in(&self, form: CallForm) -> Result<Option<Grammar>> {
        let format = match &self.response_format {
            ResponseFormat::Text => None,
            ResponseFormat::JsonObject => Some(Grammar::json_object(self.json_whitespace)),
            ResponseFormat::JsonSchema(schema) => Some(Grammar::json_schema(schema, self.json_whitespace)?),
            ResponseFormat::Choice(choices) => Some(Grammar::choices(choices)?),
            ResponseFormat::Regex(expression) => Some(Grammar::regex(expression)?),
            ResponseFormat::Grammar(text) => Some(Grammar::gbnf(text)?),
        };
        let mut tools: Vec<(u32, &str)> = (0..).zip(self.tools.iter().map(String::as_str)).collect();
        if let ToolChoice::Function(name) = &self.tool_choice {
            tools.retain(|(_, tool)| function_name(tool).as_ref() == Some(name));
        }
        let around = match (&self.tool_choice, &format) {
            (ToolChoice::Auto, _) if tools.is_empty() => return Ok(format),
            (ToolChoice::Auto, Some(format)) => Around::Or(format),
            (ToolChoice::Auto, None) => Around::Text,
            (ToolChoice::Required | ToolChoice::Function(_), _) => Around::Nothing,
        };
        if tools.is_empty() {
            let (name, problem) = (Name::new("tool_choice"), "asks for a tool that is not there");
            return Err(error!(Argument { name, problem }));
        }
        if matches!(around, Around::Text) && !form.spelling().in_text {
            // What begins a call here may also begin a text.
            return Ok(None);
        }
        Grammar::calls(&tools, around, self.parallel_tool_calls, &form.spelling()).map(Some)
    }

    /// The tokens of a conversation as the model sees it with these options, up to where its reply begins or continues.
    ///
    /// # Errors
    /// As [`encode`](super::encode) and [`Renderer::render`](super::Renderer::render); [`Error::Argument`] if there is no reply to continue.
    pub fn encode(&self, model: &ChatModel<'_>, messages: &[ChatMessage]) -> Result<Vec<u32>> {
        Ok(self.encode_prompt(model, messages)?.0)
    }

    /// As [`TurnOptions::encode`], with the reply to continue.
    pub(super) fn encode_prompt(
        &self,
        model: &ChatModel<'_>,
        messages: &[ChatMessage],
    ) -> Result<(Vec<u32>, Option<Unfinished>)> {
        lend(messages, |messages| self.encode_lent(model, messages))
    }

    /// As [`TurnOptions::encode_prompt`], of messages that are borrowed already.
    pub(super) fn encode_lent(
        &self,
        model: &ChatModel<'_>,
        messages: &[Message<'_>],
    ) -> Result<(Vec<u32>, Option<Unfinished>)> {
        let tools = self.tool_list();
        if self.describes(model) {
            let shown = |messages: &[Message<'_>]| self.encode_shown(model, messages, &[]);
            return described(messages, &tools, model.template, shown);
        }
        self.encode_shown(model, messages, &tools)
    }

    /// Whether tools are described in a message.
    pub(super) fn describes(&self, model: &ChatModel<'_>) -> bool {
        self.describe_tools && !self.tools.is_empty() && !model.template.style.has_tools()
    }

    /// As [`TurnOptions::encode_lent`], of messages as the template shows them.
    fn encode_shown(
        &self,
        model: &ChatModel<'_>,
        messages: &[Message<'_>],
        tools: &[&str],
    ) -> Result<(Vec<u32>, Option<Unfinished>)> {
        let mut template = self.template(model, tools);
        if !self.continue_final_message {
            return Ok((model.encode(messages, &template)?, None));
        }
        let Some((reply, before)) = messages.split_last().filter(|(last, _)| last.role == Role::Assistant)
        else {
            let problem = "needs a reply as the last message";
            return Err(error!(Argument { name: Name::new("continue_final_message"), problem }));
        };
        // The end may be a character that was cut off.
        let whole = |text: &'_ str| text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        let (mut reasoning, mut content) = model.template.style.parts(reply);
        let mut thinks = !reasoning.is_empty();
        if !reply.tool_calls.is_empty() {
            // Nothing was cut off.
        } else if !content.is_empty() {
            content = content.get(..whole(content)).unwrap_or_default();
        } else {
            reasoning = reasoning.get(..whole(reasoning)).unwrap_or_default();
            thinks |= self.thinking.allowed();
        }
        let reply = &Message { reasoning: Some(reasoning), content, ..*reply };
        template.thinking = Some(thinks);
        let mut tokens = model.encode(before, &template)?;
        let start = tokens.len();
        let text = encode_unfinished(model.tokenizer, reply, &template, &mut tokens)?;
        Ok((tokens, Some(Unfinished { start, text, thinks })))
    }

    pub(super) fn tool_list(&self) -> Vec<&str> {
        self.tools.iter().map(String::as_str).collect()
    }

    /// The options of the chat template, with [`TurnOptions::tool_list`].
    pub(super) fn template<'t>(&self, model: &ChatModel<'_>, tools: &'t [&'t str]) -> ChatOptions<'t> {
        let thinking = Some(self.thinking.allowed());
        ChatOptions { template: model.template, thinking, tools, ..ChatOptions::default() }
    }

    /// The logits that the sampler can choose from, for devices where some are cheaper than all. Penalties change the
    /// order; log-probabilities and constraints need all.
    pub fn readout(&self) -> Readout {
        let SamplerConfig { temperature, top_k, .. } = self.sampler;
        let ordered = self.sampler.repetition_penalty == 1.0
            && self.sampler.presence_penalty == 0.0
            && self.sampler.frequency_penalty == 0.0
            && self.sampler.dry_multiplier == 0.0
            && self.logit_bias.is_empty();
        if !ordered || self.logprobs.is_some() || self.is_constrained() || !self.tools.is_empty() {
            Readout::Logits
        } else if temperature == 0.0 {
            Readout::Best
        } else if top_k > 0 {
            Readout::Top(top_k)
        } else {
            Readout::Logits
        }
    }

    /// A parser of replies after the model's prompt, which may have opened their thoughts, with or without thinking. In a format, and if no tool is
    /// offered, text that looks like a marker is text.
    pub(super) fn parser(&self, model: &ChatModel<'_>, thinking: bool) -> ReplyParser {
        let form = model.call_form();
        let mut parser = ReplyParser::new(match (self.is_constrained(), !self.tools.is_empty()) {
            (true, true) => CallBlocks::Leading,
            (false, true) => CallBlocks::Valid,
            (_, false) => CallBlocks::Text,
        })
        .with_form(form, &self.tools);
        if model.template.style.opens_thoughts(thinking) {
            parser.open_thoughts();
        }
        parser
    }

    /// Whether the reply has a form.
    pub(super) fn is_constrained(&self) -> bool {
        self.response_format != ResponseFormat::Text
    }
}

/// The function name in a tool description.
pub fn function_name(tool: &str) -> Option<String> {
    let tool = json::Value::parse(tool).ok()?;
    tool.get("function").unwrap_or(tool).get("name")?.as_string()
}
