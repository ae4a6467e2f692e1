//! The thread pool: the calling thread and, in builds with shared memory, the workers that entered `work`.

use shohin_core::Pool;

/// The pool that runs the engine's jobs.
pub(crate) fn pool() -> &'static dyn Pool {
    #[cfg(target_feature = "atomics")]
    return &shared::POOL;
    #[cfg(not(target_feature = "atomics"))]
    &shohin_core::Serial
}

/// The pool of workers that the host gives to [`work`], where they stay. The engine needs fork
/// and join within microseconds, some two hundred times per token, also on busy machines: workers spin
/// briefly after a run, as the next one usually follows at once, then sleep; the caller works too, and
/// waits only for workers that have begun a job.
#[cfg(target_feature = "atomics")]
pub(crate) mod shared {
    use core::arch::wasm32::{memory_atomic_notify, memory_atomic_wait32};
    use core::cell::UnsafeCell;
    use core::hint::spin_loop;
    use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::*};
    use shohin_core::Pool;
    use wasm_bindgen::prelude::*;

    pub(super) static POOL: ThreadPool = ThreadPool::new();

    /// How often a thread that found nothing to do looks again before it sleeps: some 30 microseconds.
    const SPINS: u32 = 20_000;
    /// Longest that a worker needs for a job it was not interrupted in, in nanoseconds; after that, and
    /// every time it has passed again, the caller looks whether one has crashed.
    const LONGEST: i64 = 2_000_000;
    /// Runs the caller does alone after one in which a worker was interrupted.
    const ALONE: usize = 16;

    /// A run's job, its lifetime forgotten.
    type Job = *const (dyn Fn(usize) + Sync);

    pub(super) struct ThreadPool {
        workers: AtomicUsize,
        /// Odd while a run is on; grows by one when a run begins or ends.
        round: AtomicI32,
        /// Workers that sleep until `round` changes.
        sleepers: AtomicUsize,
        /// The job of the run that is on; valid for those counted in `inside` that saw `round` odd after
        /// they were, since the caller waits for these.
        job: UnsafeCell<Option<Job>>,
        jobs: AtomicUsize,
        next: AtomicUsize,
        inside: AtomicI32,
        /// The caller sleeps until `inside` is 0.
        waits: AtomicBool,
        /// Set during a run. A second one, from inside a job, is done serially.
        busy: AtomicBool,
        /// Runs still to be done alone. Only the holder of `busy` uses it.
        alone: AtomicUsize,
        crashed: AtomicBool,
    }

    // SAFETY: `job` is written by the holder of `busy` while `round` is even and nobody is inside, and
    // read only by those inside while it is odd.
    unsafe impl Sync for ThreadPool {}

    /// Sleeps while `word` is `value`, at most for `limit` nanoseconds if that is not negative. Whether it
    /// was that long.
    fn sleep(word: &AtomicI32, value: i32, limit: i64) -> bool {
        const TIMED_OUT: i32 = 2;
        // SAFETY: an aligned word of this module's memory; JavaScript starts no workers where waiting is forbidden.
        unsafe { memory_atomic_wait32(word.as_ptr(), value, limit) == TIMED_OUT }
    }

    fn wake(word: &AtomicI32, sleepers: u32) {
        // SAFETY: as above.
        unsafe { memory_atomic_notify(word.as_ptr(), sleepers) };
    }

    impl ThreadPool {
        const fn new() -> ThreadPool {
            ThreadPool {
                workers: AtomicUsize::new(0),
                round: AtomicI32::new(0),
                sleepers: AtomicUsize::new(0),
                job: UnsafeCell::new(None),
                jobs: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
                inside: AtomicI32::new(0),
                waits: AtomicBool::new(false),
                busy: AtomicBool::new(false),
                alone: AtomicUsize::new(0),
                crashed: AtomicBool::new(false),
            }
        }

        fn work(&self) -> ! {
            self.workers.fetch_add(1, SeqCst);
            let mut seen = 0;
            loop {
                let mut spins = 0;
                let round = loop {
                    let round = self.round.load(SeqCst);
                    if round != seen && round & 1 == 1 {
                        break round;
                    }
                    spins += 1;
                    if spins < SPINS {
                        spin_loop();
                    } else {
                        self.sleepers.fetch_add(1, SeqCst);
                        sleep(&self.round, round, -1);
                        self.sleepers.fetch_sub(1, SeqCst);
                        spins = 0;
                    }
                };
                seen = round;
                self.inside.fetch_add(1, SeqCst);
                if self.round.load(SeqCst) == round {
                    // SAFETY: see `job`.
                    if let Some(job) = unsafe { *self.job.get() } {
                        // SAFETY: as above.
                        self.take_jobs(unsafe { &*job });
                    }
                }
                if self.inside.fetch_sub(1, SeqCst) == 1 && self.waits.load(SeqCst) {
                    wake(&self.inside, 1);
                }
            }
        }

        fn take_jobs(&self, job: &(dyn Fn(usize) + Sync)) {
            let jobs = self.jobs.load(SeqCst);
            loop {
                let i = self.next.fetch_add(1, SeqCst);
                if i >= jobs {
                    return;
                }
                job(i);
            }
        }

        /// Returns when nobody is inside; whether that took long.
        fn wait(&self) -> bool {
            for _ in 0..SPINS {
                if self.inside.load(SeqCst) == 0 {
                    return false;
                }
                spin_loop();
            }
            self.waits.store(true, SeqCst);
            let mut long = false;
            loop {
                let inside = self.inside.load(SeqCst);
                if inside == 0 {
                    break;
                }
                assert!(!self.crashed.load(SeqCst), "a worker crashed");
                long |= sleep(&self.inside, inside, LONGEST);
            }
            self.waits.store(false, SeqCst);
            long
        }
    }

    impl Pool for ThreadPool {
        fn workers(&self) -> usize {
            1 + self.workers.load(Relaxed)
        }

        fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
            if jobs <= 1 || self.workers.load(Relaxed) == 0 || self.busy.swap(true, SeqCst) {
                return (0..jobs).for_each(job);
            }
            let alone = self.alone.load(Relaxed);
            if alone > 0 {
                self.alone.store(alone - 1, Relaxed);
                (0..jobs).for_each(job);
                return self.busy.store(false, SeqCst);
            }
            // SAFETY: only the lifetime changes; `wait` below keeps it.
            let forgotten = unsafe { core::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
            // SAFETY: the round is even and nobody is inside, or comes inside to stay before it is odd.
            unsafe { *self.job.get() = Some(forgotten) };
            self.jobs.store(jobs, SeqCst);
            self.next.store(0, SeqCst);
            self.round.fetch_add(1, SeqCst);
            if self.sleepers.load(SeqCst) > 0 {
                wake(&self.round, (jobs - 1).min(u32::MAX as usize) as u32);
            }
            self.take_jobs(job);
            self.round.fetch_add(1, SeqCst);
            if self.wait() {
                self.alone.store(ALONE, Relaxed);
            }
            self.busy.store(false, SeqCst);
        }
    }

    /// This module's memory, for the workers that are to share it.
    #[wasm_bindgen]
    pub fn shared_memory() -> JsValue {
        wasm_bindgen::memory()
    }

    /// Adds the calling worker to the pool. It does not return.
    #[wasm_bindgen]
    pub fn work() {
        POOL.work();
    }

    /// To be called when [`work`] has trapped, so that nobody waits for this worker.
    #[wasm_bindgen]
    pub fn worker_crashed() {
        POOL.crashed.store(true, SeqCst);
        wake(&POOL.inside, u32::MAX);
    }
}
