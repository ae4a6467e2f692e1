//! From text to tokens and back.

use crate::error::{JsResult, js};
use shohin_core::tokenizer::{Decoder, Special, Tokenizer};
use shohin_core::{Error, Result};

pub(crate) fn tokenize(tokenizer: &Tokenizer<'_>, text: &str, special: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, if special { Special::Parse } else { Special::Text }, &mut ids);
    ids
}

fn decode(tokenizer: &Tokenizer<'_>, ids: &[u32]) -> Result<String> {
    let vocab = tokenizer.vocab_size();
    let mut decoder = Decoder::new(tokenizer).show_control(true);
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

pub(crate) fn detokenize(tokenizer: &Tokenizer<'_>, ids: &[u32]) -> JsResult<String> {
    decode(tokenizer, ids).map_err(js)
}

pub(crate) fn token_bytes(tokenizer: &Tokenizer<'_>, id: u32) -> Vec<u8> {
    tokenizer.token_bytes(id).into_iter().flatten().collect()
}

/// What models on the CPU and on a GPU know of their language, in the same words.
macro_rules! know_words {
    ($model:ident) => {
        #[wasm_bindgen]
        impl $model {
            /// Text to token ids; with `special`, control tokens in the text become themselves.
            pub fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
                crate::words::tokenize(&self.loaded.tokenizer, text, special)
            }

            /// Token ids to text, control tokens included.
            ///
            /// # Errors
            /// `token` for an id that is not in the vocabulary.
            pub fn detokenize(&self, ids: &[u32]) -> JsResult<String> {
                crate::words::detokenize(&self.loaded.tokenizer, ids)
            }

            /// The bytes of a token's text.
            pub fn token_bytes(&self, id: u32) -> Vec<u8> {
                crate::words::token_bytes(&self.loaded.tokenizer, id)
            }

            /// Token ids of a conversation up to where the model's reply begins.
            ///
            /// # Errors
            /// If the vocabulary has no control tokens for a chat, or there are tools and the model's template has none.
            pub fn encode_chat(&self, conversation: &Conversation, thinking: bool) -> JsResult<Vec<u32>> {
                let loaded = &*self.loaded;
                conversation
                    .with(loaded.facts.template, thinking, |messages, options| {
                        shohin_core::chat::encode(&loaded.tokenizer, messages, options)
                    })
                    .map_err(js)
            }
        }
    };
}
pub(crate) use know_words;
