//! Byte-level BPE: a text's bytes, spelled in GPT-2's alphabet, are merged within pieces of it.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use super::added::Added;
use super::alphabet;
use super::merge::{ByteTokens, Merger, Merges, NONE};
use super::split::{Pre, Split};
use super::token_kind::TokenKind;
use super::vocab::{Index, Table, Texts};
use super::{Kind, PRE, TOKENS, Tokenizer, Vocabulary};
use crate::error::{Error, Name, Result};
use crate::limits::Limits;

/// What a byte-level tokenizer has beside merges and the tokens of bytes.
#[derive(Clone, Debug)]
pub(super) struct ByteLevel {
    /// Tokens by text, if pieces that are tokens are not merged.
    whole: Option<Table>,
    pub(super) pre: Pre,
}

/// Validates and indexes the tokens and merges of a vocabulary.
pub(super) fn load(
    source: &Vocabulary<'_>,
    texts: &Texts<'_>,
    type_of: &dyn Fn(usize) -> i32,
) -> Result<(Added, Merges, ByteTokens, Kind)> {
    let pre = Pre::from_name(source.pre).ok_or(error!(Unsupported {
        key: Name::new(PRE),
        found: Name::new(source.pre),
        expected: "qwen2, qwen35, smollm, llama-bpe, smaug-bpe or gpt-2",
    }))?;
    let added = Added::new(texts, type_of)?;
    let most = 2 * Limits::DEFAULT.token + 1;
    let merge_texts = Texts::new(source.merges, source.merge_count, "merge", most)?;
    let mut index = Index::new(texts, source.merge_count)?;
    let mut bytes = [NONE; 256];
    for (byte, id) in (0..=255).zip(bytes.iter_mut()) {
        let mut utf8 = [0; 4];
        let spelled = alphabet::spell(byte).encode_utf8(&mut utf8).as_bytes();
        match index.find([spelled, &[]])? {
            Some(found) if added.kind(found) == TokenKind::Normal => *id = found,
            _ if may_lack_token(byte) => {}
            _ => {
                return Err(error!(Unsupported {
                    key: Name::new(TOKENS),
                    found: Name::new(spelled),
                    expected: "a normal token for every byte, this one too",
                }));
            }
        }
    }
    let locked = |id| added.kind(id) != TokenKind::Normal;
    let merges = Merges::new(&merge_texts, &mut index, texts, locked)?;
    let whole = pre.keeps_whole_tokens().then(|| index.into_table());
    Ok((added, merges, bytes, Kind::ByteLevel(ByteLevel { whole, pre })))
}

impl ByteLevel {
    /// Appends the tokens of `text`; `spelled` is a buffer.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer<'_>,
        text: &str,
        merger: &mut Merger,
        spelled: &mut String,
        out: &mut Vec<u32>,
    ) {
        for piece in Split::new(text, self.pre) {
            if let Some(id) = self.whole_token(tokenizer, piece, spelled) {
                out.push(id);
                continue;
            }
            merger.encode(&tokenizer.merges, &tokenizer.bytes, piece.as_bytes(), out);
        }
    }

    /// The token equal to a piece, if such pieces are not merged.
    fn whole_token(&self, tokenizer: &Tokenizer<'_>, piece: &str, spelled: &mut String) -> Option<u32> {
        let table = self.whole.as_ref()?;
        if piece.len() > tokenizer.longest {
            return None;
        }
        spelled.clear();
        spelled.extend(piece.bytes().map(alphabet::spell));
        let found = table.find(&tokenizer.texts, spelled.as_bytes());
        found.filter(|id| tokenizer.kind(*id) == TokenKind::Normal)
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.whole.as_ref().map_or(0, Table::memory)
    }
}

/// Whether a vocabulary may lack a token for `byte` (SmolLM2's does): control characters that are not white
/// space, and bytes that do not occur in the UTF-8 of any assigned character. Encoding leaves such bytes out.
pub(super) const fn may_lack_token(byte: u8) -> bool {
    match byte {
        b'\t'..=b'\r' => false,
        0x00..=0x1F | 0x7F => true,
        0xC0 | 0xC1 | 0xF1 | 0xF2 | 0xF5..=0xFF => true,
        _ => false,
    }
}
