//! A trait to spread work over workers. The engine only knows this trait; threads belong to hosts.
#![forbid(unsafe_code)]

/// A pool runs independent jobs, possibly in parallel.
pub trait Pool: Sync {
    /// How many jobs can run at the same time (at least 1).
    fn workers(&self) -> usize;

    /// Calls `job(0)`, ..., `job(jobs - 1)`, each once, in any order and on any worker, and returns
    /// when all of them have returned.
    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync));
}

impl<P: Pool + ?Sized> Pool for &P {
    fn workers(&self) -> usize {
        (**self).workers()
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (**self).run(jobs, job);
    }
}

#[cfg(target_has_atomic = "ptr")]
impl<P: Pool + Send + ?Sized> Pool for alloc::sync::Arc<P> {
    fn workers(&self) -> usize {
        (**self).workers()
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (**self).run(jobs, job);
    }
}

/// Runs every job on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Pool for Serial {
    fn workers(&self) -> usize {
        1
    }

    fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        for i in 0..jobs {
            job(i);
        }
    }
}
