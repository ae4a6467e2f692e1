//! The log and the metrics.

use super::super::*;
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

/// A server, and what it has logged when it has ended.
fn logged(level: tracing::Level, ask: impl FnOnce(&Running)) -> Vec<Value> {
    // With a single one, what other tests log first would be off for good: their threads have none.
    let _second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let lines = Lines::default();
    let writer = lines.clone();
    let server = Running::within(
        &MODEL,
        |_| (),
        move || {
            let log = tracing_subscriber::fmt().json().with_max_level(level).with_writer(writer).finish();
            tracing::subscriber::set_default(log)
        },
    );
    ask(&server);
    server.shut_down();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let own = |line: &Value| line["target"].as_str().unwrap().starts_with("shohin");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).filter(own).collect()
}

#[test]
fn each_answer_has_a_line_without_what_was_said() {
    let secret = "What does a cow say?";
    let lines = logged(tracing::Level::INFO, |server| {
        let request = with(ask(secret), json!({ "surprise": 1 }));
        server.chat(&request);
        let streamed = with(request, json!({ "stream": true }));
        assert!(server.post("/v1/chat/completions", &streamed).events().count() > 2);
        assert_eq!(server.send("GET", "/v1/none", "", &[]).status, 404);
    });
    let text = |line: &Value| line["fields"]["message"].as_str().unwrap_or_default().to_owned();
    let told: Vec<String> = lines.iter().map(text).filter(|text| !text.is_empty()).collect();
    assert_eq!(told, ["listening", "a field of a request is left aside", "shutting down", "ended"]);
    let access: Vec<&Value> = lines.iter().filter(|line| line["target"] == "shohin::access").collect();
    assert_eq!(access.len(), 3);
    for line in &access[..2] {
        let fields = &line["fields"];
        assert_eq!((&fields["method"], &fields["status"]), (&json!("POST"), &json!(200)));
        assert_eq!(fields["path"], "/v1/chat/completions");
        assert!(
            fields["prompt_tokens"].as_u64().unwrap() > 5
                && fields["completion_tokens"].as_u64().unwrap() > 2
        );
        assert!(fields["ms"].as_u64().unwrap() >= fields["first_token_ms"].as_u64().unwrap());
        assert!(fields["first_token_ms"].as_u64().unwrap() >= fields["queued_ms"].as_u64().unwrap());
    }
    assert_eq!(
        (&access[2]["fields"]["status"], &access[2]["fields"]["path"]),
        (&json!(404), &json!("/v1/none"))
    );
    let all: String = lines.iter().map(Value::to_string).collect();
    assert!(!all.contains("cow"));
    // Asked for, requests are there.
    let lines = logged(tracing::Level::TRACE, |server| drop(server.chat(&ask(secret))));
    assert!(
        lines.iter().any(|line| line["fields"]["text"].as_str().is_some_and(|text| text.contains(secret)))
    );
}

/// The time in the queue counts.
#[test]
fn times_of_replies_begin_with_the_request() {
    let server = Running::new(|options| options.replies = 1);
    let number = |name: &str| -> f64 {
        let text = server.send("GET", "/metrics", "", &[]).ok_text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("shohin_{name} "))).unwrap();
        line.parse().unwrap()
    };
    let first = asked(&server, "/v1/chat/completions", &endless());
    soon(|| counter(&server, "replies") == 1);
    thread::scope(|scope| {
        let second = scope.spawn(|| server.chat(&ask("Hello!")));
        soon(|| counter(&server, "queued") == 1);
        thread::sleep(Duration::from_millis(50));
        drop(first);
        second.join().unwrap();
    });
    assert_eq!(number("queue_seconds_count"), 2.0);
    let waited = number("queue_seconds_sum");
    assert!(waited >= 0.05 && number("first_token_seconds_sum") >= waited);
    assert_eq!(number("reply_seconds_count"), 1.0);
    assert_eq!(number("queue_seconds_bucket{le=\"+Inf\"}"), 2.0);
    assert!(number("queue_seconds_bucket{le=\"0.025\"}") <= 1.0);
}
