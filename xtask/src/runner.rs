//! Runs test suites, two at a time and a third at low priority, and prints the table of results.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Cmd, Result, Tally};
use crate::cpu_time;
use crate::machine::{Machine, Need, RUN, THOROUGH};
use crate::suite::{Beside, SET_UP_BUDGET, SUITES, Suite};

/// Wall time and CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    wall: Duration,
    /// Of all processor cores; `None` if the operating system does not report it.
    cpu: Option<Duration>,
}

impl Cost {
    /// Whether it took more processor-seconds.
    fn is_over(&self, budget: u64) -> bool {
        self.cpu.is_some_and(|cpu| cpu > Duration::from_secs(budget))
    }
}

/// Measures the cost of the child processes that run until it is stopped.
struct Clock {
    started: Instant,
    cpu: Option<Duration>,
}

impl Clock {
    fn start() -> Clock {
        Clock { cpu: cpu_time::children(), started: Instant::now() }
    }

    fn stop(self) -> Cost {
        let wall = self.started.elapsed();
        let cpu = cpu_time::children().zip(self.cpu).map(|(now, before)| now.saturating_sub(before));
        Cost { wall, cpu }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Fail,
    Skipped,
}

impl Verdict {
    const ALL: [Verdict; 3] = [Verdict::Pass, Verdict::Fail, Verdict::Skipped];

    fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::Skipped => "skipped",
        }
    }
}

/// The result of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    verdict: Verdict,
    tally: Tally,
    cost: Cost,
    /// Why it failed or was skipped.
    why: String,
}

impl Outcome {
    fn failed(why: String) -> Outcome {
        Outcome { verdict: Verdict::Fail, tally: Tally::default(), cost: Cost::default(), why }
    }

    /// A line of text, for [`Outcome::from_line`].
    fn to_line(&self) -> String {
        let Outcome { verdict, tally: Tally { passed, failed, ignored }, cost, why } = self;
        let cpu = cost.cpu.map_or("-".into(), |time| time.as_millis().to_string());
        let why = why.replace('\n', " ");
        format!("{} {passed} {failed} {ignored} {} {cpu} {why}", verdict.word(), cost.wall.as_millis())
    }

    fn from_line(line: &str) -> Option<Outcome> {
        let mut words = line.splitn(7, ' ');
        let word = words.next()?;
        let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.word() == word)?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let [passed, failed, ignored] = [number()?, number()?, number()?].map(|n| n as usize);
        let wall = Duration::from_millis(number()?);
        let cpu = number().map(Duration::from_millis);
        let why = words.next()?.to_string();
        Some(Outcome { verdict, tally: Tally { passed, failed, ignored }, cost: Cost { wall, cpu }, why })
    }
}

/// Runs those of `suites` that `only` names, or all if it is empty, up to `jobs` at a time, and prints the results.
/// Returns whether none failed.
pub(crate) fn run(
    machine: &mut Machine,
    suites: &'static [Suite],
    only: &[String],
    jobs: usize,
) -> Result<bool> {
    if let Some(name) = only.iter().find(|name| suites.iter().all(|suite| suite.name != **name)) {
        let names: Vec<&str> = suites.iter().map(|suite| suite.name).collect();
        return Err(format!("unknown suite {name}; expected one of {}", names.join(", ")));
    }
    let is_chosen = |suite: &&Suite| only.is_empty() || only.iter().any(|name| name == suite.name);
    let chosen: Vec<&'static Suite> = suites.iter().filter(is_chosen).collect();
    cpu_time::adopt_orphans();
    let (started, clock) = (Instant::now(), Clock::start());
    prepare(machine, &chosen);
    let set_up = clock.stop();
    let several = if jobs > 1 && chosen.len() > 1 { at_a_time(machine, &chosen, jobs)? } else { Vec::new() };
    let mut rows: Vec<(&Suite, Outcome)> = Vec::new();
    for suite in chosen {
        let done = several.iter().find(|(name, _)| *name == suite.name);
        rows.push((suite, done.map_or_else(|| here(machine, suite), |(_, outcome)| outcome.clone())));
    }
    Ok(summary(&rows, set_up, started.elapsed()))
}

/// Installs what several suites need, and what does not take long.
fn prepare(machine: &mut Machine, suites: &[&Suite]) {
    let fit = suites.iter().filter(|suite| (suite.unfit)().is_none());
    let early = |need: &Need| !matches!(need, Need::Amx | Need::Kotlin);
    let needs: Vec<Need> = fit.flat_map(|suite| suite.needs.iter().copied()).filter(early).collect();
    machine.prepare(&needs);
}

/// `xtask suite REPORT NAME NAMES`: runs the first of these suites, and writes its result to a file.
pub(crate) fn one_of(machine: &mut Machine, report: &Path, names: &[String]) -> Result<bool> {
    let named = |name: &String| {
        let suite = SUITES.iter().find(|suite| suite.name == *name);
        suite.ok_or_else(|| format!("unknown suite {name}"))
    };
    let suites: Vec<&Suite> = names.iter().map(named).collect::<Result<_>>()?;
    let suite = *suites.first().ok_or("suite expects a file and names")?;
    cpu_time::adopt_orphans();
    // As in the first process: what is built for all suites together must not be built anew for one.
    prepare(machine, &suites);
    let line = here(machine, suite).to_line();
    fs::write(report, line).map(|()| true).map_err(|e| format!("{}: {e}", report.display()))
}

/// Runs a suite in this process.
fn here(machine: &mut Machine, suite: &Suite) -> Outcome {
    println!("\n== {}: {}", suite.name, suite.about);
    let clock = Clock::start();
    if (suite.unfit)().is_none() {
        machine.prepare(suite.needs);
    }
    let (verdict, tally, why) = match unable(machine, suite) {
        Some(why) => (Verdict::Skipped, Tally::default(), why),
        None => match (suite.run)(machine) {
            Ok(tally) if tally.failed > 0 => {
                (Verdict::Fail, Tally::default(), format!("{} tests failed", tally.failed))
            }
            Ok(tally) if suite.counts && tally.passed == 0 => {
                (Verdict::Fail, Tally::default(), "it ran no tests".into())
            }
            Ok(tally) => (Verdict::Pass, tally, String::new()),
            Err(why) => (Verdict::Fail, Tally::default(), why),
        },
    };
    match verdict {
        Verdict::Pass => {}
        Verdict::Fail => println!("FAILED: {why}"),
        Verdict::Skipped => println!("skipped: {why}"),
    }
    Outcome { verdict, tally, cost: clock.stop(), why }
}

/// The reason why a suite cannot run here, if any.
pub(crate) fn unable(machine: &Machine, suite: &Suite) -> Option<String> {
    (suite.unfit)().or_else(|| suite.needs.iter().find_map(|need| machine.absent(*need)).map(String::from))
}

/// The suites that are still to run, and those that run.
struct Queue {
    waiting: VecDeque<&'static Suite>,
    running: Vec<&'static Suite>,
}

impl Queue {
    /// Takes the first suite that may run beside those that do. Suites that may run at low priority are left for that as long
    /// as there are others.
    fn take(&mut self, priority: Priority) -> Option<&'static Suite> {
        let fits = |suite: &&Suite| self.running.iter().all(|running| may_meet(suite, running));
        let first = |low| self.waiting.iter().position(|suite| is_low(suite) == low && fits(suite));
        let at = match priority {
            Priority::Normal => first(false).or_else(|| first(true)),
            Priority::Low => first(true),
        };
        let suite = at.and_then(|at| self.waiting.remove(at))?;
        self.running.push(suite);
        Some(suite)
    }

    /// Whether nothing is left for a worker of this priority.
    fn is_over(&self, priority: Priority) -> bool {
        match priority {
            Priority::Normal => self.waiting.is_empty(),
            Priority::Low => !self.waiting.iter().any(|suite| is_low(suite)),
        }
    }

    fn end(&mut self, suite: &Suite) {
        self.running.retain(|running| running.name != suite.name);
    }
}

/// A suite until it has ended.
struct Running<'a> {
    suite: &'static Suite,
    queue: &'a Mutex<Queue>,
    ended: &'a Condvar,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).end(self.suite);
        self.ended.notify_all();
    }
}

/// The priority of a suite's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    Normal,
    /// They run while cores are idle: while the others wait for each other's builds, for a browser or for a download.
    Low,
}

/// The program that runs another at low priority; Windows has none.
const NICE: &str = "nice";

fn is_low(suite: &Suite) -> bool {
    suite.beside == Beside::AnythingAtLowPriority
}

fn may_meet(one: &Suite, other: &Suite) -> bool {
    let allows = |one: &Suite, other: &Suite| match one.beside {
        Beside::Anything | Beside::AnythingAtLowPriority => true,
        Beside::Nothing => false,
        Beside::AllBut(names) => !names.contains(&other.name),
    };
    allows(one, other) && allows(other, one)
}

/// Runs suites at the same time, each in a process of its own: while one compiles, the tests of another run. One more runs at low
/// priority. The output of each is printed when it ends. Those that must be alone, or cannot run here, are left to the caller.
fn at_a_time(
    machine: &Machine,
    chosen: &[&'static Suite],
    jobs: usize,
) -> Result<Vec<(&'static str, Outcome)>> {
    const POISONED: &str = "a thread panicked";
    let logs = machine.target.join("suites");
    fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let able = |suite: &&Suite| suite.beside != Beside::Nothing && unable(machine, suite).is_none();
    let waiting = chosen.iter().copied().filter(able).collect();
    let queue = Mutex::new(Queue { waiting, running: Vec::new() });
    let ended = Condvar::new();
    let done = Mutex::new(Vec::new());
    // None if nothing is left.
    let next = |priority| {
        let queue = queue.lock().map_err(|_| POISONED)?;
        let mut taken = None;
        let none_fits = |queue: &mut Queue| {
            taken = queue.take(priority);
            taken.is_none() && !queue.is_over(priority)
        };
        ended.wait_while(queue, none_fits).map_err(|_| POISONED).map(|_| taken)
    };
    let work = |priority| -> Result<()> {
        while let Some(suite) = next(priority)? {
            // Even if this thread panics: others wait for it.
            let running = Running { suite, queue: &queue, ended: &ended };
            println!("xtask: {} begins", suite.name);
            let outcome = apart(machine, suite, priority, chosen, &logs).unwrap_or_else(Outcome::failed);
            drop(running);
            let mut done = done.lock().map_err(|_| POISONED)?;
            let _ = fs::read(log_of(&logs, suite)).map(|log| std::io::stdout().write_all(&log));
            done.push((suite.name, outcome));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let low = Cmd::new(NICE, &machine.root).arg("true").read().ok().map(|_| Priority::Low);
        let priorities = std::iter::repeat_n(Priority::Normal, jobs).chain(low);
        let workers: Vec<_> = priorities.map(|priority| scope.spawn(move || work(priority))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| POISONED)?)
    })?;
    done.into_inner().map_err(|_| POISONED.into())
}

fn log_of(logs: &Path, suite: &Suite) -> std::path::PathBuf {
    logs.join(format!("{}.log", suite.name))
}

/// Runs a suite in another process.
fn apart(
    machine: &Machine,
    suite: &Suite,
    priority: Priority,
    chosen: &[&Suite],
    logs: &Path,
) -> Result<Outcome> {
    let report = logs.join(format!("{}.result", suite.name));
    let _ = fs::remove_file(&report);
    let this = std::env::current_exe().map_err(|e| format!("the path of xtask: {e}"))?;
    let child = match priority {
        Priority::Normal => Cmd::new(this, &machine.root),
        Priority::Low => Cmd::new(NICE, &machine.root).args("-n 10").arg(this),
    };
    let child = if machine.thorough { child.env(THOROUGH, "1") } else { child };
    let child = child.env(RUN, &machine.run).arg("suite").arg(&report).arg(suite.name);
    let child = chosen.iter().fold(child, |child, other| child.arg(other.name));
    let ended = child.log(&log_of(logs, suite));
    let line = fs::read_to_string(&report).unwrap_or_default();
    Outcome::from_line(&line).ok_or_else(|| ended.err().unwrap_or("it ended without a result".into()))
}

fn summary(rows: &[(&Suite, Outcome)], set_up: Cost, wall: Duration) -> bool {
    let line = |name: &str, result: &str, tally: Tally, cost: Cost, budget: &str, why: &str| {
        let number = |n: usize| if n == 0 { String::from("-") } else { n.to_string() };
        let cpu = cost.cpu.map_or("-".into(), |time| format!("{} s", time.as_secs()));
        let (passed, ignored, wall) = (number(tally.passed), number(tally.ignored), cost.wall.as_secs());
        let row =
            format!("{name:<14}{result:<9}{passed:>7}{ignored:>9}{wall:>7} s{cpu:>9}{budget:>9}  {why}");
        println!("{}", row.trim_end());
    };
    println!(
        "\n{:<14}{:<9}{:>7}{:>9}{:>9}{:>9}{:>9}",
        "suite", "result", "passed", "ignored", "wall", "CPU", "budget"
    );
    let seconds = |budget: u64| format!("{budget} s");
    line("(set-up)", "", Tally::default(), set_up, &seconds(SET_UP_BUDGET), "");
    let (mut tally, mut cpu, mut budget) = (Tally::default(), set_up.cpu, SET_UP_BUDGET);
    for (suite, outcome) in rows {
        tally.add(outcome.tally);
        cpu = cpu.zip(outcome.cost.cpu).map(|(all, own)| all + own);
        budget += suite.budget;
        let own = seconds(suite.budget);
        line(suite.name, outcome.verdict.word(), outcome.tally, outcome.cost, &own, &outcome.why);
    }
    line("(total)", "", tally, Cost { wall, cpu }, &seconds(budget), "");
    let over = rows.iter().filter(|(suite, outcome)| outcome.cost.is_over(suite.budget));
    let over: Vec<&str> = over.map(|(suite, _)| suite.name).collect();
    if !over.is_empty() {
        println!("\nover budget: {}", over.join(", "));
    }
    let count = |verdict| rows.iter().filter(|(_, outcome)| outcome.verdict == verdict).count();
    let [passed, failed, skipped] = Verdict::ALL.map(count);
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\nsuites: {verdict}. {passed} passed; {failed} failed; {skipped} skipped; {} tests passed",
        tally.passed
    );
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_that_build_the_same_file_do_not_meet() {
        let named = |name: &str| SUITES.iter().find(|suite| suite.name == name).unwrap();
        let [gpu, mpi, metal, budget] = ["gpu", "mpi", "metal", "budget"].map(named);
        let mut queue = Queue { waiting: VecDeque::from([gpu, mpi, metal]), running: Vec::new() };
        let mut take = || queue.take(Priority::Normal).map(|suite| suite.name);
        assert_eq!([take(), take(), take()], [Some("gpu"), Some("metal"), None]);
        queue.end(gpu);
        assert_eq!(queue.take(Priority::Normal).map(|suite| suite.name), Some("mpi"));
        assert!(!may_meet(metal, budget));
        let Beside::AllBut(others) = mpi.beside else { panic!("mpi may meet anything") };
        assert!(others.iter().all(|other| !may_meet(mpi, named(other))));
    }

    #[test]
    fn suites_of_low_priority_are_left_until_the_others_have_begun() {
        let named = |name: &str| SUITES.iter().find(|suite| suite.name == name).unwrap();
        let [no_std, neon, gpu] = ["no-std", "neon", "gpu"].map(named);
        let mut queue = Queue { waiting: VecDeque::from([no_std, neon, gpu]), running: Vec::new() };
        assert_eq!(queue.take(Priority::Low).map(|suite| suite.name), Some("no-std"));
        let mut take = || queue.take(Priority::Normal).map(|suite| suite.name);
        assert_eq!([take(), take(), take()], [Some("gpu"), Some("neon"), None]);
        queue.waiting.push_back(gpu);
        assert!(queue.is_over(Priority::Low) && !queue.is_over(Priority::Normal));
    }

    #[test]
    fn the_budgets_of_all_suites_are_documented() {
        let text = include_str!("../../docs/CONTRIBUTING.md");
        let rows = SUITES.iter().map(|suite| (suite.name, suite.budget));
        for (name, budget) in [("set-up", SET_UP_BUDGET)].into_iter().chain(rows) {
            let row = format!("| `{name}` | {budget} |");
            assert!(text.contains(&row), "docs/CONTRIBUTING.md lacks {row}");
        }
        let total = SET_UP_BUDGET + SUITES.iter().map(|suite| suite.budget).sum::<u64>();
        assert!(text.contains(&format!("| total | {total} |")), "the total is {total}");
    }

    #[test]
    fn results_pass_between_processes() {
        let tally = Tally { passed: 12, failed: 0, ignored: 3 };
        let cost = Cost { wall: Duration::from_millis(1500), cpu: Some(Duration::from_millis(2750)) };
        for (cpu, why) in [(cost.cpu, ""), (None, "2 tests failed: a b")] {
            let outcome =
                Outcome { verdict: Verdict::Fail, tally, cost: Cost { cpu, ..cost }, why: why.into() };
            assert_eq!(Outcome::from_line(&outcome.to_line()), Some(outcome));
        }
        for wrong in ["", "pass", "pass 1 2 3 4 5", "fine 1 2 3 4 5 "] {
            assert_eq!(Outcome::from_line(wrong), None, "{wrong:?}");
        }
    }
}
