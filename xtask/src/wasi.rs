//! The program `shohin` under WASI, in Node, with the directory of models as all that it sees: the dialogues of
//! `examples/firmware`, which a test compares with the desktop's replies.

use crate::command::{Cmd, HANGS, Result, Tally};
use crate::firmware::{MODELS, input, read, replies};
use crate::machine::Machine;
use crate::package::{CLI, TESTS};

/// As in `tests/tests/firmware.rs`.
const OPTIONS: &str = "chat --kv q8 --context 256 --temperature 0 --model";

/// Builds and runs it. `cargo` is that of the target.
pub(crate) fn run(m: &Machine, cargo: impl Fn(&str) -> Cmd, target: &str) -> Result<Tally> {
    // Of two packages, so that core is that of the tests; of the second only its features count.
    cargo("build --profile suite --bin shohin").packages(&[CLI, TESTS]).run()?;
    let program = m.target_of(target).join(target).join("suite/shohin.wasm");
    let shohin = |args: &str| {
        let node = m.cmd("node").arg("--no-warnings").arg(m.root.join("xtask/wasi.mjs")).arg(&program);
        node.env("SHOHIN_WASI_DIR", m.root.join("models")).limit(HANGS).args(args)
    };
    let mut passed = 0;
    for model in MODELS {
        let dialogue = read(&m.root.join("examples/firmware/replies").join(model).with_extension("txt"))?;
        let file = format!("{model}.gguf");
        let said = shohin(OPTIONS).arg(&file).input(&input(&dialogue)).read()?;
        let expected: String = replies(&dialogue)
            .lines()
            .filter(|line| !line.starts_with("# "))
            .map(|line| format!("{line}\n"))
            .collect();
        if said != expected {
            return Err(format!("{model} under WASI replied\n{said}and the desktop\n{expected}"));
        }
        // The kernels for simd128 against the reference.
        let report = shohin("check --model").arg(&file).read()?;
        if !report.lines().any(|line| line.trim_start().starts_with("simd128") && line.contains("yes")) {
            return Err(format!("{model} under WASI: simd128 was not compared\n{report}"));
        }
        println!("shohin.wasm {model}: the desktop's replies, simd128 as the reference");
        passed += 2;
    }
    let outside = shohin("inspect --model ../Cargo.toml").read();
    if !outside.as_ref().is_err_and(|why| why.contains("cannot open the model ../Cargo.toml")) {
        return Err(format!("a file outside the directory was not refused: {outside:?}"));
    }
    Ok(Tally { passed: passed + 1, ..Tally::default() })
}
