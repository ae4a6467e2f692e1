//! `cargo xtask soak`: the built-in model under load for a long time, by the server, in the terminal and in the page.

mod page;
mod terminal;

use crate::command::Result;
use crate::machine::Machine;
use crate::package::{CLI, PROGRAM, SERVER};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Within this time an answer comes and a command ends, also on a machine with much other work; later is an error.
const SOON: Duration = Duration::from_secs(120);

/// A process that ends with this value.
struct Running(Child);

impl Running {
    /// Waits until it ends; an error after this time.
    fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(None) if start.elapsed() > limit => return Err(format!("did not end within {limit:?}")),
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Ok(Some(status)) => return Ok(status),
                Err(e) => return Err(format!("cannot be waited for: {e}")),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs all three until `end`, a number of requests to the server or hours, as `server/examples/load.rs` takes it.
pub(crate) fn soak(machine: &mut Machine, end: &str) -> Result<()> {
    machine.cargo().args("build --profile suite").packages(&[CLI]).run()?;
    let page = page::Page::build(machine)?;
    let program = machine.target.join("suite").join(PROGRAM);
    let over = AtomicBool::new(false);
    // At once: the server's load goes on for hours.
    let say = |why: &String| eprintln!("FAILED: {why}");
    thread::scope(|scope| {
        let terminal = scope.spawn(|| terminal::soak(machine, &program, &over).inspect_err(say));
        let page = scope.spawn(|| page.soak(&over).inspect_err(say));
        let server = soak_server(machine, &program, end, &[]);
        over.store(true, Ordering::Relaxed);
        let panicked = |_| "a client panicked".to_string();
        let results = [server, terminal.join().map_err(panicked)?, page.join().map_err(panicked)?];
        results.into_iter().collect()
    })
}

/// Soaks a server that this program starts with these options.
pub(crate) fn soak_server(machine: &Machine, program: &Path, end: &str, options: &[&str]) -> Result<()> {
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
    // It would wait on a full pipe.
    thread::spawn(move || lines.for_each(drop));
    let load = machine.cmd(&machine.target.join("suite/examples/load").to_string_lossy());
    let load = load.arg(&address).arg("soak").arg(end).arg(server.0.id().to_string());
    load.run()
}
