//! The thread that computes all replies.

use crate::adapters::{Chosen, Loaded};
use crate::error::ApiError;
use crate::metrics::{Load, Metrics};
use shohin::core::chat::{Chunk, ChunkCollector, Event, Finish, Prompt, ReplyId, TurnOptions, Usage};
use shohin::{Error, Model, Scheduler};
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

/// A permit for a request, which all of its replies keep.
pub(crate) type Permit = Arc<OwnedSemaphorePermit>;

/// What the thread is asked for.
pub(crate) enum Task {
    Reply(Box<Job>),
    /// Nothing: an adapter was unloaded.
    Tidy,
}

/// A request for a reply.
pub(crate) struct Job {
    pub(crate) prompt: Prompt,
    pub(crate) options: TurnOptions,
    pub(crate) adapters: Chosen,
    pub(crate) updates: Sender,
    pub(crate) asked: Instant,
    /// When it is given up.
    pub(crate) deadline: Instant,
    /// Its permit in the server, until it has ended.
    pub(crate) permit: Permit,
}

/// What becomes of a reply.
#[derive(Debug)]
pub(crate) enum Update {
    /// Its prompt is computed: counts of its tokens, and how long it has waited to begin.
    Begun(Usage, Duration),
    Chunk(Chunk),
    End(Box<Finish>),
    Failed(ApiError),
}

impl Update {
    fn bytes(&self) -> usize {
        match self {
            Update::Chunk(chunk) => EVENT + bytes(chunk),
            // One each, at most.
            Update::Begun(..) | Update::End(_) | Update::Failed(_) => 0,
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
    collector: ChunkCollector,
    end: Option<Update>,
    asked: Instant,
    queued: Duration,
    has_begun: bool,
    _permit: Permit,
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

/// Replies with the same adapters, which are computed together.
struct Set {
    adapters: Chosen,
    scheduler: Scheduler,
    active: BTreeMap<ReplyId, Active>,
}

impl Set {
    fn begin(&mut self, job: Job, metrics: &Metrics) {
        let Job { prompt, options, adapters: _, updates, asked, deadline, permit } = job;
        match self.scheduler.begin(prompt, &options) {
            Ok(id) => {
                let queued = asked.elapsed();
                metrics.count_queued(queued);
                let (chunk, collector) = Default::default();
                let (end, has_begun) = (None, false);
                let _permit = permit;
                let reply =
                    Active { updates, deadline, chunk, collector, end, asked, queued, has_begun, _permit };
                self.active.insert(id, reply);
            }
            Err(error) => updates.send(Update::Failed(ApiError::Model(error))),
        }
    }

    /// Ends what nobody waits for, and what `error` gives a reason for by its deadline.
    fn give_up(&mut self, metrics: &Metrics, error: impl Fn(Instant) -> Option<ApiError>) {
        let ends = |reply: &Active| reply.updates.is_closed() || error(reply.deadline).is_some();
        let ended: Vec<ReplyId> =
            self.active.iter().filter(|(_, reply)| ends(reply)).map(|(id, _)| *id).collect();
        for id in ended {
            let Some(reply) = self.active.remove(&id) else { continue };
            self.cancel(id, metrics);
            match error(reply.deadline) {
                Some(error) => reply.fail(error),
                None => metrics.count_cancelled(),
            }
        }
    }

    /// Ends a reply as it is, and counts its tokens.
    fn cancel(&mut self, id: ReplyId, metrics: &Metrics) {
        let Some(mut usage) = self.scheduler.usage(id) else { return };
        self.scheduler.cancel(id);
        if usage.completion_tokens == 0 {
            // How much of its prompt was computed is not known.
            usage.prompt_tokens = usage.cached_tokens;
        }
        metrics.count_reply(&usage, &self.adapters);
    }

    /// Computes once, and sends what has come of it.
    fn step(&mut self, model: &Model, metrics: &Metrics) -> bool {
        let (active, tokenizer) = (&mut self.active, model.tokenizer());
        let open: Vec<ReplyId> =
            active.iter().filter(|(_, reply)| reply.has_room()).map(|(id, _)| *id).collect();
        let stepped = self.scheduler.step(&mut |id| open.contains(&id), &mut |id, event| {
            let Some(reply) = active.get_mut(&id) else { return };
            match event {
                Event::Piece(piece) => reply.collector.push(&mut reply.chunk, &piece, tokenizer),
                Event::End(finish) => reply.end = Some(Update::End(Box::new(finish))),
                Event::Failed(error) => reply.end = Some(Update::Failed(ApiError::Model(error.into()))),
            }
        });
        let computed = match stepped {
            Ok(computed) => computed,
            Err(error) => {
                self.fail_all(metrics, &error);
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
                    metrics.count_first_token(reply.asked.elapsed());
                    if let Some(usage) = usage(*id, reply.end.as_ref()) {
                        let usage = Usage { completion_tokens: 0, ..usage };
                        reply.updates.send(Update::Begun(usage, reply.queued));
                    }
                }
                reply.updates.send(Update::Chunk(std::mem::take(&mut reply.chunk)));
            }
            let Some(end) = reply.end.take() else { return true };
            if let Update::End(finish) = &end {
                metrics.count_reply(&finish.usage, &self.adapters);
                metrics.count_reply_time(reply.asked.elapsed());
            }
            reply.updates.send(end);
            false
        });
        computed
    }

    /// Ends all replies when the device has failed.
    fn fail_all(&mut self, metrics: &Metrics, error: &Error) {
        let problem = error.to_string();
        for (id, reply) in std::mem::take(&mut self.active) {
            self.cancel(id, metrics);
            reply.fail(ApiError::Device(problem.clone()));
        }
    }
}

/// Sizes of what the thread computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Maximum number of replies at once, and of sets of adapters.
    pub(crate) replies: usize,
    /// Maximum number of tokens of prompts per step and set.
    pub(crate) prompt_tokens: usize,
    /// As [`ServerOptions::prefix_cache`](crate::ServerOptions::prefix_cache).
    pub(crate) cache_bytes: Option<usize>,
}

pub(crate) struct Engine {
    model: Model,
    sizes: Sizes,
    /// Bytes of the keys and values of all sets up to which those of ended replies are kept.
    room: usize,
    /// Those used last at the end.
    sets: Vec<Set>,
    tasks: std_mpsc::Receiver<Task>,
    metrics: Arc<Metrics>,
    /// Set when the server shuts down: when all that is left is given up.
    last: Arc<OnceLock<Instant>>,
    queue: VecDeque<Job>,
    /// What the metrics were told last.
    told: Load,
}

impl Engine {
    /// Finds out whether the model can be computed with these sizes.
    pub(crate) fn new(
        model: Model,
        sizes: Sizes,
        tasks: std_mpsc::Receiver<Task>,
        metrics: Arc<Metrics>,
        last: Arc<OnceLock<Instant>>,
    ) -> shohin::Result<Engine> {
        // Models with adapters run on the CPU: with another device there is one set.
        let context = || model.memory_plan(model.context()).map_or(0, |plan| plan.kv);
        let room = sizes.cache_bytes.unwrap_or_else(|| sizes.replies.saturating_mul(context()));
        let (sets, queue, told) = Default::default();
        let mut engine = Engine { model, sizes, room, sets, tasks, metrics, last, queue, told };
        engine.set(&Chosen::default())?;
        engine.share_room();
        Ok(engine)
    }

    /// Computes until there is nobody left who could ask.
    pub(crate) fn run(mut self) {
        loop {
            if !self.take_tasks() && self.active() == 0 && self.queue.is_empty() {
                self.metrics.set_load(&self.told, &Load::default());
                return;
            }
            self.give_up();
            self.begin();
            let computed = self.step();
            let is_unneeded =
                |set: &Set| set.active.is_empty() && set.adapters.adapters().any(Loaded::is_unloaded);
            let before = self.sets.len();
            self.sets.retain(|set| !is_unneeded(set));
            if self.sets.len() != before {
                self.share_room();
            }
            let load = self.load();
            self.metrics.set_load(&self.told, &load);
            self.told = load;
            if !computed && self.active() > 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The number of replies in progress.
    fn active(&self) -> usize {
        self.sets.iter().map(|set| set.active.len()).sum()
    }

    fn load(&self) -> Load {
        let schedulers = || self.sets.iter().map(|set| &set.scheduler);
        Load {
            replies: self.active(),
            queued: self.queue.len(),
            held_tokens: schedulers().map(Scheduler::held_tokens).sum(),
            cache_bytes: schedulers().map(Scheduler::cache_bytes).sum(),
            adapter_sets: self.sets.len(),
        }
    }

    /// Takes what has been asked; waits for something if there is nothing to do. Returns false if nobody can ask.
    fn take_tasks(&mut self) -> bool {
        if self.active() == 0 && self.queue.is_empty() {
            match self.tasks.recv() {
                Ok(task) => self.take(task),
                Err(_) => return false,
            }
        }
        loop {
            match self.tasks.try_recv() {
                Ok(task) => self.take(task),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Reply(job) => self.queue.push_back(*job),
            Task::Tidy => {}
        }
    }

    /// Ends what nobody waits for, and what has taken too long.
    fn give_up(&mut self) {
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
        self.sets.iter_mut().for_each(|set| set.give_up(&self.metrics, error));
    }

    /// Begins replies while there is room for them. A prompt that begins like one which is being computed with the same
    /// adapters waits for it: what they have in common is computed once.
    fn begin(&mut self) {
        let mut waiting = 0;
        while self.active() < self.sizes.replies
            && let Some(job) = self.queue.get(waiting)
        {
            let set = self.sets.iter().find(|set| set.adapters == job.adapters);
            let comes_soon = |prompt| set.is_some_and(|set| set.scheduler.comes_soon(prompt));
            if matches!(&job.prompt, Prompt::Encoded(prompt) if comes_soon(prompt)) {
                waiting += 1;
                continue;
            }
            let Some(job) = self.queue.remove(waiting) else { return };
            let metrics = Arc::clone(&self.metrics);
            match self.set(&job.adapters) {
                Ok(set) => set.begin(job, &metrics),
                Err(error) => job.updates.send(Update::Failed(ApiError::Model(error))),
            }
            self.share_room();
        }
    }

    /// The set with these adapters, which is made if there is none. With as many as there may be, the one without replies
    /// that was not used for longest is dropped.
    fn set(&mut self, adapters: &Chosen) -> shohin::Result<&mut Set> {
        let set = match self.sets.iter().position(|set| set.adapters == *adapters) {
            Some(at) => self.sets.remove(at),
            None => {
                // Fewer replies are in progress than there may be sets.
                if self.sets.len() >= self.sizes.replies
                    && let Some(idle) = self.sets.iter().position(|set| set.active.is_empty())
                {
                    self.sets.remove(idle);
                }
                let Sizes { replies, prompt_tokens, .. } = self.sizes;
                let scheduler = adapters.apply(&self.model)?.scheduler(replies, prompt_tokens)?;
                Set { adapters: adapters.clone(), scheduler, active: BTreeMap::new() }
            }
        };
        Ok(self.sets.push_mut(set))
    }

    /// Lets each set keep of its ended replies what the others leave room for. Those that were not used for longest give up
    /// theirs first.
    fn share_room(&mut self) {
        if let [set] = self.sets.as_mut_slice() {
            return set.scheduler.set_cache_bytes(self.sizes.cache_bytes);
        }
        let mut all: usize = self.sets.iter().map(|set| set.scheduler.cache_bytes()).sum();
        for set in &mut self.sets {
            let others = all - set.scheduler.cache_bytes();
            set.scheduler.set_cache_bytes(Some(self.room.saturating_sub(others)));
            all = others + set.scheduler.cache_bytes();
        }
    }

    /// Computes once for each set in turn, and sends what has come of it.
    fn step(&mut self) -> bool {
        let mut computed = false;
        for at in 0..self.sets.len() {
            computed |= self.sets[at].step(&self.model, &self.metrics);
            if self.sets.len() > 1 {
                self.share_room();
            }
        }
        computed
    }
}
