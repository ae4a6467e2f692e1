//! A grammar: the set of allowed texts, as a graph of nodes.
#![forbid(unsafe_code)]

use super::decimal::{Bounds, Digits, Part};
use super::pattern::{Budget, NEVER, Pattern};
use super::vocabulary::Vocabulary;
use super::writable::Writable;
use crate::error::{Error, Name, Result};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// Largest nesting depth of containers.
pub(super) const MAX_DEPTH: u32 = 64;
/// Maximum number of properties that an object can name: one bit each.
pub(super) const MAX_PROPERTIES: usize = 128;
/// Maximum number of nodes of a grammar.
pub(super) const MAX_NODES: usize = 1 << 14;
/// Maximum number of nodes that one byte can begin: alternatives, and those that they begin with.
const MAX_BEGINNINGS: u32 = 1 << 12;
/// Maximum number of steps to measure a grammar, a few nanoseconds each.
const MAX_WORK: usize = 1 << 25;
/// Maximum number of bytes of texts whose tokens are counted.
const SPELLED: usize = 1 << 16;

/// What [`Error::Option`] names if no value matches a schema.
pub const NO_VALUE: &str = "number of values the schema allows";

pub(super) type NodeId = u32;

/// A text, and the tokens needed to write it.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) bytes: Box<[u8]>,
    /// For each byte, the tokens that write the rest from there.
    left: Box<[u16]>,
}

impl Text {
    /// Assumes one token per byte, until [`Grammar::spell`] finds fewer.
    pub(super) fn new(bytes: &[u8]) -> Text {
        let left = (0..bytes.len()).rev().map(|n| u16::try_from(n + 1).unwrap_or(u16::MAX)).collect();
        Text { bytes: bytes.into(), left }
    }

    pub(super) fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Tokens that write the text from byte `from` on.
    pub(super) fn left(&self, from: u32) -> u32 {
        match self.left.get(from as usize) {
            // Longer than the table can represent.
            Some(&u16::MAX) => self.len() - from,
            Some(&left) => u32::from(left),
            None => 0,
        }
    }
}

/// White space in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whitespace {
    /// None: no token is spent on it.
    #[default]
    None,
    /// As common JSON printers place it: after a colon nothing or one space; after an opening bracket or a
    /// comma and before a closing bracket also a line end and up to four spaces per level. There is none
    /// around the value.
    Allowed,
}

impl Whitespace {
    /// The first node with white space.
    pub(super) const fn first(self) -> NodeId {
        match self {
            Whitespace::None => NodeId::MAX,
            Whitespace::Allowed => 0,
        }
    }
}

/// A property's name as written, with the closing quote, and its value.
#[derive(Clone, Debug)]
pub(super) struct Property {
    /// The position in the schema, in whose order properties are written.
    pub(super) place: u32,
    pub(super) name: Text,
    pub(super) value: NodeId,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    /// One of these. After [`Grammar::finish`] none of them is an `Any` itself.
    Any(Vec<NodeId>),
    /// One after the other, without anything between. If it `may_end`, the parts after the first may be left out, all
    /// together.
    Sequence {
        parts: Vec<NodeId>,
        may_end: bool,
    },
    /// One of these texts, sorted.
    Texts(Vec<Text>),
    /// One of these texts, sorted and prefix-free, and the node that follows it.
    Cases {
        texts: Vec<Text>,
        then: Vec<NodeId>,
    },
    /// A JSON string within these lengths, in characters.
    String {
        min: u32,
        max: u32,
    },
    /// A JSON string that matches a pattern.
    Pattern(Box<Pattern>),
    /// Plain text that matches a pattern, at least one character.
    Plain(Box<Pattern>),
    Number(Bounds),
    /// The first items are those of `prefix`, all others `items`.
    Array {
        prefix: Vec<NodeId>,
        items: NodeId,
        min: u32,
        max: u32,
    },
    /// Properties sorted by name; a bit for the place of each required one; the node of other properties, if
    /// allowed.
    Object {
        properties: Vec<Property>,
        required: u128,
        other: Option<NodeId>,
    },
    /// Any text up to and including the marker, then `then`. The whole text may also end before the marker.
    Free {
        marker: Text,
        then: NodeId,
        may_end: bool,
    },
}

/// A set of texts: JSON values that match a schema, with or without free text around them.
#[derive(Clone, Debug)]
pub struct Grammar {
    pub(super) nodes: Vec<Node>,
    pub(super) root: NodeId,
    /// The containers from this node on may have white space.
    pub(super) spaced: NodeId,
    /// The bytes of its texts; all of them until [`Grammar::spell`].
    pub(super) writable: Writable,
    /// Minimum number of tokens of a text of each node: one per byte, except for texts counted by [`Grammar::spell`].
    shortest: Vec<u32>,
    /// Least nesting depth of a text of each node.
    height: Vec<u32>,
}

impl Grammar {
    /// The grammar without any text.
    pub(super) fn nothing() -> Grammar {
        let spaced = Whitespace::None.first();
        Grammar::of(Vec::new(), NEVER, spaced)
    }

    fn of(nodes: Vec<Node>, root: NodeId, spaced: NodeId) -> Grammar {
        let (shortest, height) = (Vec::new(), Vec::new());
        Grammar { nodes, root, spaced, writable: Writable::ALL, shortest, height }
    }

    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id as usize)
    }

    /// The texts of a node, if it has any.
    pub(super) fn texts(&self, id: NodeId) -> Option<&[Text]> {
        match self.node(id)? {
            Node::Texts(texts) | Node::Cases { texts, .. } => Some(texts),
            _ => None,
        }
    }

    /// Whether a text of `id` inside `depth` containers stays within [`MAX_DEPTH`].
    pub(super) fn fits(&self, id: NodeId, depth: u32) -> bool {
        self.height.get(id as usize).is_some_and(|&h| h != NEVER && h + depth <= MAX_DEPTH)
    }

    /// The node of item `at` of an array.
    pub(super) fn item(&self, array: NodeId, at: u32) -> NodeId {
        match self.node(array) {
            Some(Node::Array { prefix, items, .. }) => prefix.get(at as usize).copied().unwrap_or(*items),
            _ => NEVER,
        }
    }

    pub(super) fn shortest(&self, id: NodeId) -> u32 {
        self.shortest.get(id as usize).copied().unwrap_or(NEVER)
    }

    /// Validates and completes a graph.
    pub(super) fn finish(mut nodes: Vec<Node>, root: NodeId, spaced: NodeId) -> Result<Grammar> {
        if nodes.len() > MAX_NODES {
            let (found, max) = (nodes.len() as u64, MAX_NODES as u64);
            return Err(error!(Limit { what: "size of the schema", found, max }));
        }
        let mut budget = 1usize << 22;
        for id in 0..nodes.len() {
            if matches!(nodes.get(id), Some(Node::Any(_))) {
                let flat = flatten(&nodes, id as NodeId, &mut budget)?;
                if let Some(node) = nodes.get_mut(id) {
                    *node = Node::Any(flat);
                }
            }
        }
        let found = beginnings(&nodes);
        if found > MAX_BEGINNINGS {
            let (found, max) = (u64::from(found), u64::from(MAX_BEGINNINGS));
            return Err(error!(Limit { what: "number of ways to begin a part of the grammar", found, max }));
        }
        let mut grammar = Grammar::of(nodes, root, spaced);
        grammar.measure()?;
        if !grammar.fits(root, 0) {
            let expected = "a schema that some value satisfies, at most 64 containers deep and with numbers of at most 15 digits";
            return Err(error!(Option { what: NO_VALUE, found: 0.0, expected }));
        }
        Ok(grammar)
    }

    /// Counts the tokens of its texts with this vocabulary, and drops those that it cannot write.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no text is left, [`Error::Limit`] if that takes too long.
    pub(super) fn spell(&mut self, vocabulary: &Vocabulary) -> Result<()> {
        let lacking = self.restrict(&vocabulary.writable)?;
        // Texts that are not counted keep one token per byte, which is also sound.
        let mut bytes = SPELLED;
        for node in &mut self.nodes {
            match node {
                Node::Texts(texts) | Node::Cases { texts, .. } => {
                    texts.iter_mut().for_each(|text| spell(text, vocabulary, &mut bytes))
                }
                Node::Object { properties, .. } => {
                    properties.iter_mut().for_each(|p| spell(&mut p.name, vocabulary, &mut bytes));
                }
                Node::Free { marker, .. } => spell(marker, vocabulary, &mut bytes),
                _ => {}
            }
        }
        self.measure()?;
        for node in &mut self.nodes {
            if let Node::Cases { texts, then } = node {
                // A text that nothing can follow.
                let height = |id: &NodeId| self.height.get(*id as usize).copied().unwrap_or(NEVER);
                let mut goes_on = then.iter().map(|id| height(id) != NEVER).collect::<Vec<_>>().into_iter();
                texts.retain(|_| goes_on.next() == Some(true));
                then.retain(|id| height(id) != NEVER);
            }
        }
        if !self.fits(self.root, 0) {
            let lacking = lacking.or_else(|| self.writable.missing()).unwrap_or_default();
            let (key, found) = (Name::new("vocabulary"), Name::new(format!("without byte 0x{lacking:02X}")));
            let expected = "a token for each byte of a text that the format allows";
            return Err(error!(Unsupported { key, found, expected }));
        }
        Ok(())
    }

    /// Drops the texts that have other bytes; returns one of these bytes, if it is known.
    fn restrict(&mut self, writable: &Writable) -> Result<Option<u8>> {
        self.writable = *writable;
        let (mut budget, mut lacking) = (Budget::new(), None);
        if *writable != Writable::ALL {
            for node in &mut self.nodes {
                lacking = lacking.or(node.restrict(writable, &mut budget)?);
            }
        }
        Ok(lacking)
    }

    /// Computes the minima of each node. Both measures only decrease, and a round without a change ends the
    /// loop.
    fn measure(&mut self) -> Result<()> {
        let nodes = self.nodes.len();
        (self.shortest, self.height) = (vec![NEVER; nodes], vec![NEVER; nodes]);
        let size: usize = self.nodes.iter().map(Node::size).sum();
        let mut left = MAX_WORK;
        loop {
            let mut changed = false;
            for id in 0..nodes {
                let (shortest, height) = self.measures(id);
                let slots = self.shortest.get_mut(id).zip(self.height.get_mut(id));
                if let Some((s, h)) = slots
                    && (shortest < *s || height < *h)
                {
                    (*s, *h) = (shortest.min(*s), height.min(*h));
                    changed = true;
                }
            }
            if !changed {
                return Ok(());
            }
            left = left.checked_sub(size + nodes).ok_or(error!(Limit {
                what: "number of references in the schema",
                found: size as u64,
                max: (MAX_WORK / nodes.max(1)) as u64,
            }))?;
        }
    }

    /// Shortest text and least depth of a node, from the current measures of its parts.
    fn measures(&self, id: usize) -> (u32, u32) {
        let of = |id: NodeId| (self.shortest(id), self.height.get(id as usize).copied().unwrap_or(NEVER));
        let add = |a: u32, b: u32| a.saturating_add(b);
        match self.nodes.get(id) {
            None => (NEVER, NEVER),
            Some(Node::Any(of_these)) => of_these
                .iter()
                .map(|&id| of(id))
                .fold((NEVER, NEVER), |(s, h), (s2, h2)| (s.min(s2), h.min(h2))),
            Some(Node::Sequence { parts, may_end }) => {
                let needed = parts.iter().take(if *may_end { 1 } else { parts.len() });
                needed.map(|&id| of(id)).fold((0, 0), |(s, h), (s2, h2)| (add(s, s2), h.max(h2)))
            }
            Some(Node::Texts(texts)) => match texts.iter().map(|t| t.left(0)).min() {
                Some(len) => (len, 0),
                None => (NEVER, NEVER),
            },
            Some(Node::Cases { texts, then }) => {
                texts.iter().zip(then).fold((NEVER, NEVER), |(s, h), (text, &then)| {
                    let (s2, h2) = of(then);
                    (s.min(add(s2, text.left(0))), h.min(h2))
                })
            }
            Some(Node::Pattern(pattern)) => match pattern.left(0) {
                NEVER => (NEVER, NEVER),
                left => (add(left, 2), 0),
            },
            Some(Node::Plain(pattern)) => match pattern.fewest(&self.writable) {
                NEVER => (NEVER, NEVER),
                fewest => (fewest, 0),
            },
            Some(Node::String { min, max }) if min <= max => (add(*min, 2), 0),
            Some(Node::String { .. }) => (NEVER, NEVER),
            Some(Node::Number(bounds)) => {
                let signs = [false, true].map(|negative| {
                    let digits = Digits { negative, ..Digits::default() };
                    let fewest = bounds.fewest(digits, Part::Sign)?;
                    Some(fewest + u32::from(negative))
                });
                signs.into_iter().flatten().min().map_or((NEVER, NEVER), |fewest| (fewest, 0))
            }
            Some(&Node::Array { min, max, .. }) if min > max => (NEVER, NEVER),
            Some(&Node::Array { ref prefix, items, min, .. }) => {
                let first = prefix.iter().take(min as usize);
                let more = min - first.len() as u32;
                let (mut s, mut h) =
                    first.map(|&id| of(id)).fold((0, 0), |(s, h), (s2, h2)| (add(s, add(s2, 1)), h.max(h2)));
                if more > 0 {
                    let (s2, h2) = of(items);
                    s = add(s, add(s2, 1).saturating_mul(more));
                    h = h.max(h2);
                }
                // One comma fewer than items.
                (add(s, 2) - u32::from(min > 0 && s != NEVER), add(h, 1))
            }
            Some(Node::Object { properties, required, .. }) => {
                let (mut s, mut h, mut count) = (2, 0, 0);
                for property in properties {
                    if required >> property.place & 1 == 1 {
                        let (s2, h2) = of(property.value);
                        s = add(s, add(s2, property.name.left(0) + 2));
                        h = h.max(h2);
                        count += 1;
                    }
                }
                (if s == NEVER { s } else { add(s, u32::max(count, 1) - 1) }, add(h, 1))
            }
            Some(Node::Free { may_end: true, .. }) => (0, 0),
            Some(Node::Free { marker, then, .. }) => {
                let (s, h) = of(*then);
                (add(s, marker.left(0)), h)
            }
        }
    }
}

impl Node {
    /// Drops the texts that have other bytes; returns one of these bytes, if it is known.
    fn restrict(&mut self, writable: &Writable, budget: &mut Budget) -> Result<Option<u8>> {
        let mut lacking = None;
        let mut is_written = |text: &[u8]| {
            let missing = text.iter().copied().find(|byte| !writable.has(*byte));
            lacking = lacking.or(missing);
            missing.is_none()
        };
        // What a value of this kind cannot do without.
        let syntax = match self {
            Node::Array { .. } => "[],",
            Node::Object { .. } => "{}:,\"",
            Node::String { .. } | Node::Pattern(_) => "\"",
            Node::Number(Bounds { integer: true, .. }) => "-0123456789",
            Node::Number(_) => "-.0123456789",
            Node::Any(_)
            | Node::Sequence { .. }
            | Node::Texts(_)
            | Node::Cases { .. }
            | Node::Plain(_)
            | Node::Free { .. } => "",
        };
        let may_be_written = match self {
            Node::String { min: 1.., .. } if !writable.has_literal() => false,
            Node::Free { marker, may_end: false, .. } => is_written(&marker.bytes),
            _ => is_written(syntax.as_bytes()),
        };
        if !may_be_written {
            *self = Node::Any(Vec::new());
        }
        match self {
            Node::Texts(texts) => texts.retain(|text| is_written(&text.bytes)),
            Node::Cases { texts, then } => {
                let mut written = texts.iter().map(|text| is_written(&text.bytes));
                then.retain(|_| written.next() == Some(true));
                texts.retain(|text| writable.has_all(&text.bytes));
            }
            Node::Pattern(pattern) | Node::Plain(pattern) => return pattern.restrict(writable, budget),
            Node::Object { properties, other, .. } => {
                // Names that begin alike, and one character more, are those of other properties: there is one that none has.
                *other = other.filter(|_| writable.short_characters() as usize > properties.len());
                for property in properties.iter_mut().filter(|p| !is_written(&p.name.bytes)) {
                    property.value = NEVER;
                }
            }
            Node::Any(_)
            | Node::Sequence { .. }
            | Node::String { .. }
            | Node::Number(_)
            | Node::Array { .. }
            | Node::Free { .. } => {}
        }
        Ok(lacking)
    }

    /// The cost of measuring the node.
    fn size(&self) -> usize {
        match self {
            Node::Any(nodes) | Node::Sequence { parts: nodes, .. } => nodes.len(),
            Node::Texts(texts) | Node::Cases { texts, .. } => texts.len(),
            Node::Object { properties, .. } => properties.len(),
            Node::Array { prefix, .. } => prefix.len(),
            Node::Number(_) => 32,
            _ => 1,
        }
    }
}

/// Finds the fewest tokens that write `text` from each of its bytes on. `budget` is in bytes.
fn spell(text: &mut Text, vocabulary: &Vocabulary, budget: &mut usize) {
    let Some(left) = budget.checked_sub(text.bytes.len()) else { return };
    *budget = left;
    for from in (0..text.bytes.len()).rev() {
        let rest = text.bytes.get(from..).unwrap_or_default();
        let mut fewest = text.left.get(from + 1).map_or(1, |n| n.saturating_add(1));
        vocabulary.all.beginnings(rest, |len| {
            let behind = text.left.get(from + len).map_or(0, |&n| n);
            fewest = fewest.min(behind.saturating_add(1));
        });
        if let Some(slot) = text.left.get_mut(from) {
            *slot = fewest;
        }
    }
}

/// The most nodes that a byte begins in one: `1 + sum over choices`, `1 + first part` of a sequence, 1 for others. Saturates.
fn beginnings(nodes: &[Node]) -> u32 {
    // 0 while the nodes that it begins with are being counted.
    let mut counts: Vec<Option<u32>> = vec![None; nodes.len()];
    let mut path: Vec<(NodeId, usize)> = Vec::new();
    for start in 0..nodes.len() as NodeId {
        path.push((start, 0));
        while let Some((id, next)) = path.last_mut() {
            let first: &[NodeId] = match nodes.get(*id as usize) {
                Some(Node::Any(choices)) => choices,
                Some(Node::Sequence { parts, .. }) => parts.get(..1).unwrap_or_default(),
                _ => &[],
            };
            let id = *id as usize;
            if let Some(&child) = first.get(*next)
                && counts.get(id).is_none_or(|count| count.is_none_or(|count| count == 0))
            {
                *next += 1;
                if let Some(slot) = counts.get_mut(id) {
                    *slot = Some(0);
                }
                if let Some(None) = counts.get(child as usize) {
                    path.push((child, 0));
                }
                continue;
            }
            let of = |child: &NodeId| counts.get(*child as usize).copied().flatten().unwrap_or(0);
            let sum = first.iter().map(of).fold(1, u32::saturating_add);
            if let Some(slot) = counts.get_mut(id) {
                *slot = Some(sum);
            }
            path.pop();
        }
    }
    counts.into_iter().flatten().max().unwrap_or(0)
}

/// The nodes that a choice resolves to, each once.
fn flatten(nodes: &[Node], from: NodeId, budget: &mut usize) -> Result<Vec<NodeId>> {
    let (mut flat, mut open, mut seen) = (Vec::new(), vec![from], vec![from]);
    while let Some(id) = open.pop() {
        let Some(Node::Any(choices)) = nodes.get(id as usize) else {
            flat.push(id);
            continue;
        };
        for &id in choices.iter().rev() {
            *budget = budget.checked_sub(1 + seen.len()).ok_or(error!(Limit {
                what: "number of alternatives in the schema",
                found: (1 << 22) + 1,
                max: 1 << 22,
            }))?;
            if !seen.contains(&id) {
                seen.push(id);
                open.push(id);
            }
        }
    }
    Ok(flat)
}
