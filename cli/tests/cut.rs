//! The program is killed at random instants, and meets a full disk at any byte: what it writes is afterwards there as it was
//! before, or whole. `cargo xtask cut --count N` kills it more often.
#![cfg(unix)]

use shohin_core::Format;
use shohin_tests::Random;
use shohin_tests::model::{Model, Shape, Stored};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_shohin");

/// How often each command is killed.
fn cuts() -> usize {
    std::env::var("SHOHIN_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(8)
}

/// Instants differ from run to run in any case.
fn random() -> Random {
    Random::new(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64))
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn shohin(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("SHOHIN_WEIGHT_CACHE", "none");
    command
}

fn run(mut command: Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// A command that replaces a file, and what may be in the folder of that file.
struct Write<'w> {
    /// The file.
    path: &'w Path,
    /// Its contents before and after.
    contents: [Vec<u8>; 2],
    /// Writes the contents with this number.
    command: &'w dyn Fn(usize) -> Command,
}

impl<'w> Write<'w> {
    fn new(path: &'w Path, command: &'w dyn Fn(usize) -> Command) -> Write<'w> {
        let contents = [0, 1].map(|i| {
            run(command(i));
            fs::read(path).unwrap()
        });
        assert!(contents[0] != contents[1], "the two cannot be told apart");
        Write { path, contents, command }
    }

    /// Which of the two contents the file has.
    fn found(&self, when: &str) -> usize {
        let found = fs::read(self.path).unwrap_or_else(|e| panic!("{when}: {e}"));
        let which = self.contents.iter().position(|content| *content == found);
        which.unwrap_or_else(|| panic!("{when}: {} bytes that are neither", found.len()))
    }

    /// Unfinished files beside it.
    fn leftovers(&self) -> Vec<PathBuf> {
        let folder = fs::read_dir(self.path.parent().unwrap()).unwrap();
        let is_part = |path: &PathBuf| path.to_string_lossy().ends_with(".part");
        folder.flatten().map(|file| file.path()).filter(is_part).collect()
    }

    /// Kills the command at random instants, half of them while it writes; returns how often it was killed before and after the
    /// file had changed.
    fn kill(&self, cuts: usize) -> [usize; 2] {
        let mut random = random();
        let (mut seen, mut now) = ([0, 0], self.found("at the begin"));
        let started = Instant::now();
        run((self.command)(1 - now));
        let whole = started.elapsed();
        now = 1 - now;
        for i in 0..cuts {
            let before: BTreeSet<PathBuf> = self.leftovers().into_iter().collect();
            let mut child = (self.command)(1 - now).spawn().unwrap();
            if i % 2 == 0 {
                while child.try_wait().unwrap().is_none()
                    && self.leftovers().into_iter().all(|part| before.contains(&part))
                {
                    thread::sleep(Duration::from_micros(200));
                }
                thread::sleep(whole.mul_f64(random.below(1000) as f64 / 4000.0));
            } else {
                thread::sleep(whole.mul_f64(random.below(1000) as f64 / 900.0));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let found = self.found(&format!("kill {i}"));
            seen[usize::from(found != now)] += 1;
            now = found;
        }
        // What it left does not disturb the next one.
        run((self.command)(1 - now));
        assert_eq!(self.found("at the end"), 1 - now);
        for part in self.leftovers() {
            fs::remove_file(part).unwrap();
        }
        seen
    }

    /// Files cannot be longer than some length that is less than this one's: an error that names a file, which is unchanged.
    fn fill(&self, tries: usize) {
        let mut random = random();
        for _ in 0..tries {
            let now = self.found("at the begin");
            let blocks = random.below(self.contents[1 - now].len() / 1024);
            let output = full((self.command)(1 - now), blocks);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{blocks} blocks: {text}");
            assert!(text.contains("cannot ") && text.contains("File too large"), "{text}");
            assert_eq!(self.found("a full disk"), now);
            assert!(self.leftovers().is_empty(), "unfinished files are removed");
        }
    }
}

/// Runs a command that cannot write more than so many blocks of 512 bytes or a kilobyte, as shells differ, to a file.
fn full(command: Command, blocks: usize) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"")).arg("sh");
    shell.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.output().unwrap()
}

fn report(what: &str, [before, after]: [usize; 2]) {
    println!("{what}: killed {} times, {after} after the file had changed", before + after);
}

#[test]
fn a_killed_or_full_quantize_leaves_the_old_or_the_new_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out.gguf");
    let (model, out) = (here("models/sprout-nano.gguf"), path.to_str().unwrap());
    let command = |i: usize| {
        let kind = ["q8_0", "f16"][i];
        shohin(&["quantize", model.to_str().unwrap(), "--force", "--type", kind, "--out", out])
    };
    let write = Write::new(&path, &command);
    report("quantize", write.kill(cuts()));
    write.fill(4);
}

#[test]
fn a_killed_or_full_convert_leaves_the_old_or_the_new_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out.gguf");
    let (model, out) = (here("tests/fixtures/hf/qwen3"), path.to_str().unwrap());
    let command = |i: usize| {
        let kind = ["f32", "f16"][i];
        shohin(&["convert", model.to_str().unwrap(), "--force", "--type", kind, "--out", out])
    };
    let write = Write::new(&path, &command);
    report("convert", write.kill(cuts()));
    write.fill(4);
}

#[test]
fn a_killed_or_full_folder_has_the_old_or_the_new_weights() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let path = out.join("model.safetensors");
    let model = here("models/sprout-nano.gguf");
    let command = |i: usize| {
        let kind = ["f32", "f16"][i];
        let args = ["convert", model.to_str().unwrap(), "--safetensors", "--force", "--type", kind, "--out"];
        let mut command = shohin(&args);
        command.arg(&out);
        command
    };
    let write = Write::new(&path, &command);
    report("convert --safetensors", write.kill(cuts()));
    write.fill(2);
}

#[test]
fn a_killed_or_full_session_keeps_the_old_or_the_new_conversation() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kept.session");
    let old = folder.path().join("old");
    let session = ["--preset", "greedy", "-n", "8", "--session", path.to_str().unwrap()];
    // The first is a copy of an old file, so that the second always goes on from it.
    let say = |text: &str| {
        let mut command = shohin(&["run", text]);
        command.args(session);
        command
    };
    run(say("Hello!"));
    fs::copy(&path, &old).unwrap();
    run(say("What does a cow say?"));
    let contents = [fs::read(&old).unwrap(), fs::read(&path).unwrap()];
    let restore = || fs::write(&path, fs::read(&old).unwrap()).unwrap();
    let command = |_: usize| {
        restore();
        say("What does a cow say?")
    };
    let write = Write { path: &path, contents, command: &command };
    let (mut random, mut seen) = (random(), [0, 0]);
    let started = Instant::now();
    run(command(1));
    let whole = started.elapsed();
    for i in 0..cuts() {
        let mut child = command(1).spawn().unwrap();
        thread::sleep(whole.mul_f64(random.below(1000) as f64 / 900.0));
        child.kill().unwrap();
        child.wait().unwrap();
        seen[write.found(&format!("kill {i}"))] += 1;
    }
    report("session", seen);
    for _ in 0..3 {
        let output = full(command(1), random.below(write.contents[1].len() / 1024));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("cannot write") && text.contains("File too large"), "{text}");
        assert_eq!(write.found("a full disk"), 0);
    }
    run(command(1));
    assert_eq!(write.found("at the end"), 1);
}

#[test]
fn a_killed_or_full_weight_cache_is_used_only_whole() {
    let folder = TempDir::new().unwrap();
    let (model, cache) = (folder.path().join("model.gguf"), folder.path().join("cache"));
    // The smallest that are kept have 16 MiB.
    let shape =
        Shape { hidden: 1024, heads: 4, kv_heads: 2, layers: 1, ffn: 512, vocab: 66_000, ..Shape::tiny() };
    fs::write(&model, Model::new(shape, Stored::new(Format::Pq2_0), 1).to_vec().unwrap()).unwrap();
    let command = || {
        let args =
            ["run", "-m", model.to_str().unwrap(), "--preset", "greedy", "-n", "2", "-c", "64", "Hello!"];
        let mut command = shohin(&args);
        command.env("SHOHIN_WEIGHT_CACHE", &cache).stdout(Stdio::piped());
        command
    };
    let kept = || {
        let files = fs::read_dir(&cache).into_iter().flatten().flatten().map(|file| file.path());
        files
            .filter(|path| path.extension().is_some_and(|extension| extension == "weights"))
            .collect::<Vec<_>>()
    };
    let started = Instant::now();
    let reply = command().output().unwrap();
    let whole = started.elapsed();
    assert!(reply.status.success());
    let [file] = &kept()[..] else { panic!("it has one file") };
    let content = fs::read(file).unwrap();
    let (mut random, mut seen) = (random(), [0, 0]);
    for i in 0..cuts() {
        fs::remove_dir_all(&cache).unwrap();
        let mut child = command().spawn().unwrap();
        thread::sleep(whole.mul_f64(random.below(1000) as f64 / 900.0));
        child.kill().unwrap();
        child.wait().unwrap();
        let files = kept();
        seen[files.len()] += 1;
        files.iter().for_each(|file| assert!(fs::read(file).unwrap() == content, "kill {i}"));
        fs::create_dir_all(&cache).unwrap();
    }
    report("weight cache", seen);
    // A full disk costs the cache, not the reply.
    for blocks in [0, 1000, 10_000] {
        fs::remove_dir_all(&cache).unwrap();
        let output = full(command(), blocks);
        assert_eq!(output.stdout, reply.stdout, "{}", String::from_utf8_lossy(&output.stderr));
        assert!(kept().is_empty());
        fs::create_dir_all(&cache).unwrap();
    }
    assert_eq!(command().output().unwrap().stdout, reply.stdout);
}
