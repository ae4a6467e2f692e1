//! Puts load on a running `shohin serve`, and prints how it fares.
//!
//! ```text
//! cargo run -r -p shohin-server --example load -- http://127.0.0.1:8080 speed
//! cargo run -r -p shohin-server --example load -- http://127.0.0.1:8080 soak 10000 [PID]
//! cargo run -r -p shohin-server --example load -- http://127.0.0.1:8080 soak 2h [PID]
//! ```
//!
//! `speed` streams replies of 64 tokens to short prompts, 1, 2, 4 and 8 at once, five in turn each. `soak` sends as many mixed requests, or for
//! as many hours (`h`) or seconds (`s`), to chat completions, Responses and Messages: short, long, broken off, read slowly,
//! and malformed; each must get the answer that it should. Beside them are clients that do not keep to HTTP, and one that
//! asks a short question twice a second, whose waiting times are printed. With the process id of a server on this Linux
//! machine, its memory is printed, too, and must not grow after a fifth of the soak. `cargo xtask soak` does all that.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error + Send + Sync>;

/// The lines of an answer.
type Lines = Box<dyn Iterator<Item = io::Result<String>>>;

/// Status, and the lines of the answer.
fn post(url: &str, path: &str, body: &str) -> Result<(u16, Lines), Failure> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let response = agent.post(format!("{url}{path}")).send(body)?;
    let status = response.status().as_u16();
    Ok((status, Box::new(BufReader::new(response.into_body().into_reader()).lines())))
}

fn ask(text: &str, tokens: usize, stream: bool) -> String {
    let message = json!({ "role": "user", "content": text });
    json!({ "messages": [message], "max_tokens": tokens, "stream": stream, "temperature": 0 }).to_string()
}

/// A form of requests and answers.
#[derive(Clone, Copy)]
enum Form {
    Chat,
    Responses,
    Messages,
}

impl Form {
    fn path(self) -> &'static str {
        match self {
            Form::Chat => "/v1/chat/completions",
            Form::Responses => "/v1/responses",
            Form::Messages => "/v1/messages",
        }
    }

    fn ask(self, text: &str, tokens: usize, stream: bool) -> String {
        match self {
            Form::Chat | Form::Messages => ask(text, tokens, stream),
            Form::Responses => {
                json!({ "input": text, "max_output_tokens": tokens, "stream": stream, "temperature": 0 })
                    .to_string()
            }
        }
    }

    /// Requests that it refuses.
    fn malformed(self) -> [&'static str; 5] {
        match self {
            Form::Chat => [
                "{",
                "{}",
                "{\"messages\": 3}",
                "{\"messages\": [], \"n\": 2}",
                "{\"messages\": [{\"role\": \"cow\", \"content\": \"\"}]}",
            ],
            Form::Responses => [
                "{",
                "{}",
                "{\"input\": 3}",
                "{\"input\": \"x\", \"store\": true}",
                "{\"input\": [{\"role\": \"cow\", \"content\": \"\"}]}",
            ],
            Form::Messages => [
                "{",
                "{}",
                "{\"messages\": 3, \"max_tokens\": 1}",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
                "{\"messages\": [{\"role\": \"cow\", \"content\": \"\"}], \"max_tokens\": 1}",
            ],
        }
    }

    /// Whether an answer that is not streamed has a text.
    fn is_whole(self, answer: &Value) -> bool {
        match self {
            Form::Chat => answer["choices"][0]["message"]["content"].is_string(),
            Form::Responses => answer["output"][0]["content"][0]["text"].is_string(),
            Form::Messages => answer["stop_reason"].is_string() && answer["content"].is_array(),
        }
    }

    /// Whether a stream has ended with this line.
    fn is_end(self, line: &str) -> bool {
        match self {
            Form::Chat => line == "data: [DONE]",
            Form::Responses => {
                line.starts_with("data: {\"type\":\"response.completed\"")
                    || line.starts_with("data: {\"type\":\"response.incomplete\"")
            }
            Form::Messages => line == "data: {\"type\":\"message_stop\"}",
        }
    }
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [url, "speed"] => speed(url),
        [url, "soak", end] => soak(url, end.parse()?, None),
        [url, "soak", end, pid] => soak(url, end.parse()?, Some(pid)),
        _ => Err(
            "expected a URL, then `speed`, or `soak` with a number of requests or hours (2h) and, on this \
                  machine, the server's process id"
                .into(),
        ),
    }
}

/// The time from a request to the first token of its reply.
fn first_token(url: &str, text: &str, tokens: usize) -> Result<Duration, Failure> {
    let start = Instant::now();
    let (status, lines) = post(url, "/v1/chat/completions", &ask(text, tokens, true))?;
    let mut first = None;
    for line in lines {
        if line?.contains("\"delta\":{") {
            first.get_or_insert_with(|| start.elapsed());
        }
    }
    first.ok_or_else(|| Failure::from(format!("status {status}")))
}

fn speed(url: &str) -> Result<(), Failure> {
    const TOKENS: usize = 64;
    const REPLIES: usize = 5;
    println!("| streams | tokens/s of all | first token, median | 95 % |\n|---:|---:|---:|---:|");
    for streams in [1, 2, 4, 8] {
        let start = Instant::now();
        let firsts: Result<Vec<Vec<Duration>>, Failure> = thread::scope(|scope| {
            let stream = |i: usize| {
                // Begins that are new, so that nothing is known of them.
                let text = move |_| format!("{} {i} Hello!", start.elapsed().as_nanos());
                scope.spawn(move || (0..REPLIES).map(|n| first_token(url, &text(n), TOKENS)).collect())
            };
            let all: Vec<_> = (0..streams).map(stream).collect();
            let join = |stream: thread::ScopedJoinHandle<'_, Result<_, Failure>>| {
                stream.join().map_err(|_| "a thread panicked")?
            };
            all.into_iter().map(join).collect()
        });
        let mut firsts = firsts?.concat();
        firsts.sort();
        let rate = (firsts.len() * TOKENS) as f64 / start.elapsed().as_secs_f64();
        let seconds = |percent: usize| firsts[(firsts.len() * percent).div_ceil(100) - 1].as_secs_f64();
        println!("| {streams} | {rate:.1} | {:.2} s | {:.2} s |", seconds(50), seconds(95));
    }
    Ok(())
}

/// When a soak ends.
#[derive(Clone, Copy)]
enum End {
    After(Duration),
    Requests(usize),
}

impl FromStr for End {
    type Err = Failure;

    fn from_str(text: &str) -> Result<End, Failure> {
        Ok(match (text.strip_suffix('h'), text.strip_suffix('s')) {
            (Some(hours), _) => End::After(Duration::try_from_secs_f64(3600.0 * hours.parse::<f64>()?)?),
            (None, Some(seconds)) => End::After(Duration::try_from_secs_f64(seconds.parse()?)?),
            (None, None) => End::Requests(text.parse()?),
        })
    }
}

/// Samples of memory in a soak.
const SAMPLES: usize = 20;

type Kinds = BTreeMap<(&'static str, u16), usize>;

fn soak(url: &str, end: End, pid: Option<&str>) -> Result<(), Failure> {
    let (next, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (kinds, polite, memory) = (Mutex::new(Kinds::new()), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let start = Instant::now();
    // The part of the soak that is over when request `i` begins.
    let progress = |i: usize| match end {
        End::After(time) => start.elapsed().as_secs_f64() / time.as_secs_f64(),
        End::Requests(count) => i as f64 / count as f64,
    };
    let failed = |what: &str, error: Failure| {
        wrong.fetch_add(1, Ordering::Relaxed);
        eprintln!("{what}: {error}");
    };
    let seen = |found| *kinds.lock().expect("no thread panics").entry(found).or_default() += 1;
    let goes_on = || progress(next.load(Ordering::Relaxed)) < 1.0;
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let progress = progress(i);
                    if progress >= 1.0 {
                        return;
                    }
                    if let Some(pid) = pid {
                        let mut memory = memory.lock().expect("no thread panics");
                        while memory.len() <= (progress * SAMPLES as f64) as usize {
                            memory.push(resident(pid));
                        }
                    }
                    match one(url, i) {
                        Ok(found) => seen(found),
                        Err(error) => failed(&format!("request {i}"), error),
                    }
                }
            });
        }
        for worker in 0..4 {
            scope.spawn(move || {
                let mut n = worker * 2;
                while goes_on() {
                    match hostile(url, n) {
                        Ok(kind) => seen((kind, 0)),
                        Err(error) => failed("hostile client", error),
                    }
                    n += 1;
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                let asked = Instant::now();
                match one(url, 0) {
                    Ok((_, 200)) => polite.lock().expect("no thread panics").push(asked.elapsed()),
                    Ok((_, status)) => failed("polite client", format!("status {status}").into()),
                    Err(error) => failed("polite client", error),
                }
                thread::sleep(Duration::from_millis(500));
            }
        });
    });
    let wrong = wrong.into_inner();
    let kinds = kinds.into_inner()?;
    let count: usize = kinds.iter().filter(|((_, status), _)| *status > 0).map(|(_, n)| n).sum();
    println!("{count} requests in {:.0} s, {wrong} answered wrongly", start.elapsed().as_secs_f64());
    for ((kind, status), n) in kinds {
        match status {
            0 => println!("  {kind}: {n} clients"),
            _ => println!("  {kind}, status {status}: {n}"),
        }
    }
    let mut polite = polite.into_inner()?;
    polite.sort();
    let part =
        |percent: usize| polite.get((polite.len().max(1) - 1) * percent / 100).copied().unwrap_or_default();
    println!(
        "a polite client waited {:.2} s in the median of {} requests, {:.2} s at the 95th percentile, {:.2} s at most",
        part(50).as_secs_f64(),
        polite.len(),
        part(95).as_secs_f64(),
        part(100).as_secs_f64()
    );
    let memory = memory.into_inner()?;
    let early = memory.get(SAMPLES / 5).copied().unwrap_or(0);
    let most = memory.iter().copied().max().unwrap_or(0);
    if let (Some(pid), true) = (pid, early > 0) {
        let last = resident(pid);
        println!(
            "memory of the server: {early} kB after a fifth of the soak, {last} kB at the end, {most} kB at most"
        );
        if last > early + early / 8 + 4096 {
            return Err("its memory grows".into());
        }
    }
    if wrong > 0 { Err(format!("{wrong} answers are wrong").into()) } else { Ok(()) }
}

/// Resident memory of a process in kB; 0 if the system does not tell.
fn resident(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A client that does not keep to HTTP, is slow, or goes away; an error if the server does something else than refuse it, or
/// answer what is right in spite of that.
fn hostile(url: &str, n: usize) -> Result<&'static str, Failure> {
    const CHAT: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    let mut stream = TcpStream::connect(url.trim_start_matches("http://"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    // The server may hang up at any time.
    let mut send = |bytes: &[u8]| stream.write_all(bytes).is_ok();
    let pause = |ms| thread::sleep(Duration::from_millis(ms));
    let (kind, allowed): (_, &[&str]) = match n % 8 {
        0 => {
            send(b"POST /v1/chat/completions HTTP/1.1\r\nHost:");
            pause(2000);
            return Ok("half a header, then gone");
        }
        1 => {
            let noise = (0..4096u32).map(|i| (i.wrapping_mul(2654435761).wrapping_add(n as u32) >> 13) as u8);
            send(&noise.collect::<Vec<_>>());
            ("noise", &["", "HTTP/1.1 400"])
        }
        2 => {
            send(format!("{CHAT}Content-Length: 1000\r\n\r\n{{").as_bytes());
            pause(1000);
            return Ok("a body that does not come");
        }
        3 => {
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" {
                send(&[*byte]);
                pause(20);
            }
            ("one byte at a time", &["HTTP/1.1 200"])
        }
        4 => {
            send(CHAT.as_bytes());
            while send(&[b'x'; 1 << 14]) && !(0..64).all(|_| send(&[b'x'; 1 << 14])) {}
            ("a header of a megabyte", &["", "HTTP/1.1 431", "HTTP/1.1 400"])
        }
        5 => {
            send(format!("{CHAT}Content-Length: 100000000\r\n\r\n").as_bytes());
            (0..400).all(|_| send(&[b' '; 1 << 14]));
            ("a body over the limit", &["", "HTTP/1.1 413"])
        }
        6 => {
            let body = ask("Tell me a story.", 200, true);
            send(format!("{CHAT}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
            pause(3000);
            return Ok("an answer that nobody reads");
        }
        _ => {
            send(format!("{CHAT}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n").as_bytes());
            ("a chunk of any size", &["", "HTTP/1.1 400"])
        }
    };
    let mut answer = [0; 12];
    let mut len = 0;
    while len < answer.len() {
        match stream.read(&mut answer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            // It hung up before it had read everything.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                break;
            }
            Err(error) => return Err(format!("{kind}: {error}").into()),
        }
    }
    let answer = String::from_utf8_lossy(&answer[..len]);
    if !allowed.contains(&&*answer) {
        return Err(format!("{kind}: {answer:?}").into());
    }
    Ok(kind)
}

/// Sends request `i`; an error if the answer is not as it should be.
fn one(url: &str, i: usize) -> Result<(&'static str, u16), Failure> {
    let form = [Form::Chat, Form::Responses, Form::Messages][i / 40 % 3];
    let text = ["Hello!", "What does a cow say?", "Tell me a story about a fox.", "How many legs has a dog?"]
        [i / 10 % 4];
    let (kind, expected): (_, &[u16]) = match i % 10 {
        0..=3 => ("short", &[200, 429]),
        4 | 5 => ("streamed", &[200, 429]),
        6 => ("broken off", &[200, 429]),
        7 => ("read slowly", &[200, 429]),
        8 => ("malformed", &[400]),
        _ => ("too long", &[400, 429]),
    };
    let request = match kind {
        "short" => form.ask(text, 1 + i % 30, false),
        "malformed" => form.malformed()[i / 10 % 5].into(),
        "too long" => form.ask(&"long ".repeat(40_000), 1, i % 20 == 9),
        _ => form.ask(text, 100, true),
    };
    let (status, lines) = post(url, form.path(), &request)?;
    if !expected.contains(&status) {
        return Err(format!("{kind}: status {status}").into());
    }
    let mut last = String::new();
    for (n, line) in lines.enumerate() {
        match kind {
            "broken off" if n > 4 => return Ok((kind, status)),
            "read slowly" if n < 10 => thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
        let line = line?;
        if !line.is_empty() {
            last = line;
        }
    }
    let whole = match (status, kind) {
        (200, "short") => form.is_whole(&serde_json::from_str(&last)?),
        (200, _) => form.is_end(&last),
        _ => serde_json::from_str::<Value>(&last)?["error"]["message"].is_string(),
    };
    if !whole {
        return Err(format!("{kind}, status {status}: ends with {last:?}").into());
    }
    Ok((kind, status))
}
