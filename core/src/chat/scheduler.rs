//! Several replies at once over one device (continuous batching), for hosts with many conversations.
//!
//! A step computes the next token of every reply, and a part of the prompts that have just begun, in one batch:
//! the weights are read once for all of them. A reply has the same bits as alone, if the device's do not depend on the
//! number of rows. Keys and values of ended replies are kept up to a number of bytes, so that a conversation that goes on
//! computes its new tokens only. A prompt that begins like another one shares the memory of what they have in common, if
//! the device has pages ([`Device::fork`]), and copies it otherwise.
#![forbid(unsafe_code)]

use super::conversation::{Conversation, Finish, Piece, SessionState, Usage};
use super::kept::{self, Kept};
use super::message::ChatMessage;
use super::model::ChatModel;
use super::options::{Encoded, TurnOptions};
use super::prefix::PrefixState;
use crate::cache::CHUNK_POSITIONS;
use crate::device::{Device, Output, Readout, SessionOptions, Wants};
use crate::error::{Error, Result};
use crate::generate::{Action, Detokenizer};
use crate::sample::SparseLogits;
use crate::session::{Feed, MAX_SEQUENCES, Session, run_batch};
use alloc::vec::Vec;

/// Tokens that a prompt must have in common with one in progress, or on a device without pages with any, for their keys and
/// values to be shared or copied.
const WORTH_SHARING: usize = 32;

/// Sizes of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Most replies at once: 1 to [`MAX_SEQUENCES`]. Each may need the memory of a session.
    pub replies: usize,
    /// Most tokens of prompts per step. Fewer delay the tokens of other replies less; more are computed faster.
    pub prompt_tokens: usize,
    /// Context of a reply, and the format of its cache.
    pub session: SessionOptions,
    /// Most bytes of the keys and values of all replies; those of ended ones are given up, the one not used for longest
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

/// Several replies over one device. No input or output, as with [`Conversation`].
pub struct Scheduler<D: Device> {
    device: D,
    options: SchedulerOptions,
    lanes: Vec<Lane<D>>,
    /// Sessions of ended replies.
    kept: Kept<Past<D>>,
    begun: u64,
    /// Bytes that a session takes when it is full.
    session_bytes: usize,
}

/// The session of an ended reply.
struct Past<D: Device> {
    session: Session<D>,
    /// The lane that computed it, as [`Lane::used`] says.
    used: u64,
}

/// A place for a reply.
struct Lane<D: Device> {
    conversation: Conversation,
    /// The reply in progress, if there is one, and its session.
    reply: Option<(ReplyId, Session<D>)>,
    /// Number of the reply that it computed last.
    used: u64,
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
        let kept = Kept::default();
        Ok(Scheduler { device, options, lanes: Vec::new(), kept, begun: 0, session_bytes: 0 })
    }

    /// Goes on over another device, in the place of one that was lost. All replies end, and nothing of them is held.
    pub fn renew(&mut self, device: D) {
        self.lanes.clear();
        self.kept = Kept::default();
        self.session_bytes = 0;
        self.device = device;
    }

    /// The replies in progress.
    pub fn replies(&self) -> impl Iterator<Item = ReplyId> {
        self.lanes.iter().filter_map(Lane::id)
    }

    /// Whether no other reply can begin before one ends.
    pub fn is_full(&self) -> bool {
        self.replies().count() >= self.options.replies
    }

    /// Tokens whose keys and values are held, those of ended replies included. Tokens that several replies share count
    /// for each of them.
    pub fn held_tokens(&self) -> usize {
        let sessions = self.lanes.iter().filter_map(|lane| lane.reply.as_ref());
        sessions.map(|(_, session)| session.position()).sum::<usize>() + self.kept.tokens()
    }

    /// Bytes of the memory for keys and values of all replies, those of ended replies included. What several replies share
    /// counts once.
    pub fn cache_bytes(&self) -> usize {
        let sessions = self.replies().count() + self.kept.len();
        self.device.page_bytes().unwrap_or(sessions.saturating_mul(self.session_bytes))
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
            && let Some(past) = self.kept.evict()
        {
            last = (!has_pages).then_some(past.session);
        }
        last
    }

    /// Token counts of a reply in progress.
    pub fn usage(&self, id: ReplyId) -> Option<Usage> {
        self.lanes.iter().find(|lane| lane.id() == Some(id)).map(|lane| lane.conversation.usage())
    }

    /// Whether a reply in progress is about to compute much of this prompt, which can be shared then: beginning later is
    /// less work.
    pub fn comes_soon(&self, prompt: &Encoded) -> bool {
        let tokens = prompt.tokens();
        let kept = self.kept.longest(tokens).map_or(0, |(_, len)| len.min(tokens.len().saturating_sub(1)));
        let held = self.lanes.iter().map(|lane| lane.common(tokens)).fold(kept, usize::max);
        let soon = self.lanes.iter().map(|lane| lane.common_soon(tokens));
        soon.max().is_some_and(|soon| soon >= held + WORTH_SHARING)
    }

    /// Begins a reply.
    ///
    /// # Errors
    /// Those of [`Conversation::send`]; [`Error::Limit`] if it [is full](Scheduler::is_full); those of the device.
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
        let lane = self.lane(used);
        lane.conversation.set_prefix(PrefixState { tokens: known.clone(), ..PrefixState::default() })?;
        match lane.conversation.respond_encoded(model, state, prompt, &options) {
            Ok(held) => session.truncate(held)?,
            Err(error) => {
                self.kept.insert(known, Past { session, used: used.unwrap_or(0) });
                return Err(error.into());
            }
        }
        let id = ReplyId(next);
        (lane.reply, lane.used, lane.readout) = (Some((id, session)), next, readout);
        self.begun = next;
        Ok(id)
    }

    /// The lane without a reply that was `used` then, or else the one that was not used for longest, or a new one.
    fn lane(&mut self, used: Option<u64>) -> &mut Lane<D> {
        let free = self.lanes.iter().enumerate().filter(|(_, lane)| lane.reply.is_none());
        let best =
            free.min_by_key(|(_, lane)| (Some(lane.used) != used, lane.used)).map(|(i, lane)| (i, lane.used));
        let at = match best {
            Some((i, last)) if Some(last) == used || self.lanes.len() >= self.options.replies => i,
            Some(_) | None => {
                self.lanes.push(Lane::new());
                self.lanes.len() - 1
            }
        };
        &mut self.lanes[at]
    }

    /// A session that holds what is known of `tokens`, and the lane that computed it.
    async fn session(&mut self, tokens: &[u32]) -> Result<(Session<D>, Option<u64>), D::Error> {
        let most = tokens.len().saturating_sub(1);
        let kept = self.kept.longest(tokens).map(|(held, len)| (held.to_vec(), len.min(most)));
        let active = self.lanes.iter().enumerate().map(|(i, lane)| (lane.common(tokens), i)).max();
        let active = active.filter(|(len, _)| kept.as_ref().is_none_or(|kept| *len > kept.1));
        let has_pages = self.device.page_bytes().is_some();
        let more = if has_pages { 0 } else { self.session_bytes };
        if let Some((len, i)) = active.filter(|(len, _)| *len >= WORTH_SHARING) {
            self.make_room(more);
            if let Some((_, session)) = self.lanes.get_mut(i).and_then(|lane| lane.reply.as_mut()) {
                return Ok((session.fork(&mut self.device, len).await?, None));
            }
        }
        if let Some((held, len)) = kept.filter(|_| active.is_none()) {
            // Without pages, what goes on here would be copied.
            let goes_on = if has_pages { len + 1 >= held.len() } else { 2 * len > held.len() };
            if goes_on && let Some(Past { mut session, used }) = self.kept.take(&held) {
                session.truncate(len)?;
                return Ok((session, Some(used)));
            }
            // With pages, at most one is copied; more with a mixture of depths.
            if len >= if has_pages { 1 } else { WORTH_SHARING } {
                // Used now, it is the last that is given up.
                let used = self.kept.get_mut(&held).map(|past| past.used);
                let given_up = self.make_room(more);
                if let Some(past) = self.kept.get_mut(&held) {
                    return Ok((past.session.fork(&mut self.device, len).await?, used));
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
        self.session_bytes = self.device.export_len(session.cache(), capacity);
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
            for lane in self.lanes.iter_mut().filter(|lane| !lane.tokens.is_empty()) {
                let Lane { conversation, reply, tokens, wants, sparse, failed, .. } = lane;
                let Some((id, session)) = reply else { continue };
                // There are no more lanes than a batch has sequences.
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
        for lane in self.lanes.iter_mut().filter(|lane| !lane.tokens.is_empty()) {
            if lane.wants == Wants::Nothing {
                // The rest of the prompt follows.
                let _ = lane.conversation.logits(detokenizer, &[])?;
            }
            let done = matches!(lane.conversation.next(), Action::Done(_));
            let Some(id) = lane.id().filter(|_| done || lane.failed.is_some()) else { continue };
            let failed = lane.failed.take();
            match (lane.end(&mut self.kept), failed) {
                (_, Some(error)) => events(id, Event::Failed(error)),
                (Some(finish), None) => events(id, Event::End(finish)),
                (None, None) => {}
            }
        }
        self.make_room(0);
        Ok(true)
    }

    /// Chooses what the lanes compute in a step.
    fn choose(&mut self, ready: &mut dyn FnMut(ReplyId) -> bool) -> Result<(), D::Error> {
        let mut room = self.options.prompt_tokens;
        // Prompts in the order in which they came.
        self.lanes.sort_by_key(|lane| lane.used);
        for lane in &mut self.lanes {
            lane.tokens.clear();
            let Some((_, session)) = lane.reply.as_mut().filter(|(id, _)| ready(*id)) else { continue };
            while let Action::Shift { keep, drop } = lane.conversation.next() {
                session.shift(&mut self.device, keep, drop)?;
                lane.conversation.shifted(session.position());
            }
            let (done, of) = lane.conversation.prompt_progress();
            let reads_prompt = done < of;
            if reads_prompt && room == 0 {
                continue;
            }
            lane.conversation.set_batch(if reads_prompt { room } else { self.options.prompt_tokens });
            let Action::Decode(tokens) = lane.conversation.next() else { continue };
            if reads_prompt {
                room = room.saturating_sub(tokens.len());
            }
            lane.wants = if done + tokens.len() < of { Wants::Nothing } else { Wants::Last(lane.readout) };
            lane.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Ends a reply as it is. `None` if it is not in progress; without text if its prompt was not computed yet.
    pub fn cancel(&mut self, id: ReplyId) -> Option<Finish> {
        let lane = self.lanes.iter_mut().find(|lane| lane.id() == Some(id))?;
        lane.conversation.cancel();
        let finish = lane.end(&mut self.kept);
        self.make_room(0);
        finish
    }
}

impl<D: Device> Lane<D> {
    fn new() -> Self {
        Lane {
            conversation: Conversation::new(),
            reply: None,
            used: 0,
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
        kept::common(self.conversation.intact(), tokens).min(most)
    }

    /// As [`Lane::common`], once its prompt is computed.
    fn common_soon(&self, tokens: &[u32]) -> usize {
        let Some((_, session)) = &self.reply else { return 0 };
        let most = session.capacity().min(tokens.len().saturating_sub(1));
        kept::common(self.conversation.intact_soon(), tokens).min(most)
    }

    /// Ends the reply, and keeps its session.
    fn end(&mut self, kept: &mut Kept<Past<D>>) -> Option<Finish> {
        let (_, mut session) = self.reply.take()?;
        let (_, finish) = self.conversation.end(session.position());
        let tokens = self.conversation.intact().to_vec();
        // It holds at least as many tokens as the conversation knows of.
        if session.truncate(tokens.len()).is_ok() {
            kept.insert(tokens, Past { session, used: self.used });
        }
        finish
    }
}
