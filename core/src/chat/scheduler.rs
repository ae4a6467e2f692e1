//! Several replies at once over one device (continuous batching), for hosts with many conversations.
//!
//! A step computes the next token of every reply, and a part of the prompts that have just begun, in one batch:
//! the weights are read once for all of them. A reply has the same bits as alone. Keys and values of an ended reply are
//! kept until their memory is needed, so that a conversation that goes on computes its new tokens only; a prompt that
//! begins like another one copies what it has in common.
#![forbid(unsafe_code)]

use super::conversation::{Conversation, Finish, Piece, SessionState, Usage};
use super::message::ChatMessage;
use super::model::ChatModel;
use super::options::{Encoded, TurnOptions};
use super::prefix::PrefixState;
use crate::device::{Device, Output, Readout, SessionOptions, Wants};
use crate::error::{Error, Result};
use crate::generate::{Action, Detokenizer};
use crate::sample::SparseLogits;
use crate::session::{Feed, MAX_SEQUENCES, Session, run_batch};
use alloc::vec::Vec;

/// Tokens that a prompt must have in common with another one for their keys and values to be copied.
const WORTH_COPYING: usize = 32;

/// Sizes of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Most replies at once: 1 to [`MAX_SEQUENCES`]. Each may need the memory of a session.
    pub replies: usize,
    /// Most tokens of prompts per step. Fewer delay the tokens of other replies less; more are computed faster.
    pub prompt_tokens: usize,
    /// Context of a reply, and the format of its cache.
    pub session: SessionOptions,
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
    begun: u64,
}

/// A session with its conversation.
struct Lane<D: Device> {
    session: Session<D>,
    conversation: Conversation,
    /// Its reply, if one is in progress.
    reply: Option<ReplyId>,
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
                return Err(Error::Option { what, found: 0.0, expected: "at least 1" });
            }
        }
        let (found, max) = (options.replies as u64, MAX_SEQUENCES as u64);
        if found > max {
            return Err(Error::Limit { what: "replies", found, max });
        }
        Ok(Scheduler { device, options, lanes: Vec::new(), begun: 0 })
    }

    /// The replies in progress.
    pub fn replies(&self) -> impl Iterator<Item = ReplyId> {
        self.lanes.iter().filter_map(|lane| lane.reply)
    }

    /// Whether no other reply can begin before one ends.
    pub fn is_full(&self) -> bool {
        self.replies().count() >= self.options.replies
    }

    /// Tokens whose keys and values are held, those of ended replies included.
    pub fn held_tokens(&self) -> usize {
        self.lanes.iter().map(|lane| lane.session.position()).sum()
    }

    /// Token counts of a reply in progress.
    pub fn usage(&self, id: ReplyId) -> Option<Usage> {
        self.lanes.iter().find(|lane| lane.reply == Some(id)).map(|lane| lane.conversation.usage())
    }

    /// Whether a reply in progress is about to compute much of this prompt, which can be copied then: beginning later is
    /// less work.
    pub fn comes_soon(&self, prompt: &Encoded) -> bool {
        let tokens = prompt.tokens();
        let held = self.lanes.iter().map(|lane| lane.common(tokens)).max().unwrap_or(0);
        let soon = self.lanes.iter().filter(|lane| lane.reply.is_some()).map(|lane| lane.common_soon(tokens));
        soon.max().is_some_and(|soon| soon >= held + WORTH_COPYING)
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
            return Err(Error::Limit { what: "replies", found: max + 1, max }.into());
        }
        let options = TurnOptions { batch: self.options.prompt_tokens, ..options.clone() };
        let prompt = match prompt {
            Prompt::Messages(messages) => Encoded::new(model, messages, &options)?,
            Prompt::Encoded(encoded) => encoded,
            Prompt::Tokens(tokens) => Encoded::text(tokens),
        };
        let chosen = self.lane(prompt.tokens()).await?;
        // It has just been chosen.
        let Some(lane) = self.lanes.get_mut(chosen) else {
            return Err(Error::Device { problem: "a session is missing" }.into());
        };
        let state = SessionState { position: lane.session.position(), capacity: lane.session.capacity() };
        let held = lane.conversation.respond_encoded(model, state, prompt, &options)?;
        lane.session.truncate(held)?;
        self.begun += 1;
        let id = ReplyId(self.begun);
        lane.readout = if self.options.sparse { options.readout() } else { Readout::Logits };
        (lane.reply, lane.used) = (Some(id), self.begun);
        Ok(id)
    }

    /// The lane without a reply in which most of `tokens` need not be computed.
    async fn lane(&mut self, tokens: &[u32]) -> Result<usize, D::Error> {
        let common = |lane: &Lane<D>| lane.common(tokens);
        let free = self.lanes.iter().enumerate().filter(|(_, lane)| lane.reply.is_none());
        // Of others that are kept, most would be lost.
        let goes_on = free.clone().filter(|(_, lane)| 2 * common(lane) > lane.session.position());
        let best = goes_on.max_by_key(|(_, lane)| (common(lane), lane.used)).map(|(i, _)| i);
        let chosen = match best {
            Some(lane) => lane,
            None if self.lanes.len() < self.options.replies => {
                let session = Session::open(&mut self.device, &self.options.session).await?;
                self.lanes.push(Lane::new(session));
                self.lanes.len() - 1
            }
            None => free.min_by_key(|(_, lane)| lane.used).map_or(0, |(i, _)| i),
        };
        let source = self.lanes.iter().enumerate().max_by_key(|(_, lane)| common(lane));
        let Some((source, len)) = source.map(|(i, lane)| (i, common(lane))) else { return Ok(chosen) };
        if let Ok([to, from]) = self.lanes.get_disjoint_mut([chosen, source])
            && len >= to.common(tokens) + WORTH_COPYING
        {
            // Until they are there, its session holds nothing that is known.
            to.conversation.set_prefix(PrefixState::default())?;
            to.session.copy(&mut self.device, &mut from.session, len).await?;
            let tokens = tokens.get(..len).unwrap_or_default().to_vec();
            to.conversation.set_prefix(PrefixState { tokens, ..PrefixState::default() })?;
        }
        Ok(chosen)
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
                let Lane { session, conversation, reply, tokens, wants, sparse, failed, .. } = lane;
                // There are no more lanes than a batch has sequences.
                let _ = feeds.push(Feed { session, tokens: tokens.as_slice(), wants: *wants });
                let _ = heads.push((conversation, *reply, sparse, failed));
            }
            if feeds.is_empty() {
                return Ok(false);
            }
            run_batch(&mut self.device, &mut feeds, &mut |sequence, _, output| {
                let Some((conversation, Some(id), sparse, failed)) = heads.get_mut(sequence) else { return };
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
            let Some(id) = lane.reply.filter(|_| done || lane.failed.is_some()) else { continue };
            let failed = lane.failed.take();
            match (lane.end(), failed) {
                (_, Some(error)) => events(id, Event::Failed(error)),
                (Some(finish), None) => events(id, Event::End(finish)),
                (None, None) => {}
            }
        }
        Ok(true)
    }

    /// Chooses what the lanes compute in a step.
    fn choose(&mut self, ready: &mut dyn FnMut(ReplyId) -> bool) -> Result<(), D::Error> {
        let mut room = self.options.prompt_tokens;
        // Prompts in the order in which they came.
        self.lanes.sort_by_key(|lane| lane.used);
        for lane in &mut self.lanes {
            lane.tokens.clear();
            if !lane.reply.is_some_and(&mut *ready) {
                continue;
            }
            while let Action::Shift { keep, drop } = lane.conversation.next() {
                lane.session.shift(&mut self.device, keep, drop)?;
                lane.conversation.shifted(lane.session.position());
            }
            let Action::Decode(tokens) = lane.conversation.next() else { continue };
            let (done, of) = lane.conversation.prompt_progress();
            if done < of {
                let Some(left) = room.checked_sub(tokens.len()) else {
                    room = 0;
                    continue;
                };
                room = left;
            }
            lane.wants = if done + tokens.len() < of { Wants::Nothing } else { Wants::Last(lane.readout) };
            lane.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Ends a reply as it is. `None` if it is not in progress; without text if its prompt was not computed yet.
    pub fn cancel(&mut self, id: ReplyId) -> Option<Finish> {
        let lane = self.lanes.iter_mut().find(|lane| lane.reply == Some(id))?;
        lane.conversation.cancel();
        lane.end()
    }
}

impl<D: Device> Lane<D> {
    fn new(session: Session<D>) -> Self {
        Lane {
            session,
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

    /// How many of `tokens`, from the first on, it holds; all but the last at most.
    fn common(&self, tokens: &[u32]) -> usize {
        common(self.conversation.intact(), tokens).min(self.session.position())
    }

    /// As [`Lane::common`], once its prompt is computed.
    fn common_soon(&self, tokens: &[u32]) -> usize {
        common(self.conversation.intact_soon(), tokens).min(self.session.capacity())
    }

    fn end(&mut self) -> Option<Finish> {
        self.reply = None;
        let (held, finish) = self.conversation.end(self.session.position());
        // It holds at least as many tokens as the conversation knows of.
        let _ = self.session.truncate(held);
        finish
    }
}

/// How many of `tokens`, from the first on, are those of `held`; all but the last at most.
fn common(held: &[u32], tokens: &[u32]) -> usize {
    let same = held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    same.min(tokens.len().saturating_sub(1))
}
