//! Adapters (LoRA) that requests ask for.

use super::*;
use shohin::Builder;
use shohin_server::NamedAdapter;
use shohin_tests::lora::Adapter;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const COW: &str = "What does a cow say?";

/// A folder with the adapters `poet.gguf` and `sql.gguf` for the built-in model.
fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    let model = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf")).unwrap();
    let model = Gguf::parse(&model).unwrap();
    for (seed, file) in [(1, "poet.gguf"), (2, "sql.gguf")] {
        let adapter = Adapter::random(&model, &["blk."], 4, 0.05, seed);
        fs::write(dir.path().join(file), adapter.to_vec()).unwrap();
    }
    dir
}

fn named(dir: &TempDir, name: &str, scale: f32) -> NamedAdapter {
    NamedAdapter { name: name.into(), path: dir.path().join(format!("{name}.gguf")), scale }
}

/// A server with both.
fn server(dir: &TempDir, change: impl FnOnce(&mut ServerOptions)) -> Running {
    Running::new(|options| {
        options.adapters = vec![named(dir, "poet", 1.0), named(dir, "sql", 1.0)];
        change(options);
    })
}

/// The built-in model, loaded with adapters.
fn loaded(dir: &TempDir, adapters: &[(&str, f32)]) -> Model {
    let with = |builder: Builder, (name, scale): &(&str, f32)| {
        builder.adapter(dir.path().join(format!("{name}.gguf")), *scale)
    };
    adapters.iter().fold(Model::builder().context(512), with).load_built_in().unwrap()
}

/// What requests ask for, and the adapters with which the model is loaded for the same.
fn kinds() -> Vec<(Value, Vec<(&'static str, f32)>)> {
    let lora = |adapters: Value| json!({ "lora": adapters });
    vec![
        (json!({}), vec![]),
        (json!({ "model": "sprout:poet" }), vec![("poet", 1.0)]),
        (json!({ "model": "sql" }), vec![("sql", 1.0)]),
        (lora(json!([{ "name": "poet", "scale": 0.5 }])), vec![("poet", 0.5)]),
        (lora(json!([{ "id": 0 }, { "name": "sql", "scale": -0.5 }])), vec![("poet", 1.0), ("sql", -0.5)]),
    ]
}

/// The answer but for what every one has of its own.
fn reply(answer: &Value) -> (&Value, &Value, &Value) {
    (&answer["choices"], &answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"])
}

/// As `ask`, with numbers that differ if a bit of the model does.
fn ask_all(text: &str, fields: &Value) -> Value {
    with(with(ask(text), json!({ "logprobs": true, "top_logprobs": 3 })), fields.clone())
}

#[test]
fn a_reply_has_the_adapters_that_its_request_asks_for() {
    let dir = folder();
    let server = server(&dir, |_| ());
    let mut choices: Vec<Value> = Vec::new();
    for (fields, adapters) in kinds() {
        let answer = server.chat(&ask_all(COW, &fields));
        let alone = Running::with(&loaded(&dir, &adapters), |_| ());
        assert_eq!(reply(&answer), reply(&alone.chat(&ask_all(COW, &json!({})))), "{fields}");
        assert!(!choices.contains(&answer["choices"]), "{fields}");
        choices.push(answer["choices"].clone());
        let text = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8 });
        let continued =
            |server: &Running, fields| server.post("/v1/completions", &with(text.clone(), fields)).ok();
        assert_eq!(reply(&continued(&server, fields.clone())), reply(&continued(&alone, json!({}))));
        let embedded = |server: &Running, fields| {
            server.post("/v1/embeddings", &with(json!({ "input": "A cow." }), fields)).ok()["data"].clone()
        };
        assert_eq!(embedded(&server, fields.clone()), embedded(&alone, json!({})));
    }
    assert_eq!(choices[0][0]["message"]["content"], alone(COW));
    // None, in the place of the model's, or without an effect.
    for fields in [
        json!({ "model": "sprout", "lora": [] }),
        json!({ "model": "poet", "lora": [] }),
        json!({ "model": "sprout:poet", "lora": [{ "name": "sql", "scale": 0 }] }),
        json!({ "lora": null }),
    ] {
        assert_eq!(server.chat(&ask_all(COW, &fields))["choices"], choices[0], "{fields}");
    }
    let half = json!({ "model": "sprout:poet", "lora": [{ "name": "poet", "scale": 0.5 }] });
    assert_eq!(server.chat(&ask_all(COW, &half))["choices"], choices[3]);
}

#[test]
fn answers_name_the_adapters_in_every_form() {
    let dir = folder();
    let server = server(&dir, |options| options.adapters[1].scale = 0.25);
    let lora = json!({ "lora": [{ "name": "poet", "scale": 0.5 }, { "name": "sql" }] });
    for (fields, name) in [
        (json!({}), "sprout"),
        (json!({ "model": "sprout" }), "sprout"),
        (json!({ "model": "poet" }), "sprout:poet"),
        (json!({ "model": "sprout:sql" }), "sprout:sql"),
        (lora, "sprout:poet=0.5+sql"),
    ] {
        let few = with(ask("Hello!"), json!({ "max_tokens": 2 }));
        for (path, request) in [
            (CHAT, few.clone()),
            ("/v1/messages", few),
            ("/v1/responses", json!({ "input": "Hello!", "max_output_tokens": 2 })),
            ("/v1/completions", json!({ "prompt": "Hello!", "max_tokens": 2 })),
            ("/v1/embeddings", json!({ "input": "Hello!" })),
        ] {
            assert_eq!(server.post(path, &with(request, fields.clone())).ok()["model"], name, "{path}");
        }
        let streamed = with(ask("Hello!"), json!({ "max_tokens": 2, "stream": true }));
        let first = server.post(CHAT, &with(streamed, fields.clone())).events().next().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["model"], name);
        let counted = server.post("/v1/messages/count_tokens", &with(ask("Hello!"), fields)).ok();
        assert!(counted["input_tokens"].as_u64() > Some(1));
    }
    let models = server.send("GET", "/v1/models", "", &[]).ok();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["sprout", "sprout:poet", "sprout:sql"]);
    assert_eq!((&models["first_id"], &models["last_id"]), (&json!("sprout"), &json!("sprout:sql")));
    for name in ["poet", "sprout:poet", "sprout%3Apoet"] {
        let model = server.send("GET", &format!("/v1/models/{name}"), "", &[]).ok();
        assert_eq!((&model["id"], &model["parent"]), (&json!("sprout:poet"), &json!("sprout")));
        assert_eq!((&model["context_length"], &model["display_name"]), (&json!(512), &json!("sprout:poet")));
    }
    assert_eq!(server.send("GET", "/v1/models/sprout", "", &[]).ok()["parent"], Value::Null);
    let metrics = server.send("GET", "/metrics", "", &[]).ok_text();
    for name in ["poet", "sql"] {
        assert!(metrics.contains(&format!("shohin_adapter_completion_tokens_total{{adapter=\"{name}\"}} ")));
    }
}

#[test]
fn adapters_that_are_not_loaded_are_refused_in_every_form() {
    let dir = folder();
    let server = server(&dir, |_| ());
    for model in ["sprout:absent", "absent", "sprout:", "poet:sprout", "sprout:poet:sql", "other:poet"] {
        let request = with(ask("x"), json!({ "model": model }));
        for path in [CHAT, "/v1/messages", "/v1/messages/count_tokens"] {
            let answer = server.post(path, &request);
            assert_eq!(answer.status, 404, "{path} {model}");
            let answer = answer.json();
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("{model:?}")) && message.contains("\"sprout:sql\""),
                "{message}"
            );
            match path {
                CHAT => assert_eq!(answer["error"]["code"], "model_not_found"),
                _ => assert_eq!(answer["error"]["type"], "not_found_error"),
            }
        }
        assert_eq!(server.send("GET", &format!("/v1/models/{model}"), "", &[]).status, 404);
    }
    let nine = vec![json!({ "name": "poet" }); 9];
    for (lora, param, says) in [
        (json!("poet"), "lora", "must be an array"),
        (json!({ "name": "poet" }), "lora", "must be an array"),
        (json!(["poet"]), "lora[0]", "must be an object"),
        (json!([{ "scale": 1 }]), "lora[0]", "has no name"),
        (json!([{ "name": "poet" }, { "name": "absent" }]), "lora[1].name", "[\"poet\", \"sql\"]"),
        (json!([{ "id": 2 }]), "lora[0].id", "[\"poet\", \"sql\"]"),
        (json!([{ "id": 0.5 }]), "lora[0].id", "a whole number"),
        (json!([{ "name": "sprout:poet" }]), "lora[0].name", "not loaded"),
        (json!([{ "name": "poet", "scale": 1e300 }]), "lora[0].scale", "a finite number"),
        (json!([{ "name": "poet", "scale": "1" }]), "lora[0].scale", "a finite number"),
        (json!([{ "name": "poet", "path": "x" }]), "lora[0].path", "without it"),
        (json!(nine), "lora", "at most 8"),
    ] {
        let request = with(ask("x"), json!({ "lora": lora }));
        let answer = server.post(CHAT, &request);
        assert_eq!(answer.status, 400, "{lora}");
        let error = &answer.json()["error"];
        assert_eq!((&error["param"], &error["type"]), (&json!(param), &json!("invalid_request_error")));
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        let error = &server.post("/v1/messages", &request).json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    assert_eq!(content(&server.chat(&with(ask(COW), json!({ "model": "sprout" })))), alone(COW));
}

/// With more sets of adapters than places, and replies that are broken off between.
#[test]
fn requests_at_once_with_several_adapters_get_the_replies_of_each_alone() {
    let dir = folder();
    let server = server(&dir, |options| (options.replies, options.prompt_tokens) = (3, Some(8)));
    let texts = ["Tell me about dogs.", "Tell me about dogs and cows. Please, please, please.", COW];
    let asked: Vec<(&str, Value)> =
        kinds().into_iter().flat_map(|(fields, _)| texts.map(|text| (text, fields.clone()))).collect();
    let want: Vec<Value> = kinds()
        .iter()
        .flat_map(|(_, adapters)| {
            let alone = Running::with(&loaded(&dir, adapters), |_| ());
            texts.map(|text| alone.chat(&ask_all(text, &json!({}))))
        })
        .collect();
    // Once more with what is kept.
    for _ in 0..2 {
        let answers: Vec<Value> = thread::scope(|scope| {
            let ask = |(i, (text, fields)): (usize, &(&str, Value))| {
                if i % 3 == 0 {
                    let mut events = server.post(CHAT, &with(endless(), fields.clone())).events();
                    assert!(events.by_ref().take(i).all(|event| event.contains("chunk")));
                }
                server.chat(&ask_all(text, fields))
            };
            let asked: Vec<_> = asked.iter().enumerate().map(|one| scope.spawn(move || ask(one))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        for ((answer, want), (text, fields)) in answers.iter().zip(&want).zip(&asked) {
            assert_eq!(reply(answer), reply(want), "{text} {fields}");
        }
        assert!(counter(&server, "adapter_sets") <= 3);
    }
}

#[test]
fn replies_with_all_adapters_count_as_those_at_a_time() {
    let dir = folder();
    let server = server(&dir, |options| options.replies = 2);
    let mut streams: Vec<_> = ["sprout", "poet"]
        .map(|model| server.post(CHAT, &with(endless(), json!({ "model": model }))).events())
        .into();
    assert!(streams.iter_mut().all(|events| events.next().is_some()));
    thread::scope(|scope| {
        let waits = scope.spawn(|| server.chat(&with(ask("Hello!"), json!({ "model": "sql" }))));
        soon(|| counter(&server, "queued") == 1);
        assert_eq!((counter(&server, "replies"), counter(&server, "adapter_sets")), (2, 2));
        streams.pop();
        assert_eq!(waits.join().unwrap()["model"], "sprout:sql");
    });
    assert!(streams[0].by_ref().take(20).all(|event| event.contains("chat.completion.chunk")));
}

#[test]
fn the_keys_and_values_of_one_adapter_are_not_those_of_another() {
    let dir = folder();
    let server = server(&dir, |options| options.replies = 2);
    let cached = |model: &str| {
        let answer = server.chat(&with(ask(COW), json!({ "model": model })));
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0
    };
    // As many sets as places: the one that was not used for longest goes.
    for (model, known) in [
        ("sprout", false),
        ("poet", false),
        ("sprout", true),
        ("poet", true),
        ("sql", false),
        ("poet", true),
        ("sprout", false),
        ("sql", false),
        ("sprout", true),
    ] {
        assert_eq!(cached(model), known, "{model}");
        assert!(counter(&server, "adapter_sets") <= 2);
    }
    soon(|| counter(&server, "adapter_sets") == 2);
}

#[test]
fn the_keys_and_values_of_all_adapters_take_no_more_than_they_may() {
    let dir = folder();
    let model = |model: &str| with(ask(COW), json!({ "model": model }));
    let held = |server: &Running| counter(server, "cache_bytes");
    // What one conversation takes.
    let one = {
        let server = server(&dir, |_| ());
        server.chat(&model("sprout"));
        soon(|| held(&server) > 0);
        held(&server)
    };
    for (conversations, known) in [(0, [false; 3]), (1, [true, false, false]), (2, [true, true, false])] {
        let bytes = usize::try_from(one * conversations).unwrap();
        let server = server(&dir, |options| options.prefix_cache = Some(bytes));
        for name in ["sql", "poet", "sprout"] {
            server.chat(&model(name));
            // The load is counted after the reply is sent; no reply is in progress then.
            soon(|| counter(&server, "replies") == 0 && held(&server) <= one * conversations);
        }
        for (name, known) in ["sprout", "poet", "sql"].into_iter().zip(known) {
            let usage = &server.chat(&model(name))["usage"];
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0;
            assert_eq!(cached, known, "{name} {conversations}");
            soon(|| counter(&server, "replies") == 0 && held(&server) <= one * conversations);
        }
    }
}

/// A name that a request gives a file of the folder.
fn new(name: &str, path: impl Into<PathBuf>) -> Value {
    json!({ "name": name, "path": path.into() })
}

#[test]
fn adapters_are_listed_loaded_and_unloaded() {
    let dir = folder();
    let server = Running::new(|options| {
        options.adapters = vec![named(&dir, "poet", 0.5)];
        options.adapter_folder = Some(dir.path().into());
    });
    let list = || server.send("GET", "/v1/adapters", "", &[]).ok()["data"].clone();
    let all = list();
    let bytes = all[0]["bytes"].as_u64().unwrap();
    assert_eq!(
        all,
        json!([{ "name": "poet", "file": "poet.gguf", "rank": 4, "bytes": bytes, "scale": 0.5 }])
    );
    assert_eq!(bytes, (loaded(&dir, &[("poet", 1.0)]).weight_bytes() - MODEL.weight_bytes()) as u64);

    let said = |model: &str| server.post(CHAT, &with(ask(COW), json!({ "model": model })));
    assert_eq!(said("sql").status, 404);
    let sql = server.post("/v1/adapters", &new("sql", "sql.gguf")).ok();
    assert_eq!((&sql["name"], &sql["rank"], &sql["scale"]), (&json!("sql"), &json!(4), &json!(1.0)));
    assert_eq!(list()[1], sql);
    let of = |adapters| {
        let other = Running::with(&loaded(&dir, adapters), |_| ());
        content(&other.chat(&ask(COW))).to_string()
    };
    let (poet, sql) = (of(&[("poet", 1.0)]), of(&[("sql", 1.0)]));
    assert_eq!(content(&said("sql").ok()), sql);

    // Another file of the same name is another adapter.
    assert_eq!(
        server.send("DELETE", "/v1/adapters/sql", "", &[]).ok(),
        json!({ "name": "sql", "deleted": true })
    );
    assert_eq!(said("sprout:sql").status, 404);
    server.post("/v1/adapters", &with(new("sql", "poet.gguf"), json!({ "scale": 1 }))).ok();
    assert_eq!(content(&said("sql").ok()), poet);
    assert_eq!(list().as_array().unwrap().len(), 2);

    for name in ["absent", "sprout", "sql%2Fx", "sql%00"] {
        let answer = server.send("DELETE", &format!("/v1/adapters/{name}"), "", &[]);
        assert_eq!(answer.status, 404, "{name}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert_eq!(server.send("PUT", "/v1/adapters", "", &[]).status, 405);
    assert_eq!(server.send("GET", "/v1/adapters/sql", "", &[]).status, 405);
}

#[test]
fn adapters_of_other_folders_and_models_are_not_loaded() {
    let (dir, outside) = (folder(), folder());
    fs::write(dir.path().join("no.gguf"), "GGUF").unwrap();
    let other = shohin_tests::model::Model::tiny(shohin::core::Format::Q1_0);
    let adapter = Adapter::random(&Gguf::parse(&other).unwrap(), &["blk."], 4, 0.1, 1);
    fs::write(dir.path().join("other.gguf"), adapter.to_vec()).unwrap();
    // Its name is that of the first of two parts.
    fs::copy(dir.path().join("poet.gguf"), dir.path().join("poet-00001-of-00002.gguf")).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::rename(dir.path().join("sql.gguf"), dir.path().join("sub/sql.gguf")).unwrap();
    let start = |change: &dyn Fn(&mut ServerOptions)| {
        Running::new(|options| {
            options.adapters = vec![named(&dir, "poet", 1.0)];
            change(options);
        })
    };
    let server = start(&|options| options.adapter_folder = Some(dir.path().into()));
    let secret = outside.path().join("sql.gguf").display().to_string();
    let up = format!("../{}/sql.gguf", outside.path().file_name().unwrap().display());
    let mut refused = vec![
        (new("a", &secret), "path", "--lora-dir"),
        (new("a", &up), "path", "--lora-dir"),
        (new("a", dir.path().join("poet.gguf")), "path", "--lora-dir"),
        (new("a", "sub"), "path", "--lora-dir"),
        (new("a", ""), "path", "--lora-dir"),
        (new("a", "absent.gguf"), "path", "absent.gguf"),
        (new("a", "no.gguf"), "path", "no.gguf"),
        (new("a", "other.gguf"), "path", "other.gguf"),
        (new("a", "poet-00001-of-00002.gguf"), "path", "-of-00002.gguf"),
        (new("poet", "poet.gguf"), "name", "already"),
        (new("a:b", "poet.gguf"), "name", "letters"),
        (new("..", "poet.gguf"), "name", "letters"),
        (json!({ "path": "poet.gguf" }), "name", "must be a string"),
        (json!({ "name": "a" }), "path", "must be a string"),
        (with(new("a", "poet.gguf"), json!({ "scale": "1" })), "scale", "finite"),
        (with(new("a", "poet.gguf"), json!({ "rank": 4 })), "rank", "without it"),
    ];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&secret, dir.path().join("link.gguf")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("linked")).unwrap();
        refused.push((new("a", "link.gguf"), "path", "--lora-dir"));
        refused.push((new("a", "linked/sql.gguf"), "path", "--lora-dir"));
    }
    for (body, param, says) in refused {
        let answer = server.post("/v1/adapters", &body);
        let status = answer.status;
        let error = answer.json()["error"].clone();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body} {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says), "{body}: {message}");
        // Where the folder is remains unsaid, unless the request said it.
        let shown = dir.path().display().to_string();
        assert!(!message.contains(&shown) || body.to_string().contains(&shown), "{message}");
    }
    server.post("/v1/adapters", &new("sql", "sub/sql.gguf")).ok();

    let closed = start(&|options| options.key = Some("secret".into()));
    let key = [("authorization", "Bearer secret")];
    let body = new("sql", "sub/sql.gguf").to_string();
    for (method, path) in [("GET", "/v1/adapters"), ("POST", "/v1/adapters"), ("DELETE", "/v1/adapters/poet")]
    {
        assert_eq!(closed.send(method, path, &body, &[]).status, 401, "{method}");
    }
    assert_eq!(closed.send("GET", "/v1/adapters", "", &key).ok()["data"][0]["name"], "poet");
    let answer = closed.send("POST", "/v1/adapters", &body, &key);
    assert_eq!(answer.status, 403);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("--lora-dir"));
    closed.send("DELETE", "/v1/adapters/poet", "", &key).ok();
}

#[test]
fn a_reply_ends_with_the_adapter_that_is_unloaded() {
    let dir = folder();
    let server = server(&dir, |options| options.adapter_folder = Some(dir.path().into()));
    let mut events = server.post(CHAT, &with(endless(), json!({ "model": "poet" }))).events();
    assert!(events.next().is_some());
    soon(|| counter(&server, "adapter_sets") == 2);
    server.send("DELETE", "/v1/adapters/poet", "", &[]).ok();
    assert!(events.by_ref().take(50).all(|event| event.contains("chat.completion.chunk")));
    assert_eq!(server.post(CHAT, &with(ask(COW), json!({ "model": "poet" }))).status, 404);
    assert_eq!(counter(&server, "adapter_sets"), 2);
    drop(events);
    soon(|| counter(&server, "adapter_sets") == 1);
    // So is one without replies, at once.
    server.chat(&with(ask(COW), json!({ "model": "sql" })));
    soon(|| counter(&server, "adapter_sets") == 2);
    server.send("DELETE", "/v1/adapters/sql", "", &[]).ok();
    soon(|| counter(&server, "adapter_sets") == 1);
    let metrics = server.send("GET", "/metrics", "", &[]).ok_text();
    assert!(!metrics.contains("adapter=\""), "{metrics}");
}

#[test]
fn a_server_does_not_start_with_adapters_that_it_cannot_serve() {
    let dir = folder();
    let start = |change: &dyn Fn(&mut ServerOptions)| {
        let mut options = ServerOptions::new("sprout");
        change(&mut options);
        let checked = options.check().err().map(|error| error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error =
            runtime.block_on(Server::bind(MODEL.clone(), options)).map(|_| ()).unwrap_err().to_string();
        assert!(checked.is_none_or(|checked| checked == error));
        error
    };
    let two = |first: &str, second: &str| {
        let all = [first, second].map(|name| NamedAdapter { name: name.into(), ..named(&dir, "poet", 1.0) });
        start(&|options| options.adapters = all.to_vec())
    };
    assert_eq!(two("a", "a"), "there is an adapter \"a\" already, expected another name");
    assert!(two("a", "b c").contains("the adapter's name is \"b c\", expected 1 to 64 letters"));
    let scale = start(&|options| options.adapters = vec![named(&dir, "poet", f32::NAN)]);
    assert_eq!(scale, "the scale of the adapter \"poet\" is NaN, expected a finite number");
    let absent = start(&|options| options.adapters = vec![named(&dir, "absent", 1.0)]);
    assert!(absent.contains("absent.gguf"), "{absent}");
    let file = dir.path().join("poet.gguf");
    let no_folder = start(&|options| options.adapter_folder = Some(file.clone()));
    assert!(no_folder.starts_with("cannot read the folder of adapters") && no_folder.contains("poet.gguf"));
}
