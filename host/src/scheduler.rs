//! Several replies at once over a model.

use crate::device::HostDevice;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::split::lost;
use crate::weights::Weights;
use shohin_core::CpuOptions;
use shohin_core::chat::{
    Encoded, Event, Finish, PrefixCacheStats, Prompt, ReplyId, Scheduler as CoreScheduler, SchedulerOptions,
    TurnOptions, Usage,
};
use shohin_core::device::BlockingDevice;

/// Several replies at once, which read the weights once for all of them. See [`shohin_core::chat::Scheduler`].
///
/// ```
/// use shohin::Model;
/// use shohin::core::chat::{ChatMessage, Event, Prompt, TurnOptions};
///
/// let model = Model::builder().load_built_in()?;
/// let mut scheduler = model.scheduler(4, 64)?;
/// let options = TurnOptions { max_tokens: Some(8), ..TurnOptions::default() };
/// for text in ["Tell me a story.", "What does a cow say?"] {
///     scheduler.begin(Prompt::Messages(vec![ChatMessage::user(text)]), &options)?;
/// }
/// let mut ended = 0;
/// while scheduler.step(&mut |_| true, &mut |_, event| ended += usize::from(matches!(event, Event::End(_))))? {}
/// assert_eq!(ended, 2);
/// # Ok::<(), shohin::Error>(())
/// ```
#[derive(Debug)]
pub struct Scheduler {
    model: Model,
    /// Options of its device.
    options: CpuOptions,
    scheduler: CoreScheduler<HostDevice>,
    /// Maximum number of replies at once.
    replies_at_once: usize,
}

/// Prompt tokens per step where larger batches are hardly faster per token: the other replies wait for each step.
const PROMPT_TOKENS: usize = 64;

/// [`Model::prompt_tokens`] on a device that is fast with `rows` rows.
fn prompt_tokens(rows: usize, replies: usize, context: usize) -> usize {
    rows.min(context).saturating_sub(replies).max(PROMPT_TOKENS)
}

impl Model {
    /// The tokens of prompts that a scheduler of `replies` replies should compute per step: 64, or with CUDA as many as make
    /// 512 rows with one of each reply.
    pub fn prompt_tokens(&self, replies: usize) -> usize {
        let rows = self.0.device.fast_batch().unwrap_or(0);
        prompt_tokens(rows, replies, self.context())
    }

    /// A scheduler of at most `replies` replies at once, each with the model's context, which computes at most
    /// `prompt_tokens` tokens of prompts per step (see [`Model::prompt_tokens`]).
    ///
    /// # Errors
    /// If either is 0 or too large, or there is no memory.
    pub fn scheduler(&self, replies: usize, prompt_tokens: usize) -> Result<Scheduler> {
        let session = self.session_options(self.context());
        let sparse = self.gpu().is_some();
        let options = SchedulerOptions { replies, prompt_tokens, session, cache_bytes: None, sparse };
        let batch = replies.saturating_add(prompt_tokens);
        let device = CpuOptions { batch, logit_rows: replies.min(8), ..self.0.options };
        let scheduler = CoreScheduler::new(self.0.device.open(&device)?, options)?;
        Ok(Scheduler { model: self.clone(), options: device, scheduler, replies_at_once: replies })
    }
}

impl Scheduler {
    /// The replies in progress.
    pub fn replies(&self) -> Vec<ReplyId> {
        self.scheduler.replies().collect()
    }

    /// Whether no other reply can begin before one ends.
    pub fn is_full(&self) -> bool {
        self.scheduler.is_full()
    }

    /// Tokens whose keys and values are held, those of ended replies included.
    pub fn held_tokens(&self) -> usize {
        self.scheduler.held_tokens()
    }

    /// Bytes of the memory for keys and values of all replies, those of ended replies included. What several replies share
    /// counts once.
    pub fn cache_bytes(&self) -> usize {
        self.scheduler.cache_bytes()
    }

    /// How much of the prompts was computed before.
    pub fn prefix_cache_stats(&self) -> PrefixCacheStats {
        self.scheduler.prefix_cache_stats()
    }

    /// Bytes that the model takes with all replies in progress and their contexts full: the weights, the scratch memory of a step, and
    /// keys and values. On a GPU, those of the same memory on the CPU.
    ///
    /// # Errors
    /// If the contexts exceed the address space.
    pub fn peak_memory_estimate(&self) -> Result<u64> {
        let plan =
            self.model.0.cpu.memory_plan(&self.options, &self.model.session_options(self.model.context()))?;
        let sessions = (plan.session as u64).saturating_mul(self.replies_at_once as u64);
        let caches = sessions.max(self.scheduler.peak_cache_bytes() as u64);
        Ok((self.model.weight_bytes() as u64).saturating_add(plan.device as u64).saturating_add(caches))
    }

    /// Sets the priority of a reply in progress, 0 unless set: prompts of replies with higher ones are computed first. Returns whether
    /// it is in progress.
    pub fn set_priority(&mut self, id: ReplyId, priority: i32) -> bool {
        self.scheduler.set_priority(id, priority)
    }

    /// Keeps the keys and values of ended replies only while those of all replies take at most `bytes`; `None`: as many as
    /// the contexts of all replies at once.
    pub fn set_cache_bytes(&mut self, bytes: Option<usize>) {
        self.scheduler.set_cache_bytes(bytes);
    }

    /// Token counts of a reply in progress.
    pub fn usage(&self, id: ReplyId) -> Option<Usage> {
        self.scheduler.usage(id)
    }

    /// Whether a reply in progress is about to compute much of this prompt, which can be copied then: beginning later is
    /// less work.
    pub fn comes_soon(&self, prompt: &Encoded) -> bool {
        self.scheduler.comes_soon(prompt)
    }

    /// Begins a reply. Options are those of one turn: the sampler's random sequence starts at its seed.
    ///
    /// # Errors
    /// If the prompt does not fit the context, an option is invalid, all replies are in progress, there is no memory, or a rank of
    /// a split model was lost: the replies in progress fail at the next step then, and later ones run on new threads.
    pub fn begin(&mut self, prompt: Prompt, options: &TurnOptions) -> Result<ReplyId> {
        let Scheduler { model, scheduler, .. } = self;
        let begun = model
            .with_chat_model(|chat| HostDevice::wait(scheduler.begin(chat, prompt, options)))
            .map_err(Error::Engine);
        // Replies in progress are lost, too: the next step says so of them, and renews the group.
        if self.replies().is_empty() { self.renewed(begun) } else { begun }
    }

    /// Computes a token of each reply and a part of a prompt. Replies for which `ready` is false wait. Returns whether
    /// there was anything to compute.
    ///
    /// # Errors
    /// Those of the device. No reply has gone on then. If a rank of a split model was lost, all replies have ended; later ones
    /// run on new threads.
    pub fn step(
        &mut self,
        ready: &mut dyn FnMut(ReplyId) -> bool,
        events: &mut dyn FnMut(ReplyId, Event<'_>),
    ) -> Result<bool> {
        let stepped = HostDevice::wait(self.scheduler.step(self.model.tokenizer(), ready, events));
        self.renewed(stepped.map_err(Error::Engine))
    }

    /// Goes on over a new group if a rank of the last one was lost.
    fn renewed<T>(&mut self, done: Result<T>) -> Result<T> {
        if matches!(done, Err(Error::Engine(error)) if error == lost())
            && let Weights::Split(weights) = &self.model.0.device
            && let Ok(device) = weights.device(&self.options)
        {
            self.scheduler.renew(HostDevice::Split(device));
        }
        done
    }

    /// Ends a reply as it is. `None` if it is not in progress; without text if its prompt was not computed yet.
    pub fn cancel(&mut self, id: ReplyId) -> Option<Finish> {
        self.scheduler.cancel(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shohin_core::chat::{ChatMessage, Role};
    use std::sync::Arc;

    #[test]
    fn prompts_fill_the_rows_of_a_device() {
        assert_eq!(prompt_tokens(512, 4, 4096), 508);
        assert_eq!(prompt_tokens(512, 64, 4096), 448);
        assert_eq!((prompt_tokens(512, 4, 128), prompt_tokens(512, 4, 32)), (124, 64));
        assert_eq!(prompt_tokens(0, 4, 4096), 64);
    }

    #[test]
    fn replies_after_a_lost_rank_run_on_a_new_group() {
        let model = Model::builder().split("tensor:2".parse().unwrap()).threads(2).context(128);
        let model = model.load_built_in().unwrap();
        let mut scheduler = model.scheduler(2, 32).unwrap();
        let begin = |scheduler: &mut Scheduler| {
            let messages = vec![ChatMessage::new(Role::User, "What does a cow say?")];
            let options = TurnOptions { max_tokens: Some(8), ..TurnOptions::default() };
            scheduler.begin(Prompt::Messages(messages), &options)
        };
        let ask = |scheduler: &mut Scheduler| begin(scheduler).unwrap();
        let rest = |scheduler: &mut Scheduler| {
            let mut said = String::new();
            let mut events = |_, event: Event<'_>| {
                if let Event::Piece(piece) = event {
                    said.push_str(piece.text);
                }
            };
            while scheduler.step(&mut |_| true, &mut events).unwrap() {}
            said
        };
        let first = ask(&mut scheduler);
        let want = rest(&mut scheduler);

        let mut last = first;
        // The loss is noticed by a step, by another reply that begins, and by one when no other is in progress.
        for (in_progress, begins) in [(true, false), (true, true), (false, true)] {
            let device = model.0.device.open(&scheduler.options).unwrap();
            let HostDevice::Split(split) = &device else { panic!("the model is split") };
            let group = Arc::downgrade(split.group.as_ref().unwrap());
            scheduler.scheduler.renew(device);
            if in_progress {
                ask(&mut scheduler);
                assert!(scheduler.step(&mut |_| true, &mut |_, _| ()).unwrap());
            }
            let group = group.upgrade().unwrap();
            while group.order("leave").is_ok() {
                std::thread::yield_now();
            }
            drop(group);
            if begins {
                assert_eq!(begin(&mut scheduler).unwrap_err().to_string(), lost().to_string());
                assert_eq!(scheduler.replies().len(), usize::from(in_progress), "no reply ends in silence");
            }
            if in_progress {
                let error = scheduler.step(&mut |_| true, &mut |_, _| ()).unwrap_err().to_string();
                assert_eq!(error, lost().to_string());
            }
            assert_eq!((scheduler.replies().len(), scheduler.held_tokens()), (0, 0));
            let next = ask(&mut scheduler);
            assert_eq!(rest(&mut scheduler), want);
            assert!(last < next);
            last = next;
        }
    }
}
