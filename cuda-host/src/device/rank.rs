//! What a rank of a group has, and the end of a group that has lost a rank.

use crate::driver::{Driver, Memory};
use crate::error::Result;
use crate::nccl::Communicator;
use shohin_core::Error as CoreError;
use shohin_core::collective::Collective;
use std::sync::Arc;

/// The other ranks, and memory for what they compute.
pub(super) struct Rank<D: Driver> {
    /// Dropped before the memory: it needs the GPU for that.
    pub(super) communicator: Arc<Communicator>,
    /// Knows whether the threads of the ranks are there.
    pub(super) group: Arc<dyn Collective>,
    /// `(ranks, rows, cols)` of the largest exchange.
    pub(super) gathered: Memory<D>,
    /// This rank's part of the logits: `(logit_rows, its tokens)`.
    pub(super) logits: Memory<D>,
    /// What comes back from the last stage of a pipeline: `(batch, cols)`.
    pub(super) returned: Memory<D>,
}

impl<D: Driver> Rank<D> {
    pub(super) fn is_first(&self) -> bool {
        self.communicator.rank() == 0
    }

    /// Where this rank's part of the logits is.
    pub(super) fn logits(&self) -> u64 {
        self.logits.address()
    }

    pub(super) fn check(&self) -> Result<()> {
        self.communicator.check()?;
        Ok(self.group.check()?)
    }

    /// Begins work that all ranks do.
    pub(super) fn begin(&self) -> Result<Turn> {
        self.check()?;
        Ok(Turn(Some(Arc::clone(&self.communicator))))
    }
}

/// Work that all ranks do: if it does not end well, the group does.
pub(super) struct Turn(Option<Arc<Communicator>>);

impl Turn {
    pub(super) fn end<T>(mut self, done: Result<T>) -> Result<T> {
        let communicator = self.0.take();
        if let (Some(communicator), Err(error)) = (communicator, &done) {
            communicator.fail(*error);
        }
        done
    }
}

impl Drop for Turn {
    /// After a panic.
    fn drop(&mut self) {
        if let Some(communicator) = self.0.take() {
            communicator.fail(CoreError::Device { problem: "a rank of the split model was lost" }.into());
        }
    }
}
