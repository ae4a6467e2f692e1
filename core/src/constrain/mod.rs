//! Replies that are always JSON, or satisfy a JSON Schema, a regular expression or a grammar, or are one of some texts.
//!
//! A [`Grammar`] defines the allowed texts, a [`Vocabulary`] holds the texts of the tokens, and a
//! [`Constraint`] follows a reply: before a token is chosen it rules out those that no text of the grammar
//! continues with, and the end of the reply until the text is complete. Pass one to
//! [`Generation::constrain`](crate::generate::Generation::constrain).
//!
//! Near the token limit of a reply, tokens that would leave no room to complete the text are ruled out, so
//! that a reply is cut off (with reason `length` or `context_full`) only if the limit was below
//! [`Constraint::shortest`] from the start.
//!
//! [`Grammar::tool_calls`] constrains tool calls to their schemas, and [`Grammar::after_thoughts`] allows
//! reasoning before the text.
//!
//! # Output format
//!
//! - There is no white space, unless [`Whitespace::Allowed`] asks for it; tool calls may have it, as models
//!   are trained to write it there.
//! - Numbers have at most 15 digits and exponents at most two, which every reader reads alike; those of `const` and
//!   `enum` are written as in the schema.
//! - Properties come in the order of the schema, each at most once: those of `properties`, those that only
//!   `required` names, and then all others.
//! - Values nest at most 64 containers deep.
//! - While very many alternatives are open (20 patterns, say), text is written in tokens of one byte.
//!
//! # Supported JSON Schema
//!
//! `type` (also lists), `properties`, `required`, `additionalProperties`, `items` (one schema),
//! `prefixItems`, `minItems`, `maxItems`, `minLength`, `maxLength`, `pattern`, `format`, `minimum`,
//! `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `enum`, `const`, `anyOf`, `allOf` of patterns or of one
//! schema, `oneOf` if types, constants or a required property distinguish the schemas, and `$ref` to schemas
//! of the same text, recursion included. Titles, descriptions and the like are ignored. Everything else is
//! refused with an error that names the place in the schema.
//!
//! A schema without `type` means the types that its keywords apply to, and one with `properties` but without
//! `additionalProperties` allows no others: the grammar then has fewer texts than the schema, never more.
#![forbid(unsafe_code)]

mod characters;
mod decimal;
mod elements;
mod grammar;
mod matcher;
mod pattern;
mod plain;
mod quoted;
mod schema;
mod spelling;
mod vocabulary;
mod writable;

pub use grammar::{Grammar, NO_VALUE, Whitespace};
pub(crate) use schema::Around;
pub(crate) use spelling::Spelling;
pub use vocabulary::Vocabulary;

use crate::error::Result;
use crate::sync::{Arc, Shareable};
use alloc::boxed::Box;
use alloc::vec::Vec;
use matcher::Matcher;
use pattern::NEVER;
use vocabulary::Sorted;

/// Number of cached masks.
const REMEMBERED: usize = 16;

/// Maximum work of finding the tokens that can follow a state, in units of [`Matcher::work`]. With 151,669 tokens that is enough for
/// 16 choices open in all of them.
const MAX_WORK: u64 = 1 << 24;

/// Tokens that can follow a state.
#[derive(Clone, Debug, Default)]
struct Mask {
    state: Vec<u32>,
    /// One bit per token.
    tokens: Vec<u32>,
    /// The most by which a token increases the number of tokens that complete the text.
    growth: u32,
}

/// A reply in progress, matched against a grammar.
#[derive(Clone, Debug)]
pub struct Constraint {
    grammar: Arc<Grammar>,
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    /// The latest masks, looked up by state; `oldest` is replaced next.
    masks: Vec<Mask>,
    oldest: usize,
    state: Vec<u32>,
    /// For the last tokens of a reply, where the allowed tokens depend on how many are left.
    tight: Mask,
    masked: Vec<f32>,
}

/// What a generation asks of a [`Constraint`].
pub(crate) trait Restrict: core::fmt::Debug + Shareable {
    fn boxed(&self) -> Box<dyn Restrict>;
    fn finished(&self) -> bool;
    fn shortest(&self) -> u32;
    fn accept(&mut self, token: u32) -> bool;
    fn apply(&mut self, logits: &[f32], left: usize, stops: &[u32]) -> &[f32];
}

impl Clone for Box<dyn Restrict> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

impl Restrict for Constraint {
    fn boxed(&self) -> Box<dyn Restrict> {
        Box::new(self.clone())
    }

    fn finished(&self) -> bool {
        Constraint::finished(self)
    }

    fn shortest(&self) -> u32 {
        Constraint::shortest(self)
    }

    fn accept(&mut self, token: u32) -> bool {
        Constraint::accept(self, token)
    }

    fn apply(&mut self, logits: &[f32], left: usize, stops: &[u32]) -> &[f32] {
        Constraint::apply(self, logits, left, stops)
    }
}

impl Constraint {
    /// A constraint at the beginning of a reply.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if every text of the grammar has a byte without a token, or if it has
    /// numbers and a digit has none; other texts with such bytes are left out. [`Error::Limit`](crate::Error::Limit) if finding
    /// them takes too long.
    pub fn new(mut grammar: Grammar, vocabulary: Arc<Vocabulary>) -> Result<Constraint> {
        grammar.spell(&vocabulary)?;
        let mut constraint = Constraint {
            matcher: Matcher::new(&grammar),
            grammar: Arc::new(grammar),
            vocabulary,
            masks: Vec::new(),
            oldest: 0,
            state: Vec::new(),
            tight: Mask::default(),
            masked: Vec::new(),
        };
        // Compute the first mask, which clones share.
        constraint.allowed(usize::MAX);
        Ok(constraint)
    }

    /// Whether the text is complete: only then may it end.
    pub fn complete(&self) -> bool {
        self.matcher.complete(&self.grammar)
    }

    /// Whether the text is complete and nothing can follow.
    pub fn finished(&self) -> bool {
        self.matcher.finished()
    }

    /// The fewest tokens known to complete the text.
    pub fn shortest(&self) -> u32 {
        self.matcher.shortest(&self.grammar)
    }

    /// Accepts a token; returns false and changes nothing if the text cannot continue with it.
    pub fn accept(&mut self, token: u32) -> bool {
        if self.vocabulary.ends.contains(&token) {
            return self.complete();
        }
        let text = self.vocabulary.text(token);
        let taken = !text.is_empty() && text.iter().all(|&byte| self.matcher.push(&self.grammar, byte));
        if !taken {
            self.matcher.truncate(0);
            return false;
        }
        self.matcher.settle();
        true
    }

    /// The tokens that can come next if the reply may have `left` more, including the one that ends it: a bit
    /// for each. Allocates only for states that are not cached.
    pub fn allowed(&mut self, left: usize) -> &[u32] {
        let (grammar, vocabulary) = (&*self.grammar, &*self.vocabulary);
        self.state.clear();
        self.matcher.words(grammar, vocabulary.longest, &mut self.state);
        let found = self.masks.iter().position(|mask| mask.state == self.state);
        let at = found.unwrap_or_else(|| {
            let at = if self.masks.len() < REMEMBERED {
                self.masks.push(Mask::default());
                self.masks.len() - 1
            } else {
                self.oldest = (self.oldest + 1) % REMEMBERED;
                self.oldest
            };
            if let Some(mask) = self.masks.get_mut(at) {
                mask.state.clone_from(&self.state);
                fill(&mut self.matcher, grammar, vocabulary, NEVER, mask);
            }
            at
        });
        let shortest = self.matcher.shortest(grammar);
        // This token and the one that ends the reply are not part of the text after it.
        let room = u32::try_from(left).unwrap_or(NEVER).saturating_sub(2);
        let growth = self.masks.get(at).map_or(0, |mask| mask.growth);
        if shortest.saturating_add(growth) > room {
            // If there is too little room, complete the text as soon as possible.
            let room = room.max(shortest.saturating_sub(1));
            fill(&mut self.matcher, grammar, vocabulary, room, &mut self.tight);
            if self.tight.tokens.iter().any(|&word| word != 0) {
                return &self.tight.tokens;
            }
        }
        self.masks.get(at).map_or(&[], |mask| &mask.tokens)
    }

    /// `logits` with those of tokens that cannot come next set to -inf. `stops` are tokens that end the reply
    /// besides those of the vocabulary.
    pub fn apply(&mut self, logits: &[f32], left: usize, stops: &[u32]) -> &[f32] {
        let mut masked = core::mem::take(&mut self.masked);
        masked.clear();
        masked.extend_from_slice(logits);
        let allowed = self.allowed(left);
        for (logits, &word) in masked.chunks_mut(32).zip(allowed) {
            if word == 0 {
                logits.fill(f32::NEG_INFINITY);
            } else if word != u32::MAX {
                for (i, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> i & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
        let known = allowed.len() * 32;
        masked.iter_mut().skip(known).for_each(|logit| *logit = f32::NEG_INFINITY);
        let complete = self.complete();
        for &stop in stops {
            if let (Some(to), Some(&from)) = (masked.get_mut(stop as usize), logits.get(stop as usize)) {
                *to = if complete { from } else { f32::NEG_INFINITY };
            }
        }
        self.masked = masked;
        &self.masked
    }
}

/// Finds the tokens that can follow and leave at most `room` tokens to complete the text.
fn fill(matcher: &mut Matcher, grammar: &Grammar, vocabulary: &Vocabulary, room: u32, mask: &mut Mask) {
    mask.tokens.clear();
    mask.tokens.resize(vocabulary.size().div_ceil(32), 0);
    mask.growth = 0;
    let shortest = matcher.shortest(grammar);
    let (mut growth, mut done) = (0, (u32::MAX, 0));
    let all = matcher.plain(grammar, vocabulary.longest, room, |least, most, after| {
        growth = growth.max(after.saturating_sub(shortest));
        if (least, most) != done {
            done = (least, most);
            vocabulary.mark_plain(least, most, &mut mask.tokens);
        }
    });
    mask.growth = growth;
    let list = if let Some(after) = matcher.free(grammar).filter(|&after| after <= room) {
        mask.growth = growth.max(after.saturating_sub(shortest));
        mask.tokens.copy_from_slice(&vocabulary.untagged);
        &vocabulary.tagged
    } else if all {
        &vocabulary.rest
    } else {
        &vocabulary.all
    };
    let take = |matcher: &mut Matcher, mask: &mut Mask, token| {
        let after = matcher.shortest(grammar);
        if after <= room {
            mask.growth = mask.growth.max(after.saturating_sub(shortest));
            set(&mut mask.tokens, token);
        }
    };
    if !walk(matcher, grammar, list, MAX_WORK, mask, &take) {
        // Bytes spell every text. Those tokens that were found would be preferred for no reason.
        for entry in &list.tokens {
            if let Some(word) = mask.tokens.get_mut(entry.token as usize / 32) {
                *word &= !(1 << (entry.token % 32));
            }
        }
        walk(matcher, grammar, &vocabulary.single, u64::MAX, mask, &take);
    }
    if matcher.complete(grammar) {
        vocabulary.ends.iter().for_each(|&end| set(&mut mask.tokens, end));
    }
}

fn set(tokens: &mut [u32], token: u32) {
    if let Some(word) = tokens.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

/// Calls `visit` for each token that can follow, in the state after it. Returns false if that takes more than `work`.
fn walk(
    matcher: &mut Matcher,
    grammar: &Grammar,
    list: &Sorted,
    mut work: u64,
    mask: &mut Mask,
    visit: &dyn Fn(&mut Matcher, &mut Mask, u32),
) -> bool {
    let (mut at, mut len) = (0, 0);
    while let Some(entry) = list.tokens.get(at) {
        let text = list.text(at);
        len = usize::from(entry.shared).min(len);
        matcher.truncate(len);
        at += 1;
        while let Some(&byte) = text.get(len) {
            let before = matcher.work();
            let taken = matcher.push(grammar, byte);
            let Some(left) = work.checked_sub(matcher.work() - before) else {
                matcher.truncate(0);
                return false;
            };
            work = left;
            if !taken {
                // Tokens with the same prefix lead nowhere either.
                while let Some(next) = list.tokens.get(at)
                    && usize::from(next.shared) > len
                {
                    at = next.next as usize;
                }
                break;
            }
            len += 1;
        }
        if len == text.len() {
            visit(matcher, mask, entry.token);
        }
    }
    matcher.truncate(0);
    true
}

#[cfg(test)]
mod tests;
