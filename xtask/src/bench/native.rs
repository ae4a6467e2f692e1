//! Measures our program and llama.cpp in turn.

use std::path::Path;

use serde_json::Value;

use super::peers::Llama;
use super::sample::{self, Engine, Sample, Test};
use super::{Models, Pairs, Plan};
use crate::command::{Cmd, Result};
use crate::machine::Machine;
use crate::package;

/// Prompts that take llama.cpp longer than this are skipped, in seconds.
const LIMIT: f64 = 40.0;

/// Returns the compared formats.
pub(super) fn measure(
    machine: &Machine,
    models: &Models,
    plan: &Plan,
    llama: Option<&Llama>,
    samples: &mut Vec<Sample>,
    notes: &mut Vec<String>,
) -> Result<Pairs> {
    let mut pairs = plan.formats.clone();
    if let Some(llama) = llama {
        for (format, peer) in pairs.iter_mut().filter(|(format, peer)| format != peer) {
            let place = Place { format, threads: 1, round: 0 };
            match theirs(machine, models, plan, place, &llama.native, None)? {
                Said::Version(_) => *peer = format,
                Said::Cannot(why) => {
                    notes.push(format!("llama.cpp cannot read {}: {why}.", format.to_uppercase()));
                }
            }
        }
    }
    let mut isa = String::new();
    for round in 0..plan.rounds {
        let mut done: Vec<(&str, usize)> = Vec::new();
        for &(format, peer) in &pairs {
            for &threads in plan.threads {
                println!("round {} of {}: {format}, threads: {threads}", round + 1, plan.rounds);
                let place = Place { format, threads, round };
                isa = ours(machine, models, plan, place, None, samples)?;
                let fresh = !done.contains(&(peer, threads));
                done.push((peer, threads));
                let there = Place { format: peer, ..place };
                if let Some(llama) = llama
                    && fresh
                {
                    let note = match theirs(
                        machine,
                        models,
                        plan,
                        there,
                        &llama.native,
                        Some((Engine::Llama, samples)),
                    )? {
                        Said::Version(version) => {
                            format!("llama.cpp of llama-cpp-python {version}, compiled for this processor.")
                        }
                        Said::Cannot(why) => format!("llama.cpp cannot read {}: {why}.", peer.to_uppercase()),
                    };
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
                if isa != "avx2" && cfg!(target_arch = "x86_64") {
                    ours(machine, models, plan, place, Some("avx2"), samples)?;
                    if let Some(python) = llama.and_then(|llama| llama.avx2.as_deref())
                        && fresh
                    {
                        theirs(machine, models, plan, there, python, Some((Engine::LlamaAvx2, samples)))?;
                    }
                }
                // A run that is interrupted keeps what it measured.
                super::write(&models.part(), &sample::lines(samples))?;
            }
        }
    }
    // The bounds are the same for the other engines.
    let ours = samples.clone();
    for s in samples.iter_mut() {
        let engine = match s.engine {
            Engine::Llama => Engine::Shohin,
            Engine::LlamaAvx2 => Engine::ShohinAvx2,
            _ => continue,
        };
        let place = (engine, s.format, s.threads, s.round, s.test);
        let same =
            ours.iter().find(|own| (own.engine, own.format, own.threads, own.round, own.test) == place);
        s.bound = same.and_then(|own| own.bound);
    }
    notes.insert(0, format!("{}; Shohin's best instruction set here: {isa}.", processor()));
    Ok(pairs)
}

/// The number and name of the processors, as far as the system reports them.
pub(super) fn processor() -> String {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = names.map(|(_, name)| name.trim()).next().unwrap_or(std::env::consts::ARCH);
    format!("{count} processors, {name}")
}

#[derive(Clone, Copy)]
struct Place {
    format: &'static str,
    threads: usize,
    round: usize,
}

impl Place {
    fn sample(self, engine: Engine, test: Test, wall: f64, cpu: f64) -> Sample {
        let Place { format, threads, round } = self;
        Sample { engine, format, threads, round, test, wall, cpu, bound: None }
    }
}

/// Returns the instruction set used.
fn ours(
    machine: &Machine,
    models: &Models,
    plan: &Plan,
    place: Place,
    isa: Option<&str>,
    samples: &mut Vec<Sample>,
) -> Result<String> {
    let lengths: Vec<String> = plan.prefill.iter().map(usize::to_string).collect();
    let program = machine.target.join("release").join(package::PROGRAM);
    let mut bench = machine.cmd(&program.to_string_lossy()).args("bench --json --repeat 1 --prefill");
    bench = bench.arg(lengths.join(",")).arg("--decode").arg(plan.decode.to_string());
    bench = bench.arg("--threads").arg(place.threads.to_string()).arg("-m").arg(models.file(place.format));
    // Mapped, as at the second start.
    bench = bench.env("SHOHIN_WEIGHT_CACHE", models.dir.join("weights"));
    if let Some(isa) = isa {
        bench = bench.arg("--isa").arg(isa);
    }
    let engine = if isa.is_some() { Engine::ShohinAvx2 } else { Engine::Shohin };
    let text = bench.read()?;
    let report: Value = serde_json::from_str(&text).map_err(|e| format!("`shohin bench --json`: {e}"))?;
    let (isa, read) = report_samples(&report).ok_or("`shohin bench --json` lacks something")?;
    for (test, wall, cpu, bound) in read {
        samples.push(Sample { bound, ..place.sample(engine, test, wall, cpu) });
    }
    Ok(isa)
}

type Reported = (Test, f64, f64, Option<(f64, f64)>);

/// The instruction set, and for each repetition of each test wall time and CPU time per token in seconds, and the bound.
fn report_samples(report: &Value) -> Option<(String, Vec<Reported>)> {
    let bandwidth = report["memory_gigabytes_per_second"].as_f64()? * 1e9;
    let products = report["gigaproducts_per_second"].as_f64().map(|most| most * 1e9);
    let each = report["products_per_prompt_token"].as_f64()?;
    let mut all = Vec::new();
    for result in report["results"].as_array()? {
        let tokens = result["tokens"].as_u64().filter(|n| *n > 0)?;
        let (test, bound) = match result["test"].as_str()? {
            "prefill" => (Test::Prefill(tokens as usize), products.map(|most| (most, each))),
            _ => {
                let speed = result["tokens_per_second"].as_f64()?;
                (Test::Decode, Some((bandwidth, result["gigabytes_per_second"].as_f64()? * 1e9 / speed)))
            }
        };
        let (walls, cpus) = (result["seconds"].as_array()?, result["cpu_seconds"].as_array()?);
        for (wall, cpu) in walls.iter().zip(cpus) {
            all.push((test, wall.as_f64()? / tokens as f64, cpu.as_f64()? / tokens as f64, bound));
        }
    }
    Some((report["isa"].as_str()?.into(), all))
}

enum Said {
    /// Its version.
    Version(String),
    /// The reason why it could not read the file.
    Cannot(String),
}

fn theirs(
    machine: &Machine,
    models: &Models,
    plan: &Plan,
    place: Place,
    python: &Path,
    samples: Option<(Engine, &mut Vec<Sample>)>,
) -> Result<Said> {
    let mut driver = Cmd::new(python, &machine.root).arg(machine.root.join("xtask/src/bench/llama.py"));
    driver = driver.arg(models.file(place.format)).arg(place.threads.to_string());
    // A run without measurements is not repeated.
    driver = driver.args(if samples.is_some() { "1" } else { "0" });
    driver = driver.arg(LIMIT.to_string()).arg(plan.decode.to_string());
    let text = plan.prefill.iter().fold(driver, |driver, n| driver.arg(n.to_string())).read()?;
    if let Some(why) = text.lines().find_map(|line| line.strip_prefix("cannot ")) {
        return Ok(Said::Cannot(why.into()));
    }
    if let Some((engine, samples)) = samples {
        let read = text.lines().filter_map(sample::read);
        samples.extend(read.map(|(test, wall, cpu)| place.sample(engine, test, wall, cpu)));
    }
    let version = text.lines().find_map(|line| line.strip_prefix("version "));
    version.map(|version| Said::Version(version.into())).ok_or("llama.py says no version".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_our_program_are_read() {
        let report = serde_json::json!({
            "isa": "avx2", "memory_gigabytes_per_second": 20.0,
            "products_per_prompt_token": 3e9, "gigaproducts_per_second": 200.0,
            "results": [
                { "test": "prefill", "tokens": 4, "seconds": [2.0, 4.0], "cpu_seconds": [1.0, 2.0] },
                { "test": "decode", "tokens": 2, "seconds": [1.0], "cpu_seconds": [3.0],
                  "tokens_per_second": 2.0, "gigabytes_per_second": 10.0 },
            ],
        });
        let (isa, samples) = report_samples(&report).expect("a whole report");
        assert_eq!(isa, "avx2");
        let prefill = |wall, cpu| (Test::Prefill(4), wall, cpu, Some((200e9, 3e9)));
        let decode = (Test::Decode, 0.5, 1.5, Some((20e9, 5e9)));
        assert_eq!(samples, [prefill(0.5, 0.25), prefill(1.0, 0.5), decode]);
        // The compute bound is not known for every processor.
        let mut scalar = report;
        scalar["gigaproducts_per_second"] = Value::Null;
        let (_, samples) = report_samples(&scalar).expect("a whole report");
        assert_eq!(samples[0], (Test::Prefill(4), 0.5, 0.25, None));
        assert_eq!(report_samples(&serde_json::json!({ "isa": "avx2", "results": [] })), None);
    }
}
