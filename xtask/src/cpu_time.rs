//! CPU time used by child processes: it shows the cost of a suite on a busy machine, unlike wall time.

use std::time::Duration;

#[cfg(unix)]
use nix::sys::resource::{UsageWho, getrusage};

/// Adopts orphans of this process's children, so that [`children`] counts them too. A killed browser leaves
/// its renderers behind, and they do most of its work.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    if let Err(e) = nix::sys::prctl::set_child_subreaper(true) {
        eprintln!("xtask: the CPU times will lack those of killed browsers: {e}");
    }
}

/// User and system time of all child processes that have ended, including their own children. Call it only
/// while no other thread waits for a child: it reaps all that have ended.
#[cfg(unix)]
pub(crate) fn children() -> Option<Duration> {
    reap();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let times = [usage.user_time(), usage.system_time()];
    Some(times.iter().map(|t| Duration::new(t.tv_sec() as u64, 1000 * t.tv_usec() as u32)).sum())
}

#[cfg(not(unix))]
pub(crate) fn children() -> Option<Duration> {
    None
}

/// Waits for orphans, but not long for one that keeps running.
#[cfg(unix)]
fn reap() {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let started = std::time::Instant::now();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if started.elapsed() > Duration::from_secs(2) => return,
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(20)),
            Ok(_) => {}
            // No child is left.
            Err(_) => return,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::command::Cmd;
    use std::path::Path;

    /// In a separate process: `children` would reap the children of other tests.
    #[test]
    fn the_time_of_an_orphan_counts() {
        const ALONE: &str = "XTASK_TEST_ALONE";
        let here = Path::new(".");
        if std::env::var_os(ALONE).is_none() {
            let this = Cmd::new(std::env::current_exe().unwrap(), here);
            let tally = this.arg("the_time_of_an_orphan_counts").env(ALONE, "1").tests().unwrap();
            assert_eq!(tally.passed, 1);
            return;
        }
        adopt_orphans();
        let before = children().unwrap();
        // The shell exits at once. `read` returns when the loop has closed the output, too.
        let work = "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done) &";
        Cmd::new("sh", here).arg("-c").arg(work).read().unwrap();
        let used = children().unwrap() - before;
        assert!(used > Duration::from_millis(20), "{used:?}");
    }
}
