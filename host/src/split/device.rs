//! A device whose work is divided among ranks. Rank 0 tells the others what to do; all of them then exchange numbers within
//! the forward pass.

use super::group::{Group, RankDevice, fit};
use super::numa::Cores;
use super::order::{self, Order};
use super::thread_group::ThreadGroup;
use shohin_core::collective::Collective;
use shohin_core::device::{Batch, BlockingDevice, Device, SessionOptions, Sink, Wants, check_run, ready};
use shohin_core::model::{ModelConfig, Program, Split};
use shohin_core::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The last order to the followers.
const END: &str = "end";

/// Rank 0 of a group.
#[derive(Debug)]
pub(crate) struct SplitDevice<R: RankDevice> {
    device: R,
    /// Dropped before the followers are joined: those that have not ended then do.
    pub(crate) group: Option<Arc<dyn Group>>,
    followers: Vec<JoinHandle<()>>,
    split: Split,
    /// Blocks of the whole model.
    blocks: usize,
    /// Where rank 0 computes.
    cores: Cores,
    next: u32,
    /// Caches that were dropped, and are to be forgotten by the others.
    dropped: Arc<Mutex<Vec<u32>>>,
}

impl std::fmt::Debug for dyn Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.ranks())
    }
}

/// Keys and values of a sequence: those of rank 0, and the number of those of the others.
#[derive(Debug)]
pub(crate) struct SplitCache<C> {
    cache: C,
    id: u32,
    dropped: Arc<Mutex<Vec<u32>>>,
}

impl<C> Drop for SplitCache<C> {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}

/// Work that all ranks do: unless it ends well, the group ends, as its ranks are out of step.
struct Unfinished<'g>(&'g dyn Group);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

/// Waits for a rank's own device.
fn wait<R: RankDevice, T>(future: impl Future<Output = Result<T, R::Error>>) -> Result<T> {
    R::wait(future).map_err(Into::into)
}

/// Bytes as numbers for another rank, filled up with zeros.
fn as_floats(bytes: &[u8]) -> Vec<f32> {
    let word = |word: &[u8]| {
        let mut all = [0; 4];
        all[..word.len()].copy_from_slice(word);
        f32::from_le_bytes(all)
    };
    bytes.chunks(4).map(word).collect()
}

/// Receives `len` bytes that a rank has sent by [`as_floats`].
fn receive(group: &dyn Collective, from: usize, len: usize) -> Result<Vec<u8>> {
    let mut floats = vec![0.0; len.div_ceil(4)];
    group.receive(from, &mut floats)?;
    let mut bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
    bytes.truncate(len);
    Ok(bytes)
}

/// Whether all ranks have succeeded.
fn agree(group: &dyn Collective, mine: bool) -> Result<bool> {
    let mut all = vec![0.0; group.ranks()];
    group.all_gather(&[f32::from(u8::from(mine))], &mut all)?;
    Ok(all.iter().all(|&one| one == 1.0))
}

impl<R: RankDevice> SplitDevice<R> {
    /// Rank 0, and the threads of the others, if they are threads. `program` is that of the whole model.
    pub(super) fn new(
        device: R,
        group: Arc<dyn Group>,
        followers: Vec<JoinHandle<()>>,
        split: Split,
        program: &Program,
        cores: Cores,
    ) -> SplitDevice<R> {
        let blocks = program.layers;
        SplitDevice {
            device,
            group: Some(group),
            followers,
            split,
            blocks,
            cores,
            next: 0,
            dropped: Arc::default(),
        }
    }

    /// Gives an order, and does rank 0's share of it. An error or a panic ends the group.
    fn lead<T>(
        &mut self,
        order: &str,
        work: impl FnOnce(&mut SplitDevice<R>, &dyn Group) -> Result<T>,
    ) -> Result<T> {
        let group = self.group.clone().ok_or(Error::Device { problem: "the group has ended" })?;
        let _turn = group.turn()?;
        let _bound = self.cores.bind();
        let unfinished = Unfinished(&*group);
        let done = self.order(&*group, order).and_then(|()| work(self, &*group))?;
        std::mem::forget(unfinished);
        Ok(done)
    }

    fn order(&self, group: &dyn Group, order: &str) -> Result<()> {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        if !dropped.is_empty() {
            let ids: Vec<String> = dropped.iter().map(u32::to_string).collect();
            group.order(&format!("forget {}", ids.join(" ")))?;
        }
        group.order(order)
    }

    /// Bytes of the exported keys and values of a block on one rank.
    fn block_bytes(&self, cache: &SplitCache<R::Cache>, len: usize) -> usize {
        self.device.head_runs(&cache.cache, len).iter().sum()
    }

    /// The places of what each rank exports among the bytes of the whole model, in the order of the ranks.
    fn places(&self, cache: &SplitCache<R::Cache>, len: usize) -> Vec<Vec<Range<usize>>> {
        places(self.split, self.blocks, &self.device.head_runs(&cache.cache, len))
    }
}

/// [`SplitDevice::places`] of a model with `blocks` blocks, each of whose exports has `runs` on a rank.
fn places(split: Split, blocks: usize, runs: &[usize]) -> Vec<Vec<Range<usize>>> {
    let (ranks, block): (usize, usize) = (split.ranks(), runs.iter().sum());
    match split {
        Split::Pipeline(_) => {
            let of = |rank| blocks * rank / ranks..blocks * (rank + 1) / ranks;
            (0..ranks).map(|rank| of(rank).map(|at| at * block..(at + 1) * block).collect()).collect()
        }
        // In each run, the heads are those of rank 0, then those of rank 1, and so on.
        Split::Tensor(_) | Split::TensorReduce(_) => {
            let mut all = vec![Vec::new(); ranks];
            let mut at = 0;
            for run in (0..blocks).flat_map(|_| runs) {
                for places in &mut all {
                    places.push(at..at + run);
                    at += run;
                }
            }
            all
        }
    }
}

impl<R: RankDevice> Drop for SplitDevice<R> {
    fn drop(&mut self) {
        if !self.followers.is_empty() {
            // Followers may still wait for the end of what rank 0 has the results of, and would find it gone. If the group has
            // failed, they are told below.
            let _ = self.lead(END, |_, group| agree(group, true));
        }
        // Ends what they wait for, and their loops.
        self.device.leave_group();
        self.group = None;
        for follower in self.followers.drain(..) {
            // One that panicked has already been reported as lost.
            let _ = follower.join();
        }
    }
}

impl<R: RankDevice> Device for SplitDevice<R> {
    type Cache = SplitCache<R::Cache>;
    type Error = Error;

    fn config(&self) -> &ModelConfig {
        self.device.config()
    }

    fn program(&self) -> &Program {
        self.device.program()
    }

    fn batch(&self) -> usize {
        self.device.batch()
    }

    async fn cache(&mut self, options: &SessionOptions) -> Result<SplitCache<R::Cache>> {
        // What rank 0 refuses, it refuses alone.
        let cache = self.device.cache(options).await.map_err(Into::into)?;
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let cache = SplitCache { cache, id, dropped: Arc::clone(&self.dropped) };
        match self.lead(&order::cache(id, options), |_, group| agree(group, true))? {
            true => Ok(cache),
            false => Err(Error::Device { problem: "another rank has no memory for the cache" }),
        }
    }

    fn cache_options(&self, cache: &SplitCache<R::Cache>) -> SessionOptions {
        self.device.cache_options(&cache.cache)
    }

    async fn run(
        &mut self,
        batch: &Batch<'_>,
        caches: &mut [&mut SplitCache<R::Cache>],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let vocab = self.program().vocab();
        for (run, cache) in batch.iter().zip(caches.iter()) {
            check_run(run, self.cache_options(cache).context, vocab)?;
        }
        let order = order::run(caches.iter().map(|cache| cache.id).zip(batch));
        let mut caches: Vec<&mut R::Cache> = caches.iter_mut().map(|cache| &mut cache.cache).collect();
        self.lead(&order, |this, _| wait::<R, _>(this.device.run(batch, &mut caches, sink)))
    }

    fn logits(&mut self) -> &[f32] {
        self.device.logits()
    }

    fn shift(
        &mut self,
        cache: &mut SplitCache<R::Cache>,
        len: usize,
        keep: usize,
        drop: usize,
    ) -> Result<usize> {
        let order = format!("shift {} {len} {keep} {drop}", cache.id);
        self.lead(&order, |this, _| this.device.shift(&mut cache.cache, len, keep, drop).map_err(Into::into))
    }

    fn export_len(&self, cache: &SplitCache<R::Cache>, len: usize) -> usize {
        let parts = if matches!(self.split, Split::Pipeline(_)) { 1 } else { self.split.ranks() };
        self.block_bytes(cache, len) * self.blocks * parts
    }

    /// In the order of a device that is not split.
    async fn export(
        &mut self,
        cache: &mut SplitCache<R::Cache>,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (start, need) = (out.len(), self.export_len(cache, len));
        out.try_reserve(need).map_err(|_| Error::Memory { need: need as u64, have: 0 })?;
        out.resize(start + need, 0);
        self.lead(&format!("export {} {len}", cache.id), |this, group| {
            for (rank, places) in this.places(cache, len).into_iter().enumerate() {
                let part = match rank {
                    0 => {
                        let mut part = Vec::new();
                        wait::<R, _>(this.device.export(&mut cache.cache, len, &mut part))?;
                        part
                    }
                    rank => receive(group, rank, places.iter().map(ExactSizeIterator::len).sum())?,
                };
                let mut rest = &part[..];
                for place in places {
                    let (run, after) = rest.split_at_checked(place.len()).unwrap_or((&[], &[]));
                    fit(place.len(), run.len())?;
                    out[start..][place].copy_from_slice(run);
                    rest = after;
                }
            }
            Ok(())
        })
    }

    fn import(&mut self, cache: &mut SplitCache<R::Cache>, len: usize, from: &[u8]) -> Result<()> {
        let (expected, found) = (self.export_len(cache, len) as u64, from.len() as u64);
        if expected != found {
            return Err(Error::Length { what: "imported keys and values", expected, found });
        }
        self.lead(&format!("import {} {len}", cache.id), |this, group| {
            for (rank, places) in this.places(cache, len).into_iter().enumerate() {
                let part: Vec<u8> = places.into_iter().flat_map(|place| &from[place]).copied().collect();
                match rank {
                    0 => this.device.import(&mut cache.cache, len, &part).map_err(Into::into)?,
                    rank => group.send(rank, &as_floats(&part))?,
                }
            }
            Ok(())
        })
    }
}

impl<R: RankDevice> BlockingDevice for SplitDevice<R> {
    fn wait<F: Future<Output = Result<T>>, T>(future: F) -> Result<T> {
        // Its calls wait for the ranks themselves.
        ready(future).unwrap_or(Err(Error::Device { problem: "it did not answer" }))
    }
}

/// A rank after the first: its device, and the caches by the numbers that rank 0 gives them.
pub(super) struct Follower<R: RankDevice> {
    device: R,
    split: Split,
    caches: HashMap<u32, R::Cache>,
}

impl<R: RankDevice> Follower<R> {
    pub(super) fn new(device: R, split: Split) -> Follower<R> {
        Follower { device, split, caches: HashMap::new() }
    }

    /// Follows the orders of rank 0 until the last one, or until one fails: leaving the group is an error of all others.
    pub(super) fn follow(mut self, group: &ThreadGroup) {
        while let Some(order) = group.next_order() {
            if &*order == END {
                // None leaves before all have done what they were told.
                let _ = agree(group, true);
                break;
            }
            if self.obey(group, &order).is_err() {
                break;
            }
        }
        self.device.leave_group();
    }

    /// Does this rank's share of an order.
    pub(super) fn obey(&mut self, group: &dyn Collective, order: &str) -> Result<()> {
        let Follower { device, split, caches } = self;
        let unknown = Error::Device { problem: "a rank does not know the cache" };
        match Order::parse(order).ok_or(Error::Device { problem: "a rank does not know the order" })? {
            Order::Cache { id, options } => {
                let cache = wait::<R, _>(device.cache(&options));
                agree(group, cache.is_ok())?;
                if let Ok(cache) = cache {
                    caches.insert(id, cache);
                }
                Ok(())
            }
            Order::Forget(ids) => {
                ids.iter().for_each(|id| drop(caches.remove(id)));
                Ok(())
            }
            Order::Run(runs) => {
                // Only the first stage has the head.
                let wants = |wants| if matches!(split, Split::Pipeline(_)) { Wants::Nothing } else { wants };
                let batch: Vec<_> = runs
                    .iter()
                    .map(|(_, position, wanted, tokens)| shohin_core::device::Run {
                        tokens,
                        position: *position,
                        wants: wants(*wanted),
                    })
                    .collect();
                // Taken out, as a batch needs all of them at once.
                let mut taken: Vec<R::Cache> =
                    runs.iter().map(|(id, ..)| caches.remove(id).ok_or(unknown)).collect::<Result<_>>()?;
                let mut all: Vec<_> = taken.iter_mut().collect();
                let done = wait::<R, _>(device.run(&batch, &mut all, &mut |_, _, _| ()));
                caches.extend(runs.iter().map(|(id, ..)| *id).zip(taken));
                done
            }
            Order::Shift { id, len, keep, drop } => {
                let shifted = device.shift(caches.get_mut(&id).ok_or(unknown)?, len, keep, drop);
                shifted.map(|_| ()).map_err(Into::into)
            }
            Order::Export { id, len } => {
                let mut bytes = Vec::new();
                wait::<R, _>(device.export(caches.get_mut(&id).ok_or(unknown)?, len, &mut bytes))?;
                group.send(0, &as_floats(&bytes))
            }
            Order::Import { id, len } => {
                let cache = caches.get_mut(&id).ok_or(unknown)?;
                let bytes = receive(group, 0, device.export_len(cache, len))?;
                device.import(cache, len, &bytes).map_err(Into::into)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks, each with two runs: keys and values of a GPU.
    #[test]
    fn what_ranks_export_has_its_places_in_the_whole() {
        let heads = places(Split::Tensor(2), 2, &[3, 5]);
        assert_eq!(heads[0], [0..3, 6..11, 16..19, 22..27]);
        assert_eq!(heads[1], [3..6, 11..16, 19..22, 27..32]);
        let blocks = places(Split::Pipeline(2), 5, &[3, 5]);
        assert_eq!(blocks, [vec![0..8, 8..16], vec![16..24, 24..32, 32..40]]);
    }
}
