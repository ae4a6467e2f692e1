//! `cargo xtask instructions`: instructions per token. Unlike times, they do not depend on the load of the machine, so an
//! increase can fail a test.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{HANGS, Result, Tally};
use crate::machine::{Machine, Need, VALGRIND};
use crate::package;

pub(crate) const NEEDS: &[Need] = &[Need::Program(&VALGRIND)];

/// The largest increase that passes, in percent.
const RISE: f64 = 3.0;

/// The same if the recorded counts are of another compiler version.
const RISE_OTHER_COMPILER: f64 = 15.0;

const HEAD: &str =
    "# Instructions per token, AVX2 kernels, one thread. Written by `cargo xtask instructions --update`.\n";

/// The function whose calls are counted separately.
const MEASURED: &str = "instructions::measured";

/// Instructions per token by name, and the compiler version.
#[derive(Debug, PartialEq)]
pub(crate) struct Counts {
    pub(crate) compiler: String,
    pub(crate) rows: Vec<(String, f64)>,
}

/// The reason why this machine cannot count, if any.
pub(crate) fn unfit() -> Option<String> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if std::is_x86_feature_detected!("avx2") {
        return None;
    }
    Some("requires Linux on x86-64 with AVX2".into())
}

/// Counts, then compares with the recorded counts or replaces them.
pub(crate) fn run(machine: &mut Machine, update: bool) -> Result<Tally> {
    if let Some(why) = unfit() {
        return Err(why);
    }
    machine.prepare(NEEDS);
    let counted = count(machine)?;
    let file = machine.root.join("xtask/instructions.txt");
    let kept = fs::read_to_string(&file);
    if update {
        fs::write(&file, counted.to_text(HEAD)).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let kept = match kept {
        Ok(kept) => Counts::read(&kept)?,
        Err(_) if update => Counts { compiler: counted.compiler.clone(), rows: Vec::new() },
        Err(e) => return Err(format!("{}: {e}", file.display())),
    };
    let verdict = compare(&kept, &counted);
    print!("{}", verdict.text);
    if update {
        println!("Recorded in xtask/instructions.txt.");
    } else if verdict.failed > 0 {
        println!(
            "If this is intended, run `cargo xtask instructions --update` and explain it in the commit message."
        );
        return Err(format!(
            "{} of {} counts differ from the recorded ones",
            verdict.failed,
            counted.rows.len()
        ));
    }
    Ok(Tally { passed: counted.rows.len(), ..Tally::default() })
}

fn count(machine: &Machine) -> Result<Counts> {
    let valgrind = machine.program(&VALGRIND)?;
    let build = machine.cargo().args("build --release --quiet --bin instructions");
    // Without what only tests compare with.
    build.packages(&[package::TESTS]).arg("--no-default-features").run()?;
    let dir = machine.target.join("instructions");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let program = machine.target.join("release/instructions");
    let names = machine
        .cmd(&valgrind.to_string_lossy())
        .args("--tool=callgrind --quiet")
        .arg(format!("--toggle-collect={MEASURED}"))
        .arg(format!("--dump-after={MEASURED}"))
        .arg(format!("--callgrind-out-file={}", dir.join("out").display()))
        .arg(program)
        .limit(HANGS)
        .read()?;
    let mut rows = Vec::new();
    for (i, line) in names.lines().enumerate() {
        let (name, tokens) = line
            .rsplit_once(' ')
            .and_then(|(name, tokens)| Some((name, tokens.parse::<f64>().ok()?)))
            .ok_or_else(|| format!("unexpected output of the measured program: {line:?}"))?;
        let file = dir.join(format!("out.{}", i + 1));
        rows.push((name.to_owned(), (total(&file)? as f64 / tokens).round()));
    }
    Ok(Counts { compiler: compiler(machine)?, rows })
}

/// `rustc 1.95.0`
pub(crate) fn compiler(machine: &Machine) -> Result<String> {
    let said = machine.cmd("rustc").arg("--version").read()?;
    Ok(said.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// The instruction count of one call.
fn total(file: &PathBuf) -> Result<u64> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ")).and_then(|n| n.trim().parse().ok());
    total.filter(|n| *n > 0).ok_or_else(|| format!("no instruction count in {}", Path::new(file).display()))
}

impl Counts {
    pub(crate) fn to_text(&self, head: &str) -> String {
        let mut text = format!("{head}{}\n", self.compiler);
        for (name, count) in &self.rows {
            let _ = writeln!(text, "{name} {count}");
        }
        text
    }

    pub(crate) fn read(text: &str) -> Result<Counts> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let compiler = lines.next().ok_or("a file of recorded counts is empty")?.to_owned();
        let rows = lines.map(|line| {
            let (name, count) = line.rsplit_once(' ')?;
            Some((name.to_owned(), count.parse().ok().filter(|n| *n > 0.0)?))
        });
        let rows: Option<Vec<(String, f64)>> = rows.collect();
        Ok(Counts {
            compiler,
            rows: rows.ok_or("recorded counts: expected a name and a number on every line")?,
        })
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|(n, _)| n == name).map(|(_, count)| *count)
    }
}

pub(crate) struct Verdict {
    /// A table, with a word for each change beyond the limit.
    pub(crate) text: String,
    pub(crate) failed: usize,
}

pub(crate) fn compare(kept: &Counts, counted: &Counts) -> Verdict {
    let same = kept.compiler == counted.compiler;
    let most = if same { RISE } else { RISE_OTHER_COMPILER };
    let mut verdict = Verdict { text: String::new(), failed: 0 };
    let text = &mut verdict.text;
    if !same {
        let (theirs, ours) = (&kept.compiler, &counted.compiler);
        let _ = writeln!(
            text,
            "recorded with {theirs}, counted with {ours}: an increase of up to {most} % passes"
        );
    }
    let _ = writeln!(text, "{:<32}{:>13}{:>13}", "", "recorded", "now");
    for (name, now) in &counted.rows {
        let Some(before) = kept.get(name) else {
            verdict.failed += 1;
            let _ = writeln!(text, "{name:<32}{:>13}{now:>13}  NEW", "-");
            continue;
        };
        let change = 100.0 * (now / before - 1.0);
        let word = match change {
            c if c > most => "  ROSE",
            c if c < -most => "  fell: record it with --update",
            _ => "",
        };
        verdict.failed += usize::from(change > most);
        let _ = writeln!(text, "{name:<32}{before:>13}{now:>13}{change:>+8.1} %{word}");
    }
    for (name, before) in kept.rows.iter().filter(|(name, _)| counted.get(name).is_none()) {
        verdict.failed += 1;
        let _ = writeln!(text, "{name:<32}{before:>13}{:>13}  GONE", "-");
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(compiler: &str, rows: &[(&str, f64)]) -> Counts {
        let rows = rows.iter().map(|(name, count)| (String::from(*name), *count)).collect();
        Counts { compiler: compiler.into(), rows }
    }

    #[test]
    fn rises_new_and_lost_rows_fail_and_falls_do_not() {
        let kept = counts("rustc 1", &[("a decode", 1000.0), ("b decode", 1000.0), ("c decode", 1000.0)]);
        let verdict = |rows: &[(&str, f64)]| compare(&kept, &counts("rustc 1", rows));
        assert_eq!(verdict(&[("a decode", 1029.0), ("b decode", 500.0), ("c decode", 970.0)]).failed, 0);
        let risen = verdict(&[("a decode", 1031.0), ("b decode", 1000.0), ("c decode", 1000.0)]);
        assert_eq!(risen.failed, 1);
        let said: Vec<&str> = risen.text.lines().filter(|line| line.contains("ROSE")).collect();
        assert!(
            matches!(said[..], [line] if line.starts_with("a decode") && line.contains("+3.1 %")),
            "{said:?}"
        );
        assert_eq!(verdict(&[("a decode", 1000.0), ("b decode", 1000.0)]).failed, 1);
        let more = [("a decode", 1000.0), ("b decode", 1000.0), ("c decode", 1000.0), ("d", 1.0)];
        assert_eq!(verdict(&more).failed, 1);
    }

    #[test]
    fn another_compiler_may_differ_more() {
        let kept = counts("rustc 1", &[("a", 1000.0)]);
        assert_eq!(compare(&kept, &counts("rustc 2", &[("a", 1140.0)])).failed, 0);
        assert_eq!(compare(&kept, &counts("rustc 2", &[("a", 1160.0)])).failed, 1);
    }

    #[test]
    fn the_file_is_read_as_written() {
        let all = counts("rustc 1.95.0", &[("q1_0 prefill", 123_456.0), ("sprout decode", 7.0)]);
        assert_eq!(Counts::read(&all.to_text(HEAD)), Ok(all));
        assert!(Counts::read("# nothing\n").is_err());
        assert!(Counts::read("rustc 1\nq1_0 decode many\n").is_err());
    }
}
