//! The page's part of a soak, `web-demo/test/soak.mjs`.

use super::Running;
use crate::command::Result;
use crate::machine::Machine;
use crate::{suite, web};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The client ends its round within this time, also on a machine with much other work.
const LAST_ROUND: Duration = Duration::from_secs(300);

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
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(500));
            match client.0.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Err(format!("the client of the page ended early, with {status}")),
                Err(e) => return Err(format!("node: {e}")),
            }
        }
        drop(client.0.stdin.take());
        match client.ended(LAST_ROUND).map_err(|why| format!("the client of the page {why}"))? {
            status if status.success() => Ok(()),
            status => Err(format!("the client of the page ended with {status}")),
        }
    }
}
