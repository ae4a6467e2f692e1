//! A line of the log for each answer.

use shohin::core::chat::Usage;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a reply took, told to the log when its answer has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Tokens of all replies of the answer.
    pub(crate) usage: Usage,
    /// Time in the queue of the first reply.
    pub(crate) queued: Option<Duration>,
    /// Time to the first token.
    pub(crate) first: Option<Duration>,
}

/// What is known so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Arc<Mutex<Taken>>);

impl Record {
    pub(crate) fn update(&self, change: impl FnOnce(&mut Taken)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn taken(&self) -> Taken {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The line of an answer, written when it is dropped. It has nothing of what was said.
pub(crate) struct Line {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) since: Instant,
    pub(crate) record: Record,
}

impl Drop for Line {
    fn drop(&mut self) {
        let Line { method, path, status, since, record } = self;
        let Taken { usage, queued, first } = record.taken();
        let ms = |time: Duration| time.as_millis() as u64;
        tracing::info!(
            target: "shohin::access",
            method = method.as_str(),
            path = path.as_str(),
            status = *status,
            ms = ms(since.elapsed()),
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            queued_ms = queued.map(ms),
            first_token_ms = first.map(ms),
        );
    }
}
