//! What ranks exchange, and what a group needs of its devices.

use shohin_core::collective::Collective;
use shohin_core::device::BlockingDevice;
use std::sync::MutexGuard;

/// What a group needs of the device of a rank.
pub(crate) trait RankDevice:
    BlockingDevice<Cache: Send, Error: Into<shohin_core::Error>> + Send + 'static
{
    /// Lets the other ranks know that this one will not answer.
    fn leave_group(&mut self);

    /// The lengths of the runs of heads that a block of an exported cache consists of, in bytes, for `len` positions: in the
    /// export of a whole model, those of all ranks that divide the heads are side by side in each run.
    fn head_runs(&self, cache: &Self::Cache, len: usize) -> Vec<usize>;
}

/// The error of ranks that find another one gone.
pub(crate) fn lost() -> shohin_core::Error {
    shohin_core::Error::Device { problem: "a rank of the split model was lost" }
}

/// Refuses another count of numbers than was expected of another rank.
pub(super) fn fit(expected: usize, found: usize) -> shohin_core::Result<()> {
    let (expected, found) = (expected as u64, found as u64);
    match expected == found {
        true => Ok(()),
        false => Err(shohin_core::Error::Length { what: "numbers of another rank", expected, found }),
    }
}

/// A thread's turn to use a group that several devices share.
#[derive(Debug, Default)]
pub(crate) struct Turn<'g> {
    pub(super) _held: Option<MutexGuard<'g, ()>>,
}

/// A rank's side of a group: numbers among all ranks, and orders from rank 0 to the others.
pub(crate) trait Group: Collective {
    /// On rank 0, gives an order to all others.
    fn order(&self, order: &str) -> shohin_core::Result<()>;

    /// Waits for a turn, which lasts from an order to the end of what all ranks then do.
    fn turn(&self) -> shohin_core::Result<Turn<'_>> {
        Ok(Turn::default())
    }

    /// Ends the group, as its ranks are out of step: all later calls are errors.
    fn fail(&self);
}
