//! Token ids to text, token by token, always in whole characters.
#![forbid(unsafe_code)]

use alloc::string::String;

use super::{TokenKind, Tokenizer};

/// Streaming decoder from tokens to text.
///
/// Bytes of an incomplete character are held until the next token completes it. Invalid bytes become U+FFFD,
/// exactly as in [`String::from_utf8_lossy`] over all bytes. Allocates only on creation.
#[derive(Clone, Debug)]
pub struct Decoder<'t, 'a> {
    tokenizer: &'t Tokenizer<'a>,
    show_control: bool,
    /// Whether the next byte of text is the space before a text, if it is a space.
    at_start: bool,
    /// An incomplete character, of `held` bytes.
    partial: [u8; 4],
    held: usize,
    text: String,
}

impl<'t, 'a> Decoder<'t, 'a> {
    /// A decoder that leaves control tokens out.
    pub fn new(tokenizer: &'t Tokenizer<'a>) -> Self {
        // Each byte of a token and each held byte becomes at most one U+FFFD of three bytes.
        let text = String::with_capacity(3 * (tokenizer.longest + 4));
        Decoder { tokenizer, show_control: false, at_start: false, partial: [0; 4], held: 0, text }
    }

    /// Sets whether control tokens appear by name (`<|im_end|>`).
    pub fn show_control(mut self, show: bool) -> Self {
        self.show_control = show;
        self
    }

    /// Takes the tokens for a whole text, not for one that goes on from another: if encoding adds a space before texts
    /// ([`Tokenizer::adds_space`]), it is left out.
    pub fn whole(mut self) -> Self {
        self.at_start = self.tokenizer.adds_space();
        self
    }

    /// Takes a token and returns the text that it completes, often empty. An id outside the vocabulary has no
    /// text.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if (self.show_control || self.tokenizer.kind(id) != TokenKind::Control)
            && let Some(bytes) = self.tokenizer.token_bytes(id)
        {
            for byte in bytes {
                if !core::mem::take(&mut self.at_start) || byte != b' ' {
                    self.push_byte(byte);
                }
            }
        }
        &self.text
    }

    /// Ends the text: returns U+FFFD if a character was incomplete. The decoder can be used again.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if self.held > 0 {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.held = 0;
        }
        &self.text
    }

    #[cfg(test)]
    pub(super) fn text_capacity(&self) -> usize {
        self.text.capacity()
    }

    fn push_byte(&mut self, byte: u8) {
        if let Some(free) = self.partial.get_mut(self.held) {
            *free = byte;
            self.held += 1;
        }
        while self.held > 0 {
            let bytes = self.partial.get(..self.held).unwrap_or(&[]);
            let used = match core::str::from_utf8(bytes) {
                Ok(text) => {
                    self.text.push_str(text);
                    self.held
                }
                Err(e) => match e.error_len() {
                    None => return, // may still be completed
                    Some(wrong) => {
                        self.text.push(char::REPLACEMENT_CHARACTER);
                        wrong
                    }
                },
            };
            self.partial.copy_within(used..self.held, 0);
            self.held -= used;
        }
    }
}
