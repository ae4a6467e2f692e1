//! What the first of several ranks has of the others.

use super::corpus::Corpus;
use crate::error::{Error, Result};
use crate::split::{Group, ThreadGroup, lost};
use shohin_core::collective::Collective;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::Sender;

/// What the first rank does, and tells the others to do.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Step(Corpus),
    Plateau(f64),
    Resume(PathBuf),
    ResumeChanged(PathBuf),
    InitFrom(PathBuf),
}

/// The failure that came first; `None` if it is the first rank's, which returns it itself.
pub(super) type Failure = OnceLock<Option<Error>>;

/// The other ranks.
#[derive(Debug)]
pub(super) struct Others<'r> {
    pub(super) group: &'r ThreadGroup,
    pub(super) calls: Vec<Sender<Call>>,
    pub(super) failure: &'r Failure,
}

impl Others<'_> {
    /// Tells them what to do next.
    pub(super) fn tell(&self, call: &Call) -> Result<()> {
        self.group.check()?;
        Ok(self.calls.iter().try_for_each(|to| to.send(call.clone()).map_err(|_| lost()))?)
    }

    /// Ends them, as they would wait for what the first rank will not do.
    pub(super) fn fail(&self) {
        self.failure.get_or_init(|| None);
        self.group.fail();
    }
}

/// Waits for all ranks.
pub(super) fn meet(group: &ThreadGroup) -> Result<()> {
    Ok(group.all_gather(&[0.0], &mut vec![0.0; group.ranks()])?)
}
