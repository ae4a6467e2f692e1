//! Byte-level BPE vocabularies of any size, with the control tokens of Qwen3 at the end.

use std::collections::HashSet;

use shohin_core::gguf::{Gguf, GgufWriter};
use shohin_core::{Error, Result};

use crate::Random;

/// The 26 tokens after Qwen3's 151,643 ordinary ones, and their types: 3 control, 4 user-defined.
pub const ADDED: [(&str, i32); 26] = [
    ("<|endoftext|>", 3),
    ("<|im_start|>", 3),
    ("<|im_end|>", 3),
    ("<|object_ref_start|>", 3),
    ("<|object_ref_end|>", 3),
    ("<|box_start|>", 3),
    ("<|box_end|>", 3),
    ("<|quad_start|>", 3),
    ("<|quad_end|>", 3),
    ("<|vision_start|>", 3),
    ("<|vision_end|>", 3),
    ("<|vision_pad|>", 3),
    ("<|image_pad|>", 3),
    ("<|video_pad|>", 3),
    ("<tool_call>", 4),
    ("</tool_call>", 4),
    ("<|fim_prefix|>", 4),
    ("<|fim_middle|>", 4),
    ("<|fim_suffix|>", 4),
    ("<|fim_pad|>", 4),
    ("<|repo_name|>", 4),
    ("<|file_sep|>", 4),
    ("<tool_response>", 4),
    ("</tool_response>", 4),
    ("<think>", 4),
    ("</think>", 4),
];

/// Number of tokens in Qwen3's vocabulary in Bonsai files.
pub const QWEN3: usize = 151_669;

/// A vocabulary as stored in GGUF metadata.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// The tokens, spelled in GPT-2's byte alphabet.
    pub tokens: Vec<String>,
    /// 1 normal, 3 control, 4 user-defined.
    pub types: Vec<i32>,
    /// Pairs, separated by a space, highest priority first.
    pub merges: Vec<String>,
    /// The index of the first added token.
    pub added: usize,
}

/// GPT-2's printable character for each byte, in the order of its vocabulary.
fn alphabet() -> Vec<char> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let shown = (0..256).filter(|b| printable(*b));
    let others = (256..256 + (0..256).filter(|b| !printable(*b)).count() as u32).collect::<Vec<_>>();
    shown.chain(others).filter_map(char::from_u32).collect()
}

impl Vocabulary {
    /// `size` tokens: the 256 bytes, random merges, and [`ADDED`]. At least 282.
    pub fn synthetic(size: usize, seed: u64) -> Vocabulary {
        assert!(size >= 256 + ADDED.len());
        let mut random = Random::new(seed);
        let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
        let mut known: HashSet<String> = tokens.iter().cloned().collect();
        let mut merges = Vec::new();
        // Letters and the space; then the results of merges.
        let mut parts: Vec<String> = ('a'..='z').map(String::from).collect();
        parts.push("\u{120}".into());
        while tokens.len() < size - ADDED.len() {
            // From the short ones, as most combinations of long ones would be too long.
            let short = parts.len().min(3000);
            let a = &parts[random.below(short)];
            let b = &parts[random.below(short)];
            let joined = format!("{a}{b}");
            // A space may only begin a word, as in real vocabularies.
            if joined.chars().count() > 16 || b.starts_with('\u{120}') || !known.insert(joined.clone()) {
                continue;
            }
            merges.push(format!("{a} {b}"));
            parts.push(joined.clone());
            tokens.push(joined);
        }
        Vocabulary::with_added(tokens, merges)
    }

    /// Qwen3's own vocabulary, from the metadata of any file with Qwen2's or Qwen3's.
    pub fn qwen3(gguf: &Gguf<'_>) -> Result<Vocabulary> {
        let text = |s: &[u8]| String::from_utf8_lossy(s).into_owned();
        let strings = |key| -> Result<Vec<String>> {
            let metadata = gguf.metadata();
            Ok(metadata.need(key, metadata.strings(key)?)?.iter().map(text).collect())
        };
        let mut tokens = strings("tokenizer.ggml.tokens")?;
        let merges = strings("tokenizer.ggml.merges")?;
        let ordinary = QWEN3 - ADDED.len();
        if tokens.len() < ordinary || merges.len() != ordinary - 256 {
            return Err(Error::Length {
                what: "Qwen3 vocabulary",
                expected: ordinary as u64,
                found: tokens.len() as u64,
            });
        }
        tokens.truncate(ordinary);
        Ok(Vocabulary::with_added(tokens, merges))
    }

    fn with_added(mut tokens: Vec<String>, merges: Vec<String>) -> Vocabulary {
        let added = tokens.len();
        tokens.extend(ADDED.iter().map(|a| a.0.into()));
        let mut types = vec![1; added];
        types.extend(ADDED.iter().map(|a| a.1));
        Vocabulary { tokens, types, merges, added }
    }

    /// Writes the keys of a tokenizer.
    pub fn write(&self, out: &mut GgufWriter) -> Result<()> {
        out.set("tokenizer.ggml.model", "gpt2")?;
        out.set("tokenizer.ggml.pre", "qwen2")?;
        out.set_strings("tokenizer.ggml.tokens", &self.tokens)?;
        out.set_array("tokenizer.ggml.token_type", &self.types)?;
        out.set_strings("tokenizer.ggml.merges", &self.merges)?;
        out.set("tokenizer.ggml.eos_token_id", self.added as u32 + 2)?;
        out.set("tokenizer.ggml.padding_token_id", self.added as u32)?;
        out.set("tokenizer.ggml.bos_token_id", self.added as u32)?;
        out.set("tokenizer.ggml.add_bos_token", false)
    }
}
