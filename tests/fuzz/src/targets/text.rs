//! Texts: JSON, requests, schemas, patterns, grammars, conversations.

use shohin_core::chat::openai::{ChatCompletionRequest, messages_json, parse_messages};
use shohin_core::chat::{
    self, CallBlocks, CallForm, ChatMessage, ChatOptions, Message, Reply, ReplyParser, Role, Template,
    TurnOptions,
};
use shohin_core::constrain::{Constraint, Grammar, Vocabulary, Whitespace};
use shohin_core::tokenizer::TokenKind;
use shohin_core::{Error, Gguf, Result, Tokenizer, json};
use shohin_tests::{Random, reading};
use std::sync::{Arc, LazyLock};

fn bytes<const N: usize>(texts: [&str; N]) -> Vec<Vec<u8>> {
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub(super) fn json_seeds() -> Vec<Vec<u8>> {
    bytes([
        r#"{"a": [1, -2.5e3, true, null, "x\u00e9\n"], "b": {"c": {}}, "a": 0.1}"#,
        r#"[[], {}, "", 0, -0.0, 1e16, 123456789012345678901234567890, "\ud83d\udc22"]"#,
        "  \"text\"\t\r\n",
    ])
}

/// Whether two values are the same; numbers as floats, which serde_json may miss by a unit in the last place.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a == b || (a - b).abs() <= 1e-15 * a.abs(),
            (a, b) => a == b,
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

pub(super) fn json(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut out = String::new();
    let ours = json::reformat(text, &mut out);
    let theirs = serde_json::from_str::<serde_json::Value>(text);
    match (&ours, &theirs) {
        (Ok(()), Ok(value)) => {
            let again: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
            assert!(same(value, &again), "{out}");
            let mut twice = String::new();
            json::reformat(&out, &mut twice).expect("it is JSON");
            assert_eq!(out, twice);
        }
        // A number that no float holds, half of a character, or too deep.
        (Ok(()), Err(error)) => {
            let error = error.to_string();
            let known = ["number out of range", "surrogate", "hex escape", "recursion"];
            assert!(known.iter().any(|known| error.contains(known)), "{error}");
        }
        (Err(Error::Limit { .. }), _) | (Err(_), Err(_)) => {}
        (Err(error), Ok(_)) => panic!("{error}"),
    }
    if let Ok(value) = json::Value::parse(text) {
        let _ = (value.as_string(), value.as_bool(), value.as_number(), value.members(), value.elements());
        let _ = value.get("a");
    }
}

pub(super) fn reply_seeds() -> Vec<Vec<u8>> {
    bytes([
        "\u{1}<think>\nIt is a cow.\n</think>\n\nMoo.",
        "\u{1}Yes.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"</tool_call>\"}}\n</tool_call>\n<tool_call>\n{}\n</tool_call>",
        "\u{9}<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "\u{d}{\"name\": \"f\", \"parameters\": {\"x\": [1]}}",
        "\u{15}Yes.[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]",
        "\u{19}[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{\"x\": \"}\"}",
        "\u{2}You are kind.\0Hello <|im_end|>\n<|im_start|>system\0<think>x</think>Hi",
    ])
}

const FORMS: [CallForm; 7] = [
    CallForm::Hermes,
    CallForm::List,
    CallForm::Xml,
    CallForm::Llama3,
    CallForm::Gemma,
    CallForm::Mistral,
    CallForm::MistralNamed,
];

pub(super) fn reply(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let blocks =
        [CallBlocks::Text, CallBlocks::Valid, CallBlocks::Any, CallBlocks::Leading][usize::from(first % 4)];
    let text = String::from_utf8_lossy(rest);
    let form = FORMS[usize::from(first / 4) % FORMS.len()];
    let parser = || ReplyParser::new(blocks).with_form(form, &[]);
    let mut at_once = parser();
    at_once.finish(&text);
    let whole = at_once.reply().clone();
    let mut random = Random::new(reading::fnv(input));
    let mut parser = parser();
    let mut pieces = Reply::default();
    let mut add = |delta: &Reply| {
        if let Some(reasoning) = &delta.reasoning {
            pieces.reasoning.get_or_insert_default().push_str(reasoning);
        }
        pieces.content.push_str(&delta.content);
        pieces.calls.extend(delta.calls.clone());
    };
    let mut rest = &*text;
    while rest.len() > 3 && random.below(40) > 0 {
        let mut cut = 1 + random.below(12.min(rest.len()));
        while !rest.is_char_boundary(cut) {
            cut += 1;
        }
        let (now, later) = rest.split_at(cut);
        add(parser.push(now));
        rest = later;
    }
    add(parser.finish(rest));
    assert_eq!(pieces, whole, "the parts");
    assert_eq!(*parser.reply(), whole, "the whole");
    for call in &whole.calls {
        if let Ok((_, arguments)) = Reply::call(call) {
            json::reformat(arguments, &mut String::new()).expect("arguments are JSON");
        }
    }
    let _ = Reply::parse(&text);
}

pub(super) fn request_seeds() -> Vec<Vec<u8>> {
    bytes([
        r#"{"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"2"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}}],"tool_choice":"auto","temperature":0.5,"top_p":0.9,"seed":7,"max_tokens":9,"stop":["x"],"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2}"#,
        r#"{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"string"}}}}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"2"}],"instructions":"b","max_output_tokens":9,"stream":true}"#,
        r#"{"model":"m","max_tokens":9,"system":[{"type":"text","text":"a"}],"messages":[{"role":"user","content":"b"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"x":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"2","is_error":false}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"stop_sequences":["x"],"thinking":{"type":"enabled","budget_tokens":1024}}"#,
        r#"{"prompt":"a","max_tokens":1,"echo":false,"best_of":1}"#,
        r#"{"input":["a",[1,2]],"encoding_format":"base64"}"#,
        r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"c"}]"#,
    ])
}

pub(super) fn requests(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let kept = |messages: &[ChatMessage]| {
        let json = messages_json(messages);
        let again = parse_messages(&json).expect("what was written can be read");
        assert_eq!(messages_json(&again), json);
    };
    let chat = ChatCompletionRequest::parse(text).map(|request| (request.messages, request.options));
    let list = parse_messages(text).map(|messages| (messages, TurnOptions::default()));
    let mut read = vec![chat];
    read.push(list);
    #[cfg(not(target_family = "wasm"))]
    read.extend(shohin_server::read_requests(text));
    for request in read {
        match request {
            Ok((messages, options)) => {
                kept(&messages);
                drop(options.grammar());
            }
            Err(error) => assert!(error.to_string().len() < 4096, "{error}"),
        }
    }
}

/// A tokenizer with the control tokens of chats.
pub(super) static TOKENIZER: LazyLock<Tokenizer<'static>> = LazyLock::new(|| {
    let file = include_bytes!("../../../../models/sprout.gguf");
    Tokenizer::from_gguf(&Gguf::parse(file).expect("a model")).expect("a tokenizer").into_owned()
});

/// One of SentencePiece with those of Gemma.
static GEMMA: LazyLock<Tokenizer<'static>> = LazyLock::new(|| {
    let file = include_bytes!("../../../../core/tests/fixtures/sentencepiece.gguf");
    Tokenizer::from_gguf(&Gguf::parse(file).expect("a file")).expect("a tokenizer").into_owned()
});

pub(super) fn chat(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
    let texts: Vec<(Role, &str)> = text
        .split('\0')
        .take(8)
        .enumerate()
        .map(|(i, text)| (roles[(usize::from(input.first().copied().unwrap_or(0)) + i) % 4], text))
        .collect();
    for (template, tokenizer) in [
        (Template::QWEN3, &TOKENIZER),
        (Template::PLAIN, &TOKENIZER),
        (Template::SMOLLM2, &TOKENIZER),
        (Template::GEMMA, &GEMMA),
    ] {
        let control = |harmless: bool| -> Result<usize> {
            let messages: Vec<Message<'_>> = texts
                .iter()
                .map(|(role, text)| Message::new(*role, if harmless { "x" } else { text }))
                .collect();
            let ids = chat::encode(tokenizer, &messages, &ChatOptions { template, ..Default::default() })?;
            Ok(ids.iter().filter(|id| tokenizer.kind(**id) == TokenKind::Control).count())
        };
        assert_eq!(control(false), control(true), "{template:?}");
    }
}

/// The bytes, and a token that ends the text.
static BYTES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let texts = (0..=255u8).map(Some).chain([None]);
    Arc::new(Vocabulary::from_texts(texts, &[END]))
});
const END: u32 = 256;

/// A text of a grammar, chosen by `choices`; `None` if all are long.
fn walk(grammar: Grammar, choices: &[u8]) -> Option<String> {
    let mut constraint = Constraint::new(grammar, BYTES.clone()).ok()?;
    let least = constraint.shortest() as usize;
    if least > 1000 {
        return None;
    }
    let mut text = Vec::new();
    let budget = least + choices.len().min(200);
    for left in (1..=budget).rev() {
        if constraint.finished() {
            break;
        }
        let allowed = constraint.allowed(left);
        let tokens: Vec<u32> = (0..=END).filter(|t| allowed[*t as usize / 32] >> (t % 32) & 1 == 1).collect();
        let choice = choices.get(text.len()).copied().unwrap_or(0);
        let token = tokens[usize::from(choice) % tokens.len()];
        if token == END {
            break;
        }
        assert!(constraint.accept(token));
        text.push(token as u8);
    }
    assert!(constraint.complete());
    Some(String::from_utf8(text).expect("UTF-8"))
}

/// The text, and choices, which follow its last line.
fn split(input: &[u8]) -> (String, Vec<u8>) {
    let text = String::from_utf8_lossy(input).into_owned();
    let mut random = Random::new(reading::fnv(input));
    let mut choices = vec![0; random.below(200)];
    random.fill(&mut choices);
    (text, choices)
}

pub(super) fn schema_seeds() -> Vec<Vec<u8>> {
    bytes([
        r##"{"type":"object","properties":{"a":{"type":"integer","minimum":-3,"multipleOf":2},"b":{"$ref":"#"}},"required":["a"],"additionalProperties":{"type":["null","string"]}}"##,
        r##"{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"const":1.5},{"type":"array","prefixItems":[true],"items":{"$ref":"#/$defs/a"},"minItems":1,"maxItems":4}]}}}"##,
        r#"{"type":"string","pattern":"^(a|[^b-z\\d]{2,3}|\\u00e9)*?$","minLength":2,"maxLength":9}"#,
        r#"{"oneOf":[{"type":"number","exclusiveMinimum":0.25,"maximum":1e3},{"enum":["x","xy",null]}]}"#,
        r#"{"type":"string","format":"date-time"}"#,
        r#"{"type":"array","items":{"type":"string","format":"ipv6"},"maxItems":2}"#,
    ])
}

pub(super) fn schema(input: &[u8]) {
    let (text, choices) = split(input);
    let whitespace = if choices.len() % 2 == 0 { Whitespace::None } else { Whitespace::Allowed };
    if let Some(text) =
        Grammar::json_schema(&text, whitespace).ok().and_then(|grammar| walk(grammar, &choices))
    {
        json::reformat(&text, &mut String::new()).expect("JSON");
    }
    if let Ok(grammar) = Grammar::tool_calls(&[&text], choices.len() % 3 == 0) {
        walk(grammar, &choices);
    }
}

pub(super) fn pattern_seeds() -> Vec<Vec<u8>> {
    bytes([
        r"^(a|[^b-z\d]{2,3}|\u00e9)*?$",
        r"[A-Z]\w+( \w+){0,4}\.",
        r"(?:\+\d{1,3} )?\d{3}-\d{4}",
        "x|yz|é+",
    ])
}

pub(super) fn pattern(input: &[u8]) {
    let (text, choices) = split(input);
    if let Ok(grammar) = Grammar::regex(&text) {
        walk(grammar, &choices);
    }
}

pub(super) fn gbnf_seeds() -> Vec<Vec<u8>> {
    bytes([
        "root ::= \"a\" [b-d]{2,3} (x | \"e\")*\nx ::= \"(\" root \")\" # nested\n",
        "root ::= [^\\n\"] .? | \"\\x41\\u00e9\"+",
        "root ::= ws* value\nws ::= [ \\t\\n]\nvalue ::= \"[\" (value (\",\" value)*)? \"]\" | [0-9]+\n",
    ])
}

pub(super) fn gbnf(input: &[u8]) {
    let (text, choices) = split(input);
    if let Ok(grammar) = Grammar::gbnf(&text) {
        walk(grammar, &choices);
    }
}
