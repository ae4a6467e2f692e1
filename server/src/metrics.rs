//! Counts for Prometheus.

use crate::adapters::Chosen;
use shohin::core::chat::Usage;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Counts since the start, and the load.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Answers by path and status.
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Tokens of replies by adapter.
    adapters: Mutex<BTreeMap<String, u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    cancelled: AtomicU64,
    /// Times of replies from the request on.
    first_token_times: Histogram,
    queue_times: Histogram,
    reply_times: Histogram,
    replies: AtomicU64,
    queued: AtomicU64,
    held_tokens: AtomicU64,
    cache_bytes: AtomicU64,
    adapter_sets: AtomicU64,
}

/// Upper bounds of a histogram's buckets in milliseconds.
const BOUNDS: [u64; 14] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000];

/// Counts of times by their length.
#[derive(Debug, Default)]
struct Histogram {
    /// Of times up to each bound, but not up to the one before it.
    counts: [AtomicU64; BOUNDS.len()],
    all: AtomicU64,
    microseconds: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let at = BOUNDS.partition_point(|bound| Duration::from_millis(*bound) < time);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        self.all.fetch_add(1, Relaxed);
        self.microseconds.fetch_add(time.as_micros() as u64, Relaxed);
    }

    fn write(&self, name: &str, out: &mut String) {
        let mut count = 0;
        for (bound, one) in BOUNDS.iter().zip(&self.counts) {
            count += one.load(Relaxed);
            let seconds = *bound as f64 / 1e3;
            let _ = writeln!(out, "shohin_{name}_bucket{{le=\"{seconds}\"}} {count}");
        }
        let (all, sum) = (self.all.load(Relaxed), self.microseconds.load(Relaxed) as f64 / 1e6);
        let _ = writeln!(
            out,
            "shohin_{name}_bucket{{le=\"+Inf\"}} {all}\nshohin_{name}_sum {sum}\nshohin_{name}_count {all}"
        );
    }
}

/// What a thread that computes does now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) replies: usize,
    pub(crate) queued: usize,
    /// Tokens whose keys and values are held.
    pub(crate) held_tokens: usize,
    /// Bytes of these.
    pub(crate) cache_bytes: usize,
    /// Sets of adapters that are in memory.
    pub(crate) adapter_sets: usize,
}

impl Metrics {
    pub(crate) fn count_answer(&self, path: &'static str, status: u16) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((path, status)).or_default() += 1;
    }

    pub(crate) fn count_reply(&self, usage: &Usage, adapters: &Chosen) {
        let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        self.prompt_tokens.fetch_add(computed as u64, Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Relaxed);
        self.completion_tokens.fetch_add(usage.completion_tokens as u64, Relaxed);
        let mut tokens = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        for adapter in adapters.adapters().filter(|adapter| !adapter.is_unloaded()) {
            *tokens.entry(adapter.name().into()).or_default() += usage.completion_tokens as u64;
        }
    }

    /// Leaves out an adapter that is unloaded.
    pub(crate) fn forget_adapter(&self, name: &str) {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(crate) fn count_first_token(&self, after: Duration) {
        self.first_token_times.add(after);
    }

    pub(crate) fn count_queued(&self, time: Duration) {
        self.queue_times.add(time);
    }

    pub(crate) fn count_reply_time(&self, time: Duration) {
        self.reply_times.add(time);
    }

    pub(crate) fn count_cancelled(&self) {
        self.cancelled.fetch_add(1, Relaxed);
    }

    /// Says what one of the threads does now, and what it did `before`.
    pub(crate) fn set_load(&self, before: &Load, now: &Load) {
        for (gauge, before, now) in [
            (&self.replies, before.replies, now.replies),
            (&self.queued, before.queued, now.queued),
            (&self.held_tokens, before.held_tokens, now.held_tokens),
            (&self.cache_bytes, before.cache_bytes, now.cache_bytes),
            (&self.adapter_sets, before.adapter_sets, now.adapter_sets),
        ] {
            // Gauges wrap around, and back.
            gauge.fetch_add((now as u64).wrapping_sub(before as u64), Relaxed);
        }
    }

    /// All of it in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            // A String takes everything.
            let _ = write!(out, "# HELP shohin_{name} {help}\n# TYPE shohin_{name} {kind}\n");
        };
        head(&mut out, "requests_total", "counter", "Answers by path and status.");
        for ((path, status), count) in self.answers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "shohin_requests_total{{path=\"{path}\",status=\"{status}\"}} {count}");
        }
        let help = "Tokens of replies by adapter that is loaded.";
        head(&mut out, "adapter_completion_tokens_total", "counter", help);
        for (name, tokens) in self.adapters.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "shohin_adapter_completion_tokens_total{{adapter=\"{name}\"}} {tokens}");
        }
        for (name, times, help) in [
            ("queue_seconds", &self.queue_times, "Time from a request to the beginning of its reply."),
            ("first_token_seconds", &self.first_token_times, "Time from a request to its first token."),
            ("reply_seconds", &self.reply_times, "Time from a request to the end of its reply."),
        ] {
            head(&mut out, name, "histogram", help);
            times.write(name, &mut out);
        }
        for (name, kind, value, help) in [
            ("prompt_tokens_total", "counter", &self.prompt_tokens, "Computed tokens of prompts."),
            (
                "cached_prompt_tokens_total",
                "counter",
                &self.cached_tokens,
                "Tokens of prompts that were known.",
            ),
            ("completion_tokens_total", "counter", &self.completion_tokens, "Tokens of replies."),
            ("cancelled_total", "counter", &self.cancelled, "Replies whose client went away."),
            ("replies", "gauge", &self.replies, "Replies in progress."),
            ("queued", "gauge", &self.queued, "Requests that wait for their reply to begin."),
            ("held_tokens", "gauge", &self.held_tokens, "Tokens whose keys and values are held."),
            (
                "cache_bytes",
                "gauge",
                &self.cache_bytes,
                "Bytes of keys and values, those that several replies share once.",
            ),
            (
                "adapter_sets",
                "gauge",
                &self.adapter_sets,
                "Sets of adapters in memory; that of replies without adapters is one.",
            ),
        ] {
            head(&mut out, name, kind, help);
            let _ = writeln!(out, "shohin_{name} {}", value.load(Relaxed));
        }
        out
    }
}
