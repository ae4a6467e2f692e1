//! Puts load on a running `shohin serve`, and prints how it fares.
//!
//! ```text
//! cargo run -r -p shohin-server --example load -- http://127.0.0.1:8080 speed
//! cargo run -r -p shohin-server --example load -- http://127.0.0.1:8080 soak 10000
//! ```
//!
//! `speed` streams replies of 64 tokens to short prompts, 1, 2, 4 and 8 at once. `soak` sends as many mixed requests to
//! chat completions, Responses and Messages: short, long, broken off, read slowly, and malformed; each must get the answer
//! that it should.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, BufReader};
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
        [url, "soak", count] => soak(url, count.parse()?),
        _ => Err("expected a URL, then speed, or soak and a number of requests".into()),
    }
}

fn speed(url: &str) -> Result<(), Failure> {
    const TOKENS: usize = 64;
    println!("| streams | tokens/s of all | first token, median | last of them |\n|---:|---:|---:|---:|");
    for streams in [1, 2, 4, 8] {
        let start = Instant::now();
        let firsts: Result<Vec<Duration>, Failure> = thread::scope(|scope| {
            let stream = |i: usize| {
                scope.spawn(move || {
                    // A new begin, so that nothing is known of it.
                    let text = format!("{} {i} Hello!", start.elapsed().as_nanos());
                    let (status, lines) = post(url, "/v1/chat/completions", &ask(&text, TOKENS, true))?;
                    let mut first = None;
                    for line in lines {
                        if line?.contains("\"delta\":{\"role\"") {
                            first = Some(start.elapsed());
                        }
                    }
                    first.ok_or_else(|| Failure::from(format!("status {status}")))
                })
            };
            let all: Vec<_> = (0..streams).map(stream).collect();
            let join =
                |stream: thread::ScopedJoinHandle<'_, _>| stream.join().map_err(|_| "a thread panicked")?;
            all.into_iter().map(join).collect()
        });
        let mut firsts = firsts?;
        firsts.sort();
        let rate = (streams * TOKENS) as f64 / start.elapsed().as_secs_f64();
        let seconds = |i: usize| firsts[i].as_secs_f64();
        println!(
            "| {streams} | {rate:.1} | {:.2} s | {:.2} s |",
            seconds((streams - 1) / 2),
            seconds(streams - 1)
        );
    }
    Ok(())
}

fn soak(url: &str, count: usize) -> Result<(), Failure> {
    let (next, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let kinds: Vec<BTreeMap<(&str, u16), usize>> = thread::scope(|scope| {
        let worker = || {
            let mut seen = BTreeMap::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return seen;
                }
                match one(url, i) {
                    Ok(found) => *seen.entry(found).or_default() += 1,
                    Err(error) => {
                        wrong.fetch_add(1, Ordering::Relaxed);
                        eprintln!("request {i}: {error}");
                    }
                }
            }
        };
        let workers: Vec<_> = (0..16).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let mut all: BTreeMap<(&str, u16), usize> = BTreeMap::new();
    kinds.into_iter().flatten().for_each(|(kind, n)| *all.entry(kind).or_default() += n);
    println!(
        "{count} requests in {:.0} s, {} answered wrongly",
        start.elapsed().as_secs_f64(),
        wrong.into_inner()
    );
    for ((kind, status), n) in all {
        println!("  {kind}, status {status}: {n}");
    }
    Ok(())
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
