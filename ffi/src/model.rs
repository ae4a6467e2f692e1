//! Models: loading, tokens, embeddings, logits.

use crate::argument::{self, copy_out, shohin_text};
use crate::calls::load_options;
use crate::code::{Result, call, shohin_code, shohin_error};
use crate::handle::{self, Handle, Kind};
use crate::hub::located;
use crate::info::{shohin_model, shohin_model_info};
use crate::options::{self, shohin_load_options};
use shohin::{Builder, Model, ModelFile};
use std::ffi::c_char;
use std::mem::size_of;
use std::ops::ControlFlow;

impl Kind for Model {
    const MAGIC: usize = handle::word(b"shohin-M");
    const NAME: &'static str = "model";
}

/// # Safety
/// As [`Handle::get`].
pub(crate) unsafe fn model<'m>(model: *const shohin_model) -> Result<&'m Model> {
    // SAFETY: the same.
    unsafe { Handle::get(model) }
}

/// What a handle of a model holds.
pub(crate) type Loaded = Model;

/// Always: the heap is that of the operating system.
pub(crate) fn may_load() -> Result<()> {
    Ok(())
}

pub(crate) fn facts(model: &Model) -> shohin_model_info {
    let config = model.config();
    shohin_model_info {
        size: size_of::<shohin_model_info>(),
        vocab_size: config.vocab_size,
        embedding_size: config.hidden_size,
        max_context: config.max_context_length,
        context: model.context().min(config.max_context_length),
        weight_bytes: model.weight_bytes(),
        threads: model.threads(),
        can_think: usize::from(model.can_think()),
        can_call: usize::from(model.template().style.has_tools()),
        adapters: model.adapters().count(),
    }
}

/// A GGUF file that is in memory and stays there.
pub(crate) fn in_place(bytes: &'static [u8], options: &shohin_load_options) -> Result<Model> {
    Ok(builder(options)?.load_file(&ModelFile::from_static("the model in memory", bytes))?)
}

fn builder(options: &shohin_load_options) -> Result<Builder> {
    let mut builder = Model::builder();
    if options.threads > 0 {
        builder = builder.threads(options.threads as usize);
    }
    if options.context > 0 {
        builder = builder.context(options.context as usize);
    }
    builder = builder.kv(options::kv_format(options.kv_format)?);
    match options.device {
        options::SHOHIN_DEVICE_BEST => Ok(builder),
        options::SHOHIN_DEVICE_CPU => Ok(builder.cpu()),
        options::SHOHIN_DEVICE_GPU => Ok(builder.gpu("")),
        found => {
            options::unknown("device", found, "SHOHIN_DEVICE_BEST, SHOHIN_DEVICE_CPU or SHOHIN_DEVICE_GPU")
        }
    }
}

/// Loads a model and gives its handle.
///
/// # Safety
/// `out` is NULL or can be written; `options` as for [`load_options`].
unsafe fn load(
    options: *const shohin_load_options,
    out: *mut *mut shohin_model,
    load: impl FnOnce(&Builder) -> Result<Model>,
) -> Result<shohin_code> {
    let out = handle::place(out)?;
    // SAFETY: the same.
    let options = unsafe { load_options(options) }?;
    let model = Handle::give(load(&builder(&options)?)?);
    // SAFETY: the place was checked.
    unsafe { out.write_unaligned(model) };
    Ok(shohin_code::SHOHIN_OK)
}

/// Loads a GGUF file.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_load(
    path: *const c_char,
    path_len: usize,
    options: *const shohin_load_options,
    model: *mut *mut shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            load(options, model, |builder| {
                let name = argument::text(path, path_len, "path")?;
                Ok(builder.load(located(name, &mut |_, _, _| ControlFlow::Continue(()))?)?)
            })
        })
    }
}

/// Loads a GGUF file that is in memory.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_load_memory(
    bytes: *const u8,
    len: usize,
    options: *const shohin_load_options,
    model: *mut *mut shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            load(options, model, |builder| {
                let bytes = argument::array(bytes, len, "model's bytes")?;
                Ok(builder.load_file(&ModelFile::from_bytes("the model in memory", bytes)?)?)
            })
        })
    }
}

/// Loads the model that is built into this library.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_model_load_built_in(
    options: *const shohin_load_options,
    model: *mut *mut shohin_model,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe { call(error, || load(options, model, |builder| Ok(builder.load_built_in()?))) }
}

/// The tokens of a text.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_tokenize(
    model: *const shohin_model,
    text: *const c_char,
    text_len: usize,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let found = self::model(model)?.tokenize(argument::text(text, text_len, "text")?);
            copy_out(&found, tokens, capacity, count)
        })
    }
}

/// The text of tokens.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_detokenize(
    model: *const shohin_model,
    tokens: *const u32,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    text_len: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let model = self::model(model)?;
            let found = model.detokenize(argument::array(tokens, count, "tokens")?)?;
            copy_out(found.as_bytes(), text.cast(), capacity, text_len)
        })
    }
}

/// The embedding of a text.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_embed(
    model: *const shohin_model,
    text: *const c_char,
    text_len: usize,
    vector: *mut f32,
    capacity: usize,
    vector_len: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let found = self::model(model)?.embed(argument::text(text, text_len, "text")?)?;
            copy_out(&found, vector, capacity, vector_len)
        })
    }
}

/// The embeddings of texts, one after the other.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_embed_texts(
    model: *const shohin_model,
    texts: *const shohin_text,
    count: usize,
    vectors: *mut f32,
    capacity: usize,
    vectors_len: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let model = self::model(model)?;
            let texts = argument::texts(texts, count, "texts")?;
            let needed = texts.len().saturating_mul(model.config().hidden_size);
            if capacity < needed {
                // Its length is known without computing anything.
                return argument::lacks_room(capacity, needed, vectors_len);
            }
            let mut found = Vec::with_capacity(needed);
            for vector in model.embeddings(&texts, model.pooling()?, true)? {
                found.extend(vector?);
            }
            copy_out(&found, vectors, capacity, vectors_len)
        })
    }
}

/// The logits after the last of some tokens.
///
/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shohin_logits(
    model: *const shohin_model,
    tokens: *const u32,
    count: usize,
    logits: *mut f32,
    capacity: usize,
    logits_len: *mut usize,
    error: *mut shohin_error,
) -> shohin_code {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        call(error, || {
            let model = self::model(model)?;
            let tokens = argument::array(tokens, count, "tokens")?;
            let mut last = Vec::new();
            model
                .sequence(tokens.len())?
                .logits(tokens, &mut |i, logits| {
                    if i + 1 == tokens.len() {
                        last.extend_from_slice(logits);
                    }
                })
                .map_err(shohin::Error::from)?;
            copy_out(&last, logits, capacity, logits_len)
        })
    }
}
