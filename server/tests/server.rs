//! The server with the built-in model, over real connections.

mod adapters;
mod fields;

use serde_json::{Value, json};
use shohin::core::chat::Role;
use shohin::core::gguf::{Gguf, GgufWriter, Value as Metadata};
use shohin::core::model::Pooling;
use shohin::core::tokenizer::Special;
use shohin::{ChatMessage, Model, ModelFile};
use shohin_server::{Server, ServerOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::builder().context(512).load_built_in().unwrap());

/// A server on a thread, which is shut down with it.
struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(change: impl FnOnce(&mut ServerOptions)) -> Running {
        Running::with(&MODEL, change)
    }

    fn with(model: &Model, change: impl FnOnce(&mut ServerOptions)) -> Running {
        Running::within(model, change, || ())
    }

    /// On a thread with what `prepare` makes.
    fn within<T>(
        model: &Model,
        change: impl FnOnce(&mut ServerOptions),
        prepare: impl FnOnce() -> T + Send + 'static,
    ) -> Running {
        let model = model.clone();
        let mut options = ServerOptions::new("sprout");
        change(&mut options);
        let (stop, stopped) = oneshot::channel();
        let (address, bound) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let _prepared = prepare();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(model, options).await.unwrap();
                address.send(server.address()).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
        });
        Running { address: bound.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    fn send(&self, method: &str, path: &str, body: impl AsRef<[u8]>, headers: &[(&str, &str)]) -> Answer {
        self.try_send(method, path, body, headers).unwrap()
    }

    fn try_send(
        &self,
        method: &str,
        path: &str,
        body: impl AsRef<[u8]>,
        headers: &[(&str, &str)],
    ) -> Result<Answer, ureq::Error> {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let (parts, body) = agent.run(request.body(body.as_ref()).unwrap())?.into_parts();
        let (status, headers) = (parts.status.as_u16(), parts.headers);
        Ok(Answer { status, headers, body: Box::new(body.into_reader()) })
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, body.to_string(), &[])
    }

    fn chat(&self, body: &Value) -> Value {
        self.post("/v1/chat/completions", body).ok()
    }

    /// Shuts down, and waits until it has ended.
    fn shut_down(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Answer {
    status: u16,
    headers: ureq::http::HeaderMap,
    body: Box<dyn Read + Send>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn text(mut self) -> String {
        let mut text = String::new();
        self.body.read_to_string(&mut text).unwrap();
        text
    }

    fn json(self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    fn ok_text(self) -> String {
        assert_eq!(self.status, 200);
        self.text()
    }

    fn ok(self) -> Value {
        assert_eq!(self.status, 200);
        self.json()
    }

    /// The data of its events.
    fn events(self) -> impl Iterator<Item = String> {
        assert_eq!(self.status, 200);
        BufReader::new(self.body)
            .lines()
            .filter_map(|line| line.unwrap().strip_prefix("data: ").map(String::from))
    }
}

fn ask(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 20 })
}

fn with(mut request: Value, fields: Value) -> Value {
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// A streamed reply that ends in an hour.
fn endless() -> Value {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "string", "minLength": 50_000_000 } } });
    with(
        ask("Hello!"),
        json!({ "stream": true, "overflow": "shift", "max_tokens": null, "response_format": format }),
    )
}

/// A number of the server's metrics.
fn counter(server: &Running, name: &str) -> u64 {
    let text = server.send("GET", "/metrics", "", &[]).ok_text();
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("shohin_{name} ")));
    value.unwrap().parse().unwrap()
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// What the model says without a server.
fn alone(text: &str) -> String {
    let mut chat = MODEL.chat().unwrap();
    chat.options_mut().sampler.temperature = 0.0;
    chat.options_mut().max_tokens = Some(20);
    chat.send(text).unwrap().finish().unwrap().message.content
}

/// Asks until the answer is `ok`, for half a minute.
fn soon(mut ok: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !ok() {
        assert!(Instant::now() < end, "it does not become so");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_reply_is_the_models_whole_or_streamed() {
    let server = Running::new(|_| ());
    let want = alone("What does a cow say?");
    let answer = server.chat(&with(ask("What does a cow say?"), json!({ "model": "sprout" })));
    assert_eq!((content(&answer), &answer["object"]), (&*want, &json!("chat.completion")));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let streaming = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let events = server.post("/v1/chat/completions", &with(ask("What does a cow say?"), streaming)).events();
    let events: Vec<String> = events.collect();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let text = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(String::from);
    assert_eq!(chunks.iter().filter_map(text).collect::<String>(), want);
    let usage = &chunks.last().unwrap()["usage"];
    // The prompt was known but for its last token.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], tokens - 1);
    assert_eq!(usage["completion_tokens"], answer["usage"]["completion_tokens"]);
}

#[test]
fn requests_at_once_get_the_replies_of_one_after_the_other() {
    let server = Running::new(|options| options.replies = 3);
    let texts: Vec<String> =
        (0..12).map(|i| format!("Tell me about {i} dogs.{}", " Please.".repeat(i * 3))).collect();
    let answers: Vec<Value> = thread::scope(|scope| {
        let asked: Vec<_> = texts.iter().map(|text| scope.spawn(|| server.chat(&ask(text)))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    for (text, answer) in texts.iter().zip(&answers) {
        assert_eq!(content(answer), alone(text), "{text}");
    }
}

#[test]
fn what_requests_at_once_have_in_common_is_computed_once() {
    let server = Running::new(|options| (options.replies, options.prompt_tokens) = (4, Some(8)));
    let shared = "You know all about cows, dogs and hens. ".repeat(20);
    let texts = ["What does a cow say?", "What does a dog say?", "What does a hen say?", "Tell me a story."];
    let question = |text: &str| {
        let messages = [("system", shared.as_str()), ("user", text)];
        let messages = messages.map(|(role, content)| json!({ "role": role, "content": content }));
        with(ask(""), json!({ "messages": messages }))
    };
    let answers: Vec<Value> = thread::scope(|scope| {
        let asked: Vec<_> = texts.iter().map(|text| scope.spawn(|| server.chat(&question(text)))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let mut known: Vec<u64> = answers.iter().map(cached).collect();
    known.sort();
    assert!(known[0] == 0 && known[1] > 150, "{known:?}");
    for (text, answer) in texts.iter().zip(&answers) {
        let mut chat = MODEL.chat().unwrap();
        chat.options_mut().sampler.temperature = 0.0;
        chat.options_mut().max_tokens = Some(20);
        chat.set_messages(vec![ChatMessage::new(Role::System, shared.as_str())]);
        assert_eq!(content(answer), chat.send(*text).unwrap().finish().unwrap().message.content, "{text}");
    }
}

#[test]
fn ended_replies_are_kept_up_to_a_number_of_bytes() {
    for (bytes, keeps) in [(None, true), (Some(0), false)] {
        let server = Running::new(|options| options.prefix_cache = bytes);
        let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        let held = || {
            let text = server.send("GET", "/metrics", "", &[]).ok_text();
            let line = text.lines().find(|line| line.starts_with("shohin_cache_bytes ")).unwrap();
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        assert_eq!(cached(&server.chat(&ask("What does a cow say?"))), Some(0));
        assert_eq!(cached(&server.chat(&ask("What does a cow say?"))) > Some(0), keeps);
        // The load is counted after the reply is sent.
        soon(|| (held() > 0) == keeps);
    }
}

#[test]
fn options_of_a_request_are_followed() {
    let server = Running::new(|_| ());
    let seeded = with(ask("Tell me a story."), json!({ "temperature": 1.5, "seed": 7 }));
    let first = server.chat(&seeded);
    assert_eq!(content(&first), content(&server.chat(&seeded)));
    let other = server.chat(&with(seeded, json!({ "seed": 8 })));
    assert_ne!(content(&first), content(&other));

    // The likeliest token alone.
    let nothing = server.chat(&with(ask("Tell me a story."), json!({ "temperature": 1.5, "top_p": 0 })));
    assert_eq!(content(&nothing), alone("Tell me a story."));

    let stopped = server.chat(&with(ask("Tell me a story."), json!({ "stop": [" "] })));
    assert!(!content(&stopped).contains(' '));
    let cut = server.chat(&with(
        ask("Tell me a story."),
        json!({ "max_completion_tokens": 3, "logprobs": true, "top_logprobs": 2 }),
    ));
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], &cut["usage"]["completion_tokens"]),
        (&json!("length"), &json!(3))
    );
    let logprobs = cut["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.len(), 3);
    assert!(logprobs.iter().all(|token| token["top_logprobs"][0]["token"] == token["token"]));

    let schema =
        json!({ "type": "object", "properties": { "legs": { "type": "integer" } }, "required": ["legs"] });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "cow", "schema": schema } });
    let reply =
        server.chat(&with(ask("Describe a cow."), json!({ "response_format": format, "max_tokens": 60 })));
    assert!(serde_json::from_str::<Value>(content(&reply)).unwrap()["legs"].is_i64());

    for (format, fits) in [
        (
            json!({ "type": "choice", "choices": ["one", "two"] }),
            (|text| ["one", "two"].contains(&text)) as fn(&str) -> bool,
        ),
        (json!({ "type": "regex", "pattern": "[0-9]{3}" }), |text| {
            text.len() == 3 && text.parse::<u32>().is_ok()
        }),
        (json!({ "type": "grammar", "grammar": "root ::= \"a\"+ \"b\"" }), |text| {
            text.trim_start_matches('a') == "b"
        }),
    ] {
        let reply = server
            .chat(&with(ask("Describe a cow."), json!({ "response_format": format, "max_tokens": 20 })));
        assert!(fits(content(&reply)), "{reply}");
    }

    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Bern", "Rome"] } }, "required": ["city"] });
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } });
    let called = server.post(
        "/v1/chat/completions",
        &with(
            ask("How is the weather?"),
            json!({ "tools": [tool], "tool_choice": "required", "max_tokens": 60 }),
        ),
    );
    // This model's template has no tools: they are described in the system message.
    assert_eq!(called.header("shohin-tools"), Some("described in the system message"));
    let called = called.ok();
    assert!(called["usage"]["prompt_tokens"].as_u64() > Some(100), "{called}");
    let function = &called["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "weather", "{called}");
}

#[test]
fn texts_are_continued_and_embedded() {
    let server = Running::new(|_| ());
    let request = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12 });
    let answer = server.post("/v1/completions", &request).ok();
    let mut options = shohin::TurnOptions { max_tokens: Some(12), ..Default::default() };
    options.sampler.temperature = 0.0;
    let want = MODEL.generate("Once upon a time", options).unwrap().finish().unwrap().text;
    assert_eq!(answer["choices"][0]["text"], want);
    let tokens = json!({ "prompt": MODEL.tokenize("Once upon a time") });
    assert_eq!(
        server.post("/v1/completions", &with(request.clone(), tokens)).ok()["choices"][0]["text"],
        want
    );
    let events = server.post("/v1/completions", &with(request.clone(), json!({ "stream": true }))).events();
    let parts = events.filter_map(|event| serde_json::from_str::<Value>(&event).ok());
    let text = |part: &Value| part["choices"][0]["text"].as_str().unwrap().to_string();
    let plain: Vec<Value> = parts.collect();
    assert_eq!(plain.iter().map(text).collect::<String>(), want);
    assert!(plain.iter().all(|part| part.get("usage").is_none()));
    let counted = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let events = server.post("/v1/completions", &with(request, counted)).events();
    let parts: Vec<Value> = events.filter_map(|event| serde_json::from_str(&event).ok()).collect();
    let (last, parts) = parts.split_last().unwrap();
    assert_eq!(parts.iter().map(text).collect::<String>(), want);
    assert!(parts.iter().all(|part| part.get("usage") == Some(&Value::Null)));
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(12)));

    let texts = ["A cow.", "A dog and a hen."];
    let floats = server.post("/v1/embeddings", &json!({ "input": texts, "model": "sprout" })).ok();
    let packed = server.post("/v1/embeddings", &json!({ "input": texts, "encoding_format": "base64" })).ok();
    for (i, text) in texts.iter().enumerate() {
        let want = MODEL.embed(text).unwrap();
        let found =
            floats["data"][i]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32);
        assert!(found.eq(want.iter().copied()));
        let bytes: Vec<u8> = want.iter().flat_map(|x| x.to_le_bytes()).collect();
        use base64::Engine;
        let found = packed["data"][i]["embedding"].as_str().unwrap();
        assert_eq!(base64::prelude::BASE64_STANDARD.decode(found).unwrap(), bytes);
    }
}

/// The built-in model with other metadata.
fn model_with(metadata: &[(&str, Metadata<'_>)]) -> Model {
    model_with_classifier(metadata, None)
}

/// The same with the rows of two tokens as a classifier with these labels, as llama.cpp's converter writes it.
fn model_with_classifier(
    metadata: &[(&str, Metadata<'_>)],
    classifier: Option<([u32; 2], [&str; 2])>,
) -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf");
    let bytes = std::fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    let mut w = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        if !metadata.iter().any(|(other, _)| *other == key) {
            w.set(key, value).unwrap();
        }
    }
    metadata.iter().for_each(|&(key, value)| w.set(key, value).unwrap());
    for tensor in gguf.tensors() {
        w.tensor(tensor.name(), tensor.dims(), tensor.format().unwrap()).unwrap();
    }
    let mut rows = Vec::new();
    if let Some((tokens, labels)) = classifier {
        let head = gguf.tensor("output.weight").or_else(|| gguf.tensor("token_embd.weight")).unwrap();
        let hidden = head.dims()[0] as usize;
        for token in tokens {
            let bytes = gguf.data(head).len() / head.dims()[1] as usize;
            let packed = &gguf.data(head)[token as usize * bytes..][..bytes];
            let mut row = vec![0.0; hidden];
            shohin::core::quant::unpack(head.format().unwrap(), packed, &mut row).unwrap();
            rows.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        }
        w.set_strings("qwen3.classifier.output_labels", labels).unwrap();
        w.tensor("cls.output.weight", &[hidden as u64, 2], shohin::core::Format::F32).unwrap();
    }
    let rows = (!rows.is_empty()).then_some(rows);
    let tensors = gguf.tensors().iter().map(|tensor| gguf.data(tensor));
    let file = w.to_vec(tensors.chain(rows.as_deref())).unwrap();
    let file = ModelFile::from_bytes("changed", &file).unwrap();
    Model::builder().context(512).load_file(&file).unwrap()
}

/// As a Qwen3-Embedding file asks: the state of the last token, which is the end of the text.
#[test]
fn texts_are_embedded_as_the_file_asks() {
    let model = model_with(&[
        ("qwen3.pooling_type", Metadata::U32(3)),
        ("tokenizer.ggml.add_eos_token", Metadata::Bool(true)),
    ]);
    let server = Running::with(&model, |_| ());
    let text = "A cow.";
    let answer = server.post("/v1/embeddings", &json!({ "input": text })).ok();
    let found = answer["data"][0]["embedding"].as_array().unwrap();
    let tokens = [MODEL.tokenize(text), vec![MODEL.tokenizer().eos().unwrap()]].concat();
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.len());
    assert_eq!(model.tokenize_whole(text), tokens);
    let mut want = MODEL.token_embeddings(vec![tokens], Pooling::Last, true).unwrap();
    let want = want.next().unwrap().unwrap();
    assert!(found.iter().map(|x| x.as_f64().unwrap() as f32).eq(want.iter().copied()));
    assert_eq!(model.embed(text).unwrap(), want);
    // Nothing comes after a text that the model continues.
    assert_eq!(model.tokenize(text), MODEL.tokenize(text));

    for (pooling, name) in [(2, "cls"), (4, "rank")] {
        let model = model_with(&[("qwen3.pooling_type", Metadata::U32(pooling))]);
        let refused = Running::with(&model, |_| ()).post("/v1/embeddings", &json!({ "input": text }));
        assert!(refused.status >= 400);
        let refused = refused.text();
        assert!(refused.contains(&format!("qwen3.pooling_type is \\\"{name}\\\"")), "{refused}");
        assert!(model.embed(text).is_err() && model.chat().is_ok());
    }
    let mean = model_with(&[("qwen3.pooling_type", Metadata::U32(1))]);
    assert_eq!(mean.embed(text).unwrap(), MODEL.embed(text).unwrap());
}

/// Scores of transformers (`tests/oracle/rerank.py`), but for what int8 activations round.
#[test]
fn documents_are_ordered_by_rerankers_and_embedding_models() {
    let fixture: Value = serde_json::from_str(include_str!("../../tests/fixtures/rerank.json")).unwrap();
    let ask = json!({ "query": fixture["query"], "documents": fixture["documents"] });
    let close = |answer: &Value, name: &str| {
        let results = answer["results"].as_array().unwrap();
        let scores: Vec<f64> = results.iter().map(|one| one["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        for result in results {
            let want = fixture[name][result["index"].as_u64().unwrap() as usize].as_f64().unwrap();
            let found = result["relevance_score"].as_f64().unwrap();
            assert!((found - want).abs() < 0.02, "{name}: {found} instead of {want}");
        }
        results.len()
    };
    let yes_no = ["yes", "no"].map(|word| MODEL.tokenize(word)[0]);
    let rank = [("qwen3.pooling_type", Metadata::U32(4))];
    for classifier in [None, Some((yes_no, ["yes", "no"]))] {
        let server = Running::with(&model_with_classifier(&rank, classifier), |_| ());
        for path in ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"] {
            let answer = server.post(path, &ask).ok();
            assert_eq!(close(&answer, "reranked"), 3);
            assert_eq!(answer["usage"]["prompt_tokens"], fixture["tokens"]);
            assert!(answer["model"] == "sprout" && answer["results"][0].get("document").is_none());
        }
    }
    let wrong = model_with_classifier(&rank, Some((yes_no, ["a", "b"])));
    let refused = Running::with(&wrong, |_| ()).post("/v1/rerank", &ask);
    assert!(refused.status == 400 && refused.text().contains("with the labels yes and no"));

    let server = Running::with(&model_with(&[("qwen3.pooling_type", Metadata::U32(1))]), |_| ());
    assert_eq!(close(&server.post("/v1/rerank", &ask).ok(), "cosines"), 3);
    let documents: Vec<Value> =
        fixture["documents"].as_array().unwrap().iter().map(|text| json!({ "text": text })).collect();
    let best = with(ask.clone(), json!({ "documents": documents, "top_n": 1, "return_documents": true }));
    let best = server.post("/v1/rerank", &best).ok();
    assert_eq!(close(&best, "cosines"), 1);
    assert_eq!(best["results"][0]["document"]["text"], "A cow says moo.");
    let other = server.post("/v1/rerank", &with(ask.clone(), json!({ "instruction": "Name a bird." }))).ok();
    assert_ne!(other["results"], server.post("/v1/rerank", &ask).ok()["results"]);
    for (fields, problem) in [
        (json!({ "documents": [] }), "documents must have a text"),
        (json!({ "documents": "x" }), "documents must be an array of texts"),
        (json!({ "documents": [1] }), "documents[0] must be a text, or an object with one"),
        (json!({ "documents": [""] }), "text 1"),
        (json!({ "documents": vec!["a"; 2049] }), "at most 2048 texts"),
        (json!({ "query": null }), "query must be a text"),
        (json!({ "top_n": 0 }), "top_n must be a whole number, at least 1"),
    ] {
        let answer = server.post("/v1/rerank", &with(ask.clone(), fields));
        assert_eq!(answer.status, 400);
        let text = answer.text();
        assert!(text.contains(problem), "{text}");
    }
    // A model of another kind is named.
    let refused = Running::new(|_| ()).post("/v1/rerank", &ask);
    assert_eq!(refused.status, 400);
    let text = refused.text();
    assert!(text.contains("qwen3.pooling_type is \\\"none\\\"") && text.contains("expected rank"), "{text}");
}

/// Two tokens that are one as a text, and a control token, which has no text.
#[test]
fn tokens_are_embedded_as_they_are() {
    let server = Running::new(|_| ());
    let last = MODEL.tokenizer().vocab_size() as u32 - 1;
    let texts = json!([[71, 72], [last]]);
    let answer = server.post("/v1/embeddings", &json!({ "input": texts })).ok();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": 3, "total_tokens": 3 }));
    let texts = vec![vec![71, 72], vec![last]];
    let want = MODEL.token_embeddings(texts, Pooling::Mean, true).unwrap();
    for (i, want) in want.enumerate() {
        let found = answer["data"][i]["embedding"].as_array().unwrap();
        assert!(found.iter().map(|x| x.as_f64().unwrap() as f32).eq(want.unwrap()));
    }
    let unknown = server.post("/v1/embeddings", &json!({ "input": [[last + 1]] }));
    assert_eq!(unknown.status, 400);
    assert!(unknown.text().contains(&format!("token {} is not in the vocabulary", last + 1)));
}

#[test]
fn embeddings_of_too_many_texts_are_refused() {
    let server = Running::new(|_| ());
    let most = server.post("/v1/embeddings", &json!({ "input": vec!["a"; 2048] })).ok();
    assert_eq!(most["data"].as_array().unwrap().len(), 2048);
    assert_eq!((&most["data"][2047]["index"], &most["model"]), (&json!(2047), &json!("sprout")));
    let more = server.post("/v1/embeddings", &json!({ "input": vec!["a"; 2049] }));
    assert_eq!(more.status, 400);
    let error = more.json()["error"].clone();
    assert_eq!(error["param"], "input");
    assert_eq!(error["message"], "input is 2049, expected at most 2048 texts");
}

/// A request for embeddings that take minutes.
fn long_embeddings() -> Value {
    json!({ "input": vec!["A cow and a dog. ".repeat(50); 2000] })
}

/// The status of a request for an embedding that takes no time.
fn short_embedding(server: &Running) -> u16 {
    server.post("/v1/embeddings", &json!({ "input": "A cow." })).status
}

/// Asks a server with a single place for [`long_embeddings`], and returns when they have it.
fn occupied(server: &Running) -> TcpStream {
    let ask = || {
        let stream = asked(server, "/v1/embeddings", &long_embeddings());
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        stream
    };
    let mut stream = ask();
    soon(|| {
        let is_taken = short_embedding(server) == 429;
        // The short request may have come first, and the long one been refused.
        if !is_taken && stream.peek(&mut [0]).is_ok() {
            stream = ask();
        }
        is_taken
    });
    stream.set_read_timeout(None).unwrap();
    stream
}

/// A connection on which this was asked, and no answer read.
fn asked(server: &Running, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

/// Until it ends, nothing else has the only place.
#[test]
fn embeddings_end_when_their_client_leaves() {
    let server = Running::new(|options| (options.replies, options.queue) = (1, 0));
    drop(occupied(&server));
    soon(|| short_embedding(&server) == 200);
}

#[test]
fn embeddings_that_wait_for_their_turn_have_no_longer_for_it() {
    let server = Running::new(|options| options.time = Duration::from_secs(2));
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let status = server.post("/v1/embeddings", &long_embeddings()).status;
                // On a machine with much other work, the time may be over before all of the request is there.
                assert!(matches!(status, 408 | 504), "{status}");
            });
        }
    });
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn embeddings_end_when_the_server_shuts_down() {
    let server = Running::new(|options| {
        (options.replies, options.queue, options.grace) = (1, 0, Duration::from_millis(200));
    });
    let mut stream = occupied(&server);
    server.shut_down();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting down"), "{:.300}", answer);
}

#[test]
fn what_is_wrong_is_said_and_the_server_goes_on() {
    let server = Running::new(|options| options.body = 10_000);
    let chat = "/v1/chat/completions";
    for (path, body, status, param, code, says) in [
        (chat, "{".into(), 400, None, None, "JSON"),
        (chat, "[]".into(), 400, None, None, "must be an object"),
        (chat, "{}".into(), 400, Some("messages"), None, "must be an array"),
        (chat, json!({ "messages": [] }).to_string(), 400, Some("messages"), None, "at least one"),
        (
            chat,
            with(ask("x"), json!({ "temperature": "hot" })).to_string(),
            400,
            Some("temperature"),
            None,
            "a number",
        ),
        (chat, with(ask("x"), json!({ "n": 9 })).to_string(), 400, Some("n"), None, "expected 1 to 8"),
        (
            chat,
            with(ask("x"), json!({ "model": "gpt" })).to_string(),
            404,
            Some("model"),
            Some("model_not_found"),
            "gpt",
        ),
        (chat, ask(&"long ".repeat(600)).to_string(), 400, None, Some("context_length_exceeded"), "512"),
        (
            chat,
            with(ask("x"), json!({ "temperature": -1 })).to_string(),
            400,
            Some("temperature"),
            None,
            "expected",
        ),
        (
            chat,
            with(ask("x"), json!({ "top_p": 1.5 })).to_string(),
            400,
            Some("top_p"),
            None,
            "expected 0 to 1",
        ),
        (
            chat,
            with(ask("x"), json!({ "tools": [{ "type": "web_search", "name": "x" }] })).to_string(),
            400,
            Some("tools[0]"),
            None,
            "type function",
        ),
        (chat, "x".repeat(20_000), 413, None, None, "the body has more than"),
        ("/v1/completions", "{}".into(), 400, Some("prompt"), None, "a text or its tokens"),
        ("/v1/completions", json!({ "prompt": [99_999_999] }).to_string(), 400, None, None, "99999999"),
        (
            "/v1/completions",
            json!({ "prompt": ["a", "b"], "suffix": "c" }).to_string(),
            400,
            Some("suffix"),
            None,
            "one prompt",
        ),
        ("/v1/embeddings", json!({ "input": "" }).to_string(), 400, None, None, "empty"),
        ("/v1/embeddings", json!({ "input": [] }).to_string(), 400, Some("input"), None, "must be"),
        ("/v1/images", "{}".into(), 404, None, None, "/v1/images"),
        (chat, with(ask("x"), json!({ "stop": [""] })).to_string(), 400, Some("stop"), None, "stop string"),
        (
            "/v1/completions",
            json!({ "prompt": "x", "stop": "" }).to_string(),
            400,
            Some("stop"),
            None,
            "stop string",
        ),
    ] {
        let answer = server.send("POST", path, &body, &[]);
        let found = answer.status;
        let error = &answer.json()["error"];
        let shown = &body[..body.len().min(80)];
        assert_eq!(
            (found, error["param"].as_str(), error["code"].as_str()),
            (status, param, code),
            "{shown}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(says), "{shown}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert_eq!(server.send("POST", chat, b"\xff\xfe", &[]).status, 400);
    assert_eq!(server.send("GET", chat, "", &[]).status, 405);
    // A stream that cannot begin is an error, too.
    assert_eq!(server.post(chat, &with(ask(&"long ".repeat(600)), json!({ "stream": true }))).status, 400);
    assert_eq!(content(&server.chat(&ask("Hello!"))), alone("Hello!"));
    let metrics = server.send("GET", "/metrics", "", &[]).text();
    assert!(
        metrics.contains("shohin_requests_total{path=\"/v1/chat/completions\",status=\"413\"} 1\n"),
        "{metrics}"
    );
    assert_eq!(server.send("GET", "/v1/models", "", &[]).ok()["data"][0]["id"], "sprout");
    assert_eq!(server.send("GET", "/v1/models/sprout", "", &[]).ok()["id"], "sprout");
    assert_eq!(server.send("GET", "/v1/models/other", "", &[]).status, 404);
    let unknown = server.send("GET", "/v1/models/%ff", "", &[]);
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["message"], "there is nothing at /v1/models/%ff");
}

#[test]
fn a_full_server_refuses_and_a_client_that_leaves_makes_room() {
    let server = Running::new(|options| (options.replies, options.queue) = (2, 0));
    // Both are read slowly, or not at all: they wait.
    let mut slow = server.post("/v1/chat/completions", &endless()).events();
    let unread = server.post("/v1/chat/completions", &endless());
    assert!(slow.next().is_some());
    let refused = server.post("/v1/chat/completions", &ask("Hello!"));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(server.send("GET", "/health", "", &[]).status, 200);
    drop(unread);
    soon(|| server.post("/v1/chat/completions", &ask("Hello!")).status == 200);
    // The slow one goes on.
    assert!(slow.by_ref().take(100).all(|event| event.contains("chat.completion.chunk")));
    let metrics = server.send("GET", "/metrics", "", &[]).text();
    assert!(metrics.contains("shohin_cancelled_total 1\n"), "{metrics}");
    drop(slow);
}

#[test]
fn clients_that_do_not_read_keep_no_slot_after_the_end() {
    let server = Running::new(|options| (options.replies, options.queue) = (2, 1));
    // More bytes than the system holds for a client.
    let long = json!({ "max_tokens": 2000, "logprobs": true, "top_logprobs": 6 });
    let request = with(endless(), long);
    let unread = [(); 2].map(|()| asked(&server, "/v1/chat/completions", &request));
    soon(|| counter(&server, "first_token_seconds_count") == 2);
    soon(|| server.post("/v1/chat/completions", &ask("Hello!")).status == 200);
    // Nothing of it is lost.
    for mut stream in unread {
        let mut answer = String::new();
        let mut part = [0; 1 << 16];
        while !answer.contains("[DONE]") {
            let read = stream.read(&mut part).unwrap();
            assert!(read > 0);
            answer.push_str(std::str::from_utf8(&part[..read]).unwrap());
        }
        let lines = answer.lines().filter_map(|line| line.strip_prefix("data: {"));
        let parts = lines.map(|line| serde_json::from_str::<Value>(&format!("{{{line}")).unwrap());
        let tokens = |part: &Value| part["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len);
        assert_eq!(parts.map(|part| tokens(&part)).sum::<usize>(), 2000);
        assert!(answer.lines().all(|line| line.len() < 64 << 10));
    }
}

#[test]
fn tokens_of_replies_that_are_cut_off_are_counted() {
    let counts = |server: &Running| {
        ["prompt_tokens_total", "cached_prompt_tokens_total", "completion_tokens_total"]
            .map(|name| counter(server, name))
    };
    let prompt = MODEL.encode(vec![ChatMessage::new(Role::User, "Hello!")], &shohin::TurnOptions::default());
    let prompt = prompt.unwrap().tokens().len() as u64;
    let server = Running::new(|_| ());
    for (known, completed) in [(0, 0), (prompt - 1, 1)] {
        let mut events = server.post("/v1/chat/completions", &endless()).events();
        assert!(events.by_ref().take(10).all(|event| event.contains("chunk")));
        drop(events);
        soon(|| counter(&server, "cancelled_total") == completed + 1);
        let [computed, cached, _] = counts(&server);
        assert_eq!((computed, cached), (prompt + completed, known));
        assert!(counts(&server)[2] >= 8 * (completed + 1));
    }
    let server = Running::new(|options| options.time = Duration::from_secs(3));
    assert_eq!(server.post("/v1/chat/completions", &with(endless(), json!({ "stream": false }))).status, 504);
    let [computed, _, completed] = counts(&server);
    assert_eq!((computed, counter(&server, "cancelled_total")), (prompt, 0));
    assert!(completed > 0);
}

/// Silence within a body has a limit of its own, which a byte now and then would never reach.
#[test]
fn a_body_that_trickles_in_has_a_limit() {
    let server = Running::new(|options| options.time = Duration::from_secs(1));
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let start = Instant::now();
    let mut answer = [0; 12];
    while stream.read_exact(&mut answer).is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "the server keeps waiting");
        let _ = stream.write_all(b" ");
    }
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 408");
}

#[test]
fn a_request_beyond_its_time_is_given_up() {
    let server = Running::new(|options| options.time = Duration::from_millis(300));
    let whole = server.post("/v1/chat/completions", &with(endless(), json!({ "stream": false })));
    assert_eq!(whole.status, 504);
    let last = server.post("/v1/chat/completions", &endless()).events().last().unwrap();
    assert!(last.contains("took longer"), "{last}");
    assert_eq!(content(&server.chat(&ask("Hello!"))), alone("Hello!"));
}

#[test]
fn a_shutdown_lets_replies_end_and_says_which_it_cuts_off() {
    let server = Running::new(|options| options.grace = Duration::from_millis(200));
    let address = server.address;
    let mut events = server.post("/v1/chat/completions", &endless()).events();
    assert!(events.next().is_some());
    let reader = thread::spawn(move || events.last().unwrap());
    server.shut_down();
    let last = reader.join().unwrap();
    assert!(last.contains("shutting down"), "{last}");
    assert!(TcpStream::connect(address).is_err());
}

/// What asks whether the server can have requests learns it until the last reply has ended.
#[test]
fn a_server_that_shuts_down_says_so() {
    let mut server = Running::new(|options| options.grace = Duration::from_secs(60));
    let mut events = server.post("/v1/chat/completions", &endless()).events();
    assert!(events.next().is_some());
    assert_eq!(server.send("GET", "/health", "", &[]).status, 200);
    // It sends nothing yet.
    let mut silent = TcpStream::connect(server.address).unwrap();
    drop(server.stop.take());
    // A connection whose request is not there yet is closed.
    soon(|| server.try_send("GET", "/health", "", &[]).is_ok_and(|answer| answer.status == 503));
    for (method, path) in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/")] {
        let refused = server.send(method, path, ask("Hello!").to_string(), &[]);
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        assert!(refused.text().contains("shutting down"));
    }
    let refused = server.post("/v1/messages", &ask("Hello!"));
    assert_eq!(refused.json()["error"]["type"], "overloaded_error");
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    // The reply goes on.
    assert!(events.by_ref().take(20).all(|event| event.contains("chat.completion.chunk")));
    let _silent = TcpStream::connect(server.address).unwrap();
    let start = Instant::now();
    drop(events);
    let address = server.address;
    server.shut_down();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_client_that_does_not_read_does_not_hold_up_a_shutdown() {
    let server = Running::new(|options| options.grace = Duration::from_millis(200));
    // The answer has more bytes than the system keeps for a client.
    let unread = asked(&server, "/v1/embeddings", &json!({ "input": vec!["a"; 2048] }));
    let counted = "shohin_requests_total{path=\"/v1/embeddings\",status=\"200\"} 1\n";
    soon(|| server.send("GET", "/metrics", "", &[]).text().contains(counted));
    let start = Instant::now();
    let stopped = thread::spawn(|| server.shut_down());
    soon(|| stopped.is_finished());
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    drop(unread);
}

#[test]
fn a_key_and_origins_are_asked_for() {
    let server = Running::new(|options| {
        options.key = Some("secret".into());
        options.origins = vec!["https://example.com".into()];
    });
    for key in [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", "secret")]] {
        let answer = server.send("GET", "/v1/models", "", key);
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    }
    for key in ["Bearer secret", "bearer secret", "BEARER   secret"] {
        assert_eq!(server.send("GET", "/v1/models", "", &[("authorization", key)]).status, 200, "{key}");
    }
    for key in ["Bearersecret", "Basic secret", "Bearer", "B", ""] {
        assert_eq!(server.send("GET", "/v1/models", "", &[("authorization", key)]).status, 401, "{key}");
    }
    let page = [("authorization", "Bearer secret"), ("origin", "https://example.com")];
    let answer = server.send("GET", "/v1/models", "", &page);
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("https://example.com"))
    );
    assert_eq!(
        answer.header("access-control-expose-headers"),
        Some("retry-after,shohin-left-aside,shohin-tools")
    );
    let other = [("authorization", "Bearer secret"), ("origin", "https://example.org")];
    let refused = server.send("GET", "/v1/models", "", &other);
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
    assert!(refused.text().contains("https://example.org"));
    assert_eq!(server.send("GET", "/health", "", &[]).status, 200);

    let start = |change: fn(&mut ServerOptions)| {
        let mut options = ServerOptions::new("sprout");
        change(&mut options);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Server::bind(MODEL.clone(), options)).map(|_| ()).unwrap_err().to_string()
    };
    assert!(start(|options| options.key = Some("with space".into())).contains("ASCII"));
    assert!(start(|options| options.origins = vec!["example.com".into()]).contains("https://example.com"));
    let all = start(|options| options.origins = vec!["https://a.com".into(), "*".into()]);
    assert_eq!(all, "the origin \"*\" is one of several, expected it alone: it stands for all");
    assert!(start(|options| options.replies = 65).contains("64"));
}

#[test]
fn messages_are_those_of_a_conversation() {
    let server = Running::new(|_| ());
    let mut messages = vec![json!({ "role": "user", "content": "Hello!" })];
    let first = server.chat(&with(ask(""), json!({ "messages": messages })));
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": "And a dog?" }));
    let second = server.chat(&with(ask(""), json!({ "messages": messages })));
    let mut chat = MODEL.chat().unwrap();
    chat.options_mut().sampler.temperature = 0.0;
    chat.options_mut().max_tokens = Some(20);
    chat.set_messages(vec![
        ChatMessage::new(Role::User, "Hello!"),
        ChatMessage::new(Role::Assistant, content(&first)),
    ]);
    assert_eq!(content(&second), chat.send("And a dog?").unwrap().finish().unwrap().message.content);
    assert!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
            >= first["usage"]["prompt_tokens"].as_u64().map(|n| n - 2)
    );
}

/// The type and the data of each event.
fn named(answer: Answer) -> Vec<(String, Value)> {
    assert_eq!(answer.status, 200);
    let text = answer.text();
    let events = text.split("\n\n").filter(|event| event.contains("data: ")).map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"].as_str(), name.strip_prefix("event: "));
        (data["type"].as_str().unwrap().to_string(), data)
    });
    events.collect()
}

#[test]
fn responses_are_whole_or_streamed() {
    let server = Running::new(|_| ());
    let path = "/v1/responses";
    let want = alone("What does a cow say?");
    let request = json!({ "input": "What does a cow say?", "temperature": 0, "max_output_tokens": 20, "metadata": { "a": "b\n" } });
    let whole = server.post(path, &request).ok();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(whole["output"][0]["content"][0]["text"], want);
    assert_eq!((&whole["metadata"]["a"], &whole["max_output_tokens"]), (&json!("b\n"), &json!(20)));
    assert_eq!((&whole["store"], &whole["previous_response_id"]), (&json!(false), &Value::Null));

    let parts = json!([{ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "What does a cow say?" }] }]);
    let events = named(server.post(path, &with(request, json!({ "input": parts, "stream": true }))));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let deltas = names.iter().filter(|name| **name == "response.output_text.delta").count();
    let mut expected = vec![
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ];
    expected.extend(vec!["response.output_text.delta"; deltas]);
    expected.extend([
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]);
    assert!(deltas > 1);
    assert_eq!(names, expected);
    let numbers: Vec<u64> =
        events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64));
    assert_eq!(events.iter().filter_map(|(_, data)| data["delta"].as_str()).collect::<String>(), want);
    let last = &events.last().unwrap().1["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);

    let cut = server.post(path, &json!({ "input": "Tell me a story.", "max_output_tokens": 2 })).ok();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let schema =
        json!({ "type": "object", "properties": { "legs": { "type": "integer" } }, "required": ["legs"] });
    let format = json!({ "format": { "type": "json_schema", "name": "x", "schema": schema } });
    let formed = json!({ "input": "A dog.", "text": format, "max_output_tokens": 60, "temperature": 0 });
    let text = server.post(path, &formed).ok()["output"][0]["content"][0]["text"].clone();
    assert!(serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap()["legs"].is_number(), "{text}");
}

#[test]
fn messages_of_anthropic_are_whole_or_streamed() {
    let server = Running::new(|options| options.key = Some("secret".into()));
    let post =
        |path: &str, body: &Value| server.send("POST", path, body.to_string(), &[("x-api-key", "secret")]);
    let path = "/v1/messages";
    let want = alone("What does a cow say?");
    let question = json!({ "role": "user", "content": [{ "type": "text", "text": "What does a cow say?" }] });
    let request = json!({ "messages": [question], "temperature": 0, "max_tokens": 20 });
    let whole = post(path, &request).ok();
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert_eq!(whole["content"], json!([{ "type": "text", "text": want }]));

    let events = named(post(path, &with(request.clone(), json!({ "stream": true }))));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let deltas = names.iter().filter(|name| **name == "content_block_delta").count();
    let mut expected = vec!["message_start", "content_block_start"];
    expected.extend(vec!["content_block_delta"; deltas]);
    expected.extend(["content_block_stop", "message_delta", "message_stop"]);
    assert!(deltas > 1);
    assert_eq!(names, expected);
    assert_eq!(
        events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect::<String>(),
        want
    );
    let (start, end) = (&events[0].1["message"]["usage"], &events[events.len() - 2].1["usage"]);
    // The prompt is known but for its last token.
    assert_eq!((&start["input_tokens"], &end["input_tokens"]), (&json!(1), &json!(1)));
    assert_eq!(start["cache_read_input_tokens"], end["cache_read_input_tokens"]);
    assert_eq!(end["output_tokens"], whole["usage"]["output_tokens"]);
    let count = post("/v1/messages/count_tokens", &json!({ "messages": [question] })).ok();
    let known = end["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], known + 1);

    let stopped = post(path, &with(request.clone(), json!({ "stop_sequences": ["says"] }))).ok();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("says"))
    );
    // A reply that was begun goes on, and the answer has the rest only.
    let (begin, rest) = want.split_at(5);
    let begun = json!([question, { "role": "assistant", "content": begin }]);
    let continued = post(path, &with(request.clone(), json!({ "messages": begun }))).ok();
    assert_eq!(continued["content"][0]["text"], rest);

    let named = with(request.clone(), json!({ "model": "gpt" }));
    let long = json!({ "messages": [{ "role": "user", "content": "long ".repeat(600) }], "max_tokens": 1 });
    for (path, key, body, status, kind, says) in [
        (path, "wrong", &request, 401, "authentication_error", "x-api-key"),
        (path, "secret", &named, 404, "not_found_error", "gpt"),
        (path, "secret", &long, 400, "invalid_request_error", "512"),
        (path, "secret", &json!({ "messages": [question] }), 400, "invalid_request_error", "max_tokens"),
        (path, "secret", &json!([]), 400, "invalid_request_error", "an object"),
        ("/v1/messages/batches", "secret", &request, 404, "not_found_error", "batches"),
        (
            "/v1/messages/count_tokens",
            "secret",
            &json!({ "messages": [] }),
            400,
            "invalid_request_error",
            "at least one",
        ),
    ] {
        let answer = server.send("POST", path, body.to_string(), &[("x-api-key", key)]);
        assert_eq!(answer.status, status);
        let answer = answer.json();
        assert_eq!((&answer["type"], &answer["error"]["type"]), (&json!("error"), &json!(kind)));
        assert!(answer["error"]["message"].as_str().unwrap().contains(says), "{answer}");
    }
    assert_eq!(server.send("GET", path, "", &[("x-api-key", "secret")]).json()["type"], "error");

    // The tool runners of Anthropic's clients then send whole conversations.
    for thread in [json!({ "type": "create" }), json!({ "type": "continue", "previous_message_id": "msg_1" })]
    {
        let refused = post("/v1/messages?beta=true", &with(request.clone(), json!({ "thread": thread })));
        assert_eq!(refused.status, 400);
        let details = &refused.json()["error"]["details"];
        assert_eq!(
            details,
            &json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] })
        );
    }
}

#[test]
fn what_responses_do_not_support_is_refused() {
    let server = Running::new(|options| options.strict = true);
    for (fields, param, says) in [
        (json!({ "input": null }), "input", "must be"),
        (json!({ "input": [] }), "input", "at least one"),
        (json!({ "store": true }), "store", "expected false"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id", "nothing is stored"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0]", "type function"),
        (json!({ "tool_choice": "required" }), "tool_choice", "none to choose from"),
        (json!({ "conversation": "conv_1" }), "conversation", "nothing is stored"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0]", "set store to false"),
        (json!({ "input": [{ "role": "cow", "content": "x" }] }), "input[0].role", "developer"),
        (json!({ "max_output_tokens": -2 }), "max_output_tokens", "whole number"),
        (json!({ "truncation": "half" }), "truncation", "auto"),
    ] {
        let answer = server.post("/v1/responses", &with(json!({ "input": "x" }), fields));
        assert_eq!(answer.status, 400);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param);
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_stream_of_named_events_ends_with_its_error() {
    let server = Running::new(|options| options.time = Duration::from_millis(80));
    let schema = json!({ "type": "string", "minLength": 50_000_000 });
    let format = json!({ "format": { "type": "json_schema", "name": "x", "schema": schema } });
    let request = json!({ "input": "x", "text": format, "stream": true });
    // Its time may be over before it begins, or its context full before that.
    soon(|| {
        let answer = server.post("/v1/responses", &request);
        if answer.status == 504 {
            return false;
        }
        let (name, data) = named(answer).pop().unwrap();
        if name == "response.incomplete" {
            return false;
        }
        assert_eq!((name.as_str(), &data["code"]), ("error", &json!("server_error")));
        assert!(data["message"].as_str().unwrap().contains("took longer"), "{data}");
        true
    });
}

#[test]
fn the_page_is_served_to_chat_with_the_server_only() {
    let server = Running::new(|_| ());
    let answer = server.send("GET", "/", "", &[]);
    let policy = answer.header("content-security-policy").unwrap().to_string();
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
    let nonce = policy.split('\'').nth(3).unwrap().to_string();
    let page = answer.ok_text();
    let attribute = format!("nonce=\"{}\"", nonce.strip_prefix("nonce-").unwrap());
    assert_eq!(page.matches(&attribute).count(), 2);
    assert!(!page.contains("{nonce}") && !page.contains("http://") && !page.contains("https://"));
    assert_ne!(server.send("GET", "/", "", &[]).header("content-security-policy").unwrap(), policy);

    let ask_from = |server: &Running, origin: &str, host: Option<&str>| {
        let mut headers = vec![("origin", origin), ("authorization", "Bearer secret")];
        headers.extend(host.map(|host| ("host", host)));
        server.send("GET", "/v1/models", "", &headers).status
    };
    let own = format!("http://{}", server.address);
    assert_eq!(ask_from(&server, &own, None), 200);
    assert_eq!(ask_from(&server, "http://localhost:8080", Some("localhost:8080")), 200);
    assert_eq!(ask_from(&server, "http://[::1]:8080", Some("[::1]:8080")), 200);
    assert_eq!(ask_from(&server, "http://127.0.0.1:1", None), 403);
    assert_eq!(ask_from(&server, "null", None), 403);
    // A page whose name was given this machine's address.
    assert_eq!(ask_from(&server, "http://evil.example:80", Some("evil.example:80")), 403);
    let with_key = Running::new(|options| options.key = Some("secret".into()));
    assert_eq!(ask_from(&with_key, "http://models.example", Some("models.example")), 200);
    assert_eq!(with_key.send("GET", "/", "", &[]).status, 200);
}

/// A page of a name that was given this machine's address names no origin when it reads.
#[test]
fn without_a_key_names_that_anyone_can_have_are_refused() {
    let server = Running::new(|_| ());
    let status =
        |server: &Running, path: &str, host: &str| server.send("GET", path, "", &[("host", host)]).status;
    for path in ["/", "/v1/models", "/v1/models/sprout", "/metrics"] {
        for host in
            ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "local.example.", "a b", ""]
        {
            assert_eq!(status(&server, path, host), 403, "{path} {host:?}");
        }
        for host in [
            "127.0.0.1",
            "10.0.0.1:80",
            "[::1]:8080",
            "LocalHost:1",
            "shohin:8080",
            "box.local",
            "a.internal",
        ] {
            assert_eq!(status(&server, path, host), 200, "{path} {host:?}");
        }
    }
    let asked = [("host", "evil.example")];
    let refused = server.send("POST", "/v1/chat/completions", ask("Hello!").to_string(), &asked);
    assert_eq!((refused.status, refused.text().contains("evil.example")), (403, true));
    assert_eq!(status(&server, "/health", "evil.example"), 200);
    // Where pages of every origin may ask, the name does not matter, and with a key it gives nothing away.
    let open = Running::new(|options| options.origins = vec!["*".into()]);
    assert_eq!(status(&open, "/v1/models", "evil.example"), 200);
    let with_key = Running::new(|options| options.key = Some("secret".into()));
    assert_eq!(status(&with_key, "/v1/models", "models.example"), 401);
    let named = [("host", "models.example"), ("x-api-key", "secret")];
    assert_eq!(with_key.send("GET", "/v1/models", "", &named).status, 200);
}

/// The built-in model as if it had been trained with tools: with words of Qwen3's template, which has them.
fn model_with_tools() -> Model {
    let template = "<|im_start|><|im_end|> last_query_index <tool_response> enable_thinking <think> add_generation_prompt";
    model_with(&[("tokenizer.chat_template", template.into())])
}

/// The built-in model with the names of Llama 3's control tokens, as far as it has any, and words of Llama 3.1's template.
fn model_of_llama3() -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf");
    let bytes = std::fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes).unwrap();
    let tokens = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap().iter();
    let tokens = tokens.map(|token| match std::str::from_utf8(token).unwrap() {
        "<|im_start|>" => "<|start_header_id|>",
        "<|endoftext|>" => "<|end_header_id|>",
        "<|im_end|>" => "<|eot_id|>",
        other => other,
    });
    let mut renamed = GgufWriter::new();
    renamed.set_strings("tokens", tokens.collect::<Vec<_>>()).unwrap();
    let renamed = renamed.header().unwrap();
    let renamed = Gguf::parse(&renamed).unwrap();
    let (_, tokens) = renamed.metadata().iter().find(|(key, _)| *key == "tokens").unwrap();
    let template = "Cutting Knowledge Date: December 2023 Today Date: \"26 Jul 2024\" <|start_header_id|> <|end_header_id|> <|eot_id|> message['content'] | trim add_generation_prompt";
    model_with(&[("tokenizer.chat_template", template.into()), ("tokenizer.ggml.tokens", tokens)])
}

#[test]
fn conversations_are_in_the_template_of_llama3() {
    let model = model_of_llama3();
    let server = Running::with(&model, |_| ());
    let exact = json!({ "temperature": 0, "max_tokens": 12 });
    let answer =
        server.post("/v1/chat/completions", &with(ask(" What does a cow say?\n"), exact.clone())).ok();
    let prompt = "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nWhat does a cow say?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    let mut tokens = Vec::new();
    model.tokenizer().encode(prompt, Special::Parse, &mut tokens);
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.len());
    let text = server.post("/v1/completions", &with(json!({ "prompt": tokens }), exact)).ok();
    assert_eq!(answer["choices"][0]["message"]["content"], text["choices"][0]["text"]);

    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": city() } });
    let tools = json!({ "tools": [tool], "max_tokens": 3 });
    let described = server.post("/v1/chat/completions", &with(ask("Hello!"), tools));
    assert_eq!((described.status, described.header("shohin-tools").is_some()), (200, true));
}

fn city() -> Value {
    json!({
        "type": "object", "properties": { "city": { "enum": ["Bern", "Rome"] }, "days": { "enum": [1, 2, 3] } },
        "required": ["city", "days"], "additionalProperties": false,
    })
}

/// Whether these are arguments of [`city`].
fn fits(arguments: &Value) -> bool {
    let members = arguments.as_object().unwrap();
    members.len() == 2
        && matches!(members["city"].as_str(), Some("Bern" | "Rome"))
        && matches!(members["days"].as_u64(), Some(1..=3))
}

#[test]
fn calls_of_tools_match_their_schemas_in_every_form() {
    let server = Running::with(&model_with_tools(), |_| ());
    let hot = json!({ "temperature": 1.5, "max_tokens": 200, "tool_choice": "required" });
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": city() } });
    let request =
        with(with(ask("How is the weather?"), hot), json!({ "tools": [tool], "parallel_tool_calls": false }));
    for seed in 0..4 {
        let answer = server.chat(&with(request.clone(), json!({ "seed": seed })));
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        let function = &calls[0]["function"];
        assert_eq!((calls.len(), &function["name"]), (1, &json!("weather")));
        let arguments = function["arguments"].as_str().unwrap();
        assert!(fits(&serde_json::from_str(arguments).unwrap()), "{arguments}");

        // Streamed, it is the same call, and no empty text comes before it.
        let events = server
            .post("/v1/chat/completions", &with(request.clone(), json!({ "seed": seed, "stream": true })));
        let chunks: Vec<Value> =
            events.events().filter_map(|event| serde_json::from_str(&event).ok()).collect();
        let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
        assert_eq!((&deltas[0]["role"], &deltas[0]["content"]), (&json!("assistant"), &Value::Null));
        let streamed =
            deltas.iter().filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str());
        assert_eq!(streamed.collect::<String>(), arguments);

        // The call as parsing clients keep it, with its result.
        let mut message = choice["message"].clone();
        message["parsed"] = Value::Null;
        message["tool_calls"][0]["function"]["parsed_arguments"] = json!({ "city": "Bern" });
        let result = json!({ "role": "tool", "tool_call_id": calls[0]["id"], "content": "Sunny." });
        let messages = json!([{ "role": "user", "content": "How is the weather?" }, message, result]);
        let after = json!({ "messages": messages, "tools": request["tools"], "tool_choice": "none", "max_tokens": 5 });
        server.chat(&after);
    }

    let function = json!({ "type": "function", "name": "weather", "parameters": city(), "strict": true });
    let request = json!({ "input": "How is it?", "tools": [function], "tool_choice": { "type": "function", "name": "weather" }, "parallel_tool_calls": false });
    let item = server.post("/v1/responses", &request).ok()["output"][0].clone();
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("weather")));
    assert!(fits(&serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap()), "{item}");

    let tool = json!({ "name": "weather", "input_schema": city(), "eager_input_streaming": true });
    let request = with(
        ask("How is it?"),
        json!({ "max_tokens": 200, "tools": [tool], "tool_choice": { "type": "any", "disable_parallel_tool_use": true } }),
    );
    let answer = server.post("/v1/messages", &request).ok();
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["type"]),
        (&json!("tool_use"), &json!("tool_use"))
    );
    assert!(fits(&answer["content"][0]["input"]), "{answer}");
}

/// Calls, or a reply in the format, whichever the model chooses.
#[test]
fn tools_and_a_response_format_go_together() {
    let server = Running::with(&model_with_tools(), |_| ());
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": city() } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "city", "schema": city() } });
    let request = with(
        ask("How is the weather?"),
        json!({ "tools": [tool], "response_format": format, "temperature": 1.5, "max_tokens": 300 }),
    );
    let answers = |choice: Option<&str>| {
        let mut texts = 0;
        for seed in 0..4 {
            let mut request = with(request.clone(), json!({ "seed": seed }));
            choice.inspect(|choice| request["tool_choice"] = json!(choice));
            let choice = server.chat(&request)["choices"][0].clone();
            let message = &choice["message"];
            if let Some(text) = message["content"].as_str() {
                assert!(message["tool_calls"].is_null() && choice["finish_reason"] == "stop", "{choice}");
                assert!(fits(&serde_json::from_str(text).unwrap()), "{text}");
                texts += 1;
            } else {
                // Calls without end may be cut off, the first one has ended.
                let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
                assert!(fits(&serde_json::from_str(arguments).unwrap()), "{arguments}");
            }
        }
        texts
    };
    // Of four replies some have the format, and others a call.
    assert!((1..4).contains(&answers(None)));
    assert_eq!(answers(Some("required")), 0);
}

#[test]
fn formats_that_cannot_be_followed_are_refused_by_their_place() {
    let server = Running::new(|_| ());
    let refused = |path: &str, request: Value| {
        let answer = server.post(path, &request);
        assert_eq!(answer.status, 400);
        let error = answer.json()["error"].clone();
        (error["param"].as_str().map(String::from), error["message"].as_str().unwrap().to_string())
    };
    let unique = json!({ "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } });
    for (schema, place) in [(unique, "/properties/a/uniqueItems"), (json!({ "enum": [] }), "")] {
        let named = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let (param, says) =
            refused("/v1/chat/completions", with(ask("x"), json!({ "response_format": named })));
        assert_eq!(param, Some(format!("response_format.json_schema.schema{place}")));
        assert!(place.is_empty() || says.starts_with(param.as_ref().unwrap()), "{says}");
        let format = json!({ "type": "json_schema", "name": "x", "schema": schema });
        let (param, _) = refused("/v1/responses", json!({ "input": "x", "text": { "format": format } }));
        assert_eq!(param, Some(format!("text.format.schema{place}")));
    }
    for (kind, name, value) in [
        ("regex", "pattern", json!("")),
        ("regex", "pattern", json!("a(?=b)")),
        ("regex", "pattern", json!("a(b")),
        ("grammar", "grammar", json!("x ::= \"a\"")),
        ("grammar", "grammar", json!("root ::= \"\"")),
        ("choice", "choices", json!([""])),
    ] {
        let format = json!({ "type": kind, (name): value });
        let (param, _) =
            refused("/v1/chat/completions", with(ask("x"), json!({ "response_format": format })));
        assert_eq!(param, Some(format!("response_format.{name}")));
    }
}

#[test]
fn tools_that_cannot_be_followed_are_refused_by_their_place() {
    let server = Running::with(&model_with_tools(), |_| ());
    let function = |strict: Value| {
        let parameters =
            json!({ "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } });
        json!({ "name": "f", "strict": strict, "parameters": parameters })
    };
    let chat = |strict: Value, choice: Value| {
        let other = json!({ "type": "function", "function": { "name": "g", "parameters": city() } });
        let tools = json!([other, { "type": "function", "function": function(strict) }]);
        let fields = json!({ "tools": tools, "tool_choice": choice, "max_tokens": 60, "stop": ["}"] });
        server.post("/v1/chat/completions", &with(ask("x"), fields))
    };
    let chosen = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let refused = |answer: Answer| {
        assert_eq!(answer.status, 400);
        answer.json()["error"]["param"].clone()
    };
    let place = "function.parameters/properties/a/uniqueItems";
    for choice in [json!("auto"), json!("required"), chosen("f")] {
        assert_eq!(refused(chat(json!(true), choice.clone())), format!("tools[1].{place}"));
        for strict in [Value::Null, json!(false)] {
            assert_eq!(chat(strict, choice.clone()).status, 200);
        }
    }
    assert_eq!(chat(json!(true), chosen("g")).status, 200);
    assert_eq!(refused(chat(json!(false), chosen("h"))), "tool_choice");
    let function = with(function(json!(true)), json!({ "type": "function" }));
    let answer = server.post("/v1/responses", &json!({ "input": "x", "tools": [function] }));
    assert_eq!(refused(answer), "tools[0].parameters/properties/a/uniqueItems");
    let tool = json!({ "name": "f", "strict": true, "input_schema": function["parameters"] });
    let answer = server.post("/v1/messages", &with(ask("x"), json!({ "tools": [tool] })));
    assert_eq!(answer.status, 400);
    let message = answer.json()["error"]["message"].clone();
    let says = "tools[0].input_schema/properties/a/uniqueItems of the function \"f\" is not supported";
    assert!(message.as_str().unwrap().starts_with(says), "{message}");
}
