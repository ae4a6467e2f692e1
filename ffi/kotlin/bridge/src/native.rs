//! The methods, in the order of `Native.kt`.
#![allow(non_snake_case, reason = "names are those that JNI looks for")]

use crate::failure::{Result, Throw};
use crate::{call, filled};
use jni::objects::{
    JByteArray, JByteBuffer, JClass, JDoubleArray, JFloatArray, JIntArray, JLongArray, JPrimitiveArray,
    TypeArray,
};
use jni::sys::{jfloat, jint, jlong};
use jni::{Env, EnvUnowned};
use shohin_ffi::adapter::*;
use shohin_ffi::answer::*;
use shohin_ffi::argument::shohin_text;
use shohin_ffi::calls::*;
use shohin_ffi::chat::*;
use shohin_ffi::code::{shohin_code, shohin_error};
use shohin_ffi::info::*;
use shohin_ffi::model::*;
use shohin_ffi::options::*;
use shohin_ffi::piece::*;
use std::ffi::{CStr, c_char};
use std::ptr;

/// Runs a native method.
fn native<'l, T: Default>(mut env: EnvUnowned<'l>, method: impl FnOnce(&mut Env<'l>) -> Result<T>) -> T {
    env.with_env(method).resolve::<Throw>()
}

fn model(address: jlong) -> *mut shohin_model {
    ptr::with_exposed_provenance_mut(address as usize)
}

fn chat(address: jlong) -> *mut shohin_chat {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// A new handle, as Kotlin keeps it.
fn handle<T>(new: impl FnOnce(*mut *mut T, *mut shohin_error) -> shohin_code) -> Result<jlong> {
    let mut handle = ptr::null_mut();
    call(|error| new(&mut handle, error))?;
    Ok(handle.expose_provenance() as jlong)
}

fn array<'l, T: TypeArray>(env: &mut Env<'l>, values: &[T]) -> Result<JPrimitiveArray<'l, T>> {
    let array = JPrimitiveArray::new(env, values.len())?;
    array.set_region(env, 0, values)?;
    Ok(array)
}

fn values<T: TypeArray + Default + Clone>(env: &Env<'_>, array: &JPrimitiveArray<'_, T>) -> Result<Vec<T>> {
    let mut values = vec![T::default(); array.len(env)?];
    array.get_region(env, 0, &mut values)?;
    Ok(values)
}

fn tokens(env: &Env<'_>, array: &JIntArray<'_>) -> Result<Vec<u32>> {
    Ok(values(env, array)?.into_iter().map(jint::cast_unsigned).collect())
}

/// Several texts: their bytes one after the other, and their lengths.
struct Texts {
    bytes: Vec<u8>,
    lengths: Vec<jint>,
}

impl Texts {
    fn new(env: &Env<'_>, bytes: &JByteArray<'_>, lengths: &JIntArray<'_>) -> Result<Texts> {
        Ok(Texts { bytes: env.convert_byte_array(bytes)?, lengths: values(env, lengths)? })
    }

    /// As C has them; not longer than there are bytes.
    fn array(&self) -> Vec<shohin_text> {
        let mut rest = &self.bytes[..];
        let text = |&length: &jint| {
            let (text, after) = rest.split_at(usize::try_from(length).unwrap_or(0).min(rest.len()));
            rest = after;
            shohin_text { text: text.as_ptr().cast(), len: text.len() }
        };
        self.lengths.iter().map(text).collect()
    }
}

/// Kotlin's numbers are not negative; it has checked them.
fn load_options(threads: jint, context: jint, kv_format: jint, device: jint) -> shohin_load_options {
    let (threads, context) = (threads.cast_unsigned(), context.cast_unsigned());
    shohin_load_options { threads, context, kv_format, device, ..Default::default() }
}

/// `external fun version(): ByteArray`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_version<'l>(env: EnvUnowned<'l>, _: JClass<'l>) -> JByteArray<'l> {
    native(env, |env| {
        // SAFETY: a static text with a NUL at its end.
        let version = unsafe { CStr::from_ptr(shohin_ffi::version::shohin_version()) };
        Ok(env.byte_array_from_slice(version.to_bytes())?)
    })
}

/// `external fun modelLoad(path: ByteArray, threads: Int, context: Int, kvFormat: Int, device: Int): Long`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelLoad<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    path: JByteArray<'l>,
    threads: jint,
    context: jint,
    kv_format: jint,
    device: jint,
) -> jlong {
    native(env, |env| {
        let options = load_options(threads, context, kv_format, device);
        let path = env.convert_byte_array(path)?;
        // SAFETY: the variables above.
        handle(|model, error| unsafe {
            shohin_model_load(path.as_ptr().cast(), path.len(), &options, model, error)
        })
    })
}

/// `external fun modelLoadBytes(bytes: ByteArray, threads: Int, context: Int, kvFormat: Int, device: Int): Long`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelLoadBytes<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    bytes: JByteArray<'l>,
    threads: jint,
    context: jint,
    kv_format: jint,
    device: jint,
) -> jlong {
    native(env, |env| {
        let options = load_options(threads, context, kv_format, device);
        let bytes = env.convert_byte_array(bytes)?;
        // SAFETY: the variables above.
        handle(|model, error| unsafe {
            shohin_model_load_memory(bytes.as_ptr(), bytes.len(), &options, model, error)
        })
    })
}

/// `external fun modelLoadBuffer(buffer: ByteBuffer, len: Int, threads: Int, context: Int, kvFormat: Int,
/// device: Int): Long`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelLoadBuffer<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    buffer: JByteBuffer<'l>,
    len: jint,
    threads: jint,
    context: jint,
    kv_format: jint,
    device: jint,
) -> jlong {
    native(env, |env| {
        let options = load_options(threads, context, kv_format, device);
        let memory = env.get_direct_buffer_address(&buffer)?;
        // SAFETY: the buffer lives during the call, and has `len` bytes.
        handle(|model, error| unsafe {
            shohin_model_load_memory(memory, len as usize, &options, model, error)
        })
    })
}

/// `external fun modelLoadBuiltIn(threads: Int, context: Int, kvFormat: Int, device: Int): Long`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelLoadBuiltIn<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    threads: jint,
    context: jint,
    kv_format: jint,
    device: jint,
) -> jlong {
    native(env, |_| {
        let options = load_options(threads, context, kv_format, device);
        // SAFETY: the variable above.
        handle(|model, error| unsafe { shohin_model_load_built_in(&options, model, error) })
    })
}

/// `external fun modelAdapted(model: Long, files: ByteArray, lengths: IntArray, inMemory: IntArray, scales: FloatArray): Long`:
/// paths, and files that are in memory where a number is not 0
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelAdapted<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
    files: JByteArray<'l>,
    lengths: JIntArray<'l>,
    in_memory: JIntArray<'l>,
    scales: JFloatArray<'l>,
) -> jlong {
    native(env, |env| {
        let files = Texts::new(env, &files, &lengths)?;
        let (in_memory, scales) = (values(env, &in_memory)?, values(env, &scales)?);
        let none = shohin_adapter { path: ptr::null(), path_len: 0, bytes: ptr::null(), len: 0, scale: 0.0 };
        let adapter = |((file, in_memory), scale): ((shohin_text, jint), jfloat)| match in_memory {
            0 => shohin_adapter { path: file.text, path_len: file.len, scale, ..none },
            _ => shohin_adapter { bytes: file.text.cast(), len: file.len, scale, ..none },
        };
        let adapters: Vec<shohin_adapter> =
            files.array().into_iter().zip(in_memory).zip(scales).map(adapter).collect();
        // SAFETY: the handle is open; the variables above.
        handle(|adapted, error| unsafe {
            shohin_model_adapted(self::model(model), adapters.as_ptr(), adapters.len(), adapted, error)
        })
    })
}

/// `external fun modelFree(model: Long)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelFree<'l>(_: EnvUnowned<'l>, _: JClass<'l>, model: jlong) {
    // SAFETY: no call uses the handle. Freeing a model does not fail.
    unsafe { shohin_model_free(self::model(model)) };
}

fn model_info(model: jlong) -> Result<shohin_model_info> {
    let mut info = shohin_model_info::default();
    // SAFETY: the handle is open.
    call(|error| unsafe { shohin_model_get_info(self::model(model), &mut info, error) })?;
    Ok(info)
}

/// `external fun modelInfo(model: Long): LongArray`, the fields of `ModelInfo`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_modelInfo<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
) -> JLongArray<'l> {
    native(env, |env| {
        let info = model_info(model)?;
        let numbers = [
            info.vocab_size,
            info.embedding_size,
            info.max_context,
            info.context,
            info.weight_bytes,
            info.threads,
            info.can_think,
            info.can_call,
            info.adapters,
        ];
        array(env, &numbers.map(|number| number as jlong))
    })
}

/// `external fun tokenize(model: Long, text: ByteArray): IntArray`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_tokenize<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
    text: JByteArray<'l>,
) -> JIntArray<'l> {
    native(env, |env| {
        let text = env.convert_byte_array(text)?;
        // A token is at least a byte, and there may be one for the beginning.
        let tokens = filled(text.len() + 1, |tokens, capacity, count, error| {
            // SAFETY: the handle is open; the variables above.
            unsafe {
                let text = (text.as_ptr().cast(), text.len());
                shohin_tokenize(self::model(model), text.0, text.1, tokens, capacity, count, error)
            }
        })?;
        let tokens: Vec<jint> = tokens.into_iter().map(u32::cast_signed).collect();
        array(env, &tokens)
    })
}

/// `external fun detokenize(model: Long, tokens: IntArray): ByteArray`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_detokenize<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
    tokens: JIntArray<'l>,
) -> JByteArray<'l> {
    native(env, |env| {
        let tokens = self::tokens(env, &tokens)?;
        let text = filled::<u8>(8 * tokens.len(), |text, capacity, len, error| {
            // SAFETY: the handle is open; the variables above.
            unsafe {
                let (model, ids) = (self::model(model), tokens.as_ptr());
                shohin_detokenize(model, ids, tokens.len(), text.cast(), capacity, len, error)
            }
        })?;
        Ok(env.byte_array_from_slice(&text)?)
    })
}

/// `external fun embed(model: Long, text: ByteArray): FloatArray`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_embed<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
    text: JByteArray<'l>,
) -> JFloatArray<'l> {
    native(env, |env| {
        let text = env.convert_byte_array(text)?;
        let vector = filled(model_info(model)?.embedding_size, |vector, capacity, len, error| {
            // SAFETY: the handle is open; the variables above.
            unsafe {
                let text = (text.as_ptr().cast(), text.len());
                shohin_embed(self::model(model), text.0, text.1, vector, capacity, len, error)
            }
        })?;
        array(env, &vector)
    })
}

/// `external fun embedTexts(model: Long, texts: ByteArray, lengths: IntArray): FloatArray`, one vector after the other
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_embedTexts<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
    texts: JByteArray<'l>,
    lengths: JIntArray<'l>,
) -> JFloatArray<'l> {
    native(env, |env| {
        let texts = Texts::new(env, &texts, &lengths)?;
        let texts = texts.array();
        let expected = model_info(model)?.embedding_size.saturating_mul(texts.len());
        let vectors = filled(expected, |vectors, capacity, len, error| {
            // SAFETY: the handle is open; the variables above.
            unsafe {
                let model = self::model(model);
                shohin_embed_texts(model, texts.as_ptr(), texts.len(), vectors, capacity, len, error)
            }
        })?;
        array(env, &vectors)
    })
}

/// `external fun logits(model: Long, tokens: IntArray): FloatArray`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_logits<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
    tokens: JIntArray<'l>,
) -> JFloatArray<'l> {
    native(env, |env| {
        let tokens = self::tokens(env, &tokens)?;
        let logits = filled(model_info(model)?.vocab_size, |logits, capacity, len, error| {
            // SAFETY: the handle is open; the variables above.
            unsafe {
                let (model, ids) = (self::model(model), tokens.as_ptr());
                shohin_logits(model, ids, tokens.len(), logits, capacity, len, error)
            }
        })?;
        array(env, &logits)
    })
}

/// `external fun chatDefaults(): DoubleArray`, the first fields of `ChatOptions`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatDefaults<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
) -> JDoubleArray<'l> {
    native(env, |env| {
        let options = shohin_chat_options::default();
        let numbers = [
            options.seed as f64,
            options.temperature.into(),
            options.top_k.into(),
            options.top_p.into(),
            options.min_p.into(),
            options.repetition_penalty.into(),
        ];
        array(env, &numbers)
    })
}

/// `external fun chatNew(model: Long): Long`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatNew<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    model: jlong,
) -> jlong {
    native(env, |_| {
        // SAFETY: the handle is open.
        handle(|chat, error| unsafe { shohin_chat_new(self::model(model), ptr::null(), chat, error) })
    })
}

/// `external fun chatFree(chat: Long)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatFree<'l>(_: EnvUnowned<'l>, _: JClass<'l>, chat: jlong) {
    // SAFETY: no call uses the handle, so that freeing it does not fail.
    unsafe { shohin_chat_free(self::chat(chat)) };
}

/// `external fun chatSetOptions(chat: Long, seed: Long, temperature: Float, topK: Int, topP: Float, minP: Float,
/// repetitionPenalty: Float, maxTokens: Int, thinking: Int, format: Int, formatText: ByteArray, stop: ByteArray,
/// stopLengths: IntArray, tools: ByteArray, toolLengths: IntArray, toolChoice: ByteArray, presencePenalty: Float,
/// frequencyPenalty: Float, logprobs: Int, describeTools: Int, choices: ByteArray, choiceLengths: IntArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSetOptions<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    seed: jlong,
    temperature: jfloat,
    top_k: jint,
    top_p: jfloat,
    min_p: jfloat,
    repetition_penalty: jfloat,
    max_tokens: jint,
    thinking: jint,
    format: jint,
    format_text: JByteArray<'l>,
    stop: JByteArray<'l>,
    stop_lengths: JIntArray<'l>,
    tools: JByteArray<'l>,
    tool_lengths: JIntArray<'l>,
    tool_choice: JByteArray<'l>,
    presence_penalty: jfloat,
    frequency_penalty: jfloat,
    logprobs: jint,
    describe_tools: jint,
    choices: JByteArray<'l>,
    choice_lengths: JIntArray<'l>,
) {
    native(env, |env| {
        let (format_text, tool_choice) =
            (env.convert_byte_array(format_text)?, env.convert_byte_array(tool_choice)?);
        let (stop, tools) = (Texts::new(env, &stop, &stop_lengths)?, Texts::new(env, &tools, &tool_lengths)?);
        let choices = Texts::new(env, &choices, &choice_lengths)?;
        let (stop, tools, choices) = (stop.array(), tools.array(), choices.array());
        let options = shohin_chat_options {
            seed: seed.cast_unsigned(),
            temperature,
            top_k: top_k.cast_unsigned(),
            top_p,
            min_p,
            repetition_penalty,
            max_tokens: max_tokens.cast_unsigned(),
            thinking,
            format,
            format_text: format_text.as_ptr().cast(),
            format_text_len: format_text.len(),
            stop: stop.as_ptr(),
            stop_count: stop.len(),
            tools: tools.as_ptr(),
            tool_count: tools.len(),
            tool_choice: tool_choice.as_ptr().cast(),
            tool_choice_len: tool_choice.len(),
            presence_penalty,
            frequency_penalty,
            logprobs,
            describe_tools,
            choices: choices.as_ptr(),
            choice_count: choices.len(),
            ..Default::default()
        };
        // SAFETY: the handle is open; the variables above.
        call(|error| unsafe { shohin_chat_set_options(self::chat(chat), &options, error) })?;
        Ok(())
    });
}

/// A method with a chat and a text.
fn with_text(
    env: EnvUnowned<'_>,
    address: jlong,
    text: JByteArray<'_>,
    function: unsafe extern "C" fn(*mut shohin_chat, *const c_char, usize, *mut shohin_error) -> shohin_code,
) {
    native(env, |env| {
        let text = env.convert_byte_array(text)?;
        // SAFETY: the handle is open; the variable above.
        call(|error| unsafe { function(chat(address), text.as_ptr().cast(), text.len(), error) })?;
        Ok(())
    });
}

/// `external fun chatSystem(chat: Long, text: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSystem<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    text: JByteArray<'l>,
) {
    with_text(env, chat, text, shohin_chat_system);
}

/// `external fun chatSend(chat: Long, text: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSend<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    text: JByteArray<'l>,
) {
    with_text(env, chat, text, shohin_chat_send);
}

/// `external fun chatSetMessages(chat: Long, messages: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSetMessages<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    messages: JByteArray<'l>,
) {
    with_text(env, chat, messages, shohin_chat_set_messages);
}

/// `external fun chatMessages(chat: Long): ByteArray`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatMessages<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
) -> JByteArray<'l> {
    native(env, |env| {
        let messages = filled::<u8>(1024, |messages, capacity, len, error| {
            // SAFETY: the handle is open; the variables above.
            unsafe { shohin_chat_get_messages(self::chat(chat), messages.cast(), capacity, len, error) }
        })?;
        Ok(env.byte_array_from_slice(&messages)?)
    })
}

/// `external fun chatSendMessages(chat: Long, messages: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSendMessages<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    messages: JByteArray<'l>,
) {
    with_text(env, chat, messages, shohin_chat_send_messages);
}

/// `external fun chatRequest(chat: Long, request: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatRequest<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    request: JByteArray<'l>,
) {
    with_text(env, chat, request, shohin_chat_request);
}

/// `external fun chatNextAnswer(chat: Long): ByteArray?`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatNextAnswer<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
) -> JByteArray<'l> {
    native(env, |env| {
        let mut answer = shohin_text { text: ptr::null(), len: 0 };
        // SAFETY: the handle is open; the variable above.
        let code = call(|error| unsafe { shohin_chat_next_answer(self::chat(chat), &mut answer, error) })?;
        if code == shohin_code::SHOHIN_DONE {
            return Ok(JByteArray::default());
        }
        // SAFETY: the text is valid until the next call for its chat.
        let text = unsafe { std::slice::from_raw_parts(answer.text.cast::<u8>(), answer.len) };
        Ok(env.byte_array_from_slice(text)?)
    })
}

/// `external fun chatSendResults(chat: Long, results: ByteArray, lengths: IntArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSendResults<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    results: JByteArray<'l>,
    lengths: JIntArray<'l>,
) {
    native(env, |env| {
        let results = Texts::new(env, &results, &lengths)?;
        let results = results.array();
        // SAFETY: the handle is open; the variable above.
        call(|error| unsafe {
            shohin_chat_send_results(self::chat(chat), results.as_ptr(), results.len(), error)
        })?;
        Ok(())
    });
}

/// `external fun chatRetry(chat: Long)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatRetry<'l>(env: EnvUnowned<'l>, _: JClass<'l>, chat: jlong) {
    native(env, |_| {
        // SAFETY: the handle is open.
        call(|error| unsafe { shohin_chat_retry(self::chat(chat), error) })?;
        Ok(())
    });
}

/// `external fun chatSpeculate(chat: Long, draft: Long)`; `draft` is 0 if there is none
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSpeculate<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    draft: jlong,
) {
    native(env, |_| {
        // SAFETY: the handles are open.
        call(|error| unsafe { shohin_chat_speculate(self::chat(chat), model(draft), error) })?;
        Ok(())
    });
}

/// `external fun chatComplete(chat: Long, tokens: IntArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatComplete<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    tokens: JIntArray<'l>,
) {
    native(env, |env| {
        let tokens = self::tokens(env, &tokens)?;
        // SAFETY: the handle is open; the variable above.
        call(|error| unsafe {
            shohin_chat_complete(self::chat(chat), tokens.as_ptr(), tokens.len(), error)
        })?;
        Ok(())
    });
}

/// The log-probabilities of a piece: for each token it and its log-probability, then the number of the most likely ones and those, each
/// number in four bytes, the least significant first.
fn logprobs(piece: &shohin_piece) -> Vec<u8> {
    let pair = |one: &shohin_logprob| [one.token.to_le_bytes(), one.logprob.to_le_bytes()].concat();
    let mut all = Vec::new();
    for i in 0..piece.logprob_count {
        // SAFETY: the piece is valid until the next call for its chat, and has so many.
        let one = unsafe { &*piece.logprobs.add(i) };
        all.extend(pair(&one.chosen));
        all.extend((one.top_count as jint).to_le_bytes());
        for i in 0..one.top_count {
            // SAFETY: the same.
            all.extend(pair(unsafe { &*one.top.add(i) }));
        }
    }
    all
}

/// `external fun chatNext(chat: Long, numbers: IntArray): ByteArray?`: the text, the reasoning, the names and arguments of
/// calls, each with a NUL at its end, and log-probabilities; the lengths of the first two and of the last, the token and the reason are
/// written to `numbers`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatNext<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    numbers: JIntArray<'l>,
) -> JByteArray<'l> {
    native(env, |env| {
        let mut piece = shohin_piece::default();
        // SAFETY: the handle is open; the variable above.
        let code = call(|error| unsafe { shohin_chat_next(self::chat(chat), &mut piece, error) })?;
        if code == shohin_code::SHOHIN_DONE {
            return Ok(JByteArray::default());
        }
        // SAFETY: the piece is valid until the next call for its chat.
        let bytes =
            |start: *const c_char, len| unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
        let mut all = bytes(piece.text, piece.text_len).to_vec();
        all.extend_from_slice(bytes(piece.reasoning, piece.reasoning_len));
        for i in 0..piece.tool_call_count {
            // SAFETY: the same, and there are so many calls; each text has a NUL after its end.
            let call = unsafe { &*piece.tool_calls.add(i) };
            all.extend_from_slice(bytes(call.name, call.name_len + 1));
            all.extend_from_slice(bytes(call.arguments, call.arguments_len + 1));
        }
        let logprobs = logprobs(&piece);
        all.extend_from_slice(&logprobs);
        let lengths = [piece.text_len, piece.reasoning_len, logprobs.len()].map(|len| len as jint);
        numbers.set_region(env, 0, &[lengths[0], lengths[1], piece.token, piece.reason, lengths[2]])?;
        Ok(env.byte_array_from_slice(&all)?)
    })
}

/// `external fun chatStop(chat: Long)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatStop<'l>(env: EnvUnowned<'l>, _: JClass<'l>, chat: jlong) {
    native(env, |_| {
        // SAFETY: the handle is open.
        call(|error| unsafe { shohin_chat_stop(self::chat(chat), error) })?;
        Ok(())
    });
}

/// `external fun chatInterrupt(chat: Long)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatInterrupt<'l>(env: EnvUnowned<'l>, _: JClass<'l>, chat: jlong) {
    native(env, |_| {
        // SAFETY: the handle is open.
        call(|error| unsafe { shohin_chat_interrupt(self::chat(chat), error) })?;
        Ok(())
    });
}

/// `external fun chatUsage(chat: Long): DoubleArray`, the fields of `Usage`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatUsage<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
) -> JDoubleArray<'l> {
    native(env, |env| {
        let mut usage = shohin_usage::default();
        // SAFETY: the handle is open; the variable above.
        call(|error| unsafe { shohin_chat_get_usage(self::chat(chat), &mut usage, error) })?;
        let count = |number: usize| number as f64;
        let numbers = [
            count(usage.prompt_tokens),
            count(usage.cached_tokens),
            count(usage.reply_tokens),
            usage.prompt_seconds,
            usage.reply_seconds,
            count(usage.position),
            count(usage.capacity),
            count(usage.guesses_checked),
            count(usage.guesses_right),
        ];
        array(env, &numbers)
    })
}

/// `external fun chatSave(chat: Long, path: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatSave<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    path: JByteArray<'l>,
) {
    with_text(env, chat, path, shohin_chat_save);
}

/// `external fun chatOpen(chat: Long, path: ByteArray)`
#[unsafe(no_mangle)]
extern "system" fn Java_rs_shohin_Native_chatOpen<'l>(
    env: EnvUnowned<'l>,
    _: JClass<'l>,
    chat: jlong,
    path: JByteArray<'l>,
) {
    with_text(env, chat, path, shohin_chat_open);
}
