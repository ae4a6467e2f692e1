//! Tool calls in every form: read whole and in pieces, and written under constraints.
#![cfg(feature = "tools")]

use shohin_core::chat::{CallBlocks, CallForm, Reply, ReplyParser, ToolChoice, TurnOptions};
use shohin_core::constrain::{Constraint, Vocabulary};
use std::sync::Arc;

const FORMS: [CallForm; 7] = [
    CallForm::Hermes,
    CallForm::List,
    CallForm::Xml,
    CallForm::Llama3,
    CallForm::Gemma,
    CallForm::Mistral,
    CallForm::MistralNamed,
];

fn tools() -> Vec<String> {
    let add = r#"{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "note": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}, "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}, "required": ["a", "note"]}}}"#;
    vec![add.into(), r#"{"name": "now", "parameters": {"type": "object", "properties": {}}}"#.into()]
}

fn parser(form: CallForm) -> ReplyParser {
    ReplyParser::new(CallBlocks::Valid).with_form(form, &tools())
}

/// Content, and names and arguments of calls.
fn read(form: CallForm, text: &str) -> (String, Vec<(String, String)>) {
    let mut whole = parser(form);
    whole.finish(text);
    // In pieces of every length.
    for size in 1..=text.len().min(9) {
        let (mut parser, mut sum) = (parser(form), Reply::default());
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(size) {
            let delta = parser.push(&piece.iter().collect::<String>());
            sum.content.push_str(&delta.content);
            sum.calls.extend_from_slice(&delta.calls);
        }
        let delta = parser.finish("");
        sum.content.push_str(&delta.content);
        sum.calls.extend_from_slice(&delta.calls);
        assert_eq!(
            (&sum.content, &sum.calls),
            (&whole.reply().content, &whole.reply().calls),
            "{form:?} {text:?}"
        );
        assert_eq!(parser.reply(), whole.reply());
    }
    let reply = whole.reply();
    let calls = reply.calls.iter().map(|call| {
        let (name, arguments) = Reply::call(call).expect("a call");
        (name, arguments.to_owned())
    });
    (reply.content.clone(), calls.collect())
}

#[test]
fn calls_of_every_form_are_read() {
    use CallForm::*;
    let two = [("add", r#"{"a": 1, "note": "x"}"#), ("now", "{}")];
    let one = &two[..1];
    for (form, text, content, calls) in [
        (
            Hermes,
            "Hm.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"note\": \"x\"}}\n</tool_call>",
            "Hm.",
            one,
        ),
        (
            List,
            r#"<tool_call>[{"name": "add", "arguments": {"a": 1, "note": "x"}}, {"name": "now", "arguments": {}}]</tool_call>"#,
            "",
            &two,
        ),
        (
            List,
            "Hm.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"note\": \"x\"}}\n</tool_call>",
            "Hm.",
            one,
        ),
        (List, r#"<tool_call>[{"name": "add", "arguments": {"a": 1, "note": "x"}}]"#, "", one),
        (
            Xml,
            "Hm.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nx\n</parameter>\n</function>\n</tool_call>",
            "Hm.",
            one,
        ),
        (
            Xml,
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nx\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            "",
            &two,
        ),
        (Llama3, r#"{"name": "add", "parameters": {"a": 1, "note": "x"}}"#, "", one),
        (
            Llama3,
            "<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1, \"note\": \"x\"}}; {\"name\": \"now\", \"parameters\": {}}",
            "",
            &two,
        ),
        (
            Llama3,
            "\n {\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"a\": 1, \"note\": \"x\"}} ",
            "",
            one,
        ),
        (Gemma, "```json\n{\"name\": \"add\", \"parameters\": {\"a\": 1, \"note\": \"x\"}}\n```", "", one),
        (
            Gemma,
            "```tool_code\n{\"name\": \"add\", \"parameters\": {\"a\": 1, \"note\": \"x\"}}\n```\n",
            "",
            one,
        ),
        (Gemma, r#"{"name": "add", "parameters": {"a": 1, "note": "x"}}"#, "", one),
        (
            Mistral,
            r#"[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "note": "x"}}, {"name": "now", "arguments": {}}]"#,
            "",
            &two,
        ),
        (
            Mistral,
            r#"Hm.[TOOL_CALLS][{"name": "add", "arguments": "{\"a\": 1, \"note\": \"x\"}", "id": "000000001"}]"#,
            "Hm.",
            one,
        ),
        (
            MistralNamed,
            r#"[TOOL_CALLS]add[ARGS]{"a": 1, "note": "x"}[TOOL_CALLS]now[CALL_ID]000000002[ARGS]{}"#,
            "",
            &two,
        ),
        (MistralNamed, r#"Hm.[TOOL_CALLS]add{"a": 1, "note": "x"}"#, "Hm.", one),
        // What is no call is text.
        (List, "See <tool_call>nothing</tool_call> here", "See <tool_call>nothing</tool_call> here", &[]),
        (
            Xml,
            "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
            "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
            &[],
        ),
        (
            Xml,
            "<tool_call>\n<function=add>\n<parameter=a>\n1",
            "<tool_call>\n<function=add>\n<parameter=a>\n1",
            &[],
        ),
        (Llama3, r#"{"answer": [1, 2]} it is"#, r#"{"answer": [1, 2]} it is"#, &[]),
        (
            Llama3,
            "It is {\"name\": \"now\", \"parameters\": {}}",
            "It is {\"name\": \"now\", \"parameters\": {}}",
            &[],
        ),
        (Llama3, r#"{"name": "now""#, r#"{"name": "now""#, &[]),
        (Gemma, "```rust\nfn main() {}\n```", "```rust\nfn main() {}\n```", &[]),
        (Gemma, "``", "``", &[]),
        (Gemma, "", "", &[]),
        (Mistral, "[TOOL_CALLS] none", "[TOOL_CALLS] none", &[]),
        (Mistral, "a [TOOL_CA", "a [TOOL_CA", &[]),
        (MistralNamed, "[TOOL_CALLS]\"x\"{}", "[TOOL_CALLS]\"x\"{}", &[]),
    ] {
        let found = read(form, text);
        let expected = calls.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string()));
        assert_eq!(found, (content.to_string(), expected.collect()), "{form:?} {text}");
    }
}

#[test]
fn values_of_elements_have_the_types_of_their_parameters() {
    let call = |parameter: &str, value: &str| {
        format!(
            "<tool_call>\n<function=add>\n<parameter={parameter}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    for (parameter, value, json) in [
        ("a", "12", "12"),
        ("a", "much", "\"much\""),
        ("note", "12", "\"12\""),
        ("note", "true", "\"true\""),
        ("note", "", "\"\""),
        (
            "note",
            "line\n\n</parameter> \"quoted\" </tool_call> {",
            "\"line\\n\\n</parameter> \\\"quoted\\\" </tool_call> {\"",
        ),
        ("other", "{\"b\": [1, null]}", "{\"b\": [1, null]}"),
        ("other", "\"text\"", "\"\\\"text\\\"\""),
    ] {
        let (content, calls) = read(CallForm::Xml, &call(parameter, value));
        assert_eq!(content, "");
        assert_eq!(calls, [("add".to_string(), format!("{{\"{parameter}\": {json}}}"))], "{value:?}");
    }
}

#[test]
fn calls_that_must_be_made_are_of_the_form_and_can_be_read() {
    const END: u32 = 256;
    let texts = (0..=255u8).map(Some).chain([None]);
    let vocabulary = Arc::new(Vocabulary::from_texts(texts, &[END]));
    let mut state = 7_u32;
    let mut pick = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % n
    };
    for form in FORMS {
        for (choice, parallel) in [
            (ToolChoice::Required, true),
            (ToolChoice::Required, false),
            (ToolChoice::Function("add".into()), true),
        ] {
            let options = TurnOptions {
                tools: tools(),
                tool_choice: choice.clone(),
                parallel_tool_calls: parallel,
                ..TurnOptions::default()
            };
            let grammar = options.grammar_in(form).unwrap().unwrap();
            let (mut names, mut several) = (Vec::new(), false);
            for _ in 0..60 {
                let mut constraint = Constraint::new(grammar.clone(), vocabulary.clone()).unwrap();
                let mut text = Vec::new();
                for left in (1..400).rev() {
                    let allowed = constraint.allowed(left);
                    let tokens: Vec<u32> =
                        (0..=END).filter(|t| allowed[*t as usize / 32] >> (t % 32) & 1 == 1).collect();
                    // Letters in free text, so that it stays readable, and soon its end.
                    let is = |c: u8| tokens.contains(&c.into()).then_some(u32::from(c));
                    let close = b"</parameter>\n";
                    let begun = (1..close.len()).rev().find(|n| text.ends_with(&close[..*n]));
                    let ends = match begun {
                        Some(n) => is(close[n]),
                        None if pick(4) == 0 => is(if form == CallForm::Xml { b'<' } else { b'"' }),
                        None => None,
                    };
                    let letters = || tokens.iter().copied().filter(|t| (97..123).contains(t));
                    let token = match ends.filter(|_| tokens.len() > 60 || begun.is_some()) {
                        Some(end) => end,
                        None if tokens.len() > 60 => letters().nth(pick(26)).unwrap(),
                        None => tokens[pick(tokens.len())],
                    };
                    if token == END {
                        break;
                    }
                    assert!(constraint.accept(token));
                    text.push(token as u8);
                }
                assert!(constraint.complete(), "{form:?} {:?}", String::from_utf8_lossy(&text));
                let text = String::from_utf8(text).unwrap();
                let mut parser = parser(form);
                parser.finish(&text);
                let reply = parser.reply();
                assert!(!reply.calls.is_empty() && reply.content.is_empty(), "{form:?} {text}");
                assert!(parallel || reply.calls.len() == 1, "{form:?} {text}");
                several |= reply.calls.len() > 1;
                for call in &reply.calls {
                    let (name, arguments) = Reply::call(call).unwrap();
                    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
                    if name == "add" {
                        assert!(arguments["a"].as_u64().is_some_and(|a| a < 100), "{form:?} {text}");
                        assert!(arguments["note"].is_string(), "{form:?} {text}");
                        let unit = &arguments["unit"];
                        assert!(unit.is_null() || unit == "C" || unit == "F", "{form:?} {text}");
                    } else {
                        assert!(choice == ToolChoice::Required && name == "now");
                    }
                    names.push(name);
                }
            }
            assert!(names.contains(&"add".into()));
            assert_eq!(names.contains(&"now".into()), choice == ToolChoice::Required, "{form:?}");
            let one = matches!(form, CallForm::Llama3 | CallForm::Gemma);
            assert_eq!(several, parallel && !one, "{form:?}");
        }
    }
}

#[test]
fn free_replies_are_constrained_where_a_call_is_told_from_text() {
    let options = TurnOptions { tools: tools(), ..TurnOptions::default() };
    for form in FORMS {
        let constrained = options.grammar_in(form).unwrap().is_some();
        assert_eq!(constrained, matches!(form, CallForm::Hermes | CallForm::Xml), "{form:?}");
    }
    let named = |name: &str| TurnOptions {
        tools: vec![format!("{{\"name\": \"{name}\"}}")],
        tool_choice: ToolChoice::Required,
        ..TurnOptions::default()
    };
    for form in [CallForm::Xml, CallForm::MistralNamed] {
        let refused = named("a>b").grammar_in(form).map(drop).unwrap_err().to_string();
        assert_eq!(refused, "tool 0: has a name that this model cannot write");
    }
}
