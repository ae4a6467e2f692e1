//! `cargo xtask bench --train`: steps of training sprout, here and in PyTorch in turn.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::native::processor;
use super::peers;
use crate::command::{Cmd, Result};
use crate::machine::{Machine, Need};
use crate::package;

/// Rows, and tokens of a row.
const SIZES: [(usize, usize); 3] = [(4, 512), (8, 256), (16, 64)];
const THREADS: [usize; 2] = [1, 2];
/// Steps of a measurement, of which the fastest counts.
const STEPS: usize = 8;

/// The most tokens a second of each engine, by rows, tokens of a row and threads.
type Fastest = BTreeMap<(usize, usize, usize), BTreeMap<String, f64>>;

/// Prints a table.
pub(crate) fn train(machine: &mut Machine, rounds: usize) -> Result<()> {
    super::prepare(machine, &[Need::Program(&crate::machine::PYTHON)])?;
    machine.cargo().args("build --release").packages(&[package::CLI]).run()?;
    let python = peers::torch(machine)?;
    let folder = machine.target.join("bench-train");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let tokens = folder.join("tokens");
    fs::write(&tokens, random_tokens(1 << 17)).map_err(|e| format!("{}: {e}", tokens.display()))?;
    let (mut fastest, mut torch) = (Fastest::new(), String::new());
    for round in 0..rounds {
        for (rows, row_tokens) in SIZES {
            for threads in THREADS {
                println!("round {} of {rounds}: {rows} x {row_tokens}, threads: {threads}", round + 1);
                let all = fastest.entry((rows, row_tokens, threads)).or_default();
                let mut keep = |name: &str, found: f64| {
                    let best = all.entry(name.to_string()).or_default();
                    *best = best.max(found);
                };
                keep("shohin", ours(machine, &folder, (rows, row_tokens, threads))?);
                let args = format!("xtask/src/bench/train.py {rows} {row_tokens} {threads} {STEPS}");
                let said = Cmd::new(&python, &machine.root).args(&args).read()?;
                let said: Value = serde_json::from_str(&said).map_err(|e| format!("train.py: {e}"))?;
                for (name, value) in said.as_object().into_iter().flatten() {
                    match value.as_f64() {
                        Some(rate) => keep(name, rate),
                        None => torch = value.as_str().unwrap_or_default().to_string(),
                    }
                }
            }
        }
    }
    print(&fastest, &torch);
    Ok(())
}

/// Tokens of sprout's vocabulary, little-endian.
fn random_tokens(n: usize) -> Vec<u8> {
    let mut state = 1u32;
    let token = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 21).to_le_bytes()
    };
    (0..n).flat_map(token).collect()
}

fn ours(machine: &Machine, folder: &Path, (rows, row_tokens, threads): (usize, usize, usize)) -> Result<f64> {
    let shohin = machine.target.join("release").join(package::PROGRAM);
    let at = |name: &str| folder.join(name).display().to_string();
    let steps = STEPS + 1;
    Cmd::new(shohin, &machine.root)
        .args("train -m models/sprout.gguf --weights ternary --lr 1e-3 --json --force")
        .args(&format!("--rows {rows} --row-tokens {row_tokens} --steps {steps} --threads {threads}"))
        .args(&format!("--tokens {} --log {} --out {}", at("tokens"), at("log"), at("out.gguf")))
        .read()?;
    let log = fs::read_to_string(folder.join("log")).map_err(|e| format!("the log of training: {e}"))?;
    let rates = log
        .lines()
        .skip(1)
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["tokens_per_second"].as_f64());
    Ok(rates.fold(0.0, f64::max))
}

fn print(fastest: &Fastest, torch: &str) {
    println!(
        "\nSprout, ternary, AdamW, tokens a second, the fastest step of each; {}; PyTorch {torch}\n",
        processor()
    );
    println!(
        "| rows x tokens | threads | shohin | torch compiled f32 | compiled bf16 | eager f32 | shohin / compiled f32 | / bf16 |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for ((rows, row_tokens, threads), all) in fastest {
        let of = |name: &str| all.get(name).copied().unwrap_or(0.0);
        let [ours, f32, bf16, eager] = ["shohin", "compiled f32", "compiled bf16", "eager f32"].map(of);
        println!(
            "| {rows} x {row_tokens} | {threads} | {ours:.0} | {f32:.0} | {bf16:.0} | {eager:.0} | {:.2} | {:.2} |",
            ours / f32,
            ours / bf16
        );
    }
}
