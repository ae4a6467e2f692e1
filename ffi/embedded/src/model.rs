//! Models, read in place or through a window.

use crate::code::{Failure, Result, shohin_code};
use crate::handle::{self, Kind};
use crate::info::shohin_model_info;
use crate::memory;
use crate::options::{
    SHOHIN_DEVICE_BEST, SHOHIN_DEVICE_CPU, SHOHIN_DEVICE_GPU, kv_format, shohin_load_options, unknown,
};
use crate::storage::{Bytes, shohin_storage};
use core::mem::size_of;
use shohin_core::chat::Template;
use shohin_core::cpu::CpuWeights;
use shohin_core::gguf::{Header, HeaderBytes, ReadOptions};
use shohin_core::model::ModelBytes;
use shohin_core::paging::PagedFile;
use shohin_core::sync::Arc;
use shohin_core::{BonsaiModel, Gguf, KvFormat, ModelConfig, Tokenizer};

/// The context unless set.
const CONTEXT: usize = 4096;

/// A model.
pub(crate) struct Parts {
    pub(crate) tokenizer: Tokenizer<'static>,
    pub(crate) template: Template,
    pub(crate) weights: Arc<CpuWeights<Bytes>>,
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
    fn new(
        header: &Header<'_>,
        tokenizer: Tokenizer<'static>,
        bytes: Bytes,
        options: &shohin_load_options,
    ) -> Result<Parts> {
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
        let template = Template::from_metadata(header.metadata(), &tokenizer)?;
        let config = ModelConfig::from_header(header)?;
        let asked = if options.context > 0 { options.context as usize } else { CONTEXT };
        let context = asked.min(config.max_context_length);
        let model = BonsaiModel::from_header(header, bytes, config.for_context(context))?;
        #[allow(clippy::arc_with_non_send_sync, reason = "calls do not overlap")]
        let weights = Arc::new(CpuWeights::new(model)?);
        Ok(Parts { tokenizer, template, weights, context, kv })
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
        weight_bytes: parts
            .iter()
            .map(|part| part.paging().map_or(part.bytes().len(), |paging| paging.window))
            .sum(),
        threads: 1,
        can_think: usize::from(model.template.style.can_think()),
        can_call: 0,
        adapters: 0,
    }
}

/// A GGUF file that is in memory and stays there.
pub(crate) fn in_place(file: &'static [u8], options: &shohin_load_options) -> Result<Loaded> {
    let gguf = Gguf::parse(file)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    Parts::new(gguf.header(), tokenizer, Bytes::InPlace(file), options).map(share)
}

/// A GGUF file in storage.
pub(crate) fn stored(
    storage: shohin_storage,
    window: usize,
    options: &shohin_load_options,
) -> Result<Loaded> {
    let bytes = HeaderBytes::read(&storage, &ReadOptions::default())?;
    let header = bytes.header()?;
    let tokenizer = Tokenizer::from_metadata(header.metadata())?.into_owned();
    let file = PagedFile::new(storage, window);
    Parts::new(&header, tokenizer, Bytes::Stored(file), options).map(share)
}

#[allow(clippy::arc_with_non_send_sync, reason = "calls do not overlap")]
fn share(parts: Parts) -> Loaded {
    Arc::new(parts)
}
