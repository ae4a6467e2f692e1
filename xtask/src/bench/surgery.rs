//! `cargo xtask bench --surgery`: what `prune`, `compress`, `smooth` and `quantize` do to the perplexity of SmolLM2.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use crate::command::{Cmd, Result};
use crate::machine::{Machine, Need};
use crate::package;

/// What is trained and calibrated on, and what is measured: prose of this repository that no model was trained on.
const TEXT: &str = "docs/SESSIONS.md";
const MEASURED: &str = "docs/SERVER.md";
/// Tokens that are measured.
const LIMIT: usize = 2048;

/// What is done, and the commands, of which the last writes what is measured. `MODEL` is the model, `TEXT` the text, `STATS` its statistics, and `SMOOTH`
/// another model on the way.
const CASES: &[(&str, &str)] = &[
    ("half of the weights 0, L1", "prune MODEL --sparsity 0.5 --type f16"),
    ("half of the weights 0, across matrices", "prune MODEL --sparsity 0.5 --global --type f16"),
    ("half of the weights 0, Taylor", "prune MODEL --sparsity 0.5 --method taylor --text TEXT --type f16"),
    ("2:4, L1", "prune MODEL --pattern 2:4 --type f16"),
    ("2:4, L1, 20 steps of recovery", "prune MODEL --pattern 2:4 --type f16 --recover TEXT --steps 20"),
    (
        "a tenth of the layers left out, L2",
        "prune MODEL --structure layers --sparsity 0.1 --method l2 --type f16",
    ),
    (
        "a tenth of the layers left out, Taylor",
        "prune MODEL --structure layers --sparsity 0.1 --method taylor --text TEXT --type f16",
    ),
    (
        "a tenth of the neurons left out, Taylor",
        "prune MODEL --structure neurons --sparsity 0.1 --method taylor --text TEXT --type f16",
    ),
    (
        "one of three key and value heads left out, Taylor",
        "prune MODEL --structure heads --sparsity 0.34 --method taylor --text TEXT --type f16",
    ),
    ("Q8_0", "quantize MODEL --type q8_0"),
    ("Q4_K_M", "quantize MODEL --type q4_k_m"),
    ("a chosen format for each matrix, 86 MB", "compress MODEL --target-bytes 86MB"),
    ("a chosen format for each matrix, 100 MB", "compress MODEL --target-bytes 100MB"),
    (
        "a tenth of the layers left out, 20 steps of recovery, Q8_0",
        "compress MODEL --structure layers --sparsity 0.1 --recover TEXT --steps 20 --type q8_0",
    ),
];

/// The same, measured with activations of 8 bits.
const CASES_INT8: &[(&str, &str)] = &[
    ("W8A8: a scale for each row", "quantize MODEL --type int8_channel"),
    (
        "W8A8, smoothed by 0.5",
        "smooth MODEL --stats STATS --force --out SMOOTH && quantize SMOOTH --type int8_channel",
    ),
    (
        "W8A8, smoothed by search",
        "smooth MODEL --stats STATS --search --force --out SMOOTH && quantize SMOOTH --type int8_channel",
    ),
    ("W8A8: Q8_0", "quantize MODEL --type q8_0"),
    ("W4A8: Q4_0", "quantize MODEL --type q4_0"),
    (
        "W4A8: Q4_0, smoothed by 0.5",
        "smooth MODEL --stats STATS --force --out SMOOTH && quantize SMOOTH --type q4_0",
    ),
    (
        "W4A8: Q4_0, smoothed by search",
        "smooth MODEL --stats STATS --search --for q4_0 --force --out SMOOTH && quantize SMOOTH --type q4_0",
    ),
];

/// Prints a table.
pub(crate) fn surgery(machine: &mut Machine) -> Result<()> {
    super::prepare(machine, &[Need::SmolLm2])?;
    machine.cargo().args("build --release").packages(&[package::CLI]).run()?;
    let shohin = machine.target.join("release").join(package::PROGRAM);
    let folder = machine.target.join("bench-surgery");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let run = |args: &str| Cmd::new(&shohin, &machine.root).args(args).read();
    let (model, out) = (folder.join("smollm2-f16.gguf"), folder.join("out.gguf"));
    let source = machine.smollm2();
    run(&format!("quantize {} --type f16 --force --out {}", source.display(), model.display()))?;
    let perplexity = |file: &std::path::Path, act: &str| -> Result<f64> {
        let said = run(&format!("eval {MEASURED} -m {} --act {act} --limit {LIMIT} --json", file.display()))?;
        let said: Value = serde_json::from_str(&said).map_err(|e| format!("eval: {e}"))?;
        said["perplexity"].as_f64().ok_or_else(|| "eval said no perplexity".into())
    };
    let size = |file: &std::path::Path| fs::metadata(file).map_or(0, |file| file.len()) as f64 / 1e6;
    let (stats, smooth) = (folder.join("stats"), folder.join("smooth.gguf"));
    run(&format!("calibrate {} --text {TEXT} --force --json --out {}", model.display(), stats.display()))?;
    let places = [("MODEL", &model), ("STATS", &stats), ("SMOOTH", &smooth)];
    for (act, cases) in [("f32", CASES), ("int8", CASES_INT8)] {
        println!("| SmolLM2-135M, F16, activations in {act} | MB | perplexity | s |\n|---|---:|---:|---:|");
        println!("| as it is | {:.1} | {:.2} | |", size(&model), perplexity(&model, act)?);
        for (name, commands) in cases {
            let commands = commands.replace("TEXT", TEXT);
            let commands = places
                .iter()
                .fold(commands, |commands, (name, path)| commands.replace(name, &path.display().to_string()));
            let start = Instant::now();
            let mut commands = commands.split(" && ").peekable();
            while let Some(command) = commands.next() {
                match commands.peek() {
                    Some(_) => run(command)?,
                    None => run(&format!("{command} --force --json --out {}", out.display()))?,
                };
            }
            let seconds = start.elapsed().as_secs_f64();
            println!("| {name} | {:.1} | {:.2} | {seconds:.0} |", size(&out), perplexity(&out, act)?);
        }
        println!();
    }
    Ok(())
}
