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
