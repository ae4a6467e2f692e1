//! The page's part of a soak, `web-demo/test/soak.mjs`.

use super::Running;
use crate::command::Result;
use crate::machine::Machine;
use crate::{suite, web};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The page, built.
pub(super) struct Page(Command);

impl Page {
    pub(super) fn build(machine: &mut Machine) -> Result<Page> {
        machine.prepare(suite::BROWSERS);
        web::build(machine)?;
        let mut client = suite::in_browsers(machine, machine.cmd("node"))?.command();
        client.arg("web-demo/test/soak.mjs").stdin(Stdio::piped());
        Ok(Page(client))
    }

    /// Chats until it is over: the client ends with its input.
    pub(super) fn soak(mut self, over: &AtomicBool) -> Result<()> {
        let mut client = Running(self.0.spawn().map_err(|e| format!("node: {e}"))?);
        loop {
            std::thread::sleep(Duration::from_millis(500));
            if over.load(Ordering::Relaxed) {
                drop(client.0.stdin.take());
            }
            match client.0.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if status.success() && over.load(Ordering::Relaxed) => return Ok(()),
                Ok(Some(status)) => return Err(format!("the client of the page ended with {status}")),
                Err(e) => return Err(format!("node: {e}")),
            }
        }
    }
}
