//! Our npm package and wllama in turn, each in a page of its own in Chromium without a window.

use std::path::Path;

use super::sample::{self, Engine, Sample};
use super::{Models, Pairs, Plan};
use crate::command::Result;
use crate::machine::{CHROMIUM, Machine, Need};
use crate::web::{self, WASM};

pub(super) const NEEDS: &[Need] =
    &[Need::Target(WASM), Need::Bindgen, Need::Node, Need::NodeModules, Need::Program(&CHROMIUM)];

/// wllama takes a second for a token.
const MOST_ROUNDS: usize = 2;

/// Returns what is compared with what.
pub(super) fn measure(
    machine: &mut Machine,
    models: &Models,
    plan: &Plan,
    wllama: Option<&Path>,
    samples: &mut Vec<Sample>,
    notes: &mut Vec<String>,
) -> Result<Pairs> {
    web::build(machine)?;
    let machine = &*machine;
    let ours = machine.root.join("wasm/dist");
    let mut run = |engine, package: &Path, format, round, samples: Option<&mut Vec<Sample>>| {
        let driver = machine.cmd("node").arg(machine.root.join("xtask/src/bench/browser.mjs"));
        let driver = driver.arg(if engine == Engine::Page { "shohin" } else { "wllama" }).arg(package);
        let (prompt, reply) = if samples.is_some() { plan.page } else { (0, 0) };
        let driver = driver.arg(models.file(format)).arg(prompt.to_string()).arg(reply.to_string());
        let text = driver.env("CHROME", machine.program(&CHROMIUM)?).read()?;
        for version in text.lines().filter_map(|line| line.strip_prefix("version ")) {
            let note = format!("In the browser: {version}.");
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        if let Some(why) = text.lines().find_map(|line| line.strip_prefix("cannot ")) {
            if samples.is_some() {
                return Err(format!("{format} in the browser: {why}"));
            }
            notes.push(format!("wllama cannot read {}: {why}.", format.to_uppercase()));
            return Ok(false);
        }
        if let Some(samples) = samples {
            samples.extend(text.lines().filter_map(sample::read).map(|(test, wall, cpu)| Sample {
                engine,
                format,
                threads: 1,
                round,
                test,
                wall,
                cpu,
                bound: None,
            }));
        }
        Ok(true)
    };
    let mut pairs = plan.formats.clone();
    if let Some(package) = wllama {
        for (format, peer) in pairs.iter_mut().filter(|(format, peer)| format != peer) {
            if run(Engine::Wllama, package, *format, 0, None)? {
                *peer = format;
            }
        }
    }
    let rounds = plan.rounds.min(MOST_ROUNDS);
    for round in 0..rounds {
        let mut done: Vec<&str> = Vec::new();
        for &(format, peer) in &pairs {
            println!("round {} of {rounds}: {format} in the browser", round + 1);
            run(Engine::Page, &ours, format, round, Some(samples))?;
            if let Some(package) = wllama
                && !done.contains(&peer)
            {
                done.push(peer);
                run(Engine::Wllama, package, peer, round, Some(samples))?;
            }
        }
    }
    Ok(pairs)
}
