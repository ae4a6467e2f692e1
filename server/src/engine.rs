//! The thread that computes all replies.

use crate::error::ApiError;
use crate::metrics::Metrics;
use shohin::core::chat::{Chunk, Event, Finish, Prompt, ReplyId, TurnOptions, Usage};
use shohin::{Error, Scheduler};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self as std_mpsc, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Bytes of events that are held for a client that reads slowly. With more, its reply waits and keeps its slot, so this is
/// more than the events of ordinary replies have, and little enough that hundreds of such clients fit in memory.
const HELD: usize = 2 << 20;

/// With more bytes than this held, parts of a reply are collected: a part for each token would take many times its text.
const SMALL: usize = 16 << 10;

/// Bytes of parts that are collected, as some clients read lines of 64 KiB at most.
const PART: usize = 4 << 10;

/// Bytes of the event of a part besides its text.
const EVENT: usize = 256;

/// Bytes of a log-probability in an event, with its token as a text and as bytes.
const LOGPROB: usize = 128;

/// How long the thread sleeps when every reply waits for its reader.
const PAUSE: Duration = Duration::from_millis(5);

/// A request for a reply.
pub(crate) struct Job {
    pub(crate) prompt: Prompt,
    pub(crate) options: TurnOptions,
    pub(crate) updates: Sender,
    /// When it is given up.
    pub(crate) deadline: Instant,
    /// Its permit in the server, until it has ended.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// What becomes of a reply.
#[derive(Debug)]
pub(crate) enum Update {
    /// Its prompt is computed: counts of its tokens.
    Begun(Usage),
    Chunk(Chunk),
    End(Box<Finish>),
    Failed(ApiError),
}

impl Update {
    fn bytes(&self) -> usize {
        match self {
            Update::Chunk(chunk) => EVENT + bytes(chunk),
            // One each, at most.
            Update::Begun(_) | Update::End(_) | Update::Failed(_) => 0,
        }
    }
}

/// About how many bytes of memory a part takes, here or as an event, whichever is more.
fn bytes(chunk: &Chunk) -> usize {
    let calls = chunk.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
    let logprobs: usize = chunk.logprobs.iter().map(|token| 1 + token.top.len()).sum();
    let texts = chunk.text.len() + chunk.content.len() + chunk.reasoning.len();
    texts + calls.sum::<usize>() + size_of_val(chunk.tokens.as_slice()) + logprobs * LOGPROB
}

/// The way of a reply's updates to its client.
pub(crate) fn channel() -> (Sender, Receiver) {
    let (updates, receiver) = mpsc::unbounded_channel();
    let held = Arc::new(AtomicUsize::new(0));
    (Sender { updates, held: Arc::clone(&held) }, Receiver { updates: receiver, held })
}

/// Takes all that it is given: who sends asks first how much is held.
pub(crate) struct Sender {
    updates: mpsc::UnboundedSender<Update>,
    held: Arc<AtomicUsize>,
}

impl Sender {
    fn send(&self, update: Update) {
        self.held.fetch_add(update.bytes(), Relaxed);
        // If the client has gone, the reply ends in the next round.
        let _ = self.updates.send(update);
    }

    /// Bytes that the client has not taken.
    fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.updates.is_closed()
    }
}

pub(crate) struct Receiver {
    updates: mpsc::UnboundedReceiver<Update>,
    held: Arc<AtomicUsize>,
}

impl Receiver {
    pub(crate) async fn next(&mut self) -> Option<Update> {
        let update = self.updates.recv().await?;
        self.held.fetch_sub(update.bytes(), Relaxed);
        Some(update)
    }
}

/// A reply in progress.
struct Active {
    updates: Sender,
    deadline: Instant,
    /// What was not sent yet.
    chunk: Chunk,
    end: Option<Update>,
    started: Instant,
    has_begun: bool,
    _permit: OwnedSemaphorePermit,
}

impl Active {
    fn has_room(&self) -> bool {
        self.updates.held() + bytes(&self.chunk) < HELD
    }

    /// Whether to send what there is, rather than to collect more.
    fn is_due(&self) -> bool {
        let is_taken = self.updates.held() < SMALL;
        !self.chunk.is_empty() && (is_taken || self.end.is_some() || bytes(&self.chunk) >= PART)
    }

    fn fail(mut self, error: ApiError) {
        // A reply that fails before it begins is an error as a whole.
        if self.has_begun && !self.chunk.is_empty() {
            self.updates.send(Update::Chunk(std::mem::take(&mut self.chunk)));
        }
        self.updates.send(Update::Failed(error));
    }
}

pub(crate) struct Engine {
    pub(crate) scheduler: Scheduler,
    pub(crate) jobs: std_mpsc::Receiver<Job>,
    pub(crate) metrics: Arc<Metrics>,
    /// Set when the server shuts down: when all that is left is given up.
    pub(crate) last: Arc<OnceLock<Instant>>,
    pub(crate) queue: VecDeque<Job>,
}

impl Engine {
    /// Computes until there is nobody left who could ask.
    pub(crate) fn run(mut self) {
        let mut active: BTreeMap<ReplyId, Active> = BTreeMap::new();
        loop {
            if !self.take_jobs(active.is_empty()) && active.is_empty() && self.queue.is_empty() {
                return;
            }
            self.give_up(&mut active);
            self.begin(&mut active);
            let computed = self.step(&mut active);
            let held = (self.scheduler.held_tokens(), self.scheduler.cache_bytes());
            self.metrics.set_load(active.len(), self.queue.len(), held);
            if !computed && !active.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Takes what has been asked; waits for something if there is nothing to do. Returns false if nobody can ask.
    fn take_jobs(&mut self, idle: bool) -> bool {
        if idle && self.queue.is_empty() {
            match self.jobs.recv() {
                Ok(job) => self.queue.push_back(job),
                Err(_) => return false,
            }
        }
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.queue.push_back(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Ends what nobody waits for, and what has taken too long.
    fn give_up(&mut self, active: &mut BTreeMap<ReplyId, Active>) {
        let now = Instant::now();
        let is_over = self.last.get().is_some_and(|last| now >= *last);
        let error = |deadline: Instant| match (is_over, now >= deadline) {
            (true, _) => Some(ApiError::ShuttingDown),
            (false, true) => Some(ApiError::TimedOut),
            (false, false) => None,
        };
        self.queue.retain(|job| match error(job.deadline) {
            Some(error) => {
                job.updates.send(Update::Failed(error));
                false
            }
            None => !job.updates.is_closed(),
        });
        let ends = |reply: &Active| reply.updates.is_closed() || error(reply.deadline).is_some();
        let ended: Vec<ReplyId> = active.iter().filter(|(_, reply)| ends(reply)).map(|(id, _)| *id).collect();
        for (id, reply) in ended.into_iter().filter_map(|id| active.remove_entry(&id)) {
            self.cancel(id);
            match error(reply.deadline) {
                Some(error) => reply.fail(error),
                None => self.metrics.count_cancelled(),
            }
        }
    }

    /// Ends a reply as it is, and counts its tokens.
    fn cancel(&mut self, id: ReplyId) {
        let Some(mut usage) = self.scheduler.usage(id) else { return };
        self.scheduler.cancel(id);
        if usage.completion_tokens == 0 {
            // How much of its prompt was computed is not known.
            usage.prompt_tokens = usage.cached_tokens;
        }
        self.metrics.count_reply(&usage);
    }

    /// Begins replies while there is room for them. A prompt that begins like one which is being computed waits for it:
    /// what they have in common is computed once.
    fn begin(&mut self, active: &mut BTreeMap<ReplyId, Active>) {
        let mut waiting = 0;
        while !self.scheduler.is_full()
            && let Some(job) = self.queue.get(waiting)
        {
            if matches!(&job.prompt, Prompt::Encoded(prompt) if self.scheduler.comes_soon(prompt)) {
                waiting += 1;
                continue;
            }
            let Some(Job { prompt, options, updates, deadline, permit }) = self.queue.remove(waiting) else {
                return;
            };
            match self.scheduler.begin(prompt, &options) {
                Ok(id) => {
                    let started = Instant::now();
                    let (chunk, end, has_begun) = (Chunk::default(), None, false);
                    let reply = Active { updates, deadline, chunk, end, started, has_begun, _permit: permit };
                    active.insert(id, reply);
                }
                Err(error) => updates.send(Update::Failed(ApiError::Model(error))),
            }
        }
    }

    /// Computes once, and sends what has come of it.
    fn step(&mut self, active: &mut BTreeMap<ReplyId, Active>) -> bool {
        let open: Vec<ReplyId> =
            active.iter().filter(|(_, reply)| reply.has_room()).map(|(id, _)| *id).collect();
        let stepped = self.scheduler.step(&mut |id| open.contains(&id), &mut |id, event| {
            let Some(reply) = active.get_mut(&id) else { return };
            match event {
                Event::Piece(piece) => reply.chunk.push(&piece),
                Event::End(finish) => reply.end = Some(Update::End(Box::new(finish))),
                Event::Failed(error) => reply.end = Some(Update::Failed(ApiError::Model(error.into()))),
            }
        });
        let computed = match stepped {
            Ok(computed) => computed,
            Err(error) => {
                self.fail_all(active, &error);
                return false;
            }
        };
        let usage = |id, end: Option<&Update>| match end {
            Some(Update::End(finish)) => Some(finish.usage),
            _ => self.scheduler.usage(id),
        };
        active.retain(|id, reply| {
            if reply.is_due() {
                if !reply.has_begun {
                    reply.has_begun = true;
                    self.metrics.count_first_token(reply.started.elapsed());
                    if let Some(usage) = usage(*id, reply.end.as_ref()) {
                        reply.updates.send(Update::Begun(Usage { completion_tokens: 0, ..usage }));
                    }
                }
                reply.updates.send(Update::Chunk(std::mem::take(&mut reply.chunk)));
            }
            let Some(end) = reply.end.take() else { return true };
            if let Update::End(finish) = &end {
                self.metrics.count_reply(&finish.usage);
            }
            reply.updates.send(end);
            false
        });
        computed
    }

    /// Ends all replies when the device has failed.
    fn fail_all(&mut self, active: &mut BTreeMap<ReplyId, Active>, error: &Error) {
        let problem = error.to_string();
        for (id, reply) in std::mem::take(active) {
            self.cancel(id);
            reply.fail(ApiError::Device(problem.clone()));
        }
    }
}
