//! `cargo xtask fuzz`: the targets of `tests/fuzz` in turn, with libFuzzer and the address sanitizer.
//!
//! The compiler of this repository builds the program: `RUSTC_BOOTSTRAP` allows it the flags of a sanitizer. What was
//! executed so far is kept in `target/fuzz/counts`, and the corpus that was found beside it. `--keep` adds to the corpus in
//! the repository.

use crate::command::{Cmd, Result};
use crate::machine::Machine;
use crate::package::FUZZ;
use crate::suite;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// As `cargo fuzz` builds: coverage of edges, comparisons for the dictionary, and the sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0 -Zsanitizer=address";

const HOST: &str = "x86_64-unknown-linux-gnu";

const TURN: u64 = 60;

/// Bytes of an input that [`Options::keep`] adds: more are cut off.
const KEPT_BYTES: usize = 4096;

pub(crate) struct Options {
    pub(crate) hours: f64,
    /// Targets; all if there are none.
    pub(crate) only: Vec<String>,
    /// Seconds that a target runs before it is the next one's turn; [`TURN`] if not given.
    pub(crate) turn: Option<u64>,
    /// The targets are run in this program instead of a new one.
    pub(crate) program: Option<String>,
    /// Mutations only, with neither coverage nor sanitizer.
    pub(crate) plain: bool,
    /// The engines that must agree ([`suite::ENGINES`]) in the place of the targets.
    pub(crate) engines: bool,
    /// Runs nothing new: what was found so far is added to the corpus in the repository.
    pub(crate) keep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            hours: 1.0,
            only: Vec::new(),
            turn: None,
            program: None,
            plain: false,
            engines: false,
            keep: false,
        }
    }
}

/// The work of one target in all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    executed: u64,
    seconds: u64,
    /// Edges of the program that some input of the corpus reaches.
    edges: u64,
    failures: u64,
}

/// The targets, in the order in which they are defined: fastest first.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>> {
    let path = root.join("tests/fuzz/src/targets/mod.rs");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let table = text.rsplit_once("targets! {").map_or("", |(_, table)| table);
    let names = table.lines().filter_map(|line| {
        let (_, rest) = line.trim().strip_prefix("///").is_none().then_some(line)?.split_once("::")?;
        rest.split_once(',').map(|(name, _)| name.trim().to_string())
    });
    Ok(names.collect())
}

fn read_counts(path: &Path) -> BTreeMap<String, Count> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_string();
        let mut next = || words.next()?.parse().ok();
        Some((name, Count { executed: next()?, seconds: next()?, edges: next()?, failures: next()? }))
    };
    text.lines().filter_map(line).collect()
}

fn write_counts(path: &Path, counts: &BTreeMap<String, Count>) -> Result<()> {
    let line = |(name, count): (&String, &Count)| {
        format!("{name} {} {} {} {}\n", count.executed, count.seconds, count.edges, count.failures)
    };
    let text: String = counts.iter().map(line).collect();
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Adds what libFuzzer said in one turn.
fn add(count: &mut Count, log: &str, seconds: u64) {
    let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let lines = log.lines().filter_map(|line| line.strip_prefix('#'));
    // A failure ends the process before its statistics are printed: the last line has the count then.
    let last = lines.filter_map(number).max().unwrap_or(0);
    let done =
        log.lines().filter_map(|line| line.strip_prefix("stat::number_of_executed_units:")).find_map(number);
    count.executed += done.unwrap_or(last);
    count.seconds += seconds;
    let edges =
        log.lines().filter_map(|line| line.split_once(" cov: ").and_then(|(_, rest)| number(rest))).max();
    count.edges = count.edges.max(edges.unwrap_or(0));
    // Inputs that were slow are written, too.
    let failed = |line: &str| line.contains("Test unit written to") && !line.contains("slow-unit-");
    count.failures += u64::from(log.lines().any(failed));
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

fn build(machine: &Machine) -> Result<PathBuf> {
    let target = machine.target.join("sanitized");
    let build =
        machine.cargo().args("build --profile fuzz --bin fuzz --features libfuzzer").packages(&[FUZZ]);
    let build = build.arg("--target").arg(HOST).arg("--target-dir").arg(&target);
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).run()?;
    Ok(target.join(HOST).join("fuzz/fuzz"))
}

/// Runs the targets in turn until the time is over. Returns whether no input failed.
pub(crate) fn fuzz(machine: &mut Machine, options: &Options) -> Result<bool> {
    let mut names = match options.engines {
        true => suite::ENGINES.iter().map(|engine| engine.suite.to_string()).collect(),
        false => targets(&machine.root)?,
    };
    if let Some(unknown) = options.only.iter().find(|only| !names.contains(only)) {
        return Err(format!("there is no target {unknown}; expected one of {}", names.join(", ")));
    }
    names.retain(|name| options.only.is_empty() || options.only.contains(name));
    if [options.plain, options.engines, options.keep].into_iter().filter(|set| *set).count() > 1 {
        return Err("--plain, --engines and --keep do not go together".into());
    }
    if options.plain || options.engines {
        if options.turn.is_some() || options.program.is_some() {
            return Err("--turn and --program do not go with --plain and --engines".into());
        }
        return match options.engines {
            true => engines(machine, &names, options.hours),
            false => plain(machine, &names, options.hours),
        };
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        return Err("fuzz requires Linux on x86-64 with glibc, except with --plain and --engines".into());
    }
    let program = match &options.program {
        Some(program) => program.into(),
        None => build(machine)?,
    };
    let folder = machine.target.join("fuzz");
    make(&folder)?;
    if options.keep {
        if options.turn.is_some() {
            return Err("--turn does not go with --keep".into());
        }
        return names.iter().try_for_each(|name| keep(machine, &program, name)).map(|()| true);
    }
    let path = folder.join("counts");
    let end = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    let mut failed = false;
    'rounds: loop {
        for name in &names {
            let left =
                end.saturating_duration_since(Instant::now()).as_secs().min(options.turn.unwrap_or(TURN));
            if left == 0 {
                break 'rounds;
            }
            let (corpus, failures) = (folder.join("corpus").join(name), folder.join("failures"));
            make(&corpus)?;
            make(&failures)?;
            let log = folder.join(format!("{name}.log"));
            let run = Cmd::new("sh", &machine.root)
                .arg("-c")
                .arg("exec \"$@\" 2>\"$SHOHIN_FUZZ_LOG\"")
                .arg("sh")
                .arg(&program)
                .arg(&corpus)
                .arg(format!("-artifact_prefix={}/{name}-", failures.display()))
                .arg(format!("-max_total_time={left}"))
                .args("-print_final_stats=1 -timeout=300 -rss_limit_mb=3000 -max_len=131072 -len_control=0")
                .env("SHOHIN_FUZZ", name)
                .env("SHOHIN_FUZZ_LOG", &log)
                .env("SHOHIN_FUZZ_SEEDS", &corpus)
                // Threads of a server never end.
                .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
            let started = Instant::now();
            let ended = run.limit(left + 600).read();
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let mut counts = read_counts(&path);
            let count = counts.entry(name.clone()).or_default();
            let before = count.executed;
            add(count, &text, started.elapsed().as_secs());
            println!("{name}: {} inputs, {} edges", count.executed - before, count.edges);
            let turn = count.failures;
            write_counts(&path, &counts)?;
            if let Err(why) = ended {
                failed = true;
                let said = text.lines().find(|line| line.contains("panicked at") || line.contains("ERROR: "));
                eprintln!("FAILED {name}: {}; see {}", said.unwrap_or(&why), log.display());
                let _ = fs::copy(&log, failures.join(format!("{name}-{turn}.log")));
            }
        }
    }
    print_counts(&path);
    Ok(!failed)
}

/// Adds the inputs that were found and reach code that neither the seeds nor `tests/fuzz/corpus` reach.
fn keep(machine: &Machine, program: &Path, name: &str) -> Result<()> {
    let folder = machine.target.join("fuzz");
    let (found, merged) = (folder.join("corpus").join(name), folder.join("merged").join(name));
    let kept = machine.root.join("tests/fuzz/corpus").join(name);
    make(&found)?;
    if merged.exists() {
        fs::remove_dir_all(&merged).map_err(|e| format!("{}: {e}", merged.display()))?;
    }
    make(&merged)?;
    let merge = Cmd::new(program, &machine.root).arg(&merged).arg(&found);
    let merge =
        merge.arg(format!("-max_len={KEPT_BYTES}")).args("-set_cover_merge=1 -use_counters=0 -timeout=300");
    let merge = merge.env("SHOHIN_FUZZ", name).env("SHOHIN_FUZZ_SEEDS", &merged);
    merge
        .env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1")
        .log(&folder.join(format!("{name}.log")))?;
    let entries = fs::read_dir(&merged).map_err(|e| format!("{}: {e}", merged.display()))?;
    let is_new = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !name.starts_with("seed"))
    };
    let new: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_new).collect();
    println!("{name}: {} inputs added", new.len());
    for path in new {
        make(&kept)?;
        let copy = kept.join(path.file_name().unwrap_or_default());
        fs::copy(&path, &copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    }
    Ok(())
}

/// Mutations for an equal time per target, in an optimized program with overflow checks and debug assertions. Counts are
/// kept in `target/fuzz/counts-plain`.
fn plain(machine: &Machine, names: &[String], hours: f64) -> Result<bool> {
    let build = machine.cargo().args("test --profile fuzz --test mutations --no-run --message-format=json");
    let built = build.packages(&[FUZZ]).read()?;
    // Not by cargo, which would build anew whatever was edited since.
    let test = Cmd::new(executable(&built).ok_or("cargo does not say what it has built")?, &machine.root);
    let run = |name: &str| Ok((test.clone().args("--exact --nocapture").arg(name), "mutations"));
    in_turn(machine, names, hours, "counts-plain", run)
}

/// Random models or conversations for an equal time per engine. Counts are kept in `target/fuzz/counts-engines`.
fn engines(machine: &mut Machine, names: &[String], hours: f64) -> Result<bool> {
    let chosen: Vec<_> =
        suite::ENGINES.iter().filter(|engine| names.iter().any(|name| name == engine.suite)).collect();
    let mut tests = Vec::new();
    for engine in chosen {
        tests.extend(engine.ready(machine)?.map(|test| (engine, test)));
    }
    let names: Vec<String> = tests.iter().map(|(engine, _)| engine.suite.into()).collect();
    let run = |name: &str| {
        let found = tests.iter().find(|(engine, _)| engine.suite == name);
        found.map(|(engine, test)| (test.clone(), engine.what)).ok_or(format!("{name} is not ready"))
    };
    in_turn(machine, &names, hours, "counts-engines", run)
}

/// Runs a test that goes on for the time given, and says how much it did, for each name. `run` says also of what.
fn in_turn(
    machine: &Machine,
    names: &[String],
    hours: f64,
    counts: &str,
    run: impl Fn(&str) -> Result<(Cmd, &'static str)>,
) -> Result<bool> {
    let folder = machine.target.join("fuzz");
    make(&folder)?;
    let path = folder.join(counts);
    let seconds = hours * 3600.0 / names.len().max(1) as f64;
    let given = std::env::var("SHOHIN_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()));
    println!("SHOHIN_FUZZ_SEED={seed}");
    let mut right = true;
    for name in names {
        let mut counts = read_counts(&path);
        let count = counts.entry(name.clone()).or_default();
        let (test, what) = run(name)?;
        let test =
            test.env("SHOHIN_FUZZ_SECONDS", seconds.to_string()).env("SHOHIN_FUZZ_SEED", seed.to_string());
        let log = folder.join(format!("{name}.log"));
        let ended = test.log(&log);
        let text = fs::read(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        match ended {
            Ok(()) => {
                let done =
                    done(&text, name, what).ok_or(format!("{name} does not say how many {what} it made"))?;
                println!("{name}: {done} {what}");
                count.executed += done;
            }
            Err(why) => {
                let failures = folder.join("failures");
                make(&failures)?;
                let kept = failures.join(format!("{name}-{seed}.log"));
                fs::copy(&log, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
                eprintln!("FAILED {name}: {why}; see {}", kept.display());
                count.failures += 1;
                right = false;
            }
        }
        count.seconds += seconds as u64;
        write_counts(&path, &counts)?;
    }
    print_counts(&path);
    Ok(right)
}

/// The program of the last test in cargo's messages.
fn executable(messages: &str) -> Option<String> {
    let mut programs = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(String::from)
    });
    programs.next_back()
}

/// The count that a test prints: `name: 3 inputs, 412 mutations in 1.0 s`.
fn done(text: &str, name: &str, what: &str) -> Option<u64> {
    let count =
        |rest: &str| rest.split_once(&format!(" {what} in "))?.0.split_whitespace().next_back()?.parse().ok();
    text.split(&format!("{name}: ")).skip(1).find_map(count)
}

fn print_counts(path: &Path) {
    let counts = read_counts(path);
    println!("\n| target | inputs | edges | failures |\n|---|---:|---:|---:|");
    for (name, count) in &counts {
        // Only libFuzzer counts edges.
        let edges = if count.edges == 0 { "-".into() } else { count.edges.to_string() };
        println!("| `{name}` | {} | {edges} | {} |", count.executed, count.failures);
    }
    println!("\n{} inputs in all", counts.values().map(|count| count.executed).sum::<u64>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_tested_by_suites() {
        for engine in suite::ENGINES {
            assert!(suite::SUITES.iter().any(|suite| suite.name == engine.suite), "{}", engine.suite);
        }
    }

    #[test]
    fn counts_are_those_of_libfuzzer() {
        let log = "INFO: seed corpus\n#12\tINITED cov: 40 ft: 9 corp: 3\n#4096\tpulse  cov: 52 ft: 60\nDone 5000 runs\n\
            stat::number_of_executed_units: 5000\nstat::average_exec_per_sec: 9\n";
        let mut count = Count::default();
        add(&mut count, log, 3);
        add(&mut count, "#77\tREDUCE cov: 51 ft: 2\nTest unit written to ./crash-1\n", 1);
        add(&mut count, "Test unit written to ./slow-unit-1\n", 0);
        assert_eq!(count, Count { executed: 5077, seconds: 4, edges: 52, failures: 1 });
    }

    #[test]
    fn what_was_done_is_what_a_test_prints() {
        let text = "running 1 test\njson: 3 inputs, 412 mutations in 1.0 s\ntest json ... ok\n";
        assert_eq!(done(text, "json", "mutations"), Some(412));
        assert_eq!(done(text, "http", "mutations"), None);
        let text = "gpu: llvmpipe\n test random ... gpu: 51 models in 60.2 s\n";
        assert_eq!(done(text, "gpu", "models"), Some(51));
    }

    #[test]
    fn every_target_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a repository");
        let names = targets(root).expect("the table of targets");
        assert!(names.len() > 15 && names.contains(&"gguf_parse".into()), "{names:?}");
    }
}
