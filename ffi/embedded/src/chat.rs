//! Conversations and replies. After [`shohin_chat_new`] nothing allocates.

use crate::argument;
use crate::code::{Failure, Result, call, shohin_code, shohin_error};
use crate::handle::{self, Handle, Kind};
use crate::info::{shohin_chat, shohin_model, shohin_usage};
use crate::model::{self, Loaded};
use crate::options::{SHOHIN_FORMAT_TEXT, SHOHIN_THINKING_OFF, shohin_chat_options};
use crate::piece::{SHOHIN_NO_TOKEN, SHOHIN_REASON_NONE, reason, shohin_piece};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ffi::c_char;
use core::mem::size_of;
use core::ptr;
use shohin_core::chat::{ChatEncoder, ChatOptions, Message, Role};
use shohin_core::generate::{Action, Backend, Generation, GenerationOptions};
use shohin_core::session::Decoder;
use shohin_core::sync::Arc;
use shohin_core::{Cpu, CpuOptions, Error, Sampler, Serial, Session, SessionOptions};

/// Prompt tokens computed together: more are faster and take more scratch memory.
const BATCH: usize = 4;
/// Bytes of the template's own text around a message.
const TEMPLATE: usize = 128;
/// Bytes of the text of a piece: those of a token are far fewer.
const TEXT: usize = 1024;

type Device = Cpu<'static, &'static [u8]>;

/// A conversation and its reply in progress.
struct Conversation {
    model: Arc<Loaded>,
    device: Device,
    session: Session<Device>,
    reply: Generation,
    encoder: ChatEncoder,
    ids: Vec<u32>,
    /// Instructions, which may be empty.
    system: String,
    /// Most bytes of instructions and a message.
    most_text: usize,
    /// Tokens that are to be left for a reply.
    room: usize,
    /// The text of the last piece, with a NUL at its end.
    text: Vec<u8>,
    usage: shohin_usage,
}

impl Kind for RefCell<Conversation> {
    const MAGIC: usize = handle::word(b"shohin-C");
    const NAME: &'static str = "chat";
}

impl Conversation {
    fn new(model: &Arc<Loaded>, options: &shohin_chat_options) -> Result<Conversation> {
        let plain = options.format == SHOHIN_FORMAT_TEXT && options.thinking == SHOHIN_THINKING_OFF;
        if !plain || options.stop_count > 0 || options.tool_count > 0 {
            let message = "this library has neither reasoning, formats of replies, stop texts nor tools";
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
        let most_ids = most_text + TEMPLATE;
        Ok(Conversation {
            model: Arc::clone(model),
            device,
            session,
            reply: Generation::waiting(capacity, most_ids, sampler, generation)?,
            encoder: ChatEncoder::with_capacity(most_text + TEMPLATE),
            ids: Vec::with_capacity(most_ids),
            system: String::with_capacity(most_text),
            most_text,
            room: max_tokens.min(capacity / 4),
            text: Vec::with_capacity(TEXT + 1),
            usage: shohin_usage::default(),
        })
    }

    /// Starts over with instructions.
    fn start(&mut self, system: &str) -> Result<()> {
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
    fn send(&mut self, text: &str) -> Result<()> {
        self.check(self.system.len() + text.len())?;
        let _ = self.reply.cancel();
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
        self.usage = shohin_usage {
            prompt_tokens: held + self.ids.len(),
            cached_tokens: self.reply.held().len(),
            ..shohin_usage::default()
        };
        Ok(())
    }

    /// The next piece.
    fn next(&mut self) -> Result<Option<shohin_piece>> {
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

    fn usage(&self) -> shohin_usage {
        let (position, capacity) = (self.session.position(), self.session.capacity());
        shohin_usage { position, capacity, ..self.usage }
    }
}

/// Uses a chat for a call.
///
/// # Safety
/// As [`Handle::get`].
unsafe fn using<T>(chat: *const shohin_chat, work: impl FnOnce(&mut Conversation) -> Result<T>) -> Result<T> {
    // SAFETY: the same.
    let conversation = unsafe { Handle::<RefCell<Conversation>>::get(chat) }?;
    let busy = |_| Failure::new(shohin_code::SHOHIN_BUSY, "the chat is in use");
    work(&mut *conversation.try_borrow_mut().map_err(busy)?)
}

/// Begins a conversation.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_new(
    model: *const shohin_model,
    options: *const shohin_chat_options,
    chat: *mut *mut shohin_chat,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let out = handle::place(chat)?;
            let model = model::model(model)?;
            let options = match options.is_null() {
                true => shohin_chat_options::default(),
                false => argument::read(options)?,
            };
            out.write_unaligned(Handle::give(RefCell::new(Conversation::new(model, &options)?)));
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Frees a chat.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_free(chat: *mut shohin_chat) -> shohin_code {
    // SAFETY: the caller vouches for the pointer.
    unsafe {
        call(ptr::null_mut(), || {
            if !chat.is_null() {
                using(chat, |_| Ok(()))?;
                Handle::<RefCell<Conversation>>::free(chat)?;
            }
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Starts over, with instructions.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_system(
    chat: *mut shohin_chat,
    text: *const c_char,
    text_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let text = argument::text(text, text_len, "text")?;
            using(chat, |chat| chat.start(text))?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Sends a message; its reply is read with [`shohin_chat_next`].
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_send(
    chat: *mut shohin_chat,
    text: *const c_char,
    text_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let text = argument::text(text, text_len, "text")?;
            using(chat, |chat| chat.send(text))?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// The next piece of the reply.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_next(
    chat: *mut shohin_chat,
    piece: *mut shohin_piece,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            using(chat, |chat| {
                // First, so that no piece is lost if there is no place for it.
                argument::write(piece, shohin_piece::default())?;
                match chat.next()? {
                    None => Ok(shohin_code::SHOHIN_DONE),
                    Some(next) => argument::write(piece, next).map(|()| shohin_code::SHOHIN_OK),
                }
            })
        })
    }
}

/// Ends the reply in progress.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_stop(chat: *mut shohin_chat, error: *mut shohin_error) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            using(chat, |chat| {
                let _ = chat.reply.cancel();
                Ok(shohin_code::SHOHIN_OK)
            })
        })
    }
}

/// Token counts of the last reply.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_get_usage(
    chat: *const shohin_chat,
    usage: *mut shohin_usage,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let found = using(chat, |chat| Ok(chat.usage()))?;
            argument::write(usage, found)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
