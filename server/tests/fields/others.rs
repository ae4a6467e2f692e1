//! Ollama's interface, and paths of llama.cpp.

use super::super::*;

fn lines(answer: Answer) -> Vec<Value> {
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")));
    answer.ok_text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn chat(text: &str) -> Value {
    json!({ "model": "sprout", "messages": [{ "role": "user", "content": text }], "options": { "temperature": 0, "num_predict": 20 } })
}

#[test]
fn ollamas_chats_are_those_of_the_model() {
    let server = Running::new(|_| ());
    let want = alone("What does a cow say?");
    let request = chat("What does a cow say?");
    let streamed = lines(server.post("/api/chat", &request));
    let (last, parts) = streamed.split_last().unwrap();
    let text: String = parts.iter().map(|part| part["message"]["content"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &last["done"], &last["done_reason"]), (&*want, &json!(true), &json!("stop")));
    assert!(parts.iter().all(|part| part["done"] == false && part["model"] == "sprout"));
    assert!(last["prompt_eval_count"].as_u64().unwrap() > 5 && last["eval_count"].as_u64().unwrap() > 2);
    let whole = server
        .post(
            "/api/chat",
            &with(request.clone(), json!({ "stream": false, "model": "sprout:latest", "keep_alive": "5m" })),
        )
        .ok();
    assert_eq!((whole["message"]["content"].as_str().unwrap(), &whole["done"]), (&*want, &json!(true)));

    let generated =
        json!({ "prompt": "What does a cow say?", "options": { "temperature": 0, "num_predict": 20 } });
    let streamed = lines(server.post("/api/generate", &generated));
    let text: String = streamed.iter().map(|part| part["response"].as_str().unwrap()).collect();
    assert_eq!(text, want);
    let raw = with(generated, json!({ "raw": true, "stream": false }));
    let text = server
        .post(
            "/v1/completions",
            &json!({ "prompt": "What does a cow say?", "temperature": 0, "max_tokens": 20 }),
        )
        .ok();
    assert_eq!(server.post("/api/generate", &raw).ok()["response"], text["choices"][0]["text"]);
    // A model is loaded by a request for nothing.
    for path in ["/api/chat", "/api/generate"] {
        let loaded = lines(server.post(path, &json!({ "model": "sprout" }))).pop().unwrap();
        assert_eq!(
            (&loaded["done_reason"], &loaded["done"], &loaded["eval_count"]),
            (&json!("load"), &json!(true), &json!(0))
        );
    }
    let schema = json!({ "type": "object", "properties": { "a": { "const": 1 } }, "required": ["a"] });
    for format in [schema, json!("json")] {
        let request = with(
            chat("Hello!"),
            json!({ "format": format, "stream": false, "options": { "num_predict": 60, "temperature": 0 } }),
        );
        let reply = server.post("/api/chat", &request).ok();
        let content = reply["message"]["content"].as_str().unwrap();
        assert!(content.starts_with('{'), "{content}");
    }
    for (path, request, status, says) in [
        ("/api/chat", with(chat("x"), json!({ "model": "other" })), 404, "not here"),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "x", "images": ["AA=="] }] }),
            400,
            "messages[0].images",
        ),
        ("/api/generate", json!({ "prompt": "x", "context": [1] }), 400, "/api/chat"),
        ("/api/chat", with(chat("x"), json!({ "format": "xml" })), 400, "format is"),
        ("/api/other", json!({}), 404, "nothing at"),
    ] {
        let answer = server.post(path, &request);
        let found = answer.status;
        let error = answer.json();
        let message = error["error"].as_str().or(error["error"]["message"].as_str()).unwrap();
        assert!(found == status && message.contains(says), "{path}: {error}");
    }
}

#[test]
fn ollamas_tools_are_called_and_answered() {
    let server = Running::with(&model_with_tools(), |_| ());
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": city() } });
    let count = |messages: Value| {
        let request = json!({ "messages": messages, "tools": [tool], "stream": false, "options": { "num_predict": 1 } });
        server.post("/api/chat", &request).ok()["prompt_eval_count"].as_u64().unwrap()
    };
    let question = json!({ "role": "user", "content": "And?" });
    let called = json!({ "role": "assistant", "content": "", "tool_calls": [{ "function": { "name": "weather", "arguments": { "city": "Bern", "days": 1 } } }] });
    let result = json!({ "role": "tool", "tool_name": "weather", "content": "wet" });
    let short = count(json!([question]));
    // The same conversation in OpenAI's form.
    let openai = json!({ "messages": [question, { "role": "assistant", "content": "", "tool_calls": [{ "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Bern\", \"days\": 1}" } }] },
        { "role": "tool", "tool_call_id": "a", "content": "wet" }], "tools": [tool], "max_tokens": 1 });
    let same = server.post("/v1/chat/completions", &openai).ok()["usage"]["prompt_tokens"].as_u64().unwrap();
    let long = count(json!([question, called, result]));
    assert!(long == same && long > short);
}

#[test]
fn ollamas_models_are_listed_and_embed() {
    let server = Running::new(|_| ());
    let get = |path: &str| server.send("GET", path, "", &[]).ok();
    assert_eq!(get("/api/tags")["models"][0]["name"], "sprout");
    assert_eq!(get("/api/ps")["models"][0]["context_length"], 512);
    assert!(get("/api/version")["version"].is_string());
    let shown = server.post("/api/show", &json!({ "model": "sprout" })).ok();
    assert_eq!(shown["model_info"]["general.architecture"], "qwen3");
    assert_eq!(shown["details"]["format"], "gguf");
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")));
    assert_eq!(server.post("/api/show", &json!({ "model": "other" })).status, 404);
    let want = server.post("/v1/embeddings", &json!({ "input": ["a", "b"] })).ok();
    let found = server.post("/api/embed", &json!({ "model": "sprout", "input": ["a", "b"] })).ok();
    let first = server.post("/api/embeddings", &json!({ "prompt": "a" })).ok();
    for i in 0..2 {
        let of = |list: &Value| {
            list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<f32>>()
        };
        assert_eq!(of(&found["embeddings"][i]), of(&want["data"][i]["embedding"]));
        assert_eq!(of(&first["embedding"]), of(&want["data"][0]["embedding"]));
    }
    assert_eq!(found["prompt_eval_count"], want["usage"]["prompt_tokens"]);
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = Running::new(|_| ());
    let text = "Héllo, <|im_start|>cow!";
    for (fields, special) in
        [(json!({}), Special::Parse), (json!({ "parse_special": false }), Special::UserDefined)]
    {
        let mut tokens = Vec::new();
        MODEL.tokenizer().encode(text, special, &mut tokens);
        let found = server.post("/tokenize", &with(json!({ "content": text }), fields)).ok();
        assert_eq!(found["tokens"], json!(tokens));
    }
    let tokens = MODEL.tokenize("Once upon a time");
    assert_eq!(server.post("/detokenize", &json!({ "tokens": tokens })).ok()["content"], "Once upon a time");
    let pieces = server.post("/tokenize", &json!({ "content": "Once", "with_pieces": true })).ok();
    let joined: String =
        pieces["tokens"].as_array().unwrap().iter().map(|piece| piece["piece"].as_str().unwrap()).collect();
    assert_eq!(joined, "Once");
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [99_999_999] })).status, 400);
    assert_eq!(server.post("/tokenize", &json!({})).json()["error"]["param"], "content");
    let props = server.send("GET", "/props", "", &[]).ok();
    assert_eq!(
        (&props["total_slots"], &props["default_generation_settings"]["n_ctx"]),
        (&json!(4), &json!(512))
    );
}
