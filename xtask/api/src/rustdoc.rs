//! `rustdoc` with unstable options, of which JSON is one. It is a program of its own because the variable that allows them would
//! rebuild dependencies whose build scripts look at it.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let run = Command::new("rustdoc").args(std::env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").status();
    match run {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("rustdoc: {e}");
            ExitCode::FAILURE
        }
    }
}
