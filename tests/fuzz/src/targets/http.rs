//! Bytes of a client to the server.

use super::file::small_model;
use shohin::{Model, ModelFile};
use shohin_server::{Server, ServerOptions};
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::Duration;

/// A server that runs as long as the process.
static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
    let (address, bound) = mpsc::channel();
    thread::spawn(move || {
        let file = ModelFile::from_bytes("tiny", &small_model()).expect("bytes");
        let model = Model::builder().threads(1).context(64).load_file(&file).expect("a valid model");
        let mut options = ServerOptions::new("tiny");
        (options.body, options.time, options.replies) = (1 << 16, Duration::from_secs(5), 2);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let server = Server::bind(model, options).await.expect("a free port");
            address.send(server.address()).expect("somebody waits");
            server.run(std::future::pending()).await;
        });
    });
    bound.recv().expect("the server starts")
});

/// The answer to these bytes. If there is none soon, the client says that no more will come.
fn answer(input: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(*SERVER).expect("the server listens");
    let late = |error: &Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    let mut bytes = Vec::new();
    // The server may hang up before it has read everything.
    let _ = stream.write_all(input);
    for time in [Duration::from_millis(20), Duration::from_secs(20)] {
        stream.set_read_timeout(Some(time)).expect("not zero");
        match stream.read_to_end(&mut bytes) {
            Err(error) if late(&error) => drop(stream.shutdown(Shutdown::Write)),
            _ => return bytes,
        }
    }
    panic!("no end of an answer after 20 s: {:?}", String::from_utf8_lossy(&bytes))
}

pub(super) fn http_seeds() -> Vec<Vec<u8>> {
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    vec![
        get("/health"),
        get("/metrics"),
        get("/v1/models/tiny"),
        post("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":2}"#),
        post("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":2,"stream":true}"#),
        post("/v1/responses", r#"{"input":"a","max_output_tokens":2}"#),
        post("/v1/messages", r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":2}"#),
        post("/v1/embeddings", r#"{"input":["a","b"]}"#),
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\n{\"prompt\":\"a\",\"max_tokens\":2  }\r\n0\r\n\r\n"
            .to_vec(),
    ]
}

pub(super) fn http(input: &[u8]) {
    let bytes = answer(input);
    assert!(bytes.is_empty() || bytes.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&bytes));
    let health = answer(b"GET /health HTTP/1.0\r\n\r\n");
    assert!(
        health.windows(8).any(|window| window == b"\"status\""),
        "{:?}",
        String::from_utf8_lossy(&health)
    );
    assert!(health.starts_with(b"HTTP/1.0 200") || health.starts_with(b"HTTP/1.1 200"), "the engine stopped");
}
