//! Replicas of `shohin serve` behind HAProxy, with the configuration in `docs/haproxy.cfg`.
#![cfg(unix)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A process that is ended with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with the built-in model, made slow; it says its address.
fn replica() -> (Process, String, BufReader<ChildStderr>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
    command.args([
        "serve",
        "--port",
        "0",
        "--device",
        "cpu",
        "--isa",
        "scalar",
        "--threads",
        "1",
        "--act",
        "f32",
    ]);
    command
        .env("SHOHIN_WEIGHT_CACHE", "none")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split("/v1").next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_string();
    // Kept, so that the server can write to it.
    (Process(child), address, said)
}

/// A request about conversation `key`, streamed.
fn ask(balancer: &str, key: usize, max_tokens: u32) -> (u16, String, Box<dyn Read + Send>) {
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me a story." }], "prompt_cache_key": format!("key {key}"),
        "stream": true, "max_tokens": max_tokens, "temperature": 2, "top_p": 1,
    });
    let request = ureq::http::Request::builder().method("POST");
    let request =
        request.uri(format!("http://{balancer}/v1/chat/completions")).body(body.to_string()).unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let response = agent.run(request).unwrap();
    let replica = response.headers().get("x-replica").map_or("", |name| name.to_str().unwrap()).to_string();
    (response.status().as_u16(), replica, Box::new(response.into_body().into_reader()))
}

/// The whole answer, and which replica it is from.
fn whole(balancer: &str, key: usize) -> (String, String) {
    let (status, replica, mut body) = ask(balancer, key, 2);
    let mut text = String::new();
    body.read_to_string(&mut text).unwrap();
    assert!(status == 200 && text.ends_with("data: [DONE]\n\n"), "{status} {text}");
    (replica, text)
}

/// Conversations stay with their replica. When one is killed, its stream ends with an error, and no other does; its
/// conversations go on at the other replica.
#[test]
fn a_killed_replica_ends_its_own_streams_only() {
    if Command::new("haproxy").arg("-v").stdout(Stdio::null()).status().is_err() {
        println!("SKIPPED: no haproxy; it is Debian's package of that name");
        return;
    }
    let (one, address_of_one, _one_says) = replica();
    let (two, address_of_two, _two_says) = replica();
    // A port that was free a moment ago.
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let configuration =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/haproxy.cfg")).unwrap();
    let mut text = configuration;
    for (from, to) in [
        ("127.0.0.1:8080", &balancer),
        ("127.0.0.1:8081", &address_of_one),
        ("127.0.0.1:8082", &address_of_two),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("haproxy.cfg");
    std::fs::write(&path, text).unwrap();
    let haproxy =
        Command::new("haproxy").args(["-db", "-f"]).arg(&path).stderr(Stdio::null()).spawn().unwrap();
    let _haproxy = Process(haproxy);
    let start = Instant::now();
    while std::net::TcpStream::connect(&balancer).is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "haproxy does not listen");
        thread::sleep(Duration::from_millis(20));
    }

    let replicas: Vec<String> = (0..8).map(|key| whole(&balancer, key).0).collect();
    assert!(replicas.iter().all(|name| ["one", "two"].contains(&name.as_str())), "{replicas:?}");
    for (key, replica) in replicas.iter().enumerate() {
        assert_eq!(whole(&balancer, key).0, *replica, "conversation {key} moves");
    }
    let of =
        |name: &str| replicas.iter().position(|replica| replica == name).expect("both have conversations");
    let keys = [of("one"), of("two")];

    // Two long replies, of which something has arrived.
    let mut streams = keys.map(|key| {
        let (status, replica, body) = ask(&balancer, key, 400);
        assert_eq!(status, 200);
        let mut body = BufReader::new(body);
        let mut line = String::new();
        body.read_line(&mut line).unwrap();
        assert!(line.starts_with("data: {"), "{line}");
        assert!(!serde_json::from_str::<Value>(&line[6..]).unwrap()["choices"].is_null());
        (replica, body)
    });
    assert_eq!((streams[0].0.as_str(), streams[1].0.as_str()), ("one", "two"));
    drop(one);
    let mut rest = String::new();
    let ended = streams[0].1.read_to_string(&mut rest);
    assert!(ended.is_err() && !rest.contains("[DONE]"), "{ended:?} {rest}");
    let mut rest = String::new();
    streams[1].1.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    // No request fails, not even the first.
    for key in 0..8 {
        assert_eq!(whole(&balancer, key).0, "two");
    }
    drop(two);
}
