//! `cargo xtask miri`: the thread pool, whose memory is shared without the compiler's checks, and the readers, in Rust's
//! interpreter. It finds undefined behaviour and data races; the pool runs under many schedules, with stores that other threads
//! see late.

use crate::command::{Cmd, Result};
use crate::machine::Machine;
use crate::package::{CORE, HOST};

/// Tests of core that end within minutes there.
const READERS: &str = "bytes:: json:: arena:: sort:: magnitude:: gguf:: chat::reply chat::snapshot";

pub(crate) fn miri(machine: &Machine, seeds: &str) -> Result<()> {
    let rustup = |line: &str| -> Cmd {
        let cmd = machine.cmd("rustup").args(line);
        ["RUSTUP_TOOLCHAIN", "RUSTFLAGS", "CARGO", "RUSTC"].iter().fold(cmd, |cmd, name| cmd.env_remove(name))
    };
    if rustup("run nightly cargo miri --version").read().is_err() {
        rustup("toolchain install nightly --profile minimal --component miri,rust-src").run()?;
    }
    let tests = |package: &str| {
        let tests = rustup("run nightly cargo miri test --lib").packages(&[package]);
        tests.arg("--target-dir").arg(machine.target.join("miri"))
    };
    let flags = "-Zmiri-disable-isolation -Zmiri-ignore-leaks";
    tests(HOST)
        .args("-- threads::")
        .env("MIRIFLAGS", format!("{flags} -Zmiri-many-seeds=0..{seeds}"))
        .run()?;
    tests(CORE).args("--").args(READERS).env("MIRIFLAGS", flags).run()
}
