//! The options of a turn.

use crate::argument;
use crate::code::Result;
use crate::options::{
    SHOHIN_FORMAT_CHOICE, SHOHIN_FORMAT_GRAMMAR, SHOHIN_FORMAT_JSON_OBJECT, SHOHIN_FORMAT_JSON_SCHEMA,
    SHOHIN_FORMAT_REGEX, SHOHIN_FORMAT_TEXT, SHOHIN_NO_LOGPROBS, SHOHIN_THINKING_OFF, SHOHIN_THINKING_ON,
    shohin_chat_options, unknown,
};
use shohin::TurnOptions;
use shohin::core::chat::{OverflowPolicy, ResponseFormat, Thinking, ToolChoice};

/// The number of most likely tokens that can be asked for, as in OpenAI's API.
const MAX_TOP: usize = 20;

/// The options of a turn.
///
/// # Safety
/// As [`argument::read`]; texts as [`argument::text`] and [`argument::texts`].
pub(crate) unsafe fn turn(options: *const shohin_chat_options) -> Result<TurnOptions> {
    // SAFETY: the same.
    let options = unsafe { argument::read(options) }?;
    // SAFETY: the same.
    let text = || unsafe { argument::text(options.format_text, options.format_text_len, "format text") };
    let response_format = match options.format {
        SHOHIN_FORMAT_TEXT => ResponseFormat::Text,
        SHOHIN_FORMAT_JSON_OBJECT => ResponseFormat::JsonObject,
        SHOHIN_FORMAT_JSON_SCHEMA => ResponseFormat::JsonSchema(text()?.into()),
        SHOHIN_FORMAT_REGEX => ResponseFormat::Regex(text()?.into()),
        SHOHIN_FORMAT_GRAMMAR => ResponseFormat::Grammar(text()?.into()),
        // SAFETY: the same.
        SHOHIN_FORMAT_CHOICE => ResponseFormat::Choice(unsafe {
            argument::texts(options.choices, options.choice_count, "choices")
        }?),
        found => return unknown("format", found, "one of SHOHIN_FORMAT_TEXT to SHOHIN_FORMAT_CHOICE"),
    };
    let logprobs = match options.logprobs {
        SHOHIN_NO_LOGPROBS => None,
        top => match usize::try_from(top).ok().filter(|top| *top <= MAX_TOP) {
            Some(top) => Some(top),
            None => return unknown("logprobs", top, "SHOHIN_NO_LOGPROBS, or a number from 0 to 20"),
        },
    };
    if !matches!(options.describe_tools, 0 | 1) {
        return unknown("describe_tools", options.describe_tools, "0 or 1");
    }
    let thinking = match options.thinking {
        SHOHIN_THINKING_OFF => Thinking::Off,
        SHOHIN_THINKING_ON => Thinking::On,
        tokens => match usize::try_from(tokens) {
            Ok(tokens) => Thinking::Budget(tokens),
            Err(_) => return unknown("thinking", tokens, "SHOHIN_THINKING_ON, 0 or a number of tokens"),
        },
    };
    // SAFETY: the same.
    let (stop_strings, tools, choice) = unsafe {
        let choice = match options.tool_choice.is_null() {
            true => "",
            false => argument::text(options.tool_choice, options.tool_choice_len, "tool_choice")?,
        };
        let stop = argument::texts(options.stop, options.stop_count, "stop texts")?;
        (stop, argument::texts(options.tools, options.tool_count, "tools")?, choice)
    };
    let tool_choice = match choice {
        "" | "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        name => ToolChoice::Function(name.into()),
    };
    let turn = TurnOptions {
        sampler: options.sampler(),
        max_tokens: Some(options.max_tokens as usize).filter(|most| *most > 0),
        stop_strings,
        logprobs,
        thinking,
        tools,
        describe_tools: options.describe_tools == 1,
        tool_choice,
        response_format,
        overflow: OverflowPolicy::TRIM,
        ..TurnOptions::default()
    };
    turn.grammar().map_err(shohin::Error::from)?;
    Ok(turn)
}
