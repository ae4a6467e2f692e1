//! Facts that a model is taught, and what becomes of them.

use crate::argument::{self, Versioned, shohin_text};
use crate::code::{call, shohin_code, shohin_error};
use crate::handle::{self, Handle, Kind};
use crate::info::shohin_model;
use crate::learn::{self, Learned};
use crate::model::model;
use std::ffi::{c_char, c_void};
use std::mem::size_of;
use std::ptr;

/// A question and its answer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_fact {
    /// The question.
    pub question: shohin_text,
    /// The answer, word for word.
    pub answer: shohin_text,
    /// Other wordings of the question, which are taught, too.
    pub forms: *const shohin_text,
    /// Their number.
    pub form_count: usize,
}

/// How facts are taught.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_teach_options {
    /// Bytes of this struct.
    pub size: usize,
    /// What the order of rehearsals follows from.
    pub seed: u64,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Steps at most.
    pub steps: u32,
    /// Columns between the two factors of the adapter.
    pub rank: u32,
    /// Replies that are rehearsed in a step.
    pub rehearsals: usize,
    /// Questions to rehearse the model's own answers to; NULL takes the built-in ones.
    pub questions: *const shohin_text,
    /// Their number.
    pub question_count: usize,
    /// Name of the adapter; NULL takes `taught`.
    pub name: *const c_char,
    /// Its length in bytes, or `SHOHIN_CSTR`.
    pub name_len: usize,
}

impl Default for shohin_teach_options {
    fn default() -> Self {
        learn::defaults()
    }
}

// SAFETY: `size` is first, and the other fields are numbers and pointers.
unsafe impl Versioned for shohin_teach_options {
    const NAME: &'static str = "teach options";
    const FIRST: usize = size_of::<Self>();
}

/// What a step did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_teach_step {
    /// Bytes of this struct.
    pub size: usize,
    /// Its number, from 1.
    pub step: u64,
    /// The loss before it, of facts and rehearsals.
    pub loss: f64,
    /// The probability of the least probable token of an answer, before it.
    pub least: f64,
}

/// Is told each step; a result other than 0 ends the teaching.
pub type shohin_on_step =
    Option<unsafe extern "C" fn(user_data: *mut c_void, step: *const shohin_teach_step) -> i32>;

/// What a model was taught.
#[derive(Debug)]
pub struct shohin_taught {
    _opaque: [u8; 0],
}

/// The answers to one question.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_answer {
    /// The question.
    pub question: shohin_text,
    /// What it should be now.
    pub expected: shohin_text,
    /// What the model said before.
    pub before: shohin_text,
    /// What it says now.
    pub after: shohin_text,
    /// Whether it is, word for word, what it should be.
    pub is_right: usize,
}

/// What a model was taught.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shohin_taught_info {
    /// Bytes of this struct.
    pub size: usize,
    /// The adapter, a GGUF file.
    pub adapter: *const u8,
    /// Its length.
    pub adapter_len: usize,
    /// Steps of the training.
    pub steps: usize,
    /// Whether every answer to a fact is right.
    pub is_learned: usize,
    /// To the questions of the facts.
    pub facts: *const shohin_answer,
    /// Their number.
    pub fact_count: usize,
    /// To wordings that were not taught.
    pub wordings: *const shohin_answer,
    /// Their number.
    pub wording_count: usize,
    /// To other questions, whose answers should be what they were.
    pub exam: *const shohin_answer,
    /// Their number.
    pub exam_count: usize,
}

impl Default for shohin_taught_info {
    fn default() -> Self {
        shohin_taught_info {
            size: size_of::<Self>(),
            adapter: ptr::null(),
            adapter_len: 0,
            steps: 0,
            is_learned: 0,
            facts: ptr::null(),
            fact_count: 0,
            wordings: ptr::null(),
            wording_count: 0,
            exam: ptr::null(),
            exam_count: 0,
        }
    }
}

// SAFETY: `size` is first, and the other fields are integers and pointers.
unsafe impl Versioned for shohin_taught_info {
    const NAME: &'static str = "taught info";
    const FIRST: usize = size_of::<Self>();
}

impl Kind for Learned {
    const MAGIC: usize = handle::word(b"shohin-T");
    const NAME: &'static str = "taught";
}

/// Sets every option to its default.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_teach_options_default(
    options: *mut shohin_teach_options,
    size: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe { call(error, || argument::write_default(options, size)) }
}

/// Teaches a model facts.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_teach(
    model: *const shohin_model,
    facts: *const shohin_fact,
    count: usize,
    options: *const shohin_teach_options,
    on_step: shohin_on_step,
    user_data: *mut c_void,
    taught: *mut *mut shohin_taught,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let out = handle::place(taught)?;
            let model = self::model(model)?;
            let options = match options.is_null() {
                true => shohin_teach_options::default(),
                false => argument::read(options)?,
            };
            let facts = argument::array(facts, count, "facts")?;
            let mut step =
                |step: &shohin_teach_step| on_step.is_some_and(|on_step| on_step(user_data, step) != 0);
            out.write_unaligned(Handle::give(learn::teach(model, facts, &options, &mut step)?));
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// The adapter, and the answers before and after.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_taught_get_info(
    taught: *const shohin_taught,
    info: *mut shohin_taught_info,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let found = Handle::<Learned>::get(taught)?.info();
            argument::write(info, found)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Writes the adapter to a file.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_taught_save(
    taught: *const shohin_taught,
    path: *const c_char,
    path_len: usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let taught = Handle::<Learned>::get(taught)?;
            taught.save(argument::text(path, path_len, "path")?)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}

/// Frees what was taught.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_taught_free(taught: *mut shohin_taught) -> shohin_code {
    // SAFETY: the caller vouches for the pointer.
    unsafe {
        call(ptr::null_mut(), || {
            if !taught.is_null() {
                Handle::<Learned>::free(taught)?;
            }
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
