//! Progress bars on standard error for long operations; hidden if it is not a terminal.

#[cfg(not(target_os = "wasi"))]
pub(crate) use indicatif::ProgressBar;
#[cfg(not(target_os = "wasi"))]
use indicatif::{ProgressDrawTarget, ProgressStyle};
#[cfg(not(target_os = "wasi"))]
use std::io::{self, IsTerminal};

/// Progress in things such as tokens.
pub(crate) fn progress(what: &'static str, unit: &'static str, total: usize) -> ProgressBar {
    bar(what.into(), &format!("{{pos}}/{{len}} {unit}, {{per_sec}}"), Some(total as u64))
}

/// As [`progress`], from `done` on: only what comes then counts for the speed.
pub(crate) fn progress_from(
    done: usize,
    what: &'static str,
    unit: &'static str,
    total: usize,
) -> ProgressBar {
    from(progress(what, unit, total), done as u64)
}

/// As [`transfer`], from `done` bytes on.
#[cfg(not(target_os = "wasi"))]
pub(crate) fn transfer_from(done: u64, what: String, total: Option<u64>) -> ProgressBar {
    from(transfer(what, total), done)
}

#[cfg(not(target_os = "wasi"))]
fn from(bar: ProgressBar, done: u64) -> ProgressBar {
    // Only a step back makes the bar forget what it has measured, and from where.
    for position in [done + 1, done] {
        bar.set_position(position);
        bar.tick();
    }
    bar
}

#[cfg(target_os = "wasi")]
fn from(bar: ProgressBar, _: u64) -> ProgressBar {
    bar
}

/// Progress in steps of training, whose message is set with each.
#[cfg(not(target_os = "wasi"))]
pub(crate) fn training(steps: u64) -> ProgressBar {
    bar("training".into(), "{pos}/{len} steps", Some(steps))
}

/// Progress in bytes.
pub(crate) fn transfer(what: String, total: Option<u64>) -> ProgressBar {
    bar(what, "{binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}", total)
}

#[cfg(not(target_os = "wasi"))]
fn bar(what: String, counts: &str, total: Option<u64>) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(total, target);
    if let Ok(style) = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {counts}, {{eta}} left")) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.with_message(what)
}

#[cfg(target_os = "wasi")]
fn bar(_: String, _: &str, _: Option<u64>) -> ProgressBar {
    ProgressBar
}

/// A hidden one: WASI does not tell the size of a terminal.
#[cfg(target_os = "wasi")]
pub(crate) struct ProgressBar;

#[cfg(target_os = "wasi")]
impl ProgressBar {
    pub(crate) fn set_length(&self, _: u64) {}

    pub(crate) fn set_position(&self, _: u64) {}

    pub(crate) fn inc(&self, _: u64) {}

    pub(crate) fn finish_and_clear(&self) {}
}

#[cfg(all(test, not(target_os = "wasi")))]
mod tests {
    use super::{progress_from, transfer_from};

    #[test]
    fn what_was_there_before_is_no_speed() {
        let prompt = progress_from(13_000, "prefill", "tokens", 20_000);
        assert_eq!((prompt.position(), prompt.per_sec()), (13_000, 0.0));
        let rest = transfer_from(50 << 20, "a.gguf".into(), Some(100 << 20));
        assert_eq!((rest.position(), rest.per_sec()), (50 << 20, 0.0));
        rest.set_position(51 << 20);
        rest.tick();
        assert!(rest.per_sec() > 0.0);
    }
}
