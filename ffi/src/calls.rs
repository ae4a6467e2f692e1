//! The calls that libraries with and without an operating system have in common, on the model and the chat of each.

use crate::argument;
use crate::chat::{self, Conversation};
use crate::code::{Result, call, shohin_code, shohin_error};
use crate::handle::{self, Handle};
use crate::info::{shohin_chat, shohin_model, shohin_model_info, shohin_usage};
use crate::model::{self, Loaded};
use crate::options::{shohin_chat_options, shohin_load_options};
use crate::piece::shohin_piece;
use core::ffi::c_char;
use core::ptr;

/// The options for loading; NULL gives the defaults.
///
/// # Safety
/// As [`argument::read`].
pub(crate) unsafe fn load_options(options: *const shohin_load_options) -> Result<shohin_load_options> {
    match options.is_null() {
        true => Ok(shohin_load_options::default()),
        // SAFETY: the same.
        false => unsafe { argument::read(options) },
    }
}

/// Loads a GGUF file that is in memory and stays there.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_load_in_place(
    bytes: *const u8,
    len: usize,
    options: *const shohin_load_options,
    model: *mut *mut shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers, and that the bytes outlive the model and its chats.
    unsafe {
        call(error, || {
            model::may_load()?;
            let out = handle::place(model)?;
            let options = load_options(options)?;
            let bytes: &'static [u8] = argument::array(bytes, len, "model's bytes")?;
            out.write_unaligned(Handle::give(model::in_place(bytes, &options)?));
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Frees a model; its chats go on.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_free(model: *mut shohin_model) -> shohin_code {
    // SAFETY: the caller vouches for the pointer.
    unsafe {
        call(ptr::null_mut(), || {
            if !model.is_null() {
                Handle::<Loaded>::free(model)?;
            }
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Facts about a model.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_get_info(
    model: *const shohin_model,
    info: *mut shohin_model_info,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let found = model::facts(Handle::<Loaded>::get(model)?);
            argument::write(info, found)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
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
            let model = Handle::<Loaded>::get(model)?;
            out.write_unaligned(Handle::give(chat::begin(model, options)?));
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
            if !chat.is_null() && chat::is_free(chat)? {
                Handle::<Conversation>::free(chat)?;
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
            chat::using(chat, |chat| chat.system(text))?;
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
            chat::using(chat, |chat| chat.send(text))?;
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
            chat::using(chat, |chat| {
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
            chat::using(chat, |chat| {
                chat.cancel();
                Ok(shohin_code::SHOHIN_OK)
            })
        })
    }
}

/// Token counts and times of the last reply.
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
            let found = chat::using(chat, |chat| Ok(chat.usage()))?;
            argument::write(usage, found)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
