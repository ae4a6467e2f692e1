//! Several replies at once over one device (continuous batching), for hosts with many conversations.
//!
//! A step computes the next token of every reply, and a part of the prompts that have just begun, in one batch:
//! the weights are read once for all of them. A reply has the same bits as alone, if the device's do not depend on the
//! number of rows. Keys and values of ended replies are kept up to a number of bytes, so that a conversation that goes on
//! computes its new tokens only. A prompt that begins like another one shares the memory of what they have in common, if
//! the device has pages ([`Device::fork`]), and copies it otherwise.
#![forbid(unsafe_code)]

use super::conversation::{Conversation, Finish, Piece, PrefixState, Request, SessionState, Usage};
use super::message::ChatMessage;
use super::model::ChatModel;
use super::options::{Encoded, TurnOptions};
use super::prefix_cache::{self, PrefixCache};
use crate::cache::CHUNK_POSITIONS;
use crate::device::{Device, Output, Readout, SessionOptions, Wants};
use crate::error::{Error, Result};
use crate::generate::{Action, Detokenizer};
use crate::sample::SparseLogits;
use crate::session::{Feed, MAX_SEQUENCES, Session, run_batch};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Tokens that a prompt must have in common with one in progress, or on a device without pages with any, for their keys and
/// values to be shared or copied.
const WORTH_SHARING: usize = 32;

/// Sizes of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Maximum number of replies at once: 1 to [`MAX_SEQUENCES`]. Each may need the memory of a session.
    pub replies: usize,
    /// Maximum number of tokens of prompts per step. Fewer delay the tokens of other replies less; more are computed faster.
    pub prompt_tokens: usize,
    /// Context of a reply, and the format of its cache.
    pub session: SessionOptions,
    /// Maximum number of bytes of the keys and values of all replies; those of ended ones are given up, the one not used for longest
    /// first, for those in progress. `None`: as many as the contexts of [`SchedulerOptions::replies`] take.
    pub cache_bytes: Option<usize>,
    /// Whether the device reads a few logits faster than all, as GPUs do.
    pub sparse: bool,
}

/// What a reply answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation.
    Messages(Vec<ChatMessage>),
    /// A conversation that was encoded before, with the reply's options.
    Encoded(Encoded),
    /// Text to continue, without a chat template.
    Tokens(Vec<u32>),
}

/// A reply of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplyId(u64);

/// What became of a reply in a step.
#[derive(Debug)]
pub enum Event<'e> {
    /// It goes on.
    Piece(Piece<'e>),
    /// It has ended.
    End(Finish),
    /// It has failed; the others go on.
    Failed(Error),
}

/// How much of the prompts was computed before, since the scheduler began or was [renewed](Scheduler::renew).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixCacheStats {
    /// Replies that began.
    pub prompts: u64,
    /// Those of them whose prompt began with tokens that were held.
    pub hits: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Those of them that were held.
    pub reused_tokens: u64,
    /// Sessions of ended replies that were given up for others.
    pub evicted: u64,
    /// Sessions of ended replies that are kept.
    pub kept: usize,
}

/// Several replies over one device. No input or output, as with [`Conversation`].
pub struct Scheduler<D: Device> {
    device: D,
    options: SchedulerOptions,
    slots: Vec<Slot<D>>,
    /// Sessions of ended replies.
    cache: PrefixCache<Ended<D>>,
    begun: u64,
    /// Bytes that a session takes when it is full.
    session_bytes: usize,
    /// Bytes of the recurrent state of one, which is in no page.
    state_bytes: usize,
    stats: PrefixCacheStats,
}

/// The session of an ended reply.
struct Ended<D: Device> {
    session: Session<D>,
    /// The slot that computed it, as [`Slot::used`] says.
    used: u64,
}

/// A place for a reply.
struct Slot<D: Device> {
    conversation: Conversation,
    /// The reply in progress, if there is one, and its session.
    reply: Option<(ReplyId, Session<D>)>,
    /// Number of the reply that it computed last.
    used: u64,
    /// Of the reply in progress: prompts with higher ones are computed first.
    priority: i32,
    readout: Readout,
    sparse: SparseLogits,
    /// What it computes in a step.
    tokens: Vec<u32>,
    wants: Wants,
    failed: Option<Error>,
}

impl<D: Device> core::fmt::Debug for Scheduler<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("Scheduler");
        debug
            .field("options", &self.options)
            .field("replies", &self.replies().count())
            .finish_non_exhaustive()
    }
}

impl<D: Device> Scheduler<D> {
    /// Without replies, over a device.
    ///
    /// # Errors
    /// [`Error::Option`] for no replies or no tokens of prompts, [`Error::Limit`] for more replies than a batch has.
    pub fn new(device: D, options: SchedulerOptions) -> Result<Self> {
        for (what, found) in [("replies", options.replies), ("prompt tokens", options.prompt_tokens)] {
            if found == 0 {
                return Err(error!(Option { what, found: 0.0, expected: "at least 1" }));
            }
        }
        let (found, max) = (options.replies as u64, MAX_SEQUENCES as u64);
        if found > max {
            return Err(error!(Limit { what: "replies", found, max }));
        }
        let cache = PrefixCache::default();
        Ok(Scheduler {
            device,
            options,
            slots: Vec::new(),
            cache,
            begun: 0,
            session_bytes: 0,
            state_bytes: 0,
            stats: PrefixCacheStats::default(),
        })
    }

    /// Goes on over another device, in the place of one that was lost. All replies end, and nothing of them is held.
    pub fn renew(&mut self, device: D) {
        self.slots.clear();
        self.cache = PrefixCache::default();
        (self.session_bytes, self.state_bytes) = (0, 0);
        self.stats = PrefixCacheStats::default();
        self.device = device;
    }

    /// The replies in progress.
    pub fn replies(&self) -> impl Iterator<Item = ReplyId> {
        self.slots.iter().filter_map(Slot::id)
    }

    /// Whether no other reply can begin before one ends.
    pub fn is_full(&self) -> bool {
        self.replies().count() >= self.options.replies
    }

    /// Tokens whose keys and values are held, those of ended replies included. Tokens that several replies share count
    /// for each of them.
    pub fn held_tokens(&self) -> usize {
        let sessions = self.slots.iter().filter_map(|slot| slot.reply.as_ref());
        sessions.map(|(_, session)| session.position()).sum::<usize>() + self.cache.tokens()
    }

    /// Bytes of the memory for keys and values of all replies, those of ended replies included. What several replies share
    /// counts once.
    pub fn cache_bytes(&self) -> usize {
        let sessions = self.replies().count() + self.cache.len();
        match self.device.page_bytes() {
            Some(pages) => pages.saturating_add(sessions.saturating_mul(self.state_bytes)),
            None => sessions.saturating_mul(self.session_bytes),
        }
    }

    /// Sets [`SchedulerOptions::cache_bytes`].
    pub fn set_cache_bytes(&mut self, bytes: Option<usize>) {
        self.options.cache_bytes = bytes;
        self.make_room(0);
    }

    /// Gives up ended replies until there is room for `more` bytes, or there are none. Returns the session of the last,
    /// on devices without pages: those of a session are free once it is dropped.
    fn make_room(&mut self, more: usize) -> Option<Session<D>> {
        let default = self.options.replies.saturating_mul(self.session_bytes);
        let limit = self.options.cache_bytes.unwrap_or(default);
        let has_pages = self.device.page_bytes().is_some();
        let mut last = None;
        while self.cache_bytes().saturating_add(more) > limit
            && let Some(ended) = self.cache.evict()
        {
            self.stats.evicted += 1;
            last = (!has_pages).then_some(ended.session);
        }
        last
    }

    /// How much of the prompts was computed before.
    pub fn prefix_cache_stats(&self) -> PrefixCacheStats {
        PrefixCacheStats { kept: self.cache.len(), ..self.stats }
    }

    /// Upper bound of [`Scheduler::cache_bytes`]: what all replies take with full contexts, or more if
    /// [`SchedulerOptions::cache_bytes`] lets ended ones stay. 0 before the first reply: the device says what a session takes.
    pub fn peak_cache_bytes(&self) -> usize {
        let replies = self.options.replies.saturating_mul(self.session_bytes);
        self.options.cache_bytes.unwrap_or(replies).max(replies)
    }

    /// Sets the priority of a reply in progress, 0 unless set: where [`SchedulerOptions::prompt_tokens`] are not enough for all prompts, those of
    /// replies with higher ones are computed first, and of equal ones those that began first. Returns whether it is in progress.
    pub fn set_priority(&mut self, id: ReplyId, priority: i32) -> bool {
        let slot = self.slots.iter_mut().find(|slot| slot.id() == Some(id));
        slot.map(|slot| slot.priority = priority).is_some()
    }

    /// Token counts of a reply in progress.
    pub fn usage(&self, id: ReplyId) -> Option<Usage> {
        self.slots.iter().find(|slot| slot.id() == Some(id)).map(|slot| slot.conversation.usage())
    }

    /// Whether a reply in progress is about to compute much of this prompt, which can be shared then: beginning later is
    /// less work.
    pub fn comes_soon(&self, prompt: &Encoded) -> bool {
        let tokens = prompt.tokens();
        let kept = self.cache.longest(tokens).map_or(0, |(_, len)| len.min(tokens.len().saturating_sub(1)));
        let held = self.slots.iter().map(|slot| slot.common(tokens)).fold(kept, usize::max);
        let soon = self.slots.iter().map(|slot| slot.common_soon(tokens));
        soon.max().is_some_and(|soon| soon >= held + WORTH_SHARING)
    }

    /// Begins a reply.
    ///
    /// # Errors
    /// Those of [`Conversation::start`]; [`Error::Limit`] if it [is full](Scheduler::is_full); those of the device.
    pub async fn begin(
        &mut self,
        model: &ChatModel<'_>,
        prompt: Prompt,
        options: &TurnOptions,
    ) -> Result<ReplyId, D::Error> {
        if self.is_full() {
            let max = self.options.replies as u64;
            return Err(error!(Limit { what: "replies", found: max + 1, max }).into());
        }
        let options = TurnOptions { batch: self.options.prompt_tokens, ..options.clone() };
        let prompt = match prompt {
            Prompt::Messages(messages) => Encoded::new(model, messages, &options)?,
            Prompt::Encoded(encoded) => encoded,
            Prompt::Tokens(tokens) => Encoded::text(tokens),
        };
        let (mut session, used) = self.session(prompt.tokens()).await?;
        let next = self.begun + 1;
        let readout = if self.options.sparse { options.readout() } else { Readout::Logits };
        let known = prompt.tokens().get(..session.position()).unwrap_or_default().to_vec();
        let state = SessionState { position: session.position(), capacity: session.capacity() };
        let slot = self.slot(used);
        slot.conversation.set_prefix(PrefixState { tokens: known.clone(), ..PrefixState::default() })?;
        match slot.conversation.start(model, state, Request::Encoded(prompt), &options) {
            Ok(held) => session.truncate(held)?,
            Err(error) => {
                self.cache.insert(known, Ended { session, used: used.unwrap_or(0) });
                return Err(error.into());
            }
        }
        let id = ReplyId(next);
        let Usage { prompt_tokens, cached_tokens, .. } = slot.conversation.usage();
        (slot.reply, slot.used, slot.readout, slot.priority) = (Some((id, session)), next, readout, 0);
        self.begun = next;
        self.stats.prompts += 1;
        self.stats.hits += u64::from(cached_tokens > 0);
        self.stats.prompt_tokens += prompt_tokens as u64;
        self.stats.reused_tokens += cached_tokens as u64;
        Ok(id)
    }

    /// The slot without a reply that was `used` then, or else the one that was not used for longest, or a new one.
    fn slot(&mut self, used: Option<u64>) -> &mut Slot<D> {
        let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.reply.is_none());
        let best =
            free.min_by_key(|(_, slot)| (Some(slot.used) != used, slot.used)).map(|(i, slot)| (i, slot.used));
        let at = match best {
            Some((i, last)) if Some(last) == used || self.slots.len() >= self.options.replies => i,
            Some(_) | None => {
                self.slots.push(Slot::new());
                self.slots.len() - 1
            }
        };
        &mut self.slots[at]
    }

    /// A session that holds what is known of `tokens`, and the slot that computed it.
    async fn session(&mut self, tokens: &[u32]) -> Result<(Session<D>, Option<u64>), D::Error> {
        let most = tokens.len().saturating_sub(1);
        let kept = self.cache.longest(tokens).map(|(held, len)| (held.to_vec(), len.min(most)));
        let active = self.slots.iter().enumerate().map(|(i, slot)| (slot.common(tokens), i)).max();
        let active = active.filter(|(len, _)| kept.as_ref().is_none_or(|kept| *len > kept.1));
        let has_pages = self.device.page_bytes().is_some();
        let more = if has_pages { self.state_bytes } else { self.session_bytes };
        if let Some((len, i)) = active.filter(|(len, _)| *len >= WORTH_SHARING) {
            self.make_room(more);
            if let Some((_, session)) = self.slots.get_mut(i).and_then(|slot| slot.reply.as_mut()) {
                return Ok((session.fork(&mut self.device, len).await?, None));
            }
        }
        if let Some((held, len)) = kept.filter(|_| active.is_none()) {
            // Without pages, what goes on here would be copied.
            let goes_on = if has_pages { len + 1 >= held.len() } else { 2 * len > held.len() };
            if goes_on && let Some(Ended { mut session, used }) = self.cache.take(&held) {
                session.truncate(len)?;
                return Ok((session, Some(used)));
            }
            // With pages, at most one is copied; more with a mixture of depths.
            if len >= if has_pages { 1 } else { WORTH_SHARING } {
                // Used now, it is the last that is given up.
                let used = self.cache.get_mut(&held).map(|ended| ended.used);
                let given_up = self.make_room(more);
                if let Some(ended) = self.cache.get_mut(&held) {
                    return Ok((ended.session.fork(&mut self.device, len).await?, used));
                }
                if let Some(mut session) = given_up {
                    session.truncate(len)?;
                    return Ok((session, used));
                }
            }
        }
        if let Some(mut session) = self.make_room(more) {
            session.truncate(0)?;
            return Ok((session, None));
        }
        let session = Session::open_paged(&mut self.device, &self.options.session).await?;
        let capacity = session.capacity();
        let capacity = if has_pages { capacity.next_multiple_of(CHUNK_POSITIONS) } else { capacity };
        self.state_bytes = self.device.state_bytes(session.cache());
        self.session_bytes =
            self.device.export_len(session.cache(), capacity).saturating_add(self.state_bytes);
        Ok((session, None))
    }

    /// Computes a token of each reply and a part of a prompt. Replies for which `ready` is false wait: a host that cannot
    /// take more of their text. Returns whether there was anything to compute.
    ///
    /// # Errors
    /// Those of the device; all replies are as before then.
    pub async fn step(
        &mut self,
        detokenizer: &dyn Detokenizer,
        ready: &mut dyn FnMut(ReplyId) -> bool,
        events: &mut dyn FnMut(ReplyId, Event<'_>),
    ) -> Result<bool, D::Error> {
        self.choose(ready)?;
        let vocab = self.device.program().vocab();
        {
            let mut feeds = heapless::Vec::<_, MAX_SEQUENCES>::new();
            let mut heads = heapless::Vec::<_, MAX_SEQUENCES>::new();
            for slot in self.slots.iter_mut().filter(|slot| !slot.tokens.is_empty()) {
                let Slot { conversation, reply, tokens, wants, sparse, failed, .. } = slot;
                let Some((id, session)) = reply else { continue };
                // There are no more slots than a batch has sequences.
                let _ = feeds.push(Feed { session, tokens: tokens.as_slice(), wants: *wants });
                let _ = heads.push((conversation, *id, sparse, failed));
            }
            if feeds.is_empty() {
                return Ok(false);
            }
            run_batch(&mut self.device, &mut feeds, &mut |sequence, _, output| {
                let Some((conversation, id, sparse, failed)) = heads.get_mut(sequence) else { return };
                let logits = match output {
                    Output::Logits(logits) => logits,
                    Output::Top(top) => {
                        sparse.set(vocab, top);
                        sparse.as_slice()
                    }
                    Output::Hidden(_) => return,
                };
                match conversation.logits(detokenizer, logits) {
                    Ok(Some(piece)) => events(*id, Event::Piece(piece)),
                    Ok(None) => {}
                    Err(error) => **failed = Some(error),
                }
            })
            .await?;
        }
        for slot in self.slots.iter_mut().filter(|slot| !slot.tokens.is_empty()) {
            if slot.wants == Wants::Nothing {
                // The rest of the prompt follows.
                let _ = slot.conversation.logits(detokenizer, &[])?;
            }
            let done = matches!(slot.conversation.next(), Action::Done(_));
            let Some(id) = slot.id().filter(|_| done || slot.failed.is_some()) else { continue };
            let failed = slot.failed.take();
            match (slot.end(&mut self.cache), failed) {
                (_, Some(error)) => events(id, Event::Failed(error)),
                (Some(finish), None) => events(id, Event::End(finish)),
                (None, None) => {}
            }
        }
        self.make_room(0);
        Ok(true)
    }

    /// Chooses what the slots compute in a step.
    fn choose(&mut self, ready: &mut dyn FnMut(ReplyId) -> bool) -> Result<(), D::Error> {
        let mut room = self.options.prompt_tokens;
        // Prompts in the order in which they came, those with higher priorities first.
        self.slots.sort_by_key(|slot| (Reverse(slot.priority), slot.used));
        for slot in &mut self.slots {
            slot.tokens.clear();
            let Some((_, session)) = slot.reply.as_mut().filter(|(id, _)| ready(*id)) else { continue };
            while let Action::Shift { keep, drop } = slot.conversation.next() {
                session.shift(&mut self.device, keep, drop)?;
                slot.conversation.shifted(session.position());
            }
            let (done, of) = slot.conversation.prompt_progress();
            let reads_prompt = done < of;
            if reads_prompt && room == 0 {
                continue;
            }
            slot.conversation.set_batch(if reads_prompt { room } else { self.options.prompt_tokens });
            let Action::Decode(tokens) = slot.conversation.next() else { continue };
            if reads_prompt {
                room = room.saturating_sub(tokens.len());
            }
            slot.wants = if done + tokens.len() < of { Wants::Nothing } else { Wants::Last(slot.readout) };
            slot.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Ends a reply as it is. `None` if it is not in progress; without text if its prompt was not computed yet.
    pub fn cancel(&mut self, id: ReplyId) -> Option<Finish> {
        let slot = self.slots.iter_mut().find(|slot| slot.id() == Some(id))?;
        slot.conversation.cancel();
        let finish = slot.end(&mut self.cache);
        self.make_room(0);
        finish
    }
}

impl<D: Device> Slot<D> {
    fn new() -> Self {
        Slot {
            conversation: Conversation::new(),
            reply: None,
            used: 0,
            priority: 0,
            readout: Readout::Logits,
            sparse: SparseLogits::default(),
            tokens: Vec::new(),
            wants: Wants::Nothing,
            failed: None,
        }
    }

    fn id(&self) -> Option<ReplyId> {
        self.reply.as_ref().map(|(id, _)| *id)
    }

    /// How many of `tokens`, from the first on, its reply in progress holds; all but the last at most.
    fn common(&self, tokens: &[u32]) -> usize {
        let Some((_, session)) = &self.reply else { return 0 };
        let most = session.position().min(tokens.len().saturating_sub(1));
        prefix_cache::common(self.conversation.intact(), tokens).min(most)
    }

    /// As [`Slot::common`], once its prompt is computed.
    fn common_soon(&self, tokens: &[u32]) -> usize {
        let Some((_, session)) = &self.reply else { return 0 };
        let most = session.capacity().min(tokens.len().saturating_sub(1));
        prefix_cache::common(self.conversation.intact_soon(), tokens).min(most)
    }

    /// Ends the reply, and keeps its session.
    fn end(&mut self, cache: &mut PrefixCache<Ended<D>>) -> Option<Finish> {
        let (_, mut session) = self.reply.take()?;
        let (_, finish) = self.conversation.end(session.position());
        let tokens = self.conversation.intact().to_vec();
        // It holds at least as many tokens as the conversation knows of.
        if session.truncate(tokens.len()).is_ok() {
            cache.insert(tokens, Ended { session, used: self.used });
        }
        finish
    }
}
