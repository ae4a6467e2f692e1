//! Downloads from a server that answers as the Hugging Face Hub does, and from one that fails in every way.

use sha2::{Digest, Sha256};
use shohin::core::cpu::Isa;
use shohin::hub::{Download, Hub, HubError, HubModel, published};
use shohin::{Error, Model};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    fn start(&self) -> usize {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        range.map_or(0, |start| start.parse().unwrap())
    }
}

#[derive(Clone, Debug, Default)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Closes the connection after this many bytes of the body, or stays silent.
    cut: Option<usize>,
    stalls: bool,
}

impl Answer {
    fn status(status: u16) -> Answer {
        Answer { status, ..Answer::default() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    /// A file, or its rest from where the request asks.
    fn file(asked: &Asked, content: &[u8]) -> Answer {
        let (start, len) = (asked.start(), content.len());
        match asked.header("range") {
            None => Answer { status: 200, body: content.to_vec(), ..Answer::default() },
            Some(_) if start >= len => Answer::status(416).with("Content-Range", format!("bytes */{len}")),
            Some(_) => Answer { status: 206, body: content[start..].to_vec(), ..Answer::default() }
                .with("Content-Range", format!("bytes {start}-{}/{len}", len - 1)),
        }
    }

    fn cut(self, at: usize) -> Answer {
        Answer { cut: Some(at), ..self }
    }
}

struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                thread::spawn(move || serve(stream.unwrap(), &log, &*answer));
            }
        });
        Server { address, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Answer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).map(|_| line.trim_end().to_string()).unwrap_or_default()
    };
    let first = line();
    let Some((method, rest)) = first.split_once(' ') else { return };
    let path = rest.split(' ').next().unwrap().to_string();
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line().split_once(": ") {
        headers.insert(name.to_lowercase(), value.to_string());
    }
    let asked = Asked { method: method.into(), path, headers };
    log.lock().unwrap().push(asked.clone());
    let Answer { status, headers, body, cut, stalls } = answer(&asked);
    let mut head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
    let is_told = headers.iter().any(|(name, _)| *name == "Content-Length");
    if !is_told {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = stream;
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    if asked.method != "HEAD" {
        let _ = stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())]);
    }
    let _ = stream.flush();
    if stalls {
        thread::sleep(Duration::from_secs(20));
    }
}

fn sum(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As the Hub answers for a large file: with what it knows, and a redirect to the content.
fn redirect(content: &[u8], to: &str) -> Answer {
    Answer::status(302)
        .with("X-Repo-Commit", COMMIT)
        .with("X-Linked-Etag", format!("\"{}\"", sum(content)))
        .with("X-Linked-Size", content.len().to_string())
        .with("Location", to)
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A Hub whose files are on another server, which answers with `content`.
struct Site {
    hub: Hub,
    front: Server,
    back: Arc<Server>,
    cache: TempDir,
}

fn site(
    files: &[(&str, Vec<u8>)],
    content: impl Fn(&Asked, &[u8]) -> Answer + Send + Sync + 'static,
) -> Site {
    let files: Arc<BTreeMap<String, Vec<u8>>> =
        Arc::new(files.iter().map(|(name, bytes)| (name.to_string(), bytes.clone())).collect());
    let all = Arc::clone(&files);
    let back =
        Arc::new(Server::new(move |asked| content(asked, &all[asked.path.trim_start_matches("/cdn/")])));
    let to = back.address.clone();
    let front = Server::new(move |asked| {
        if asked.path.starts_with("/api/models/owner/name/revision/main") {
            let names: Vec<String> =
                files.keys().map(|name| format!("{{\"rfilename\":\"{name}\"}}")).collect();
            let body = format!("{{\"siblings\":[{{\"rfilename\":\"README.md\"}},{}]}}", names.join(","))
                .into_bytes();
            return Answer { status: 200, body, ..Answer::default() };
        }
        let prefixes = ["/owner/name/resolve/main/".to_string(), format!("/owner/name/resolve/{COMMIT}/")];
        let file = prefixes.iter().find_map(|prefix| asked.path.strip_prefix(prefix.as_str()));
        match file.and_then(|file| Some((file, files.get(file)?))) {
            Some((file, content)) => redirect(content, &format!("{to}/cdn/{file}")),
            None => Answer::status(404).with("X-Error-Code", "EntryNotFound"),
        }
    });
    let cache = TempDir::new().unwrap();
    let hub = hub(&front.address, cache.path());
    Site { hub, front, back, cache }
}

fn hub(address: &str, cache: &Path) -> Hub {
    Hub::new(address, cache)
        .unwrap()
        .pause(Duration::from_millis(5))
        .stall_timeout(Duration::from_millis(300))
}

fn named(text: &str) -> HubModel {
    text.parse().unwrap()
}

fn on(_: Download<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn problem(error: Error) -> HubError {
    match error {
        Error::Hub { source, .. } => source,
        other => panic!("{other}"),
    }
}

const FILE: &str = "hf:owner/name/a.gguf";

#[test]
fn models_are_named() {
    let name = |text: &str| named(text).to_string();
    assert_eq!(name("Bonsai-1.7B"), "hf:prism-ml/Bonsai-1.7B-gguf/Bonsai-1.7B-Q1_0.gguf");
    for (text, shown) in [
        ("hf:a/b", "hf:a/b"),
        ("hf:a/b:c.gguf", "hf:a/b/c.gguf"),
        ("hf:a/b/d/c.gguf", "hf:a/b/d/c.gguf"),
        ("hf:a/b@v1.0/c.gguf", "hf:a/b@v1.0/c.gguf"),
        ("hf:a/b@main:c.gguf", "hf:a/b/c.gguf"),
        ("hf:a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
        ("hf:a/b@v1.0:Q4_K_M", "hf:a/b@v1.0:Q4_K_M"),
        ("hf:a/b:latest", "hf:a/b"),
        ("https://huggingface.co/a/b", "hf:a/b"),
        ("https://huggingface.co/a/b/", "hf:a/b"),
        ("huggingface.co/a/b/blob/main/c.gguf", "hf:a/b/c.gguf"),
        ("https://huggingface.co/a/b/blob/main/d/c.gguf?download=true", "hf:a/b/d/c.gguf"),
        ("https://huggingface.co/a/b/resolve/v1.0/c.gguf", "hf:a/b@v1.0/c.gguf"),
        ("https://huggingface.co/a/b/tree/v1.0", "hf:a/b@v1.0"),
        ("hf.co/a/b:Q8_0", "hf:a/b:Q8_0"),
    ] {
        assert_eq!(name(text), shown);
    }
    for wrong in [
        "",
        "bonsai",
        "hf:",
        "hf:a",
        "hf:a/",
        "hf:/b",
        "hf:a/b/",
        "hf:a/b@/c",
        "hf:../b",
        "hf:a/..",
        "hf:a/b/../c",
        "hf:a/b/c\\d",
        "hf:a/b@../c",
        "hf:a/b?x",
        "hf:a/b/c:d\n",
        "https://huggingface.co/a",
        "https://huggingface.co/datasets/a/b",
        "https://huggingface.co/a/b/blob/main",
        "https://huggingface.co/a/b/discussions/1",
        "https://example.com/a/b",
    ] {
        let error = wrong.parse::<HubModel>().unwrap_err().to_string();
        assert!(error.contains("hf:owner/repository/file"), "{wrong:?}: {error}");
    }
}

#[test]
fn a_file_is_kept_as_the_hubs_own_tools_keep_it() {
    let content = noise(300_000);
    let Site { hub, front, back, cache } = site(&[("a.gguf", content.clone())], Answer::file);
    let hub = hub.token("secret");
    let model = named(FILE);
    assert_eq!(hub.missing(&model).unwrap(), Some(300_000));
    front.asked();
    let mut seen = Vec::new();
    let path = hub
        .pull(&model, &mut |Download { file, have, total }| {
            seen.push((file.to_string(), have, total));
            ControlFlow::Continue(())
        })
        .unwrap();
    let of = cache.path().join("models--owner--name");
    assert_eq!(path, of.join("snapshots").join(COMMIT).join("a.gguf"));
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../blobs").join(sum(&content)));
    assert_eq!(fs::read(of.join("blobs").join(sum(&content))).unwrap(), content);
    assert_eq!(fs::read_to_string(of.join("refs/main")).unwrap(), COMMIT);
    // As any new file: others who share the cache may read it.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let other = cache.path().join("other");
        fs::write(&other, "").unwrap();
        assert_eq!(mode(&of.join("refs/main")), mode(&other));
        fs::remove_file(other).unwrap();
    }
    assert_eq!(fs::read_dir(of.join("blobs")).unwrap().count(), 1);
    assert_eq!(seen.last().unwrap(), &("a.gguf".into(), 300_000, Some(300_000)));
    assert!(seen.is_sorted() && seen[0].1 == 0);
    // The token is for the Hub only, and the content is of the commit that it named.
    assert!(front.asked().iter().all(|asked| asked.header("authorization") == Some("Bearer secret")));
    let sent = back.asked();
    assert!(sent.iter().all(|asked| asked.header("authorization").is_none()) && sent.len() == 1);
    // What is kept is asked about, but not fetched again; without asking it is found, too.
    assert_eq!(hub.pull(&model, &mut on).unwrap(), path);
    assert_eq!(front.asked().iter().map(|asked| asked.method.as_str()).collect::<Vec<_>>(), ["HEAD"]);
    assert!(back.asked().is_empty());
    assert_eq!(hub.missing(&model).unwrap(), Some(0));
    front.asked();
    let offline = hub.clone().only_kept(true);
    assert_eq!(offline.pull(&model, &mut on).unwrap(), path);
    assert_eq!(offline.find(&named(&format!("hf:owner/name@{COMMIT}/a.gguf"))), Some(path.clone()));
    assert!(matches!(
        problem(offline.pull(&named("hf:owner/name/b.gguf"), &mut on).unwrap_err()),
        HubError::Offline
    ));
    assert!(front.asked().is_empty());
    let kept = hub.list();
    assert_eq!(
        (kept.len(), kept[0].repository.as_str(), kept[0].file.as_str(), kept[0].bytes),
        (1, "owner/name", "a.gguf", 300_000)
    );
    assert_eq!(hub.remove(&model).unwrap(), 300_000);
    assert!(hub.list().is_empty() && !of.exists());
}

#[test]
fn removing_a_file_leaves_the_others() {
    let Site { hub, cache, .. } = site(&[], Answer::file);
    let of = cache.path().join("models--owner--name");
    let (first, second) =
        (of.join("snapshots").join("a".repeat(40)), of.join("snapshots").join("b".repeat(40)));
    let unfinished = of.join("blobs/another.incomplete");
    // As where there are no links.
    for path in [first.join("a.gguf"), first.join("b.gguf"), second.join("a.gguf"), unfinished.clone()] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [0; 10]).unwrap();
    }
    let there = || hub.list().into_iter().map(|kept| kept.path).collect::<Vec<_>>();
    let model = named(&format!("hf:owner/name@{}/a.gguf", "b".repeat(40)));
    assert_eq!((hub.kept(&model).len(), hub.remove(&model).unwrap()), (1, 10));
    assert_eq!(there(), [first.join("a.gguf"), first.join("b.gguf")]);
    assert_eq!((hub.kept(&model).len(), hub.remove(&model).unwrap()), (0, 0));
    assert_eq!(hub.remove(&named("hf:owner/name/a.gguf")).unwrap(), 10);
    assert_eq!(there(), [first.join("b.gguf")]);
    assert!(unfinished.exists());
    assert_eq!(hub.remove(&named("hf:owner/name/b.gguf")).unwrap(), 10);
    assert!(unfinished.exists());
    assert_eq!(hub.remove(&named("hf:owner/name")).unwrap(), 10);
    assert!(!of.exists());
}

#[test]
fn only_the_file_with_the_given_checksum_is_accepted() {
    let content = noise(1000);
    let Site { hub, back, cache: _cache, .. } = site(&[("a.gguf", content.clone())], Answer::file);
    let right = named(FILE).with_sha256(&sum(&content).to_uppercase());
    let wrong = named(FILE).with_sha256(&sum(b"another"));
    let is_refused = |hub: &Hub| match problem(hub.pull(&wrong, &mut on).unwrap_err()) {
        HubError::Changed { expected, found, file } => {
            assert_eq!((expected, found, file), (sum(b"another"), sum(&content), FILE.into()));
        }
        other => panic!("{other}"),
    };
    is_refused(&hub);
    assert!(back.asked().is_empty(), "nothing is downloaded");
    let path = hub.pull(&right, &mut on).unwrap();
    for (model, kept) in [(&right, Some(path.clone())), (&named(FILE), Some(path)), (&wrong, None)] {
        assert_eq!(hub.find(model), kept);
    }
    // A server that announces no checksum.
    let bytes = content.clone();
    let plain = Server::new(move |asked| {
        Answer::file(asked, &bytes).with("X-Repo-Commit", COMMIT).with("ETag", "\"v1\"")
    });
    let cache = TempDir::new().unwrap();
    let hub = self::hub(&plain.address, cache.path());
    is_refused(&hub);
    assert_eq!(hub.find(&named(FILE)), None);
    assert_eq!(fs::read(hub.pull(&right, &mut on).unwrap()).unwrap(), content);
    assert_eq!(published().len(), 6);
    for model in published() {
        assert!(model.bytes > 0 && model.sha256.len() == 64);
        let file = named(&format!("hf:{}/{}", model.repository, model.file));
        assert_eq!(named(model.name), file.with_sha256(model.sha256));
    }
}

#[test]
fn a_download_continues_over_broken_and_silent_connections() {
    let content = noise(400_000);
    for stalls in [false, true] {
        let Site { hub, back, .. } = site(&[("a.gguf", content.clone())], move |asked, content| {
            let stalls = stalls && asked.start() < 100_000;
            Answer { stalls, ..Answer::file(asked, content).cut(if stalls { 90_000 } else { 150_000 }) }
        });
        let path = hub.pull(&named(FILE), &mut on).unwrap();
        assert_eq!(fs::read(path).unwrap(), content);
        let starts: Vec<usize> = back.asked().iter().map(Asked::start).collect();
        assert!(starts.len() >= 3 && starts.is_sorted() && starts[1] > 0, "{starts:?}");
    }
}

#[test]
fn a_hub_that_falls_silent_is_given_up() {
    let server = Server::new(|_| {
        let body = b"{\"siblings\":[]}".to_vec();
        Answer { status: 200, body, stalls: true, ..Answer::default() }.cut(3)
    });
    let cache = TempDir::new().unwrap();
    let error = hub(&server.address, cache.path()).pull(&named("hf:owner/name"), &mut on).unwrap_err();
    assert!(matches!(problem(error), HubError::Network { problem } if problem.contains("no byte arrived")));
}

#[test]
fn what_has_arrived_is_kept_for_the_next_time() {
    let content = noise(400_000);
    let fails = Arc::new(Mutex::new(true));
    let now = Arc::clone(&fails);
    let Site { hub, back, cache, .. } = site(&[("a.gguf", content.clone())], move |asked, content| {
        if *now.lock().unwrap() {
            Answer::file(asked, content).cut(if asked.start() == 0 { 200_000 } else { 0 })
        } else {
            Answer::file(asked, content)
        }
    });
    let error = hub.pull(&named(FILE), &mut on).unwrap_err();
    assert!(matches!(problem(error), HubError::Network { .. }));
    let part = cache.path().join("models--owner--name/blobs").join(format!("{}.incomplete", sum(&content)));
    assert_eq!(fs::metadata(&part).unwrap().len(), 200_000);
    assert_eq!(hub.missing(&named(FILE)).unwrap(), Some(200_000));
    assert!(hub.find(&named(FILE)).is_none() && hub.list().is_empty());
    back.asked();
    // A download that is cancelled loses nothing, either.
    *fails.lock().unwrap() = false;
    let stop = hub.pull(&named(FILE), &mut |download| match download.have {
        300_000.. => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(problem(stop.unwrap_err()), HubError::Cancelled));
    let path = hub.pull(&named(FILE), &mut on).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    let starts: Vec<usize> = back.asked().iter().map(Asked::start).collect();
    assert!(starts.len() == 2 && starts[0] == 200_000 && starts[1] >= 300_000, "{starts:?}");
    assert!(!part.exists());
}

#[test]
fn servers_without_ranges_and_foreign_parts_are_begun_again() {
    let content = noise(300_000);
    let Site { hub, back, .. } = site(&[("a.gguf", content.clone())], |asked, content| {
        let whole = Asked { headers: BTreeMap::new(), ..asked.clone() };
        Answer::file(&whole, content).cut(if asked.start() == 0 { 100_000 } else { usize::MAX })
    });
    assert_eq!(fs::read(hub.pull(&named(FILE), &mut on).unwrap()).unwrap(), content);
    assert_eq!(back.asked().len(), 2);
    // A part that is longer than the file, and one that ends where the file does but has other bytes.
    for (len, damaged) in [(300_001, false), (300_000, true), (299_000, true)] {
        let Site { hub, cache, .. } = site(&[("a.gguf", content.clone())], Answer::file);
        let blobs = cache.path().join("models--owner--name/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", sum(&content))), vec![7; len]).unwrap();
        if damaged {
            let error = problem(hub.pull(&named(FILE), &mut on).unwrap_err()).to_string();
            assert!(error.contains("SHA-256") && error.contains(&sum(&content)), "{error}");
        }
        assert_eq!(fs::read(hub.pull(&named(FILE), &mut on).unwrap()).unwrap(), content);
    }
}

#[test]
fn a_busy_server_is_given_time() {
    let content = noise(1000);
    let first = Arc::new(Mutex::new(2));
    let left = Arc::clone(&first);
    let file = content.clone();
    let server = Server::new(move |asked| {
        let mut left = left.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return match *left {
                1 => Answer::status(429).with("Retry-After", "1"),
                _ => Answer::status(503),
            };
        }
        Answer::file(asked, &file).with("X-Repo-Commit", COMMIT).with("ETag", format!("W/\"{}\"", sum(&file)))
    });
    let cache = TempDir::new().unwrap();
    let begun = Instant::now();
    let path = hub(&server.address, cache.path()).pull(&named(FILE), &mut on).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(fs::read(path).unwrap(), content);
    // For ever is too long, and so is an hour.
    for wait in ["3600", "0"] {
        let server = Server::new(move |_| Answer::status(429).with("Retry-After", wait));
        let error =
            hub(&server.address, cache.path()).pull(&named("hf:owner/name/b.gguf"), &mut on).unwrap_err();
        assert!(problem(error).to_string().contains("status 429"));
        assert_eq!(server.asked().len(), if wait == "0" { 6 } else { 1 });
    }
}

#[test]
fn refusals_say_what_to_do() {
    let cache = TempDir::new().unwrap();
    let error = |answer: Answer, token: bool| {
        let server = Server::new(move |_| answer.clone());
        let mut hub = hub(&server.address, cache.path());
        if token {
            hub = hub.token("x");
        }
        hub.pull(&named(FILE), &mut on).unwrap_err().to_string()
    };
    let content = noise(1000);
    for (answer, token, message) in [
        (Answer::status(401), false, "HF_TOKEN"),
        (Answer::status(403).with("X-Error-Code", "GatedRepo"), true, "terms to accept"),
        (Answer::status(404).with("X-Error-Code", "RepoNotFound"), false, "no such repository"),
        (Answer::status(404).with("X-Error-Code", "RevisionNotFound"), false, "no such revision"),
        (Answer::status(404), false, "no such file"),
        (Answer::status(418), false, "status 418"),
        (
            Answer { status: 200, body: b"hello".to_vec(), ..Answer::default() },
            false,
            "does not answer as a Hub does",
        ),
        (redirect(&content, "/owner/name/resolve/main/a.gguf"), false, "redirects more than"),
        (redirect(&content, "ftp://elsewhere/"), false, "expected an https address"),
        (Answer::status(302).with("Location", "relative"), false, "expected an https address"),
        (
            Answer { status: 200, body: content.clone(), ..Answer::default() }
                .with("X-Repo-Commit", COMMIT)
                .with("ETag", "\"../../x\""),
            false,
            "does not answer as a Hub does",
        ),
        (
            Answer { status: 200, body: content.clone(), ..Answer::default() }
                .with("X-Repo-Commit", COMMIT)
                .with("ETag", sum(b"other")),
            false,
            "expected the SHA-256",
        ),
        (
            Answer { status: 200, body: content.clone(), ..Answer::default() }
                .with("X-Repo-Commit", COMMIT)
                .with("ETag", "abc")
                .with("X-Linked-Size", "999"),
            false,
            "expected 999 bytes, found 1000",
        ),
    ] {
        let shown = error(answer, token);
        assert!(shown.starts_with(FILE) && shown.contains(message), "{shown}, expected {message}");
    }
    assert!(
        fs::read_dir(cache.path().join("models--owner--name")).unwrap().all(|entry| fs::read_dir(
            entry.unwrap().path()
        )
        .unwrap()
        .count()
            == 0)
    );
    // Nothing listens there.
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = hub(&format!("http://{nowhere}"), cache.path()).pull(&named(FILE), &mut on).unwrap_err();
    assert!(matches!(problem(error), HubError::Network { .. }));
    assert!(Hub::new("huggingface.co", cache.path()).is_err());
}

#[test]
fn a_repository_has_one_model_or_its_files_are_named() {
    let (a, b) = (noise(1000), noise(2000));
    let parts = [("x-00001-of-00002.gguf", a.clone()), ("x-00002-of-00002.gguf", b.clone())];
    let Site { hub, .. } = site(&parts, Answer::file);
    let path = hub.pull(&named("hf:owner/name"), &mut on).unwrap();
    assert_eq!(fs::read(&path).unwrap(), a);
    assert_eq!(fs::read(path.with_file_name("x-00002-of-00002.gguf")).unwrap(), b);
    assert_eq!(hub.find(&named("hf:owner/name")), Some(path));
    let Site { hub, .. } = site(&[("a.gguf", a), ("b.gguf", b)], Answer::file);
    let error = hub.pull(&named("hf:owner/name"), &mut on).unwrap_err().to_string();
    assert!(error.contains("a.gguf, b.gguf"), "{error}");
    let Site { hub, .. } = site(&[], Answer::file);
    let error = hub.pull(&named("hf:owner/name"), &mut on).unwrap_err().to_string();
    assert!(error.contains("no GGUF file"), "{error}");
}

#[test]
fn two_downloads_of_a_file_are_one() {
    let content = noise(400_000);
    let Site { hub, back, .. } = site(&[("a.gguf", content.clone())], |asked, content| {
        thread::sleep(Duration::from_millis(150));
        Answer::file(asked, content)
    });
    let pulls: Vec<_> = (0..3)
        .map(|_| {
            let hub = hub.clone();
            thread::spawn(move || hub.pull(&named(FILE), &mut on).unwrap())
        })
        .collect();
    for pull in pulls {
        assert_eq!(fs::read(pull.join().unwrap()).unwrap(), content);
    }
    assert_eq!(back.asked().len(), 1);
}

#[test]
fn an_address_in_the_environment_is_refused_by_its_name() {
    let site = site(&[], Answer::file);
    let mut command = command(&site, env!("CARGO_BIN_EXE_shohin"), &["pull", "bonsai-1.7b"]);
    let output = command.env("HF_ENDPOINT", "hub.example").output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("shohin: HF_ENDPOINT is \"hub.example\", expected an http"), "{error}");
}

fn shohin(site: &Site, args: &[&str]) -> Output {
    command(site, env!("CARGO_BIN_EXE_shohin"), args).output().unwrap()
}

fn command(site: &Site, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).env("SHOHIN_WEIGHT_CACHE", "none");
    command.env("HF_ENDPOINT", &site.front.address).env("HF_HUB_CACHE", site.cache.path());
    for name in [
        "HF_TOKEN",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
        "all_proxy",
        "NO_PROXY",
        "no_proxy",
    ] {
        command.env_remove(name);
    }
    command
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

#[test]
fn the_program_pulls_runs_lists_and_deletes_a_model() {
    let sprout = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf")).unwrap();
    let site =
        site(&[("sprout.gguf", sprout.clone())], |asked, content| Answer::file(asked, content).cut(600_000));
    let model = "hf:owner/name/sprout.gguf";
    let run = ["run", "-m", model, "--preset", "greedy", "Hello!"];
    let first = shohin(&site, &run);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let asked = site.back.asked().len();
    assert!(asked >= 3, "{asked} connections");
    let plain = shohin(&site, &["run", "--preset", "greedy", "Hello!"]);
    assert_eq!(text(&first.stdout), text(&plain.stdout));
    // Now without the server.
    site.front.asked();
    assert_eq!(shohin(&site, &run).stdout, plain.stdout);
    assert!(site.front.asked().is_empty());
    let pulled = text(&shohin(&site, &["pull", model]).stdout);
    assert_eq!(Model::load(pulled.trim_end()).unwrap().config(), Model::built_in().unwrap().config());
    let listed = text(&shohin(&site, &["list"]).stdout);
    assert!(listed.contains(model) && listed.contains("1.41 MiB"), "{listed}");
    assert!(text(&shohin(&site, &["list", "--published"]).stdout).contains("bonsai-1.7b"));
    let checked = shohin(&site, &["check", "-m", model]);
    let lines = text(&checked.stdout);
    assert!(checked.status.success() && lines.ends_with("as it should: yes\n"), "{lines}");
    assert!(lines.contains("that of the Hub") && !lines.contains("NO"), "{lines}");
    for isa in Isa::available() {
        assert!(lines.contains(isa.name()), "{lines}");
    }
    // Neither a changed weight nor one that is no number escapes it.
    for (damage, found) in [(1, "expected "), (0xFF, "not finite")] {
        let mut damaged = sprout.clone();
        let half = damaged.len() / 2;
        damaged[half..half + 4096].fill(damage);
        fs::write(fs::canonicalize(pulled.trim_end()).unwrap(), damaged).unwrap();
        let checked = shohin(&site, &["check", "-m", model]);
        let lines = text(&checked.stdout);
        assert_eq!(checked.status.code(), Some(1));
        assert!(lines.contains(found) && lines.ends_with("as it should: no\n"), "{lines}");
    }
    let removed = shohin(&site, &["rm", model]);
    assert!(removed.status.success() && text(&removed.stderr).contains("1.41 MiB freed"));
    let again = shohin(&site, &["rm", model]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("is not in"));
    assert!(shohin(&site, &["list"]).stdout.is_empty());
    let wrong = shohin(&site, &["pull", "bonsay"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("hf:owner/repository/file"), "{}", text(&wrong.stderr));
    let near = shohin(&site, &["pull", "bonsai-1.7"]);
    assert!(text(&near.stderr).contains("did you mean bonsai-1.7b?"), "{}", text(&near.stderr));
    let unused = shohin(&site, &["list", "-m", "x.gguf"]);
    assert_eq!(unused.status.code(), Some(2), "{unused:?}");
    let offline =
        command(&site, env!("CARGO_BIN_EXE_shohin"), &run).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert_eq!(offline.status.code(), Some(1));
    assert!(text(&offline.stderr).contains("HF_HUB_OFFLINE"));
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_named_and_what_fits_is_kept() {
    let site = site(&[("a.gguf", noise(400_000))], Answer::file);
    let program = env!("CARGO_BIN_EXE_shohin");
    // Files of at most 128 or 256 blocks of 512 bytes or a kilobyte, as shells differ.
    let script = format!("trap '' XFSZ; ulimit -f 256; exec {program} pull {FILE}");
    let failed = command(&site, "sh", &["-c", &script]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(
        text(&failed.stderr).contains("cannot write") && text(&failed.stderr).contains(".incomplete"),
        "{failed:?}"
    );
    site.back.asked();
    let pulled = shohin(&site, &["pull", FILE]);
    assert!(pulled.status.success(), "{pulled:?}");
    assert!(site.back.asked()[0].start() > 100_000);
}

#[cfg(unix)]
#[test]
fn a_killed_download_is_not_there_or_whole() {
    let content = noise(400_000);
    // It takes a fifth of a second, in pieces.
    let site = site(&[("a.gguf", content.clone())], |asked, content| {
        thread::sleep(Duration::from_millis(20));
        Answer::file(asked, content).cut(50_000)
    });
    let program = env!("CARGO_BIN_EXE_shohin");
    let cuts = std::env::var("SHOHIN_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let started = Instant::now();
    assert!(shohin(&site, &["pull", FILE]).status.success());
    let whole = started.elapsed();
    let mut found = [0, 0];
    for cut in 0..cuts {
        if found[1] > 0 && shohin(&site, &["rm", FILE]).status.success() {
            found[1] = 0;
        }
        let mut command = command(&site, program, &["pull", FILE]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Not the same instants for every number of cuts.
        thread::sleep(whole.mul_f64(f64::from((cut * 7919 + cuts) % 100) / 90.0));
        child.kill().unwrap();
        child.wait().unwrap();
        let kept = site.hub.clone().only_kept(true).find(&named(FILE));
        found[usize::from(kept.is_some())] += 1;
        if let Some(path) = kept {
            assert_eq!(fs::read(path).unwrap(), content, "kill {cut}");
        }
    }
    assert!(shohin(&site, &["pull", FILE]).status.success());
    let path = site.hub.clone().only_kept(true).find(&named(FILE)).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
}

#[test]
fn a_format_names_one_of_several_files() {
    let files = ["m-Q4_K_M.gguf", "m-Q4_K_M_L.gguf", "m-Q8_0.gguf", "mmproj-Q8_0.gguf"];
    let all: Vec<(&str, Vec<u8>)> =
        files.iter().zip(1..).map(|(name, seed)| (*name, noise(1000 * seed))).collect();
    let Site { hub, cache: _cache, .. } = site(&all, Answer::file);
    let model = named("hf:owner/name:q4_k_m");
    assert_eq!(hub.missing(&model).unwrap(), Some(1000));
    let path = hub.pull(&model, &mut on).unwrap();
    assert!(path.ends_with("m-Q4_K_M.gguf") && fs::read(&path).unwrap() == noise(1000));
    assert_eq!(hub.find(&model), Some(path));
    assert_eq!(hub.find(&named("hf:owner/name:Q8_0")), None);
    assert!(hub.pull(&named("hf:owner/name:Q8_0"), &mut on).unwrap().ends_with("m-Q8_0.gguf"));
    assert_eq!((hub.kept(&model).len(), hub.remove(&model).unwrap(), hub.list().len()), (1, 1000, 1));
    match problem(hub.pull(&named("hf:owner/name:Q5_K"), &mut on).unwrap_err()) {
        HubError::NoSuchFormat { tag, files: found } => assert_eq!((tag, found.len()), ("Q5_K".into(), 4)),
        other => panic!("{other}"),
    }
}

/// The files of a folder that transformers has written.
fn folder(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf").join(name);
    let file = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_str().unwrap().into(), fs::read(&path).unwrap())
    };
    fs::read_dir(folder).unwrap().map(|entry| file(entry.unwrap().path())).collect()
}

#[test]
fn a_folder_of_safetensors_is_pulled_run_and_named_as_its_repository() {
    let mut files = folder("qwen2");
    files.push(("consolidated.safetensors".into(), noise(1000)));
    let borrowed: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let site = site(&borrowed, Answer::file);
    let run = ["run", "-m", "hf:owner/name", "--raw", "--preset", "greedy", "-n", "4", "abc"];
    let first = shohin(&site, &run);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let local = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/hf/qwen2");
    let mut same = run;
    same[2] = local;
    assert_eq!(first.stdout, shohin(&site, &same).stdout);
    let asked: Vec<String> = site.back.asked().into_iter().map(|asked| asked.path).collect();
    assert!(
        asked.contains(&"/cdn/tokenizer.json".into()) && asked.last().unwrap() == "/cdn/model.safetensors"
    );
    assert!(!asked.iter().any(|path| path.contains("consolidated") || path.contains("texts")), "{asked:?}");
    // It is kept, and named as the repository is.
    site.front.asked();
    let inspected = shohin(&site, &["inspect", "hf:owner/name", "--json"]);
    assert!(site.front.asked().is_empty() && text(&inspected.stdout).contains("\"name\": \"name\""));
    let path = text(&shohin(&site, &["pull", "hf:owner/name"]).stdout);
    assert_eq!(path.trim_end(), site.hub.find(&named("hf:owner/name")).unwrap().to_str().unwrap());
    assert!(path.trim_end().ends_with(COMMIT));
    let removed = shohin(&site, &["rm", "hf:owner/name"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert!(!site.cache.path().join("models--owner--name").exists());
}

#[test]
fn a_folder_in_parts_is_kept_when_all_are() {
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let Site { hub, cache, .. } = site(
        &[
            ("config.json", b"{}".to_vec()),
            ("model.safetensors.index.json", index.into()),
            (parts[0], noise(10)),
            (parts[1], noise(20)),
        ],
        Answer::file,
    );
    let model = named("hf:owner/name");
    assert_eq!(hub.missing(&model).unwrap(), Some(2 + index.len() as u64 + 30));
    let path = hub.pull(&model, &mut on).unwrap();
    assert_eq!(hub.find(&model), Some(path.clone()));
    assert_eq!(path, cache.path().join("models--owner--name/snapshots").join(COMMIT));
    fs::remove_file(path.join(parts[1])).unwrap();
    assert_eq!(hub.find(&model), None);
    // What only PyTorch reads is named.
    let Site { hub, cache: _cache, .. } =
        site(&[("config.json", b"{}".to_vec()), ("pytorch_model.bin", noise(10))], Answer::file);
    let error = hub.pull(&model, &mut on).unwrap_err().to_string();
    assert!(error.contains("pytorch_model.bin, which only PyTorch reads"), "{error}");
}

/// Where the cache is, as huggingface_hub has it (`constants.py`): it says so with `HF_HUB_CACHE`.
#[test]
fn the_cache_is_where_the_hubs_own_tools_have_it() {
    let home = TempDir::new().unwrap();
    let home = home.path().to_str().unwrap();
    for (set, cache) in [
        (&[][..], "{home}/.cache/huggingface/hub"),
        (&[("XDG_CACHE_HOME", "{home}/x")], "{home}/x/huggingface/hub"),
        (&[("XDG_CACHE_HOME", "{home}/x"), ("HF_HOME", "~/hf")], "{home}/hf/hub"),
        (&[("HF_HOME", "$HOME/hf")], "{home}/hf/hub"),
        (&[("HF_HOME", "~/hf"), ("HF_HUB_CACHE", "${HOME}/hub")], "{home}/hub"),
        (&[("HF_HOME", ""), ("HF_HUB_CACHE", ""), ("XDG_CACHE_HOME", "")], "{home}/.cache/huggingface/hub"),
        (&[("HUGGINGFACE_HUB_CACHE", "~/old")], "{home}/old"),
        (&[("HF_HUB_CACHE", "{home}/$UNKNOWN_NAME/hub")], "{home}/$UNKNOWN_NAME/hub"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
        command.arg("list").env("HOME", home).env("SHOHIN_CONFIG", "none").env("HF_ENDPOINT", "");
        for name in ["HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "UNKNOWN_NAME"] {
            command.env_remove(name);
        }
        for (name, value) in set {
            command.env(name, value.replace("{home}", home));
        }
        let said = text(&command.output().unwrap().stderr);
        let cache = cache.replace("{home}", home);
        assert!(said.contains(&format!("(no models in {cache};")), "{set:?}: {said}");
    }
}

/// A SOCKS5 proxy (RFC 1928) that leads to wherever it is asked for, and from the host `hub.test` to `front`. Returns its
/// address and the hosts that were asked for.
fn socks(front: &str) -> (String, Arc<Mutex<Vec<String>>>) {
    use std::io::Read;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, front) = (Arc::clone(&asked), front.trim_start_matches("http://").to_string());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, log, front) = (client.unwrap(), Arc::clone(&log), front.clone());
            thread::spawn(move || {
                let mut take = |n: usize| {
                    let mut bytes = vec![0; n];
                    client.read_exact(&mut bytes).unwrap();
                    bytes
                };
                let methods = take(2)[1];
                take(methods.into());
                client.write_all(&[5, 0]).unwrap();
                let mut take = |n: usize| {
                    let mut bytes = vec![0; n];
                    client.read_exact(&mut bytes).unwrap();
                    bytes
                };
                let host = match take(4)[3] {
                    1 => take(4).iter().map(u8::to_string).collect::<Vec<_>>().join("."),
                    _ => {
                        let len = take(1)[0];
                        String::from_utf8(take(len.into())).unwrap()
                    }
                };
                let port = take(2);
                let to = format!("{host}:{}", u16::from_be_bytes([port[0], port[1]]));
                let to = if host == "hub.test" { front } else { to };
                log.lock().unwrap().push(host);
                let mut server = TcpStream::connect(to).unwrap();
                client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut up, &mut down));
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (address, asked)
}

#[test]
fn downloads_go_through_a_socks_proxy() {
    let site = site(&[("a.gguf", noise(1000))], Answer::file);
    let (proxy, asked) = socks(&site.front.address);
    let pull = |set: &[(&str, &str)]| {
        let mut command = command(&site, env!("CARGO_BIN_EXE_shohin"), &["pull", FILE]);
        command.envs(set.iter().copied());
        let output = command.output().unwrap();
        shohin(&site, &["rm", FILE]);
        (output, std::mem::take(&mut *asked.lock().unwrap()))
    };
    let (remote, local) = (format!("socks5h://{proxy}"), format!("socks5://{proxy}"));
    let (output, hosts) = pull(&[("ALL_PROXY", &remote), ("HF_ENDPOINT", "http://hub.test")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(hosts.contains(&"hub.test".into()) && hosts.contains(&"127.0.0.1".into()), "{hosts:?}");
    let (output, hosts) = pull(&[("HTTP_PROXY", &local), ("ALL_PROXY", "")]);
    assert!(output.status.success() && !hosts.is_empty(), "{}", text(&output.stderr));
    for without in ["NO_PROXY", "no_proxy"] {
        let (output, hosts) =
            pull(&[("ALL_PROXY", &local), ("NO_PROXY", ""), (without, "example.com, 127.0.0.1")]);
        assert!(output.status.success() && hosts.is_empty(), "{hosts:?}");
    }
    let (output, _) = pull(&[("ALL_PROXY", "gopher://127.0.0.1")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).starts_with("shohin: ALL_PROXY is \"gopher://127.0.0.1\", expected an address")
    );
}
