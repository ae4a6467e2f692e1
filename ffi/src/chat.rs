//! Conversations and replies.

use crate::answer::Answer;
use crate::argument::{self, shohin_text};
use crate::code::{Failure, Result, call, shohin_code, shohin_error};
use crate::handle::{self, Handle, Kind};
use crate::info::{shohin_chat, shohin_model, shohin_usage};
use crate::options::shohin_chat_options;
use crate::piece::{
    SHOHIN_NO_TOKEN, SHOHIN_REASON_NONE, reason, shohin_logprob, shohin_on_piece, shohin_piece,
    shohin_token_logprob, shohin_tool_call,
};
use crate::{model, turn};
use shohin::core::chat::{Chunk, ChunkCollector, Finish, FunctionCall, Piece as CorePiece, TokenLogprob};
use shohin::core::generate::Reason;
use shohin::core::sample::Logprob;
use shohin::speculate::Speculation;
use shohin::{Chat, ChatMessage, Model, Piece, Reply, Step};
use std::ffi::{c_char, c_void};
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// A chat and its reply in progress, which borrows it.
pub(crate) struct State {
    reply: Option<Reply<'static>>,
    /// From a box; not used while there is a reply.
    chat: NonNull<Chat>,
    /// Text that a stopped reply had held back.
    held: Option<Piece>,
    /// The texts of the last piece, with a NUL at their ends.
    text: Vec<u8>,
    reasoning: Vec<u8>,
    /// Names and arguments of its calls, the same way, and the array of them.
    call_texts: Vec<[Vec<u8>; 2]>,
    calls: Vec<shohin_tool_call>,
    /// Its log-probabilities the same way, and those that are held back.
    tops: Vec<Vec<shohin_logprob>>,
    logprobs: Vec<shohin_token_logprob>,
    collector: ChunkCollector,
    /// Whether the reply has some.
    measured: bool,
    /// How the last reply ended.
    pub(crate) finish: Option<Finish>,
    /// The answer to a request that the reply is for.
    pub(crate) answer: Option<Answer>,
    pub(crate) model: Model,
    usage: shohin_usage,
    /// Set by any thread: the reply shall end.
    interrupted: Arc<AtomicBool>,
}

/// A panic during a call poisons the lock, and the chat can only be freed then.
pub(crate) struct Conversation {
    state: Mutex<State>,
    interrupted: Arc<AtomicBool>,
}

impl Kind for Conversation {
    const MAGIC: usize = handle::word(b"shohin-C");
    const NAME: &'static str = "chat";
}

const fn is_send<T: Send>() {}
// A chat is used by one thread at a time, whichever it is.
const _: () = is_send::<Chat>();
const _: () = is_send::<Reply<'static>>();

impl State {
    fn new(chat: Chat) -> State {
        let model = chat.model().clone();
        State {
            reply: None,
            chat: NonNull::from(Box::leak(Box::new(chat))),
            held: None,
            text: Vec::new(),
            reasoning: Vec::new(),
            call_texts: Vec::new(),
            calls: Vec::new(),
            tops: Vec::new(),
            logprobs: Vec::new(),
            collector: ChunkCollector::default(),
            measured: false,
            finish: None,
            answer: None,
            model,
            usage: shohin_usage::default(),
            interrupted: Arc::default(),
        }
    }

    /// The chat. A reply in progress ends; the conversation keeps its text so far.
    pub(crate) fn chat(&mut self) -> &mut Chat {
        self.cancel();
        self.held = None;
        self.answer = None;
        // SAFETY: from a box, and nothing else borrows it: there is no reply.
        unsafe { self.chat.as_mut() }
    }

    /// Begins a reply.
    pub(crate) fn begin(
        &mut self,
        start: impl FnOnce(&'static mut Chat) -> shohin::Result<Reply<'static>>,
    ) -> Result<shohin_code> {
        self.chat();
        // SAFETY: the chat lives until the state is dropped, which drops the reply first; and nothing else uses it while
        // there is a reply.
        let chat = unsafe { self.chat.as_mut() };
        self.interrupted.store(false, Ordering::Relaxed);
        self.collector = ChunkCollector::default();
        self.measured = false;
        self.finish = None;
        self.reply = Some(start(chat)?);
        Ok(shohin_code::SHOHIN_OK)
    }

    /// The messages so far.
    pub(crate) fn messages(&self) -> &[ChatMessage] {
        match &self.reply {
            Some(reply) => reply.messages(),
            // SAFETY: there is no reply.
            None => unsafe { self.chat.as_ref() }.messages(),
        }
    }

    /// Starts over, with instructions.
    pub(crate) fn system(&mut self, text: &str) -> Result<()> {
        let chat = self.chat();
        match text {
            "" => chat.set_messages(Vec::new()),
            text => chat.system(text),
        }
        Ok(())
    }

    /// Begins the reply to a message.
    pub(crate) fn send(&mut self, text: &str) -> Result<shohin_code> {
        self.send_messages(vec![ChatMessage::user(text)])
    }

    pub(crate) fn send_messages(&mut self, messages: Vec<ChatMessage>) -> Result<shohin_code> {
        self.begin(|chat| chat.send_messages(messages))
    }

    /// Ends the reply in progress, if any.
    pub(crate) fn cancel(&mut self) {
        if let Some(mut reply) = self.reply.take() {
            self.held = reply.cancel();
            self.finish = reply.finished().cloned();
            self.count(&mut reply);
        }
    }

    fn count(&mut self, reply: &mut Reply<'static>) {
        let (usage, times) = (reply.usage(), *reply.timings());
        self.usage = shohin_usage {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            reply_tokens: usage.completion_tokens,
            prompt_seconds: times.prompt_time.as_secs_f64(),
            reply_seconds: times.reply_time.as_secs_f64(),
            ..shohin_usage::default()
        };
    }

    /// The next piece.
    pub(crate) fn next(&mut self) -> Result<Option<shohin_piece>> {
        Ok(self.advance()?.map(|piece| self.show(&piece)))
    }

    /// The next piece, as Rust has it.
    pub(crate) fn advance(&mut self) -> Result<Option<Piece>> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        let Some(reply) = &mut self.reply else { return Ok(None) };
        let next = loop {
            if self.interrupted.load(Ordering::Relaxed) {
                self.cancel();
                return Ok(Some(self.held.take().unwrap_or_else(cancelled)));
            }
            match reply.step() {
                Some(Ok(Step::Prompt(..))) => {}
                Some(Ok(Step::Piece(piece))) => break Some(Ok(piece)),
                Some(Err(error)) => break Some(Err(error)),
                None => break None,
            }
        };
        let ended = !matches!(&next, Some(Ok(piece)) if piece.done.is_none());
        if ended && let Some(mut reply) = self.reply.take() {
            // The piece with a reason is the last; this step only ends the reply.
            let rest = if matches!(next, Some(Ok(_))) { reply.next() } else { None };
            self.finish = reply.finished().cloned();
            self.count(&mut reply);
            rest.transpose()?;
        }
        Ok(next.transpose()?)
    }

    /// Adds a piece to `chunk`, with the log-probabilities of tokens whose text is complete.
    pub(crate) fn collect(&mut self, piece: &Piece, chunk: &mut Chunk) {
        let piece = CorePiece {
            token: piece.token,
            tokens: &piece.tokens,
            text: &piece.text,
            content: &piece.content,
            reasoning: &piece.reasoning,
            tool_calls: &piece.tool_calls,
            logprob: piece.logprob,
            top: &piece.top,
            done: piece.done,
        };
        self.collector.push(chunk, &piece, self.model.tokenizer());
    }

    /// Keeps the log-probabilities of a piece for C.
    fn show_logprobs(&mut self, piece: &Piece) {
        self.measured |= piece.logprob.is_some();
        if !self.measured {
            return self.logprobs.clear();
        }
        let mut chunk = Chunk::default();
        self.collect(piece, &mut chunk);
        let pair = |of: &Logprob| shohin_logprob { token: of.token, logprob: of.logprob };
        self.tops = chunk.logprobs.iter().map(|one| one.top.iter().map(pair).collect()).collect();
        let show = |(one, top): (&TokenLogprob, &Vec<shohin_logprob>)| shohin_token_logprob {
            chosen: pair(&one.chosen),
            top: if top.is_empty() { ptr::null() } else { top.as_ptr() },
            top_count: top.len(),
        };
        self.logprobs.clear();
        self.logprobs.extend(chunk.logprobs.iter().zip(&self.tops).map(show));
    }

    /// Keeps the texts of a piece for C.
    fn show(&mut self, piece: &Piece) -> shohin_piece {
        for (kept, text) in [(&mut self.text, &piece.content), (&mut self.reasoning, &piece.reasoning)] {
            kept.clear();
            kept.extend_from_slice(text.as_bytes());
            kept.push(0);
        }
        self.show_logprobs(piece);
        let ended = |text: &str| [text.as_bytes(), b"\0"].concat();
        let texts = |call: &FunctionCall| [ended(&call.name), ended(&call.arguments)];
        self.call_texts = piece.tool_calls.iter().map(texts).collect();
        self.calls.clear();
        self.calls.extend(self.call_texts.iter().map(|[name, arguments]| shohin_tool_call {
            name: name.as_ptr().cast(),
            name_len: name.len() - 1,
            arguments: arguments.as_ptr().cast(),
            arguments_len: arguments.len() - 1,
        }));
        shohin_piece {
            size: size_of::<shohin_piece>(),
            text: self.text.as_ptr().cast(),
            text_len: piece.content.len(),
            reasoning: self.reasoning.as_ptr().cast(),
            reasoning_len: piece.reasoning.len(),
            token: piece.token.and_then(|token| i32::try_from(token).ok()).unwrap_or(SHOHIN_NO_TOKEN),
            reason: piece.done.map_or(SHOHIN_REASON_NONE, reason),
            tool_calls: if self.calls.is_empty() { ptr::null() } else { self.calls.as_ptr() },
            tool_call_count: self.calls.len(),
            logprobs: if self.logprobs.is_empty() { ptr::null() } else { self.logprobs.as_ptr() },
            logprob_count: self.logprobs.len(),
        }
    }

    pub(crate) fn usage(&mut self) -> shohin_usage {
        if let Some(mut reply) = self.reply.take() {
            self.count(&mut reply);
            self.reply = Some(reply);
            // The chat is the reply's.
            return self.usage;
        }
        // SAFETY: there is no reply.
        let chat = unsafe { self.chat.as_ref() };
        let guesses = chat.guesses();
        shohin_usage {
            position: chat.position(),
            capacity: chat.capacity(),
            guesses_checked: guesses.checked as usize,
            guesses_right: guesses.right as usize,
            ..self.usage
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.reply = None;
        // SAFETY: from a box, and the reply that borrowed it is gone.
        drop(unsafe { Box::from_raw(self.chat.as_ptr()) });
    }
}

/// The last piece of a reply that ended before it had any text.
fn cancelled() -> Piece {
    Piece {
        text: String::new(),
        content: String::new(),
        reasoning: String::new(),
        tool_calls: Vec::new(),
        token: None,
        tokens: Vec::new(),
        logprob: None,
        top: Vec::new(),
        done: Some(Reason::Cancelled),
    }
}

/// Locks a chat for a call.
///
/// # Safety
/// As [`Handle::get`].
pub(crate) unsafe fn lock<'c>(chat: *const shohin_chat) -> Result<MutexGuard<'c, State>> {
    // SAFETY: the same.
    let Conversation { state, .. } = unsafe { Handle::get(chat) }?;
    state.try_lock().map_err(|why| match why {
        TryLockError::WouldBlock => Failure::new(shohin_code::SHOHIN_BUSY, "the chat is in use"),
        TryLockError::Poisoned(_) => {
            Failure::new(shohin_code::SHOHIN_PANIC, "the chat failed before: it can only be freed")
        }
    })
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
    work(&mut *unsafe { lock(chat) }?)
}

/// Whether a chat that no call uses can be freed. One that a panic left half changed stays in memory.
///
/// # Safety
/// As [`Handle::get`].
pub(crate) unsafe fn is_free(chat: *const shohin_chat) -> Result<bool> {
    // SAFETY: the same.
    match unsafe { lock(chat) } {
        Ok(_) => Ok(true),
        Err(failure) if failure.code == shohin_code::SHOHIN_PANIC => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// A conversation with a model.
///
/// # Safety
/// `options` is NULL or as for [`turn::turn`].
pub(crate) unsafe fn begin(model: &Model, options: *const shohin_chat_options) -> Result<Conversation> {
    let mut chat = model.chat()?;
    if !options.is_null() {
        // SAFETY: the same.
        *chat.options_mut() = unsafe { turn::turn(options) }?;
    }
    let state = State::new(chat);
    let interrupted = Arc::clone(&state.interrupted);
    Ok(Conversation { state: Mutex::new(state), interrupted })
}

/// Sets the options of the next replies.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_set_options(
    chat: *mut shohin_chat,
    options: *const shohin_chat_options,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let options = turn::turn(options)?;
            *state.chat().options_mut() = options;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Sends the results of the calls of the last reply; its reply is read with `shohin_chat_next`.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_send_results(
    chat: *mut shohin_chat,
    results: *const shohin_text,
    count: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            if count == 0 {
                let problem = "there are no results, expected one for each call";
                return Err(Failure::new(shohin_code::SHOHIN_ARGUMENT, problem));
            }
            let results = argument::texts(results, count, "results")?;
            let calls = state.chat().messages().last().map_or(0, |last| last.tool_calls.len());
            if count != calls {
                let problem = format!("there are {count} results, expected one for each of {calls} calls");
                return Err(Failure::new(shohin_code::SHOHIN_ARGUMENT, problem));
            }
            let messages = results.into_iter().map(ChatMessage::tool).collect();
            state.send_messages(messages)
        })
    }
}

/// Begins another reply to the last message, read with `shohin_chat_next`.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_retry(chat: *mut shohin_chat, error: *mut shohin_error) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe { call(error, || lock(chat)?.begin(Chat::retry)) }
}

/// Decodes with guesses from now on.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_speculate(
    chat: *mut shohin_chat,
    draft: *const shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let speculation = match draft.is_null() {
                true => Speculation::PromptLookup,
                false => Speculation::Draft(model::model(draft)?.clone()),
            };
            state.chat().speculate(&speculation)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Continues tokens as plain text; the conversation stays as it is.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_complete(
    chat: *mut shohin_chat,
    tokens: *const u32,
    count: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let tokens = argument::array(tokens, count, "tokens")?;
            state.begin(|chat| chat.complete(tokens))
        })
    }
}

/// Ends the reply in progress, from any thread.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_interrupt(
    chat: *mut shohin_chat,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let Conversation { interrupted, .. } = Handle::get(chat)?;
            interrupted.store(true, Ordering::Relaxed);
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Sends a message, and calls `on_piece` with each piece of its reply.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_stream(
    chat: *mut shohin_chat,
    text: *const c_char,
    text_len: usize,
    on_piece: shohin_on_piece,
    user_data: *mut c_void,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let missing = || Failure::new(shohin_code::SHOHIN_NULL, "the callback is NULL");
            let on_piece = on_piece.ok_or_else(missing)?;
            let text = argument::text(text, text_len, "text")?;
            state.send(text)?;
            while let Some(piece) = state.next()? {
                if on_piece(user_data, &piece) != 0 {
                    state.cancel();
                    state.held = None;
                    break;
                }
            }
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Writes the conversation to a file.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_save(
    chat: *mut shohin_chat,
    path: *const c_char,
    path_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let path = argument::text(path, path_len, "path")?;
            state.chat().save(path)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Goes on with the conversation of a file.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_open(
    chat: *mut shohin_chat,
    path: *const c_char,
    path_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let path = argument::text(path, path_len, "path")?;
            state.chat().open(path)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
