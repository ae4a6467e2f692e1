//! Cores are those that the process may use: memory nodes are known on Linux only.

/// The cores that a rank's threads run on.
#[derive(Clone, Debug, Default)]
pub(super) struct Cores;

/// Nothing to undo.
#[derive(Debug)]
#[must_use]
pub(super) struct Bound;

impl Cores {
    pub(super) fn bind(&self) -> Bound {
        Bound
    }

    pub(super) fn of_ranks(ranks: usize, _threads: usize) -> Vec<Cores> {
        vec![Cores; ranks]
    }
}
