//! A web server for one local directory, for the demo page.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::command::Result;

/// Listens on the first free port from `port` on, or on any if it is 0.
pub(crate) fn listen(port: u16) -> Result<TcpListener> {
    let ports = port..=port.saturating_add(if port == 0 { 0 } else { 99 });
    let mut last = String::new();
    for port in ports {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return Ok(listener),
            Err(e) => last = format!("port {port} of 127.0.0.1: {e}"),
        }
    }
    Err(last)
}

/// Answers requests for the files under `root` until the program ends.
pub(crate) fn serve(listener: &TcpListener, root: &Path) {
    for stream in listener.incoming().flatten() {
        let root = root.to_path_buf();
        std::thread::spawn(move || {
            // Browsers close connections early; that is not an error.
            let _ = answer(stream, &root);
        });
    }
}

fn answer(mut stream: TcpStream, root: &Path) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, file_of(root, target)) {
        ("GET" | "HEAD", Some(file)) => match fs::read(&file) {
            Ok(body) => ("200 OK", media_type(&file), body),
            Err(_) => ("404 Not Found", "text/plain", b"not found\n".to_vec()),
        },
        ("GET" | "HEAD", None) => ("404 Not Found", "text/plain", b"not found\n".to_vec()),
        _ => ("405 Method Not Allowed", "text/plain", b"GET only\n".to_vec()),
    };
    // WebAssembly threads require cross-origin isolation.
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-cache\r\n\
         Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Embedder-Policy: require-corp\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    Ok(())
}

/// The file of a request target; `None` if it could be outside the directory.
fn file_of(root: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split(['?', '#']).next()?;
    let path = PathBuf::from(percent_decode(path.strip_prefix('/')?)?);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let file = root.join(path);
    Some(if file.is_dir() { file.join("index.html") } else { file })
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// Browsers compile a module while streaming only if its type is application/wasm.
fn media_type(file: &Path) -> &'static str {
    match file.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map" | "webmanifest") => "application/json",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn requests_stay_inside_the_directory() {
        let root = Path::new("site");
        assert_eq!(file_of(root, "/a/b%20c.js?x=1"), Some(root.join("a/b c.js")));
        for target in [
            "/../secret",
            "/a/%2e%2e/%2e%2e/secret",
            "/%2fetc/passwd",
            "//etc/passwd",
            "secret",
            "/%zz",
            "/a%0",
        ] {
            let file = file_of(root, target);
            assert!(
                file.as_ref().is_none_or(|f| f.starts_with(root) && !target.contains("..")),
                "{target}: {file:?}"
            );
        }
        assert_eq!(file_of(root, "/../secret"), None);
        assert_eq!(file_of(root, "/%2fetc/passwd"), None);
    }

    #[test]
    fn files_are_answered_with_their_type_and_length() {
        let listener = listen(0).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        std::thread::spawn(move || serve(&listener, &root));
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(address).expect("a connection");
            stream.write_all(request.as_bytes()).expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        };
        let found = ask("GET /wasi.mjs HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/javascript"), "{found}");
        assert!(found.ends_with(include_str!("../wasi.mjs")));
        assert!(ask("GET /none HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /wasi.mjs HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask("HEAD /wasi.mjs HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    }
}
