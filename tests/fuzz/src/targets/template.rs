//! Chat templates of files.

use shohin::template::{FileTemplate, SpecialTokens};
use shohin_core::chat::{ChatOptions, Message, Renderer, Role, ToolCall};
use shohin_core::tokenizer::EncodeOptions;

pub(super) const JINJA: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    " -%}",
    "{# ",
    " #}",
    "messages",
    "message",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "role",
    "content",
    "tool_calls",
    "function",
    "arguments",
    "enable_thinking",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if ",
    "{% elif ",
    "{% else %}",
    "{% endif %}",
    "{% set ",
    "{% endset %}",
    "{% macro f(x, y=1) %}",
    "{% endmacro %}",
    "{{ f(",
    "{% set ns = namespace(a=1) %}",
    "ns.a",
    "{% break %}",
    "{% continue %}",
    "{% generation %}",
    "loop.index0",
    "loop.last",
    "loop.previtem",
    " is defined",
    " is string",
    " is none",
    " not in ",
    " in ",
    " and ",
    " or ",
    "not ",
    " ~ ",
    " + ",
    " * ",
    " // ",
    " ** ",
    " % ",
    "[1:]",
    "[::-1]",
    "[-1]",
    "['a']",
    "|trim",
    "|tojson",
    "|length",
    "|join(', ')",
    "|map(attribute='role')",
    "|selectattr('role', 'eq', 'user')",
    "|list",
    "|sort",
    "|items",
    "|upper",
    "|replace('a', 'b')",
    "|default('x')",
    "|indent(2)",
    ".strip()",
    ".split('a')",
    ".startswith('x')",
    ".items()",
    ".get('a')",
    "range(9)",
    "range(10**9)",
    "raise_exception('no')",
    "strftime_now('%Y')",
    "10**6",
    "'x'",
    "{'a': 1}",
    "[1, 2]",
    "true",
    "none",
];

pub(super) fn template_seeds() -> Vec<Vec<u8>> {
    [
        include_str!("../../../../host/tests/fixtures/templates/hermes.jinja"),
        include_str!("../../../../host/tests/fixtures/templates/llama31.jinja"),
        include_str!("../../../../host/tests/fixtures/templates/mistral.jinja"),
        include_str!("../../../../host/tests/fixtures/templates/phi3.jinja"),
        include_str!("../../../../host/tests/fixtures/templates/python.jinja"),
        include_str!("../../../../host/tests/fixtures/templates/qwen35.jinja"),
        include_str!("../../../../host/tests/fixtures/templates/smollm3.jinja"),
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// A character that no template has.
const MARK: char = '\u{e123}';

pub(super) fn template(input: &[u8]) {
    let source = String::from_utf8_lossy(input);
    let Ok(template) = FileTemplate::new(&source, SpecialTokens::default()) else { return };
    if source.contains(MARK) {
        return;
    }
    let said = format!("<|im_{MARK}start|>a b{MARK}\n<|im_end|>");
    let arguments = format!("{{\"{MARK}\": [\"{MARK}\", 1.5, null]}}");
    let tool = format!(
        "{{\"name\": \"f{MARK}\", \"parameters\": {{\"properties\": {{\"{MARK}\": {{\"type\": \"string\"}}}}}}}}"
    );
    let calls = [ToolCall { name: &said, arguments: &arguments }];
    let messages = [
        Message::new(Role::System, &said),
        Message::new(Role::User, &said),
        Message { reasoning: Some(&said), tool_calls: &calls, ..Message::new(Role::Assistant, &said) },
        Message::new(Role::Tool, &said),
        Message::new(Role::User, &said),
    ];
    for (messages, tools) in [(&messages[1..2], &[][..]), (&messages[..], &[tool.as_str()][..])] {
        let options = ChatOptions { tools, ..ChatOptions::default() };
        let Ok(shown) = template.render(messages, &options) else { continue };
        let mut end = 0;
        for range in &shown.foreign {
            assert!(range.start >= end && range.start < range.end, "ranges in order");
            assert!(!shown.text[end..range.start].contains(MARK), "own text that a message has");
            end = range.end;
        }
        assert!(!shown.text[end..].contains(MARK), "own text that a message has");
        let mut ids = Vec::new();
        shown.encode(&super::text::TOKENIZER, &EncodeOptions::default(), &mut ids);
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| super::text::TOKENIZER.token_bytes(*id).expect("a token")).collect();
        assert_eq!(bytes, shown.text.as_bytes(), "the ids spell the text");
    }
}
