//! Pieces of replies.

use crate::argument::Versioned;
use crate::engine::generate::Reason;
use core::ffi::{c_char, c_void};
use core::mem::size_of;
use core::ptr;

/// `reason`: the reply goes on.
pub const SHOHIN_REASON_NONE: i32 = 0;
/// `reason`: the model ended the reply.
pub const SHOHIN_REASON_STOP: i32 = 1;
/// `reason`: it has `max_tokens` tokens.
pub const SHOHIN_REASON_LENGTH: i32 = 2;
/// `reason`: the context is full.
pub const SHOHIN_REASON_CONTEXT_FULL: i32 = 3;
/// `reason`: the caller stopped it.
pub const SHOHIN_REASON_CANCELLED: i32 = 4;

/// `token`: the piece is not that of a token.
pub const SHOHIN_NO_TOKEN: i32 = -1;

/// A call of a function by the model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_tool_call {
    /// The name of the function, with a NUL at its end.
    pub name: *const c_char,
    /// Its length in bytes, without the NUL.
    pub name_len: usize,
    /// The arguments, a JSON text with a NUL at its end.
    pub arguments: *const c_char,
    /// Its length in bytes, without the NUL.
    pub arguments_len: usize,
}

/// A token and its log-probability.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_logprob {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// A token of the reply with its log-probability, and those of the most likely ones in its place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_token_logprob {
    /// The token that the model chose.
    pub chosen: shohin_logprob,
    /// The most likely ones, best first.
    pub top: *const shohin_logprob,
    /// Their number.
    pub top_count: usize,
}

/// A piece of a reply.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_piece {
    /// Bytes of this struct.
    pub size: usize,
    /// The text for the reader, with a NUL at its end. It may be empty.
    pub text: *const c_char,
    /// Its length in bytes, without the NUL.
    pub text_len: usize,
    /// The text that is the model's reasoning, with a NUL at its end.
    pub reasoning: *const c_char,
    /// Its length in bytes, without the NUL.
    pub reasoning_len: usize,
    /// The token that the model chose, or `SHOHIN_NO_TOKEN`.
    pub token: i32,
    /// Why the reply ended with this piece, `SHOHIN_REASON_...`.
    pub reason: i32,
    /// Calls of functions that are now complete.
    pub tool_calls: *const shohin_tool_call,
    /// Their number.
    pub tool_call_count: usize,
    /// The tokens whose text is now complete, if `logprobs` was asked for.
    pub logprobs: *const shohin_token_logprob,
    /// Their number.
    pub logprob_count: usize,
}

impl Default for shohin_piece {
    fn default() -> Self {
        shohin_piece {
            size: size_of::<Self>(),
            text: c"".as_ptr(),
            text_len: 0,
            reasoning: c"".as_ptr(),
            reasoning_len: 0,
            token: SHOHIN_NO_TOKEN,
            reason: SHOHIN_REASON_NONE,
            tool_calls: ptr::null(),
            tool_call_count: 0,
            logprobs: ptr::null(),
            logprob_count: 0,
        }
    }
}

// SAFETY: `size` is first, and the other fields are integers and pointers.
unsafe impl Versioned for shohin_piece {
    const NAME: &'static str = "piece";
    const FIRST: usize = size_of::<Self>();
}

/// Receives the pieces of a reply; a result other than 0 stops it.
pub type shohin_on_piece =
    Option<unsafe extern "C" fn(user_data: *mut c_void, piece: *const shohin_piece) -> i32>;

/// The number of a reason.
pub(crate) const fn reason(reason: Reason) -> i32 {
    match reason {
        Reason::Stop | Reason::StopString => SHOHIN_REASON_STOP,
        Reason::Length => SHOHIN_REASON_LENGTH,
        Reason::ContextFull => SHOHIN_REASON_CONTEXT_FULL,
        Reason::Cancelled => SHOHIN_REASON_CANCELLED,
    }
}
