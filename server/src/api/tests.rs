//! OpenAI's Responses and Anthropic's Messages: what is read of requests, and written of replies.

use super::anthropic::{MessageWriter, MessagesRequest};
use super::dialect::{Event, ReplyWriter};
use super::openai::{CompletionRequest, ResponseWriter, ResponsesRequest};
use crate::error::ApiError;
use serde_json::{Value, json};
use shohin::core::chat::fields::Reading;
use shohin::core::chat::openai::{ChatCompletionRequest, CompletionId};
use shohin::core::chat::{
    ChatMessage, Chunk, Finish, FunctionCall, OverflowPolicy, ResponseFormat, Role, Thinking, ToolChoice,
    TurnOptions, Usage, function_name,
};
use shohin::core::generate::Reason;

fn call(arguments: &str) -> FunctionCall {
    FunctionCall { name: "weather".into(), arguments: arguments.into() }
}

fn assistant(reasoning: Option<&str>, content: &str, tool_calls: Vec<FunctionCall>) -> ChatMessage {
    let reasoning = reasoning.map(String::from);
    ChatMessage { reasoning, tool_calls, ..ChatMessage::new(Role::Assistant, content) }
}

fn finish(reason: Reason) -> Finish {
    let usage = Usage {
        prompt_tokens: 9,
        cached_tokens: 4,
        completion_tokens: 6,
        reasoning_tokens: 2,
        ..Usage::default()
    };
    // What was said comes from the chunks.
    Finish { reason, message: ChatMessage::new(Role::Assistant, ""), text: String::new(), usage }
}

fn id() -> CompletionId {
    CompletionId { id: "7".into(), created: 3, model: "sprout".into() }
}

fn chunks() -> [Chunk; 4] {
    let chunk = Chunk::default;
    [
        Chunk { reasoning: "Hm".into(), ..chunk() },
        Chunk { reasoning: "m.".into(), content: "I \"loo".into(), ..chunk() },
        Chunk { content: "k\".".into(), ..chunk() },
        Chunk { tool_calls: vec![call(r#"{"city": "Bern"}"#), call(r#"{"city": "Rome"}"#)], ..chunk() },
    ]
}

fn values(events: &[Event]) -> Vec<Value> {
    let value = |event: &Event| {
        let value: Value = serde_json::from_str(&event.data).unwrap();
        assert_eq!(value["type"], event.name.unwrap());
        assert!(!event.data.contains('\n'));
        value
    };
    events.iter().map(value).collect()
}

#[test]
fn items_of_a_response_are_messages() {
    let parameters =
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let request = json!({
        "instructions": "Be brief.",
        "input": [
            { "role": "developer", "content": "And kind." },
            { "role": "user", "content": [{ "type": "input_text", "text": "How is " }, { "type": "input_text", "text": "it?" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Ask." }] },
            { "type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}", "status": "completed" },
            { "type": "function_call", "call_id": "b", "name": "weather", "arguments": "[]", "parsed_arguments": [] },
            { "type": "function_call_output", "call_id": "b", "output": [{ "type": "input_text", "text": "wet" }] },
            { "type": "function_call_output", "call_id": "a", "output": "sunny" },
            { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
              "content": [{ "type": "output_text", "text": "Both.", "annotations": [], "logprobs": [], "parsed": { "a": 1 } }] },
            { "role": "user", "content": "Thanks." },
        ],
        "tools": [{ "type": "function", "name": "weather", "description": "Tells \"it\".", "parameters": parameters, "strict": true }],
        "tool_choice": { "type": "function", "name": "weather" },
        "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.25, "stream": true,
        "reasoning": { "effort": "low" }, "truncation": "auto", "store": false,
        "prompt_cache_options": { "ttl": "30m" }, "prompt_cache_retention": "24h",
    });
    let read = ResponsesRequest::parse(&request.to_string(), &Reading::new(true)).unwrap();
    let message = ChatMessage::new;
    assert_eq!(
        read.messages,
        [
            message(Role::System, "Be brief."),
            message(Role::System, "And kind."),
            message(Role::User, "How is it?"),
            assistant(Some("Ask."), "", vec![call("{}"), call("[]")]),
            message(Role::Tool, "sunny"),
            message(Role::Tool, "wet"),
            message(Role::Assistant, "Both."),
            message(Role::User, "Thanks."),
        ]
    );
    let tool: Value = serde_json::from_str(&read.options.tools[0]).unwrap();
    assert_eq!(tool["function"]["parameters"], parameters);
    assert_eq!(tool["function"]["description"], "Tells \"it\".");
    assert_eq!(function_name(&read.options.tools[0]).as_deref(), Some("weather"));
    assert_eq!(read.options.tool_choice, ToolChoice::Function("weather".into()));
    assert_eq!((read.options.sampler.temperature, read.options.sampler.top_p), (0.5, 0.25));
    assert_eq!((read.options.max_tokens, read.options.thinking), (Some(5), Thinking::On));
    assert_eq!((read.options.overflow, read.stream), (OverflowPolicy::trim_for(Some(5)), true));

    let object = json!({ "input": "x", "text": { "format": { "type": "json_object" } } });
    let read = ResponsesRequest::parse(&object.to_string(), &Reading::new(true)).unwrap();
    assert_eq!(read.options.response_format, ResponseFormat::JsonObject);
}

#[test]
fn results_come_in_the_order_of_the_calls() {
    // Calls have a letter for an id, results a letter and a text, users a text.
    let read = |turns: &[(&str, &[&str])]| {
        let messages: Vec<Value> = turns.iter().flat_map(|(kind, all)| {
            let call = |id: &&str| {
                let call = json!({ "type": "function", "function": { "name": "f", "arguments": "{}" } });
                let id = Some(*id).filter(|id| *id != "-");
                id.map_or(call.clone(), |id| { let mut call = call; call["id"] = json!(id); call })
            };
            match *kind {
                "calls" => vec![json!({ "role": "assistant", "tool_calls": all.iter().map(call).collect::<Vec<_>>() })],
                "user" => vec![json!({ "role": "user", "content": all[0] })],
                _ => all.iter().map(|result| match result.split_once(':') {
                    Some((id, text)) => json!({ "role": "tool", "tool_call_id": id, "content": text }),
                    None => json!({ "role": "tool", "content": result }),
                }).collect(),
            }
        }).collect();
        let request = ChatCompletionRequest::parse(&json!({ "messages": messages }).to_string());
        request.map(|request| {
            let results = request.messages.iter().filter(|message| message.role == Role::Tool);
            results.map(|message| message.content.clone()).collect::<Vec<_>>().join(" ")
        })
    };
    let results = |turns: &[(&str, &[&str])]| read(turns).unwrap();
    assert_eq!(results(&[("calls", &["a", "b", "c"]), ("results", &["c:3", "a:1", "b:2"])]), "1 2 3");
    // Of two turns with the same ids, and with a user's message or several messages of calls between.
    let turn: [(&str, &[&str]); 2] = [("calls", &["a", "b"]), ("results", &["b:2", "a:1"])];
    assert_eq!(results(&[turn[0], turn[1], ("user", &["x"]), turn[0], turn[1]]), "1 2 1 2");
    assert_eq!(results(&[turn[0], ("user", &["x"]), turn[1]]), "1 2");
    assert_eq!(results(&[("calls", &["a"]), ("calls", &["b"]), turn[1]]), "1 2");
    // Without ids, they stay.
    assert_eq!(results(&[("calls", &["a", "b"]), ("results", &["2", "1"])]), "2 1");
    assert_eq!(results(&[("calls", &["-", "-"]), ("results", &["x:2", "y:1"])]), "2 1");
    for (turns, says) in [
        (&[("calls", &["a"][..]), ("results", &["b:1"])][..], "messages[1].tool_call_id is \"b\", which"),
        (&[("results", &["b:1"])], "messages[0] is a result of a tool, but"),
        (&[("user", &["x"]), ("results", &["1"])], "messages[1] is a result of a tool, but"),
        (&[("calls", &["-"]), ("results", &["1", "2"])], "messages[2] is a result of a tool, but"),
        // One result of each call.
        (&[("calls", &["a"]), ("results", &["a:1", "a:2"])], "messages[2].tool_call_id is \"a\", which"),
        (
            &[turn[0], turn[1], ("user", &["x"]), ("calls", &["c"]), ("results", &["a:1"])],
            "messages[5].tool_call_id is \"a\", which",
        ),
    ] {
        let error = read(turns).unwrap_err();
        assert!(error.to_string().starts_with(says), "{error}");
    }
    let unknown = json!({ "input": [{ "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "z", "output": "1" }] });
    let error = ResponsesRequest::parse(&unknown.to_string(), &Reading::new(true)).unwrap_err().to_string();
    assert_eq!(
        error,
        "input[1].call_id is \"z\", which is not supported; expected the id of a call before it"
    );
}

#[test]
fn calls_and_thoughts_are_limited_as_asked() {
    let chat = |fields: Value| {
        let mut request = json!({ "messages": [{ "role": "user", "content": "x" }] });
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ChatCompletionRequest::parse(&request.to_string()).map(|request| request.options)
    };
    let response = |fields: Value| {
        let mut request = json!({ "input": "x" });
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ResponsesRequest::parse(&request.to_string(), &Reading::new(true))
    };
    for parallel in [true, false] {
        let fields = json!({ "parallel_tool_calls": parallel });
        assert_eq!(chat(fields.clone()).unwrap().parallel_tool_calls, parallel);
        let request = response(fields).unwrap();
        assert_eq!(request.options.parallel_tool_calls, parallel);
        let whole = ResponseWriter::new(id(), request.repeated.clone()).whole(&[finish(Reason::Stop)]);
        assert_eq!(serde_json::from_str::<Value>(&whole).unwrap()["parallel_tool_calls"], parallel);
        let request = json!({
            "messages": [{ "role": "user", "content": "x" }], "tools": [{ "name": "f", "input_schema": {} }],
            "tool_choice": { "type": "auto", "disable_parallel_tool_use": !parallel },
        });
        let request = MessagesRequest::parse_prompt(&request.to_string(), &Reading::new(true)).unwrap();
        assert_eq!(request.options.parallel_tool_calls, parallel);
    }
    assert!(chat(json!({})).unwrap().parallel_tool_calls);
    let error = chat(json!({ "parallel_tool_calls": 1 })).unwrap_err().to_string();
    assert_eq!(error, "parallel_tool_calls must be true or false");

    for (effort, thinking) in
        [("none", Thinking::Off), ("minimal", Thinking::Off), ("low", Thinking::On), ("high", Thinking::On)]
    {
        assert_eq!(chat(json!({ "reasoning_effort": effort })).unwrap().thinking, thinking);
        let request = response(json!({ "reasoning": { "effort": effort } })).unwrap();
        assert_eq!(request.options.thinking, thinking);
    }
    let both = chat(json!({ "reasoning_effort": "high", "thinking": { "budget": 3 } })).unwrap();
    assert_eq!(both.thinking, Thinking::Budget(3));
    let error = chat(json!({ "reasoning_effort": "some" })).unwrap_err().to_string();
    assert!(error.starts_with("reasoning_effort must be none, minimal, low"), "{error}");

    assert!(response(json!({ "include": [] })).is_ok());
    let error = response(json!({ "include": ["message.output_text.logprobs"] })).unwrap_err().to_string();
    assert!(error.starts_with("include[0] is \"message.output_text.logprobs\", which"), "{error}");
}

/// In every form of a request, `strict` and the number of a tool reach the grammar.
#[test]
fn tools_say_whether_their_schema_is_followed() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } });
    let tools = |tool: Value| json!([{ "type": "function", "name": "g" }, tool]);
    let named = |strict: Value| json!({ "name": "f", "strict": strict });
    let with = |mut object: Value, name: &str, value: Value| {
        object[name] = value;
        object
    };
    let user = json!([{ "role": "user", "content": "x" }]);
    let chat = |strict: Value, choice: &str| {
        let tool =
            json!({ "type": "function", "function": with(named(strict), "parameters", schema.clone()) });
        let tools = json!([{ "type": "function", "function": { "name": "g" } }, tool]);
        let choice = match choice {
            "f" => json!({ "type": "function", "function": { "name": "f" } }),
            choice => json!(choice),
        };
        let request = json!({ "messages": user, "tools": tools, "tool_choice": choice });
        ChatCompletionRequest::parse(&request.to_string()).map(|request| request.options)
    };
    let response = |strict: Value, choice: &str| {
        let tool = with(with(named(strict), "parameters", schema.clone()), "type", json!("function"));
        let choice = match choice {
            "f" => json!({ "type": "function", "name": "f" }),
            choice => json!(choice),
        };
        let request = json!({ "input": "x", "tools": tools(tool), "tool_choice": choice });
        ResponsesRequest::parse(&request.to_string(), &Reading::new(true)).map(|request| request.options)
    };
    let message = |strict: Value, choice: &str| {
        let tool = with(named(strict), "input_schema", schema.clone());
        let choice = match choice {
            "f" => json!({ "type": "tool", "name": "f" }),
            choice => json!({ "type": choice }),
        };
        let tools = json!([{ "name": "g", "input_schema": {} }, tool]);
        let request = json!({ "messages": user, "tools": tools, "tool_choice": choice });
        MessagesRequest::parse_prompt(&request.to_string(), &Reading::new(true))
            .map(|request| request.options)
    };
    type Parse<'p> = &'p dyn Fn(Value, &str) -> shohin::core::Result<TurnOptions>;
    let forms: [(Parse<'_>, &str); 3] =
        [(&chat, "tools[1].function.strict"), (&response, "tools[1].strict"), (&message, "tools[1].strict")];
    for (parse, place) in forms {
        for strict in [Value::Null, json!(false)] {
            assert!(parse(strict, "auto").unwrap().grammar().unwrap().is_some());
        }
        for choice in ["auto", "f"] {
            let error = parse(json!(true), choice).unwrap().grammar().unwrap_err();
            assert_eq!(error.code(), "unsupported");
            let says = "tool 1: parameters/properties/a/uniqueItems is not supported";
            assert!(error.to_string().starts_with(says), "{error}");
        }
        let error = parse(json!("yes"), "auto").unwrap_err();
        assert_eq!(error.to_string(), format!("{place} must be true or false"));
    }
    let tool =
        |parameters| json!([{ "type": "function", "function": { "name": "f", "parameters": parameters } }]);
    let request = |parameters| {
        let request = json!({ "messages": user, "tools": tool(parameters) });
        ChatCompletionRequest::parse(&request.to_string())
    };
    assert!(request(Value::Null).unwrap().options.grammar().unwrap().is_some());
    let error = request(json!([])).unwrap_err().to_string();
    assert_eq!(error, "tools[0].function.parameters must be a JSON Schema");
}

#[test]
fn a_response_streams_what_it_ends_with() {
    let request = json!({ "input": "x", "instructions": "Be\nbrief.", "temperature": 0.5 });
    let request = ResponsesRequest::parse(&request.to_string(), &Reading::new(true)).unwrap();
    let mut writer = ResponseWriter::new(id(), request.repeated.clone());
    let mut events: Vec<Event> = chunks().iter().flat_map(|chunk| writer.chunk(0, chunk)).collect();
    events.extend(writer.finish(0, &finish(Reason::Stop)));
    let events = values(&events);
    let whole: Value = serde_json::from_str(&writer.whole(&[finish(Reason::Stop)])).unwrap();
    assert_eq!(events.last().unwrap()["response"], whole);
    assert_eq!(whole["output"][0]["content"][0], json!({ "type": "reasoning_text", "text": "Hmm." }));
    assert_eq!(whole["output"][1]["content"][0]["text"], "I \"look\".");
    assert_eq!(whole["output"][2]["arguments"], r#"{"city": "Bern"}"#);
    assert_eq!(whole["output"][3]["name"], "weather");
    assert_ne!(whole["output"][2]["call_id"], whole["output"][3]["call_id"]);
    assert_eq!((&whole["instructions"], &whole["temperature"]), (&json!("Be\nbrief."), &json!(0.5)));
    assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 4);
    assert_eq!(whole["usage"]["total_tokens"], 15);
    // The events tell the same: items by their index, and their text in deltas.
    for (index, item) in whole["output"].as_array().unwrap().iter().enumerate() {
        let own: Vec<&Value> = events.iter().filter(|event| event["output_index"] == index).collect();
        assert_eq!(own[0]["type"], "response.output_item.added");
        assert_eq!(own[0]["item"]["id"], item["id"]);
        let done = own.last().unwrap();
        assert_eq!((&done["type"], &done["item"]), (&json!("response.output_item.done"), item));
        let said: String = own.iter().filter_map(|event| event["delta"].as_str()).collect();
        let text = item["arguments"].as_str().or(item["content"][0]["text"].as_str()).unwrap();
        assert_eq!(said, text);
        assert!(own.iter().all(|event| event["item_id"].is_null() || event["item_id"] == item["id"]));
    }
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }

    let mut writer = ResponseWriter::new(id(), request.repeated.clone());
    chunks().iter().for_each(|chunk| drop(writer.chunk(0, chunk)));
    let cut = values(&writer.finish(0, &finish(Reason::Length)));
    assert_eq!(cut.last().unwrap()["response"]["status"], "incomplete");
    let mut writer = ResponseWriter::new(id(), request.repeated.clone());
    let cut = values(&writer.finish(0, &finish(Reason::Length)));
    let last = cut.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    let error = values(&[writer.error(&ApiError::Device("it \"failed\"".into()))]);
    assert_eq!((&error[0]["code"], &error[0]["message"]), (&json!("server_error"), &json!("it \"failed\"")));
    assert_eq!(error[0]["sequence_number"], cut.len());
}

#[test]
fn blocks_of_anthropic_are_messages() {
    let schema = json!({ "type": "object", "properties": {} });
    let request = json!({
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
        "messages": [
            { "role": "user", "content": "How is it?" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Ask.", "signature": "" },
                { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "a", "name": "weather", "input": { "city": "Bern" } },
                { "type": "tool_use", "id": "b", "name": "weather", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "b", "content": [{ "type": "text", "text": "wet" }], "is_error": true },
                { "type": "tool_result", "tool_use_id": "a", "content": "sunny" },
                { "type": "text", "text": "So?" },
            ] },
        ],
        "max_tokens": 7, "top_k": 3, "stop_sequences": ["a", "b"],
        "tools": [{
            "name": "weather", "input_schema": schema, "eager_input_streaming": true, "defer_loading": false,
            "allowed_callers": ["direct"], "input_examples": [{ "city": "Bern" }],
        }],
        "tool_choice": { "type": "any" },
        "thinking": { "type": "enabled", "budget_tokens": 9 }, "metadata": { "user_id": "u" },
    });
    let read = MessagesRequest::parse(&request.to_string(), &Reading::new(true)).unwrap();
    let message = ChatMessage::new;
    assert_eq!(
        read.messages,
        [
            message(Role::System, "Be brief."),
            message(Role::User, "How is it?"),
            assistant(Some("Ask."), "I look.", vec![call(r#"{"city": "Bern"}"#), call("{}")]),
            message(Role::Tool, "sunny"),
            message(Role::Tool, "wet"),
            message(Role::User, "So?"),
        ]
    );
    let tool: Value = serde_json::from_str(&read.options.tools[0]).unwrap();
    assert_eq!(tool["function"], json!({ "name": "weather", "parameters": schema }));
    assert_eq!(read.options.tool_choice, ToolChoice::Required);
    assert_eq!((read.options.max_tokens, read.options.sampler.top_k), (Some(7), 3));
    assert_eq!(
        (read.options.stop_strings, read.options.thinking),
        (vec!["a".into(), "b".into()], Thinking::Budget(9))
    );
    assert!(!read.options.continue_final_message && !read.stream);

    let user = json!([{ "role": "user", "content": "x" }]);
    for (fields, place) in [
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": [] }] }), "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            "messages[0].content[0]",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_use" }] }] }),
            "messages[0].content[0]",
        ),
        (
            json!({ "messages": user, "system": [{ "type": "text", "text": "x", "color": 1 }] }),
            "system[0].color",
        ),
        (json!({ "messages": user, "tools": [{ "type": "bash_20250124", "name": "bash" }] }), "tools[0]"),
        (json!({ "messages": user, "tools": [{ "name": "x" }] }), "tools[0]"),
        (
            json!({ "messages": user, "tools": [{ "name": "x", "input_schema": {}, "defer_loading": true }] }),
            "tools[0].defer_loading",
        ),
        (
            json!({ "messages": user, "tools": [{ "name": "x", "input_schema": {}, "allowed_callers": ["code_execution_20250825"] }] }),
            "tools[0].allowed_callers[0]",
        ),
        (
            json!({ "messages": user, "tools": [{ "name": "x", "input_schema": {}, "eager_input_streaming": 1 }] }),
            "tools[0].eager_input_streaming",
        ),
        (
            json!({ "messages": user, "tools": [{ "name": "x", "input_schema": {}, "input_examples": {} }] }),
            "tools[0].input_examples",
        ),
        (json!({ "messages": user, "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "messages": user, "thinking": { "type": "deep" } }), "thinking.type"),
        (json!({ "messages": user, "stop_sequences": "x" }), "stop_sequences"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a" }] }] }),
            "messages[0].content[0]",
        ),
    ] {
        let error =
            MessagesRequest::parse_prompt(&fields.to_string(), &Reading::new(true)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{place} ")), "{error}: {place}");
    }
}

#[test]
fn a_message_of_anthropic_streams_what_it_ends_with() {
    let request = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 9, "stop_sequences": ["a", "b"] });
    let request = MessagesRequest::parse(&request.to_string(), &Reading::new(true)).unwrap();
    let prompt = Usage { completion_tokens: 0, ..finish(Reason::Stop).usage };
    let mut writer = MessageWriter::new(id(), prompt, request.options.stop_strings.clone());
    let mut events: Vec<Event> = chunks().iter().flat_map(|chunk| writer.chunk(0, chunk)).collect();
    events.extend(writer.finish(0, &finish(Reason::Stop)));
    let events = values(&events);
    let whole: Value = serde_json::from_str(&writer.whole(&[finish(Reason::Stop)])).unwrap();
    let calls = [("Bern", "toolu_7_2"), ("Rome", "toolu_7_3")];
    let calls = calls.map(
        |(city, id)| json!({ "type": "tool_use", "id": id, "name": "weather", "input": { "city": city } }),
    );
    assert_eq!(
        whole["content"],
        json!([{ "type": "thinking", "thinking": "Hmm.", "signature": "" }, { "type": "text", "text": "I \"look\"." }, calls[0], calls[1]])
    );
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("tool_use"), &Value::Null));
    assert_eq!(
        whole["usage"],
        json!({ "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 6 })
    );
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 5);
    for (index, block) in whole["content"].as_array().unwrap().iter().enumerate() {
        let own: Vec<&Value> = events.iter().filter(|event| event["index"] == index).collect();
        assert_eq!(own[0]["type"], "content_block_start");
        assert_eq!(own[0]["content_block"]["type"], block["type"]);
        assert_eq!(own.last().unwrap()["type"], "content_block_stop");
        let delta =
            |name: &str| -> String { own.iter().filter_map(|event| event["delta"][name].as_str()).collect() };
        match block["type"].as_str().unwrap() {
            "tool_use" => {
                assert_eq!(serde_json::from_str::<Value>(&delta("partial_json")).unwrap(), block["input"]);
            }
            kind => assert_eq!(delta(kind), block[kind].as_str().unwrap()),
        }
    }
    let last = &events[events.len() - 2];
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]), (&json!("tool_use"), &whole["usage"]));

    // A reply that is cut off may have lost another call.
    for (reason, code) in
        [(Reason::Length, "max_tokens"), (Reason::ContextFull, "model_context_window_exceeded")]
    {
        let mut writer = MessageWriter::new(id(), prompt, request.options.stop_strings.clone());
        chunks().iter().for_each(|chunk| drop(writer.chunk(0, chunk)));
        writer.finish(0, &finish(reason));
        let whole: Value = serde_json::from_str(&writer.whole(&[finish(reason)])).unwrap();
        assert_eq!(whole["stop_reason"], code);
    }
    for (reason, code) in [
        (Reason::Stop, "end_turn"),
        (Reason::Cancelled, "end_turn"),
        (Reason::Length, "max_tokens"),
        (Reason::ContextFull, "model_context_window_exceeded"),
        (Reason::StopString, "stop_sequence"),
    ] {
        let mut writer = MessageWriter::new(id(), prompt, request.options.stop_strings.clone());
        let events = values(&writer.finish(0, &finish(reason)));
        assert_eq!(events[1]["delta"], json!({ "stop_reason": code, "stop_sequence": null }));
    }
}

#[test]
fn continuations_are_read_like_chat_completions() {
    let text = r#"{"prompt":"x","stream_options":{"include_usage":true}}"#;
    let error = CompletionRequest::parse(text, &Reading::new(true)).unwrap_err();
    assert_eq!(error.to_string(), "stream_options is only for a request with stream");
    let text = text.replace("{\"prompt\"", "{\"stream\":true,\"prompt\"");
    assert!(CompletionRequest::parse(&text, &Reading::new(true)).unwrap().include_usage);
    for (written, seed) in [("7", Some(7)), ("-1", Some(u64::MAX)), ("0.5", None)] {
        let request =
            CompletionRequest::parse(&format!(r#"{{"prompt":"x","seed":{written}}}"#), &Reading::new(true));
        assert_eq!(
            request.ok().map(|request| (request.seed, request.options.sampler.seed)),
            seed.map(|seed| (Some(seed), seed))
        );
    }
}

#[test]
fn a_path_has_the_errors_of_its_interface() {
    for (path, is_anthropic) in [
        ("/v1/messages", true),
        ("/v1/messages/count_tokens", true),
        ("/v1/messages/other", true),
        ("/v1/messages2", false),
        ("/v1/chat/completions", false),
        ("/health", false),
    ] {
        let error = super::dialect(path).error(&ApiError::NotFound(path.into()));
        assert_eq!(error["type"] == "error", is_anthropic, "{path}");
    }
}

/// What agents send: recorded from the programs themselves, which a script answered by a call of a tool and then a text. Long texts
/// are replaced.
#[test]
fn a_choice_may_allow_some_of_the_tools() {
    let user = json!([{ "role": "user", "content": "x" }]);
    let names = |options: &TurnOptions| -> Vec<String> {
        options.tools.iter().filter_map(|tool| shohin::core::chat::function_name(tool)).collect()
    };
    let nested = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let flat = |name: &str| json!({ "type": "function", "name": name });
    let chat = |mode: &str, allowed: &[&str]| {
        let tools: Vec<Value> = allowed.iter().map(|name| nested(name)).collect();
        let choice = json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } });
        let tools = ["f", "g", "h"].map(nested);
        let request = json!({ "messages": user, "tools": tools, "tool_choice": choice });
        ChatCompletionRequest::parse(&request.to_string()).map(|request| request.options)
    };
    let response = |mode: &str, allowed: &[&str]| {
        let tools: Vec<Value> = allowed.iter().map(|name| flat(name)).collect();
        let choice = json!({ "type": "allowed_tools", "mode": mode, "tools": tools });
        let tools = ["f", "g", "h"].map(flat);
        let request = json!({ "input": "x", "tools": tools, "tool_choice": choice });
        ResponsesRequest::parse(&request.to_string(), &Reading::new(true)).map(|request| request.options)
    };
    type Parse<'p> = &'p dyn Fn(&str, &[&str]) -> shohin::core::Result<TurnOptions>;
    let forms: [Parse<'_>; 2] = [&chat, &response];
    for parse in forms {
        let options = parse("auto", &["h", "f"]).unwrap();
        assert_eq!((names(&options), options.tool_choice), (vec!["f".into(), "h".into()], ToolChoice::Auto));
        let options = parse("required", &["g"]).unwrap();
        assert_eq!((names(&options), options.tool_choice), (vec!["g".into()], ToolChoice::Required));
        for (mode, allowed, problem) in [
            ("auto", &["f", "i"][..], "tools[1] is not one of tools"),
            ("always", &["f"], "must have the mode auto or required"),
            ("required", &[], "tools has none to choose from"),
        ] {
            let error = parse(mode, allowed).unwrap_err().to_string();
            assert!(error.contains("tool_choice") && error.contains(problem), "{error}");
        }
    }
}

#[test]
fn what_agents_send_is_read() {
    let recorded = include_str!("../../../tests/fixtures/agents.json");
    let recorded: Vec<Value> = serde_json::from_str(recorded).unwrap();
    let mut seen = Vec::new();
    for request in &recorded {
        let (client, body) = (request["client"].as_str().unwrap(), request["body"].to_string());
        let path = request["path"].as_str().unwrap().split('?').next().unwrap();
        let route =
            super::DIALECTS.iter().flat_map(|dialect| dialect.routes()).find(|route| route.path == path);
        let super::Action::Reply(read) = route.unwrap().action else { panic!("{path}") };
        let reading = Reading::new(false);
        let read = read(&body, &reading).unwrap_or_else(|error| panic!("{client}: {error}"));
        let super::PromptInput::Messages(messages) = &read.prompts[0] else { panic!("{client}") };
        let calls: usize = messages.iter().map(|message| message.tool_calls.len()).sum();
        let results = messages.iter().filter(|message| message.role == Role::Tool).count();
        let left: usize = read
            .options
            .tools
            .iter()
            .map(|tool| shohin::core::constrain::Grammar::left_out(tool).unwrap().len())
            .sum();
        read.options.grammar().unwrap_or_else(|error| panic!("{client}: {error}"));
        seen.push((client.split(' ').next().unwrap(), read.options.tools.len(), calls, results, left));
        let aside = ["client_metadata", "include[]", "tools[]"];
        let codex = path.ends_with("/responses");
        assert_eq!(reading.left_aside(), if codex { &aside[..] } else { &[] }, "{client}");
    }
    assert_eq!(
        seen,
        [
            ("Claude", 24, 0, 0, 2),
            ("Claude", 24, 1, 1, 2),
            ("Codex", 7, 0, 0, 0),
            ("Codex", 7, 1, 1, 0),
            ("opencode", 0, 0, 0, 0),
            ("opencode", 10, 0, 0, 0),
            ("opencode", 10, 1, 1, 0),
            ("aider", 0, 0, 0, 0),
        ]
    );
}
