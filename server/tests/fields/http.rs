//! What clients do with HTTP.

use super::super::*;
use std::net::Shutdown;

fn sent(server: &Running, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
#[cfg(unix)]
fn a_client_that_ends_its_side_gets_its_answer() {
    let server = Running::new(|_| ());
    let want = alone("What does a cow say?");
    for fields in [json!({}), json!({ "stream": true })] {
        let request = with(ask("What does a cow say?"), fields);
        let mut stream = sent(&server, &post("/v1/chat/completions", &request));
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("HTTP/1.1 200 OK"), "{answer}");
        let has_all = answer.contains(&want) || answer.contains("[DONE]");
        assert!(has_all, "{answer}");
    }
    // One that has left ends its reply, whose answer would not be streamed.
    let request = with(endless(), json!({ "stream": false }));
    let stream = sent(&server, &post("/v1/chat/completions", &request));
    soon(|| counter(&server, "replies") == 1);
    drop(stream);
    soon(|| counter(&server, "replies") == 0);
}

#[test]
fn bodies_may_be_compressed() {
    let server = Running::new(|options| options.body = 20_000);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(ask("Hello!").to_string().as_bytes()).unwrap();
    let body = gzip.finish().unwrap();
    let path = "/v1/chat/completions";
    let answer = server.send("POST", path, &body, &[("content-encoding", "gzip")]).ok();
    assert_eq!(content(&answer), alone("Hello!"));
    let answer = server.send("POST", path, &body, &[("content-encoding", "zstd")]);
    assert_eq!((answer.status, answer.header("accept-encoding")), (415, Some("gzip")));
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    // The limit is that of what comes out.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(ask(&"x".repeat(1 << 20)).to_string().as_bytes()).unwrap();
    let body = gzip.finish().unwrap();
    assert!(body.len() < 20_000);
    assert_eq!(server.send("POST", path, &body, &[("content-encoding", "gzip")]).status, 413);
    assert_eq!(server.send("POST", path, b"no gzip", &[("content-encoding", "gzip")]).status, 400);
}

#[test]
fn slashes_too_many_do_not_matter() {
    let server = Running::new(|_| ());
    for path in ["//v1/models", "/v1/models/", "/v1//models//?x=/", "//health"] {
        assert_eq!(server.send("GET", path, "", &[]).status, 200, "{path}");
    }
    assert_eq!(content(&server.post("//v1/chat/completions/", &ask("Hello!")).ok()), alone("Hello!"));
    assert_eq!(server.send("GET", "//v1/other/", "", &[]).status, 404);
    let metrics = server.send("GET", "/metrics/", "", &[]).ok_text();
    assert!(
        metrics.contains("shohin_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn a_model_has_several_names_or_any() {
    let server = Running::new(|options| options.aliases = vec!["gpt-4o".into(), "claude-x".into()]);
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (name, status) in [("sprout", 200), ("gpt-4o", 200), ("claude-x", 200), ("other", 404)] {
        let answer = server.post("/v1/chat/completions", &with(ask("Hello!"), json!({ "model": name })));
        assert_eq!(answer.status, status);
        if status == 200 {
            assert_eq!(answer.json()["model"], "sprout");
        }
        let told = server.send("GET", &format!("/v1/models/{name}"), "", &[]);
        assert_eq!(told.status, status);
        if status == 200 {
            let told = told.json();
            assert_eq!((&told["id"], &told["owned_by"]), (&json!(name), &json!("shohin")));
            let created = told["created"].as_u64().unwrap();
            assert!(created <= before && created > before - 60);
            assert_ne!(told["created_at"], "1970-01-01T00:00:00Z");
        }
    }
    let names = server.send("GET", "/v1/models", "", &[]).ok();
    let names: Vec<&str> =
        names["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["sprout", "gpt-4o", "claude-x"]);
    let any = Running::new(|options| options.any_model_name = true);
    assert_eq!(any.post("/v1/chat/completions", &with(ask("x"), json!({ "model": "anything" }))).status, 200);
}

#[test]
fn the_server_listens_on_addresses_of_both_kinds() {
    let server = Running::new(|options| options.address = "[::1]:0".parse().unwrap());
    assert!(server.address.is_ipv6());
    assert_eq!(server.send("GET", "/v1/models", "", &[]).status, 200);
    assert_eq!(server.send("GET", "/v1/models", "", &[("host", "[::1]:8080")]).status, 200);
}
