//! Models, read in place.

use crate::code::{Failure, Result, shohin_code};
use crate::handle::{self, Kind};
use crate::info::shohin_model_info;
use crate::memory;
use crate::options::{
    SHOHIN_DEVICE_BEST, SHOHIN_DEVICE_CPU, SHOHIN_DEVICE_GPU, kv_format, shohin_load_options, unknown,
};
use core::mem::size_of;
use shohin_core::chat::Template;
use shohin_core::cpu::CpuWeights;
use shohin_core::sync::Arc;
use shohin_core::{BonsaiModel, Gguf, KvFormat, Tokenizer};

/// The context unless set.
const CONTEXT: usize = 4096;

/// A model in memory that can only be read, such as flash.
pub(crate) struct Parts {
    pub(crate) tokenizer: Tokenizer<'static>,
    pub(crate) template: Template,
    pub(crate) weights: Arc<CpuWeights<&'static [u8]>>,
    pub(crate) context: usize,
    pub(crate) kv: KvFormat,
}

/// What a handle of a model holds.
pub(crate) type Loaded = Arc<Parts>;

impl Kind for Loaded {
    const MAGIC: usize = handle::word(b"shohin-M");
    const NAME: &'static str = "model";
}

impl Parts {
    fn new(file: &'static [u8], options: &shohin_load_options) -> Result<Parts> {
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
        Ok(Parts { tokenizer, template, weights: Arc::new(weights), context, kv })
    }
}

/// Whether the program has given memory, which even messages of errors need.
pub(crate) fn may_load() -> Result<()> {
    memory::given()
}

pub(crate) fn facts(model: &Loaded) -> shohin_model_info {
    let config = model.weights.model().config();
    let parts = model.weights.model().weights().parts();
    shohin_model_info {
        size: size_of::<shohin_model_info>(),
        vocab_size: config.vocab_size,
        embedding_size: config.hidden_size,
        max_context: config.max_context_length,
        context: model.context,
        weight_bytes: parts.iter().map(|part| part.len()).sum(),
        threads: 1,
        can_think: usize::from(model.template.style.can_think()),
        can_call: 0,
    }
}

/// A GGUF file that is in memory and stays there.
pub(crate) fn in_place(file: &'static [u8], options: &shohin_load_options) -> Result<Loaded> {
    Parts::new(file, options).map(Arc::new)
}
