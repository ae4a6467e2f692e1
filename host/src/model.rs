//! A loaded model and its operations.

use crate::cpu::CpuModel;
use crate::devices::Fallback;
use crate::error::{Error, FileError, Result};
use crate::file::ModelFile;
use crate::lora::Adapter;
use crate::sequence::Sequence;
use crate::shard::ShardBytes;
use crate::template::{Chosen, TemplateError};
use crate::threads::ThreadPool;
use crate::weight_cache::CacheWriter;
use crate::weights::Weights;
use shohin_core::chat::{ChatMessage, ChatModel, Encoded, Renderer, Template, TurnOptions};
use shohin_core::constrain::Vocabulary;
use shohin_core::cpu::{CpuWeights, Isa};
use shohin_core::gguf::ReadOptions;
use shohin_core::model::{CapabilityProfile, Embedding, ModelVariant, Pooling, Split};
use shohin_core::tokenizer::{Decoder, Special};
use shohin_core::{
    Activations, AttentionPattern, CpuOptions, Format, Gguf, KvFormat, MemoryPlan, ModelConfig, Pool,
    SessionOptions, Tokenizer,
};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Rows whose logits are computed together if all are requested.
const LOGIT_ROWS: usize = 8;

/// A loaded model: weights, tokenizer, threads and the device it runs on. Clones share all of it, and any
/// number of chats can run over one model, also on several threads.
#[derive(Clone, Debug)]
pub struct Model(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// From the metadata; may be empty.
    pub(crate) name: String,
    pub(crate) file: ModelFile,
    /// Those that are applied to it.
    pub(crate) adapters: Vec<Adapter>,
    pub(crate) read: ReadOptions,
    /// The whole model on the CPU.
    pub(crate) cpu: CpuModel,
    /// The model where it runs.
    pub(crate) device: Weights,
    /// Writes the weights to the cache.
    pub(crate) cache_writer: Option<CacheWriter>,
    pub(crate) tokenizer: Arc<Tokenizer<'static>>,
    /// Whether the file's is built in, and if not, how it is rendered.
    pub(crate) template: Arc<Chosen>,
    /// How the file asks to combine the states of a text.
    pub(crate) pooling: shohin_core::Result<Pooling>,
    pub(crate) options: CpuOptions,
    pub(crate) kv: KvFormat,
    pub(crate) attention: AttentionPattern,
    /// What keys and values depend on besides the file; empty unless an option replaces its positions, or it has tensors of
    /// type 42, whose layout this names.
    pub(crate) readings: String,
    /// Why it does not run on another device.
    pub(crate) fallback: Option<Fallback>,
    /// The vocabulary for constraints, built on first use.
    pub(crate) vocabulary: Arc<OnceLock<Arc<Vocabulary>>>,
    /// The format of most of the weights in the file.
    pub(crate) format: Option<Format>,
    /// Bytes of the weights while the model runs.
    pub(crate) weight_bytes: usize,
    pub(crate) load_time: Duration,
    /// A hash of the file, computed on first use.
    pub(crate) fingerprint: OnceLock<[u8; 32]>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// The tokens of a text, with the beginning-of-sequence token if the model uses one. Control tokens in
    /// the text are plain text.
    pub fn tokenize(&self, text: &str) -> Vec<u32> {
        self.tokenize_with(text, Special::UserDefined)
    }

    /// A conversation as the model sees it with these options, for [`Scheduler::begin`](crate::Scheduler::begin).
    ///
    /// # Errors
    /// If there is no chat template, or it cannot show the messages or the tools.
    pub fn encode(&self, messages: Vec<ChatMessage>, options: &TurnOptions) -> Result<Encoded> {
        Ok(self.with_chat_model(|model| Encoded::new(model, messages, options))?)
    }

    /// A whole conversation as the model sees and writes it, for training, and where its replies are.
    ///
    /// # Errors
    /// As [`Model::encode`], and if there is no reply.
    pub fn encode_replies(
        &self,
        messages: &[ChatMessage],
        tools: &[&str],
    ) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let mut tokens = Vec::new();
        let replies = self.with_chat_model(|model| model.encode_replies(messages, tools, &mut tokens))?;
        Ok((tokens, replies))
    }

    /// As [`Model::tokenize`], with the added tokens that `special` allows.
    pub fn tokenize_with(&self, text: &str, special: Special) -> Vec<u32> {
        let mut tokens = Vec::from_iter(self.0.tokenizer.leading_bos());
        self.0.tokenizer.encode(text, special, &mut tokens);
        tokens
    }

    /// The tokens of a whole text, as it is embedded: as [`Model::tokenize`], with the end-of-sequence token after it if
    /// the file says so.
    pub fn tokenize_whole(&self, text: &str) -> Vec<u32> {
        self.0.tokenizer.encode_whole(text)
    }

    /// The text of tokens, without control tokens.
    ///
    /// # Errors
    /// [`shohin_core::Error::Token`] for an unknown token.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        self.check_tokens(tokens)?;
        let mut decoder = Decoder::new(&self.0.tokenizer).whole();
        let mut text = String::new();
        tokens.iter().for_each(|&id| text.push_str(decoder.push(id)));
        text.push_str(decoder.finish());
        Ok(text)
    }

    /// Refuses tokens that the model does not have.
    ///
    /// # Errors
    /// [`shohin_core::Error::Token`] for the first one.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.0.tokenizer.vocab_size() as u32;
        match tokens.iter().find(|&&id| id >= vocab) {
            Some(&id) => Err(shohin_core::Error::Token { id, vocab }.into()),
            None => Ok(()),
        }
    }

    /// How the file asks to combine the final hidden states of a text: their mean unless it says otherwise.
    ///
    /// # Errors
    /// [`shohin_core::Error::Unsupported`] if it asks for what is not computed, such as `cls` or `rank`.
    pub fn pooling(&self) -> Result<Pooling> {
        Ok(self.0.pooling.map_err(|source| FileError::Model { name: self.0.file.name().into(), source })?)
    }

    /// The embedding `(hidden)` of a text, of length 1, with the file's [pooling](Model::pooling). See
    /// [`Model::embeddings`] for several texts.
    ///
    /// # Errors
    /// As [`Model::embeddings`] and [`Model::pooling`].
    pub fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let mut all = self.embeddings(&[text], self.pooling()?, true)?;
        all.next().unwrap_or(Err(Error::EmptyText { number: 1 }))
    }

    /// The embeddings `(hidden)` of texts, computed lazily one by one; of length 1 if `normalize`. [`Model::pooling`] is
    /// what the model was trained with.
    ///
    /// # Errors
    /// If a text is empty or too long for the model, or there is no memory; as [`Model::sequence`].
    pub fn embeddings<T: AsRef<str>>(
        &self,
        texts: &[T],
        pooling: Pooling,
        normalize: bool,
    ) -> Result<impl Iterator<Item = Result<Vec<f32>>> + use<T>> {
        let texts = texts.iter().map(|text| self.tokenize_whole(text.as_ref())).collect();
        self.token_embeddings(texts, pooling, normalize)
    }

    /// As [`Model::embeddings`], of texts that are tokens already.
    ///
    /// # Errors
    /// As [`Model::embeddings`]; [`shohin_core::Error::Token`] for an unknown token.
    pub fn token_embeddings(
        &self,
        texts: Vec<Vec<u32>>,
        pooling: Pooling,
        normalize: bool,
    ) -> Result<impl Iterator<Item = Result<Vec<f32>>> + use<>> {
        let most = self.config().max_context_length;
        for (number, tokens) in (1..).zip(&texts) {
            match tokens.len() {
                0 => return Err(Error::EmptyText { number }),
                found if found > most => return Err(Error::LongText { number, found, most }),
                _ => self.check_tokens(tokens)?,
            }
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
        self.check_context(longest)?;
        let mut sequence = self.sequence(Embedding::context(longest, self.config().longest_sequence()))?;
        let hidden = self.config().hidden_size;
        Ok(texts.into_iter().map(move |tokens| {
            sequence.truncate(0)?;
            let mut embedding = Embedding::new(hidden, pooling);
            sequence.hidden(&tokens, &mut |_, state| embedding.push(state))?;
            let vector = embedding.finish(normalize);
            match vector.iter().all(|x| x.is_finite()) {
                true => Ok(vector),
                false => Err(Error::NotFinite),
            }
        }))
    }

    /// Calls `sink(i, logits)` with the logits `(vocab)` after each of `tokens`, in order.
    ///
    /// # Errors
    /// If there are no tokens, unknown ones, or more than the model supports; as [`Model::sequence`].
    pub fn logits(&self, tokens: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        Ok(self.sequence(tokens.len())?.logits(tokens, sink)?)
    }

    /// An empty sequence of at most `context` tokens, for low-level use.
    ///
    /// # Errors
    /// If there is no memory for it. [`Error::Option`] if its rotary frequencies would be others than those of the
    /// [context](crate::Builder::context) that the model was loaded with, as with LongRoPE.
    pub fn sequence(&self, context: usize) -> Result<Sequence> {
        self.open(context, LOGIT_ROWS)
    }

    /// As [`Model::sequence`], with another format of the cache or another attention than the model was loaded with.
    ///
    /// # Errors
    /// As [`Model::sequence`]; if the device does not support them.
    pub fn sequence_with(&self, options: &SessionOptions) -> Result<Sequence> {
        self.check_context(options.context)?;
        let device = CpuOptions { context: options.context, logit_rows: LOGIT_ROWS, ..self.0.options };
        self.0.device.sequence(&device, options)
    }

    /// Bytes of the keys and values of such a sequence on the CPU.
    ///
    /// # Errors
    /// As [`Model::memory_plan`].
    pub fn cache_bytes_with(&self, options: &SessionOptions) -> Result<usize> {
        let device = CpuOptions { context: options.context, ..self.0.options };
        Ok(self.0.cpu.memory_plan(&device, options)?.kv)
    }

    /// As [`Model::sequence`], for measurements with [`Sequence::set_len`]: all of the cache's memory is
    /// resident and holds small equal numbers. Untouched memory would be a single page of zeros.
    ///
    /// # Errors
    /// As [`Model::sequence`].
    pub fn filled_sequence(&self, context: usize) -> Result<Sequence> {
        self.check_context(context)?;
        let options = CpuOptions { context, logit_rows: 1, ..self.0.options };
        self.0.device.filled_sequence(&options, &self.session_options(context))
    }

    /// A sequence for generation, without room for the logits of several rows.
    pub(crate) fn generating_sequence(&self) -> Result<Sequence> {
        self.open(self.0.options.context, 1)
    }

    /// The same, for the logits of several rows at once.
    pub(crate) fn checking_sequence(&self, rows: usize) -> Result<Sequence> {
        self.open(self.0.options.context, rows)
    }

    fn open(&self, context: usize, logit_rows: usize) -> Result<Sequence> {
        self.check_context(context)?;
        let options = CpuOptions { context, logit_rows, ..self.0.options };
        self.0.device.sequence(&options, &self.session_options(context))
    }

    /// Refuses a sequence that would have other frequencies than the model was loaded with.
    fn check_context(&self, context: usize) -> Result<()> {
        let config = self.config();
        let needed = context.min(config.max_context_length);
        if needed <= config.longest_sequence() {
            return Ok(());
        }
        let expected = format!(
            "at least {needed}, as long as the sequence: the rotary positions of this model depend on the context it is loaded with"
        );
        Err(Error::Option { name: "context", found: self.context().to_string(), expected })
    }

    /// The name in the file's metadata, or else that of the matching published model.
    pub fn name(&self) -> &str {
        match (self.0.name.as_str(), self.variant()) {
            ("", ModelVariant::Custom) => "unnamed model",
            ("", known) => known.name(),
            (named, _) => named,
        }
    }

    /// The published model it matches.
    pub fn variant(&self) -> ModelVariant {
        self.0.cpu.weights.model().variant()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        self.0.cpu.weights.model().config()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer<'static> {
        &self.0.tokenizer
    }

    /// The chat template.
    pub fn template(&self) -> Template {
        self.0.template.template
    }

    /// Why the chat template of the file is not used, if it cannot be: [`Model::template`] is the closest that is built in then.
    pub fn template_problem(&self) -> Option<&TemplateError> {
        self.0.template.problem.as_ref()
    }

    /// Whether the model can reason before it answers.
    pub fn can_think(&self) -> bool {
        self.template().style.can_think()
    }

    /// Its capabilities, its size as loaded, and its costs.
    pub fn capabilities(&self) -> CapabilityProfile {
        let style = self.template().style;
        let weights = self.weight_bytes() as u64;
        CapabilityProfile::new(self.config(), weights, style.can_think(), style.has_tools())
    }

    /// The format of most of the weights in the file; `None` if the model has no layers.
    pub fn format(&self) -> Option<Format> {
        self.0.format
    }

    /// The weights on the CPU, in the layout of the kernels (on a GPU: in that of the file).
    pub fn weights(&self) -> &CpuWeights<ShardBytes> {
        &self.0.cpu.weights
    }

    /// Whether the weights are those of the [`WeightCache`](crate::WeightCache).
    pub fn is_cached(&self) -> bool {
        let parts = self.0.cpu.weights.model().weights().parts();
        parts.iter().take(self.0.file.parts()).all(ShardBytes::is_cached)
    }

    /// The adapters that are applied to it, each with its scale; see [`Builder::adapter`](crate::Builder::adapter).
    pub fn adapters(&self) -> impl Iterator<Item = (&ModelFile, f32)> {
        self.0.adapters.iter().map(|adapter| (&adapter.file, adapter.scale))
    }

    /// Waits until the weights are in the [`WeightCache`](crate::WeightCache), if they are being written there.
    ///
    /// # Errors
    /// [`FileError::Io`] if they could not be written; the model runs all the same.
    pub fn finish_caching(&self) -> Result<()> {
        self.0.cache_writer.as_ref().map_or(Ok(()), CacheWriter::finish)
    }

    /// The file.
    pub fn file(&self) -> &ModelFile {
        &self.0.file
    }

    /// The file's contents: metadata and tensors.
    ///
    /// # Errors
    /// If the file was changed since it was loaded.
    pub fn gguf(&self) -> Result<Gguf<'_>> {
        self.0.file.gguf(&self.0.read)
    }

    /// Requested context of chats in tokens; [`Chat::capacity`](crate::Chat::capacity) is the actual one.
    pub fn context(&self) -> usize {
        self.0.options.context
    }

    /// Format of the KV cache.
    pub fn kv(&self) -> KvFormat {
        self.0.kv
    }

    /// The positions that each token attends to.
    pub fn attention(&self) -> AttentionPattern {
        self.0.attention
    }

    pub(crate) fn session_options(&self, context: usize) -> SessionOptions {
        SessionOptions { context, kv: self.0.kv, attention: self.0.attention }
    }

    /// Precision of activations.
    pub fn activations(&self) -> Activations {
        self.0.options.activations
    }

    /// Instruction set of the CPU's kernels.
    pub fn isa(&self) -> Isa {
        self.0.options.isa
    }

    /// The thread pool.
    pub fn pool(&self) -> &ThreadPool {
        &self.0.cpu.pool
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.0.cpu.pool.workers()
    }

    /// Name of the GPU it runs on, or names of several, if any.
    pub fn gpu(&self) -> Option<&str> {
        self.0.device.gpu()
    }

    /// Why it runs on the CPU, if the device was chosen automatically and is the CPU.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.0.fallback.as_ref()
    }

    /// How the model is split among ranks, if it is.
    pub fn split(&self) -> Option<Split> {
        self.0.device.split()
    }

    /// Whether the model is split among several processes.
    pub fn is_distributed(&self) -> bool {
        self.0.device.is_distributed()
    }

    /// Duration of loading.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// Bytes of the weights while the model runs.
    pub fn weight_bytes(&self) -> usize {
        self.0.weight_bytes
    }

    /// Bytes of a sequence of `context` tokens on the CPU, including its device's scratch memory.
    ///
    /// # Errors
    /// For a context of 0, or one that exceeds the address space.
    pub fn memory_plan(&self, context: usize) -> Result<MemoryPlan> {
        self.0.cpu.memory_plan(&CpuOptions { context, ..self.0.options }, &self.session_options(context))
    }

    /// Bytes of a sequence of `context` tokens on the model's device.
    ///
    /// # Errors
    /// As [`Model::memory_plan`].
    pub fn sequence_bytes(&self, context: usize) -> Result<u64> {
        let options = CpuOptions { context, ..self.0.options };
        self.0.device.sequence_bytes(&options, &self.session_options(context))
    }

    /// Calls `work` with the parts of the model that conversations need.
    pub(crate) fn with_chat_model<T>(&self, work: impl FnOnce(&ChatModel<'_>) -> T) -> T {
        let vocabulary = || {
            let make = || Arc::new(Vocabulary::new(&self.0.tokenizer));
            Arc::clone(self.0.vocabulary.get_or_init(make))
        };
        work(&ChatModel {
            tokenizer: &self.0.tokenizer,
            template: self.template(),
            renderer: self.0.template.file.as_ref().map(|file| file as &dyn Renderer),
            logits: self.config().vocab_size,
            vocabulary: &vocabulary,
        })
    }
}
