//! Finds added tokens in a text, in time proportional to its length whatever the tokens are.
//!
//! An automaton (Aho & Corasick 1975) over the tokens spelled backwards reads the text from its end. At every offset
//! its state knows the longest token that starts there.
#![forbid(unsafe_code)]

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::token_kind::{Special, TokenKind};
use super::vocab::{Texts, reserved};
use crate::error::{Error, Result};
use crate::sort;

/// Bytes of all added tokens; an automaton takes up to 28 bytes for each. Gemma 3's 6,414 have fewer than 100 kB.
const MOST_BYTES: u64 = 1 << 20;

/// Bytes of a text that are read at once, at least.
const BLOCK: usize = 1 << 16;

const NONE: u32 = u32::MAX;

/// A suffix of a token.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Its children, one byte longer, are `children..children + count`, sorted by that byte.
    children: u32,
    count: u16,
    /// Length of the suffix: at most that of a token.
    len: u16,
    /// Its first byte.
    byte: u8,
    /// The longest proper prefix of the suffix that is a node.
    shorter: u32,
    /// The token that is equal to it, or [`NONE`].
    token: u32,
    /// The longest prefix that is a token, as a node; 0 if there is none.
    any: u32,
    /// The same among user-defined tokens.
    user: u32,
}

/// The empty suffix, of no token.
const EMPTY: Node = Node { children: 0, count: 0, len: 0, byte: 0, shorter: 0, token: NONE, any: 0, user: 0 };

/// The automaton.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    /// The first is the empty suffix.
    nodes: Vec<Node>,
    /// One bit for each last byte of a token.
    last: [u32; 8],
    /// Bytes of the longest token.
    longest: usize,
}

impl Automaton {
    /// Of the tokens with these ids, which are not empty.
    pub(super) fn new(texts: &Texts<'_>, ids: &[u32], kind: &dyn Fn(u32) -> TokenKind) -> Result<Automaton> {
        let text = |id: u32| texts.get(id as usize).unwrap_or(&[]);
        let total: u64 = ids.iter().map(|id| text(*id).len() as u64).sum();
        if total > MOST_BYTES {
            return Err(error!(Limit { what: "bytes of added tokens", found: total, max: MOST_BYTES }));
        }
        // The nodes count the bytes of a token in 16 bits.
        let longest = ids.iter().map(|id| text(*id).len()).max().unwrap_or(0);
        if longest > usize::from(u16::MAX) {
            let (found, max) = (longest as u64, u64::from(u16::MAX));
            return Err(error!(Limit { what: "bytes of an added token", found, max }));
        }
        let mut order: Vec<u32> = reserved(ids.len())?;
        order.extend_from_slice(ids);
        let backwards = |a: u32, b: u32| -> Ordering { text(a).iter().rev().cmp(text(b).iter().rev()) };
        sort::sort(&mut order, &backwards);
        let mut automaton = Automaton { nodes: Vec::new(), last: [0; 8], longest };
        // The tokens that end in each node's suffix, as a range of `order`.
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        automaton.push(EMPTY, (0, order.len() as u32), &mut ranges)?;
        // In order of length: what is shorter is complete.
        let mut at = 0;
        while let (Some(&node), Some(&(mut from, to))) = (automaton.nodes.get(at), ranges.get(at)) {
            let token = |i: u32| order.get(i as usize).map_or(NONE, |id| *id);
            let depth = usize::from(node.len);
            let Node { any, user, .. } = automaton.node(node.shorter);
            let mut complete = Node { any, user, ..node };
            if at > 0 && from < to && text(token(from)).len() == depth {
                complete.token = token(from);
                complete.any = at as u32;
                if kind(complete.token) == TokenKind::UserDefined {
                    complete.user = at as u32;
                }
                from += 1;
            }
            complete.children = automaton.nodes.len() as u32;
            while from < to {
                let byte_of = |i: u32| text(token(i)).iter().rev().nth(depth).copied().unwrap_or(0);
                let byte = byte_of(from);
                let mut end = from + 1;
                while end < to && byte_of(end) == byte {
                    end += 1;
                }
                let shorter = if at == 0 { 0 } else { automaton.step(node.shorter, byte) };
                let child = Node { len: node.len + 1, byte, shorter, ..EMPTY };
                automaton.push(child, (from, end), &mut ranges)?;
                complete.count += 1;
                if at == 0
                    && let Some(bits) = automaton.last.get_mut(usize::from(byte / 32))
                {
                    *bits |= 1 << (byte % 32);
                }
                from = end;
            }
            if let Some(node) = automaton.nodes.get_mut(at) {
                *node = complete;
            }
            at += 1;
        }
        automaton.nodes.shrink_to_fit();
        Ok(automaton)
    }

    fn push(&mut self, node: Node, range: (u32, u32), ranges: &mut Vec<(u32, u32)>) -> Result<()> {
        let bytes = (self.nodes.len() * size_of::<Node>()) as u64;
        let need = |_| error!(Memory { need: bytes, have: 0 });
        ranges.try_reserve(1).map_err(need)?;
        self.nodes.try_reserve(1).map_err(need)?;
        self.nodes.push(node);
        ranges.push(range);
        Ok(())
    }

    fn node(&self, at: u32) -> Node {
        self.nodes.get(at as usize).copied().unwrap_or(EMPTY)
    }

    /// The state after one more byte, read backwards.
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            let Node { children, count, shorter, .. } = self.node(at);
            let first = children as usize;
            let children = self.nodes.get(first..first + usize::from(count)).unwrap_or(&[]);
            if let Ok(i) = children.binary_search_by(|child| child.byte.cmp(&byte)) {
                return (first + i) as u32;
            }
            if at == 0 {
                return 0;
            }
            at = shorter;
        }
    }

    /// The tokens in `text` that `special` allows, from left to right: the leftmost, the longest one there, and so on
    /// behind its end.
    pub(super) fn matches<'a>(&'a self, text: &'a [u8], special: Special) -> Matches<'a> {
        let end = if special == Special::Text || self.nodes.len() <= 1 { text.len() } else { 0 };
        Matches { automaton: self, text, special, found: Vec::new(), end, from: 0 }
    }

    /// Heap memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }
}

/// See [`Automaton::matches`].
pub(super) struct Matches<'a> {
    automaton: &'a Automaton,
    text: &'a [u8],
    special: Special,
    /// Offsets and nodes of the longest tokens that start in the block that was read last, from its end.
    found: Vec<(usize, u32)>,
    /// The end of that block.
    end: usize,
    /// The end of the last match.
    from: usize,
}

impl Matches<'_> {
    fn read_block(&mut self) {
        let start = self.end;
        let longest = self.automaton.longest;
        let end = self.text.len().min(start + BLOCK.max(4 * longest));
        // Tokens that start in the block may end behind it.
        let seen = self.text.len().min(end + longest);
        let mut state = 0;
        for (at, &byte) in self.text.iter().enumerate().take(seen).skip(start).rev() {
            let starts = self
                .automaton
                .last
                .get(usize::from(byte / 32))
                .is_some_and(|bits| bits >> (byte % 32) & 1 == 1);
            if state == 0 && !starts {
                continue;
            }
            state = self.automaton.step(state, byte);
            let Node { any, user, .. } = self.automaton.node(state);
            let token = if self.special == Special::Parse { any } else { user };
            if token != 0 && at < end {
                self.found.push((at, token));
            }
        }
        self.end = end;
    }
}

impl Iterator for Matches<'_> {
    /// Offset, length and id.
    type Item = (usize, usize, u32);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some((at, node)) = self.found.pop() {
                if at >= self.from {
                    let Node { len, token, .. } = self.automaton.node(node);
                    self.from = at + usize::from(len);
                    return Some((at, len.into(), token));
                }
            }
            if self.end >= self.text.len() {
                return None;
            }
            self.read_block();
        }
    }
}
