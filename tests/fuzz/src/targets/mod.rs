//! The targets.

#[cfg(not(target_family = "wasm"))]
mod adapter;
mod agree;
mod file;
#[cfg(not(target_family = "wasm"))]
mod folder;
#[cfg(not(target_family = "wasm"))]
mod http;
#[cfg(not(target_family = "wasm"))]
mod state;
#[cfg(not(target_family = "wasm"))]
mod template;
mod text;

use crate::Target;
use crate::mutate::Form;

const SCHEMA: &[&str] = &[
    "\"type\":",
    "\"object\"",
    "\"array\"",
    "\"string\"",
    "\"integer\"",
    "\"number\"",
    "\"boolean\"",
    "\"null\"",
    "\"properties\":",
    "\"required\":",
    "\"additionalProperties\":",
    "\"items\":",
    "\"prefixItems\":",
    "\"minItems\":",
    "\"maxItems\":",
    "\"minLength\":",
    "\"maxLength\":",
    "\"pattern\":",
    "\"format\":",
    "\"date-time\"",
    "\"ipv6\"",
    "\"minimum\":",
    "\"maximum\":",
    "\"exclusiveMinimum\":",
    "\"multipleOf\":",
    "\"enum\":",
    "\"const\":",
    "\"anyOf\":",
    "\"oneOf\":",
    "\"allOf\":",
    "\"$ref\":",
    "\"#\"",
    "\"#/$defs/a\"",
    "\"$defs\":",
    "true",
    "false",
];

const PATTERN: &[&str] = &[
    "^", "$", ".", "*", "+", "?", "{2,3}", "{0,}", "{1000}", "(", ")", "(?:", "(?=", "|", "[^", "[", "]",
    "a-z", "\\d", "\\w", "\\s", "\\S", "\\D", "\\W", "\\u00e9", "\\x41", "\\n", "\\b", "\\p{L}", "\\1", "*?",
    "é", "🐢",
];

const GBNF: &[&str] = &[
    "root ::= ",
    "a ::= ",
    "\n",
    "\"x\"",
    "[a-z]",
    "[^\\n]",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{1,3}",
    "{0,}",
    ".",
    "# note\n",
    "\\x41",
    "\\u00e9",
    "\\U0001F422",
    "<think>",
    "root",
    " a ",
];

const REQUEST: &[&str] = &[
    "\"model\":",
    "\"messages\":",
    "\"role\":",
    "\"user\"",
    "\"assistant\"",
    "\"system\"",
    "\"tool\"",
    "\"developer\"",
    "\"content\":",
    "\"type\":",
    "\"text\"",
    "\"input_text\"",
    "\"tool_calls\":",
    "\"tool_call_id\":",
    "\"function\":",
    "\"arguments\":",
    "\"{}\"",
    "\"name\":",
    "\"tools\":",
    "\"tool_choice\":",
    "\"auto\"",
    "\"required\"",
    "\"none\"",
    "\"response_format\":",
    "\"json_schema\"",
    "\"json_object\"",
    "\"schema\":",
    "\"stream\":",
    "\"stream_options\":",
    "\"max_tokens\":",
    "\"max_output_tokens\":",
    "\"temperature\":",
    "\"top_p\":",
    "\"top_k\":",
    "\"seed\":",
    "\"stop\":",
    "\"logprobs\":",
    "\"top_logprobs\":",
    "\"n\":",
    "\"input\":",
    "\"instructions\":",
    "\"prompt\":",
    "\"echo\":",
    "\"encoding_format\":",
    "\"base64\"",
    "\"input_schema\":",
    "\"tool_use\"",
    "\"tool_result\"",
    "\"is_error\":",
    "\"thinking\":",
    "\"budget_tokens\":",
    "\"stop_sequences\":",
    "\"function_call\"",
    "\"function_call_output\"",
    "\"call_id\":",
    "\"output\":",
    "\"reasoning\"",
];

const REPLY: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "\n",
    "\n\n",
    "{\"name\":\"f\",\"arguments\":{}}",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "\0",
    "<tool_response>",
    "<thi",
    "</too",
    "user\n",
    "assistant\n",
    "<function=f>",
    "<parameter=x>\n",
    "\n</parameter>\n",
    "</function>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "```json\n",
    "[{\"name\":\"f\",\"parameters\":{}}]",
];

#[cfg(not(target_family = "wasm"))]
const HTTP: &[&str] = &[
    "GET ",
    "POST ",
    "OPTIONS ",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/tiny",
    "/metrics",
    "/health",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "Host: x\r\n",
    "Content-Length: 2\r\n",
    "Content-Length: 18446744073709551615\r\n",
    "Transfer-Encoding: chunked\r\n",
    "\r\n",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "ffffffffffffffff\r\n",
    "Origin: http://evil\r\n",
    "Connection: close\r\n",
    "Expect: 100-continue\r\n",
    "Authorization: Bearer x\r\n",
    "Upgrade: websocket\r\n",
    "%00",
    "%",
    "\t",
    "Content-Type: application/json\r\n",
    "{}",
    "\"max_tokens\":1",
];

macro_rules! targets {
    ($($(#[doc = $about:literal])* $(#[cfg($when:meta)])? $module:ident::$name:ident, $seeds:path, $form:expr, $quick:literal;)*) => {
        pub(crate) const ALL: &[Target] = &[$($(#[cfg($when)])? Target {
            name: stringify!($name),
            about: concat!($($about),*),
            run: $module::$name,
            seeds: $seeds,
            form: $form,
            quick: $quick,
        }),*];
    };
}

targets! {
    /// JSON: what serde_json reads is read, and written so that it means the same
    text::json, text::json_seeds, Form::Text(SCHEMA), 20_000;
    /// a reply read whole, and piece by piece
    text::reply, text::reply_seeds, Form::Text(REPLY), 20_000;
    /// bodies of requests of OpenAI and Anthropic: an error of bounded length, or messages that can be kept
    text::requests, text::request_seeds, Form::Text(REQUEST), 10_000;
    /// any bytes: an error, or a file whose every accessor works, and memory as in G2
    file::gguf_parse, file::gguf_seeds, Form::Gguf, 3_000;
    /// whole and streamed, cut anywhere: both readers agree
    file::gguf_split, file::gguf_seeds, Form::Gguf, 1_500;
    /// a file that can be read can be written, and reads back the same
    file::gguf_round_trip, file::gguf_seeds, Form::Gguf, 2_000;
    /// models in several files: mapped and joined are the same
    file::parts, file::part_seeds, Form::Parts, 1_000;
    /// conversations: no text forms a control token
    text::chat, text::reply_seeds, Form::Text(REPLY), 5_000;
    /// any vocabulary, any text: the ids spell the text
    file::tokenizer, file::tokenizer_seeds, Form::Gguf, 300;
    /// a file that loads also runs, and a prompt gives the logits of its tokens one by one
    file::model_load, file::model_seeds, Form::Gguf, 300;
    /// any bytes as the checkpoint of a training: an error, or one that is written and read the same
    #[cfg(not(target_family = "wasm"))]
    adapter::checkpoint, adapter::checkpoint_seeds, Form::Bytes, 5_000;
    /// facts that an adapter was taught
    #[cfg(not(target_family = "wasm"))]
    adapter::facts, adapter::facts_seeds, Form::Text(adapter::FACTS), 5_000;
    /// conversations to learn from: an error, or replies
    #[cfg(not(target_family = "wasm"))]
    adapter::chats, adapter::chats_seeds, Form::Text(adapter::CHATS), 1_000;
    /// any GGUF file as an adapter: an error, or a model that runs with it
    #[cfg(not(target_family = "wasm"))]
    adapter::adapter, adapter::adapter_seeds, Form::Gguf, 300;
    /// any chat template: an error, or conversations in which texts of messages are told from the template's own
    #[cfg(not(target_family = "wasm"))]
    template::template, template::template_seeds, Form::Text(template::JINJA), 300;
    /// any regular expression: an error, or one whose every walk ends
    text::pattern, text::pattern_seeds, Form::Text(PATTERN), 500;
    /// any grammar in GBNF: an error, or one whose every walk ends
    text::gbnf, text::gbnf_seeds, Form::Text(GBNF), 500;
    /// any JSON Schema: an error, or a grammar whose every walk ends in JSON
    text::schema, text::schema_seeds, Form::Text(SCHEMA), 500;
    /// a Hugging Face folder with any safetensors file
    #[cfg(not(target_family = "wasm"))]
    folder::safetensors, folder::safetensors_seeds, Form::SafeTensors, 300;
    /// a Hugging Face folder with any config.json
    #[cfg(not(target_family = "wasm"))]
    folder::config, folder::config_seeds, Form::Text(folder::CONFIG), 300;
    /// a Hugging Face folder with any tokenizer.json
    #[cfg(not(target_family = "wasm"))]
    folder::tokenizer_json, folder::tokenizer_seeds, Form::Text(folder::TOKENIZER), 300;
    /// a Hugging Face folder with any ONNX file
    #[cfg(not(target_family = "wasm"))]
    folder::onnx, folder::onnx_seeds, Form::Protobuf, 300;
    /// an adapter as PEFT saves it, with any adapter_config.json
    #[cfg(not(target_family = "wasm"))]
    adapter::peft_config, adapter::peft_config_seeds, Form::Text(adapter::PEFT), 300;
    /// an adapter as PEFT saves it, with any safetensors file
    #[cfg(not(target_family = "wasm"))]
    adapter::peft_weights, adapter::peft_weights_seeds, Form::SafeTensors, 300;
    /// conversations in files: an error, or one that goes on
    #[cfg(not(target_family = "wasm"))]
    state::snapshot, state::snapshot_seeds, Form::Bytes, 1_000;
    /// repacked weights on disk: used, or replaced
    #[cfg(not(target_family = "wasm"))]
    state::weight_cache, state::weight_cache_seeds, Form::Bytes, 100;
    /// any bytes on a connection: an answer in HTTP, and the server goes on
    #[cfg(not(target_family = "wasm"))]
    http::http, http::http_seeds, Form::Text(HTTP), 150;
    /// models of any shape: instruction sets, layouts, batches and kept sessions agree to the bit, cache formats within bounds
    agree::agree, agree::agree_seeds, Form::Bytes, 15;
}
