//! Byte-level BPE: a text's bytes, spelled in GPT-2's alphabet, are merged within pieces of it.
#![forbid(unsafe_code)]

use alloc::string::String;

use super::added::Added;
use super::alphabet::{may_lack_token, spell};
use super::merge::{ByteTokens, Merges, NONE};
use super::split::Pre;
use super::token_kind::TokenKind;
use super::vocab::{Index, PRE, TOKENS, Table, Texts};
use crate::error::{Error, Name, Result};
use crate::limits::Limits;

/// What a byte-level tokenizer has beside merges and the tokens of bytes.
#[derive(Clone, Debug)]
pub(super) struct ByteLevel {
    /// Tokens by text, if pieces that are tokens are not merged.
    whole: Option<Table>,
    pub(super) pre: Pre,
    /// Bytes of the longest token.
    longest: usize,
}

/// Validates and indexes the tokens and merges of a vocabulary.
pub(super) fn load(
    name: &str,
    merges: (&[u8], usize),
    texts: &Texts<'_>,
    type_of: &dyn Fn(usize) -> i32,
) -> Result<(Added, Merges, ByteTokens, ByteLevel)> {
    let pre = Pre::from_name(name).ok_or(error!(Unsupported {
        key: Name::new(PRE),
        found: Name::new(name),
        expected: "qwen2, qwen35, smollm, llama-bpe, smaug-bpe or gpt-2",
    }))?;
    let added = Added::new(texts, type_of)?;
    let most = 2 * Limits::DEFAULT.token + 1;
    let merge_texts = Texts::new(merges.0, merges.1, "merge", most)?;
    let mut index = Index::new(texts, merges.1)?;
    let mut bytes = [NONE; 256];
    for (byte, id) in (0..=255).zip(bytes.iter_mut()) {
        let mut utf8 = [0; 4];
        let spelled = spell(byte).encode_utf8(&mut utf8).as_bytes();
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
    let longest = texts.iter().map(<[u8]>::len).max().unwrap_or(0);
    Ok((added, merges, bytes, ByteLevel { whole, pre, longest }))
}

impl ByteLevel {
    /// The token equal to a piece, if such pieces are not merged; `spelled` is a buffer.
    pub(super) fn whole_token(&self, texts: &Texts<'_>, piece: &str, spelled: &mut String) -> Option<u32> {
        let table = self.whole.as_ref()?;
        if piece.len() > self.longest {
            return None;
        }
        spelled.clear();
        spelled.extend(piece.bytes().map(spell));
        table.find(texts, spelled.as_bytes())
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.whole.as_ref().map_or(0, Table::memory)
    }
}
