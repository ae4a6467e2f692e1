//! The thread pool: fork and join in microseconds.
//!
//! A token is some two hundred small matrix products, so waking threads through a lock and a condition
//! variable each time would cost more than the work. Workers spin for a moment after a run, as the next one
//! usually follows at once, and then park, as machines are usually shared. Jobs are claimed one by one, so a
//! worker that is descheduled delays at most its own job; the caller works too and never waits for a worker
//! that has not started. Each run is compared with the time it would have taken the caller alone; if waiting
//! for workers costs more than they gain, the caller works alone for a while: twice as long after each
//! parallel period that lost more than it gained, half as long after others.
#![allow(unsafe_code)]

use shohin_core::Pool;
// `tests/schedules` includes this file and schedules its threads.
#[cfg(shuttle)]
use shuttle::{sync, thread};
use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::time::{Duration, Instant};
#[cfg(not(shuttle))]
use std::{sync, thread};
use sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use sync::{Arc, Mutex, PoisonError};
use thread::{JoinHandle, Thread};

/// How long an idle thread spins before it parks.
const SPIN: Duration = Duration::from_micros(if cfg!(shuttle) { 0 } else { 40 });

const MILLISECOND: i64 = 1_000_000; // nanoseconds

/// Time that may be lost by waiting for workers before the caller works alone.
const PATIENCE: i64 = MILLISECOND / 2;
/// Maximum of the earlier gains that count against a loss.
const MAX_CREDIT: i64 = MILLISECOND;
/// Shortest and longest time that the caller works alone.
const ALONE: std::ops::RangeInclusive<i64> = MILLISECOND..=256 * MILLISECOND;

/// One call of [`Pool::run`], on the caller's stack.
struct Run<'r> {
    job: &'r (dyn Fn(usize) + Sync),
    jobs: usize,
    /// Jobs that have not returned.
    pending: AtomicUsize,
    /// Nanoseconds per job of the fastest worker: the time of a job on a core that is not shared.
    fastest: AtomicU64,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    /// `run number << 32 | jobs not yet claimed`. Claiming is one compare-exchange of this word, which fails
    /// if the run has changed.
    word: AtomicU64,
    /// The run with that number. Valid for the holder of a claimed job that is not yet subtracted from
    /// `pending`, since the caller waits for these.
    run: AtomicPtr<Run<'static>>,
    /// Set during a run. A second run, from inside a job or from another thread, is done serially.
    busy: AtomicBool,
    stop: AtomicBool,
    /// Used only by the holder of `busy`.
    balance: Balance,
    parked: Vec<AtomicBool>,
}

/// Whether other workers are worth waiting for, in nanoseconds.
#[derive(Debug, Default)]
struct Balance {
    /// Time gained minus time lost since the current parallel period began.
    gained: AtomicI64,
    /// The same, but at most [`MAX_CREDIT`] counts against the next loss.
    credit: AtomicI64,
    /// Remaining time to work alone.
    alone: AtomicI64,
    /// How long the caller works alone next time.
    next: AtomicI64,
}

impl Balance {
    /// Whether to work alone.
    fn alone(&self) -> bool {
        self.alone.load(Relaxed) > 0
    }

    /// Counts a run of `elapsed` alone.
    fn worked_alone(&self, elapsed: Duration) {
        self.alone.fetch_sub(nanoseconds(elapsed).max(1), Relaxed);
    }

    /// Counts a run of `elapsed` that would have taken the caller `alone`.
    fn worked_together(&self, elapsed: Duration, alone: Duration) {
        // Workers share memory bandwidth and execution units: alone, each is somewhat faster.
        let gain = nanoseconds(alone) / 8 * 7 - nanoseconds(elapsed);
        let gained = self.gained.load(Relaxed).saturating_add(gain);
        let credit = self.credit.load(Relaxed).min(MAX_CREDIT).saturating_add(gain);
        if credit >= -PATIENCE {
            self.gained.store(gained, Relaxed);
            return self.credit.store(credit, Relaxed);
        }
        // Whether the parallel period was worth it, including this loss.
        let next = self.next.load(Relaxed);
        let next = if gained < 0 { 2 * next } else { next / 2 }.clamp(*ALONE.start(), *ALONE.end());
        self.alone.store(next, Relaxed);
        self.next.store(next, Relaxed);
        self.gained.store(0, Relaxed);
        self.credit.store(0, Relaxed);
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Worker threads that run the engine's jobs.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// A pool of `workers` workers, one of which is the thread that calls [`Pool::run`].
    ///
    /// # Errors
    /// If the system cannot start more threads.
    pub fn new(workers: usize) -> std::io::Result<ThreadPool> {
        let others = workers.saturating_sub(1);
        let parked = (0..others).map(|_| AtomicBool::new(false)).collect();
        let shared = Arc::new(Shared { parked, ..Shared::default() });
        let mut threads = ThreadPool { shared, handles: Vec::new() };
        for index in 0..others {
            let shared = Arc::clone(&threads.shared);
            let builder = thread::Builder::new().name(format!("shohin-{}", index + 1));
            threads.handles.push(builder.spawn(move || shared.work(index))?);
        }
        Ok(threads)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.next_run(0);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker catches the panics of its jobs.
            let _ = handle.join();
        }
    }
}

impl Pool for ThreadPool {
    fn workers(&self) -> usize {
        self.handles.len() + 1
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        let alone = self.handles.is_empty() || jobs <= 1 || jobs > u32::MAX as usize;
        if alone || shared.busy.swap(true, Acquire) {
            return (0..jobs).for_each(job);
        }
        let start = Instant::now();
        if shared.balance.alone() {
            let _busy = Busy(&shared.busy);
            (0..jobs).for_each(job);
            return shared.balance.worked_alone(start.elapsed());
        }
        let pending = AtomicUsize::new(jobs);
        let (fastest, panic) = (AtomicU64::new(u64::MAX), Mutex::new(None));
        let run = Run { job, jobs, pending, fastest, panic, caller: thread::current() };
        // The lifetime is erased here; waiting below upholds it.
        shared.run.store(ptr::from_ref(&run).cast_mut().cast(), Relaxed);
        let number = shared.next_run(jobs as u64);
        let mut wake = jobs - 1;
        for (parked, handle) in shared.parked.iter().zip(&self.handles) {
            if wake == 0 {
                break;
            }
            wake -= 1;
            if parked.swap(false, SeqCst) {
                handle.thread().unpark();
            }
        }
        shared.take_jobs(number);
        let finished = || run.pending.load(Acquire) == 0;
        if !finished() && !spin_until(finished) {
            while !finished() {
                // Yields the core to the worker this run waits for; its last job unparks us.
                thread::park();
            }
        }
        let alone = run.fastest.load(Relaxed).saturating_mul(jobs as u64);
        shared.balance.worked_together(start.elapsed(), Duration::from_nanos(alone));
        shared.busy.store(false, Release);
        let panic = run.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Ends a run even if a job panics.
struct Busy<'s>(&'s AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Shared {
    /// Publishes a new run of `jobs` jobs; returns its number.
    fn next_run(&self, jobs: u64) -> u64 {
        // Only the holder of `busy`, or the destructor, gets here, so the number cannot change in between.
        let number = (self.word.load(Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        self.word.store(number << 32 | jobs, SeqCst);
        number
    }

    /// Runs jobs of run `number` until all are claimed.
    fn take_jobs(&self, number: u64) {
        let mut claimed: Option<&Run<'_>> = None;
        let mut done = 0;
        let start = Instant::now();
        loop {
            let word = self.word.load(Acquire);
            // Read before the claim: if the claim succeeds, no later run was published in between, as
            // that would have changed the word.
            let run = self.run.load(Relaxed);
            if word >> 32 != number || word as u32 == 0 {
                break;
            }
            if self.word.compare_exchange_weak(word, word - 1, AcqRel, Relaxed).is_err() {
                continue;
            }
            // SAFETY: we hold a claimed job that is not yet subtracted from `pending`, so the caller of this
            // run is still inside `Pool::run`, and `Run` is only used through shared references.
            let run = unsafe { &*run };
            claimed = Some(run);
            let index = run.jobs - (word as u32) as usize;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (run.job)(index))) {
                run.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            done += 1;
        }
        if let Some(run) = claimed {
            // Cloned first: subtracting the last job lets the caller return, which ends `run`.
            let caller = run.caller.clone();
            run.fastest.fetch_min(start.elapsed().as_nanos() as u64 / done as u64, Relaxed);
            if run.pending.fetch_sub(done, AcqRel) == done {
                caller.unpark();
            }
        }
    }

    /// The main loop of a worker.
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            let is_new = || self.word.load(SeqCst) >> 32 != seen;
            if !spin_until(is_new) {
                // Announce, then check again: a caller that does not see the flag has published its run
                // before this check.
                let parked = &self.parked[index];
                parked.store(true, SeqCst);
                while !is_new() {
                    thread::park();
                }
                parked.store(false, SeqCst);
            }
            // In this order: `stop` is set before the run that announces it, so a worker that has seen that
            // run sees it too, and none parks after the last run.
            seen = self.word.load(SeqCst) >> 32;
            if self.stop.load(SeqCst) {
                return;
            }
            self.take_jobs(seen);
        }
    }
}

/// Spins until `ready`, at most for [`SPIN`].
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let mut deadline = None;
    loop {
        for _ in 0..32 {
            if ready() {
                return true;
            }
            spin_loop();
        }
        let now = Instant::now();
        if now > *deadline.get_or_insert(now + SPIN) {
            return false;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn failures_lengthen_the_time_alone_and_gains_shorten_it() {
        let (short, long) = (Duration::from_micros(100), Duration::from_millis(3));
        let balance = Balance::default();
        let alone = || {
            let mut time = 0;
            while balance.alone() {
                balance.worked_alone(short);
                time += 1;
            }
            time
        };
        // Two workers, each with half of the jobs.
        balance.worked_together(short, 2 * short);
        assert!(!balance.alone());
        let lengths: Vec<u32> = (0..10)
            .map(|_| {
                balance.worked_together(long, short);
                alone()
            })
            .collect();
        assert_eq!(lengths, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 2560]);
        // Two workers, each with half of the jobs: gains outweigh the loss that ends the period.
        for want in [1280, 640, 320] {
            for _ in 0..200 {
                balance.worked_together(short, 2 * short);
            }
            assert!(!balance.alone());
            balance.worked_together(long, short);
            assert_eq!(alone(), want);
        }
        // Smaller gains do not shorten the time alone.
        for want in [640, 1280] {
            for _ in 0..20 {
                balance.worked_together(short, 2 * short);
            }
            balance.worked_together(long, short);
            assert_eq!(alone(), want);
        }
    }

    fn each_once(pool: &ThreadPool, jobs: usize) {
        let counts: Vec<AtomicU32> = (0..jobs).map(|_| AtomicU32::new(0)).collect();
        pool.run(jobs, &|i| {
            counts[i].fetch_add(1, Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{jobs} jobs");
    }

    #[test]
    fn every_job_runs_once() {
        for workers in [0, 1, 2, 3, 9] {
            let pool = ThreadPool::new(workers).unwrap();
            assert_eq!(pool.workers(), workers.max(1));
            for jobs in [0, 1, 2, 3, 7, 64, if cfg!(miri) { 65 } else { 1000 }] {
                each_once(&pool, jobs);
            }
        }
    }

    #[test]
    fn many_short_runs_stay_correct_with_more_threads_than_cores() {
        let pool = ThreadPool::new(7).unwrap();
        let sum = AtomicUsize::new(0);
        let (runs, rest) = if cfg!(miri) { (40, 10) } else { (20_000, 1000) };
        for i in 0..runs {
            pool.run(1 + i % 5, &|_| {
                sum.fetch_add(1, Relaxed);
            });
            if i % rest == 0 {
                // Long enough for every worker to park.
                thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(sum.into_inner(), runs / 5 * 15);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = ThreadPool::new(3).unwrap();
        for bad in 0..8 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|i| assert!(i != bad, "job {bad} fails"));
            }));
            let message = outcome.unwrap_err();
            assert_eq!(message.downcast_ref::<String>().unwrap(), &format!("job {bad} fails"));
            each_once(&pool, 100);
        }
    }

    #[test]
    fn runs_inside_jobs_and_from_other_threads_work() {
        const RUNS: usize = if cfg!(miri) { 5 } else { 300 };
        let pool = ThreadPool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..RUNS {
                        pool.run(4, &|_| {
                            pool.run(5, &|_| {
                                sum.fetch_add(1, Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * RUNS * 4 * 5);
    }

    #[test]
    fn two_jobs_run_at_the_same_time() {
        let pool = ThreadPool::new(2).unwrap();
        let started = AtomicBool::new(false);
        pool.run(2, &|i| {
            if i == 0 {
                while !started.load(Acquire) {
                    thread::yield_now();
                }
            } else {
                started.store(true, Release);
            }
        });
    }
}
