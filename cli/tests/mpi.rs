//! Models split among processes, with Open MPI's `mpirun` on this machine.
#![cfg(all(feature = "mpi", target_os = "linux"))]

use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that a job takes, also one that fails.
const LIMIT: Duration = Duration::from_secs(120);

const QUESTION: &str = "What does a cow say?";

/// Greedy replies of the smallest model there is, by one thread of each rank.
const GREEDY: [&str; 6] = ["--preset", "greedy", "--device", "cpu", "--threads", "1"];

fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("SKIPPED: no mpirun; it is Debian's package openmpi-bin");
    }
    found
}

fn prepared(mut command: Command) -> Command {
    command.env("SHOHIN_WEIGHT_CACHE", "none").env_remove("SHOHIN_DEVICE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn shohin(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
    command.args(args);
    prepared(command)
}

/// A job whose ranks have these arguments.
fn job(ranks: &[&[&str]]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe"]);
    for (rank, args) in ranks.iter().enumerate() {
        command.args(if rank == 0 { &["-n", "1"][..] } else { &[":", "-n", "1"] });
        command.arg(env!("CARGO_BIN_EXE_shohin")).args(*args);
    }
    prepared(command)
}

/// Runs it to its end, with a text as its input.
fn finish(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // Jobs that fail do not read it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    finish_child(child)
}

fn finish_child(child: Child) -> Output {
    let (pid, (sender, receiver)) = (child.id().to_string(), channel());
    thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    receiver.recv_timeout(LIMIT).unwrap_or_else(|_| {
        let _ = Command::new("kill").arg(&pid).status();
        panic!("the job hangs: {:?}", receiver.recv_timeout(LIMIT))
    })
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The arguments of ranks that differ in nothing.
fn alike<'a>(ranks: usize, args: &'a [&'a str]) -> Vec<&'a [&'a str]> {
    vec![args; ranks]
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

/// Every logit of a prompt of several parts; to the bit those of one device, or of ranks that are threads.
#[test]
fn logits_have_the_bits_of_one_process() {
    if !has_mpirun() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let ids: Vec<String> = (0..300).map(|i| (i * 31 % 2048).to_string()).collect();
    fs::write(&tokens, ids.join(" ")).unwrap();
    let logits = |name: &str, split: &[&str], ranks: usize| {
        let out = dir.path().join(name);
        let args = ["logits", "--threads", "1", "--tokens", tokens.to_str().unwrap()];
        let args = with(&args, &["--device", "cpu", "--out", out.to_str().unwrap()]);
        let args = with(&args, split);
        stdout(&finish(if ranks == 1 { shohin(&args) } else { job(&alike(ranks, &args)) }, ""));
        fs::read(out).unwrap()
    };
    let one = logits("one", &[], 1);
    assert_eq!(one.len(), 300 * 2048 * 4);
    for (way, ranks) in [("tensor:2", 2), ("pipeline:2", 2), ("pipeline:3", 3)] {
        assert!(logits(way, &["--split", way], ranks) == one, "{way}");
    }
    let reduce = ["--split", "tensor-reduce:2"];
    let threads = logits("threads", &reduce, 1);
    assert!(threads != one);
    assert!(logits("processes", &reduce, 2) == threads);
}

#[test]
fn replies_are_those_of_one_process() {
    if !has_mpirun() {
        return;
    }
    let ask = with(&["run", QUESTION, "--max-tokens", "16", "--json", "--logprobs", "2"], &GREEDY);
    let reply = |command: Command| {
        let mut reply: Value = serde_json::from_str(&stdout(&finish(command, ""))).unwrap();
        let text = reply["text"].as_str().unwrap().to_string();
        assert!(!text.is_empty());
        (text, reply["tokens"].take(), reply["logprobs"].take())
    };
    let one = reply(shohin(&ask));
    for way in ["tensor:2", "pipeline:2"] {
        assert_eq!(reply(job(&alike(2, &with(&ask, &["--split", way])))), one, "{way}");
    }
    let reduce = with(&ask, &["--split", "tensor-reduce:2"]);
    assert_eq!(reply(job(&alike(2, &reduce))), reply(shohin(&reduce)));
    // A second sequence takes the place of the first.
    let guesses = with(&ask[..4], &with(&GREEDY, &["--speculate"]));
    let said = stdout(&finish(job(&alike(2, &with(&guesses, &["--split", "tensor:2"]))), ""));
    assert_eq!(said.trim_end(), one.0.trim_end());
}

#[test]
fn other_commands_run_in_ranks() {
    if !has_mpirun() {
        return;
    }
    let bench = ["bench", "--prefill", "80", "--decode", "4", "--verify", "3", "--repeat", "1", "--json"];
    let bench = with(&bench, &["--split", "tensor:2", "--threads", "1"]);
    let found: Value = serde_json::from_str(&stdout(&finish(job(&alike(2, &bench)), ""))).unwrap();
    assert_eq!(found["results"].as_array().unwrap().len(), 3);
    let embed = ["embed", "a cow", "--threads", "1", "--device", "cpu"];
    let said = stdout(&finish(job(&alike(2, &with(&embed, &["--split", "pipeline:2"]))), ""));
    assert_eq!(said.replace('\r', ""), stdout(&finish(shohin(&embed), "")));
}

/// Ranks that cannot run say so, all of them, and end.
#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    if !has_mpirun() {
        return;
    }
    let split = ["run", QUESTION, "--split", "tensor:2", "--threads", "1"];
    let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout-nano.gguf");
    let (other, missing) = (with(&split, &["-m", nano]), with(&split, &["-m", "missing.gguf"]));
    let (q8, one) = (with(&split, &["--kv", "q8"]), ["run", QUESTION]);
    let pipeline = ["run", QUESTION, "--split", "pipeline:2", "--threads", "1"];
    let (many, beams) = (["run", QUESTION, "--split", "tensor:64"], with(&split, &["--beams", "2"]));
    let draft = with(&split, &["--draft", nano]);
    let check = ["check", "--split", "tensor:2"];
    let cases: [(Vec<&[&str]>, &str, usize); 10] = [
        (alike(3, &split), "split is \"tensor:2\", expected one among the 3 MPI ranks", 3),
        (alike(2, &one), "split is \"none\", expected one among the 2 MPI ranks", 2),
        (alike(2, &many), "split is \"tensor:64\", expected one among the 2 MPI ranks", 2),
        (vec![&split, &q8], "rank 1: kv is q8, expected kv is f16 as on rank 0", 2),
        (vec![&split, &pipeline], "rank 1: split is pipeline:2, expected split is tensor:2 as on rank 0", 2),
        (vec![&split, &other], "rank 1: the model is a file of ", 2),
        (vec![&split, &missing], "rank 1: cannot open the model missing.gguf", 2),
        (vec![&missing, &split], "cannot open the model missing.gguf", 1),
        (alike(2, &beams), "beam search runs on one device", 1),
        (alike(2, &draft), "MPI ranks hold one model, and have one already", 1),
    ];
    let refused = |ranks: &[&[&str]], problem: &str, lines: usize| {
        let output = finish(job(ranks), "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{problem}: {output:?}");
        assert_eq!(said.matches(problem).count(), lines, "{problem}: {said}");
    };
    // A job is a second of waiting.
    thread::scope(|scope| {
        for (ranks, problem, lines) in &cases {
            scope.spawn(move || refused(ranks, problem, *lines));
        }
    });
    // Open MPI may end a rank before it has said so, too.
    let output = finish(job(&alike(2, &check)), "");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("run one of the commands run, chat, bench"),
        "{output:?}"
    );
    // One rank is no group.
    assert!(finish(job(&alike(1, &["check"])), "").status.success());
}

/// The process of rank 1 of the job with this mark in its environment.
fn rank_1(mark: &str) -> Option<u32> {
    let of_job = |process: &Path| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        let has = |what: &str| environment.split(|&byte| byte == 0).any(|one| one == what.as_bytes());
        has(mark) && has("OMPI_COMM_WORLD_RANK=1")
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let found: Option<PathBuf> = processes.into_iter().find(|process| of_job(process));
    found?.file_name()?.to_str()?.parse().ok()
}

/// Killed in the middle of a reply, the job ends; the conversation goes on from its file, in one process or in other ranks,
/// with the reply of a conversation that was never interrupted.
#[test]
fn a_killed_rank_ends_the_job_and_the_session_goes_on() {
    if !has_mpirun() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (session, copy) = (dir.path().join("session"), dir.path().join("copy"));
    // Slow, so that a reply can be interrupted.
    let chat = ["chat", "--isa", "scalar", "--act", "f32", "--max-tokens", "60"];
    let chat = with(&chat, &GREEDY);
    let messages = ["What does a cow say?", "Tell me a long story about a dog."];

    let both = stdout(&finish(shohin(&chat), &format!("{}\n{}\n", messages[0], messages[1])));
    let first = stdout(&finish(shohin(&chat), &format!("{}\n", messages[0])));
    let want = both.strip_prefix(&first).unwrap();
    assert!(want.len() > 100, "{want}");

    let mark = format!("SHOHIN_TEST_JOB={}", std::process::id());
    let kept = with(&chat, &["--session", session.to_str().unwrap()]);
    let ranks = with(&kept, &["--split", "tensor:2"]);
    let mut command = job(&alike(2, &ranks));
    let (name, value) = mark.split_once('=').unwrap();
    let mut child = command.env(name, value).stdin(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    writeln!(input, "{}", messages[0]).unwrap();
    let start = Instant::now();
    while !session.exists() {
        assert!(start.elapsed() < LIMIT, "no session after the first reply: {:?}", child.try_wait());
        thread::sleep(Duration::from_millis(5));
    }
    let mut said = String::new();
    let mut until = |len: usize| {
        while said.replace('\r', "").trim_end().len() < len {
            let mut bytes = [0; 64];
            let count = output.read(&mut bytes).unwrap();
            assert!(count > 0, "the reply ends: {said:?}");
            said.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    until(first.trim_end().len());
    writeln!(input, "{}", messages[1]).unwrap();
    until(first.len() + 4);
    let pid = rank_1(&mark).expect("rank 1 runs").to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let broken = finish_child(child);
    assert!(!broken.status.success(), "{broken:?}");

    // On one device, and in ranks again.
    fs::copy(&session, &copy).unwrap();
    let output = finish(shohin(&kept), &format!("{}\n", messages[1]));
    let note = String::from_utf8_lossy(&output.stderr);
    assert!(note.contains("(resumed after 2 messages)"), "the second reply was complete: {note}");
    assert_eq!(stdout(&output), want);
    let again = with(&chat, &["--session", copy.to_str().unwrap(), "--split", "pipeline:2"]);
    let said = stdout(&finish(job(&alike(2, &again)), &format!("{}\n", messages[1]))).replace('\r', "");
    assert!(said.contains(want.trim_end()), "{said:?}");
}
