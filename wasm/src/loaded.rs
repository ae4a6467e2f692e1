//! The parts of a model that its conversations share.

use crate::checksum::FileHash;
use crate::device::{Device, DeviceError, Weights};
use crate::info::FileInfo;
use sha2::{Digest, Sha256};
use shohin_core::chat::ChatModel;
use shohin_core::constrain::Vocabulary;
use shohin_core::tokenizer::{Decoder, Special, Tokenizer};
use shohin_core::{Error, Result, Session, SessionOptions};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

/// The state that all conversations share.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Rc<Tokenizer<'static>>,
    pub(crate) weights: Weights,
    /// Options of conversations but for their context.
    pub(crate) session: SessionOptions,
    /// What snapshots are of.
    pub(crate) origin: Sha256,
    pub(crate) file: Rc<FileInfo>,
    /// Built when a reply is first constrained.
    pub(crate) vocabulary: Rc<OnceCell<Arc<Vocabulary>>>,
}

impl Loaded {
    pub(crate) fn new(
        file: FileInfo,
        tokenizer: Tokenizer<'static>,
        weights: Weights,
        session: SessionOptions,
        hash: FileHash,
    ) -> Rc<Loaded> {
        let origin = hash.finish(weights.config(), file.layout_42);
        let (tokenizer, file, vocabulary) = (Rc::new(tokenizer), Rc::new(file), Rc::default());
        Rc::new(Loaded { tokenizer, weights, session, origin, file, vocabulary })
    }

    /// What distinguishes it from models whose keys and values are others.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        self.origin.clone().finalize().into()
    }

    /// A device and a sequence on it for `context` tokens.
    ///
    /// # Errors
    /// `option` if it would have other rotary frequencies; `memory` and the like.
    pub(crate) async fn session(&self, context: usize) -> Result<(Device, Session<Device>), DeviceError> {
        self.check_context(context)?;
        self.weights.session(&SessionOptions { context, ..self.session }).await
    }

    /// Refuses a sequence that would have other frequencies than the model was loaded with.
    fn check_context(&self, context: usize) -> Result<()> {
        let config = self.weights.config();
        if context.min(config.max_context_length) <= config.longest_sequence() {
            return Ok(());
        }
        let expected = "at most that of loading the model, on which its rotary positions depend";
        Err(Error::Option { what: "context", found: context as f64, expected })
    }

    /// Calls `work` with the parts of the model that conversations need.
    pub(crate) fn with_chat_model<T>(&self, work: impl FnOnce(&ChatModel<'_>) -> T) -> T {
        let Loaded { tokenizer, weights, file, .. } = self;
        let make = || Arc::new(Vocabulary::new(tokenizer));
        let vocabulary = || Arc::clone(self.vocabulary.get_or_init(make));
        let logits = weights.config().vocab_size;
        let renderer = None;
        work(&ChatModel { tokenizer, template: file.template, renderer, logits, vocabulary: &vocabulary })
    }

    /// As `tokenize` and `tokenize_with` of the host library: with the beginning-of-sequence token if the model uses one.
    pub(crate) fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        let mut ids = Vec::from_iter(self.tokenizer.leading_bos());
        self.tokenizer.encode(text, if special { Special::Parse } else { Special::UserDefined }, &mut ids);
        ids
    }

    /// The name in the file.
    pub(crate) fn name(&self) -> &str {
        &self.file.name
    }

    pub(crate) fn detokenize(&self, ids: &[u32]) -> Result<String> {
        let vocab = self.tokenizer.vocab_size();
        let mut decoder = Decoder::new(&self.tokenizer).show_control(true).whole();
        let mut text = String::new();
        for &id in ids {
            if id as usize >= vocab {
                return Err(Error::Token { id, vocab: vocab as u32 });
            }
            text.push_str(decoder.push(id));
        }
        text.push_str(decoder.finish());
        Ok(text)
    }
}
