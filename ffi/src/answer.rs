//! Messages and requests as JSON texts, in the form of OpenAI's chat completions.

use crate::argument::{self, copy_out, shohin_text};
use crate::chat::{State, lock};
use crate::code::{Failure, Result, call, shohin_code, shohin_error};
use crate::info::shohin_chat;
use shohin::TurnOptions;
use shohin::core::chat::Chunk;
use shohin::core::chat::openai::{
    ChatCompletionRequest, ChunkWriter, CompletionId, completion, messages_json, parse_messages,
};
use std::collections::VecDeque;
use std::ffi::c_char;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// The answer to a request, in progress.
pub(crate) struct Answer {
    id: CompletionId,
    /// `None` if it is written as a whole.
    writer: Option<ChunkWriter>,
    measured: bool,
    chunk: Chunk,
    /// Texts that are still to be read.
    ready: VecDeque<String>,
    ended: bool,
    /// The text that was read last, with a NUL at its end.
    shown: Vec<u8>,
}

/// A number that no other call has.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl State {
    fn request(&mut self, text: &str) -> Result<shohin_code> {
        let mut request = ChatCompletionRequest::parse(text).map_err(shohin::Error::from)?;
        if request.seed.is_none() {
            request.options.sampler.seed = random();
        }
        let model = request.model.clone().unwrap_or_else(|| self.model.name().into());
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let id = CompletionId { id: format!("{:016x}{:016x}", random(), random()), created, model };
        let writer = request.stream.then(|| ChunkWriter::new(id.clone(), &request));
        let ChatCompletionRequest { messages, options, .. } = request;
        let measured = options.logprobs.is_some();
        let options = TurnOptions { describe_tools: true, ..options };
        self.begin(|chat| chat.respond(messages, &options))?;
        let (chunk, ready, shown) = Default::default();
        self.answer = Some(Answer { id, writer, measured, chunk, ready, ended: false, shown });
        Ok(shohin_code::SHOHIN_OK)
    }

    /// The next text of the answer, with a NUL at its end.
    fn next_answer(&mut self) -> Result<Option<&[u8]>> {
        let Some(mut answer) = self.answer.take() else { return Ok(None) };
        while answer.ready.is_empty() && !answer.ended {
            match self.advance()? {
                Some(piece) => {
                    self.collect(&piece, &mut answer.chunk);
                    if let Some(writer) = &mut answer.writer {
                        let chunk = std::mem::take(&mut answer.chunk);
                        answer.ready.extend(writer.chunk(&chunk, self.model.tokenizer()));
                    }
                }
                None => {
                    answer.ended = true;
                    let Some(finish) = &self.finish else { return Ok(None) };
                    match &answer.writer {
                        Some(writer) => answer.ready.extend(writer.finish(finish)),
                        None => {
                            let logprobs = answer.measured.then_some(answer.chunk.logprobs.as_slice());
                            let whole = completion(&answer.id, finish, logprobs, self.model.tokenizer());
                            answer.ready.push_back(whole);
                        }
                    }
                }
            }
        }
        let Some(text) = answer.ready.pop_front() else { return Ok(None) };
        answer.shown = text.into_bytes();
        answer.shown.push(0);
        Ok(Some(&self.answer.insert(answer).shown))
    }
}

/// Starts over with the messages of another conversation.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_set_messages(
    chat: *mut shohin_chat,
    messages: *const c_char,
    messages_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let text = argument::text(messages, messages_len, "messages")?;
            let messages = parse_messages(text).map_err(shohin::Error::from)?;
            state.chat().set_messages(messages);
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// The messages so far.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_get_messages(
    chat: *const shohin_chat,
    messages: *mut c_char,
    capacity: usize,
    messages_len: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let found = messages_json(lock(chat)?.messages());
            copy_out(found.as_bytes(), messages.cast(), capacity, messages_len)
        })
    }
}

/// Sends messages; the reply is read with `shohin_chat_next`.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_send_messages(
    chat: *mut shohin_chat,
    messages: *const c_char,
    messages_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            let text = argument::text(messages, messages_len, "messages")?;
            let messages = parse_messages(text).map_err(shohin::Error::from)?;
            if messages.is_empty() {
                let problem = "there are no messages, expected at least one";
                return Err(Failure::new(shohin_code::SHOHIN_ARGUMENT, problem));
            }
            state.send_messages(messages)
        })
    }
}

/// Begins the answer to a request, which is read with `shohin_chat_next_answer`.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_request(
    chat: *mut shohin_chat,
    request: *const c_char,
    request_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            state.request(argument::text(request, request_len, "request")?)
        })
    }
}

/// The next text of the answer.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_next_answer(
    chat: *mut shohin_chat,
    answer: *mut shohin_text,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let mut state = lock(chat)?;
            if answer.is_null() {
                return Err(Failure::new(shohin_code::SHOHIN_NULL, "the place for the answer is NULL"));
            }
            let found = state.next_answer()?;
            let text = found.unwrap_or(b"\0");
            answer.write_unaligned(shohin_text { text: text.as_ptr().cast(), len: text.len() - 1 });
            Ok(if found.is_some() { shohin_code::SHOHIN_OK } else { shohin_code::SHOHIN_DONE })
        })
    }
}
