//! The thread pool of `shohin`, its source as it is, with threads and atomics that shuttle schedules: each access to an atomic
//! may be where another thread goes on. A thread that waits for a wake-up that never comes is a deadlock, which shuttle reports.
//!
//! It orders all accesses alike. What other orders allow is left to `cargo xtask miri`.

#[cfg(test)]
#[path = "../../../host/src/threads.rs"]
#[allow(dead_code, unreachable_pub)]
mod threads;

#[cfg(test)]
mod tests {
    use super::threads::ThreadPool;
    use shohin_core::Pool;
    use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use shuttle::thread;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    /// Schedules of each test: a second or two.
    const SCHEDULES: usize = 500;

    fn each_once(pool: &ThreadPool, jobs: usize) {
        let counts: Vec<AtomicUsize> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
        pool.run(jobs, &|i| {
            counts[i].fetch_add(1, SeqCst);
        });
        assert!(counts.iter().all(|count| count.load(SeqCst) == 1), "{jobs} jobs");
    }

    /// Random schedules, and those in which a few switches decide.
    fn check(test: fn()) {
        shuttle::check_random(test, SCHEDULES);
        shuttle::check_pct(test, SCHEDULES, 3);
    }

    #[test]
    fn every_job_runs_once_and_nobody_waits_for_ever() {
        check(|| {
            let pool = ThreadPool::new(3).unwrap();
            for jobs in [2, 5, 3] {
                each_once(&pool, jobs);
            }
        });
    }

    #[test]
    fn a_pool_ends_whatever_its_workers_do() {
        check(|| drop(ThreadPool::new(4)));
    }

    #[test]
    fn runs_from_several_threads_and_inside_jobs_end() {
        check(|| {
            let pool = Arc::new(ThreadPool::new(2).unwrap());
            let other = {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.run(2, &|_| each_once(&pool, 2)))
            };
            each_once(&pool, 3);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        check(|| {
            let pool = ThreadPool::new(2).unwrap();
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(3, &|i| assert!(i != 1, "job 1 fails"))));
            assert!(outcome.is_err());
            each_once(&pool, 2);
        });
    }
}
