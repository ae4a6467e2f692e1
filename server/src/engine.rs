//! The thread that computes all replies.

use crate::failure::Failure;
use crate::metrics::Metrics;
use shohin::core::chat::openai::Chunk;
use shohin::core::chat::{Event, Finish, Prompt, ReplyId, TurnOptions, Usage};
use shohin::{Error, Scheduler};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Parts of a reply on their way to a client. With fewer than three places left its reply waits.
pub(crate) const UPDATES: usize = 64;

/// How long the thread sleeps when every reply waits for its reader.
const PAUSE: Duration = Duration::from_millis(5);

/// A request for a reply.
pub(crate) struct Job {
    pub(crate) prompt: Prompt,
    pub(crate) options: TurnOptions,
    pub(crate) updates: mpsc::Sender<Update>,
    /// When it is given up.
    pub(crate) deadline: Instant,
    /// Its place in the server, until it has ended.
    pub(crate) place: OwnedSemaphorePermit,
}

/// What becomes of a reply.
#[derive(Debug)]
pub(crate) enum Update {
    /// Its prompt is computed: counts of its tokens.
    Begun(Usage),
    Chunk(Chunk),
    End(Box<Finish>),
    Failed(Failure),
}

/// A reply in progress.
struct Active {
    updates: mpsc::Sender<Update>,
    deadline: Instant,
    chunk: Chunk,
    end: Option<Update>,
    started: Instant,
    has_begun: bool,
    _place: OwnedSemaphorePermit,
}

pub(crate) struct Engine {
    pub(crate) scheduler: Scheduler,
    pub(crate) jobs: Receiver<Job>,
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
        let failure = |deadline: Instant| match (is_over, now >= deadline) {
            (true, _) => Some(Failure::ShuttingDown),
            (false, true) => Some(Failure::TimedOut),
            (false, false) => None,
        };
        self.queue.retain(|job| match failure(job.deadline) {
            Some(failure) => {
                // A place is free: nothing has been sent.
                let _ = job.updates.try_send(Update::Failed(failure));
                false
            }
            None => !job.updates.is_closed(),
        });
        active.retain(|id, reply| {
            let failure = failure(reply.deadline);
            if failure.is_none() && !reply.updates.is_closed() {
                return true;
            }
            self.scheduler.cancel(*id);
            match failure {
                // Three places were free when the reply last went on.
                Some(failure) => drop(reply.updates.try_send(Update::Failed(failure))),
                None => self.metrics.count_cancelled(),
            }
            false
        });
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
            let Some(Job { prompt, options, updates, deadline, place }) = self.queue.remove(waiting) else {
                return;
            };
            match self.scheduler.begin(prompt, &options) {
                Ok(id) => {
                    let started = Instant::now();
                    let (chunk, end, has_begun) = (Chunk::default(), None, false);
                    let reply = Active { updates, deadline, chunk, end, started, has_begun, _place: place };
                    active.insert(id, reply);
                }
                Err(error) => drop(updates.try_send(Update::Failed(Failure::Model(error)))),
            }
        }
    }

    /// Computes once, and sends what has come of it.
    fn step(&mut self, active: &mut BTreeMap<ReplyId, Active>) -> bool {
        let open: Vec<ReplyId> =
            active.iter().filter(|(_, reply)| reply.updates.capacity() >= 3).map(|(id, _)| *id).collect();
        let stepped = self.scheduler.step(&mut |id| open.contains(&id), &mut |id, event| {
            let Some(reply) = active.get_mut(&id) else { return };
            match event {
                Event::Piece(piece) => reply.chunk.push(&piece),
                Event::End(finish) => reply.end = Some(Update::End(Box::new(finish))),
                Event::Failed(error) => reply.end = Some(Update::Failed(Failure::Model(error.into()))),
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
            if !reply.chunk.is_empty() {
                if !reply.has_begun {
                    reply.has_begun = true;
                    self.metrics.count_first_token(reply.started.elapsed());
                    if let Some(usage) = usage(*id, reply.end.as_ref()) {
                        let _ =
                            reply.updates.try_send(Update::Begun(Usage { completion_tokens: 0, ..usage }));
                    }
                }
                // If the client has gone, the reply ends in the next round.
                let _ = reply.updates.try_send(Update::Chunk(std::mem::take(&mut reply.chunk)));
            }
            let Some(end) = reply.end.take() else { return true };
            if let Update::End(finish) = &end {
                self.metrics.count_reply(&finish.usage);
            }
            let _ = reply.updates.try_send(end);
            false
        });
        computed
    }

    /// Ends all replies when the device has failed.
    fn fail_all(&mut self, active: &mut BTreeMap<ReplyId, Active>, error: &Error) {
        let problem = error.to_string();
        for (id, reply) in std::mem::take(active) {
            self.scheduler.cancel(id);
            let _ = reply.updates.try_send(Update::Failed(Failure::Device(problem.clone())));
        }
    }
}
