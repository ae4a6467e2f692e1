//! Conversations and replies. After `begin` nothing allocates but the messages of errors.

use crate::argument;
use crate::code::{Failure, Result, shohin_code};
use crate::handle::{self, Handle, Kind};
use crate::info::{shohin_chat, shohin_usage};
use crate::model::Loaded;
use crate::options::{SHOHIN_FORMAT_TEXT, SHOHIN_NO_LOGPROBS, SHOHIN_THINKING_OFF, shohin_chat_options};
use crate::piece::{SHOHIN_NO_TOKEN, SHOHIN_REASON_NONE, reason, shohin_piece};
use crate::storage::Bytes;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem::size_of;
use shohin_core::chat::{ChatEncoder, ChatOptions, Message, Role};
use shohin_core::generate::{Action, Backend, Generation, GenerationOptions};
use shohin_core::session::Decoder;
use shohin_core::sync::Arc;
use shohin_core::{Cpu, CpuOptions, Error, Sampler, Serial, Session, SessionOptions};

/// Prompt tokens computed together: more are faster and take more scratch memory.
const BATCH: usize = 4;
/// Bytes of the template's own text around a message, but for its instructions.
const TEMPLATE: usize = 128;
/// Bytes of the text of a piece: those of a token are far fewer.
const TEXT: usize = 1024;

type Device = Cpu<'static, Bytes>;

/// A conversation and its reply in progress.
pub(crate) struct State {
    model: Loaded,
    device: Device,
    session: Session<Device>,
    reply: Generation,
    encoder: ChatEncoder,
    ids: Vec<u32>,
    /// Instructions, which may be empty.
    system: String,
    /// Maximum number of bytes of instructions and a message.
    most_text: usize,
    /// Tokens that are to be left for a reply.
    room: usize,
    /// The text of the last piece, with a NUL at its end.
    text: Vec<u8>,
    usage: shohin_usage,
    /// Tokens before the message whose reply is in progress.
    before: usize,
    /// Whether that reply has a text.
    has_text: bool,
}

/// What a handle of a chat holds.
pub(crate) type Conversation = RefCell<State>;

impl Kind for Conversation {
    const MAGIC: usize = handle::word(b"shohin-C");
    const NAME: &'static str = "chat";
}

impl State {
    fn new(model: &Loaded, options: &shohin_chat_options) -> Result<State> {
        let plain = options.format == SHOHIN_FORMAT_TEXT && options.thinking == SHOHIN_THINKING_OFF;
        let measured = options.logprobs != SHOHIN_NO_LOGPROBS;
        if !plain || measured || options.stop_count > 0 || options.tool_count > 0 {
            let message = "this library has neither reasoning, formats of replies, stop texts, tools nor log-probabilities";
            return Err(Failure::new(shohin_code::SHOHIN_UNSUPPORTED, message));
        }
        let context = model.context;
        let cpu = CpuOptions { context, batch: BATCH, ..CpuOptions::default() };
        let mut device = Cpu::with_weights(Arc::clone(&model.weights), &cpu, Serial)?;
        let session = SessionOptions { context, kv: model.kv, ..SessionOptions::default() };
        let session = Session::new(&mut device, &session)?;
        let capacity = session.capacity();
        let max_tokens = if options.max_tokens > 0 { options.max_tokens as usize } else { usize::MAX };
        let sampler = Sampler::new(&options.sampler(), device.model().config().vocab_size)?;
        let generation = GenerationOptions { max_tokens, batch: BATCH, ..GenerationOptions::default() };
        let most_text = 2 * capacity;
        let most_ids = most_text + TEMPLATE + model.template.system.map_or(0, str::len);
        Ok(State {
            model: Arc::clone(model),
            device,
            session,
            reply: Generation::waiting(capacity, most_ids, sampler, generation)?,
            encoder: ChatEncoder::with_capacity(most_ids),
            ids: Vec::with_capacity(most_ids),
            system: String::with_capacity(most_text),
            most_text,
            room: max_tokens.min(capacity / 4),
            text: Vec::with_capacity(TEXT + 1),
            usage: shohin_usage::default(),
            before: 0,
            has_text: false,
        })
    }

    /// Starts over with instructions.
    pub(crate) fn system(&mut self, system: &str) -> Result<()> {
        self.check(system.len())?;
        self.forget()?;
        self.system.clear();
        self.system.push_str(system);
        Ok(())
    }

    fn check(&self, bytes: usize) -> Result<()> {
        if bytes <= self.most_text {
            return Ok(());
        }
        let most = self.most_text;
        let message = format!("the instructions and the message have {bytes} bytes, expected at most {most}");
        Err(Failure::new(shohin_code::SHOHIN_LIMIT, message))
    }

    /// Forgets everything but the instructions.
    fn forget(&mut self) -> Result<()> {
        self.reply.clear();
        Ok(self.session.truncate(0)?)
    }

    /// Writes the tokens that come next for a message to `ids`.
    fn encode(&mut self, text: &str, is_first: bool) -> Result<()> {
        let messages = [Message::new(Role::System, &self.system), Message::new(Role::User, text)];
        let with_system = is_first && !self.system.is_empty();
        let options =
            ChatOptions { template: self.model.template, thinking: Some(false), ..ChatOptions::default() };
        let held = if is_first { &[] } else { self.reply.tokens() };
        self.ids.clear();
        let messages = &messages[usize::from(!with_system)..];
        Ok(self.encoder.encode_next(&self.model.tokenizer, held, messages, &options, &mut self.ids)?)
    }

    /// Begins the reply to a message.
    pub(crate) fn send(&mut self, text: &str) -> Result<()> {
        self.check(self.system.len() + text.len())?;
        self.cancel();
        let capacity = self.session.capacity();
        let mut held = self.reply.tokens().len();
        self.encode(text, held == 0)?;
        if held > 0 && held + self.ids.len() + self.room > capacity {
            self.encode(text, true)?;
            held = 0;
        }
        if held + self.ids.len() >= capacity {
            let (adding, capacity) = (self.ids.len() as u64, capacity as u64);
            return Err(Error::ContextFull { position: held as u64, adding, capacity }.into());
        }
        if held == 0 {
            self.forget()?;
        }
        self.reply.follow_up(&self.ids)?;
        (self.before, self.has_text) = (held, false);
        self.usage = shohin_usage {
            prompt_tokens: held + self.ids.len(),
            cached_tokens: self.reply.held().len(),
            ..shohin_usage::default()
        };
        Ok(())
    }

    /// Ends the reply in progress. A message without any text in reply is not kept.
    pub(crate) fn cancel(&mut self) {
        let is_kept = self.has_text || self.reply.reason().is_some();
        let _ = self.reply.cancel();
        if !is_kept {
            self.reply.truncate(self.before);
            // The session holds these tokens.
            let _ = self.session.truncate(self.reply.held().len());
        }
    }

    /// The next piece.
    pub(crate) fn next(&mut self) -> Result<Option<shohin_piece>> {
        let found = self.step();
        if found.is_err() {
            // The session may hold a part of what was to be computed.
            self.forget()?;
        }
        found
    }

    fn step(&mut self) -> Result<Option<shohin_piece>> {
        let mut backend = Decoder { device: &mut self.device, session: &mut self.session };
        loop {
            let tokens = match self.reply.next() {
                Action::Decode(tokens) => tokens,
                Action::Done(_) => return Ok(None),
                Action::Shift { keep, drop } => {
                    backend.shift(keep, drop)?;
                    self.reply.shifted(backend.position());
                    continue;
                }
            };
            let logits = backend.feed(tokens)?;
            let Some(token) = self.reply.logits(&self.model.tokenizer, logits)? else { continue };
            self.text.clear();
            self.text.extend_from_slice(token.text.as_bytes());
            self.text.push(0);
            self.usage.reply_tokens += 1;
            self.has_text |= !token.text.is_empty();
            return Ok(Some(shohin_piece {
                size: size_of::<shohin_piece>(),
                text: self.text.as_ptr().cast(),
                text_len: token.text.len(),
                token: i32::try_from(token.token).unwrap_or(SHOHIN_NO_TOKEN),
                reason: token.done.map_or(SHOHIN_REASON_NONE, reason),
                ..shohin_piece::default()
            }));
        }
    }

    pub(crate) fn usage(&self) -> shohin_usage {
        let (position, capacity) = (self.session.position(), self.session.capacity());
        shohin_usage { position, capacity, ..self.usage }
    }
}

/// Uses a chat for a call.
///
/// # Safety
/// As [`Handle::get`].
pub(crate) unsafe fn using<T>(
    chat: *const shohin_chat,
    work: impl FnOnce(&mut State) -> Result<T>,
) -> Result<T> {
    // SAFETY: the same.
    let conversation = unsafe { Handle::<Conversation>::get(chat) }?;
    let busy = |_| Failure::new(shohin_code::SHOHIN_BUSY, "the chat is in use");
    work(&mut *conversation.try_borrow_mut().map_err(busy)?)
}

/// Whether a chat that no call uses can be freed.
///
/// # Safety
/// As [`Handle::get`].
pub(crate) unsafe fn is_free(chat: *const shohin_chat) -> Result<bool> {
    // SAFETY: the same.
    unsafe { using(chat, |_| Ok(true)) }
}

/// A conversation with a model.
///
/// # Safety
/// `options` is NULL or as for [`argument::read`].
pub(crate) unsafe fn begin(model: &Loaded, options: *const shohin_chat_options) -> Result<Conversation> {
    let options = match options.is_null() {
        true => shohin_chat_options::default(),
        // SAFETY: the same.
        false => unsafe { argument::read(options) }?,
    };
    Ok(RefCell::new(State::new(model, &options)?))
}
