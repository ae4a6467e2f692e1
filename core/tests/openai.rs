//! The OpenAI API against the npm package's former TypeScript implementation: see `tests/oracle/openai.mjs`.

use serde_json::{Value, json};
use shohin_core::chat::openai::{ChatCompletionRequest, ChunkWriter, CompletionId, completion};
use shohin_core::chat::{
    CallBlocks, ChatMessage, Chunk, Finish, FunctionCall, OverflowPolicy, ReplyParser, ResponseFormat, Role,
    Thinking, TokenLogprob, ToolChoice, TurnOptions, Usage,
};
use shohin_core::generate::Reason;
use shohin_core::sample::Logprob;
use shohin_core::{Gguf, SamplerConfig, Tokenizer};

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/openai.json")).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().into()
}

fn calls(value: &Value) -> Vec<FunctionCall> {
    let call = |c: &Value| FunctionCall { name: text(&c["name"]), arguments: text(&c["arguments"]) };
    value.as_array().map_or(Vec::new(), |all| all.iter().map(call).collect())
}

fn message(value: &Value) -> ChatMessage {
    let role = [Role::System, Role::User, Role::Assistant, Role::Tool];
    ChatMessage {
        role: role.into_iter().find(|role| value["role"] == role.name()).unwrap(),
        content: text(&value["content"]),
        reasoning: value["reasoning"].as_str().map(String::from),
        tool_calls: calls(&value["toolCalls"]),
    }
}

/// The options by the package's names.
fn options(of: &Value) -> TurnOptions {
    let number = |name: &str, otherwise: f32| of[name].as_f64().map_or(otherwise, |x| x as f32);
    let bonsai = SamplerConfig::bonsai();
    let max_tokens = of["maxTokens"].as_u64().map(|n| n as usize);
    let room = max_tokens.unwrap_or(256);
    TurnOptions {
        sampler: SamplerConfig {
            temperature: number("temperature", bonsai.temperature),
            top_p: number("topP", bonsai.top_p),
            presence_penalty: number("presencePenalty", bonsai.presence_penalty),
            frequency_penalty: number("frequencyPenalty", bonsai.frequency_penalty),
            seed: of["seed"].as_u64().unwrap_or(bonsai.seed),
            ..bonsai
        },
        max_tokens,
        stop_strings: match &of["stop"] {
            Value::Null => Vec::new(),
            Value::String(stop) => vec![stop.clone()],
            stops => stops.as_array().unwrap().iter().map(text).collect(),
        },
        logprobs: of["logprobs"].as_u64().map(|n| n as usize),
        thinking: match &of["thinking"] {
            Value::Null | Value::Bool(false) => Thinking::Off,
            Value::Bool(true) => Thinking::On,
            thinking => Thinking::Budget(thinking["budget"].as_u64().unwrap() as usize),
        },
        tools: of["tools"]
            .as_array()
            .map_or(Vec::new(), |tools| tools.iter().map(Value::to_string).collect()),
        tool_choice: match &of["toolChoice"] {
            Value::Null => ToolChoice::Auto,
            Value::String(choice) => {
                assert_eq!(choice, "required");
                ToolChoice::Required
            }
            choice => ToolChoice::Function(text(&choice["name"])),
        },
        response_format: match of["responseFormat"]["type"].as_str() {
            Some("json_object") => ResponseFormat::JsonObject,
            Some("json_schema") => ResponseFormat::JsonSchema(of["responseFormat"]["schema"].to_string()),
            _ => ResponseFormat::Text,
        },
        overflow: match of["overflow"].as_str() {
            Some("shift") => OverflowPolicy::Shift { keep: None },
            Some("trim") => OverflowPolicy::Trim { reserve: room, free: room },
            _ => OverflowPolicy::Error,
        },
        ..TurnOptions::default()
    }
}

#[test]
fn requests_are_read_as_the_package_read_them() {
    let cases = fixture()["requests"].as_array().unwrap().clone();
    assert!(cases.len() >= 20);
    for case in cases {
        let request = ChatCompletionRequest::parse(&case["request"].to_string());
        let request = request.unwrap_or_else(|error| panic!("{error}: {}", case["request"]));
        let messages: Vec<ChatMessage> = case["messages"].as_array().unwrap().iter().map(message).collect();
        assert_eq!(request.messages, messages, "{case}");
        let mut expected = options(&case["options"]);
        // The layout of the texts may differ.
        let same = |text: &String| serde_json::from_str::<Value>(text).unwrap();
        let tools = |options: &TurnOptions| options.tools.iter().map(same).collect::<Vec<Value>>();
        assert_eq!(tools(&request.options), tools(&expected), "{case}");
        expected.tools.clone_from(&request.options.tools);
        assert_eq!(request.options, expected, "{case}");
        assert_eq!(request.model.as_deref().unwrap_or("sprout"), case["model"], "{case}");
        assert_eq!(request.seed, case["options"]["seed"].as_u64());
        assert_eq!(request.stream, case["request"]["stream"] == true);
        assert_eq!(request.include_usage, case["request"]["stream_options"]["include_usage"] == true);
    }
}

#[test]
fn wrong_requests_are_refused_with_the_same_code() {
    let cases = fixture()["wrong"].as_array().unwrap().clone();
    assert!(cases.len() > 40);
    for case in cases {
        let error = ChatCompletionRequest::parse(&case["request"].to_string()).unwrap_err();
        assert_eq!(error.code(), case["code"], "{error}: {}", case["request"]);
        // By name, if one field is wrong.
        if let Some(request) = case["request"].as_object()
            && let [(name, _)] = request
                .iter()
                .filter(|(name, value)| {
                    *name != "model"
                        && (*name != "messages" || **value != json!([{"role": "user", "content": "Hello!"}]))
                })
                .collect::<Vec<_>>()[..]
        {
            assert!(error.to_string().starts_with(name.as_str()), "{error}: {name}");
        }
    }
    for (text, code) in [
        ("{", "malformed"),
        (r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":1.5}"#, "option"),
        (r#"{"messages":[{"role":"user","content":"x"}],"seed":1.5}"#, "option"),
    ] {
        assert_eq!(ChatCompletionRequest::parse(text).unwrap_err().code(), code);
    }
}

/// A field that nobody reads is refused wherever it is, by its place.
#[test]
fn unknown_fields_of_objects_are_refused() {
    let call = r#"{"type":"function","function":{"name":"add","arguments":"{}"}}"#;
    for (fields, place) in [
        (r#""stream_options":{"include_obfuscation":true}"#, "stream_options.include_obfuscation"),
        (r#""thinking":{"budget":3,"effort":"low"}"#, "thinking.effort"),
        (r#""response_format":{"type":"json_object","schema":{}}"#, "response_format.schema"),
        (
            r#""response_format":{"type":"json_schema","json_schema":{"scheme":{}}}"#,
            "response_format.json_schema.scheme",
        ),
        (r#""tools":[{"name":"add"}],"tool_choice":{"type":"function","name":"add"}"#, "tool_choice.name"),
        (r#""tools":[{"type":"function","function":{"name":"add","x":1}}]"#, "tools[0].function.x"),
        (r#""tools":[{"type":"function","strict":true,"function":{"name":"add"}}]"#, "tools[0].strict"),
        (r#""tools":[{"name":"add"},{"name":"add","x":1}]"#, "tools[1].x"),
        (r#""tools":[{"type":"web_search","name":"add"}]"#, "tools[0] "),
        (r#""tools":[{"type":"custom","function":{"name":"add"}}]"#, "tools[0] "),
        (r#""messages":[{"role":"user","content":"x","toolCalls":[]}]"#, "messages[0].toolCalls"),
        (
            r#""messages":[{"role":"user","content":[{"type":"text","text":"x","cache":1}]}]"#,
            "messages[0].content[0].cache",
        ),
        (
            r#""messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}","x":1}}]}]"#,
            "messages[0].tool_calls[0].function.x",
        ),
    ] {
        let text = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
        let error = ChatCompletionRequest::parse(&text).unwrap_err();
        assert_eq!(error.code(), "unsupported", "{error}");
        assert!(error.to_string().starts_with(place), "{error}: {place}");
    }
    // What is left aside, and what is null.
    for message in [
        r#"{"role":"assistant","tool_calls":[]},{"role":"user","content":"x","name":"add"}"#,
        r#"{"role":"assistant","content":"x","refusal":null,"annotations":[],"audio":null}"#,
        r#"{"role":"assistant","content":"{}","parsed":{"a":1}}"#,
        r#"{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}","parsed_arguments":{}}}]}"#,
        &format!(r#"{{"role":"assistant","content":null,"tool_calls":[{call}]}}"#),
    ] {
        ChatCompletionRequest::parse(&format!(r#"{{"messages":[{message}]}}"#)).unwrap();
    }
    let stop = ChatCompletionRequest::parse(r#"{"messages":[{"role":"user"}],"stop":["x",5]}"#).unwrap_err();
    assert_eq!(stop.to_string(), "stop[1] must be a string");
}

/// Each would have been left aside unnoticed.
#[test]
fn fields_that_lack_another_are_refused() {
    for (fields, says) in [
        (r#""response_format":{}"#, "response_format has no type"),
        (r#""tools":[{"type":"function","name":"add"}]"#, "tools[0] has no function"),
        (r#""tools":[{"type":"function","function":{}}]"#, "tools[0].function has no name"),
        (r#""tools":[{"type":"function","function":[]}]"#, "tools[0].function must be a function"),
        (r#""tools":[{}]"#, "tools[0] has no name"),
        (r#""tools":[{"name":5}]"#, "tools[0].name must be a string"),
        (r#""response_format":{"json_schema":{"schema":{}}}"#, "response_format has no type"),
        (r#""top_logprobs":2"#, "top_logprobs is only for a request with logprobs"),
        (r#""logprobs":false,"top_logprobs":0"#, "top_logprobs is only for a request with logprobs"),
        (r#""stream_options":{}"#, "stream_options is only for a request with stream"),
        (
            r#""stream":false,"stream_options":{"include_usage":true}"#,
            "stream_options is only for a request with stream",
        ),
    ] {
        let text = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
        let error = ChatCompletionRequest::parse(&text).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.code()), (says, "argument"));
    }
}

#[test]
fn seeds_are_all_integers_of_64_bits() {
    for (written, seed) in [
        ("7", 7),
        ("1e3", 1000),
        ("-1", u64::MAX),
        ("-0.0", 0),
        ("9007199254740993", (1 << 53) + 1),
        ("-9223372036854775808", 1 << 63),
        ("18446744073709551615", u64::MAX),
    ] {
        let chat = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"seed":{written}}}"#);
        let request = ChatCompletionRequest::parse(&chat).unwrap();
        assert_eq!((request.seed, request.options.sampler.seed), (Some(seed), seed));
    }
    for written in ["18446744073709551616", "-9223372036854775809", "0.5", "1e300"] {
        let chat = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"seed":{written}}}"#);
        let error = ChatCompletionRequest::parse(&chat).unwrap_err();
        assert!(error.to_string().ends_with("expected an integer of 64 bits"), "{error}");
    }
}

/// They are for a service that stores prompts, or ask for what is done without them.
#[test]
fn fields_without_effect_are_taken() {
    for fields in [
        r#""prompt_cache_retention":"24h""#,
        r#""prompt_cache_options":{"ttl":"30m"}"#,
        r#""stream":true,"stream_options":{"include_obfuscation":false,"include_usage":true}"#,
    ] {
        let text = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
        ChatCompletionRequest::parse(&text).unwrap();
    }
}

#[test]
fn a_streamed_reply_of_calls_begins_without_a_text() {
    let file = include_bytes!("fixtures/bpe2k.gguf");
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
    let request = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    let request = ChatCompletionRequest::parse(request).unwrap();
    let call = FunctionCall { name: "f".into(), arguments: "{}".into() };
    for (chunk, content) in [
        (Chunk { text: "<tool_call>".into(), ..Chunk::default() }, Value::Null),
        (Chunk { tool_calls: vec![call], ..Chunk::default() }, Value::Null),
        (Chunk { reasoning: "Hm".into(), ..Chunk::default() }, Value::Null),
        (Chunk { content: "Hm".into(), ..Chunk::default() }, json!("Hm")),
        (Chunk::default(), json!("")),
    ] {
        let id = CompletionId { id: "ID".into(), created: 7, model: "mine".into() };
        let first = ChunkWriter::new(id, &request).chunk(&chunk, &tokenizer).unwrap();
        let first: Value = serde_json::from_str(&first).unwrap();
        let delta = &first["choices"][0]["delta"];
        assert_eq!((&delta["role"], &delta["content"]), (&json!("assistant"), &content));
        assert!(delta.get("content").is_some());
    }
}

/// Any input from a client is a request or an error.
#[test]
fn mutated_requests_end_in_errors() {
    let (mut read, mut refused) = (0, 0);
    let mut parse = |text: &str| match ChatCompletionRequest::parse(text) {
        Ok(_) => read += 1,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            refused += 1;
        }
    };
    for case in fixture()["requests"].as_array().unwrap() {
        let text = case["request"].to_string();
        for (at, c) in text.char_indices() {
            parse(&text[..at]);
            for other in ["\"", "[", "}", "0", "null", "\\", "é", ""] {
                parse(&format!("{}{other}{}", &text[..at], &text[at + c.len_utf8()..]));
            }
        }
    }
    assert!(read > 1000 && refused > 10_000, "{read} {refused}");
}

fn logprob(value: &Value) -> Logprob {
    let logprob = value["logprob"].as_f64().map_or(f32::NEG_INFINITY, |x| x as f32);
    Logprob { token: value["token"].as_u64().unwrap() as u32, logprob }
}

#[test]
fn answers_are_those_of_the_package() {
    let file = include_bytes!("fixtures/bpe2k.gguf");
    let tokenizer = Tokenizer::from_gguf(&Gguf::parse(file).unwrap()).unwrap();
    let cases = fixture()["answers"].as_array().unwrap().clone();
    assert!(cases.len() > 12);
    for case in cases {
        let request = ChatCompletionRequest::parse(&case["request"].to_string()).unwrap();
        let id = CompletionId { id: "ID".into(), created: 7, model: "mine".into() };
        let mut writer = ChunkWriter::new(id.clone(), &request);
        let (mut streamed, mut logprobs, mut finish) = (Vec::new(), Vec::new(), None);
        for chunk in case["chunks"].as_array().unwrap() {
            let measured = chunk["logprobs"].as_array().map_or(Vec::new(), |all| {
                let top = |one: &Value| one["top"].as_array().unwrap().iter().map(logprob).collect();
                all.iter().map(|one| TokenLogprob { chosen: logprob(one), top: top(one) }).collect()
            });
            logprobs.extend_from_slice(&measured);
            let chunk_in = Chunk {
                content: text(&chunk["text"]),
                reasoning: chunk["reasoning"].as_str().unwrap_or_default().into(),
                tool_calls: calls(&chunk["toolCalls"]),
                logprobs: measured,
                ..Chunk::default()
            };
            streamed.extend(writer.chunk(&chunk_in, &tokenizer));
            let end = &chunk["finish"];
            if end.is_null() {
                continue;
            }
            let reasons =
                [Reason::Stop, Reason::StopString, Reason::Length, Reason::ContextFull, Reason::Cancelled];
            let usage = |name: &str| end["usage"][name].as_u64().unwrap() as usize;
            finish = Some(Finish {
                reason: reasons.into_iter().find(|reason| end["reason"] == reason.code()).unwrap(),
                message: message(&end["message"]),
                text: String::new(),
                usage: Usage {
                    prompt_tokens: usage("promptTokens"),
                    cached_tokens: usage("cachedTokens"),
                    completion_tokens: usage("completionTokens"),
                    reasoning_tokens: usage("reasoningTokens"),
                    ..Usage::default()
                },
            });
        }
        let finish = finish.unwrap();
        let mut case = case;
        if finish.reason == Reason::Length {
            // The package reported calls, although another one was cut off.
            let last = case["streamed"].as_array_mut().unwrap().iter_mut();
            let last = last.rev().find(|chunk| chunk["choices"][0]["finish_reason"].is_string()).unwrap();
            last["choices"][0]["finish_reason"] = "length".into();
            case["whole"]["choices"][0]["finish_reason"] = "length".into();
        }
        let first = &mut case["streamed"][0]["choices"][0]["delta"];
        if first["content"] == "" && (first.get("reasoning").is_some() || first.get("tool_calls").is_some()) {
            // The package began every reply with a text.
            first["content"] = Value::Null;
        }
        streamed.extend(writer.finish(&finish));
        let read = |text: &String| serde_json::from_str::<Value>(text).unwrap();
        let streamed: Vec<Value> = streamed.iter().map(read).collect();
        assert_eq!(Value::Array(streamed), case["streamed"]);
        let logprobs = request.options.logprobs.map(|_| logprobs.as_slice());
        assert_eq!(read(&completion(&id, &finish, logprobs, &tokenizer)), case["whole"]);
    }
}

#[test]
fn replies_come_apart_as_in_the_package() {
    let cases = fixture()["replies"].as_array().unwrap().clone();
    assert!(cases.len() > 100);
    for case in cases {
        let valid = case["calls"] == true;
        let mut parser = ReplyParser::new(if valid { CallBlocks::Valid } else { CallBlocks::Text });
        let pieces = case["pieces"].as_array().unwrap();
        for (i, (piece, part)) in pieces.iter().zip(case["parts"].as_array().unwrap()).enumerate() {
            let piece = piece.as_str().unwrap();
            let delta = if i + 1 == pieces.len() { parser.finish(piece) } else { parser.push(piece) };
            let calls: Vec<String> =
                delta.calls.iter().map(|call| FunctionCall::parse(call).unwrap().arguments).collect();
            let reasoning = delta.reasoning.clone().unwrap_or_default();
            assert_eq!(json!([delta.content, reasoning, calls]), *part, "{case}");
        }
    }
}
