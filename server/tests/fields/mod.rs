//! Which fields of requests are honoured, left aside and refused.

mod http;
mod log;
mod models;
mod others;

use super::*;

fn left_aside(answer: &Answer) -> String {
    answer.header("shohin-left-aside").unwrap_or_default().to_owned()
}

#[test]
fn fields_that_ask_for_nothing_are_left_aside_and_named_once() {
    let (server, strict) = (Running::new(|_| ()), Running::new(|options| options.strict = true));
    let want = alone("Hello!");
    for (path, request, aside, refused) in [
        (
            "/v1/chat/completions",
            json!({ "surprise": 1, "trace": { "id": 1 }, "audio": null, "stream_options": {}, "top_logprobs": 2,
                "messages": [{ "role": "user", "content": "x", "id": "a" }, { "role": "assistant", "content": "y", "id": "b" },
                    { "role": "user", "content": [{ "type": "text", "text": "Hello!", "cache_control": { "type": "ephemeral" } }] }] }),
            "surprise, trace, top_logprobs, messages[].id, messages[].content[].cache_control, stream_options",
            "surprise",
        ),
        (
            "/v1/messages",
            json!({ "betas": ["x"], "output_config": { "effort": "high" }, "context_management": { "edits": [] } }),
            "betas",
            "betas",
        ),
        (
            "/v1/responses",
            json!({ "input": "Hello!", "messages": null, "client_metadata": {}, "include": ["reasoning.encrypted_content"], "store": true,
                "text": { "verbosity": "low" }, "max_output_tokens": 20, "max_tokens": null }),
            "client_metadata, store, include[], text.verbosity",
            "client_metadata",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "x", "messages": null, "mirostat": 2 }),
            "mirostat",
            "mirostat",
        ),
        (
            "/v1/embeddings",
            json!({ "input": "x", "messages": null, "truncate": true, "max_tokens": null, "temperature": null }),
            "truncate",
            "truncate",
        ),
    ] {
        let body = with(ask("Hello!"), request);
        let answer = server.post(path, &body);
        assert_eq!((answer.status, &*left_aside(&answer)), (200, aside), "{path}");
        if path == "/v1/messages" {
            assert_eq!(answer.json()["content"][0]["text"], want);
        }
        let answer = strict.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text().contains(&format!("{refused} is ")), "{path}");
    }
    assert_eq!(left_aside(&server.post("/v1/chat/completions", &ask("Hello!"))), "");
    // The header is of bounded length, whatever fields are called.
    let many: Value = (0..200)
        .map(|i| (format!("é\n{i}{}", "x".repeat(40)), json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let answer = server.post("/v1/chat/completions", &with(ask("Hello!"), many));
    let header = left_aside(&answer);
    assert!(answer.status == 200 && header.len() < 1100 && header.ends_with("..."), "{header}");
}

#[test]
fn fields_whose_omission_would_change_the_reply_are_refused() {
    let server = Running::new(|_| ());
    let image =
        json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "data:," } }] }]);
    for (path, fields, param, says) in [
        ("/v1/chat/completions", json!({ "messages": image }), "messages[0].content[0]", "text only"),
        (
            "/v1/chat/completions",
            json!({ "modalities": ["text", "audio"] }),
            "modalities[1]",
            "expected text",
        ),
        ("/v1/chat/completions", json!({ "audio": { "voice": "x" } }), "audio", "text"),
        ("/v1/chat/completions", json!({ "functions": [{ "name": "f" }] }), "functions", "them in tools"),
        (
            "/v1/chat/completions",
            json!({ "tools": [{ "type": "web_search", "name": "x" }] }),
            "tools[0]",
            "type function",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user" }] }),
            "messages[0].content",
            "is missing",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": null }] }),
            "messages[0].content",
            "is missing",
        ),
        ("/v1/chat/completions", json!({ "logit_bias": { "99999999": 1 } }), "logit_bias", "99999999"),
        ("/v1/chat/completions", json!({ "logit_bias": { "a": 1 } }), "logit_bias", "by token"),
        ("/v1/chat/completions", json!({ "grammar": "root ::=" }), "grammar", "grammar"),
        ("/v1/chat/completions", json!({ "json_schema": { "type": "cow" } }), "json_schema/type", "type"),
        ("/v1/chat/completions", json!({ "guided_regex": "(" }), "guided_regex", ""),
        ("/v1/chat/completions", json!({ "min_p": 2 }), "min_p", "0 to 1"),
        (
            "/v1/responses",
            json!({ "input": [{ "type": "item_reference", "id": "x" }], "messages": null, "max_tokens": null }),
            "input[0]",
            "set store to false",
        ),
        (
            "/v1/responses",
            json!({ "input": "x", "messages": null, "previous_response_id": "r" }),
            "previous_response_id",
            "nothing is stored",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "x", "messages": null, "suffix": "y" }),
            "suffix",
            "no tokens to fill in",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "x", "messages": null, "best_of": 2 }),
            "best_of",
            "as many as n",
        ),
        ("/v1/embeddings", json!({ "input": "x", "dimensions": 8 }), "dimensions", "size"),
    ] {
        let answer = server.post(path, &with(ask("Hello!"), fields));
        let status = answer.status;
        let error = &answer.json()["error"];
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        assert!(!error["message"].as_str().unwrap().contains("\"\""), "{error}");
    }
    // The whole place, however long it is.
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": 5 } });
    let answer = server.post("/v1/chat/completions", &with(ask("x"), json!({ "response_format": schema })));
    assert_eq!(answer.json()["error"]["param"], "response_format.json_schema.schema");
    let deep = json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": "{}", "x": 1 } }] }]);
    let strict = Running::new(|options| options.strict = true);
    let error = strict.post("/v1/chat/completions", &with(ask("x"), json!({ "messages": deep }))).json();
    assert_eq!(error["error"]["param"], "messages[0].tool_calls[0].function.x");
    let says = "messages[0].tool_calls[0].function.x is \"1\", which is not supported; expected a request without it";
    assert_eq!(error["error"]["message"], says);
}

#[test]
fn several_replies_have_the_texts_of_single_ones_with_their_seeds() {
    let server = Running::new(|_| ());
    let hot = json!({ "temperature": 1.5, "seed": 5, "max_tokens": 8 });
    let single = |seed: u64| {
        let answer = server.chat(&with(with(ask("Hello!"), hot.clone()), json!({ "seed": seed })));
        content(&answer).to_owned()
    };
    let want: Vec<String> = (5..8).map(single).collect();
    let request = with(with(ask("Hello!"), hot), json!({ "n": 3, "logprobs": true }));
    let answer = server.chat(&request);
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<&str> =
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, want);
    let tokens: usize =
        choices.iter().map(|choice| choice["logprobs"]["content"].as_array().unwrap().len()).sum();
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() as usize >= tokens && tokens > 3);
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    let streaming = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let events: Vec<String> =
        server.post("/v1/chat/completions", &with(request, streaming)).events().collect();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let mut streamed = vec![String::new(); 3];
    let mut ends = 0;
    for chunk in chunks.iter().map(|chunk| serde_json::from_str::<Value>(chunk).unwrap()) {
        for choice in chunk["choices"].as_array().unwrap() {
            let at = choice["index"].as_u64().unwrap() as usize;
            streamed[at].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            ends += usize::from(!choice["finish_reason"].is_null());
        }
    }
    assert_eq!((streamed, ends), (want, 3));
    let last: Value = serde_json::from_str(&chunks[chunks.len() - 1]).unwrap();
    assert_eq!(last["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
}

#[test]
fn sampling_fields_of_other_servers_are_those_of_the_library() {
    let server = Running::new(|_| ());
    let fields = json!({
        "temperature": 1.2, "seed": 3, "top_k": -1, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.9, "repeat_penalty": 1.3,
        "repeat_last_n": 32, "dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 1, "dry_penalty_last_n": 40, "n_predict": 12,
    });
    let mut chat = MODEL.chat().unwrap();
    let options = chat.options_mut();
    options.max_tokens = Some(12);
    options.sampler = shohin::SamplerConfig {
        temperature: 1.2,
        seed: 3,
        top_k: 0,
        top_p: 0.9,
        min_p: 0.05,
        typical_p: 0.9,
        repetition_penalty: 1.3,
        penalty_last_n: 32,
        dry_multiplier: 0.5,
        dry_base: 2.0,
        dry_allowed_length: 1,
        dry_last_n: 40,
        ..options.sampler
    };
    let want = chat.send("Tell me a story.").unwrap().finish().unwrap().message.content;
    let mut request = with(ask("Tell me a story."), fields);
    request.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(content(&server.chat(&request)), want);
    // A number of tokens without a limit.
    let answer = server.chat(&with(ask("What does a cow say?"), json!({ "max_tokens": -1 })));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_biased_token_comes_or_does_not() {
    let server = Running::new(|_| ());
    let request = with(ask("What does a cow say?"), json!({ "logprobs": true, "max_tokens": 4 }));
    let plain = server.chat(&request);
    let first = plain["choices"][0]["logprobs"]["content"][0]["token"].as_str().unwrap().to_owned();
    let token = MODEL.tokenizer().id_of(first.as_bytes()).unwrap();
    let other = (token + 1).to_string();
    for bias in [json!({ token.to_string(): -100 }), json!([[token, false]]), json!([[token, -100]])] {
        let answer = server.chat(&with(request.clone(), json!({ "logit_bias": bias })));
        assert_ne!(answer["choices"][0]["logprobs"]["content"][0]["token"], *first);
    }
    let answer =
        server.chat(&with(request.clone(), json!({ "logit_bias": { other: 100 }, "max_tokens": 1 })));
    let bytes: Vec<u8> = MODEL.tokenizer().token_bytes(token + 1).unwrap().collect();
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["bytes"], json!(bytes));
    assert_eq!(server.chat(&with(request, json!({ "logit_bias": {} })))["choices"], plain["choices"]);
}

#[test]
fn replies_have_the_forms_of_other_servers() {
    let server = Running::new(|_| ());
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"] });
    for fields in [
        json!({ "json_schema": schema }),
        json!({ "guided_json": schema }),
        json!({ "guided_json": schema.to_string() }),
        json!({ "response_format": { "type": "json_object", "schema": schema } }),
        json!({ "grammar": r#"root ::= "{\"a\":" [12] "}""# }),
        json!({ "guided_regex": r#"\{"a":[12]\}"# }),
        json!({ "guided_choice": ["{\"a\":1}", "{\"a\":2}"] }),
    ] {
        let answer = server.chat(&with(ask("Hello!"), fields.clone()));
        let reply: Value = serde_json::from_str(content(&answer)).unwrap();
        assert!(matches!(reply["a"].as_u64(), Some(1 | 2)), "{fields}: {reply}");
    }
    // A reply that goes on.
    let want = alone("What does a cow say?");
    let (begin, rest) = want.split_at(5);
    let messages = json!([{ "role": "user", "content": "What does a cow say?" }, { "role": "assistant", "content": begin }]);
    let fields =
        json!({ "messages": messages, "continue_final_message": true, "add_generation_prompt": false });
    let answer = server.chat(&with(ask(""), fields));
    assert!([rest, &want].contains(&content(&answer)), "{answer}");
}

#[test]
fn continuations_repeat_and_measure_their_prompts() {
    let server = Running::new(|_| ());
    let prompts = ["Once upon a time", "The cow"].map(|text| MODEL.tokenize(text));
    // As lm-evaluation-harness asks for the likelihood of a text.
    let request = json!({ "model": "sprout", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true });
    let answer = server.post("/v1/completions", &request).ok();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (i, (choice, tokens)) in choices.iter().zip(&prompts).enumerate() {
        assert_eq!(choice["index"], i);
        let measured = &choice["logprobs"];
        let logprobs = measured["token_logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), tokens.len() + 1);
        assert_eq!((&logprobs[0], &measured["top_logprobs"][0]), (&Value::Null, &Value::Null));
        // Against the softmax of the logits in double precision.
        let mut want = Vec::new();
        MODEL
            .logits(tokens, &mut |i, logits| {
                let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
                want.extend(tokens.get(i + 1).map(|&next| f64::from(logits[next as usize]) - sum.ln()));
            })
            .unwrap();
        for (found, want) in logprobs[1..].iter().zip(&want) {
            assert!((found.as_f64().unwrap() - want).abs() < 1e-4, "{found} {want}");
        }
        assert!(choice["text"].as_str().unwrap().starts_with(&MODEL.detokenize(tokens).unwrap()));
        assert_eq!(measured["text_offset"][0], 0);
    }
    // Without logprobs, as a text; several of each.
    let request =
        json!({ "prompt": ["The cow", "Once"], "max_tokens": 3, "n": 2, "echo": true, "temperature": 0 });
    let answer = server.post("/v1/completions", &request).ok();
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert!(
        texts[0].starts_with("The cow") && texts[2].starts_with("Once") && texts[0] == texts[1],
        "{texts:?}"
    );
    let streamed: Vec<String> =
        server.post("/v1/completions", &with(request, json!({ "stream": true }))).events().collect();
    let mut parts = vec![String::new(); 4];
    for event in &streamed[..streamed.len() - 1] {
        let event: Value = serde_json::from_str(event).unwrap();
        let choice = &event["choices"][0];
        parts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(parts, texts);
    let nothing = json!({ "prompt": "The cow", "max_tokens": 0, "echo": true, "logprobs": 0 });
    let answer = server.post("/v1/completions", &nothing).ok();
    assert_eq!(answer["choices"][0]["text"], "The cow");
    assert_eq!(
        answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(),
        MODEL.tokenize("The cow").len()
    );
}

/// The built-in model whose control tokens have the names by which models are told to fill in a text.
#[test]
fn a_text_is_filled_in_by_the_tokens_of_the_model() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf");
    let bytes = std::fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    let tokens = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap().iter();
    let tokens = tokens.map(|token| match std::str::from_utf8(token).unwrap() {
        "<|im_start|>" => "<|fim_prefix|>",
        "<|endoftext|>" => "<|fim_suffix|>",
        "<|im_end|>" => "<|fim_middle|>",
        other => other,
    });
    let mut renamed = GgufWriter::new();
    renamed.set_strings("tokens", tokens.collect::<Vec<_>>()).unwrap();
    let renamed = renamed.header().unwrap();
    let renamed = Gguf::parse(&renamed).unwrap();
    let (_, tokens) = renamed.metadata().iter().find(|(key, _)| *key == "tokens").unwrap();
    let model = model_with(&[("tokenizer.ggml.tokens", tokens)]);
    let server = Running::with(&model, |_| ());
    let exact = json!({ "temperature": 0, "max_tokens": 6 });
    let filled = server
        .post("/v1/completions", &with(json!({ "prompt": "The ", "suffix": " says moo." }), exact.clone()));
    let mut tokens = Vec::new();
    let text = "<|fim_prefix|>The <|fim_suffix|> says moo.<|fim_middle|>";
    model.tokenizer().encode(text, Special::Parse, &mut tokens);
    let want = server.post("/v1/completions", &with(json!({ "prompt": tokens }), exact)).ok();
    let filled = filled.ok();
    assert_eq!(
        filled["usage"],
        with(
            want["usage"].clone(),
            json!({ "prompt_tokens_details": filled["usage"]["prompt_tokens_details"] })
        )
    );
    assert_eq!(filled["choices"][0]["text"], want["choices"][0]["text"]);
}

#[test]
fn whether_to_think_is_said_in_every_form() {
    let server = Running::with(&model_with_tools(), |_| ());
    let count = |fields: Value| {
        server.chat(&with(ask("Hello!"), with(fields, json!({ "max_tokens": 1 }))))["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let (on, off) = (count(json!({ "thinking": true })), count(json!({ "thinking": false })));
    assert_ne!(on, off);
    for (fields, thinks) in [
        (json!({}), false),
        (json!({ "think": true }), true),
        (json!({ "think": "low" }), true),
        (json!({ "think": false, "reasoning_effort": "high" }), false),
        (json!({ "enable_thinking": true }), true),
        (json!({ "chat_template_kwargs": { "enable_thinking": true, "other": 1 } }), true),
        (json!({ "chat_template_kwargs": { "enable_thinking": false } }), false),
        (json!({ "reasoning": { "effort": "medium" } }), true),
        (json!({ "reasoning": { "enabled": false } }), false),
        (json!({ "reasoning": { "max_tokens": 5 } }), true),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 9 } }), true),
        (json!({ "thinking": { "type": "disabled" } }), false),
    ] {
        assert_eq!(count(fields.clone()), if thinks { on } else { off }, "{fields}");
    }
}

#[test]
fn histories_are_read_as_clients_send_them_back() {
    let server = Running::with(&model_with_tools(), |_| ());
    let tool = json!({ "name": "f", "parameters": city() });
    let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    // Templates leave out the thoughts before the last user's message.
    let chat = |extra: Value| {
        let messages = json!([
            { "role": "user", "content": "Hello!" },
            with(json!({ "role": "assistant", "content": "", "tool_calls": [call] }), extra),
            { "role": "tool", "tool_call_id": "c", "content": "1" },
        ]);
        let tools = json!([{ "type": "function", "function": tool }]);
        let answer = server.post(
            "/v1/chat/completions",
            &with(ask(""), json!({ "messages": messages, "tools": tools, "max_tokens": 1 })),
        );
        answer.ok()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = chat(json!({}));
    let thinks = chat(json!({ "reasoning": "Hm, so." }));
    assert_ne!(plain, thinks);
    for (extra, tokens) in [
        (json!({ "reasoning_content": "Hm, so." }), thinks),
        (
            json!({ "reasoning_details": [{ "type": "reasoning.text", "text": "Hm, so.", "signature": null }] }),
            thinks,
        ),
        (json!({ "reasoning_details": [{ "type": "reasoning.encrypted", "data": "x" }] }), plain),
        (
            json!({ "id": "msg_1", "refusal": null, "annotations": [], "audio": null, "function_call": null }),
            plain,
        ),
        (json!({ "content": [{ "type": "refusal", "refusal": "" }] }), plain),
    ] {
        assert_eq!(chat(extra.clone()), tokens, "{extra}");
    }
    // What is left aside in a tool is not shown to the model.
    let tokens = |tool: Value| {
        let answer =
            server.post("/v1/chat/completions", &with(ask("x"), json!({ "tools": [tool], "max_tokens": 1 })));
        answer.ok()["usage"]["prompt_tokens"].clone()
    };
    let wrapped = json!({ "type": "function", "function": tool });
    let cached = with(wrapped.clone(), json!({ "cache_control": { "type": "ephemeral" } }));
    assert_eq!(tokens(cached), tokens(wrapped));
    // Tools of other types beside functions.
    let tools = json!([{ "type": "web_search" }, with(tool.clone(), json!({ "type": "function" })), { "type": "custom", "name": "g" }]);
    let answer =
        server.post("/v1/responses", &json!({ "input": "x", "tools": tools, "max_output_tokens": 1 }));
    assert_eq!((answer.status, &*left_aside(&answer)), (200, "tools[]"));
}

#[test]
fn messages_of_anthropics_clients_are_read_whole() {
    let server = Running::with(&model_with_tools(), |_| ());
    let schema = json!({ "type": "object", "properties": { "a": { "const": 1 } }, "required": ["a"] });
    let request = json!({
        "max_tokens": 30, "temperature": 0,
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral", "ttl": "1h" } }],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "Hello!" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Hm.", "signature": "" },
                { "type": "redacted_thinking", "data": "x" },
                { "type": "tool_use", "id": "a", "name": "find", "input": {}, "cache_control": { "type": "ephemeral" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "tool_reference", "tool_name": "f" }] },
            ] },
            { "role": "system", "content": "Answer in JSON." },
            { "role": "user", "content": "And?" },
        ],
        "tools": [
            { "name": "find", "input_schema": { "type": "object" }, "defer_loading": true },
            { "type": "web_search_20250305", "name": "web_search" },
        ],
        "tool_choice": { "type": "none" },
        "context_management": { "edits": [{ "type": "clear_tool_uses_20250919" }] },
        "output_config": { "effort": "high", "format": { "type": "json_schema", "schema": schema } },
    });
    let answer = server.post("/v1/messages?beta=true", &request);
    assert_eq!(answer.status, 200);
    let reply: Value = serde_json::from_str(answer.json()["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(reply, json!({ "a": 1 }));
}

#[test]
fn what_a_tool_schema_has_beyond_the_engine_is_named() {
    let server = Running::with(&model_with_tools(), |_| ());
    let tags = json!({ "type": "array", "uniqueItems": true, "maxItems": 2, "items": { "const": "x" } });
    let parameters = json!({ "type": "object", "properties": { "tags": tags }, "required": ["tags"] });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let fields = json!({ "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false, "temperature": 1.5, "seed": 1, "max_tokens": 99 });
    let answer = server.post("/v1/chat/completions", &with(ask("Hello!"), fields));
    assert_eq!(left_aside(&answer), "tools[0].function.parameters/properties/tags/uniqueItems");
    let answer = answer.ok();
    let arguments =
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let tags = arguments["tags"].as_array().unwrap();
    assert!(tags.len() <= 2 && tags.iter().all(|tag| tag == "x"), "{arguments}");
}

/// Of a stop string, neither the text nor the log-probabilities are part of the answer.
#[test]
fn log_probabilities_are_those_of_the_text() {
    let server = Running::new(|_| ());
    let request = with(ask("What does a cow say?"), json!({ "logprobs": true }));
    let plain = server.chat(&request);
    let whole = content(&plain).to_owned();
    let said = |choice: &Value| -> String {
        let entries = choice["logprobs"]["content"].as_array().unwrap();
        entries.iter().map(|entry| entry["token"].as_str().unwrap()).collect()
    };
    assert_eq!(said(&plain["choices"][0]), whole);
    // It ends within the text of several tokens.
    for at in (2..whole.len() - 6).step_by(3) {
        let stop = &whole[at..at + 5];
        let stopped = with(request.clone(), json!({ "stop": stop }));
        let answer = server.chat(&stopped);
        let text = content(&answer).to_owned();
        let tokens = said(&answer["choices"][0]);
        assert!(tokens.starts_with(&text) && !tokens.contains(stop), "{stop:?}: {text:?} {tokens:?}");
        let streamed =
            server.post("/v1/chat/completions", &with(stopped, json!({ "stream": true }))).events();
        let chunks: Vec<Value> = streamed.filter_map(|event| serde_json::from_str(&event).ok()).collect();
        let parts: String = chunks
            .iter()
            .filter(|c| c["choices"][0]["logprobs"].is_object())
            .map(|c| said(&c["choices"][0]))
            .collect();
        assert_eq!(parts, tokens);
    }
}

#[test]
fn a_schema_is_refused_by_its_whole_place() {
    let server = Running::with(&model_with_tools(), |_| ());
    let deep = |schema: Value| {
        (0..5).fold(
            schema,
            |inner, i| json!({ "type": "object", "properties": { format!("property{i}"): inner } }),
        )
    };
    let schema = deep(json!({ "uniqueItems": true }));
    let pointer: String = (0..5).rev().map(|i| format!("/properties/property{i}")).collect();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let tool =
        json!({ "type": "function", "function": { "name": "f", "parameters": schema, "strict": true } });
    for (fields, place) in [
        (json!({ "response_format": format }), "response_format.json_schema.schema"),
        (json!({ "tools": [tool] }), "tools[0].function.parameters"),
    ] {
        let answer = server.post("/v1/chat/completions", &with(ask("x"), fields));
        assert_eq!(answer.status, 400);
        let error = answer.json();
        let place = format!("{place}{pointer}/uniqueItems");
        assert_eq!(error["error"]["param"], place);
        assert!(error["error"]["message"].as_str().unwrap().starts_with(&place), "{error}");
    }
}
