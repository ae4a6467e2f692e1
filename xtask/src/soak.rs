//! `cargo xtask soak`: the server with the built-in model, under the load of `server/examples/load.rs`.

use crate::command::Result;
use crate::machine::Machine;
use crate::package::{CLI, PROGRAM, SERVER};
use std::io::{BufRead, BufReader};
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
    let build = || machine.cargo().args("build --profile suite");
    build().packages(&[CLI]).run()?;
    build().packages(&[SERVER]).args("--example load").run()?;
    let folder = machine.target.join("suite");
    let mut server = Command::new(folder.join(PROGRAM));
    server
        .args(["serve", "--port", "0", "--context", "512"])
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
    let load = machine.cmd(&folder.join("examples/load").to_string_lossy());
    let load = load.arg(&address).arg("soak").arg(requests.to_string()).arg(server.0.id().to_string());
    load.run()
}
