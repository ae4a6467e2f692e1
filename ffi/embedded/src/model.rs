//! Models, read in place.

use crate::argument;
use crate::code::{Failure, Result, call, shohin_code, shohin_error};
use crate::handle::{self, Handle, Kind};
use crate::info::{shohin_model, shohin_model_info};
use crate::memory;
use crate::options::{
    SHOHIN_DEVICE_BEST, SHOHIN_DEVICE_CPU, SHOHIN_DEVICE_GPU, kv_format, shohin_load_options, unknown,
};
use core::mem::size_of;
use core::ptr;
use shohin_core::chat::Template;
use shohin_core::cpu::CpuWeights;
use shohin_core::sync::Arc;
use shohin_core::{BonsaiModel, Gguf, KvFormat, Tokenizer};

/// The context unless set.
const CONTEXT: usize = 4096;

/// A model in memory that can only be read, such as flash.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer<'static>,
    pub(crate) template: Template,
    pub(crate) weights: Arc<CpuWeights<&'static [u8]>>,
    pub(crate) context: usize,
    pub(crate) kv: KvFormat,
}

impl Kind for Arc<Loaded> {
    const MAGIC: usize = handle::word(b"shohin-M");
    const NAME: &'static str = "model";
}

impl Loaded {
    fn new(file: &'static [u8], options: &shohin_load_options) -> Result<Loaded> {
        match options.device {
            SHOHIN_DEVICE_BEST | SHOHIN_DEVICE_CPU => {}
            SHOHIN_DEVICE_GPU => {
                return Err(Failure::new(shohin_code::SHOHIN_UNSUPPORTED, "this library has no GPU device"));
            }
            found => {
                return unknown(
                    "device",
                    found,
                    "SHOHIN_DEVICE_BEST, SHOHIN_DEVICE_CPU or SHOHIN_DEVICE_GPU",
                );
            }
        }
        if options.threads > 1 {
            return Err(Failure::new(shohin_code::SHOHIN_UNSUPPORTED, "this library starts no threads"));
        }
        let kv = kv_format(options.kv_format)?;
        if !kv.is_available() {
            let message =
                "this library was built without the feature `cache-formats`: it has SHOHIN_KV_Q8 only";
            return Err(Failure::new(shohin_code::SHOHIN_UNSUPPORTED, message));
        }
        let gguf = Gguf::parse(file)?;
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let template = Template::from_metadata(gguf.metadata(), &tokenizer)?;
        let weights = CpuWeights::new(BonsaiModel::from_gguf(&gguf)?)?;
        let asked = if options.context > 0 { options.context as usize } else { CONTEXT };
        let context = asked.min(weights.model().config().max_context_length);
        Ok(Loaded { tokenizer, template, weights: Arc::new(weights), context, kv })
    }
}

/// # Safety
/// As [`Handle::get`].
pub(crate) unsafe fn model<'m>(model: *const shohin_model) -> Result<&'m Arc<Loaded>> {
    // SAFETY: the same.
    unsafe { Handle::get(model) }
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
            memory::given()?;
            let out = handle::place(model)?;
            let options = match options.is_null() {
                true => shohin_load_options::default(),
                false => argument::read(options)?,
            };
            let bytes: &'static [u8] = argument::array(bytes, len, "model's bytes")?;
            out.write_unaligned(Handle::give(Arc::new(Loaded::new(bytes, &options)?)));
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
                Handle::<Arc<Loaded>>::free(model)?;
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
            let model = self::model(model)?;
            let config = model.weights.model().config();
            let parts = model.weights.model().weights().parts();
            let found = shohin_model_info {
                size: size_of::<shohin_model_info>(),
                vocab_size: config.vocab_size,
                embedding_size: config.hidden_size,
                max_context: config.max_context_length,
                context: model.context,
                weight_bytes: parts.iter().map(|part| part.len()).sum(),
                threads: 1,
                can_think: usize::from(model.template.style.can_think()),
                can_call: 0,
            };
            argument::write(info, found)?;
            Ok(shohin_code::SHOHIN_OK)
        })
    }
}
