//! Ranks that are threads of one process.

use super::group::{Group, Turn, fit, lost};
use shohin_core::Result;
use shohin_core::collective::Collective;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a rank spins before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// What a rank gives to the others; one of two in turn, so that one waiting per exchange is enough: a rank that writes the
/// next has been waited for by all that read the last but one.
#[derive(Debug, Default)]
struct Slots([RwLock<Vec<f32>>; 2]);

#[derive(Debug)]
struct Shared {
    slots: Vec<Slots>,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    lost: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Shared {
    fn wake(&self, change: impl FnOnce()) {
        let _sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        change();
        self.wake.notify_all();
    }

    /// Waits for all ranks.
    fn meet(&self) -> Result<()> {
        self.check()?;
        let before = self.generation.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.slots.len() {
            self.arrived.store(0, Release);
            self.wake(|| self.generation.store(before.wrapping_add(1), Release));
            // All have arrived: one that has what it needs may end before this one looks.
            return Ok(());
        }
        let waits = || self.generation.load(Acquire) == before && !self.lost.load(Acquire);
        let start = Instant::now();
        while waits() && start.elapsed() < SPIN {
            spin_loop();
        }
        if waits() {
            let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            while waits() {
                sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
            }
        }
        // If it was lost after all had arrived, the next call says so.
        if self.generation.load(Acquire) == before { self.check() } else { Ok(()) }
    }

    fn check(&self) -> Result<()> {
        if self.lost.load(Acquire) { Err(lost()) } else { Ok(()) }
    }
}

/// One rank.
#[derive(Debug)]
pub(crate) struct ThreadGroup {
    rank: usize,
    shared: Arc<Shared>,
    /// Exchanges so far.
    round: AtomicUsize,
    to: Vec<Sender<Vec<f32>>>,
    from: Vec<Mutex<Receiver<Vec<f32>>>>,
    /// On rank 0, to the others.
    orders: Vec<Sender<Arc<str>>>,
    /// On the other ranks.
    order: Option<Mutex<Receiver<Arc<str>>>>,
    /// The lock of groups that work one after the other.
    turn: Option<Arc<Mutex<()>>>,
}

impl ThreadGroup {
    /// The ranks of a group, which waits for others that have the same `turn`.
    pub(crate) fn new(ranks: usize, turn: Option<&Arc<Mutex<()>>>) -> Vec<ThreadGroup> {
        let shared = Arc::new(Shared {
            slots: (0..ranks).map(|_| Slots::default()).collect(),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut group: Vec<ThreadGroup> = (0..ranks)
            .map(|rank| ThreadGroup {
                rank,
                shared: Arc::clone(&shared),
                round: AtomicUsize::new(0),
                to: Vec::new(),
                from: Vec::new(),
                orders: Vec::new(),
                order: None,
                turn: turn.cloned(),
            })
            .collect();
        for from in 0..ranks {
            for to in 0..ranks {
                let (sender, receiver) = channel();
                group[from].to.push(sender);
                group[to].from.push(Mutex::new(receiver));
            }
            if from > 0 {
                let (sender, receiver) = channel();
                group[0].orders.push(sender);
                group[from].order = Some(Mutex::new(receiver));
            }
        }
        group
    }

    /// On the ranks after the first, waits for the next order; `None` if there will be none.
    pub(super) fn next_order(&self) -> Option<Arc<str>> {
        self.order.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        self.fail();
    }
}

impl Collective for ThreadGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.slots.len()
    }

    fn check(&self) -> Result<()> {
        self.shared.check()
    }

    fn all_gather(&self, mine: &[f32], all: &mut [f32]) -> Result<()> {
        let side = self.round.fetch_add(1, Relaxed) % 2;
        {
            let slot = &self.shared.slots[self.rank].0[side];
            let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
            slot.clear();
            slot.extend_from_slice(mine);
        }
        self.shared.meet()?;
        fit(self.ranks() * mine.len(), all.len())?;
        for (slot, all) in self.shared.slots.iter().zip(all.chunks_exact_mut(mine.len().max(1))) {
            let slot = slot.0[side].read().unwrap_or_else(PoisonError::into_inner);
            fit(all.len(), slot.len())?;
            all.copy_from_slice(&slot);
        }
        Ok(())
    }

    fn send(&self, to: usize, x: &[f32]) -> Result<()> {
        let to = self.to.get(to).ok_or(lost())?;
        to.send(x.to_vec()).map_err(|_| lost())
    }

    fn receive(&self, from: usize, x: &mut [f32]) -> Result<()> {
        let from = self.from.get(from).ok_or(lost())?;
        let sent = from.lock().unwrap_or_else(PoisonError::into_inner).recv().map_err(|_| lost())?;
        fit(x.len(), sent.len())?;
        x.copy_from_slice(&sent);
        Ok(())
    }
}

impl Group for ThreadGroup {
    fn order(&self, order: &str) -> Result<()> {
        let order: Arc<str> = order.into();
        self.orders.iter().try_for_each(|to| to.send(Arc::clone(&order)).map_err(|_| lost()))
    }

    fn turn(&self) -> Result<Turn<'_>> {
        let held = self.turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Turn { _held: held })
    }

    fn fail(&self) {
        self.shared.wake(|| self.shared.lost.store(true, Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Runs `rank` on a thread for each of the ranks.
    fn each<T: Send>(ranks: usize, rank: impl Fn(ThreadGroup) -> T + Sync) -> Vec<T> {
        let group = ThreadGroup::new(ranks, None);
        thread::scope(|scope| {
            let rank = &rank;
            let threads: Vec<_> = group.into_iter().map(|one| scope.spawn(move || rank(one))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_gather_and_add_alike() {
        for ranks in [1, 2, 5] {
            let sums = each(ranks, |group| {
                let mut all = vec![0.0; 3 * ranks];
                let mut sums = Vec::new();
                for round in 0..200 {
                    let mine = [0, 1, 2].map(|i| 0.1 * (group.rank() * 7 + i + round) as f32);
                    group.all_gather(&mine, &mut all).unwrap();
                    for (rank, part) in all.chunks(3).enumerate() {
                        assert_eq!(part, [0, 1, 2].map(|i| 0.1 * (rank * 7 + i + round) as f32));
                    }
                    let mut sum = mine;
                    group.all_reduce(&mut sum, &mut all).unwrap();
                    sums.push(sum);
                }
                sums
            });
            assert!(sums.iter().all(|rank| *rank == sums[0]));
        }
    }

    #[test]
    fn a_lost_rank_is_an_error_of_all_others() {
        let errors = each(3, |group| {
            let (mut all, next) = ([0.0; 3], (group.rank() + 1) % 3);
            group.send(next, &[1.0]).unwrap();
            group.receive((next + 1) % 3, &mut [0.0]).unwrap();
            if group.rank() == 1 {
                return None;
            }
            let wrong = group.receive(1, &mut [0.0]);
            Some([group.all_gather(&[1.0], &mut all), wrong])
        });
        for rank in [0, 2] {
            let [gathered, received] = errors[rank].unwrap();
            assert_eq!((gathered, received), (Err(lost()), Err(lost())));
        }
    }
}
