//! A grammar's automaton, stepped byte by byte.
//!
//! A state is a set of threads, since a choice may stay open for a while. A thread is a position within one
//! node, on a stack of the containers around it; stacks share their lower parts. The text can be completed
//! from every thread: a byte that leads nowhere is rejected.
#![forbid(unsafe_code)]

use super::decimal::{DIGITS, Digits, Part};
use super::grammar::{Grammar, Node, NodeId, Property, Text};
use super::pattern::NEVER;
use super::quoted::Quoted;
use alloc::vec;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// Maximum number of open choices that are followed; further ones are dropped.
const MAX_THREADS: usize = 256;
/// Maximum work of a byte. What is not done then is as if it led nowhere, except for the way to the nearest end, which takes less
/// than this: a node begins at most 4096 others, and compares what it finds with at most [`MAX_MADE`] threads.
pub(super) const MAX_WORK: u32 = 160_000;
/// Indices of [`Link::seen`].
const BEGUN: usize = 0;
const CONTINUED: usize = 1;
/// Maximum number of threads that a byte may lead to; the first [`MAX_THREADS`] of them are followed.
const MAX_MADE: usize = 2 * MAX_THREADS;
/// The stack of the outermost value.
const ROOT: u32 = u32::MAX;
/// A property that the schema does not name.
const OTHER: u32 = u32::MAX;

/// White space that may follow, as [`Whitespace::Allowed`] describes it: one space, or a line end and spaces up
/// to the depth of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap(u16);

impl Gap {
    const NONE: Gap = Gap(0);
    const ANY: Gap = Gap(u16::MAX);
    /// No line break after a colon.
    const SPACE: Gap = Gap(1);

    fn take(self, byte: u8, depth: u32) -> Option<Gap> {
        match (byte, self) {
            (b' ', Gap::ANY) => Some(Gap::NONE),
            (b'\n', Gap::ANY) => Some(Gap(4 * depth as u16)),
            (b' ', Gap(left)) if left > 0 => Some(Gap(left - 1)),
            _ => None,
        }
    }
}

/// The container around a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// Properties from place `next` on may follow.
    Object { node: NodeId, next: u32 },
    /// `count` items have begun.
    Array { node: NodeId, count: u32 },
    /// Part `next` follows.
    Sequence { node: NodeId, next: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Link {
    below: u32,
    depth: u32,
    /// Minimum number of tokens from the end of the value on top to the end of the text.
    rest: u32,
    /// Whether nothing may follow the value on top in this frame.
    optional: bool,
    /// The first stack below in which something must follow.
    needed: u32,
    /// When its part last began, and when it was last continued.
    seen: [u64; 2],
    frame: Frame,
}

/// Stacks that share their lower parts: equal ones are the same.
#[derive(Clone, Debug, Default)]
struct Stacks {
    links: Vec<Link>,
    /// Every link by [`hash`] of what it consists of.
    index: HashTable<u32>,
    /// Where a link has moved.
    moved: Vec<u32>,
}

fn hash(below: u32, frame: Frame) -> u64 {
    let (kind, node, next) = match frame {
        Frame::Object { node, next } => (1, node, next),
        Frame::Array { node, count } => (2, node, count),
        Frame::Sequence { node, next } => (3, node, next),
    };
    let odd = 0x9E37_79B9_7F4A_7C15_u64;
    let word = (u64::from(below) << 32 | u64::from(node)).wrapping_mul(odd);
    let word = (word ^ word >> 32 ^ u64::from(next) << 2 ^ kind).wrapping_mul(odd);
    word ^ word >> 32
}

impl Stacks {
    fn hash_at(links: &[Link], at: u32) -> u64 {
        links.get(at as usize).map_or(0, |link| hash(link.below, link.frame))
    }

    fn get(&self, top: u32) -> Option<&Link> {
        self.links.get(top as usize)
    }

    fn find(&self, below: u32, frame: Frame) -> Option<u32> {
        let same = |&at: &u32| self.get(at).is_some_and(|link| link.below == below && link.frame == frame);
        self.index.find(hash(below, frame), same).copied()
    }

    fn add(&mut self, link: Link) -> u32 {
        let at = self.links.len() as u32;
        self.links.push(link);
        let links = &self.links;
        self.index.insert_unique(hash(link.below, link.frame), at, |&at| Stacks::hash_at(links, at));
        at
    }

    fn truncate(&mut self, len: usize) {
        for at in len..self.links.len() {
            let at = at as u32;
            if let Ok(entry) = self.index.find_entry(Stacks::hash_at(&self.links, at), |&other| other == at) {
                entry.remove();
            }
        }
        self.links.truncate(len);
    }

    /// Keeps the stacks of these threads only.
    fn keep(&mut self, threads: &mut [Thread]) {
        self.moved.clear();
        self.moved.resize(self.links.len(), ROOT);
        for thread in threads.iter() {
            let mut top = thread.top;
            while let Some(slot) = self.moved.get_mut(top as usize).filter(|slot| **slot == ROOT) {
                *slot = 0;
                top = self.get(top).map_or(ROOT, |link| link.below);
            }
        }
        let mut kept = 0;
        for at in 0..self.links.len() {
            if self.moved.get(at) == Some(&ROOT) {
                continue;
            }
            // Links follow those below them.
            let to = |at: u32| self.moved.get(at as usize).copied().unwrap_or(ROOT);
            if let Some(&link) = self.links.get(at) {
                let link = Link { below: to(link.below), needed: to(link.needed), ..link };
                if let Some(slot) = self.links.get_mut(kept) {
                    *slot = link;
                }
            }
            if let Some(slot) = self.moved.get_mut(at) {
                *slot = kept as u32;
            }
            kept += 1;
        }
        self.links.truncate(kept);
        for thread in threads {
            thread.top = self.moved.get(thread.top as usize).copied().unwrap_or(ROOT);
        }
        self.index.clear();
        let links = &self.links;
        for at in 0..kept as u32 {
            let rehash = |&at: &u32| Stacks::hash_at(links, at);
            self.index.insert_unique(Stacks::hash_at(links, at), at, rehash);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Value {
        node: NodeId,
        gap: Gap,
    },
    /// After an opening bracket.
    First {
        gap: Gap,
    },
    /// After a value in a container or in a sequence that may end, or at the end of the text.
    After {
        gap: Gap,
    },
    /// After a comma in an object.
    Name {
        gap: Gap,
    },
    /// In a name whose first `len` bytes match the properties `from..to`.
    Key {
        from: u32,
        to: u32,
        len: u32,
        quoted: Quoted,
    },
    /// After the name of a property.
    Colon {
        property: u32,
    },
    String {
        node: NodeId,
        chars: u32,
        quoted: Quoted,
    },
    /// `value` is the part of a character decoded so far.
    Pattern {
        node: NodeId,
        state: u32,
        quoted: Quoted,
        value: u32,
    },
    /// The same in plain text.
    Plain {
        node: NodeId,
        state: u32,
        quoted: Quoted,
        value: u32,
    },
    Number {
        node: NodeId,
        part: Part,
        digits: Digits,
    },
    /// The first `len` bytes match the texts `from..to`.
    Text {
        node: NodeId,
        from: u32,
        to: u32,
        len: u32,
    },
    Free {
        node: NodeId,
        matched: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    top: u32,
    at: At,
}

/// The stacks, and the states one after another: the last range of threads is the current state.
#[derive(Clone, Debug, Default)]
pub(super) struct Matcher {
    stacks: Stacks,
    threads: Vec<Thread>,
    /// For each accepted byte: where its threads and links begin.
    levels: Vec<(usize, usize)>,
    /// Where the threads of the current byte begin.
    made: usize,
    /// Number of bytes that were tried, see [`Link::seen`].
    tried: u64,
    /// What is left of [`MAX_WORK`] for the current byte.
    left: u32,
    work: u64,
}

impl Matcher {
    pub(super) fn new(grammar: &Grammar) -> Matcher {
        let first = Thread { top: ROOT, at: At::Value { node: grammar.root, gap: Gap::NONE } };
        Matcher { threads: vec![first], levels: vec![(0, 0)], ..Matcher::default() }
    }

    fn current(&self) -> &[Thread] {
        let from = self.levels.last().map_or(0, |level| level.0);
        self.threads.get(from..).unwrap_or_default()
    }

    /// Number of choices that are open, at least 1.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.current().len().max(1)
    }

    /// Work of all bytes so far, a few nanoseconds each: nodes begun, stacks looked up, and comparisons of threads.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// Takes a byte; returns false and changes nothing if it leads nowhere.
    pub(super) fn push(&mut self, grammar: &Grammar, byte: u8) -> bool {
        let (from, to) = (self.levels.last().map_or(0, |level| level.0), self.threads.len());
        let links = self.stacks.links.len();
        self.made = to;
        self.begin_byte();
        for i in from..to {
            self.step_thread(grammar, i, byte);
        }
        if self.left == 0 {
            // Not all ways can be followed. The end stays as near as was promised if its thread comes first.
            self.threads.truncate(to);
            self.stacks.truncate(links);
            self.begin_byte();
            let near = |&i: &usize| self.threads.get(i).map_or(NEVER, |&t| self.shortest_of(grammar, t));
            let nearest = (from..to).min_by_key(near).unwrap_or(from);
            self.step_thread(grammar, nearest, byte);
            for i in (from..to).filter(|&i| i != nearest) {
                self.step_thread(grammar, i, byte);
            }
        }
        if self.threads.len() - to > MAX_THREADS {
            // The nearest thread is never dropped, so that the end stays as near as was promised.
            self.nearest_first(grammar);
            self.threads.truncate(to + MAX_THREADS);
        }
        if self.threads.len() == to {
            self.stacks.truncate(links);
            return false;
        }
        self.levels.push((to, links));
        true
    }

    fn begin_byte(&mut self) {
        self.tried += 1;
        self.left = MAX_WORK;
    }

    fn step_thread(&mut self, grammar: &Grammar, at: usize, byte: u8) {
        if let Some(&thread) = self.threads.get(at)
            && self.spend(1)
        {
            self.step(grammar, thread, byte);
        }
    }

    /// Returns false if the work of this byte is used up.
    fn spend(&mut self, work: usize) -> bool {
        self.work += work as u64;
        self.left = self.left.saturating_sub(work as u32);
        self.left > 0
    }

    /// Undoes all but the first `len` bytes since the last [`Matcher::settle`].
    pub(super) fn truncate(&mut self, len: usize) {
        if let Some(&(threads, links)) = self.levels.get(len + 1) {
            self.threads.truncate(threads);
            self.stacks.truncate(links);
            self.levels.truncate(len + 1);
        }
    }

    /// Makes the current state the one that [`Matcher::truncate`] counts from.
    pub(super) fn settle(&mut self) {
        let from = self.levels.last().map_or(0, |level| level.0);
        self.threads.drain(..from);
        self.levels.clear();
        self.levels.push((0, 0));
        self.stacks.keep(&mut self.threads);
    }

    fn link(&self, top: u32) -> Option<&Link> {
        self.stacks.get(top)
    }

    fn depth(&self, top: u32) -> u32 {
        self.link(top).map_or(0, |link| link.depth)
    }

    /// White space within the container on top: what is `allowed`, if there may be any.
    fn gap(&self, grammar: &Grammar, top: u32, allowed: Gap) -> Gap {
        match self.link(top).map(|link| link.frame) {
            Some(Frame::Object { node, .. } | Frame::Array { node, .. }) if node >= grammar.spaced => allowed,
            _ => Gap::NONE,
        }
    }

    fn rest(&self, top: u32) -> u32 {
        self.link(top).map_or(0, |link| link.rest)
    }

    fn emit(&mut self, grammar: &Grammar, top: u32, at: At) {
        self.go_on(grammar, Thread { top, at });
    }

    /// Adds a thread to the next state, unless it is already there.
    fn go_on(&mut self, grammar: &Grammar, thread: Thread) {
        let made = self.threads.get(self.made..).unwrap_or_default();
        let (known, compared) = (made.contains(&thread), made.len());
        self.spend(1 + compared / 32);
        if known {
            return;
        }
        if compared < MAX_MADE {
            self.threads.push(thread);
            if self.threads.len() - self.made == MAX_MADE {
                self.nearest_first(grammar);
            }
            return;
        }
        // The first thread is the nearest to the end.
        let after = self.shortest_of(grammar, thread);
        if let Some(first) = self.threads.get(self.made).copied()
            && after < self.shortest_of(grammar, first)
            && let Some(slot) = self.threads.get_mut(self.made)
        {
            *slot = thread;
        }
    }

    /// Moves the thread nearest to the end to the front of the next state.
    fn nearest_first(&mut self, grammar: &Grammar) {
        let nearest = (self.made..self.threads.len())
            .min_by_key(|&i| self.threads.get(i).map_or(NEVER, |&t| self.shortest_of(grammar, t)));
        if let Some(nearest) = nearest {
            self.threads.swap(self.made, nearest);
        }
    }

    /// A stack with `frame` on top of `below`.
    fn stack(&mut self, grammar: &Grammar, below: u32, frame: Frame) -> u32 {
        self.spend(1);
        // Choices that meet again become one.
        if let Some(at) = self.stacks.find(below, frame) {
            return at;
        }
        let around = self.rest(below);
        let own = match frame {
            Frame::Object { node, next } => match grammar.node(node) {
                Some(Node::Object { properties, required, .. }) => {
                    1u32.saturating_add(missing(grammar, properties, from_place(*required, next)))
                }
                _ => NEVER,
            },
            Frame::Array { node, count } => match grammar.node(node) {
                Some(&Node::Array { ref prefix, items, min, .. }) => {
                    let first = prefix.iter().take(min as usize).skip(count as usize);
                    self.spend(first.len() / 8);
                    let more = min.saturating_sub(count) - first.len() as u32;
                    let each =
                        |sum: u32, &id: &NodeId| sum.saturating_add(grammar.shortest(id)).saturating_add(1);
                    let further = grammar.shortest(items).saturating_add(1).saturating_mul(more);
                    first.fold(1, each).saturating_add(if more > 0 { further } else { 0 })
                }
                _ => NEVER,
            },
            Frame::Sequence { node, next } => match grammar.node(node) {
                Some(Node::Sequence { may_end: true, .. }) if next == 1 => 0,
                Some(Node::Sequence { parts, .. }) => {
                    let parts = parts.get(next as usize..).unwrap_or_default();
                    parts.iter().fold(0u32, |sum, &id| sum.saturating_add(grammar.shortest(id)))
                }
                _ => NEVER,
            },
        };
        let container = u32::from(!matches!(frame, Frame::Sequence { .. }));
        let depth = self.depth(below) + container;
        let optional = match frame {
            Frame::Sequence { node, next: 1 } => {
                matches!(grammar.node(node), Some(Node::Sequence { may_end: true, .. }))
            }
            _ => false,
        };
        let (rest, needed, seen) = (own.saturating_add(around), self.needed(below), [0; 2]);
        self.stacks.add(Link { below, depth, rest, optional, needed, seen, frame })
    }

    /// The stack, or the first below it in which something must follow.
    fn needed(&self, top: u32) -> u32 {
        self.link(top).filter(|link| link.optional).map_or(top, |link| link.needed)
    }

    /// Whether this is the first time since the current byte was tried.
    fn first_time(&mut self, top: u32, what: usize) -> bool {
        let tried = self.tried;
        let seen = self.stacks.links.get_mut(top as usize).and_then(|link| link.seen.get_mut(what));
        seen.is_none_or(|seen| core::mem::replace(seen, tried) != tried)
    }

    /// The thread after the value on `top` has ended. If its container may go on or end, that is left to the next byte.
    fn after(&mut self, grammar: &Grammar, top: u32) -> Thread {
        if self.link(top).is_some_and(|link| !link.optional)
            && let Some((top, node)) = self.next_part(grammar, top)
        {
            return Thread { top, at: At::Value { node, gap: Gap::NONE } };
        }
        Thread { top, at: At::After { gap: self.gap(grammar, top, Gap::ANY) } }
    }

    /// The next part of the sequence on top, and the stack it is on.
    fn next_part(&mut self, grammar: &Grammar, top: u32) -> Option<(u32, NodeId)> {
        let &Link { below, frame: Frame::Sequence { node, next }, .. } = self.link(top)? else { return None };
        let Some(Node::Sequence { parts, .. }) = grammar.node(node) else { return None };
        let &part = parts.get(next as usize)?;
        let top = if parts.len() > next as usize + 1 {
            self.stack(grammar, below, Frame::Sequence { node, next: next + 1 })
        } else {
            below
        };
        Some((top, part))
    }

    /// A byte after a value in sequences that may end there: it begins the next part of one of them, or continues what is
    /// around them.
    fn go_through(&mut self, grammar: &Grammar, mut top: u32, byte: u8) {
        // What must follow is first, as the way to the end: there may be more ways than can be followed.
        let needed = self.needed(top);
        if !self.first_time(top, CONTINUED) {
            return;
        }
        if self.first_time(needed, CONTINUED) {
            let after = self.after(grammar, needed);
            self.step(grammar, after, byte);
        }
        while top != needed
            && let Some(&Link { below, .. }) = self.link(top)
            && self.spend(1)
        {
            if let Some((top, node)) = self.next_part(grammar, top)
                && grammar.fits(node, self.depth(top))
            {
                self.begin(grammar, top, node, byte);
            }
            top = below;
            if top != needed && !self.first_time(top, CONTINUED) {
                return;
            }
        }
    }

    fn step(&mut self, grammar: &Grammar, thread: Thread, byte: u8) {
        let Thread { top, at } = thread;
        match at {
            At::Value { node, gap } => {
                match gap.take(byte, self.depth(top)) {
                    Some(gap) => self.emit(grammar, top, At::Value { node, gap }),
                    None => self.begin(grammar, top, node, byte),
                };
            }
            At::First { gap } => self.first(grammar, top, gap, byte),
            At::After { gap } => self.behind(grammar, top, gap, byte),
            At::Name { gap } => match gap.take(byte, self.depth(top)) {
                Some(gap) => self.emit(grammar, top, At::Name { gap }),
                None => self.open_name(grammar, top, byte),
            },
            At::Key { from, to, len, quoted } => self.key(grammar, top, (from, to), len, quoted, byte),
            At::Colon { property } => {
                if byte == b':'
                    && let Some(node) = self.value_of(grammar, top, property)
                {
                    self.emit(grammar, top, At::Value { node, gap: self.gap(grammar, top, Gap::SPACE) });
                }
            }
            At::String { node, chars, quoted } => self.string(grammar, top, node, chars, quoted, byte),
            At::Pattern { node, state, quoted, value } => {
                let Some(Node::Pattern(pattern)) = grammar.node(node) else { return };
                if quoted == Quoted::Plain && byte == b'"' {
                    if pattern.left(state) == 0 {
                        let after = self.after(grammar, top);
                        self.go_on(grammar, after);
                    }
                } else if let Some((state, quoted, value)) =
                    pattern.step(state, quoted, value, byte, &grammar.writable)
                {
                    self.emit(grammar, top, At::Pattern { node, state, quoted, value });
                }
            }
            At::Plain { node, state, quoted, value } => {
                let Some(Node::Plain(pattern)) = grammar.node(node) else { return };
                self.plain_text(grammar, top, node, (state, quoted, value), byte);
                if quoted == Quoted::Plain && pattern.left(state) == 0 {
                    let after = self.after(grammar, top);
                    self.step(grammar, after, byte);
                }
            }
            At::Number { node, part, digits } => {
                self.number(grammar, top, node, part, digits, byte);
                if part.may_end() && number_holds(grammar, node, digits) {
                    let after = self.after(grammar, top);
                    self.step(grammar, after, byte);
                }
            }
            At::Text { node, from, to, len } => self.text(grammar, top, node, (from, to), len, byte),
            At::Free { node, matched } => self.marker(grammar, top, node, matched, byte),
        }
    }

    /// The first byte of a value.
    fn begin(&mut self, grammar: &Grammar, top: u32, node: NodeId, byte: u8) {
        if !self.spend(1) {
            return;
        }
        match grammar.node(node) {
            Some(Node::Any(choices)) => {
                let depth = self.depth(top);
                for &choice in choices {
                    if grammar.fits(choice, depth) {
                        self.begin(grammar, top, choice, byte);
                    }
                }
            }
            Some(Node::Sequence { parts, .. }) => {
                let Some(&part) = parts.first() else { return };
                let top = self.stack(grammar, top, Frame::Sequence { node, next: 1 });
                if self.first_time(top, BEGUN) {
                    self.begin(grammar, top, part, byte);
                }
            }
            Some(Node::Texts(texts) | Node::Cases { texts, .. }) => {
                self.text(grammar, top, node, (0, texts.len() as u32), 0, byte);
            }
            Some(Node::String { .. }) if byte == b'"' => {
                self.emit(grammar, top, At::String { node, chars: 0, quoted: Quoted::Plain });
            }
            Some(Node::Number(_)) => match byte {
                b'-' => {
                    let digits = Digits { negative: true, ..Digits::default() };
                    self.emit_number(grammar, top, node, Part::Sign, digits);
                }
                _ => self.number(grammar, top, node, Part::Sign, Digits::default(), byte),
            },
            Some(Node::Pattern(_)) if byte == b'"' => {
                self.emit(grammar, top, At::Pattern { node, state: 0, quoted: Quoted::Plain, value: 0 });
            }
            Some(Node::Plain(_)) => self.plain_text(grammar, top, node, (0, Quoted::Plain, 0), byte),
            Some(Node::Array { .. }) if byte == b'[' => {
                let top = self.stack(grammar, top, Frame::Array { node, count: 0 });
                self.emit(grammar, top, At::First { gap: self.gap(grammar, top, Gap::ANY) });
            }
            Some(Node::Object { .. }) if byte == b'{' => {
                let top = self.stack(grammar, top, Frame::Object { node, next: 0 });
                self.emit(grammar, top, At::First { gap: self.gap(grammar, top, Gap::ANY) });
            }
            Some(Node::Free { .. }) => self.marker(grammar, top, node, 0, byte),
            None
            | Some(Node::String { .. } | Node::Pattern(_) | Node::Array { .. } | Node::Object { .. }) => {}
        }
    }

    fn first(&mut self, grammar: &Grammar, top: u32, gap: Gap, byte: u8) {
        if let Some(gap) = gap.take(byte, self.depth(top)) {
            return self.emit(grammar, top, At::First { gap });
        }
        let Some(&Link { below, frame, .. }) = self.link(top) else { return };
        match (frame, byte) {
            (Frame::Object { .. }, b'}') | (Frame::Array { .. }, b']') => self.close(grammar, top, frame),
            (Frame::Object { .. }, _) => self.open_name(grammar, top, byte),
            (Frame::Array { node, .. }, _) => {
                let items = grammar.item(node, 0);
                if let Some(&Node::Array { max, .. }) = grammar.node(node)
                    && max > 0
                    && grammar.fits(items, self.depth(top))
                {
                    let top = self.stack(grammar, below, Frame::Array { node, count: 1 });
                    self.begin(grammar, top, items, byte);
                }
            }
            (Frame::Sequence { .. }, _) => {}
        }
    }

    /// Ends the container on top, if it may end.
    fn close(&mut self, grammar: &Grammar, top: u32, frame: Frame) {
        if may_close(grammar, frame)
            && let Some(&Link { below, .. }) = self.link(top)
        {
            let after = self.after(grammar, below);
            self.go_on(grammar, after);
        }
    }

    /// A byte after a value.
    fn behind(&mut self, grammar: &Grammar, top: u32, gap: Gap, byte: u8) {
        let Some(&Link { below, frame, optional, .. }) = self.link(top) else { return };
        if optional {
            return self.go_through(grammar, top, byte);
        }
        // No printer writes white space before a comma, so only a closing bracket can follow it.
        if may_close(grammar, frame)
            && let Some(gap) = gap.take(byte, self.depth(top))
        {
            return self.emit(grammar, top, At::After { gap });
        }
        match (frame, byte) {
            (Frame::Object { .. }, b'}') | (Frame::Array { .. }, b']') => self.close(grammar, top, frame),
            (_, b',') if gap != self.gap(grammar, top, Gap::ANY) => {}
            (Frame::Object { node, .. }, b',') => {
                let count = match grammar.node(node) {
                    Some(Node::Object { properties, .. }) => properties.len() as u32,
                    _ => 0,
                };
                if self.name_left(grammar, top, 0, count) || self.other(grammar, top).is_some() {
                    self.emit(grammar, top, At::Name { gap: self.gap(grammar, top, Gap::ANY) });
                }
            }
            (Frame::Array { node, count }, b',') => {
                let items = grammar.item(node, count);
                if let Some(&Node::Array { ref prefix, min, max, .. }) = grammar.node(node)
                    && count < max
                    && grammar.fits(items, self.depth(top))
                {
                    // Without a maximum, all counts beyond the minimum and the prefix are equivalent.
                    let alike = min.max(prefix.len() as u32).max(1);
                    let count = if max == u32::MAX { (count + 1).min(alike) } else { count + 1 };
                    let top = self.stack(grammar, below, Frame::Array { node, count });
                    self.emit(grammar, top, At::Value { node: items, gap: self.gap(grammar, top, Gap::ANY) });
                }
            }
            _ => {}
        }
    }

    /// The properties of the object on top, the bits of those that are required, and the place of the next.
    fn object<'g>(&self, grammar: &'g Grammar, top: u32) -> Option<(&'g [Property], u128, u32)> {
        let &Link { frame: Frame::Object { node, next }, .. } = self.link(top)? else { return None };
        match grammar.node(node) {
            Some(Node::Object { properties, required, .. }) => Some((properties, *required, next)),
            _ => None,
        }
    }

    /// The node of properties that the schema does not name, if they are allowed here.
    fn other(&self, grammar: &Grammar, top: u32) -> Option<NodeId> {
        let &Link { frame: Frame::Object { node, next }, depth, .. } = self.link(top)? else { return None };
        match grammar.node(node) {
            Some(&Node::Object { other, required, .. }) if from_place(required, next) == 0 => {
                other.filter(|&id| grammar.fits(id, depth))
            }
            _ => None,
        }
    }

    fn may_name(&self, grammar: &Grammar, top: u32, property: u32) -> bool {
        self.object(grammar, top).is_some_and(|(properties, required, next)| {
            properties.get(property as usize).is_some_and(|p| {
                let skipped = from_place(required, next) & !from_place(u128::MAX, p.place);
                p.place >= next && skipped == 0 && grammar.fits(p.value, self.depth(top))
            })
        })
    }

    /// Whether one of the properties `from..to` can still be written.
    fn name_left(&self, grammar: &Grammar, top: u32, from: u32, to: u32) -> bool {
        (from..to).any(|property| self.may_name(grammar, top, property))
    }

    fn value_of(&self, grammar: &Grammar, top: u32, property: u32) -> Option<NodeId> {
        if property == OTHER {
            return self.other(grammar, top);
        }
        self.object(grammar, top)?.0.get(property as usize).map(|p| p.value)
    }

    fn open_name(&mut self, grammar: &Grammar, top: u32, byte: u8) {
        let Some((properties, ..)) = self.object(grammar, top) else { return };
        let to = properties.len() as u32;
        if byte == b'"' && (self.name_left(grammar, top, 0, to) || self.other(grammar, top).is_some()) {
            self.emit(grammar, top, At::Key { from: 0, to, len: 0, quoted: Quoted::Plain });
        }
    }

    fn key(
        &mut self,
        grammar: &Grammar,
        top: u32,
        (from, to): (u32, u32),
        len: u32,
        quoted: Quoted,
        byte: u8,
    ) {
        let Some((properties, ..)) = self.object(grammar, top) else { return };
        let (from, to) = narrow(properties, |p| &p.name, (from, to), len, byte);
        let len = len + 1;
        if let Some(known) = properties.get(from as usize).filter(|p| from < to && p.name.len() == len) {
            // The closing quote of a known name.
            if self.may_name(grammar, top, from) {
                self.colon(grammar, top, from, known.place + 1);
            }
            return;
        }
        let other = self.other(grammar, top).is_some();
        if other && quoted == Quoted::Plain && byte == b'"' {
            return self.colon(grammar, top, OTHER, properties.len() as u32);
        }
        // Names have one spelling, so that a known name cannot be written as another.
        let quoted = grammar.writable.step(quoted, byte, true);
        if self.name_left(grammar, top, from, to) || (other && quoted != Quoted::Dead) {
            // Only known names are left, so their length does not matter.
            let len = if from < to { len } else { 0 };
            self.emit(grammar, top, At::Key { from, to, len, quoted });
        }
    }

    /// The end of a property's name; those from place `next` on may follow.
    fn colon(&mut self, grammar: &Grammar, top: u32, property: u32, next: u32) {
        let Some(&Link { below, frame: Frame::Object { node, .. }, .. }) = self.link(top) else { return };
        let top = self.stack(grammar, below, Frame::Object { node, next });
        self.emit(grammar, top, At::Colon { property });
    }

    fn string(&mut self, grammar: &Grammar, top: u32, node: NodeId, chars: u32, quoted: Quoted, byte: u8) {
        let Some(&Node::String { min, max }) = grammar.node(node) else { return };
        if quoted == Quoted::Plain {
            if byte == b'"' {
                if chars >= min {
                    let after = self.after(grammar, top);
                    self.go_on(grammar, after);
                }
                return;
            }
            if chars >= max {
                return;
            }
        }
        let next = grammar.writable.step(quoted, byte, false);
        if next != Quoted::Dead {
            let chars = match quoted {
                // Without a maximum, all lengths beyond the minimum are equivalent.
                Quoted::Plain if max == u32::MAX => (chars + 1).min(min),
                Quoted::Plain => chars + 1,
                _ => chars,
            };
            self.emit(grammar, top, At::String { node, chars, quoted: next });
        }
    }

    fn emit_number(&mut self, grammar: &Grammar, top: u32, node: NodeId, part: Part, digits: Digits) {
        let Some(Node::Number(bounds)) = grammar.node(node) else { return };
        if bounds.fewest(digits, part).is_some() {
            // Without bounds only the number of digits matters.
            let value = if bounds.bounded { digits.value } else { 0 };
            self.emit(grammar, top, At::Number { node, part, digits: Digits { value, ..digits } });
        }
    }

    /// A byte that continues a number.
    fn number(&mut self, grammar: &Grammar, top: u32, node: NodeId, part: Part, digits: Digits, byte: u8) {
        let Some(Node::Number(bounds)) = grammar.node(node) else { return };
        let float = !bounds.integer;
        let (next, digits) = match (part, byte) {
            (Part::Sign, b'0') if digits.negative && bounds.integer => return,
            (Part::Sign, b'0') => (Part::Zero, digits.push(0, false)),
            (Part::Sign, b'1'..=b'9') | (Part::Whole, b'0'..=b'9') if digits.count < DIGITS => {
                (Part::Whole, digits.push(byte - b'0', false))
            }
            (Part::Zero | Part::Whole, b'.') if float && digits.count < DIGITS => (Part::Point, digits),
            (Part::Point | Part::Fraction, b'0'..=b'9') if digits.count < DIGITS => {
                (Part::Fraction, digits.push(byte - b'0', true))
            }
            (Part::Zero | Part::Whole | Part::Fraction, b'e' | b'E') if float && !bounds.bounded => {
                (Part::Exponent, digits)
            }
            (Part::Exponent, b'+' | b'-') => (Part::ExponentSign, digits),
            (Part::Exponent | Part::ExponentSign, b'0'..=b'9') => (Part::ExponentDigit, digits),
            (Part::ExponentDigit, b'0'..=b'9') => (Part::ExponentDigits, digits),
            _ => return,
        };
        self.emit_number(grammar, top, node, next, digits);
    }

    /// A byte that continues a plain text that matches a pattern.
    fn plain_text(
        &mut self,
        grammar: &Grammar,
        top: u32,
        node: NodeId,
        (state, quoted, value): (u32, Quoted, u32),
        byte: u8,
    ) {
        let Some(Node::Plain(pattern)) = grammar.node(node) else { return };
        let Some((state, quoted, value)) = pattern.step(state, quoted, value, byte, &grammar.writable) else {
            return;
        };
        if quoted == Quoted::Plain && pattern.ends(state) {
            let after = self.after(grammar, top);
            self.go_on(grammar, after);
        } else {
            self.emit(grammar, top, At::Plain { node, state, quoted, value });
        }
    }

    fn text(
        &mut self,
        grammar: &Grammar,
        top: u32,
        node: NodeId,
        (from, to): (u32, u32),
        len: u32,
        byte: u8,
    ) {
        let Some(texts) = grammar.texts(node) else { return };
        if texts.get(from as usize).is_some_and(|text| text.len() == len) {
            let after = self.after_text(grammar, top, node, from);
            self.step(grammar, after, byte);
        }
        let (from, to) = narrow(texts, |text| text, (from, to), len, byte);
        let len = len + 1;
        let Some(text) = texts.get(from as usize).filter(|_| from < to) else { return };
        if to == from + 1 && text.len() == len {
            // Only its end is left.
            let after = self.after_text(grammar, top, node, from);
            self.go_on(grammar, after);
        } else {
            self.emit(grammar, top, At::Text { node, from, to, len });
        }
    }

    /// The thread after text `which` of a node.
    fn after_text(&mut self, grammar: &Grammar, top: u32, node: NodeId, which: u32) -> Thread {
        match grammar.node(node) {
            Some(Node::Cases { then, .. }) => {
                let node = then.get(which as usize).copied().unwrap_or(NEVER);
                Thread { top, at: At::Value { node, gap: Gap::NONE } }
            }
            _ => self.after(grammar, top),
        }
    }

    fn marker(&mut self, grammar: &Grammar, top: u32, node: NodeId, matched: u32, byte: u8) {
        let Some(Node::Free { marker, then, .. }) = grammar.node(node) else { return };
        let marker = &marker.bytes;
        let mut matched = matched as usize;
        loop {
            if marker.get(matched) == Some(&byte) {
                matched += 1;
                break;
            }
            if matched == 0 {
                break;
            }
            // The longest prefix of the marker that is a suffix of the matched text.
            let seen = marker.get(..matched).unwrap_or_default();
            matched = (0..matched)
                .rev()
                .find(|&n| seen.ends_with(marker.get(..n).unwrap_or_default()))
                .unwrap_or(0);
        }
        if matched == marker.len() {
            if grammar.fits(*then, self.depth(top)) {
                self.emit(grammar, top, At::Value { node: *then, gap: Gap::NONE });
            }
        } else {
            self.emit(grammar, top, At::Free { node, matched: matched as u32 });
        }
    }

    /// Whether the text may end here.
    pub(super) fn complete(&self, grammar: &Grammar) -> bool {
        self.current().iter().any(|&Thread { top, at }| {
            self.rest(top) == 0
                && match at {
                    At::After { .. } => true,
                    At::Plain { node, state, quoted: Quoted::Plain, .. } => {
                        matches!(grammar.node(node), Some(Node::Plain(pattern)) if pattern.left(state) == 0)
                    }
                    At::Number { node, part, digits } => {
                        part.may_end() && number_holds(grammar, node, digits)
                    }
                    At::Text { node, from, len, .. } => match grammar.node(node) {
                        Some(Node::Texts(texts)) => {
                            texts.get(from as usize).is_some_and(|text| text.len() == len)
                        }
                        _ => false,
                    },
                    At::Free { node, .. } => {
                        matches!(grammar.node(node), Some(Node::Free { may_end: true, .. }))
                    }
                    // An empty text is allowed.
                    At::Value { node, .. } => grammar.shortest(node) == 0,
                    _ => false,
                }
        })
    }

    /// Tokens that complete the text; some next token always reduces it by one.
    pub(super) fn shortest(&self, grammar: &Grammar) -> u32 {
        self.current().iter().map(|&thread| self.shortest_of(grammar, thread)).min().unwrap_or(NEVER)
    }

    fn shortest_of(&self, grammar: &Grammar, Thread { top, at }: Thread) -> u32 {
        let rest = self.rest(top);
        let sum = |parts: &[u32]| parts.iter().fold(0u32, |sum, &n| sum.saturating_add(n));
        match at {
            At::Value { node, .. } => sum(&[grammar.shortest(node), rest]),
            At::After { .. } => rest,
            At::First { .. } => match self.link(top) {
                // The first item or property has no comma before it.
                Some(Link { frame: Frame::Object { .. }, .. }) => match self.object(grammar, top) {
                    Some((_, required, _)) => rest.saturating_sub(u32::from(required != 0)),
                    None => NEVER,
                },
                Some(&Link { frame: Frame::Array { node, .. }, .. }) => match grammar.node(node) {
                    Some(Node::Array { min, .. }) => rest.saturating_sub(u32::from(*min != 0)),
                    _ => NEVER,
                },
                _ => NEVER,
            },
            At::Name { .. } => {
                let to = self.object(grammar, top).map_or(0, |(properties, ..)| properties.len() as u32);
                sum(&[1, self.shortest_key(grammar, top, (0, to), 0, Quoted::Plain)])
            }
            At::Key { from, to, len, quoted } => self.shortest_key(grammar, top, (from, to), len, quoted),
            At::Colon { property } => match self.value_of(grammar, top, property) {
                Some(node) => sum(&[1, grammar.shortest(node), rest]),
                None => NEVER,
            },
            At::String { node, chars, quoted } => match grammar.node(node) {
                Some(Node::String { min, .. }) => {
                    sum(&[quoted.pending(), min.saturating_sub(chars), 1, rest])
                }
                _ => NEVER,
            },
            At::Pattern { node, state, quoted, value } => {
                let Some(Node::Pattern(pattern)) = grammar.node(node) else { return NEVER };
                let left = match quoted {
                    Quoted::Plain => pattern.left(state),
                    _ => pattern.left_within(state, quoted, value, &grammar.writable),
                };
                sum(&[left, 1, rest])
            }
            At::Plain { node, state, quoted, value } => {
                let Some(Node::Plain(pattern)) = grammar.node(node) else { return NEVER };
                let left = match quoted {
                    Quoted::Plain => pattern.left(state),
                    _ => pattern.left_within(state, quoted, value, &grammar.writable),
                };
                sum(&[left, rest])
            }
            At::Number { node, part, digits } => {
                let Some(Node::Number(bounds)) = grammar.node(node) else { return NEVER };
                sum(&[bounds.fewest(digits, part).unwrap_or(NEVER), rest])
            }
            At::Text { node, from, to, len } => match grammar.node(node) {
                Some(Node::Texts(texts)) => {
                    let texts = texts.get(from as usize..to as usize).unwrap_or_default();
                    sum(&[texts.iter().map(|text| text.left(len)).min().unwrap_or(NEVER), rest])
                }
                Some(Node::Cases { texts, then }) => {
                    let cases = texts.iter().zip(then).take(to as usize).skip(from as usize);
                    let each =
                        |(text, &then): (&Text, &NodeId)| sum(&[text.left(len), grammar.shortest(then)]);
                    sum(&[cases.map(each).min().unwrap_or(NEVER), rest])
                }
                _ => NEVER,
            },
            At::Free { node, matched } => match grammar.node(node) {
                Some(Node::Free { may_end: true, .. }) if top == ROOT => 0,
                Some(Node::Free { marker, then, .. }) => {
                    sum(&[marker.left(matched), grammar.shortest(*then), rest])
                }
                _ => NEVER,
            },
        }
    }

    /// Minimum number of tokens from within a name to the end of the text.
    fn shortest_key(
        &self,
        grammar: &Grammar,
        top: u32,
        (from, to): (u32, u32),
        len: u32,
        quoted: Quoted,
    ) -> u32 {
        let Some((properties, needed, _)) = self.object(grammar, top) else { return NEVER };
        let rest = self.rest(top);
        let mut least = NEVER;
        for i in (from..to).filter(|&i| self.may_name(grammar, top, i)) {
            let Some(property) = properties.get(i as usize) else { continue };
            let own =
                property.name.left(len).saturating_add(1).saturating_add(grammar.shortest(property.value));
            // The cost of the property as a missing one is already in the rest.
            let counted = if needed >> property.place & 1 == 1 { required(grammar, property) } else { 0 };
            least = least.min(own.saturating_add(rest - counted.min(rest)));
        }
        if let Some(other) = self.other(grammar, top)
            && quoted != Quoted::Dead
        {
            // One more character, of at most two bytes, turns any name into one that the schema does not
            // know.
            let spare = if from < to { 2 } else { 0 };
            let own = quoted.pending() + spare + 2;
            least = least.min(own.saturating_add(grammar.shortest(other)).saturating_add(rest));
        }
        least
    }

    /// Calls `visit` for the ranges of how many characters without quotes, escapes and control characters can
    /// follow within `room`, with the most tokens then left to the end. False if these are not all such texts
    /// of up to `longest` characters.
    pub(super) fn plain(
        &self,
        grammar: &Grammar,
        longest: u32,
        room: u32,
        mut visit: impl FnMut(u32, u32, u32),
    ) -> bool {
        let (mut all, mut any) = (true, false);
        for &thread in self.current() {
            match thread.at {
                At::String { node, chars, quoted: Quoted::Plain } => {
                    let Some(Node::String { min, max }) = grammar.node(node) else { continue };
                    let shortest = self.shortest_of(grammar, thread);
                    // Only characters that are needed anyway get closer to the end.
                    let least = shortest.saturating_sub(room);
                    if least <= min.saturating_sub(chars) {
                        any |= least == 0 && max - chars >= longest;
                        visit(least, max - chars, shortest);
                    }
                }
                At::Key { quoted: Quoted::Plain, .. } if self.other(grammar, thread.top).is_some() => {
                    let other = self.other(grammar, thread.top).unwrap_or(NEVER);
                    let rest = self.rest(thread.top);
                    let after = grammar.shortest(other).saturating_add(rest).saturating_add(4);
                    if after > room {
                        return false;
                    }
                    any = true;
                    visit(0, u32::MAX, after);
                }
                _ => all = false,
            }
        }
        all || any
    }

    /// If any text without a `<` can follow: the tokens then left to the end.
    pub(super) fn free(&self, grammar: &Grammar) -> Option<u32> {
        let is_free = |id: &NodeId| match grammar.node(*id) {
            Some(Node::Free { marker, .. }) => marker.bytes.first() == Some(&b'<'),
            _ => false,
        };
        let free = self.current().iter().filter(|thread| match thread.at {
            At::Free { node, matched: 0 } => is_free(&node),
            At::Value { node, .. } => match grammar.node(node) {
                // A choice that could not end would be further from the end than others.
                Some(Node::Any(of_these)) => {
                    of_these.iter().any(|id| grammar.shortest(*id) == 0 && is_free(id))
                }
                _ => is_free(&node),
            },
            _ => false,
        });
        free.map(|&thread| self.shortest_of(grammar, thread)).min()
    }

    /// Whether nothing can follow.
    pub(super) fn finished(&self) -> bool {
        self.current().iter().all(|thread| thread.top == ROOT && matches!(thread.at, At::After { .. }))
    }

    /// Appends words that are equal for states that accept the same texts of up to `longest` bytes.
    pub(super) fn words(&self, grammar: &Grammar, longest: u32, words: &mut Vec<u32>) {
        for &Thread { mut top, at } in self.current() {
            match at {
                At::Value { node, gap } => words.extend([0, node, u32::from(gap.0)]),
                At::First { gap } => words.extend([1, u32::from(gap.0)]),
                At::After { gap } => words.extend([2, u32::from(gap.0)]),
                At::Name { gap } => words.extend([3, u32::from(gap.0)]),
                At::Key { from, to, len, quoted } => words.extend([4, from, to, len, quoted as u32]),
                At::Colon { property } => words.extend([5, property]),
                At::String { node, chars, quoted } => {
                    let (needed, left) = match grammar.node(node) {
                        Some(Node::String { min, max }) => (min.saturating_sub(chars), max - chars),
                        _ => (0, 0),
                    };
                    words.extend([6, node, needed.min(longest), left.min(longest), quoted as u32]);
                }
                At::Pattern { node, state, quoted, value } => {
                    words.extend([14, node, state, quoted as u32, value]);
                }
                At::Plain { node, state, quoted, value } => {
                    words.extend([15, node, state, quoted as u32, value]);
                }
                At::Number { node, part, digits: d } => {
                    let value = [d.value as u32, (d.value >> 32) as u32];
                    words.extend([7, node, part as u32, d.count, d.fraction, u32::from(d.negative)]);
                    words.extend(value);
                }
                At::Text { node, from, to, len } => words.extend([8, node, from, to, len]),
                At::Free { node, matched } => words.extend([9, node, matched]),
            }
            while let Some(link) = self.link(top) {
                match link.frame {
                    Frame::Object { node, next } => words.extend([10, node, next]),
                    Frame::Array { node, count } => words.extend([11, node, count]),
                    Frame::Sequence { node, next } => words.extend([12, node, next]),
                }
                top = link.below;
            }
            words.push(13);
        }
    }
}

/// Whether a container has everything it requires.
fn may_close(grammar: &Grammar, frame: Frame) -> bool {
    match frame {
        Frame::Object { node, next } => {
            matches!(grammar.node(node), Some(Node::Object { required, .. }) if from_place(*required, next) == 0)
        }
        Frame::Array { node, count } => {
            matches!(grammar.node(node), Some(Node::Array { min, .. }) if count >= *min)
        }
        Frame::Sequence { .. } => false,
    }
}

fn number_holds(grammar: &Grammar, node: NodeId, digits: Digits) -> bool {
    matches!(grammar.node(node), Some(Node::Number(bounds)) if bounds.holds(digits))
}

/// Tokens of a property with a comma before it: the comma, the opening quote and the colon are one token
/// each; the closing quote counts as part of the name.
fn required(grammar: &Grammar, property: &Property) -> u32 {
    grammar.shortest(property.value).saturating_add(property.name.left(0) + 3)
}

/// Tokens of these properties, each with a comma before it.
fn missing(grammar: &Grammar, properties: &[Property], bits: u128) -> u32 {
    let each = |p: &Property| match bits >> p.place & 1 {
        1 => required(grammar, p),
        _ => 0,
    };
    if bits == 0 {
        return 0;
    }
    properties.iter().map(each).fold(0, u32::saturating_add)
}

/// The bits of places from `place` on.
fn from_place(bits: u128, place: u32) -> u128 {
    bits & u128::MAX.checked_shl(place).unwrap_or(0)
}

/// The range of those among the sorted texts `from..to`, equal in their first `len` bytes, whose next byte is
/// `byte`.
fn narrow<T>(
    all: &[T],
    text: impl Fn(&T) -> &Text,
    (from, to): (u32, u32),
    len: u32,
    byte: u8,
) -> (u32, u32) {
    let range = all.get(from as usize..to as usize).unwrap_or_default();
    let next = |t: &T| text(t).bytes.get(len as usize).copied();
    let low = range.partition_point(|t| next(t) < Some(byte)) as u32;
    let high = range.partition_point(|t| next(t) <= Some(byte)) as u32;
    (from + low, from + high)
}
