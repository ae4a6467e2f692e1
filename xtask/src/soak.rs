//! `cargo xtask soak`: the server with the built-in model, under the load of `server/examples/load.rs`.

use crate::command::Result;
use crate::machine::Machine;
use crate::package::{CLI, PROGRAM, SERVER};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Ends the server with this program.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn soak(machine: &Machine, requests: usize) -> Result<()> {
    machine.cargo().args("build --profile suite").packages(&[CLI]).run()?;
    soak_on(machine, &machine.target.join("suite").join(PROGRAM), requests, &[])
}

/// Soaks a server that this program starts with these options.
pub(crate) fn soak_on(machine: &Machine, program: &Path, requests: usize, options: &[&str]) -> Result<()> {
    machine.cargo().args("build --profile suite").packages(&[SERVER]).args("--example load").run()?;
    let mut server = Command::new(program);
    server
        .args(["serve", "--port", "0", "--context", "512"])
        .args(options)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    let mut server = Running(server.spawn().map_err(|e| format!("{PROGRAM}: {e}"))?);
    let said = server.0.stderr.take().ok_or("the server has no output")?;
    let mut lines = BufReader::new(said).lines();
    let address = lines.by_ref().map_while(std::result::Result::ok).find_map(|line| {
        let (_, rest) = line.split_once(" at http://")?;
        Some(format!("http://{}", rest.split('/').next()?))
    });
    let address = address.ok_or("the server does not say where it listens")?;
    // What it says further on must be read, or it would wait.
    std::thread::spawn(move || lines.for_each(drop));
    let load = machine.cmd(&machine.target.join("suite/examples/load").to_string_lossy());
    let load = load.arg(&address).arg("soak").arg(requests.to_string()).arg(server.0.id().to_string());
    load.run()
}
