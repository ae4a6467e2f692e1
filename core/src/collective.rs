//! Communication among the ranks that run the parts of a split program, see [`Program::split`](crate::model::Program::split).
//! Hosts supply it: threads of a process, or processes of several machines.
#![forbid(unsafe_code)]

use crate::error::Result;

/// One rank's side of a group. All ranks make the same calls in the same order, except for [`Collective::send`] and
/// [`Collective::receive`]. Every call fails once a rank of the group is lost.
pub trait Collective: Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Whether all ranks are still there, as far as this one knows without waiting.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a rank is lost.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Gives `mine` to every rank, and receives theirs in the order of the ranks: `all (ranks, mine.len())`.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if a rank is lost.
    fn all_gather(&self, mine: &[f32], all: &mut [f32]) -> Result<()>;

    /// Adds up `x` of all ranks. `all`, `(ranks, x.len())`, is scratch memory.
    ///
    /// Unless an engine has something faster, each rank adds what all have, in the order of the ranks: all get the same
    /// bits.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn all_reduce(&self, x: &mut [f32], all: &mut [f32]) -> Result<()> {
        self.all_gather(x, all)?;
        let mut parts = all.chunks_exact(x.len().max(1));
        x.iter_mut().zip(parts.next().unwrap_or(&[])).for_each(|(x, first)| *x = *first);
        for part in parts {
            x.iter_mut().zip(part).for_each(|(x, part)| *x += part);
        }
        Ok(())
    }

    /// Sends `x` to another rank, which may receive it later.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn send(&self, to: usize, x: &[f32]) -> Result<()>;

    /// Receives what a rank has sent, in order.
    ///
    /// # Errors
    /// As [`Collective::all_gather`]; [`Error::Length`](crate::Error::Length) if the rank sent another number.
    fn receive(&self, from: usize, x: &mut [f32]) -> Result<()>;
}
