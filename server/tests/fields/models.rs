//! Several models in one server.

use super::super::*;
use shohin_server::OtherModel;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[test]
fn models_are_loaded_when_they_are_asked_for_and_unloaded_by_memory() {
    let loads = Arc::new(AtomicUsize::new(0));
    let other = |name: &str| {
        let loads = Arc::clone(&loads);
        OtherModel::new(name, move || {
            loads.fetch_add(1, Relaxed);
            Ok(model_with_tools())
        })
    };
    let server = Running::new(|options| {
        let broken = OtherModel::new("broken", || Err("there is no such file".into()));
        options.others = vec![other("one"), other("two"), broken];
        // Room for one.
        options.others_memory = Some(MODEL.weight_bytes() * 3 / 2);
    });
    let ask_of = |name: &str| {
        server.post("/v1/chat/completions", &with(ask("What does a cow say?"), json!({ "model": name })))
    };
    let names = server.send("GET", "/v1/models", "", &[]).ok();
    let names: Vec<&str> =
        names["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((names, loads.load(Relaxed)), (vec!["sprout", "one", "two", "broken"], 0));
    assert_eq!(server.send("GET", "/v1/models/one", "", &[]).ok()["context_length"], Value::Null);

    // Their template is another one.
    let direct = Running::with(&model_with_tools(), |_| ());
    let others = content(&direct.chat(&ask("What does a cow say?"))).to_owned();
    let own = alone("What does a cow say?");
    assert_ne!(others, own);
    for (name, count) in
        [("sprout", 0), ("one", 1), ("one", 1), ("sprout", 1), ("two", 2), ("two", 2), ("one", 3)]
    {
        let answer = ask_of(name).ok();
        let want = if name == "sprout" { &own } else { &others };
        assert_eq!((content(&answer), &answer["model"]), (&**want, &json!(name)));
        assert_eq!(loads.load(Relaxed), count, "{name}");
    }
    assert_eq!(server.send("GET", "/v1/models/one", "", &[]).ok()["context_length"], 512);
    // Chat beside embeddings, and in every form.
    let embedded = server.post("/v1/embeddings", &json!({ "model": "one", "input": "a" })).ok();
    assert_eq!(embedded["model"], "one");
    let shown = server.post("/api/show", &json!({ "model": "two:latest" })).ok();
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("tools")));
    assert_eq!(
        server.post("/v1/messages/count_tokens", &with(ask("x"), json!({ "model": "one" }))).status,
        200
    );
    let failed = ask_of("broken");
    assert_eq!(
        (failed.status, failed.json()["error"]["message"].clone()),
        (500, json!("there is no such file"))
    );
    assert_eq!(ask_of("three").status, 404);
    assert_eq!(counter(&server, "replies"), 0);
}
