//! Resident memory of `shohin run`: at most what `inspect` plans for the model, the pages of the program's own file, and 10 MB.
//! An optimized program has 6 MB of pages, which makes 16 MB together. Prompts come on top, as docs/SECURITY.md says. (`bench` takes
//! another buffer, as large as the weights, to measure memory bandwidth.)
#![cfg(target_os = "linux")]

use serde_json::Value;
use shohin_core::Format;
use shohin_tests::model::{Model, Shape, Stored};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const MB: u64 = 1_000_000;
/// The vocabulary, libraries, and what threads take.
const BESIDES: u64 = 10 * MB;

fn shohin(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shohin"));
    command.args(args).args(["--threads", "2"]).env("SHOHIN_WEIGHT_CACHE", "none");
    command
}

/// What `inspect` plans for weights and a session.
fn planned(options: &[&str]) -> u64 {
    let output = shohin(&[&["inspect", "--json"], options].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    ["weights", "session"].map(|key| found["memory"][key].as_u64().unwrap()).iter().sum()
}

/// Resident pages of the program's own file: two to four times as many in an unoptimized build as in an optimized one, and how
/// many depends on what the system reads ahead.
fn program(process: u32) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap_or_default();
    let (mut bytes, mut inside) = (0, false);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kilobytes = rest.trim().strip_suffix(" kB").and_then(|size| size.parse::<u64>().ok());
            bytes += if inside { kilobytes.unwrap_or(0) * 1024 } else { 0 };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            inside = line.ends_with(env!("CARGO_BIN_EXE_shohin"));
        }
    }
    bytes
}

/// The most memory that a command had resident beside the pages of the program's own file, and whether it succeeded.
fn peak(args: &[&str]) -> (u64, bool) {
    let mut child = shohin(args)
        .args(["--device", "cpu"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let (mut most, mut own) = (0, 0);
    let succeeded = loop {
        // It has no memory any more once it has ended: what grows in its last ten milliseconds is not seen. The system takes long
        // to list the pages of a large process.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let found = found.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        most = most.max(found.unwrap_or(0) * 1024);
        own = own.max(program(child.id()));
        if let Some(status) = child.try_wait().unwrap() {
            break status.success();
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(most > own && own > 0, "{args:?} ended before its memory could be read");
    (most - own, succeeded)
}

fn model(folder: &Path, format: Format) -> String {
    let shape = Shape {
        hidden: 2048,
        layers: 2,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        ffn: 6144,
        vocab: 8192,
        tied: false,
        context: 4096,
        ..Shape::tiny()
    };
    let path = folder.join(format!("{}.gguf", format.name()));
    fs::write(&path, Model::new(shape, Stored::new(format), 1).to_vec().unwrap()).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn a_model_takes_what_is_planned_and_10_mb() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "a ".repeat(256);
    for format in [Format::Q1_0, Format::Tq1_0, Format::Q4K] {
        let path = model(folder.path(), format);
        let options = ["-m", &path, "--context", "600"];
        let planned = planned(&options);
        let (found, succeeded) = peak(&[&["run", "--raw", "-n", "2", &prompt], &options[..]].concat());
        assert!(succeeded, "{}", format.name());
        assert!(found <= planned + BESIDES, "{}: {planned} planned, {found} found", format.name());
        assert!(found + BESIDES > planned, "{}: {planned} planned, only {found} found", format.name());
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_prompt_takes_twelve_times_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.txt");
    let words: String = (0..400_000).map(|i| format!("{i} words ")).collect();
    fs::write(&path, &words).unwrap();
    let sprout = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/sprout.gguf");
    let options = ["-m", sprout, "--context", "512"];
    let planned = planned(&options);
    for raw in [&[][..], &["--raw"]] {
        let (found, succeeded) = peak(&[&["run", "-f", path.to_str().unwrap()], raw, &options[..]].concat());
        assert!(!succeeded, "a prompt of megabytes does not fit");
        let most = planned + BESIDES + 12 * words.len() as u64;
        assert!(found <= most, "{} bytes of prompt: {planned} planned, {found} found", words.len());
    }
}
