//! Our npm package, wllama and transformers.js in turn, each in its own page in headless Chromium.

use std::path::Path;

use super::peers::{self, Transformers};
use super::sample::{self, Engine, Sample, Test};
use super::{Models, Pairs, Plan};
use crate::command::Result;
use crate::machine::{CHROMIUM, Machine, Need, WASM};
use crate::web;

pub(super) const NEEDS: &[Need] =
    &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules, Need::Program(&CHROMIUM)];

/// Few tokens, as wllama and transformers.js take a second per token.
const MOST_ROUNDS: usize = 2;

/// Additional thread count for our package.
const TEAM: usize = 2;

/// An engine and a model for it.
struct Page<'a> {
    engine: Engine,
    /// The name used by `browser.mjs`.
    name: &'a str,
    package: &'a Path,
    model: &'a Path,
    format: &'static str,
    threads: usize,
}

/// The result of a page.
enum Said {
    Measured(Vec<(Test, f64, f64)>),
    /// The reason why it could not read the file.
    Cannot(String),
}

/// With `(prompt, reply)` of zero tokens it only loads the model.
fn run(machine: &Machine, page: &Page<'_>, plan: (usize, usize), notes: &mut Vec<String>) -> Result<Said> {
    let driver = machine.cmd("node").arg(machine.root.join("xtask/src/bench/browser.mjs")).arg(page.name);
    let driver = driver.arg(page.package).arg(page.model).arg(plan.0.to_string()).arg(plan.1.to_string());
    let text = driver.arg(page.threads.to_string()).env("CHROME", machine.program(&CHROMIUM)?).read()?;
    // Notes that differ between rounds are taken from the first.
    let mut note = |what: String, value: String| {
        if !notes.iter().any(|note| note.starts_with(&what)) {
            notes.push(what + &value);
        }
    };
    for line in text.lines() {
        if let Some(version) = line.strip_prefix("version ") {
            note(format!("In the browser: {version}."), String::new());
        } else if let Some(why) = line.strip_prefix("cannot ") {
            return Ok(Said::Cannot(why.into()));
        } else if let Some((raw, packed)) = payload(line) {
            let (name, threads) = (page.name, page.threads);
            let what = format!("Fetched besides the model by {name}, threads: {threads}: ");
            note(what, format!("{raw:.2} MB, compressed {packed:.2}."));
        } else if let Some(longest) = longest_task(line) {
            let Page { name, format, threads, .. } = *page;
            let format = format.to_uppercase();
            let what = format!(
                "Longest task of the page's main thread while {name} reads and writes {format}, threads: {threads}: "
            );
            note(what, format!("{longest:.1} ms."));
        }
    }
    Ok(Said::Measured(text.lines().filter_map(sample::read).collect()))
}

/// Parses `payload 1000000 400000` into megabytes of everything but the model, raw and compressed.
fn payload(line: &str) -> Option<(f64, f64)> {
    let (raw, packed) = line.strip_prefix("payload ")?.split_once(' ')?;
    Some((raw.parse::<f64>().ok()? / 1e6, packed.parse::<f64>().ok()? / 1e6))
}

/// Parses `main 3.5`, milliseconds of CPU time.
fn longest_task(line: &str) -> Option<f64> {
    line.strip_prefix("main ")?.parse().ok()
}

/// Returns the compared formats.
pub(super) fn measure(
    machine: &mut Machine,
    models: &Models,
    plan: &Plan,
    with_peers: bool,
    samples: &mut Vec<Sample>,
    notes: &mut Vec<String>,
) -> Result<Pairs> {
    web::build(machine)?;
    let machine = &*machine;
    let ours = machine.root.join("wasm/dist");
    let team = if ours.join("threads.js").is_file() { &[1, TEAM][..] } else { &[1][..] };
    let wllama = with_peers.then(|| peers::wllama(machine)).transpose()?;
    let transformers = with_peers.then(|| peers::transformers(machine)).transpose()?;
    let mut pairs = plan.formats.clone();
    if let Some(package) = &wllama {
        for (format, peer) in pairs.iter_mut().filter(|(format, peer)| format != peer) {
            let model = models.file(format);
            let page =
                Page { engine: Engine::Wllama, name: "wllama", package, model: &model, format, threads: 1 };
            match run(machine, &page, (0, 0), notes)? {
                Said::Measured(_) => *peer = format,
                Said::Cannot(why) => {
                    notes.push(format!("wllama cannot read {}: {why}.", format.to_uppercase()))
                }
            }
        }
    }
    if transformers.is_some() {
        notes.push("transformers.js has the same weights as codes of 4 bits, which take four times the bytes of Q1_0.".into());
    }
    let rounds = plan.rounds.min(MOST_ROUNDS);
    for round in 0..rounds {
        let mut done: Vec<&str> = Vec::new();
        let mut measure = |page: &Page<'_>| match run(machine, page, plan.page, notes)? {
            Said::Cannot(why) if page.engine == Engine::Transformers => {
                notes.push(format!("transformers.js cannot run {}: {why}.", page.format.to_uppercase()));
                Ok(())
            }
            Said::Cannot(why) => Err(format!("{} in the browser: {why}", page.format)),
            Said::Measured(read) => {
                let Page { engine, format, threads, .. } = *page;
                samples.extend(read.into_iter().map(|(test, wall, cpu)| Sample {
                    engine,
                    format,
                    threads,
                    round,
                    test,
                    wall,
                    cpu,
                    bound: None,
                }));
                Ok(())
            }
        };
        for &(format, peer) in &pairs {
            println!("round {} of {rounds}: {format} in the browser", round + 1);
            let model = models.file(format);
            for &threads in team {
                measure(&Page {
                    engine: Engine::Page,
                    name: "shohin",
                    package: &ours,
                    model: &model,
                    format,
                    threads,
                })?;
            }
            if done.contains(&peer) {
                continue;
            }
            done.push(peer);
            let model = models.file(peer);
            if let Some(package) = &wllama {
                let engine = Engine::Wllama;
                measure(&Page { engine, name: "wllama", package, model: &model, format: peer, threads: 1 })?;
            }
            if let Some(transformers) =
                transformers.as_ref().filter(|_| Transformers::FORMATS.contains(&peer))
            {
                let model = transformers.model(machine, &model)?;
                let (engine, package) = (Engine::Transformers, &transformers.modules);
                measure(&Page {
                    engine,
                    name: "transformers",
                    package,
                    model: &model,
                    format: peer,
                    threads: 1,
                })?;
            }
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::{longest_task, payload};

    #[test]
    fn payloads_are_read() {
        assert_eq!(payload("payload 1500000 250000"), Some((1.5, 0.25)));
        for line in ["payload", "payload 5", "payload 5 x", "decode 1 2 3"] {
            assert_eq!(payload(line), None, "{line}");
        }
    }

    #[test]
    fn longest_tasks_are_read() {
        assert_eq!(longest_task("main 3.5"), Some(3.5));
        for line in ["main", "main x", "payload 1 2"] {
            assert_eq!(longest_task(line), None, "{line}");
        }
    }
}
