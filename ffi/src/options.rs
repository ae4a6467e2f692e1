//! Options of models and of replies.

use crate::argument::{self, Versioned, shohin_text};
use crate::code::call;
use crate::code::{Failure, Result, shohin_code, shohin_error};
use crate::engine::{KvFormat, SamplerConfig};
use alloc::format;
use core::ffi::c_char;
use core::mem::size_of;
use core::ptr;

/// `kv_format`: the default, 16-bit floats.
pub const SHOHIN_KV_DEFAULT: i32 = 0;
/// `kv_format`: 32-bit floats.
pub const SHOHIN_KV_F32: i32 = 1;
/// `kv_format`: 16-bit floats.
pub const SHOHIN_KV_F16: i32 = 2;
/// `kv_format`: 8-bit integers.
pub const SHOHIN_KV_Q8: i32 = 3;
/// `kv_format`: 4-bit integers.
pub const SHOHIN_KV_Q4: i32 = 4;
/// `kv_format`: 8-bit floats with 3 bits of mantissa.
pub const SHOHIN_KV_FP8_E4M3: i32 = 5;
/// `kv_format`: 8-bit floats with 2 bits of mantissa.
pub const SHOHIN_KV_FP8_E5M2: i32 = 6;

/// `device`: a GPU if there is a suitable one, otherwise the CPU.
pub const SHOHIN_DEVICE_BEST: i32 = 0;
/// `device`: the CPU.
pub const SHOHIN_DEVICE_CPU: i32 = 1;
/// `device`: a GPU.
pub const SHOHIN_DEVICE_GPU: i32 = 2;

/// `thinking`: the model answers at once.
pub const SHOHIN_THINKING_OFF: i32 = 0;
/// `thinking`: the model may reason without limit; a number above 0 limits its tokens.
pub const SHOHIN_THINKING_ON: i32 = -1;

/// `format`: any text.
pub const SHOHIN_FORMAT_TEXT: i32 = 0;
/// `format`: a JSON object.
pub const SHOHIN_FORMAT_JSON_OBJECT: i32 = 1;
/// `format`: a JSON value that matches the JSON Schema in `format_text`.
pub const SHOHIN_FORMAT_JSON_SCHEMA: i32 = 2;
/// `format`: a text that the regular expression in `format_text` matches from beginning to end.
pub const SHOHIN_FORMAT_REGEX: i32 = 3;
/// `format`: a text of the grammar in `format_text`, in GBNF.
pub const SHOHIN_FORMAT_GRAMMAR: i32 = 4;
/// `format`: one of the texts in `choices`.
pub const SHOHIN_FORMAT_CHOICE: i32 = 5;

/// `logprobs`: log-probabilities are not measured.
pub const SHOHIN_NO_LOGPROBS: i32 = -1;

/// Options for loading a model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_load_options {
    /// Bytes of this struct.
    pub size: usize,
    /// Threads; 0 takes one per core.
    pub threads: u32,
    /// Context of a chat in tokens, clamped to the model's; 0 takes 4096.
    pub context: u32,
    /// Format of the KV cache, `SHOHIN_KV_...`.
    pub kv_format: i32,
    /// The device, `SHOHIN_DEVICE_...`.
    pub device: i32,
}

impl Default for shohin_load_options {
    fn default() -> Self {
        shohin_load_options {
            size: size_of::<Self>(),
            threads: 0,
            context: 0,
            kv_format: SHOHIN_KV_DEFAULT,
            device: SHOHIN_DEVICE_BEST,
        }
    }
}

// SAFETY: `size` is first, and the other fields are integers.
unsafe impl Versioned for shohin_load_options {
    const NAME: &'static str = "load options";
    const FIRST: usize = size_of::<Self>();
}

/// Options of replies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_chat_options {
    /// Bytes of this struct.
    pub size: usize,
    /// Seed of the random sequence.
    pub seed: u64,
    /// 0 always takes the most likely token.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the most likely tokens with this much probability together; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Over 1, makes tokens of the last 64 less likely.
    pub repetition_penalty: f32,
    /// Maximum number of tokens of a reply; 0 sets no limit but the context.
    pub max_tokens: u32,
    /// Whether the model may reason before it answers, `SHOHIN_THINKING_...`.
    pub thinking: i32,
    /// The format of replies, `SHOHIN_FORMAT_...`.
    pub format: i32,
    /// The schema, expression or grammar; copied.
    pub format_text: *const c_char,
    /// Its length in bytes, or `SHOHIN_CSTR`.
    pub format_text_len: usize,
    /// Texts that end a reply, and are not part of it.
    pub stop: *const shohin_text,
    /// Their number.
    pub stop_count: usize,
    /// Descriptions of functions that the model may call, each a JSON text.
    pub tools: *const shohin_text,
    /// Their number.
    pub tool_count: usize,
    /// NULL or `auto`, `required`, or the name of the function that must be called.
    pub tool_choice: *const c_char,
    /// Its length in bytes, or `SHOHIN_CSTR`.
    pub tool_choice_len: usize,
    /// Subtracted from the logits of tokens that occurred among the last 64.
    pub presence_penalty: f32,
    /// Subtracted from them for each time that they occurred.
    pub frequency_penalty: f32,
    /// `SHOHIN_NO_LOGPROBS`, or the number of most likely tokens whose log-probabilities are measured beside that of the one that
    /// was chosen.
    pub logprobs: i32,
    /// 1 if tools are described in the system message where the model's template has none, else 0.
    pub describe_tools: i32,
    /// The texts for `SHOHIN_FORMAT_CHOICE`.
    pub choices: *const shohin_text,
    /// Their number.
    pub choice_count: usize,
}

impl Default for shohin_chat_options {
    fn default() -> Self {
        let sampler = SamplerConfig::default();
        shohin_chat_options {
            size: size_of::<Self>(),
            seed: sampler.seed,
            temperature: sampler.temperature,
            top_k: u32::try_from(sampler.top_k).unwrap_or(u32::MAX),
            top_p: sampler.top_p,
            min_p: sampler.min_p,
            repetition_penalty: sampler.repetition_penalty,
            max_tokens: 0,
            thinking: SHOHIN_THINKING_OFF,
            format: SHOHIN_FORMAT_TEXT,
            format_text: ptr::null(),
            format_text_len: 0,
            stop: ptr::null(),
            stop_count: 0,
            tools: ptr::null(),
            tool_count: 0,
            tool_choice: ptr::null(),
            tool_choice_len: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logprobs: SHOHIN_NO_LOGPROBS,
            describe_tools: 0,
            choices: ptr::null(),
            choice_count: 0,
        }
    }
}

// SAFETY: `size` is first, and the other fields are numbers and pointers.
unsafe impl Versioned for shohin_chat_options {
    const NAME: &'static str = "chat options";
    const FIRST: usize = size_of::<Self>();
}

/// Sets every option to its default.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_load_options_default(
    options: *mut shohin_load_options,
    size: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe { call(error, || argument::write_default(options, size)) }
}

/// Sets every option to its default.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_chat_options_default(
    options: *mut shohin_chat_options,
    size: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe { call(error, || argument::write_default(options, size)) }
}

pub(crate) fn unknown<T>(name: &str, found: i32, expected: &str) -> Result<T> {
    Err(Failure::new(shohin_code::SHOHIN_OPTION, format!("{name} is {found}, expected {expected}")))
}

/// The format of `kv_format`: the numbers from `SHOHIN_KV_F32` on are the rows of core's table.
pub(crate) fn kv_format(number: i32) -> Result<KvFormat> {
    if number == SHOHIN_KV_DEFAULT {
        return Ok(KvFormat::default());
    }
    let row = number.checked_sub(SHOHIN_KV_F32).and_then(|row| usize::try_from(row).ok());
    match row.and_then(|row| KvFormat::ALL.get(row)) {
        Some(format) => Ok(*format),
        None => unknown("kv_format", number, "one of SHOHIN_KV_DEFAULT to SHOHIN_KV_FP8_E5M2"),
    }
}

impl shohin_chat_options {
    /// The options of the sampler.
    pub(crate) fn sampler(&self) -> SamplerConfig {
        SamplerConfig {
            seed: self.seed,
            temperature: self.temperature,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            ..SamplerConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cache_formats_are_rows_of_the_table() {
        let numbers = [
            (SHOHIN_KV_F32, "f32"),
            (SHOHIN_KV_F16, "f16"),
            (SHOHIN_KV_Q8, "q8"),
            (SHOHIN_KV_Q4, "q4"),
            (SHOHIN_KV_FP8_E4M3, "fp8_e4m3"),
            (SHOHIN_KV_FP8_E5M2, "fp8_e5m2"),
        ];
        assert_eq!(numbers.len(), KvFormat::ALL.len());
        for (number, name) in numbers {
            assert_eq!(kv_format(number).ok().map(KvFormat::name), Some(name));
        }
        assert!([i32::MIN, -1, 7, i32::MAX].into_iter().all(|number| kv_format(number).is_err()));
    }
}
