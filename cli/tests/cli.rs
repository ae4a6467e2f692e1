//! The built program, run as by a user or a script, with the built-in model.

use serde_json::{Value, json as to_json};
use shohin_core::cpu::Isa;
use shohin_core::cpu::repack::repacks;
use shohin_core::{Format, Gguf};
use shohin_tests::lora::Adapter;
use shohin_tests::model::{Model, Shape, Stored};
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn shohin(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
    command.args(args).stdin(Stdio::null());
    // Tests leave nothing in the user's directories.
    command.env("SHOHIN_WEIGHT_CACHE", "none");
    // Looking for GPUs takes longer than most tests.
    command.env("SHOHIN_DEVICE", "cpu");
    // Nor do they read what is there.
    command.env("SHOHIN_CONFIG", "none");
    for name in ["SHOHIN_MODEL", "SHOHIN_HOST", "SHOHIN_PORT", "SHOHIN_API_KEY", "SHOHIN_API_KEY_FILE"] {
        command.env_remove(name);
    }
    command
}

fn feed(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut command = shohin(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn stdout(output: Output) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{text}\n{errors}", output.status);
    text
}

fn ok(args: &[&str]) -> String {
    stdout(shohin(args).output().unwrap())
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// Asserts a failure with one line of output, and returns it.
fn failure(output: &Output, code: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(text.starts_with("shohin: ") && text.ends_with('\n'), "{text:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn fails(args: &[&str]) -> String {
    failure(&shohin(args).output().unwrap(), 1)
}

/// The same for an invalid option.
fn misuse(args: &[&str]) -> String {
    failure(&shohin(args).output().unwrap(), 2)
}

fn temporary(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    fs::write(&path, content).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn model() -> Vec<u8> {
    fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf")).unwrap()
}

/// Replies of the trainer's own PyTorch model.
fn trainer() -> Value {
    let text = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.expected.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()["models"]["sprout.gguf"].clone()
}

fn ids(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(Value::to_string).collect()
}

/// Greedy and in full precision.
const EXACT: [&str; 6] = ["--preset", "greedy", "--act", "f32", "--kv", "f32"];

/// Random enough never to end by itself.
const WILD: [&str; 8] = ["--temperature", "50", "--top-k", "0", "--top-p", "1", "--seed", "1"];

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

// ---- help

#[test]
fn help_names_chat_first_and_every_command_has_examples() {
    let help = ok(&[]);
    assert_eq!(help, ok(&["-h"]));
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap();
    assert_eq!(usage, "Usage: shohin chat");
    assert!(!help.contains('\u{1b}'), "colours in a pipe");
    let commands = help.split("Commands:\n").nth(1).unwrap();
    let names: Vec<&str> = commands.lines().map_while(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        names,
        [
            "chat",
            "run",
            "serve",
            "inspect",
            "tokenize",
            "logits",
            "eval",
            "embed",
            "rerank",
            "bench",
            "check",
            "convert",
            "quantize",
            "merge",
            "calibrate",
            "smooth",
            "prune",
            "compress",
            "train",
            "teach",
            "pull",
            "list",
            "rm",
            "completions",
            "man",
            "version",
            "help"
        ]
    );
    for name in names.into_iter().filter(|name| !["version", "help"].contains(name)) {
        let help = ok(&[name, "--help"]);
        assert!(help.contains("Examples:\n  ") && !help.contains("\\\""), "{name}");
        assert_eq!(help, ok(&["help", name]));
        let short = ok(&[name, "-h"]);
        assert!(short.lines().count() <= 40, "{name} -h has {} lines", short.lines().count());
        assert!(short.ends_with(&format!("`shohin {name} --help` explains all options, with examples.\n")));
    }
    assert_eq!(ok(&["help"]), ok(&["--help"]));
}

/// The commit is the one that git names.
#[test]
fn the_version_has_the_commit() {
    let version = ok(&["--version"]);
    assert_eq!(version, ok(&["version"]));
    let git =
        Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let Some(commit) = git.ok().filter(|git| git.status.success()) else {
        println!("SKIPPED: this is no checkout");
        return;
    };
    let commit = String::from_utf8(commit.stdout).unwrap();
    assert_eq!(version, format!("shohin {} ({})\n", env!("CARGO_PKG_VERSION"), &commit[..12]));
}

#[test]
fn shells_and_man_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = ok(&["completions", shell]);
        assert!(script.contains("tokenize") && script.contains("max-tokens"), "{shell}");
    }
    // What bash makes of it.
    let script = temporary("shohin.bash", ok(&["completions", "bash"]));
    let ask = format!(
        "source {script}; COMP_WORDS=(shohin quan); COMP_CWORD=1; _shohin shohin quan; echo \"${{COMPREPLY[@]}}\""
    );
    match Command::new("bash").args(["-c", &ask]).output() {
        Ok(output) => assert_eq!(stdout(output), "quantize\n"),
        Err(error) => println!("SKIPPED: bash: {error}"),
    }
    assert!(ok(&["man"]).starts_with(".ie \\n(.g .ds Aq"));
    let folder = temporary("man", "");
    fs::remove_file(&folder).unwrap();
    assert!(ok(&["man", "--out", &folder]).is_empty());
    let page = fs::read_to_string(PathBuf::from(&folder).join("shohin-chat.1")).unwrap();
    assert!(page.contains("shohin chat") && page.contains("temperature"), "{page}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 27);
}

#[test]
fn the_model_may_be_a_bare_argument_or_in_the_environment() {
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let name = |args: &[&str]| json(args)["name"].clone();
    let wanted = name(&["inspect", "-m", nano, "--json"]);
    assert_ne!(wanted, name(&["inspect", "--json"]));
    assert_eq!(name(&["inspect", nano, "--json"]), wanted);
    let under =
        |args: &[&str], variable: &str, value: &str| shohin(args).env(variable, value).output().unwrap();
    let named = stdout(under(&["inspect", "--json"], "SHOHIN_MODEL", nano));
    assert_eq!(serde_json::from_str::<Value>(&named).unwrap()["name"], wanted);
    // What is typed counts more, and an empty variable is none.
    assert_eq!(stdout(under(&["inspect", nano], "SHOHIN_MODEL", "absent")), ok(&["inspect", nano]));
    for variable in
        ["SHOHIN_MODEL", "SHOHIN_DEVICE", "SHOHIN_PORT", "SHOHIN_LOG", "SHOHIN_WEIGHT_CACHE", "SHOHIN_CONFIG"]
    {
        assert_eq!(stdout(under(&["tokenize", "a"], variable, "")), ok(&["tokenize", "a"]), "{variable}");
    }
    let text = temporary("short.txt", "Once upon a time, there was a fox.");
    let of = |args: &[&str]| json(&with(args, &["--json"]))["model"].clone();
    assert_eq!(of(&["eval", nano, &text]), of(&["eval", &text, "-m", nano]));
    assert_ne!(of(&["eval", nano, &text]), of(&["eval", &text]));
    let bench = ["bench", nano, "--prefill", "4", "--decode", "0", "--repeat", "1"];
    assert_eq!(of(&bench), of(&["eval", nano, &text]));
    assert!(ok(&["check", nano]).lines().next().unwrap().ends_with("sprout-nano.gguf"));
    let output = feed(&["chat", nano, "--preset", "greedy"], "Hello!\n");
    assert_eq!(stdout(output), ok(&["run", "-m", nano, "--preset", "greedy", "Hello!"]));
    assert!(misuse(&["chat", nano, "-m", nano]).contains("cannot be used with"));
    let unknown = fails(&["chat", "bonsai-1.7"]);
    assert!(unknown.contains("there is no model \"bonsai-1.7\"; did you mean bonsai-1.7b?"), "{unknown}");
    assert!(!fails(&["chat", "gpt-4"]).contains("did you mean"));
}

#[test]
fn a_file_of_defaults_is_read_for_what_is_not_typed() {
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let under = |config: &str, args: &[&str]| {
        let path = temporary("config.toml", config);
        shohin(args).env("SHOHIN_CONFIG", &path).output().unwrap()
    };
    let config = format!(
        "model = {nano:?}\npreset = \"greedy\"\nmax_tokens = 5\n[run]\nmax-tokens = 7\njson = true\nstop = [\"@\", \"~\"]\n"
    );
    let reply: Value = serde_json::from_str(&stdout(under(&config, &["run", "Hello!"]))).unwrap();
    assert_eq!(reply["model"], json(&["run", "-m", nano, "-n", "1", "Hello!", "--json"])["model"]);
    assert!(reply["reply_tokens"].as_u64().unwrap() <= 7);
    let exact: Value = serde_json::from_str(&stdout(under(&config, &["run", "Hello!", "-n", "3"]))).unwrap();
    assert_eq!(exact["reply_tokens"], 3);
    // Of what is typed and excludes it, nothing is left to the file.
    assert_eq!(stdout(under("json_object = true", &["run", "Hi", "--choice", "yes"])), "yes\n");
    assert_eq!(stdout(under(&config, &["inspect", nano, "--json"])), ok(&["inspect", nano, "--json"]));
    for (config, problem) in [
        ("thread = 4", "there is no option \"thread\"; did you mean threads?"),
        ("[chats]\nthreads = 4", "there is no command \"chats\"; did you mean chat?"),
        ("[run]\nport = 4", "there is no option \"port\""),
        ("threads = \"many\"", "threads is \"many\", "),
        ("threads = { a = 1 }", "there is no command \"threads\""),
        ("threads = 1999-01-01", "threads is of the kind datetime"),
        ("kv = \"q9\"", "kv is \"q9\", expected one of f32, f16"),
        ("stats = 3", "stats is \"3\", expected true or false"),
        ("seed = [1, 2]", "expected one value"),
        ("threads = 4\nthreads", "config.toml: line 2: "),
    ] {
        let refused = failure(&under(config, &["run", "Hello!"]), 2);
        assert!(refused.contains("config.toml: ") && refused.contains(problem), "{refused}");
    }
    let absent = shohin(&["run", "Hi"]).env("SHOHIN_CONFIG", "absent.toml").output().unwrap();
    assert!(failure(&absent, 1).contains("cannot read absent.toml"));
    let wrong = shohin(&["serve"]).env("SHOHIN_PORT", "many").output().unwrap();
    assert!(failure(&wrong, 2).starts_with("shohin: SHOHIN_PORT is \"many\", "));
}

#[test]
fn rarely_needed_options_are_in_the_long_help() {
    let rare = ["--isa", "--split", "--rope-scaling", "--weights-window", "--id42"];
    for (command, lacks) in
        [("chat", &[][..]), ("check", &["--lora"]), ("inspect", &["--device <", "--split"])]
    {
        let (short, long) = (ok(&[command, "-h"]), ok(&[command, "--help"]));
        for option in rare {
            assert!(!short.contains(option), "{command} {option}");
            assert_eq!(long.contains(option), !lacks.contains(&option), "{command} {option}");
        }
        assert!(
            short.contains("--context") && lacks.iter().all(|option| !long.contains(option)),
            "{command}"
        );
    }
    let tokenize = ok(&["tokenize", "--help"]);
    assert!(tokenize.contains("--model") && tokenize.contains("--id42") && !tokenize.contains("--threads"));
}

#[test]
fn wrong_usage_is_code_2() {
    for args in [
        &["dance"][..],
        &["run", "--top-k", "many", "x"],
        &["run", "--raw", "x", "--file", "y"],
        &["run", "x", "--logprobs", "2"],
        &["run", "x", "--preset", "wild"],
        &["chat", "--threads", "0"],
        &["logits"],
        &["--model", "x"],
        &["run", "x", "-n", "-5"],
        &["run", "x", "--seed", "-1"],
        &["run", "x", "--top-k", "-1"],
        &["convert", "x", "--out", "y", "--type", "q7"],
        &["convert", "x.gguf", "--out", "y"],
        &["quantize", "x", "--out", "y", "--type", "q8_0", "--kv", "q4"],
        &["run", "x", "--beams", "2", "--dry-base", "2"],
        &["run", "x", "--beams", "2", "--preset", "creative"],
        &["tokenize", "x", "--kv", "q4"],
        &["inspect", "--device", "cpu"],
        &["run", "--json-whitespace", "x"],
        &["run", "--raw", "x", "--overflow", "trim"],
        &["run", "x", "--rope-base", "0"],
        &["run", "x", "--alibi", "nan"],
        &["quantize", "x", "--out", "y", "--type", "q8_0", "--tensor", "blk"],
        &["quantize", "x", "--out", "y"],
        &["quantize", "x", "--out", "-", "--type", "q8_0"],
        &["merge", "x", "--out", "y"],
        &["merge", "x", "--out", "-", "--lora", "y"],
        &["merge", "x", "--requantize", "--lora", "y", "--out", "z"],
    ] {
        let output = shohin(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
        if args.last().is_some_and(|last| last.starts_with('-')) {
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains("expected a whole number, 0 or more"), "{text}");
        }
    }
    let tip = misuse(&["logits", "--tokens", "x", "Cargo.toml"]);
    assert!(tip.contains("'-m Cargo.toml' names a model"), "{tip}");
    let output = shohin(&["run", "-n", "1", "Cargo.toml"]).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("this file's name is the prompt"));
}

// ---- run and chat

#[test]
fn greedy_replies_are_those_of_the_trainer() {
    let mut compared = 0;
    for chat in trainer()["chats"].as_array().unwrap() {
        let messages = chat["messages"].as_array().unwrap();
        if messages.len() > 1 || chat["smallest_margin"].as_f64().unwrap() < 1e-3 {
            continue;
        }
        let prompt = messages[0]["content"].as_str().unwrap();
        let reply = json(&with(&["run", prompt, "--json"], &EXACT));
        assert_eq!(reply["prompt_tokens"], chat["prompt_ids"].as_array().unwrap().len());
        if chat["stopped_by"].is_null() {
            let text = reply["text"].as_str().unwrap();
            assert!(text.starts_with(chat["text"].as_str().unwrap()), "{prompt}");
        } else {
            assert_eq!(reply["text"], chat["text"], "{prompt}");
            assert_eq!(reply["tokens"], chat["continuation_ids"], "{prompt}");
            assert_eq!(reply["finish_reason"], "stop");
        }
        compared += 1;
    }
    assert!(compared >= 2, "{compared}");
}

#[test]
fn the_same_seed_gives_the_same_text_on_any_number_of_threads() {
    let start = "Once upon a time, there was a";
    let args = ["run", "--raw", start, "--preset", "creative", "-n", "60", "--seed", "5"];
    let one = ok(&with(&args, &["--threads", "1"]));
    assert_eq!(one, ok(&with(&args, &["--threads", "3"])));
    assert_eq!(one, ok(&with(&args, &["--threads", "2", "--isa", "scalar"])));
    let others = ["6", "7", "8"].map(|seed| ok(&with(&args[..args.len() - 1], &[seed])));
    assert!(others.iter().any(|text| *text != one));
}

#[test]
fn json_tells_everything_about_a_reply() {
    let args = ["run", "Tell me a story.", "-n", "12", "--seed", "3", "--json", "--logprobs", "4"];
    let reply = json(&args);
    assert_eq!(reply["finish_reason"], "length");
    assert_eq!((&reply["seed"], &reply["reply_tokens"]), (&to_json!(3), &to_json!(12)));
    assert!(reply["timings"]["prompt_ms"].as_f64().unwrap() > 0.0);
    let ids = ids(&reply["tokens"]);
    let text = reply["text"].as_str().unwrap();
    assert_eq!(ok(&["tokenize", "--decode", &ids.join(" ")]), format!("{text}\n"));
    let logprobs = reply["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 12);
    let mut joined = String::new();
    for (entry, id) in logprobs.iter().zip(&ids) {
        assert_eq!(entry["token"].to_string(), *id);
        joined += entry["text"].as_str().unwrap();
        let top = entry["top"].as_array().unwrap().iter();
        let top: Vec<f64> = top.map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert_eq!(top.len(), 4);
        assert!(top.is_sorted_by(|a, b| a >= b) && top[0] <= 0.0);
        assert!(top.iter().map(|l| l.exp()).sum::<f64>() <= 1.0 + 1e-6);
        assert!(entry["logprob"].as_f64().unwrap() <= top[0]);
    }
    assert_eq!(joined, text);
    assert!(json(&["run", "Hello!", "-n", "1", "--json"]).get("logprobs").is_none());
}

#[test]
fn a_prompt_comes_from_an_argument_a_file_or_standard_input() {
    let args = ["run", "--preset", "greedy"];
    let text = ok(&with(&args, &["What does a cow say?"]));
    let file = temporary("prompt.txt", "What does a cow say?\n");
    assert_eq!(ok(&with(&args, &["--file", &file])), text);
    assert_eq!(stdout(feed(&args, "What does a cow say?\n")), text);
    assert_eq!(stdout(feed(&with(&args, &["-"]), "What does a cow say?")), text);
    // What is piped joins the argument.
    let both = ok(&with(&args, &["Who is it about?\n\nThe fox ran."]));
    let asked = json(&with(&args, &["Who is it about?", "--json"]));
    let joined: Value =
        serde_json::from_str(&stdout(feed(&with(&args, &["Who is it about?", "--json"]), "The fox ran.")))
            .unwrap();
    assert!(joined["prompt_tokens"].as_u64() > asked["prompt_tokens"].as_u64());
    assert_eq!(stdout(feed(&with(&args, &["Who is it about?"]), "The fox ran.\n")), both);
    let file = temporary("more.txt", "The fox ran.\n");
    assert_eq!(ok(&with(&args, &["Who is it about?", "--file", &file])), both);
    assert_eq!(
        stdout(feed(&with(&args, &["Who is it about?"]), "")),
        ok(&with(&args, &["Who is it about?"]))
    );
    #[cfg(unix)]
    {
        // A socket that nobody closes is not waited for.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let input = Stdio::from(std::os::fd::OwnedFd::from(theirs));
        let reply = shohin(&with(&args, &["What does a cow say?"])).stdin(input).output().unwrap();
        assert_eq!(stdout(reply), text);
        drop(ours);
    }
    let raw = with(&args, &["--raw", "Once upon a time", "-n", "4"]);
    assert_eq!(stdout(feed(&raw, "The fox ran.")), ok(&raw));
}

#[test]
fn raw_continues_the_text_and_stop_strings_end_it() {
    let prompt = "Once upon a time, there was a";
    let args = ["run", "--raw", prompt, "--preset", "greedy", "-n", "30", "--json"];
    let long = json(&args);
    let text = long["text"].as_str().unwrap();
    assert_eq!(long["prompt_tokens"], ok(&["tokenize", prompt]).split_whitespace().count());
    // Stops in the middle of a word.
    let stop = &text.split_whitespace().filter(|word| word.len() > 2).nth(2).unwrap()[1..];
    let at = text.find(stop).unwrap();
    let short = json(&with(&args, &["--stop", "never occurs", "--stop", stop]));
    assert_eq!(short["text"], text[..at]);
    assert_eq!(short["finish_reason"], "stop_string");
}

#[test]
fn a_full_context_ends_the_reply() {
    let reply = json(&with(&["run", "Hello!", "--context", "40", "--json"], &WILD));
    assert_eq!(reply["finish_reason"], "context_full");
    let n = reply["prompt_tokens"].as_u64().unwrap() + reply["reply_tokens"].as_u64().unwrap();
    assert_eq!(n, 41, "the last token needs no room");
}

#[test]
fn chat_remembers_and_computes_new_turns_only() {
    let args = with(&["chat"], &EXACT);
    let output = feed(&args, "Hello!\n\nMy name is Zoe.\nWhat is my name?\n/stats\n");
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    let text = stdout(output);
    let replies: Vec<&str> = text.lines().collect();
    assert_eq!(replies.len(), 3, "{text}");
    assert_eq!(replies[0], ok(&with(&["run", "Hello!"], &EXACT)).trim_end());
    // Only the new message with its markers was computed.
    let number_after = |words: &str| -> usize {
        let rest = notes.split(words).nth(1).unwrap_or_else(|| panic!("no {words:?} in {notes}"));
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    assert!(number_after("prompt ") < 20 && number_after("(+ ") > 20, "{notes}");
}

#[test]
fn speculation_changes_no_reply() {
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let run = ["run", "--raw", "Once upon a time", "-n", "80", "--seed", "3", "--json"];
    let want = json(&run);
    for option in [&["--speculate"][..], &["--draft", nano]] {
        let found = json(&with(&run, option));
        assert_eq!((&found["text"], &found["tokens"]), (&want["text"], &want["tokens"]));
        let guesses = |name: &str| found["guesses"][name].as_u64().unwrap();
        assert!(guesses("right") <= guesses("checked") && guesses("checked") > 0, "{found}");
    }
    assert!(want["guesses"].is_null());
    let other = Model::new(Shape::tiny(), Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let other = temporary("other-vocabulary.gguf", other);
    let refused = misuse(&with(&run, &["--draft", &other]));
    assert!(refused.contains("draft is ") && refused.contains("the same vocabulary"), "{refused}");
}

#[test]
fn a_session_goes_on_in_the_next_command() {
    let path = temporary("kept.session", "");
    fs::remove_file(&path).unwrap();
    let lines = ["Hello!", "My name is Zoe.", "What is my name?"];
    let whole = stdout(feed(&with(&["chat"], &EXACT), lines.join("\n")));
    let kept = with(&["--session", &path], &EXACT);
    let mut replies = ok(&with(&["run", lines[0]], &kept));
    replies += &stdout(feed(&with(&["chat"], &kept), lines[1]));
    let last = json(&with(&["run", lines[2], "--json"], &kept));
    replies += last["text"].as_str().unwrap();
    assert_eq!(replies.trim_end(), whole.trim_end());
    // All of the conversation is in the prompt, and none of it was computed again.
    assert!(last["prompt_tokens"].as_u64().unwrap() > 40, "{last}");
    let again = shohin(&with(&["run", "Hello!", "--stats"], &kept)).output().unwrap();
    let stats = String::from_utf8(again.stderr.clone()).unwrap();
    assert!(stats.contains("(+ ") && stats.starts_with("prompt 1"), "{stats}");
    stdout(again);

    let bytes = fs::read(&path).unwrap();
    for command in [&["run", "Hello!"][..], &["chat"]] {
        let nowhere = fails(&with(command, &["--session", "no-such-folder/kept.session"]));
        assert_eq!(nowhere, "shohin: cannot write no-such-folder/kept.session: there is no such folder\n");
    }
    let other = fails(&with(&["run", "Hello!"], &["--session", &path, "--kv", "q8"]));
    assert!(other.contains("is of another format of the KV cache"), "{other}");
    let other = fails(&with(&["run", "Hello!", "--attention", "window:64"], &kept));
    assert!(other.contains("is of another attention pattern"), "{other}");
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let other = fails(&with(&["run", "Hello!", "-m", nano], &kept));
    assert!(other.contains("is of another model"), "{other}");
    let other = fails(&with(&["run", "Hello!"], &["--session", &temporary("not.session", "Dear diary")]));
    assert!(other.contains("not.session is a text that begins with \"Dear diary\""), "{other}");
    // Not read as a whole first: these are larger than memory, and take no room on the disk.
    #[cfg(target_os = "linux")]
    for (head, problem) in [(&b"Dear diary"[..], "of another kind of file"), (&bytes[..], "damaged")] {
        let path = temporary("long.session", head);
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let other = fails(&with(&["run", "Hello!"], &with(&["--session", &path], &EXACT)));
        assert!(other.contains(&format!("the snapshot is {problem}")), "{other}");
    }
    for at in (8..bytes.len()).step_by(bytes.len() / 9) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let path = temporary("damaged.session", &changed);
        let damaged = fails(&with(&["run", "Hello!"], &with(&["--session", &path], &EXACT)));
        // The model is compared before the file is read as a whole.
        let problem = if at < 40 { "of another model" } else { "damaged" };
        assert!(damaged.contains(&format!("the snapshot is {problem}")), "{damaged}");
        assert_eq!(fs::read(&path).unwrap(), changed);
    }
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[cfg(unix)]
#[test]
fn only_the_user_reads_a_conversation() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (session, saved) = (temporary("private.session", ""), temporary("private.json", ""));
    let chat = ["chat", "-n", "2", "--session", &session];
    for path in [&session, &saved] {
        fs::remove_file(path).unwrap();
    }
    for _ in 0..2 {
        stdout(feed(&chat, format!("Hello!\n/save {saved}\n/save {saved}\n")));
        assert_eq!((mode(&session), mode(&saved)), (0o600, 0o600));
        fs::remove_file(&saved).unwrap();
    }
    // Shared on purpose, and then kept as it is.
    fs::set_permissions(&session, fs::Permissions::from_mode(0o644)).unwrap();
    stdout(feed(&chat, "Hello!"));
    assert_eq!(mode(&session), 0o644);
    fs::set_permissions(&session, fs::Permissions::from_mode(0o444)).unwrap();
    let kept = fs::read(&session).unwrap();
    let output = feed(&chat, "Hello!");
    assert_eq!(output.status.code(), Some(1));
    let refused = String::from_utf8(output.stderr).unwrap();
    assert!(refused.contains(&format!("cannot write {session}: permission denied")), "{refused}");
    assert!(output.stdout.is_empty() && fs::read(&session).unwrap() == kept);
}

#[test]
fn a_session_keeps_its_instructions() {
    let path = temporary("system.session", "");
    let saved = temporary("system.json", "");
    fs::remove_file(&path).unwrap();
    fs::remove_file(&saved).unwrap();
    let chat = with(&["chat", "--session", &path, "-n", "4", "--system"], &["Be brief."]);
    stdout(feed(&chat, "Hello!"));
    let other = [&chat[..5], &["--system", "Be loud."]].concat();
    let output = feed(&other, format!("/new\nHello!\n/save {saved}\n"));
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && notes.contains("those of --system are not used"), "{notes}");
    let saved: Value = serde_json::from_slice(&fs::read(saved).unwrap()).unwrap();
    assert_eq!(saved["messages"][0]["content"], "Be brief.");
}

/// The output of `shohin chat` on a terminal on which `typed` was entered at once.
#[cfg(unix)]
fn on_a_terminal(args: &[&str], typed: &str) -> String {
    on_a_terminal_of(shohin(&with(args, &["--no-history"])), 80, typed)
}

/// The same of a command, on a terminal of so many columns.
#[cfg(unix)]
fn on_a_terminal_of(mut command: Command, columns: u16, typed: &str) -> String {
    let size = nix::pty::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = nix::pty::openpty(Some(&size), None).unwrap();
    let end = || Stdio::from(terminal.slave.try_clone().unwrap());
    command.env("NO_COLOR", "1").env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().unwrap();
    drop(command);
    drop(terminal.slave);
    let mut terminal = fs::File::from(terminal.master);
    let mut shown = Vec::new();
    let mut piece = [0; 4096];
    let mut typed = Some(typed);
    // Some systems report a closed other end as an error.
    while let Ok(n @ 1..) = terminal.read(&mut piece) {
        shown.extend_from_slice(&piece[..n]);
        // Type only after the line editor has shown its prompt. If a line is lost, the chat is ended.
        if String::from_utf8_lossy(&piece[..n]).contains("> ") {
            let _ = terminal.write_all(typed.take().unwrap_or("/quit\r").as_bytes());
        }
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(shown).unwrap()
}

#[cfg(unix)]
#[test]
fn lines_that_are_typed_ahead_or_pasted_are_kept() {
    let chat = ["chat", "--preset", "greedy", "-n", "8"];
    let saved = temporary("typed.json", "");
    let messages = |lines: &str| -> Vec<String> {
        fs::remove_file(&saved).unwrap();
        on_a_terminal(&chat, &format!("{lines}/save {saved}\r/quit\r").replace('\n', "\r"));
        let saved: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
        let all = saved["messages"].as_array().unwrap().iter();
        all.filter(|m| m["role"] == "user").map(|m| m["content"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(
        messages("My name is Zoe.\nWhat is my name?\nHello!\n"),
        ["My name is Zoe.", "What is my name?", "Hello!"]
    );
    assert_eq!(messages("two \\\nlines\nHello!\n"), ["two \nlines", "Hello!"]);
    // Alt-Enter, and a block.
    assert_eq!(messages("two\u{1b}\nlines\nHello!\n"), ["two\nlines", "Hello!"]);
    assert_eq!(messages("\"\"\"\n/usr\n  is a folder\n\"\"\"\nHello!\n"), ["/usr\n  is a folder", "Hello!"]);
}

#[cfg(unix)]
#[test]
fn words_of_a_reply_wrap_at_the_edge_of_the_terminal() {
    let ask = ["--preset", "greedy", "-n", "60"];
    let text = ok(&with(&["run", "Tell me a story."], &ask));
    let chat = shohin(&with(&["chat", "--no-history"], &ask));
    let shown = on_a_terminal_of(chat, 30, "Tell me a story.\r/quit\r");
    let lines: Vec<&str> = shown.lines().map(|line| line.trim_end_matches('\r')).collect();
    let first = text.split_whitespace().next().unwrap();
    let begin = lines.iter().position(|line| line.starts_with(&format!("{first} "))).unwrap();
    let end =
        begin + lines[begin..].iter().position(|line| line.is_empty() || line.starts_with('(')).unwrap();
    let reply = &lines[begin..end];
    assert!(reply.len() > 3 && reply.iter().all(|line| line.chars().count() <= 30), "{shown}");
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(&reply.join(" ")), words(&text));
}

/// What is typed during a reply is neither in it nor lost.
#[cfg(unix)]
#[test]
fn what_is_typed_during_a_reply_is_not_shown_in_it() {
    use std::io::{BufRead, BufReader};
    let terminal = nix::pty::openpty(None, None).unwrap();
    let end = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = shohin(&with(&["chat", "--no-history", "-n", "300"], &WILD));
    command.env("NO_COLOR", "1").env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().unwrap();
    drop(command);
    drop(terminal.slave);
    let mut master = fs::File::from(terminal.master);
    let mut reader = BufReader::new(master.try_clone().unwrap());
    let mut shown = Vec::new();
    let mut until = |mark: u8, shown: &mut Vec<u8>| {
        shown.clear();
        reader.read_until(mark, shown).unwrap();
    };
    until(b'>', &mut shown);
    master.write_all(b"Tell me a story.\r").unwrap();
    // The line that was typed, as the editor has shown it, then a word of the reply.
    while !shown.ends_with(b".\r\n") && !String::from_utf8_lossy(&shown).contains("story.") {
        until(b'\n', &mut shown);
    }
    until(b' ', &mut shown);
    master.write_all(b"/stats").unwrap();
    let mut reply = Vec::new();
    while !String::from_utf8_lossy(&reply).contains("--max-tokens reached") {
        until(b')', &mut shown);
        reply.extend_from_slice(&shown);
    }
    assert!(!String::from_utf8_lossy(&reply).contains("/stats"), "{}", String::from_utf8_lossy(&reply));
    master.write_all(b"\r/quit\r").unwrap();
    let mut rest = Vec::new();
    let _ = reader.read_to_end(&mut rest);
    assert!(
        String::from_utf8_lossy(&rest).contains("reply 300 tokens"),
        "{}",
        String::from_utf8_lossy(&rest)
    );
    assert!(child.wait().unwrap().success());
}

#[cfg(target_os = "linux")]
#[test]
fn typed_lines_are_kept_for_the_next_chat() {
    use std::os::unix::fs::PermissionsExt;
    let state = temporary("state", "");
    fs::remove_file(&state).unwrap();
    let saved = temporary("history.json", "");
    let asked = |typed: &str, more: &[&str]| -> Vec<String> {
        fs::remove_file(&saved).unwrap();
        let mut chat = shohin(&with(&["chat", "--preset", "greedy", "-n", "4"], more));
        chat.env("XDG_STATE_HOME", &state);
        on_a_terminal_of(chat, 80, &format!("{typed}/save {saved}\r/quit\r"));
        let saved: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
        let all = saved["messages"].as_array().unwrap().iter();
        all.filter(|m| m["role"] == "user").map(|m| m["content"].as_str().unwrap().to_string()).collect()
    };
    let history = PathBuf::from(&state).join("shohin/history");
    asked("A secret.\r", &["--no-history"]);
    assert!(!history.exists());
    assert_eq!(asked("My name\u{1b}\ris Zoe.\r", &[]), ["My name\nis Zoe."]);
    assert_eq!(fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    // Up: /quit, /save, the message.
    let up = "\u{1b}[A";
    assert_eq!(asked(&format!("{up}{up}{up}\r"), &[]), ["My name\nis Zoe."]);
}

#[cfg(unix)]
#[test]
fn tab_completes_commands_and_names_of_options() {
    let shown = on_a_terminal(&["chat"], "/sta\t\r/set top_k\t 7\r/quit\r");
    assert!(shown.contains("(no reply yet)") && shown.contains("(top_k is now 7)"), "{shown}");
}

#[cfg(unix)]
#[test]
fn a_message_is_changed_in_an_editor_and_a_conversation_read() {
    let (saved, given) = (temporary("edited.json", ""), temporary("given.json", ""));
    fs::remove_file(&saved).unwrap();
    let run = |editor: &str, lines: &str| {
        let mut command = shohin(&with(&["chat", "-n", "6"], &EXACT));
        command.env("EDITOR", editor).env_remove("VISUAL").stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let messages = || -> Value {
        let text = fs::read(&saved).unwrap();
        fs::remove_file(&saved).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()["messages"].take()
    };
    let save = format!("/save {saved}\n");
    stdout(run(
        "sed -i s/Zoe/Tom/",
        &format!("/system Be brief.\nHello!\nMy name is Zoe.\n/edit\n/edit\n{save}"),
    ));
    let edited = messages();
    stdout(run("false", &format!("/system Be brief.\nHello!\nMy name is Tom.\n{save}")));
    assert_eq!(edited, messages());
    let refused = failure_after(&run("false", "Hello!\n/edit\n"));
    assert!(refused.contains("the editor \"false\" has ended with"), "{refused}");
    // What was saved is read, and gone on with.
    fs::write(&given, to_json!({ "messages": edited }).to_string()).unwrap();
    stdout(run("", &format!("/load {given}\nWhat is my name?\n{save}")));
    let more = messages();
    assert_eq!(more.as_array().unwrap()[..5], edited.as_array().unwrap()[..]);
    assert_eq!(more.as_array().unwrap().len(), 7);
    // So is a file of --session.
    let session = temporary("loaded.session", "");
    fs::remove_file(&session).unwrap();
    let kept = with(&["chat", "-n", "6", "--session", &session], &EXACT);
    stdout(feed(&kept, "My name is Zoe.\n"));
    stdout(run("", &format!("/load {session}\nWhat is my name?\n{save}")));
    assert_eq!(messages().as_array().unwrap().len(), 4);
    for (content, problem) in [
        ("Dear diary", "not JSON"),
        ("{}", "expected messages"),
        ("[{\"role\": \"robot\", \"content\": \"x\"}]", "message 1: expected a role and a content"),
    ] {
        fs::write(&given, content).unwrap();
        let refused = failure(&feed(&["chat"], format!("/load {given}\n")), 1);
        assert!(refused.contains(problem), "{refused}");
    }
    let refused = failure(&feed(&["chat"], format!("/load {}\n", temporary("no.session", "Dear diary"))), 1);
    assert!(refused.contains("another kind of file"), "{refused}");
}

/// The last line of a failure that came after replies.
#[cfg(unix)]
fn failure_after(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).unwrap().lines().last().unwrap().into()
}

#[test]
fn chat_commands_work_from_a_pipe() {
    let saved = temporary("chat.json", "");
    fs::remove_file(&saved).unwrap();
    let save = format!("/save {saved}");
    let lines = ["/system Be brief.", "Hello!", "/retry", &save, &save, "/set top-k 3", "/new"];
    let lines = format!("{}\n/quit\nnever sent\n", lines.join("\n"));
    let text = stdout(feed(&with(&["chat"], &EXACT), lines));
    let replies: Vec<&str> = text.lines().collect();
    assert_eq!(replies.len(), 2, "{text}");
    assert_eq!(replies[0], replies[1], "greedy: another try gives the same");
    let saved: Value = serde_json::from_slice(&fs::read(saved).unwrap()).unwrap();
    let roles: Vec<&Value> = saved["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(saved["messages"][2]["content"], replies[1]);
    for (line, reason) in [
        ("/dance", "/dance"),
        ("/set temperature -3", "temperature is -3, expected 0 to 100"),
        ("/set temperature 99999999999", "temperature is 99999999999, expected 0 to 100"),
        ("/set heat 3", "heat is not a sampling option; expected one of temperature, top_k"),
        ("/set top_p", "needs a number"),
        ("/set top_k 1e3", "needs a whole number, 0 or more, found \"1e3\""),
        ("/set temperature 0 5", "needs a number, found \"0 5\""),
        (&save, "exists already"),
        ("/retry", "nothing to retry"),
        ("/continue", "nothing to continue"),
        ("/save", "file name"),
    ] {
        let message = failure(&feed(&["chat"], format!("{line}\n")), 1);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn a_reply_that_reached_max_tokens_is_continued() {
    let chat = |limit: &[&str], input: &str| stdout(feed(&with(&with(&["chat"], &EXACT), limit), input));
    let whole = chat(&[], "Tell me a story.\n");
    let parts = chat(&["-n", "9"], "Tell me a story.\n/continue\n/continue\n");
    let parts: Vec<&str> = parts.lines().filter(|line| !line.starts_with('(')).collect();
    assert!(parts.len() == 3 && whole.starts_with(&parts.concat()), "{parts:?} of {whole:?}");
}

#[test]
fn a_piped_message_may_begin_with_a_slash_and_end_with_the_file() {
    let reply = |input: &str| stdout(feed(&["chat", "--preset", "greedy"], input));
    assert_eq!(reply("What does a cow say?\\"), reply("What does a cow say?\n"));
    assert!(!reply("//home is where I live.\n").is_empty());
}

/// Type 36 and a packed folder have the same weights (`tests/oracle/bitnet.py`).
#[test]
fn ternary_weights_of_bitnet_run() {
    let fixture = |name: &str| format!("{}/../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let (file, folder) = (fixture("bitnet-i2s.gguf"), fixture("hf/bitnet-packed"));
    let ids = temporary("ternary.txt", "3 77 140 9 201");
    let top = |model: &str, more: &[&str]| {
        let all = ["logits", "-m", model, "--tokens", &ids, "--top", "3", "--act", "f32", "--kv", "f32"];
        let listed = ok(&with(&all, more));
        let id = |row: &str| row.split_whitespace().next().map(String::from);
        listed.lines().skip(2).map(id).collect::<Vec<_>>()
    };
    let right = top(&file, &[]);
    assert_eq!((right.len(), top(&folder, &[]), top(&file, &["--id36", "128"])), (3, right.clone(), right));
    assert!(!ok(&["run", "-m", &file, "--max-tokens", "4", "The fox"]).is_empty());
    assert!(json(&["inspect", "-m", &file, "--json"])["format"].to_string().contains("PQ2_0"));
    let out = temporary("ternary.gguf", "");
    ok(&["quantize", &file, "--type", "q8_0", "--force", "--out", &out]);
    assert!(json(&["inspect", "-m", &out, "--json"])["format"].to_string().contains("Q8_0"));
}

#[test]
fn the_layout_of_type_42_can_be_told() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden_model/synth-micro-q2_0_g64.gguf");
    let told = json(&["inspect", "-m", path, "--id42", "64", "--json"]);
    assert_eq!(told, json(&["inspect", "-m", path, "--json"]));
    // The option is not checked: it is for files whose offsets do not determine the layout.
    assert!(ok(&["inspect", "-m", path, "--id42", "codes-first"]).contains("TQ2_0_G128"));
    let out = temporary("layout.gguf", "");
    let quantize = ["quantize", path, "--type", "f32", "--force", "--out", &out];
    let written = |more: &[&str]| {
        ok(&with(&quantize, more));
        fs::read(&out).unwrap()
    };
    assert!(
        written(&["--id42", "64"]) == written(&[]) && written(&["--id42", "codes-first"]) != written(&[])
    );
    assert!(ok(&["quantize", "--help"]).contains("--id42"));
    assert!(misuse(&["pull", "bonsai-1.7b", "--id42", "64"]).contains("unexpected argument '--id42'"));
    assert!(misuse(&with(&quantize, &["-c", "8"])).contains("unexpected argument '-c'"));
}

/// Numbers that do not fit in an i64 are numbers, too.
#[test]
fn a_number_of_64_bits_is_shown_whole() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf/llama");
    let out = temporary("large-number.gguf", "");
    ok(&["convert", folder.to_str().unwrap(), "--force", "--out", &out]);
    let mut bytes = fs::read(&out).unwrap();
    let text = [&b"general.name"[..], &8u32.to_le_bytes(), &5u64.to_le_bytes(), b"llama"].concat();
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    // The same bytes: a longer name, and a number.
    let length = 12u64 + 5;
    let number = [&b"general.numbers__"[..], &10u32.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
    bytes[at - 8..at].copy_from_slice(&length.to_le_bytes());
    bytes[at..at + number.len()].copy_from_slice(&number);
    fs::write(&out, bytes).unwrap();
    let told = ok(&["inspect", "--json", "-m", &out]);
    assert!(told.contains(&format!("\"general.numbers__\": {}", u64::MAX)), "{told}");
}

#[test]
fn a_file_that_cannot_be_written_is_a_wrong_option() {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/sprout-nano.gguf");
    let model = model.to_str().unwrap();
    let out = temporary("written.gguf", "");
    let quantize = ["quantize", model, "--type", "q8_0", "--force"];
    let message = misuse(&with(&quantize, &["--out", &out, "--tensor", "blk.*.attn_w=q4_0"]));
    assert!(message.contains("no tensor matches \"blk.*.attn_w\""), "{message}");
    let message =
        misuse(&with(&quantize, &["--out", &out, "--tensor", "*_q=q2_0", "--tensor", "*_k=tq2_0_g128"]));
    assert!(message.contains("which have the same id 42 in GGUF"), "{message}");
    let part = out.replace("written.gguf", "written-00001-of-00003.gguf");
    let message = misuse(&with(&quantize, &["--out", &part]));
    assert!(message.contains(&part) && message.contains("expected another name"), "{message}");
    let message = misuse(&with(&quantize, &["--out", env!("CARGO_TARGET_TMPDIR")]));
    assert!(message.contains("it is a folder, a pipe or a device"), "{message}");
}

#[test]
fn logits_keep_a_file_that_is_there() {
    let tokens = temporary("kept-tokens.txt", "1 2 3");
    let out = temporary("kept-logits.f32", "mine");
    let ask = ["logits", "--tokens", &tokens];
    let message = misuse(&with(&ask, &["--out", &out]));
    assert!(message.contains("it exists already; replace it with --force"), "{message}");
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    ok(&with(&ask, &["--force", "--out", &out]));
    let written = fs::read(&out).unwrap();
    assert_eq!(written.len(), 3 * 2048 * 4);
    assert!(shohin(&with(&ask, &["--out", "-"])).output().unwrap().stdout == written);
    // The model itself is mapped while its logits are written.
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/sprout-nano.gguf");
    let copy = temporary("own-logits.gguf", fs::read(model).unwrap());
    misuse(&with(&ask, &["-m", &copy, "--out", &copy]));
    ok(&with(&ask, &["-m", &copy, "--force", "--out", &copy]));
}

#[test]
fn a_model_in_parts_is_one_model() {
    let name = |i: usize| format!("sprout-{i:05}-of-00003.gguf");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-parts", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = |i| folder.join(name(i)).into_os_string().into_string().unwrap();
    let parts = shohin_tests::parts::split(&model(), 24, false).unwrap();
    assert_eq!(parts.len(), 3);
    for (i, part) in (1..).zip(&parts) {
        fs::write(path(i), part).unwrap();
    }
    let ask = ["run", "What does a cow say?", "--preset", "greedy"];
    let want = ok(&ask);
    assert_eq!(ok(&with(&ask, &["-m", &path(1)])), want);
    assert_eq!(ok(&with(&ask, &["-m", &path(3), "--act", "f32"])), ok(&with(&ask, &["--act", "f32"])));
    let told = json(&["inspect", "--json", "-m", &path(1)]);
    let bytes: usize = parts.iter().map(Vec::len).sum();
    assert_eq!((&told["parts"], &told["file_bytes"]), (&3.into(), &bytes.into()));

    fs::write(path(2), &parts[2]).unwrap();
    let message = fails(&with(&ask, &["-m", &path(1)]));
    assert!(message.contains(&format!("{}: metadata key split.no is 2", path(2))), "{message}");
    fs::remove_file(path(2)).unwrap();
    let message = fails(&with(&ask, &["-m", &path(1)]));
    assert!(message.contains("has 3 parts") && message.contains(&path(2)), "{message}");
    fs::rename(path(1), folder.join("first.gguf")).unwrap();
    let message = fails(&with(&ask, &["-m", &folder.join("first.gguf").to_string_lossy()]));
    assert!(message.contains("split.count is 3, expected 1, or all parts"), "{message}");
}

#[test]
fn a_converted_folder_says_what_the_folder_says() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf/llama");
    let (folder, out) = (folder.to_str().unwrap(), temporary("converted.gguf", "mine"));
    let convert = ["convert", folder, "--out", &out];
    assert!(misuse(&convert).contains("it exists already; replace it with --force"));
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    assert!(ok(&[]).contains("2 invalid options or a missing --force"));
    assert_eq!(ok(&with(&convert, &["--force"])), "");
    let ask = ["run", "--raw", "the hen", "-n", "8", "--preset", "greedy"];
    let reply = json(&with(&ask, &["--json", "-m", folder]));
    assert_eq!(json(&with(&ask, &["--json", "-m", &out]))["text"], reply["text"]);
    assert_eq!(json(&["inspect", "--json", "-m", &out])["format"], "F16");
    // And back.
    let back = format!("{out}.folder");
    let convert = ["convert", &out, "--safetensors", "--force", "--out", &back];
    ok(&convert);
    assert_eq!(json(&with(&ask, &["--json", "-m", &back]))["text"], reply["text"]);
    let refused = misuse(&with(&convert, &["--type", "q8_0"]));
    assert!(refused.contains("--type of safetensors: expected f32, f16 or bf16, found Q8_0"), "{refused}");
}

/// As a model whose weights were merged by the formula in f64 does.
#[test]
fn an_adapter_changes_replies_as_merged_weights_would() {
    let base = model();
    let base = Gguf::parse(&base).unwrap();
    let adapter = Adapter::random(&base, &["attn_q.", "attn_output", "ffn_up", "ffn_down"], 4, 0.1, 1);
    let (lora, merged) =
        (temporary("lora.gguf", adapter.to_vec()), temporary("merged.gguf", adapter.merged(&base, 0.5)));
    let tokens = temporary("lora.tokens", "1 2 3 4 5 6 7 8 9 10 11 12");
    let half = format!("{lora}=0.5");
    let logits = |args: &[&str]| {
        let args = with(&["logits", "--tokens", &tokens, "--out", "-", "--kv", "f32"], args);
        let bytes = shohin(&args).output().unwrap().stdout;
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect::<Vec<f32>>()
    };
    let apart = |a: &[f32], b: &[f32]| {
        assert!(a.len() == b.len() && a.len() > 12_000);
        a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()))
    };
    let want = logits(&["-m", &merged, "--act", "f32"]);
    let (plain, adapted) = (logits(&["--act", "f32"]), logits(&["--act", "f32", "--lora", &half]));
    let (effect, error) = (apart(&plain, &want), apart(&adapted, &want));
    assert!(effect > 0.5 && error < 1e-4 * effect, "{effect} {error}");
    // Twice a half is the whole, and nothing is the model itself, to the last bit.
    let whole = logits(&["--act", "f32", "--lora", &lora]);
    assert!(apart(&logits(&["--act", "f32", "--lora", &half, "--lora", &half]), &whole) < 1e-4 * effect);
    assert!(apart(&whole, &adapted) > 0.1);
    assert!(logits(&["--lora", &format!("{lora}=0")]) == logits(&[]));

    let ask = with(&["run", "What does a cow say?", "-n", "16"], &EXACT);
    let reply = ok(&with(&ask, &["--lora", &half]));
    assert_eq!(reply, ok(&with(&ask, &["-m", &merged])));
    assert_ne!(reply, ok(&ask));

    let shown = json(&["inspect", "--json", "--lora", &half]);
    assert_eq!(shown["adapters"], to_json!([{ "file": lora, "scale": 0.5 }]));
    assert!(shown["memory"]["weights"].as_u64() > json(&["inspect", "--json"])["memory"]["weights"].as_u64());
    assert!(ok(&["inspect", "--lora", &half]).contains(&format!("{lora} at 0.5")));
    let text = ok(&["inspect", "-m", &lora, "--tensors"]);
    for part in ["Adapter\n", "LoRA; --lora applies it", "blk.0.attn_q.weight.lora_a", "rank", "qwen3"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let shown = json(&["inspect", "-m", &lora, "--json"]);
    assert_eq!(shown["adapter"]["matrices"].as_array().unwrap().len(), adapter.pairs.len());
    assert_eq!(
        shown["adapter"]["matrices"][0],
        to_json!({ "matrix": "blk.0.attn_output.weight", "rank": 4 })
    );

    assert!(
        fails(&["run", "x", "-m", &lora])
            .contains("expected a model, to which adapters are applied (--lora)")
    );
    assert!(fails(&["run", "x", "--lora", &tokens]).contains("begins with"));
    assert!(misuse(&["run", "x", "--lora", &format!("{lora}=many")]).contains("finite number"));
    assert!(misuse(&["tokenize", "x", "--lora", &lora]).contains("unexpected argument '--lora'"));
    assert!(misuse(&with(&ask, &["--lora", &lora, "--split", "tensor:2"])).contains("with an adapter"));
}

/// Written where `--lora` would compute them, and taken out again.
#[test]
fn adapters_are_merged_into_weights() {
    let nano = format!("{}/../models/sprout-nano.gguf", env!("CARGO_MANIFEST_DIR"));
    let base = fs::read(&nano).unwrap();
    let base = Gguf::parse(&base).unwrap();
    let adapter = |names: &[&str], seed| Adapter::random(&base, names, 4, 0.1, seed).to_vec();
    let one = temporary("merge-one.gguf", adapter(&["attn_q.", "ffn_down"], 1));
    let two = format!("{}=-0.5", temporary("merge-two.gguf", adapter(&["attn_q.", "ffn_up"], 2)));
    let tokens = temporary("merge.tokens", "1 2 3 4 5 6 7 8 9 10 11 12");
    let [plain, out, back, small] =
        ["plain", "out", "back", "small"].map(|n| temporary(&format!("merge-{n}"), ""));
    let logits = |args: &[&str]| {
        let ask = ["logits", "--tokens", &tokens, "--out", "-", "--kv", "f32", "--act", "f32"];
        let bytes = shohin(&with(&ask, args)).output().unwrap().stdout;
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect::<Vec<f32>>()
    };
    let apart = |a: &[f32], b: &[f32]| {
        assert!(a.len() == b.len() && a.len() > 12_000);
        a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()))
    };
    let both = ["--lora", &one, "--lora", &two];
    let merge = with(&["merge", &nano, "--force", "--type", "f32"], &both);
    let told = ok(&with(&merge, &["--out", &out]));
    for part in
        ["blk.0.attn_q.weight", "kept", "Of the adapters, 100.000 % was kept.", "of which adapters changed"]
    {
        assert!(told.contains(part), "{part}\n{told}");
    }
    let (want, before) = (logits(&with(&["-m", &nano], &both)), logits(&["-m", &nano]));
    let (effect, error) = (apart(&want, &before), apart(&want, &logits(&["-m", &out])));
    assert!(effect > 0.5 && error < 1e-4 * effect, "{effect} {error}");

    // Minus both, from what has them.
    let two = two.replace("=-0.5", "=0.5");
    let minus = format!("{one}=-1");
    ok(&["merge", &out, "--force", "--lora", &minus, "--lora", &two, "--out", &back]);
    ok(&["quantize", &nano, "--force", "--type", "f32", "--out", &plain]);
    assert!(apart(&logits(&["-m", &back]), &logits(&["-m", &plain])) < 1e-4 * effect);

    let text = temporary("merge.txt", "A cow says moo. The hen is in the garden, and the dog sleeps.");
    let told = json(&[
        "merge", &plain, "--force", "--json", "--lora", &one, "--type", "q8_0", "--text", &text, "--out",
        &small,
    ]);
    let perplexity = |name: &str| told["perplexity"][name].as_f64().unwrap();
    let adapted = perplexity("base with --lora");
    assert!((perplexity("merged") / adapted - 1.0).abs() < 0.1 && perplexity("base") != adapted, "{told}");
    assert!(told["error"].as_f64().unwrap() < 0.02 && told["kept"].as_f64().unwrap() > 0.9, "{told}");

    let refused = with(&["merge", &plain, "--type", "q1_0", "--out", &small], &["--lora", &one]);
    assert!(misuse(&refused).contains("it exists already; replace it with --force"));
    let refused = with(&refused, &["--force"]);
    let found = fails(&refused);
    assert!(found.contains("would be Q1_0 with what is added to it, but 1-bit weights round"), "{found}");
    let told = ok(&with(&refused, &["--requantize", "--text", &text]));
    assert!(told.contains("base with --lora: ") && told.contains("merged: "), "{told}");
    assert!(fails(&["merge", &one, "--lora", &one, "--out", &small, "--force"]).contains("merge-one.gguf"));
}

/// PEFT's folder is read where it is, or converted first.
#[test]
fn an_adapter_of_peft_runs_from_folder_to_reply() {
    let hf = |name: &str| format!("{}/../tests/fixtures/hf/{name}", env!("CARGO_MANIFEST_DIR"));
    let (base, folder, out) = (hf("llama"), hf("llama-lora"), temporary("peft.gguf", ""));
    let convert = ["convert", &folder, "--out", &out, "--force"];
    let found = misuse(&convert);
    assert!(found.contains("is an adapter, expected --base with the model that it is for"), "{found}");
    ok(&with(&convert, &["--base", &base]));
    assert!(ok(&["inspect", "-m", &out]).contains("14 matrices"));
    let expected = "expected a model, to which adapters are applied (--lora)";
    assert!(fails(&["inspect", "-m", &folder]).contains(expected));
    let quantize = ["quantize", &out, "--type", "q8_0", "--force", "--out", &format!("{out}.q8_0")];
    assert!(fails(&quantize).contains(expected));
    let ask = with(&["run", "--raw", "the hen", "-n", "8", "-m", &base], &EXACT);
    let reply = ok(&with(&ask, &["--lora", &out]));
    // And back.
    let back = format!("{out}.folder");
    ok(&["convert", &out, "--base", &base, "--force", "--out", &back]);
    assert_eq!(reply, ok(&with(&ask, &["--lora", &back])));
    let again = ["convert", &out, "--base", &base, "--out", &back];
    assert!(misuse(&again).contains("it exists already; replace it with --force"));
    let file = ["convert", &out, "--base", &base, "--out", "x.gguf"];
    assert!(misuse(&file).contains("expected the name of a folder, found x.gguf"));
    assert_eq!(reply, ok(&with(&ask, &["--lora", &folder])));
    assert_ne!(reply, ok(&ask));
    assert!(misuse(&with(&convert, &["--base", &base, "--type", "q8_0"])).contains("cannot be used with"));
}

/// A mixture of experts from its folder to a reply, also with weights in fewer bits and from a kept repacked form.
#[test]
fn a_mixture_of_experts_runs_from_folder_to_reply() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf/qwen3moe");
    let (out, small) = (temporary("experts.gguf", ""), temporary("experts-q8.gguf", ""));
    ok(&["convert", folder.to_str().unwrap(), "--force", "--out", &out]);
    let about = json(&["inspect", "--json", "-m", &out]);
    assert_eq!(about["config"]["experts"]["count"], 4, "{about}");
    assert!(ok(&["inspect", "-m", &out]).contains("feed-forward 40 in each of 4 experts, 2 for each token"));
    let ask = ["run", "--raw", "the hen", "-n", "8", "--preset", "greedy"];
    let reply = json(&with(&ask, &["--json", "-m", folder.to_str().unwrap()]));
    assert_eq!(json(&with(&ask, &["--json", "-m", &out]))["text"], reply["text"]);
    ok(&["quantize", &out, "--type", "q4_k_m", "--force", "--out", &small]);
    assert!(ok(&["inspect", "-m", &small, "--tensors"]).contains("blk.0.ffn_up_exps.weight"));
    assert_eq!(json(&with(&ask, &["--json", "-m", &small]))["reply_tokens"], 8);
    // In the folder, the experts are numbered.
    let back = format!("{out}.folder");
    ok(&["convert", &out, "--safetensors", "--force", "--out", &back]);
    assert_eq!(json(&with(&ask, &["--json", "-m", &back]))["text"], reply["text"]);
}

#[test]
fn an_onnx_file_says_what_its_gguf_file_says() {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/hf/onnx-ternary/onnx/model_q2.onnx");
    let (model, out) = (model.to_str().unwrap(), temporary("onnx.gguf", ""));
    ok(&["convert", model, "--force", "--out", &out]);
    let ask = ["run", "--raw", "the hen", "-n", "8", "--preset", "greedy", "--json"];
    assert_eq!(json(&with(&ask, &["-m", &out]))["text"], json(&with(&ask, &["-m", model]))["text"]);
    assert_eq!(json(&["inspect", "--json", "-m", &out])["format"], "ternary (PQ2_0)");
}

#[test]
fn a_quantized_model_still_knows_its_world() {
    let out = temporary("quantized.gguf", "");
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let quantize = ["quantize", source.to_str().unwrap(), "--type", "q4_k", "--out", &out, "--force"];
    let table = ok(&with(&quantize, &["--tensor", "*.attn_v=q6_k"]));
    let row = table.lines().find(|line| line.contains("blk.0.attn_v.weight")).unwrap();
    assert!(
        row.contains("128 x 256") && row.contains("PQ2_0") && row.contains("Q6_K") && row.ends_with('%'),
        "{row}"
    );
    assert!(
        table.contains("\n  Larger than ") && table.ends_with("whose weights have fewer bits.\n"),
        "{table}"
    );
    let ask = ["run", "What does a cow say?", "--preset", "greedy"];
    assert_eq!(ok(&with(&ask, &["-m", &out])), ok(&ask));
    let report = json(&with(&quantize, &["--json"]));
    assert_eq!(report["bytes"], fs::metadata(&out).unwrap().len());
    assert_eq!(report["tensors"][0]["to"], "Q4_K");

    let broken = temporary("broken.gguf", "GGUF");
    let message = fails(&["quantize", &broken, "--type", "q8_0", "--out", &format!("{broken}.out")]);
    assert!(message.contains(&broken), "{message}");
    assert!(!PathBuf::from(format!("{broken}.out")).exists());
}

#[test]
fn weights_that_stay_in_the_file_give_the_same_reply() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/sprout.gguf");
    let ask = ["run", "What does a cow say?", "--preset", "greedy", "-m", file.to_str().unwrap()];
    let expected = ok(&ask);
    // The largest is read on a thread of its own.
    for window in ["1000", "100k", "1M"] {
        assert_eq!(ok(&with(&ask, &["--weights-window", window])), expected);
    }
    let message = fails(&with(&ask, &["--weights-window", "100"]));
    let expected = "window of the weights is 100, expected at least twice the bytes of the longest row";
    assert!(message.contains(expected), "{message}");
    for (ask, expected) in [
        (with(&ask, &["--split", "tensor:2"]), "expected a model on the CPU that is not split, or none"),
        // The model that is built in.
        (ask[..4].to_vec(), "expected a model in one file on disk, or none"),
    ] {
        let message = misuse(&with(&ask, &["--weights-window", "1M"]));
        assert!(
            message.starts_with("shohin: --weights-window is \"1048576\", ") && message.contains(expected),
            "{message}"
        );
    }
    let output = shohin(&with(&ask, &["--weights-window", "1X"])).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected a number of bytes"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_second_start_maps_the_weights_of_the_first() {
    // The smallest model that is kept has 16 MiB.
    let shape = Shape { hidden: 2048, ffn: 8192, layers: 3, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 5).to_vec().unwrap();
    let file = temporary("cached.gguf", file);
    let dir = temporary("weights", "");
    fs::remove_file(&dir).unwrap();
    let run = |cache: &[&str]| {
        let mut said =
            json(&with(&["run", "-m", &file, "--raw", "aaa", "-n", "4", "--temp", "0", "--json"], cache));
        said["timings"].take();
        said["seed"].take();
        let cached = said["weights_cached"].take();
        (said, cached == true)
    };
    let (expected, _) = run(&[]);
    let cached = || match fs::read_dir(&dir) {
        Ok(files) => files.map(|file| file.unwrap().metadata().unwrap().modified().unwrap()).collect(),
        Err(_) => Vec::new(),
    };
    let keeps = repacks(Isa::detect());
    assert_eq!(run(&["--weight-cache", &dir]), (expected.clone(), false));
    let written = cached();
    assert_eq!(written.len(), usize::from(keeps));
    assert_eq!(run(&["--weight-cache", &dir]), (expected, keeps));
    let used = cached();
    assert!(used.len() == written.len() && (!keeps || used > written), "{used:?} after {written:?}");
    let _ = fs::remove_dir_all(&dir);
    fs::write(&dir, "no directory").unwrap();
    let output =
        shohin(&["run", "-m", &file, "--raw", "a", "-n", "1", "--weight-cache", &dir]).output().unwrap();
    let remark = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success());
    assert!(!keeps || remark.contains("(cannot keep the repacked weights in "), "{remark}");
    fs::remove_file(&dir).unwrap();
    fs::remove_file(&file).unwrap();
}

#[test]
fn a_long_chat_forgets_its_oldest_turns_and_goes_on() {
    let line = "Tell me a story about a fox and a lantern.\n";
    let output = feed(&["chat", "--context", "200", "-n", "40", "--preset", "greedy"], line.repeat(8));
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    let replies = stdout(output);
    assert_eq!(replies.lines().count(), 8, "{replies}\n{notes}");
    assert!(notes.contains("forgotten"), "{notes}");
    let output = feed(&["chat", "--context", "50"], format!("{}\n", "far too long ".repeat(30)));
    assert!(failure(&output, 1).contains("context holds 50"));
}

// ---- tokenize

#[test]
fn a_context_that_shifts_never_ends() {
    let long = "hello there ".repeat(100);
    let shift = ["run", &long, "--context", "40", "--overflow", "shift", "--json", "-n", "90"];
    let reply = json(&with(&shift, &WILD));
    assert_eq!(reply["finish_reason"], "length");
    assert_eq!(reply["reply_tokens"], 90);
    // The beginning of a chat is kept, and half of the rest is dropped.
    let dropped = reply["dropped_tokens"].as_u64().unwrap();
    let all = reply["prompt_tokens"].as_u64().unwrap() + 89;
    assert!(dropped >= all - 40 && dropped < all, "{dropped} of {all}");
    assert!(misuse(&with(&shift, &["--keep", "40"])).contains("--keep 40 leaves no room"));

    // Each reply takes more than the context.
    let chat = ["chat", "--context", "40", "--overflow", "shift", "-n", "70"];
    let output = feed(&with(&chat, &WILD), "Tell me a story.\nAnd another one.\n/retry\n");
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    stdout(output);
    assert_eq!(notes.matches("tokens were forgotten").count(), 3, "{notes}");
    assert!(!notes.contains("context is full"), "{notes}");
}

#[test]
fn texts_begin_with_the_token_that_the_file_names() {
    let mut file = model();
    let key = b"tokenizer.ggml.add_bos_token";
    let at = file.windows(key.len()).position(|found| found == key).unwrap();
    // After the key its type, in four bytes.
    file[at + key.len() + 4] = 1;
    let file = temporary("bos.gguf", file);
    let count = |args: &[&str]| ok(&with(args, &["-m", &file])).split_whitespace().count();
    let ids = count(&["tokenize", "Hello there!"]);
    assert_eq!(count(&["tokenize", "--no-bos", "Hello there!"]), ids - 1);
    assert_eq!(
        json(&["run", "--raw", "Hello there!", "-n", "1", "--json", "-m", &file])["prompt_tokens"],
        ids
    );
}

#[test]
fn text_becomes_ids_and_ids_text() {
    let text = "Once upon a time, é 日本 🌱 <|im_end|>\n\ttabs";
    let ids = stdout(feed(&["tokenize"], text));
    assert_eq!(stdout(feed(&["tokenize", "--decode"], &ids)), format!("{text}\n"));
    assert_eq!(ok(&["tokenize", text]), ids);
    let texts = to_json!([text, "", "a"]);
    let array = stdout(feed(&["tokenize", "--json"], texts.to_string()));
    let array: Value = serde_json::from_str(&array).unwrap();
    assert_eq!(self::ids(&array[0]).join(" "), ids.trim());
    assert_eq!((array.as_array().unwrap().len(), &array[1]), (3, &to_json!([])));
    let back = stdout(feed(&["tokenize", "--json", "--decode"], array.to_string()));
    assert_eq!(serde_json::from_str::<Value>(&back).unwrap(), texts);
    let pieces = ok(&["tokenize", "--pieces", text]);
    assert_eq!(pieces.lines().count(), ids.split_whitespace().count());
    // A decomposed é.
    assert_eq!(ok(&["tokenize", "--nfc", "e\u{301}"]), ok(&["tokenize", "é"]));
    assert_ne!(ok(&["tokenize", "e\u{301}"]), ok(&["tokenize", "é"]));
}

#[test]
fn control_tokens_are_formed_only_on_request() {
    let trainer = trainer();
    let chats = trainer["chats"].as_array().unwrap();
    let end = chats.iter().find_map(|chat| chat["stopped_by"].as_u64()).unwrap().to_string();
    let plain = ok(&["tokenize", "<|im_end|>"]);
    assert!(plain.split_whitespace().count() > 1 && plain.split_whitespace().all(|id| id != end));
    assert_eq!(ok(&["tokenize", "--special", "<|im_end|>"]), format!("{end}\n"));
    assert_eq!(ok(&["tokenize", "--decode", &end]), "\n");
    assert_eq!(ok(&["tokenize", "--decode", "--special", &end]), "<|im_end|>\n");
    let text = trainer["text"].as_str().unwrap();
    assert_eq!(stdout(feed(&["tokenize", "--special"], text)).trim(), ids(&trainer["ids"]).join(" "));
}

// ---- logits and eval

/// The rows written by `shohin logits`; `name` separates tests that run at the same time.
fn logits(name: &str, tokens: &str, more: &[&str]) -> Vec<Vec<f32>> {
    let n = tokens.split_whitespace().count();
    let tokens = temporary(&format!("{name}-tokens.txt"), tokens);
    let out = temporary(&format!("{name}-logits.f32"), "");
    ok(&with(&["logits", "--tokens", &tokens, "--force", "--out", &out], more));
    let bytes = fs::read(out).unwrap();
    let floats: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!((bytes.len() % 4, floats.len() % n), (0, 0));
    floats.chunks(floats.len() / n).map(<[f32]>::to_vec).collect()
}

/// -ln softmax(row)[next], in f64.
fn loss(row: &[f32], next: usize) -> f64 {
    row.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln() - f64::from(row[next])
}

#[test]
fn eval_is_the_mean_of_the_logits_losses() {
    let text = "Once upon a time, there was a little fox. She liked to play with a red ball.";
    let file = temporary("text.txt", text);
    let ids = ok(&["tokenize", text]);
    let rows = logits("eval", &ids, &["--act", "f32"]);
    let ids: Vec<usize> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let scored = ids.len() - 1;
    let mean = rows.iter().zip(&ids[1..]).map(|(row, &next)| loss(row, next)).sum::<f64>() / scored as f64;
    let report = json(&["eval", &file, "--act", "f32", "--json"]);
    let found = |name: &str| report[name].as_f64().unwrap();
    assert!((found("nats_per_token") - mean).abs() < 1e-6);
    assert!((found("perplexity") / mean.exp() - 1.0).abs() < 1e-6);
    assert_eq!(report["scored_tokens"], scored);
    // The first token is not scored, nor are its bytes.
    let first = ok(&["tokenize", "--decode", &ids[0].to_string()]).len() - 1;
    let bits = mean * scored as f64 / 2f64.ln() / (text.len() - first) as f64;
    assert!((found("bits_per_byte") - bits).abs() < 1e-6);
    // Windows score every token once, each in the first window that contains it.
    let narrow = json(&["eval", &file, "--window", "9", "--stride", "5", "--act", "f32", "--json"]);
    let (mut nats, mut done) = (0.0, 1);
    for first in (0..ids.len()).step_by(5) {
        let part = &ids[first..ids.len().min(first + 9)];
        let words: Vec<String> = part.iter().map(usize::to_string).collect();
        let rows = logits("window", &words.join(" "), &["--act", "f32"]);
        for next in done..first + part.len() {
            nats += loss(&rows[next - first - 1], ids[next]);
        }
        done = done.max(first + part.len());
    }
    assert_eq!(narrow["scored_tokens"], scored);
    assert!((narrow["nats_per_token"].as_f64().unwrap() - nats / scored as f64).abs() < 1e-6);
    assert!(ok(&["eval", &file, "--limit", "9"]).contains("scored tokens   8\n"));
}

#[test]
fn the_loss_is_that_of_the_trainer() {
    let trainer = trainer();
    let file = temporary("trainer.txt", trainer["text"].as_str().unwrap());
    let n = trainer["ids"].as_array().unwrap().len().to_string();
    let args = ["eval", &file, "--special", "--window", &n, "--act", "f32", "--kv", "f32", "--json"];
    let found = json(&args)["nats_per_token"].as_f64().unwrap();
    assert!((found - trainer["mean_next_token_loss"].as_f64().unwrap()).abs() < 1e-4, "{found}");
}

/// As transformers computes them (`tests/oracle/rope_scaling.py`).
#[test]
fn logits_of_dynamic_ntk_are_those_for_the_tokens() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/hf/qwen3");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-dynamic", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for file in fs::read_dir(source).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let config = folder.join("config.json");
    let mut changed: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    changed["rope_parameters"] =
        serde_json::json!({ "rope_type": "dynamic", "rope_theta": 1e6, "factor": 8.0 });
    changed["max_position_embeddings"] = 4.into();
    fs::write(&config, changed.to_string()).unwrap();

    let texts: Value = serde_json::from_slice(&fs::read(folder.join("texts.json")).unwrap()).unwrap();
    let ids: Vec<String> = texts[0][1].as_array().unwrap().iter().map(Value::to_string).collect();
    let want = fs::read(folder.join("logits.dynamic")).unwrap();
    let floats =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<f32>>();
    let exact = ["-m", folder.to_str().unwrap(), "--act", "f32", "--kv", "f32"];
    let rows = logits("dynamic", &ids.join(" "), &exact).concat();
    assert_eq!(rows.len(), floats(&want).len());
    let worst = rows.iter().zip(floats(&want)).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");

    let text = temporary("dynamic.txt", texts[0][0].as_str().unwrap());
    let eval = with(&["eval", &text, "--window", "8", "--json"], &exact);
    let loss = |args: &[&str]| json(args)["nats_per_token"].as_f64().unwrap();
    assert_eq!(loss(&eval), loss(&with(&eval, &["-c", "8"])));
    assert!(loss(&eval) != loss(&with(&eval, &["-c", "32"])));
    fs::remove_dir_all(&folder).unwrap();
}

/// transformers takes the frequencies for the length of the sequence, too.
#[test]
fn a_sequence_over_the_default_context_has_its_frequencies() {
    let sprout = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf")).unwrap();
    let model = temporary("long-rope.gguf", shohin_tests::long_rope::long_rope(&sprout, 4096, 8192).unwrap());
    let ids: Vec<String> = (0..4100).map(|i| (7 * i % 300).to_string()).collect();
    let tokens = temporary("long-rope.txt", ids.join(" "));
    let ask = ["logits", "-m", &model, "--tokens", &tokens];
    let listed = ok(&ask);
    assert_eq!(listed, ok(&with(&ask, &["--context", "8192"])));
    assert!(fails(&with(&ask, &["--context", "4096"])).contains("--context can raise that"));
    ok(&["bench", "-m", &model, "--prefill", "0", "--decode", "1", "--depth", "4100", "--repeat", "1"]);
    // Its tokens are known only to the model.
    let text = "a fox ".repeat(2100);
    let message = misuse(&["embed", "-m", &model, &text]);
    assert!(message.contains("--context is \"4096\", expected at least"), "{message}");
}

#[test]
fn logits_choose_what_run_says() {
    let text = "Once upon a time, there was a";
    let ids = ok(&["tokenize", text]);
    let rows = logits("choose", &ids, &[]);
    let last = rows.last().unwrap();
    let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    let reply = json(&["run", "--raw", text, "--preset", "greedy", "-n", "1", "--json"]);
    assert_eq!(reply["tokens"], to_json!([best]));
    let tokens = temporary("listed.txt", &ids);
    let listed = ok(&["logits", "--tokens", &tokens, "--top", "3"]);
    assert_eq!(listed.lines().count(), 5, "{listed}");
    assert_eq!(listed.lines().nth(2).unwrap().split_whitespace().next().unwrap(), best.to_string());
    // Rows do not depend on later tokens.
    let start: Vec<&str> = ids.split_whitespace().take(3).collect();
    assert_eq!(logits("start", &start.join("\n"), &["--threads", "3"])[..], rows[..3]);
}

// ---- embed

#[test]
fn embeddings_are_those_of_transformers() {
    // `tests/oracle/qwen3_logits.py` has read this text with Hugging Face's model of the same weights.
    let text = "The fox ran home, all alone.";
    let fixture = |name| format!("{}/../tests/fixtures/qwen3-bytes.{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = fs::read(fixture("hidden")).unwrap();
    let states: Vec<f64> = bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect();
    let rows: Vec<&[f64]> = states.chunks(states.len() / text.len()).collect();
    let mean: Vec<f64> =
        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect();
    let unit = |v: &[f64]| -> Vec<f64> {
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        v.iter().map(|x| x / length).collect()
    };
    let last = rows[rows.len() - 1];
    let model = fixture("gguf");
    let all = ["-m", &model, "--act", "f32", "--kv", "f32"];
    let embed = |args: &[&str], input: &str| -> Vec<Vec<f64>> {
        let out = stdout(feed(&[&["embed"], &all[..], args].concat(), input));
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    for (args, want) in [
        (&[text][..], unit(&mean)),
        (&["--no-normalize", text], mean.clone()),
        (&["--pooling", "last", text], unit(last)),
        (&["--pooling", "last", "--no-normalize", text], last.to_vec()),
    ] {
        let [got] = &embed(args, "")[..] else { panic!("one vector") };
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() < 1e-4, "{args:?}: {got} for {want}");
        }
    }
    // Of the same weights in a rotated basis (`tests/oracle/hadamard.py`).
    let rotated = format!("{}/../tests/fixtures/qwen3-rotated.gguf", env!("CARGO_MANIFEST_DIR"));
    assert!(ok(&["inspect", "-m", &rotated]).contains("rotated in blocks of 16"));
    let out = ok(&["embed", "-m", &rotated, "--act", "f32", "--kv", "f32", "--no-normalize", text]);
    let got: Vec<f64> = serde_json::from_str(&out).unwrap();
    assert!(got.len() == mean.len() && got.iter().zip(&mean).all(|(got, want)| (got - want).abs() < 1e-4));
    // Several texts of any length, each by itself.
    let one = embed(&[text], "");
    let three = embed(&["A bird sang, and sang, and sang again.", text, "x"], "");
    assert_eq!((three.len(), &three[1]), (3, &one[0]));
    assert_eq!(embed(&[], &format!("x\n{text}\n\n")), [three[2].clone(), one[0].clone()]);
    assert_eq!(embed(&["--json"], &format!("[{text:?}, \"a\\nb\"]"))[0], one[0]);
    assert_eq!(fails(&with(&["embed", "a", ""], &all)), "shohin: text 2 is empty\n");
    let gap = feed(&with(&["embed"], &all), "a\n\nb\n");
    assert_eq!(String::from_utf8_lossy(&gap.stderr), "shohin: standard input: line 2 is empty\n");
    let long = "a ".repeat(100);
    assert_eq!(
        fails(&with(&["embed", &long], &all)),
        "shohin: text 1 has 200 tokens, but the model supports 64\n"
    );
}

// ---- inspect and bench

#[test]
fn inspect_shows_the_file() {
    let text = ok(&["inspect"]);
    for part in ["\nMemory\n", "\nMetadata\n", "\nTensors\n", "ternary", "qwen3.block_count"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let all = ok(&["inspect", "--tensors"]);
    let object = json(&["inspect", "--json", "--context", "100"]);
    let tensors = object["tensors"].as_array().unwrap();
    assert!(tensors.iter().all(|t| all.contains(t["name"].as_str().unwrap())));
    assert_eq!(object["file_bytes"], model().len());
    assert_eq!(object["memory"]["context"], 100);
    let size = |name: &str| object["config"][name].as_u64().unwrap();
    // Keys and values of 2 bytes each, in whole blocks of 16 positions.
    let kv = size("layers") * size("kv_heads") * size("head_dim") * 2 * 2 * 112;
    assert_eq!(object["memory"]["kv"], kv);
    // One byte each, and a 2-byte scale per 32 elements of a key and per value.
    let object = json(&["inspect", "--json", "--context", "100", "--kv", "q8"]);
    let d = size("head_dim");
    let token = size("layers") * size("kv_heads") * (2 * d + 2 * d.div_ceil(32) + 2);
    assert_eq!(object["memory"]["kv"], token * 112);
    assert_eq!(
        ok(&["run", "What does a cow say?", "--preset", "greedy", "--kv", "q8", "-n", "4"]).lines().count(),
        1
    );
    assert_eq!(object["metadata"]["general.architecture"], "qwen3");
}

/// The options have the same effect as a file with those values, to the last bit.
#[test]
fn rope_can_be_replaced() {
    let path = |name: &str, base: f32, yarn: Option<u32>| {
        let shape = Shape { rope_base: base, yarn, context: 512, ..Shape::tiny() };
        temporary(name, Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap())
    };
    let (plain, scaled) = (path("plain.gguf", 1e6, None), path("scaled.gguf", 5e5, Some(128)));
    let scores = |name: &str, args: &[&str]| logits(name, "1 5 9 2 7", args);
    let want = scores("in-file", &["-m", &scaled]);
    assert_ne!(scores("without", &["-m", &plain]), want);
    let rope = ["--rope-scaling", "yarn:4:128", "--rope-base", "500000"];
    assert_eq!(scores("replaced", &with(&["-m", &plain], &rope)), want);
    let back = ["--rope-scaling", "none", "--rope-base", "1e6"];
    assert_eq!(scores("back", &with(&["-m", &scaled], &back)), scores("plain", &["-m", &plain]));
    let config = &json(&["inspect", "-m", &plain, "--rope-scaling", "linear:2", "--json"])["config"];
    assert_eq!(config["context_length"], 1024);
    for wrong in ["yarn:4", "linear:0", "twice"] {
        let text = misuse(&["inspect", "--rope-scaling", wrong]);
        assert!(
            text.contains("expected none, linear:FACTOR, or dynamic, yarn or llama3 with :FACTOR:CONTEXT"),
            "{text}"
        );
    }
    assert!(misuse(&["inspect", "--rope-base", "0"]).contains("expected a number over 1"));
}

#[test]
fn alibi_is_in_the_file_or_an_option() {
    let fixture = |name: &str| format!("{}/../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let (file, tokens) =
        (fixture("qwen3-alibi.gguf"), "84 104 101 32 102 111 120 32 114 97 110 32 104 111 109 101");
    let scores = |name: &str, more: &[&str]| {
        logits(name, tokens, &with(&["-m", &file, "--act", "f32", "--kv", "f32"], more)).concat()
    };
    // Logits by transformers.
    for (kind, more) in [
        ("logits", &[][..]),
        ("logits", &["--alibi", "8"]),
        ("logits", &["--split", "tensor:2"]),
        ("rope", &["--alibi", "0"]),
    ] {
        let bytes = fs::read(fixture(&format!("qwen3-alibi.{kind}"))).unwrap();
        let want = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let got = scores(&format!("alibi-{}", more.concat()), more);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-4, "{more:?}: {got} {want}");
        }
    }
    let config = &json(&["inspect", "-m", &file, "--json"])["config"];
    assert_eq!((&config["max_alibi_bias"], &config["rotary"]), (&to_json!(8.0), &to_json!(false)));
    assert!(ok(&["inspect", "-m", &file]).contains("64 tokens, ALiBi with slopes down to 2^-8"));
    let rope = misuse(&["inspect", "-m", &file, "--rope-base", "1e6"]);
    assert!(rope.contains("--rope-base is \"1000000\"") && rope.contains("ALiBi is in the place"), "{rope}");
    assert!(misuse(&["inspect", "--alibi", "-1"]).contains("expected a number from 0 to 1024"));
    // The built-in model was trained without it; what it computed so is of no use to it with another.
    let path = temporary("alibi.session", "");
    fs::remove_file(&path).unwrap();
    ok(&["run", "Hello!", "-n", "2", "--session", &path, "--alibi", "8"]);
    let other = fails(&["run", "Hello!", "-n", "2", "--session", &path]);
    assert!(other.contains("is of another model"), "{other}");
}

#[test]
fn a_mixture_of_depths_runs_like_any_other_model() {
    let fixture = |name: &str| format!("{}/../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let (file, text) = (fixture("qwen3-depths.gguf"), "The fox ran home, all alone.");
    let exact = ["-m", &file, "--act", "f32", "--kv", "f32"];
    // Logits by the formulas in f64.
    let bytes = fs::read(fixture("qwen3-depths.logits")).unwrap();
    let want: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let ids: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    let got = logits("depths", &ids.join(" "), &exact).concat();
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-4));
    let last = &want[want.len() - 257..];
    let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    let reply = json(&with(&["run", "--raw", text, "--preset", "greedy", "-n", "1", "--json"], &exact));
    assert_eq!(reply["tokens"], to_json!([best]));
    // Beyond the context of 64 tokens.
    let run = ["run", "--raw", text, "--preset", "greedy", "--overflow", "shift", "--json"];
    let reply = json(&with(&with(&run, &["-n", "100"]), &exact));
    assert_eq!(reply["reply_tokens"], to_json!(100));
    // A conversation from a file, of a random model with a chat format.
    let shape = Shape { depth_routers: true, ..Shape::tiny() };
    let chatty = temporary("depths.gguf", Model::new(shape, Stored::new(Format::Q1_0), 4).to_vec().unwrap());
    let path = temporary("depths.session", "");
    fs::remove_file(&path).unwrap();
    let greedy = ["-m", &chatty, "--preset", "greedy", "-n", "6", "--regex", "[a-z]{6}"];
    let whole = stdout(feed(&with(&["chat"], &greedy), "a\nb"));
    let kept = with(&["--session", &path], &greedy);
    let replies = ok(&with(&["run", "a"], &kept)) + &ok(&with(&["run", "b"], &kept));
    assert_eq!(replies.trim_end(), whole.trim_end());

    assert_eq!(json(&["inspect", "-m", &file, "--json"])["config"]["depth_routers"], to_json!([0, 2, 3]));
    let layers = ok(&["inspect", "-m", &file]);
    assert!(layers.contains("5, of which tokens may skip 3 (mixture of depths)"), "{layers}");
    for (option, value, word) in [
        ("--split", "tensor:2", "a mixture of depths"),
        ("--attention", "window:5", "blk.N.depth_router.weight"),
        ("--alibi", "8", "blk.N.depth_router.weight"),
    ] {
        let output = shohin(&with(&["run", "--raw", text, option, value], &exact)).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(word), "{option}: {error}");
    }
}

#[test]
fn inspect_says_what_fits_into_how_much_memory() {
    let fits = |args: &[&str]| -> Vec<(String, Option<u64>)> {
        let object = json(&with(&["inspect", "--json"], args));
        let all = object["fits"].as_array().unwrap().iter();
        all.map(|fit| (fit["model"].as_str().unwrap().into(), fit["context"].as_u64())).collect()
    };
    let small = fits(&["--memory", "600MiB"]);
    let (f16, q8) = (fits(&["--memory", "2GiB"]), fits(&["--memory", "2GiB", "--kv", "q8"]));
    assert_eq!((small.len(), small[0].1), (7, Some(512)), "the built-in model first, with its whole context");
    let context = |all: &[(String, Option<u64>)], name: &str| all.iter().find(|fit| fit.0 == name).unwrap().1;
    assert_eq!(context(&small, "Bonsai-8B"), None);
    assert!(context(&small, "Bonsai-1.7B").is_some_and(|n| (2000..4000).contains(&n)), "{small:?}");
    assert!(context(&q8, "Bonsai-8B") > context(&f16, "Bonsai-8B").map(|n| 18 * n / 10), "{f16:?} {q8:?}");
    let text = ok(&["inspect", "--memory", "600MiB"]);
    assert!(text.contains("Fits into 600 MiB") && text.contains("does not fit"), "{text}");
    let output = shohin(&["inspect", "--memory", "plenty"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn inspect_says_why_a_file_cannot_run_and_shows_it_all_the_same() {
    // Another architecture: a name of the same length.
    let mut bytes = model();
    let at = bytes.windows(5).position(|w| w == b"qwen3").unwrap();
    bytes[at..at + 5].copy_from_slice(b"gemma");
    let file = temporary("gemma.gguf", bytes);
    let text = ok(&["inspect", "-m", &file]);
    assert!(text.contains("no: ") && text.contains("\"gemma\"") && text.contains("\nTensors\n"), "{text}");
    let object = json(&["inspect", "-m", &file, "--json"]);
    assert!(object["cannot_run"].as_str().unwrap().contains("gemma"));
    assert!(!object["tensors"].as_array().unwrap().is_empty());
    assert!(fails(&["run", "-m", &file, "x"]).contains("gemma"));
}

#[test]
fn a_file_runs_as_the_built_in_model_does() {
    let file = temporary("model.gguf", model());
    let args = ["run", "Hello!", "--preset", "greedy"];
    assert_eq!(ok(&with(&args, &["-m", &file])), ok(&args));
}

#[test]
fn bench_measures() {
    let args = ["bench", "--prefill", "8,16", "--decode", "4", "--repeat", "2", "--threads", "2"];
    let report = json(&with(&args, &["--json"]));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for result in results {
        assert!(result["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert!(result["best_tokens_per_second"].as_f64() >= result["tokens_per_second"].as_f64());
        assert_eq!(result["seconds"].as_array().unwrap().len(), 2);
        assert_eq!(result["cpu_seconds"].as_array().unwrap().len(), 2);
    }
    // Keys and values are read too, but only a few after one token.
    let (decode, bytes) = (&results[2], report["bytes_per_token"].as_f64().unwrap());
    let read = decode["gigabytes_per_second"].as_f64().unwrap();
    let weights = decode["tokens_per_second"].as_f64().unwrap() * bytes / 1e9;
    assert!(read > 0.99 * weights && read < 1.5 * weights, "{read} {weights}");
    let bound = report["memory_gigabytes_per_second"].as_f64().unwrap();
    // The printed numbers are rounded. Other work on the machine can make the bounds small.
    let is_near = |found: f64, expected: f64| (found - expected).abs() < 2e-3 * expected.max(1.0);
    assert!(is_near(decode["share_of_memory_bound"].as_f64().unwrap(), read / bound));
    // Scalar code has no compute bound.
    if let Some(most) = report["gigaproducts_per_second"].as_f64() {
        let each = report["products_per_prompt_token"].as_f64().unwrap() / 1e9;
        let share = results[0]["tokens_per_second"].as_f64().unwrap() * each / most;
        assert!(is_near(results[0]["share_of_product_bound"].as_f64().unwrap(), share), "{share}");
    }
    assert_eq!(report["threads"], 2);
    assert!(report["bytes_per_token"].as_u64().unwrap() < model().len() as u64);
    if cfg!(target_os = "linux") {
        assert!(report["peak_memory_bytes"].as_u64().unwrap() > model().len() as u64);
    }
    let text = ok(&args);
    assert!(text.contains("of bound") && text.contains("weights read per token"), "{text}");
    let none = ["bench", "--prefill", "0", "--decode", "0", "--repeat", "1", "--json"];
    let verified = &json(&with(&none, &["--verify", "4"]))["results"][0];
    assert_eq!((&verified["test"], &verified["tokens"]), (&to_json!("verify"), &to_json!(4)));
    assert!(fails(&["bench", "--prefill", "100000"]).contains("a test needs 100000 tokens"));
    let deep = ["bench", "--prefill", "0", "--decode", "4", "--depth", "500", "--repeat", "1", "--json"];
    assert_eq!(json(&deep)["results"][0]["depth"], 500);
    assert!(fails(&["bench", "--decode", "4", "--depth", "100000"]).contains("a test needs 100004 tokens"));
}

#[test]
fn bench_measures_batches_and_where_the_time_goes() {
    let args = ["bench", "--prefill", "0", "--decode", "4", "--batch", "1,3", "--repeat", "1", "--json"];
    let report = json(&args);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (result, replies) in results[1..].iter().zip([1, 3]) {
        assert_eq!((&result["test"], &result["sequences"]), (&to_json!("batch"), &to_json!(replies)));
        // The first tokens of the replies come with their prompts.
        assert_eq!(result["tokens"], 3 * replies);
    }
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("flame.svg").display().to_string();
    let args = ["bench", "--profile", "--prefill", "80", "--decode", "4", "--flame", &svg];
    let report = json(&with(&args, &["--json"]));
    let layers = json(&["inspect", "--json"])["layers"].as_u64();
    for (name, tokens, calls) in [("prefill", 80, 2), ("decode", 4, 4)] {
        let profile = &report["profiles"][name];
        assert_eq!(profile["tokens"], tokens);
        let operations = profile["operations"].as_array().unwrap();
        let attention: Vec<_> = operations.iter().filter(|op| op["name"] == "attention").collect();
        assert!(attention.iter().all(|op| op["calls"] == calls && op["rows"] == tokens), "{attention:?}");
        assert!(layers.is_none_or(|layers| attention.len() as u64 == layers));
        let sum: f64 = operations.iter().map(|op| op["seconds"].as_f64().unwrap()).sum();
        assert!((sum - profile["seconds"].as_f64().unwrap()).abs() < 1e-9);
    }
    let drawn = std::fs::read_to_string(&svg).unwrap();
    // What is too narrow has no name.
    assert!(drawn.starts_with("<svg") && drawn.contains("all") && drawn.contains("Sprout, CPU"));
    assert!(misuse(&args).contains("it exists already"));
    let text = ok(&with(&args, &["--force"]));
    assert!(text.contains("decode of 4 tokens") && text.contains("the longest, block"), "{text}");
    let depths = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-depths.gguf");
    let depths = depths.display().to_string();
    let text = ok(&["bench", "-m", &depths, "--profile", "--prefill", "20", "--decode", "0"]);
    assert!(text.contains("took part in blocks that they may skip: 0: "), "{text}");
}

#[test]
fn eval_compares_caches_and_attention() {
    let text = "Once upon a time, there was a little fox. She liked to play with a red ball. ".repeat(3);
    let file = temporary("compared.txt", &text);
    let shape = ["--window", "40", "--stride", "20", "--act", "f32"];
    let report = json(&with(&["eval", &file, "--compare", "caches", "--json"], &shape));
    let variants = report["variants"].as_array().unwrap();
    let of = |variant: &Value, key: &str| variant[key].as_f64().unwrap();
    assert_eq!(variants.len(), shohin_core::KvFormat::ALL.len());
    assert_eq!((&variants[0]["name"], of(&variants[0], "logits_error")), (&to_json!("f32"), 0.0));
    let find = |name: &str| variants.iter().find(|variant| variant["name"] == *name).unwrap();
    for name in ["f32", "q4"] {
        // As alone, with this cache.
        let variant = find(name);
        let alone = json(&with(&["eval", &file, "--kv", name, "--json"], &shape));
        assert!((of(variant, "perplexity") / of(&alone, "perplexity") - 1.0).abs() < 1e-9, "{name}");
        assert_eq!(report["scored_tokens"], alone["scored_tokens"]);
    }
    assert!(of(find("f16"), "logits_error") < of(find("q8"), "logits_error"));
    assert!(of(find("q8"), "logits_error") < of(find("q4"), "logits_error"));
    assert!(of(find("f16"), "cache_bytes") < of(find("f32"), "cache_bytes"));
    let with_pattern = |pattern| {
        let args = ["eval", &file, "--compare", "attention", "--attention", pattern, "--json"];
        json(&with(&args, &shape))["variants"][1].clone()
    };
    // A window that is as long as all others sees the same; a short one reads less.
    let (all, few) = (with_pattern("window:40"), with_pattern("window:8:2"));
    assert_eq!((of(&all, "logits_error"), of(&all, "divergence")), (0.0, 0.0));
    assert!(of(&few, "logits_error") > 0.0 && of(&few, "divergence") > 0.0);
    assert!(of(&few, "read_per_token") < 0.5 * of(&all, "read_per_token"));
    assert!(misuse(&["eval", &file, "--compare", "attention"]).contains("expected --attention"));
    assert!(ok(&["eval", &file, "--compare", "caches", "--limit", "9"]).contains("8 tokens in windows"));
}

// ---- errors

#[test]
fn broken_model_files_are_named() {
    let whole = model();
    for (file, reason) in [
        (
            "no-such-file.gguf".to_string(),
            "cannot open the model no-such-file.gguf: No such file or directory",
        ),
        (
            "bonsi-1.7b".into(),
            "there is no model \"bonsi-1.7b\"; did you mean bonsai-1.7b? expected a file, a folder, one of bonsai-1.7b, ternary-bonsai-1.7b, ",
        ),
        (
            env!("CARGO_TARGET_TMPDIR").into(),
            "is a folder without config.json, expected a GGUF file or a Hugging Face folder",
        ),
        (temporary("empty.gguf", b""), "is empty, expected a GGUF file"),
        (
            temporary("text.gguf", b"This is no model at all, but a text of some length."),
            "the file begins with \"This is no model at all, but a t\", expected \"GGUF\"",
        ),
        (temporary("page.gguf", b"<!DOCTYPE html>\n<html></html>"), "\"GGUF\": this looks like a web page"),
        (
            temporary("pointer.gguf", b"version https://git-lfs.github.com/spec/v1\noid x"),
            "pointer of Git LFS",
        ),
        (
            temporary("cut.gguf", &whole[..whole.len() / 2]),
            &format!(
                "the file is incomplete: it has {} bytes, at least {} are needed",
                whole.len() / 2,
                whole.len()
            ),
        ),
        (temporary("head.gguf", &whole[..100]), "the input is incomplete"),
    ] {
        let message = fails(&["run", "-m", &file, "Hello"]);
        assert!(message.contains(&file) && message.contains(reason), "{message}");
    }
}

/// Files that a folder has in the place of others, and what is said of them.
#[test]
fn broken_folders_are_named() {
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/hf/qwen2");
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    let weights = fs::read(format!("{good}/model.safetensors")).unwrap();
    let folder = |name: &str, changed: &str, content: Option<&[u8]>| {
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        for entry in fs::read_dir(good).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
        match content {
            Some(content) => fs::write(folder.join(changed), content).unwrap(),
            None => fs::remove_file(folder.join(changed)).unwrap(),
        }
        folder
    };
    let refused = |folder: PathBuf| fails(&["run", "-m", folder.to_str().unwrap(), "Hello"]);
    for (name, content) in
        [("model.safetensors", &pointer[..]), ("tokenizer.json", pointer), ("config.json", pointer)]
    {
        let message = refused(folder("pointer", name, Some(content)));
        assert!(message.contains(name) && message.contains("is a pointer of Git LFS"), "{message}");
    }
    // Within the header, and within the tensors.
    for len in [100, weights.len() - 100] {
        let message = refused(folder("cut", "model.safetensors", Some(&weights[..len])));
        let said = format!(
            "model.safetensors: not a valid safetensors file: the file is incomplete: it has {len} bytes"
        );
        assert!(message.contains(&said), "{message}");
    }
    let pickled = folder("pickled", "model.safetensors", None);
    assert!(refused(pickled.clone()).contains("is a folder without weights, expected model.safetensors"));
    fs::write(pickled.join("pytorch_model.bin"), "x").unwrap();
    let message = refused(pickled);
    assert!(
        message.contains("is a folder whose weights only PyTorch reads (pytorch_model.bin)"),
        "{message}"
    );
    // The template of a folder of a processor, and of several by name.
    let template = fs::read_to_string(format!("{good}/chat_template.jinja")).unwrap();
    let several =
        to_json!([{ "name": "tool_use", "template": "x" }, { "name": "default", "template": template }]);
    for value in [
        to_json!(template),
        several.clone(),
        to_json!({ "default": template, "rag": "x" }),
        to_json!({ "only": template }),
    ] {
        let of = folder("template", "chat_template.jinja", None);
        fs::write(of.join("chat_template.json"), to_json!({ "chat_template": value }).to_string()).unwrap();
        let found = json(&["inspect", of.to_str().unwrap(), "--json"]);
        assert_eq!(found["metadata"]["tokenizer.chat_template"], template);
    }
    let unnamed = to_json!([{ "name": "a", "template": "x" }, { "name": "b", "template": "y" }]);
    let of = folder("template", "chat_template.jinja", None);
    fs::write(of.join("chat_template.json"), to_json!({ "chat_template": unnamed }).to_string()).unwrap();
    let message = refused(of);
    assert!(
        message.contains("chat_template.json: chat_template is") && message.contains("one is default"),
        "{message}"
    );
}

/// Scores of transformers (`tests/oracle/rerank.py`).
#[test]
fn documents_are_ordered_as_transformers_orders_them() {
    let fixture: Value = serde_json::from_str(include_str!("../../tests/fixtures/rerank.json")).unwrap();
    let texts = |name: &str| -> Vec<String> {
        fixture[name].as_array().unwrap().iter().map(|text| text.as_str().unwrap().into()).collect()
    };
    let (query, documents) = (fixture["query"].as_str().unwrap(), texts("documents"));
    for (file, want) in [("sprout-Reranker.gguf", "reranked"), ("sprout-embedding.gguf", "cosines")] {
        let file = temporary(file, model());
        let ask = ["rerank", "-m", &file, "--act", "f32", "--kv", "f32", query];
        let mut all = ask.to_vec();
        all.extend(documents.iter().map(String::as_str));
        let found = json(&with(&all, &["--json"]));
        let results = found["results"].as_array().unwrap();
        assert_eq!(results.len(), 3);
        for result in results {
            let want = fixture[want][result["index"].as_u64().unwrap() as usize].as_f64().unwrap();
            assert!((result["score"].as_f64().unwrap() - want).abs() < 1e-4, "{result} instead of {want}");
        }
        let best = stdout(feed(&with(&ask, &["--top", "1"]), documents.join("\n")));
        assert!(
            best.trim_end().ends_with(results[0]["document"].as_str().unwrap()) && best.lines().count() == 1
        );
    }
    let refused = fails(&["rerank", "x", "y"]);
    assert!(refused.contains("built-in model: qwen3.pooling_type is \"none\""), "{refused}");
}

/// Ids of special tokens that the vocabulary does not have, as some converters write them.
#[test]
fn special_tokens_that_are_not_there_are_ignored_while_unused() {
    let whole = model();
    let nowhere = |key: &str| {
        let mut bytes = whole.clone();
        // After the key, a number of 32 bits: its type, then its value.
        let at = bytes.windows(key.len()).position(|found| found == key.as_bytes()).unwrap() + key.len() + 4;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        temporary("special.gguf", bytes)
    };
    let want = ok(&with(&["run", "Hello!"], &EXACT));
    for key in ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"] {
        assert_eq!(ok(&with(&["run", "Hello!", "-m", &nowhere(key)], &EXACT)), want, "{key}");
    }
}

#[test]
fn messages_quote_nothing_that_steers_a_terminal_or_fills_it() {
    let hostile = "a\x1b]0;title\x07\u{202E}b.gguf";
    let misuse = |seed: &str| misuse(&["run", "--seed", seed, "Hello"]);
    assert!(fails(&["run", "-m", hostile, "Hello"]).contains("a?]0;title??b.gguf"));
    assert!(!misuse(hostile).contains(['\u{1b}', '\u{7}', '\u{202e}']));
    // One argument of Linux holds 128 kB.
    let long = "x".repeat(100_000);
    for text in [fails(&["run", "-m", &long, "Hello"]), misuse(&long)] {
        assert!(text.len() < 5000 && text.contains("characters left out"), "{text}");
    }
}

#[test]
fn a_token_without_a_row_of_the_embedding_is_refused() {
    let mut file = model();
    let name = b"token_embd.weight";
    let at = file.windows(name.len()).position(|bytes| bytes == name).unwrap();
    // Behind the name come the number of dimensions, the columns and the rows.
    let rows = at + name.len() + 4 + 8;
    let fewer = u64::from_le_bytes(file[rows..rows + 8].try_into().unwrap()) - 1;
    file[rows..rows + 8].copy_from_slice(&fewer.to_le_bytes());
    let message = fails(&["run", "-m", &temporary("rows.gguf", file), "Hello"]);
    assert!(message.contains("tensor token_embd.weight is ") && message.contains(", expected "), "{message}");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_as_a_model_and_as_a_part_of_one() {
    let path = temporary("pipe-00001-of-00002.gguf", "");
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(fails(&["inspect", "-m", &path]).contains("must be a regular file"));
    let part = path.replace("00001-of", "00002-of");
    fs::write(&part, model()).unwrap();
    assert!(fails(&["run", "-m", &part, "Hello!"]).contains("must be a regular file"));
    let one = path.replace("-00001-of-00002", "");
    fs::rename(&path, &one).unwrap();
    assert!(fails(&["chat", "-m", &one]).contains("must be a regular file"));
}

#[cfg(target_os = "linux")]
#[test]
fn input_without_end_is_refused() {
    for args in [&["chat"][..], &["run"], &["tokenize"], &["eval", "-"], &["embed"]] {
        let zeros = Stdio::from(fs::File::open("/dev/zero").unwrap());
        let text = failure(&shohin(args).stdin(zeros).output().unwrap(), 1);
        assert!(text.contains("longer than 64.0 MiB"), "{args:?}: {text}");
    }
    assert!(fails(&["run", "-f", "/dev/zero"]).contains("longer than 64.0 MiB"));
}

#[test]
fn a_chat_survives_bytes_that_are_not_utf_8() {
    let input = b"My name is Mira.\n\xff\xfe\xc3\nWhat is my name?\n";
    let output = feed(&with(&["chat"], &EXACT), input);
    assert!(String::from_utf8_lossy(&output.stderr).contains("bytes that are not UTF-8 were replaced"));
    let text = stdout(output);
    assert!(text.lines().last().unwrap().contains("Mira"), "{text}");
}

#[test]
fn json_that_was_cut_off_is_code_3() {
    let args = with(&["run", "--json-object", "-n", "1", "Tell me about a cow."], &EXACT);
    let output = shohin(&args).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..1]), (Some(3), &b"{"[..]), "{errors}");
    assert!(errors.contains("the JSON is incomplete") && errors.contains("--max-tokens"), "{errors}");
    let output = shohin(&with(&args, &["--json"])).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &object["finish_reason"]), (Some(3), &to_json!("length")));
    let chat = feed(&with(&["chat", "--json-object", "-n", "1"], &EXACT), "Tell me about a cow.\n");
    assert!(String::from_utf8_lossy(&chat.stderr).contains("the JSON is incomplete"));
    assert_eq!(chat.status.code(), Some(0));
}

#[test]
fn a_model_is_a_file_on_this_machine() {
    let message = failure(&feed(&["run", "x", "-m", "/dev/stdin"], model()), 1);
    assert!(message.contains("/dev/stdin is a pipe or a device"), "{message}");
    let message = misuse(&["run", "x", "-m", "https://example.org/a.gguf"]);
    assert!(message.contains("curl -LO https://example.org/a.gguf"), "{message}");
}

#[test]
fn options_without_effect_are_remarked_on_and_counts_agree() {
    let args =
        ["run", "Hello!", "--preset", "greedy", "--json", "--stats", "--think=9", "--context", "100000"];
    let output = shohin(&args).output().unwrap();
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        notes.contains("the most this model supports)\n") && notes.contains("--think does nothing"),
        "{notes}"
    );
    let reply: Value = serde_json::from_str(&stdout(output)).unwrap();
    assert!(notes.contains(&format!("; reply {} tokens,", reply["reply_tokens"])), "{notes}");
}

#[test]
fn wrong_values_are_named_with_their_range() {
    let text = temporary("short.txt", "Hello there, little fox.");
    let bytes = temporary("bytes.txt", b"abc\xff");
    let ids = temporary("ids.txt", "1 2 x");
    let high = temporary("high.txt", "1 2 99999999");
    let none = temporary("none.txt", " \n");
    let out = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-such-folder/out");
    let good = temporary("good.txt", "1 2");
    for (args, reason) in [
        (&["run", "x", "--temperature", "-1"][..], "temperature is -1, expected 0 to 100"),
        (&["run", "x", "--top-p", "-1"], "top_p is -1, expected 0 to 1"),
        (&["run", "x", "--dry-base", "0.5"], "dry_base is 0.5, expected 1 to 100"),
        (&["run", "x", "--isa", "abacus"], "--isa is \"abacus\", expected one this machine has: scalar"),
        (&["run", ""], "the prompt is empty"),
        (&["run", "x", "--stop", ""], "length of a stop string is 0, expected at least 1"),
        (&["run", "x", "--temperature", "1e30"], "temperature is 1e30, expected 0 to 100"),
        (&["run", "x", "--context", "3"], "but the context holds 3; --context can raise that"),
        (&["run", "x", "--beams", "2", "--context", "3"], "tokens long, but the context holds 3; --context"),
        (
            &["run", "x", "--overflow", "shift", "--keep", "9999"],
            "--keep 9999 leaves no room in a context of",
        ),
        (&["run", "x", "--draft", "nope"], "--draft: there is no model \"nope\"; expected a file, a folder"),
        (&["run", "x", "--grammar", "a"], "--grammar, a file or a text with ::=: cannot read a"),
        (&["run", "x", "--json-schema", "a"], "--json-schema, a file or a schema: cannot read a"),
        (&["convert", "no-such-folder", "--out", &good], "no-such-folder: No such file or directory"),
        (&["run", "--file", "no-such-file"], "cannot read no-such-file: No such file or directory"),
        (&["run", "--file", &bytes], "expected UTF-8 text, found other bytes at offset 3"),
        (&["logits", "--tokens", &ids], "expected a token id, found \"x\" as number 3"),
        (&["logits", "--tokens", &high], "token 99999999 is not in the vocabulary of"),
        (&["logits", "--tokens", &none], "expected token ids, found none"),
        (&["logits", "--tokens", &high, "--out", &good], "token 99999999 is not in the vocabulary of"),
        (&["logits", "--tokens", &good, "--out", out], "cannot write"),
        (
            &["logits", "--tokens", &good, "--context", "1"],
            "is 2 tokens long, but the context holds 1; --context",
        ),
        (
            &["embed", "a little fox", "-c", "2"],
            "tokens long, but the context holds 2; --context can raise that",
        ),
        (
            &["eval", &text, "--window", "8", "-c", "4"],
            "--window is 8, expected at most 4 with this --context",
        ),
        (&["tokenize", "--decode", "-1"], "expected a token id, found \"-1\""),
        (&["tokenize", "--decode", "9999999"], "token 9999999"),
        (&["eval", &none, "--limit", "1"], "--limit is 1, expected at least 2 tokens"),
        (&["eval", &text, "--window", "999999"], "--window is 999999, expected at most"),
        (
            &["eval", &text, "--window", "8", "--stride", "8"],
            "--stride is 8, expected less than the window of 8",
        ),
    ] {
        // Invalid options are usage errors; their consequences are not.
        let output = shohin(args).output().unwrap();
        let names = ["temperature", "top_p", "dry_base", "--isa is", "stop string", "--window", "--stride"];
        let names = [&names[..], &["--keep", "--grammar", "--json-schema", "--limit"]].concat();
        let code = if names.iter().any(|name| reason.contains(name)) { 2 } else { 1 };
        let message = failure(&output, code);
        assert!(message.contains(reason), "{args:?}: {message}");
    }
    assert_eq!(fs::read_to_string(good).unwrap(), "1 2", "what was there is lost");
    for (input, reason) in [("{}", "is an object"), ("[1]", "other things"), ("[", "not JSON")] {
        assert!(failure(&feed(&["tokenize", "--json"], input), 1).contains(reason));
    }
}

#[test]
fn closing_the_output_is_no_panic() {
    let long = temporary("long.txt", "A long text. ".repeat(20_000));
    let (long, input) = (fs::read_to_string(long).unwrap(), "Hello!\n".repeat(20));
    for (args, input) in
        [(&["tokenize", "--pieces"][..], &long), (&["chat", "-n", "4"], &input), (&["inspect"], &input)]
    {
        let mut command = shohin(args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(141), "{args:?} {errors}");
        assert_eq!(errors, "", "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_reply_and_says_so_by_the_exit_code() {
    let slow = ["--isa", "scalar", "--act", "f32", "--threads", "1"];
    let mut command = shohin(&with(&with(&["run", "Hello!"], &WILD), &slow));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(rest.last(), Some(&b'\n'), "the line is ended");
}

/// With a GPU (in software, if there is no other), the built-in model gives the same replies.
// ---- devices

#[test]
fn devices_are_listed() {
    let listed = ok(&["inspect", "--devices"]);
    let cpu = listed.lines().next().unwrap();
    assert!(
        cpu.trim().starts_with("cpu ") && cpu.contains(Isa::detect().name()) && cpu.contains("core"),
        "{listed}"
    );
    for name in ["cuda", "metal", "gpu"] {
        assert!(listed.lines().any(|line| line.trim().starts_with(name)), "{listed}");
    }
    let all = json(&["inspect", "--devices", "--json"]);
    let all = all["devices"].as_array().unwrap();
    assert_eq!(all.len(), listed.lines().count());
    assert!(all[0]["device"] == "cpu" && all[0]["usable"] == true);
    let both = shohin(&["inspect", "--devices", "--tensors"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}

/// Where there is no other device, the automatic choice is the CPU, and one line says why if it was asked for.
#[test]
fn without_another_device_auto_is_the_cpu() {
    let devices = json(&["inspect", "--devices", "--json"]);
    let devices = devices["devices"].as_array().unwrap();
    if devices.iter().skip(1).any(|device| device["usable"] == true && device["software"] == false) {
        println!("SKIPPED: there is a GPU");
        return;
    }
    let ask = ["run", "What does a cow say?", "--preset", "greedy"];
    let want = ok(&ask);
    let auto = shohin(&with(&ask, &["--device", "auto"])).output().unwrap();
    let said = String::from_utf8(auto.stderr.clone()).unwrap();
    assert_eq!(said.lines().filter(|line| line.starts_with("(on the CPU: ")).count(), 1, "{said}");
    assert_eq!(stdout(auto), want);
    // Nobody asked.
    let silent = shohin(&ask).env_remove("SHOHIN_DEVICE").output().unwrap();
    assert!(!String::from_utf8_lossy(&silent.stderr).contains("on the CPU"));
    assert_eq!(stdout(silent), want);
    // Nothing else was tried.
    let split = shohin(&with(&ask, &["--device", "auto", "--split", "tensor:2"])).output().unwrap();
    let said = String::from_utf8(split.stderr.clone()).unwrap();
    assert!(said.starts_with("(on the CPU: a model that is split ") && said.lines().count() == 1, "{said}");
    assert_eq!(stdout(split), want);
    let wrong = shohin(&ask).env("SHOHIN_DEVICE", "abacus").output().unwrap();
    assert!(failure(&wrong, 2).contains("expected auto, cpu, gpu"));
}

/// A driver that is absent, or a program without the device, is one line.
#[test]
fn devices_that_are_absent_are_one_line() {
    let absent = |device: &str| {
        let out = shohin(&["run", "Hi", "--max-tokens", "1", "--device", device]).output().unwrap();
        (!out.status.success()).then(|| failure(&out, 1))
    };
    let cuda = if cfg!(feature = "cuda") { "there is no NVIDIA driver" } else { "--features cuda" };
    if cfg!(not(feature = "gpu")) {
        let line = absent("gpu").unwrap();
        assert!(line.contains("without wgpu") && line.contains("`--features gpu"), "{line}");
    }
    for (device, problem) in [("cuda", cuda), ("metal", "--features metal")] {
        match absent(device) {
            Some(line) => assert!(line.contains(problem), "{line}"),
            None => println!("SKIPPED: there is {device}"),
        }
    }
    let unknown = shohin(&["run", "Hi", "--device", "tpu"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("expected auto, cpu, gpu"));
}

#[test]
fn a_split_model_says_what_the_whole_one_says() {
    let ask = ["run", "What does a cow say?", "--preset", "greedy", "--max-tokens", "40"];
    let want = ok(&ask);
    for way in ["tensor:2", "pipeline:2"] {
        assert_eq!(ok(&with(&ask, &["--split", way])), want, "{way}");
    }
    assert!(fails(&with(&ask, &["--split", "tensor:60"])).contains("key-value heads"));
    let without = shohin(&with(&ask, &["--split", "tensor"])).output().unwrap();
    assert_eq!(without.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&without.stderr).contains("pipeline:N"));
    // Each of two processes that mpirun starts would run all ranks.
    if cfg!(not(feature = "mpi")) {
        let mut started = shohin(&with(&ask, &["--split", "tensor:2"]));
        let refused = failure(&started.env("OMPI_COMM_WORLD_SIZE", "2").output().unwrap(), 1);
        assert!(refused.contains("--features mpi"), "{refused}");
    }
}

#[cfg(feature = "gpu")]
#[test]
fn a_gpu_says_what_the_cpu_says() {
    let ask = ["run", "What does a cow say?", "--preset", "greedy"];
    let shohin = |more: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_shohin")).args(ask).args(more).output().unwrap();
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (_, complaint) = shohin(&["--gpu"]);
    let gpu = match complaint.split_once("GPUs of this machine: ") {
        // A name may contain a comma; its first word does not.
        Some((_, names)) => format!("--gpu={}", names.split([' ', ',', '\n']).next().unwrap()),
        None => "--gpu".into(),
    };
    let base = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf")).unwrap();
    let base = Gguf::parse(&base).unwrap();
    let lora = temporary("gpu-lora.gguf", Adapter::random(&base, &["blk."], 4, 0.05, 1).to_vec());
    let adapted = ["--lora", &lora, "--act", "f32", "-n", "8"];
    // With a configuration that differs from the file's, and with an adapter, too.
    let replies = [&[][..], &["--rope-base", "10"], &adapted].map(|more| {
        let (want, _) = shohin(more);
        let (said, complaint) = shohin(&with(more, &[&gpu]));
        assert_eq!(said, want, "{complaint}");
        said
    });
    assert!(replies[0] != replies[1] && !replies[0].starts_with(replies[2].trim_end()));
    let refused = Command::new(env!("CARGO_BIN_EXE_shohin")).args(["inspect", "--gpu"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn beams_are_searched_for_the_likeliest_reply() {
    let ask = ["run", "--raw", "Once upon a time", "-n", "8"];
    let found = json(&with(&ask, &["--beams", "3", "--json"]));
    let beams = found["beams"].as_array().unwrap();
    let scores: Vec<f64> = beams.iter().map(|beam| beam["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{found}");
    let best = beams[0]["text"].as_str().unwrap();
    assert_eq!(ok(&with(&ask, &["--beams", "3"])), format!("{best}\n"));
    // One beam is the greedy reply, and three are at least as likely.
    let greedy = json(&with(&ask, &["--beams", "1", "--json"]));
    assert_eq!(greedy["beams"][0]["text"], json(&with(&ask, &["--preset", "greedy", "--json"]))["text"]);
    assert!(scores[0] >= greedy["beams"][0]["score"].as_f64().unwrap());
    // As a chat, too.
    assert!(!ok(&["run", "What does a cow say?", "-n", "8", "--beams", "2"]).trim().is_empty());
    for (wrong, named) in [
        (&["--beams", "65"][..], "65 is not in 1..=64"),
        (&["--beams", "2", "--temperature", "1"], "'--temperature <T>'"),
        (&["--length-penalty", "2"], "--beams <N>"),
    ] {
        let output = shohin(&with(&ask, wrong)).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && text.contains(named), "{text}");
    }
}

// ---- form of the reply

const FORM: &str = r#"{"type":"object","properties":{"animal":{"enum":["cow","cat"]},"legs":{"type":"integer","minimum":0,"maximum":8}},"required":["animal","legs"]}"#;

#[test]
fn replies_satisfy_a_schema_from_a_file_or_the_command_line() {
    let file = temporary("form.json", FORM);
    for schema in [FORM, file.as_str()] {
        for more in [&["--preset", "greedy"][..], &WILD] {
            let args = with(&["run", "Tell me about a cow.", "-n", "60", "--json-schema", schema], more);
            let reply = json(&args);
            assert!(["cow", "cat"].contains(&reply["animal"].as_str().unwrap()), "{reply}");
            assert!(reply["legs"].as_u64().unwrap() <= 8, "{reply}");
        }
    }
    // In the order of the schema, and with white space only on request.
    let args = ["run", "Tell me about a cow.", "-n", "60", "--json-schema", FORM, "--seed"];
    let replies = |more: &[&str]| {
        ["1", "2", "3", "4"].map(|seed| stdout(shohin(&with(&with(&args, &[seed]), more)).output().unwrap()))
    };
    for reply in replies(&[]) {
        assert!(reply.starts_with(r#"{"animal":"c"#) && !reply.trim_end().contains([' ', '\n']), "{reply}");
    }
    let spaced = replies(&["--json-whitespace", "--temperature", "2"]);
    assert!(spaced.iter().any(|reply| reply.trim_end().contains([' ', '\n'])), "{spaced:?}");
    let args = with(&["run", "Hello", "-n", "30", "--json-object"], &WILD);
    assert!(json(&args).is_object());
    // Both turns of a chat.
    let args = ["chat", "-n", "40", "--json-schema", FORM, "--seed", "3"];
    let replies = stdout(feed(&args, "Hello\nAnd a cat?\n"));
    let replies = serde_json::Deserializer::from_str(&replies).into_iter::<Value>();
    assert_eq!(replies.map(|reply| reply.unwrap()["legs"].is_u64()).collect::<Vec<_>>(), [true, true]);
}

#[test]
fn replies_are_choices_or_fit_an_expression_or_a_grammar() {
    let ask = |more: &[&str]| ok(&with(&with(&["run", "How many legs has a cow?", "-n", "40"], &WILD), more));
    let choice = ask(&["--choice", "four", "--choice", "four and a half"]);
    assert!(["four", "four and a half"].contains(&choice.trim_end_matches('\n')), "{choice}");
    let date = ask(&["--regex", r"\d{4}-[01]\d"]);
    assert!(date.len() == 8 && date.as_bytes()[4] == b'-', "{date:?}");
    let grammar = "root ::= (\"- \" [a-z ]{1,9} \"\\n\"){2,3} end\nend ::= \"!\"";
    for given in [grammar, &temporary("list.gbnf", grammar)] {
        let list = ask(&["--grammar", given]);
        let lines: Vec<&str> = list.lines().collect();
        assert!((3..=4).contains(&lines.len()) && lines.last() == Some(&"!"), "{list:?}");
        assert!(lines[..lines.len() - 1].iter().all(|line| line.starts_with("- ")), "{list:?}");
    }
    for (given, message) in [
        (["--regex", "a(?=b)"], "--regex: regex is \"a(?=b)\", which is not supported"),
        (["--grammar", "root ::= a"], "--grammar: line 1 of the grammar uses a rule that is missing: a"),
        (["--choice", ""], "--choice: choices must be texts"),
    ] {
        let says = misuse(&with(&["run", "x", "-m", "absent.gguf"], &given));
        assert!(says.contains(message), "{says}");
    }
}

#[test]
fn a_schema_that_cannot_be_kept_to_is_refused_before_the_model_is_loaded() {
    let says = misuse(&["run", "x", "-m", "absent.gguf", "--json-schema", r#"{"items":{"contains":{}}}"#]);
    assert_eq!(
        says,
        "shohin: --json-schema: /items/contains is \"{}\", which is not supported; expected a schema without it\n"
    );
    assert!(
        misuse(&["run", "x", "--json-schema", "{\"type\":"])
            .contains("--json-schema: JSON ends at byte 8, expected a value")
    );
    let says = misuse(&["run", "x", "--json-schema", "{bad"]);
    assert!(says.contains("JSON at byte 1 is 'b', expected a name in double quotes or }"), "{says}");
    assert!(misuse(&["run", "x", "--json-schema", "absent.json"]).contains("absent.json"));
    assert!(misuse(&["run", "x", "--tools", "{}"]).contains("--tools: not a JSON array"));
    assert!(misuse(&["run", "x", "--tools", "[{}]"]).contains("tool 0: key \"name\" is missing"));
    let args = ["run", "x", "--tools", r#"[{"name":"a"}]"#, "--tool-choice", "b"];
    assert_eq!(misuse(&args), "shohin: --tool-choice: no tool is called \"b\"\n");
    let args = ["run", "x", "--tools", "[]", "--tool-choice", "required"];
    assert_eq!(misuse(&args), "shohin: --tool-choice is \"required\", but there are no tools\n");
    assert!(misuse(&["run", "x", "--json-schema", "false"]).contains("--json-schema"));
    let both = ["run", "x", "--json-object", "--json-schema", "{}"];
    assert_eq!(shohin(&both).output().unwrap().status.code(), Some(2));
}

#[test]
fn calls_of_tools_have_arguments_that_fit() {
    let tools = r#"[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},"required":["a","b"],"additionalProperties":false}}},{"name":"now"}]"#;
    let shape = Shape { context: 2048, ..Shape::tiny() };
    let model = Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let model = temporary("tools.gguf", model);
    for (choice, names) in [("required", &["add", "now"][..]), ("add", &["add"])] {
        let args =
            ["run", "Add!", "-m", &model, "--tools", tools, "--tool-choice", choice, "-n", "150", "--json"];
        let reply = json(&with(&args, &WILD));
        let calls = reply["tool_calls"].as_array().unwrap();
        assert!(!calls.is_empty(), "{reply}");
        for call in calls {
            assert!(names.contains(&call["name"].as_str().unwrap()), "{call}");
            let arguments = call["arguments"].as_object().unwrap();
            let fits = arguments.len() == 2 && arguments["a"].is_i64() && arguments["b"].is_boolean();
            assert!(call["name"] == "now" || fits, "{call}");
        }
    }
    // Beside a form, a reply is calls or has it.
    let args = ["run", "Add!", "-m", &model, "--tools", tools, "--choice", "yes", "-n", "150", "--json"];
    let mut ways = [0, 0];
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let hot = ["--temperature", "50", "--top-k", "0", "--top-p", "1", "--seed", seed];
        let reply = json(&with(&args, &hot));
        let calls = reply["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(reply["text"] == "yes", calls == 0, "{reply}");
        ways[usize::from(calls > 0)] += 1;
    }
    assert!(ways[0] > 0 && ways[1] > 0, "{ways:?}");
    // The built-in model has no template for calls.
    assert!(fails(&["run", "Add!", "--tools", tools]).contains("this model's chat template has no tools"));
    let reply = json(&[
        "run",
        "Add!",
        "--tools",
        tools,
        "--tools-in-prompt",
        "--tool-choice",
        "add",
        "--json",
        "-n",
        "99",
    ]);
    assert_eq!(reply["tool_calls"][0]["name"], "add", "{reply}");
}

#[cfg(unix)]
const ADD: &str = r#"[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}}]"#;

/// What a chat gets as the results of a shell script.
#[cfg(unix)]
fn results_of(name: &str, script: &str) -> Vec<String> {
    let shape = Shape { context: 2048, ..Shape::tiny() };
    let model = Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap();
    let model = temporary(&format!("{name}.gguf"), model);
    let saved = temporary(&format!("{name}.json"), "");
    fs::remove_file(&saved).unwrap();
    let program = temporary(&format!("{name}.sh"), format!("#!/bin/sh\n{script}\n"));
    Command::new("chmod").args(["+x", &program]).status().unwrap();
    let tool = format!("add={program}");
    let chat = ["chat", "-m", &model, "--tools", ADD, "--tool-choice", "required", "-n", "150"];
    let chat = with(&with(&chat, &WILD), &["--tool", &tool, "--yes"]);
    stdout(feed(&chat, format!("Add!\n/save {saved}\n")));
    let messages: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let results = messages["messages"].as_array().unwrap().iter().filter(|m| m["role"] == "tool");
    let results: Vec<String> = results.map(|m| m["content"].as_str().unwrap().into()).collect();
    assert!(!results.is_empty());
    results
}

/// The output stays open as long as any of them runs.
#[cfg(unix)]
#[test]
fn a_call_ends_with_its_program_whatever_that_has_started() {
    let pipe = temporary("open.fifo", "");
    fs::remove_file(&pipe).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let open = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    for result in results_of("started", &format!("exec 3<>{pipe}\n(sleep 20; echo late) &\necho started")) {
        assert_eq!(result, "started");
    }
    // All that had it open have been ended.
    assert_eq!(open.join().unwrap(), b"");
    let results = results_of("interrupted", "echo begun\nkill -INT $PPID\nsleep 20\necho late");
    assert!(results.iter().all(|result| result == "error: the user stopped this call"), "{results:?}");
    #[cfg(target_os = "linux")]
    {
        // In a session of its own it is not ended, but not waited for either.
        // Its standard error would keep the one of this test open.
        let flag = temporary("detached.flag", "");
        let waits = format!("while [ -e {flag} ]; do sleep 0.1; done; echo late");
        let results = results_of("detached", &format!("setsid sh -c '{waits}' 2>&- &\necho started"));
        assert!(results.iter().all(|result| result == "started"), "{results:?}");
        fs::remove_file(&flag).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_chat_runs_the_programs_of_functions_that_may_run() {
    let tools = ADD;
    let shape = Shape { context: 2048, ..Shape::tiny() };
    let model = temporary("programs.gguf", Model::new(shape, Stored::new(Format::Q1_0), 1).to_vec().unwrap());
    let saved = temporary("programs.json", "");
    let chat = ["chat", "-m", &model, "--tools", tools, "--tool-choice", "required", "-n", "150"];
    let chat = with(&chat, &WILD);
    let wrong = temporary("program.sh", "#!/bin/sh\necho half\nexit 3\n");
    Command::new("chmod").args(["+x", &wrong]).status().unwrap();
    let wrong = format!("add={wrong}");
    // A file that may not be run.
    let mute = format!("add={}", temporary("mute.sh", ""));
    for (more, result) in [
        // The program gives its arguments back.
        (&["--tool", "add=/bin/cat", "--yes"][..], "{\"a\""),
        (&["--tool", &mute, "--yes"], "error: cannot run "),
        (&["--tool", "add=no-such-program", "--yes"], "error: cannot run no-such-program"),
        (&["--tool", &wrong, "--yes"], "error: exit status: 3\nhalf"),
        (&["--tool", "add=/usr/bin/yes", "--yes"], "error: the result is larger than 65536 bytes"),
        // Nobody can be asked.
        (&["--tool", "add=/bin/cat"], "error: the user refused this call"),
    ] {
        fs::remove_file(&saved).unwrap();
        let output = feed(&with(&chat, more), format!("Add!\n/save {saved}\n"));
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{notes}");
        let messages: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
        let messages = messages["messages"].as_array().unwrap();
        let roles: Vec<&str> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        let calls = roles.iter().filter(|role| **role == "tool").count();
        assert!(
            calls > 0 && roles[..2] == ["user", "assistant"] && roles.last() == Some(&"assistant"),
            "{roles:?}"
        );
        let results = messages.iter().filter(|m| m["role"] == "tool").map(|m| m["content"].as_str().unwrap());
        results.for_each(|content| assert!(content.starts_with(result), "{content}"));
        let done = if more.contains(&"--yes") { "(runs add {" } else { "(refused: add {" };
        assert_eq!(notes.matches(done).count(), calls, "{notes}");
    }
    assert!(
        misuse(&with(&chat, &["--tool", "sub=/bin/cat"]))
            .contains("no function of --tools is called \"sub\"")
    );
    let none = misuse(&with(&chat, &["--tool", "add=/no/program", "--yes"]));
    assert!(none.contains("--tool: there is no program /no/program"), "{none}");
    let twice = misuse(&with(&chat, &["--tool", "add=/bin/cat", "--tool", "add=/bin/true"]));
    assert!(twice.contains("\"add\" has two programs"), "{twice}");
}

/// A server that listens, its first line, and its address.
#[cfg(unix)]
fn serving(args: &[&str]) -> (std::process::Child, String, String) {
    use std::io::{BufRead, BufReader};
    let mut server = shohin(&with(&["serve", "--port", "0"], args));
    let mut child = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    let address = line.split("http://").nth(1).unwrap().split("/v1").next().unwrap().into();
    (child, line, address)
}

/// The answer to a request by hand.
#[cfg(unix)]
fn asked(address: &str, path: &str, body: &str) -> Value {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap()
}

/// From the start to SIGTERM.
#[cfg(unix)]
#[test]
fn serve_answers_and_ends_when_it_is_asked_to() {
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let key = temporary("key", "k\n");
    let (mut child, _, address) = serving(&[nano, "--api-key-file", &key]);
    let mut keyless = std::net::TcpStream::connect(&address).unwrap();
    keyless.write_all(b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    keyless.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 401"), "{answer}");
    let body = r#"{"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}"#;
    let reply = asked(&address, "/v1/chat/completions", body);
    let want = ok(&["run", "Hello!", "--preset", "greedy", "-m", nano]);
    assert_eq!(reply["choices"][0]["message"]["content"], want.trim());
    assert_eq!(reply["model"], "sprout-nano");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    for (option, value, says) in [("--cors", "example.com", "origin"), ("--api-key", "a b", "ASCII")] {
        let error = failure(&shohin(&["serve", option, value]).output().unwrap(), 2);
        assert!(error.contains(says), "{error}");
    }
    let keys = temporary("keys", "k\nl\n");
    let error = misuse(&["serve", "--api-key-file", &keys]);
    assert!(error.contains("expected one line with the key, found 2"), "{error}");
    let error = failure(&shohin(&["serve", "--cors", "*", "--cors", "https://a.com"]).output().unwrap(), 2);
    assert!(error.contains("\"*\" is one of several, expected it alone"), "{error}");
    // Before the model is loaded; the address is of no machine.
    let elsewhere = fails(&["serve", "-m", "absent.gguf", "--host", "192.0.2.1", "--api-key", "k"]);
    assert!(elsewhere.contains("cannot listen at 192.0.2.1"), "{elsewhere}");
    // The most is what a device takes with the most replies at once.
    let many = ["-m", nano, "--parallel", "64", "--prompt-tokens"];
    let refusal = misuse(&with(&["serve"], &with(&many, &["65473"])));
    assert!(refusal.contains("65473 is not in 1..=65472"));
    let (mut child, line, _) = serving(&with(&many, &["65472"]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("serving"), "{line}");
}

/// As `run` says it, by a name that clients have.
#[cfg(unix)]
#[test]
fn serve_has_several_models_and_names() {
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let also = format!("small={nano}");
    let (mut child, _, address) = serving(&[
        "--host",
        "localhost",
        "--api-key",
        "k",
        "--name",
        "sprout",
        "--name",
        "gpt-4o",
        "--also",
        &also,
    ]);
    let [own, other] = [&[][..], &["-m", nano]]
        .map(|model| ok(&with(&["run", "Hello!", "--preset", "greedy"], model)).trim().to_string());
    for (name, answers, want) in [("gpt-4o", "sprout", &own), ("small", "small", &other)] {
        let message =
            r#""messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "surprise": 1"#;
        let reply = asked(&address, "/v1/chat/completions", &format!(r#"{{{message}, "model": "{name}"}}"#));
        assert_eq!(reply["choices"][0]["message"]["content"].as_str().unwrap().trim(), *want);
        assert_eq!(reply["model"], answers);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let misused = misuse(&["serve", "--log", "loud"]);
    assert!(misused.contains("expected off, error, warn, info, debug or trace"), "{misused}");
}

/// Each reply is what `run --lora` says.
#[cfg(unix)]
#[test]
fn serve_applies_adapters_where_a_request_asks_for_them() {
    let base = model();
    let base = Gguf::parse(&base).unwrap();
    let adapter = |seed| Adapter::random(&base, &["blk."], 4, 0.1, seed).to_vec();
    let dir = tempfile::tempdir().unwrap();
    let [poet, sql] = ["poet.gguf", "sql.gguf"].map(|name| dir.path().join(name).display().to_string());
    fs::write(&poet, adapter(1)).unwrap();
    fs::write(&sql, adapter(2)).unwrap();
    let text = "What does a cow say?";
    let run = |lora: &[&str]| {
        let greedy = ["run", text, "--preset", "greedy", "-n", "16"];
        let loras: Vec<&str> = lora.iter().flat_map(|one| ["--lora", one]).collect();
        ok(&with(&greedy, &loras)).trim().to_string()
    };
    let (named, half) = (format!("poet={poet}"), format!("{sql}=0.5"));
    let folder = dir.path().display().to_string();
    let (mut child, line, address) = serving(&["--lora", &named, "--lora-dir", &folder, "--api-key", "k"]);
    assert!(line.starts_with("serving sprout (") && line.contains(", poet on request)"), "{line}");
    asked(&address, "/v1/adapters", r#"{"name": "sql", "path": "sql.gguf", "scale": 0.5}"#);
    for (fields, lora) in [
        ("", &[][..]),
        (r#", "model": "sprout:poet""#, &[&*poet]),
        (r#", "model": "sql""#, &[&*half]),
        (r#", "lora": [{"name": "poet"}, {"id": 1}]"#, &[&*poet, &*half]),
    ] {
        let message = format!(r#""messages": [{{"role": "user", "content": "{text}"}}]"#);
        let body = format!(r#"{{{message}, "temperature": 0, "max_tokens": 16{fields}}}"#);
        let reply = asked(&address, "/v1/chat/completions", &body);
        let said = reply["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(said.trim(), run(lora), "{fields}");
    }
    child.kill().unwrap();
    child.wait().unwrap();

    // One without a name applies to all.
    let (mut child, line, address) = serving(&["--lora", &half, "--lora", &named]);
    assert!(line.contains("sql.gguf at 0.5, poet on request)"), "{line}");
    let body = format!(r#"{{"prompt": "{text}", "model": "poet", "temperature": 0, "max_tokens": 8}}"#);
    let both = asked(&address, "/v1/completions", &body);
    let raw = ["run", text, "--raw", "--preset", "greedy", "-n", "8", "--lora", &half, "--lora", &poet];
    assert_eq!(both["choices"][0]["text"].as_str().unwrap().trim(), ok(&raw).trim());
    child.kill().unwrap();
    child.wait().unwrap();

    assert!(misuse(&["serve", "--lora", &named, "--lora", &named]).contains("\"poet\" already"));
    assert!(fails(&["serve", "--port", "0", "--lora", "poet=absent.gguf"]).contains("absent.gguf"));
    assert!(fails(&["serve", "--port", "0", "--lora-dir", &poet]).contains("the folder of adapters"));
    assert!(misuse(&["serve", "--lora", &format!("{named}=many")]).contains("NAME=FILE=SCALE"));
    assert!(misuse(&["run", "x", "--lora", &named]).contains("FILE=SCALE, whose scale"));
}
