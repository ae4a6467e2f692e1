//! Text to token ids and back: byte-level BPE as described by GGUF files of Qwen3, SmolLM2 and Llama 3 models, and that of
//! SentencePiece, as in files of Gemma, Llama 2 and Mistral models.
//!
//! The vocabulary stays in the file's bytes. The heap holds 12 bytes per merge, half a byte per token, and up to
//! 28 bytes per byte of an added token: 1.9 MB for Qwen3's 151,669 tokens, 28 kB for a vocabulary of 2,048 with 26 added ones. `llama-bpe`
//! takes 6 more bytes per token. Encoding takes `n log n` steps for any text and does not recurse.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use crate::error::{Error, Name, Result};
use crate::gguf::{Gguf, Metadata};
use crate::limits::Limits;

mod added;
mod alphabet;
mod automaton;
mod byte_level;
mod decode;
mod merge;
#[cfg(feature = "nfc")]
mod nfc;
#[cfg(feature = "nfc")]
mod nfc_tables;
#[cfg(feature = "sentencepiece")]
mod sentencepiece;
mod split;
mod token_kind;
mod unicode;
mod unicode_tables;
mod vocab;

pub use alphabet::TokenBytes;
pub use decode::Decoder;
#[cfg(feature = "nfc")]
pub use nfc::nfc;
pub use split::Pre;
pub use token_kind::{Special, TokenKind};

use added::Added;
use byte_level::ByteLevel;
use merge::{ByteTokens, Merger, Merges};
#[cfg(feature = "sentencepiece")]
use sentencepiece::SentencePiece;
use split::Split;
use vocab::{MAX_TOKENS, MERGES, PRE, SCORES, TOKENS, TYPES, Texts};

/// What a file may have as `tokenizer.ggml.model`.
const MODELS: &str = if cfg!(feature = "sentencepiece") {
    "gpt2, which is byte-level BPE, or llama, which is SentencePiece's"
} else {
    "gpt2, which is byte-level BPE"
};

/// Names of control tokens that end a reply whatever the file states.
pub const END_NAMES: [&str; 6] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>"];

/// Names of tokens that are part of the texts of replies, also if they are control tokens: what reads a reply knows calls and
/// thoughts by them.
const SHOWN_NAMES: &[&str] = if cfg!(feature = "tools") {
    &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<tool_call>", "</tool_call>", "<think>", "</think>"]
} else {
    &[]
};

/// Options for encoding a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeOptions {
    /// Which added tokens the text may form.
    pub special: Special,
    /// Whether text is normalized to Unicode form NFC first, as Hugging Face tokenizers do, so that an `é`
    /// typed in two parts is the one the model knows. Off by default, as in llama.cpp. Without effect on SentencePiece.
    #[cfg(feature = "nfc")]
    pub nfc: bool,
}

impl EncodeOptions {
    /// Options that allow these added tokens, without normalization.
    pub const fn new(special: Special) -> Self {
        EncodeOptions {
            special,
            #[cfg(feature = "nfc")]
            nfc: false,
        }
    }

    /// Sets [`EncodeOptions::nfc`](#structfield.nfc).
    #[cfg(feature = "nfc")]
    pub fn with_nfc(mut self, nfc: bool) -> Self {
        self.nfc = nfc;
        self
    }

    /// The same options for text that may not form added tokens.
    pub(crate) fn plain(mut self) -> Self {
        self.special = Special::Text;
        self
    }
}

/// Memory for encoding, kept from text to text.
#[derive(Debug, Default)]
pub struct EncodeBuffers {
    merger: Merger,
    spelled: String,
}

impl EncodeBuffers {
    /// Enough for texts of `bytes`: encoding them then allocates nothing, unless they are normalized first.
    pub fn with_capacity(bytes: usize) -> Self {
        // A byte is spelled in two bytes at most.
        let spelled = String::with_capacity(bytes.saturating_mul(2));
        // SentencePiece may add a space.
        EncodeBuffers { merger: Merger::with_capacity(bytes.saturating_add(1)), spelled }
    }
}

/// A vocabulary as a GGUF file stores it.
#[derive(Clone, Copy, Debug)]
pub struct Vocabulary<'a> {
    /// `tokenizer.ggml.pre`; of no effect if there are scores.
    pub pre: &'a str,
    /// `tokenizer.ggml.tokens`: each a little-endian 64-bit length and that many bytes.
    pub tokens: &'a [u8],
    /// Number of tokens.
    pub token_count: usize,
    /// `tokenizer.ggml.merges`, in the same layout.
    pub merges: &'a [u8],
    /// Number of merges.
    pub merge_count: usize,
    /// `tokenizer.ggml.scores`: a little-endian `f32` for each token. With scores the vocabulary is one of SentencePiece, and
    /// its merges are of no effect; without, it is byte-level.
    pub scores: Option<&'a [u8]>,
    /// `tokenizer.ggml.token_type`: a little-endian `i32` for each token.
    pub types: Option<&'a [u8]>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`, the end of a turn if that is not `eos`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`, the end of a message after which the turn goes on elsewhere, such as in a tool.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: bool,
    /// `tokenizer.ggml.add_space_prefix`, if there are scores: whether a space goes before a text.
    pub add_space_prefix: bool,
}

/// A BPE tokenizer over the vocabulary of a file.
#[derive(Clone, Debug)]
pub struct Tokenizer<'a> {
    texts: Texts<'a>,
    merges: Merges,
    added: Added,
    /// The token of each byte: in byte-level vocabularies of every byte, else of those of characters without a token.
    bytes: ByteTokens,
    kind: Kind,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    /// Tokens that end a reply.
    ends: Vec<u32>,
    /// Control tokens that are shown in replies.
    shown: Vec<u32>,
    /// Bytes of the longest token.
    longest: usize,
}

/// How texts are cut into symbols, and tokens spelled.
#[derive(Clone, Debug)]
enum Kind {
    ByteLevel(ByteLevel),
    #[cfg(feature = "sentencepiece")]
    SentencePiece(SentencePiece),
}

impl<'a> Tokenizer<'a> {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// Those of [`Tokenizer::new`], and for a `tokenizer.ggml.*` key that is missing or of another type.
    pub fn from_gguf(gguf: &Gguf<'a>) -> Result<Tokenizer<'a>> {
        Tokenizer::from_metadata(gguf.metadata())
    }

    /// The tokenizer described by a file's metadata.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`].
    pub fn from_metadata(metadata: &Metadata<'a>) -> Result<Tokenizer<'a>> {
        let model_key = "tokenizer.ggml.model";
        let model = metadata.need(model_key, metadata.str(model_key)?)?;
        let sentencepiece = cfg!(feature = "sentencepiece") && model == "llama";
        if model != "gpt2" && !sentencepiece {
            let (key, found) = (Name::new(model_key), Name::new(model));
            return Err(error!(Unsupported { key, found, expected: MODELS }));
        }
        let tokens = metadata.need(TOKENS, metadata.strings(TOKENS)?)?;
        let (mut pre, mut adds_bos, mut merges, mut scores) = ("", true, None, None);
        if sentencepiece {
            metadata.f32s(SCORES)?; // checks the type
            scores = Some(metadata.need(SCORES, metadata.array(SCORES)?)?.bytes());
        } else {
            pre = metadata.need(PRE, metadata.str(PRE)?)?;
            adds_bos = Pre::from_name(pre).is_some_and(Pre::adds_bos);
            merges = Some(metadata.need(MERGES, metadata.strings(MERGES)?)?);
        }
        metadata.i32s(TYPES)?; // checks the type
        // Some files have -1 for a token that there is not.
        let special = |key| match metadata.get(key).and_then(|value| value.integer()) {
            Some(..0) => Ok(None),
            _ => metadata.u32(key),
        };
        Tokenizer::new(&Vocabulary {
            pre,
            tokens: tokens.bytes(),
            token_count: tokens.len(),
            merges: merges.as_ref().map_or(&[], |merges| merges.bytes()),
            merge_count: merges.as_ref().map_or(0, |merges| merges.len()),
            scores,
            types: metadata.array(TYPES)?.map(|types| types.bytes()),
            bos: special("tokenizer.ggml.bos_token_id")?,
            eos: special("tokenizer.ggml.eos_token_id")?,
            eot: special("tokenizer.ggml.eot_token_id")?,
            eom: special("tokenizer.ggml.eom_token_id")?,
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos),
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        })
    }

    /// Validates and indexes a vocabulary.
    ///
    /// # Errors
    /// If `pre` is unknown; if arrays end early or differ in length; if a token is longer than
    /// [`Limits::token`]; if two tokens are equal; if a byte of assigned characters has no token; if a merge
    /// does not name two tokens that make a third; if a score is not a number, or the space has no token; if a special id that
    /// texts begin or end with is outside the vocabulary; others are ignored then. An empty token is never formed and has no text.
    pub fn new(source: &Vocabulary<'a>) -> Result<Tokenizer<'a>> {
        let count = source.token_count as u64;
        if count > MAX_TOKENS {
            return Err(error!(Limit { what: "number of tokens", found: count, max: MAX_TOKENS }));
        }
        let limits = Limits::DEFAULT;
        let texts = Texts::new(source.tokens, source.token_count, "token", limits.token)?;
        let types = source.types.map(|raw| raw.as_chunks::<4>().0);
        if let Some(types) = types
            && types.len() != texts.len()
        {
            return Err(error!(Length { what: TYPES, expected: count, found: types.len() as u64 }));
        }
        let type_of = |id: usize| types.and_then(|t| t.get(id)).map_or(1, |raw| i32::from_le_bytes(*raw));
        let ends = [source.eos, source.eot, source.eom];
        let (added, merges, bytes, kind) = match source.scores {
            None => {
                let merges = (source.merges, source.merge_count);
                let (added, merges, bytes, kind) = byte_level::load(source.pre, merges, &texts, &type_of)?;
                (added, merges, bytes, Kind::ByteLevel(kind))
            }
            #[cfg(feature = "sentencepiece")]
            Some(scores) => {
                let is_special = |id: usize| [source.bos].iter().chain(&ends).any(|s| *s == Some(id as u32));
                let type_of = |id| if is_special(id) { sentencepiece::CONTROL } else { type_of(id) };
                let (added, merges, bytes, kind) =
                    sentencepiece::load(scores, source.add_space_prefix, &texts, &type_of)?;
                (added, merges, bytes, Kind::SentencePiece(kind))
            }
            #[cfg(not(feature = "sentencepiece"))]
            Some(_) => {
                let (key, found) = (Name::new(SCORES), Name::new("there"));
                return Err(error!(Unsupported { key, found, expected: MODELS }));
            }
        };

        let is_known = |id: &u32| (*id as usize) < texts.len();
        for (id, is_used) in [(source.bos, source.add_bos), (source.eos, source.add_eos)] {
            if let Some(id) = id.filter(|id| is_used && !is_known(id)) {
                return Err(error!(Token { id, vocab: texts.len() as u32 }));
            }
        }
        let (given, mut ends) = (ends.map(|id| id.filter(is_known)), Vec::new());
        let named = END_NAMES.iter().map(|name| added.find(&texts, name.as_bytes()));
        for id in given.into_iter().chain(named).flatten() {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        let shown = SHOWN_NAMES.iter().filter_map(|name| added.find(&texts, name.as_bytes()));
        let shown = shown.filter(|id| added.kind(*id) == TokenKind::Control).collect();
        let longest = texts.iter().map(<[u8]>::len).max().unwrap_or(0);
        let Vocabulary { add_bos, add_eos, .. } = *source;
        let [bos, eos] = [source.bos, source.eos].map(|id| id.filter(is_known));
        Ok(Tokenizer { texts, merges, added, bytes, kind, bos, eos, add_bos, add_eos, ends, shown, longest })
    }

    /// The same tokenizer with a copy of the vocabulary's texts, so that the original bytes can be freed.
    pub fn into_owned(self) -> Tokenizer<'static> {
        let Tokenizer { texts, .. } = self;
        Tokenizer { texts: texts.into_owned(), ..self }
    }

    /// Appends the ids of `text` to `out`. Nothing is added before or after it.
    pub fn encode(&self, text: &str, special: Special, out: &mut Vec<u32>) {
        self.encode_with(text, &EncodeOptions::new(special), out);
    }

    /// Appends the ids of `text` to `out`.
    pub fn encode_with(&self, text: &str, options: &EncodeOptions, out: &mut Vec<u32>) {
        self.encode_in(text, options, &mut EncodeBuffers::default(), out);
    }

    /// As [`Tokenizer::encode_with`], with memory that is kept from call to call.
    pub fn encode_in(
        &self,
        text: &str,
        options: &EncodeOptions,
        buffers: &mut EncodeBuffers,
        out: &mut Vec<u32>,
    ) {
        let special = self.allowed(options.special);
        let mut from = 0;
        for (at, len, id) in self.added.matches(text.as_bytes(), special) {
            // Added tokens are whole characters, so there is such a part.
            self.encode_plain(text.get(from..at).unwrap_or_default(), options, buffers, out);
            out.push(id);
            from = at + len;
        }
        self.encode_plain(text.get(from..).unwrap_or_default(), options, buffers, out);
    }

    /// Offset, length and id of each added token in trusted text. Those that all texts form, the user-defined ones of
    /// SentencePiece, are not among them.
    pub(crate) fn formed<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, usize, u32)> + 't {
        let by_all = self.allowed(Special::Text) == Special::UserDefined;
        let found = self.added.matches(text.as_bytes(), Special::Parse);
        found.filter(move |(_, _, id)| !by_all || self.kind(*id) == TokenKind::Control)
    }

    /// Which added tokens a text forms: the user-defined ones of SentencePiece (line breaks, for example) are text.
    fn allowed(&self, special: Special) -> Special {
        match (&self.kind, special) {
            #[cfg(feature = "sentencepiece")]
            (Kind::SentencePiece(_), Special::Text) => Special::UserDefined,
            (_, special) => special,
        }
    }

    fn encode_plain(
        &self,
        text: &str,
        options: &EncodeOptions,
        EncodeBuffers { merger, spelled }: &mut EncodeBuffers,
        out: &mut Vec<u32>,
    ) {
        match &self.kind {
            Kind::ByteLevel(kind) => {
                #[cfg(feature = "nfc")]
                let text = &*if options.nfc { nfc(text) } else { text.into() };
                #[cfg(not(feature = "nfc"))]
                let _ = options;
                for piece in Split::new(text, kind.pre) {
                    let whole = kind.whole_token(&self.texts, piece, spelled);
                    match whole.filter(|id| self.kind(*id) == TokenKind::Normal) {
                        Some(id) => out.push(id),
                        None => merger.encode(&self.merges, &self.bytes, piece.as_bytes(), out),
                    }
                }
            }
            #[cfg(feature = "sentencepiece")]
            Kind::SentencePiece(kind) => kind.encode(&self.merges, &self.bytes, text, merger, out),
        }
    }

    /// The bytes of token `id`, or `None` if there is no such token. They need not be UTF-8: a character may
    /// be spread over several tokens.
    pub fn token_bytes(&self, id: u32) -> Option<TokenBytes<'_>> {
        let text = self.texts.get(id as usize)?;
        Some(match (self.kind(id), &self.kind) {
            (TokenKind::Control | TokenKind::UserDefined, _) => TokenBytes::literal(text),
            (TokenKind::Normal, Kind::ByteLevel(_)) => TokenBytes::spelled(text),
            #[cfg(feature = "sentencepiece")]
            (TokenKind::Normal, Kind::SentencePiece(_)) => match sentencepiece::byte_of(text) {
                Some(byte) if self.bytes[usize::from(byte)] == id => TokenBytes::byte(byte),
                _ => TokenBytes::sentence(text),
            },
        })
    }

    /// The token as the file spells it (`Ġhello`).
    pub fn token_text(&self, id: u32) -> Option<&[u8]> {
        self.texts.get(id as usize)
    }

    /// The token with exactly these bytes. Searches the whole vocabulary, unless it is an added token.
    pub fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.is_empty() {
            return None;
        }
        // In SentencePiece's vocabularies a byte may be a character with a token of its own, too, which texts are made of.
        let of_byte = |id: u32| matches!(self.kind, Kind::ByteLevel(_)) || !self.bytes.contains(&id);
        let is = |id: &u32| self.token_bytes(*id).is_some_and(|text| text.eq(bytes.iter().copied()));
        let all = 0..self.texts.len() as u32;
        let found = self.added.find(&self.texts, bytes);
        found.or_else(|| all.clone().filter(is).find(|id| of_byte(*id))).or_else(|| all.clone().find(is))
    }

    /// The control or user-defined token with this text.
    pub fn added_id(&self, text: &str) -> Option<u32> {
        self.added.find(&self.texts, text.as_bytes())
    }

    /// The kind of token `id`.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.added.kind(id)
    }

    /// Whether a token is part of the texts of replies: all but control tokens, and of those the ones that begin and end tool
    /// calls and thoughts.
    pub fn is_shown(&self, id: u32) -> bool {
        self.kind(id) != TokenKind::Control || self.shown.contains(&id)
    }

    /// The token that texts start with, if any: from `tokenizer.ggml.add_bos_token`, or without that key for
    /// `llama-bpe` and SentencePiece.
    pub fn leading_bos(&self) -> Option<u32> {
        self.bos.filter(|_| self.add_bos)
    }

    /// The token that whole texts end with, such as those that are embedded, if any: from
    /// `tokenizer.ggml.add_eos_token`. Not for texts that the model continues, nor for conversations.
    pub fn trailing_eos(&self) -> Option<u32> {
        self.eos.filter(|_| self.add_eos)
    }

    /// The tokens of a whole text, as it is embedded: between [`Tokenizer::leading_bos`] and [`Tokenizer::trailing_eos`],
    /// with control tokens as plain text. An empty text, which has no embedding, gets no end.
    pub fn encode_whole(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::from_iter(self.leading_bos());
        self.encode(text, Special::UserDefined, &mut ids);
        if !text.is_empty() {
            ids.extend(self.trailing_eos());
        }
        ids
    }

    /// `tokenizer.ggml.bos_token_id`.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// `tokenizer.ggml.eos_token_id`.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether `id` ends a reply: `eos`, the end of a turn or of a message, or one of [`END_NAMES`].
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens for which [`Tokenizer::is_end`] holds.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Number of tokens. A model may have more rows, for padding.
    pub fn vocab_size(&self) -> usize {
        self.texts.len()
    }

    /// The pre-tokenizer, which SentencePiece does not have.
    pub fn pre(&self) -> Option<Pre> {
        match &self.kind {
            Kind::ByteLevel(kind) => Some(kind.pre),
            #[cfg(feature = "sentencepiece")]
            Kind::SentencePiece(_) => None,
        }
    }

    /// Whether a text is encoded with a space before it, which [`Decoder::whole`] takes off.
    pub fn adds_space(&self) -> bool {
        match &self.kind {
            Kind::ByteLevel(_) => false,
            #[cfg(feature = "sentencepiece")]
            Kind::SentencePiece(kind) => kind.add_space_prefix,
        }
    }

    /// Heap memory held, in bytes.
    pub fn memory(&self) -> usize {
        let kind = match &self.kind {
            Kind::ByteLevel(kind) => kind.memory(),
            #[cfg(feature = "sentencepiece")]
            Kind::SentencePiece(kind) => kind.memory(),
        };
        self.texts.memory() + self.merges.memory() + self.added.memory() + self.ends.capacity() * 4 + kind
    }
}

#[cfg(test)]
mod tests;
