//! Regular expressions, compiled to automata over the characters of a string.
//!
//! ECMA-262 as used by JSON Schema: a match anywhere in the string is enough. Lookaround, back references,
//! `\b` and `\p` are not supported. Strings are written without `\u` escapes, so the automata only contain
//! characters that are written literally or with one of the short escapes. Plain text has no quotes and escapes, and
//! patterns match all of it.
#![forbid(unsafe_code)]

use super::characters::{ESCAPES, Range};
use super::quoted::Quoted;
use super::writable::Writable;
use crate::error::{Error, Result};
use crate::sort;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;

/// There is no text, or none that is shallow enough.
pub(super) const NEVER: u32 = u32::MAX;

/// Largest nesting of groups.
const MAX_NESTING: u32 = 32;
/// Largest bound of a repetition.
const MAX_REPEATS: u32 = 1000;
const MAX_NODES: usize = 4096;
const MAX_STATES: usize = 4096;
/// Maximum number of steps to build all automata of a grammar, a few nanoseconds each.
const MAX_WORK: usize = 1 << 26;
/// Maximum number of states and edges of all automata of a grammar.
const MAX_EDGES: usize = 1 << 20;

/// Boundaries between characters that are written differently, or not at all.
const WRITTEN: [u32; 17] =
    [0, 8, 9, 10, 11, 12, 13, 14, 0x20, 0x22, 0x23, 0x5C, 0x5D, 0x80, 0x800, 0xD800, 0xE000];
const ASTRAL: u32 = 0x1_0000;
const END: u32 = 0x11_0000;

/// The characters of a kind, which escapes name by a letter.
pub(super) fn kind(name: char) -> Option<Vec<Range>> {
    Some(match name {
        'd' => DIGIT.to_vec(),
        'D' => others(&DIGIT),
        'w' => WORD.to_vec(),
        'W' => others(&WORD),
        's' => SPACE.to_vec(),
        'S' => others(&SPACE),
        _ => return None,
    })
}

/// Bytes that write a character in plain text or in a JSON string; `None` if it is never written.
fn cost(c: u32, plain: bool) -> Option<u32> {
    match c {
        1..0x80 if plain => Some(1),
        _ if ESCAPES.iter().any(|escape| escape.0 == c) => Some(2),
        0..0x20 | 0xD800..0xE000 | END.. => None,
        0x20..0x80 => Some(1),
        0x80..0x800 => Some(2),
        0x800..ASTRAL => Some(3),
        _ => Some(4),
    }
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub(super) enum Expression {
    Class(Rc<[Range]>),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    Repeat(Box<Expression>, u32, Option<u32>),
    Start,
    End,
}

/// Why a text is not compiled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// It has something that is not supported.
    Unsupported,
    /// It is not a regular expression from this byte on.
    Malformed { at: usize, expected: &'static str },
}

type Parsed<T> = core::result::Result<T, Refused>;

struct Parser<'p> {
    text: &'p str,
    rest: core::str::Chars<'p>,
    nesting: u32,
}

const DIGIT: [Range; 1] = [(0x30, 0x39)];
const WORD: [Range; 4] = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)];
const SPACE: [Range; 10] = [
    (9, 13),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
];
const LINE_END: [Range; 3] = [(10, 10), (13, 13), (0x2028, 0x2029)];

/// All other characters, sorted and merged.
pub(super) fn others(ranges: &[Range]) -> Vec<Range> {
    let at = |i: u32| ranges.get(i as usize).copied().unwrap_or_default();
    let sorted = sort::sorted(ranges.len(), &|a, b| at(a).cmp(&at(b)));
    let (mut others, mut next) = (Vec::new(), 0);
    for (from, to) in sorted.into_iter().map(at) {
        if from > next {
            others.push((next, from - 1));
        }
        next = next.max(to + 1);
    }
    if next < END {
        others.push((next, END - 1));
    }
    others
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.rest.next();
        }
        found
    }

    /// The byte that is next.
    fn at(&self) -> usize {
        self.text.len() - self.rest.as_str().len()
    }

    fn choice(&mut self) -> Parsed<Expression> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Refused::Unsupported);
        }
        let mut choices = vec![self.sequence()?];
        while self.take('|') {
            choices.push(self.sequence()?);
        }
        self.nesting -= 1;
        Ok(Expression::Choice(choices))
    }

    fn sequence(&mut self) -> Parsed<Expression> {
        let mut parts = Vec::new();
        while let Some(c) = self.peek() {
            if matches!(c, '|' | ')') {
                break;
            }
            let at = self.at();
            let malformed = |expected| Err(Refused::Malformed { at, expected });
            self.rest.next();
            let part = match c {
                '^' => Expression::Start,
                '$' => Expression::End,
                '.' => Expression::Class(others(&LINE_END).into()),
                '(' => {
                    if self.take('?') && !self.take(':') {
                        // A group name, or lookaround.
                        if self.peek().is_some() && !self.take('<') || matches!(self.peek(), Some('=' | '!'))
                        {
                            return Err(Refused::Unsupported);
                        }
                        while !self.take('>') {
                            if self.rest.next().is_none() {
                                return malformed("a > after the name of the group");
                            }
                        }
                    }
                    let group = self.choice()?;
                    if !self.take(')') {
                        return malformed("a ) that closes the group");
                    }
                    group
                }
                '[' => Expression::Class(self.class(at)?.into()),
                '\\' => Expression::Class(self.escape(false, at)?.into()),
                '*' | '+' | '?' => return malformed("something to repeat before *, + and ?"),
                '{' | '}' | ']' => return malformed("a backslash before {, } and ]"),
                c => Expression::Class([(c.into(), c.into())].into()),
            };
            let assertion = matches!(part, Expression::Start | Expression::End);
            let at = self.at();
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.rest.next();
                    match self.bounds().filter(|_| self.peek() == Some('}')) {
                        Some(bounds) => bounds,
                        None => {
                            let expected = "{count}, {min,} or {min,max} of at most 1000";
                            return Err(Refused::Malformed { at, expected });
                        }
                    }
                }
                _ => {
                    parts.push(part);
                    continue;
                }
            };
            self.rest.next();
            self.take('?'); // lazy: matches the same strings
            if assertion {
                return Err(Refused::Malformed { at, expected: "no repetition of ^ or $" });
            }
            parts.push(Expression::Repeat(Box::new(part), min, max));
        }
        Ok(Expression::Sequence(parts))
    }

    /// The least and the most repetitions, after an opening brace.
    fn bounds(&mut self) -> Option<(u32, Option<u32>)> {
        let min = self.number()?;
        let max = match self.take(',') {
            false => Some(min),
            true if self.peek() == Some('}') => None,
            true => Some(self.number()?),
        };
        max.is_none_or(|max| min <= max).then_some((min, max))
    }

    fn number(&mut self) -> Option<u32> {
        let mut number = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            self.rest.next();
            number = Some(number.unwrap_or(0) * 10 + digit).filter(|n| *n <= MAX_REPEATS);
            number?;
        }
        number
    }

    /// After a backslash, which is at byte `at`.
    fn escape(&mut self, in_class: bool, at: usize) -> Parsed<Vec<Range>> {
        let one = |c: u32| Ok(vec![(c, c)]);
        let malformed = |expected| Refused::Malformed { at, expected };
        let digits = || malformed("an escape with the hexadecimal digits of a character");
        let name = self.rest.next().ok_or_else(|| malformed("a character after the backslash"))?;
        if let Some(kind) = kind(name) {
            return Ok(kind);
        }
        match name {
            't' => one(9),
            'n' => one(10),
            'v' => one(11),
            'f' => one(12),
            'r' => one(13),
            'b' if in_class => one(8),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => one(0),
            'x' => one(self.hex(2).ok_or_else(digits)?),
            'u' if self.take('{') => {
                let mut code = 0;
                while !self.take('}') {
                    code = code * 16 + self.hex(1).ok_or_else(digits)?;
                    if code >= END {
                        return Err(digits());
                    }
                }
                one(code)
            }
            'u' => match self.hex(4).ok_or_else(digits)? {
                0xD800..0xE000 => Err(Refused::Unsupported),
                code => one(code),
            },
            '0'..='9' | 'b' | 'B' | 'p' | 'P' | 'k' | 'c' => Err(Refused::Unsupported),
            c if c.is_ascii_alphanumeric() => Err(malformed("an escape of ECMA-262")),
            c => one(c.into()),
        }
    }

    fn hex(&mut self, digits: u32) -> Option<u32> {
        let mut code = 0;
        for _ in 0..digits {
            code = code * 16 + self.rest.next()?.to_digit(16)?;
        }
        Some(code)
    }

    /// After an opening bracket, which is at byte `at`.
    fn class(&mut self, at: usize) -> Parsed<Vec<Range>> {
        let negated = self.take('^');
        let mut ranges = Vec::new();
        while !self.take(']') {
            let begins = self.at();
            let first = self.in_class(at)?;
            if self.peek() == Some('-') && !self.rest.as_str().starts_with("-]") {
                self.rest.next();
                let last = self.in_class(at)?;
                match (&first[..], &last[..]) {
                    ([(from, a)], [(b, to)]) if from == a && b == to && from <= to => {
                        ranges.push((*from, *to))
                    }
                    _ => {
                        let expected = "a range between two characters, the lower one first";
                        return Err(Refused::Malformed { at: begins, expected });
                    }
                }
            } else {
                ranges.extend(first);
            }
        }
        let others_of = others(&ranges);
        Ok(if negated { others_of } else { others(&others_of) })
    }

    /// In the class that begins at byte `class`.
    fn in_class(&mut self, class: usize) -> Parsed<Vec<Range>> {
        let at = self.at();
        match self.rest.next() {
            None => Err(Refused::Malformed { at: class, expected: "a ] that closes the class" }),
            Some('\\') => self.escape(true, at),
            Some(c) => Ok(vec![(c.into(), c.into())]),
        }
    }
}

/// A node of the nondeterministic automaton.
#[derive(Debug)]
enum Node {
    Class(Rc<[Range]>, usize),
    Either(usize, usize),
    Start(usize),
    End(usize),
    Match,
}

/// The remaining budget for the patterns of a grammar.
pub(super) struct Budget {
    work: usize,
    edges: usize,
}

impl Budget {
    pub(super) const fn new() -> Budget {
        Budget { work: MAX_WORK, edges: MAX_EDGES }
    }

    fn spend(&mut self, work: usize) -> Result<()> {
        let max = MAX_WORK as u64;
        let spent = error!(Limit { what: "work of building patterns", found: max + 1, max });
        self.work = self.work.checked_sub(work).ok_or(spent)?;
        Ok(())
    }

    fn keep(&mut self, edges: usize) -> Result<()> {
        let max = MAX_EDGES as u64;
        let full = error!(Limit { what: "size of all patterns", found: max + 1, max });
        self.edges = self.edges.checked_sub(edges).ok_or(full)?;
        Ok(())
    }
}

struct Net<'b> {
    nodes: Vec<Node>,
    budget: &'b mut Budget,
}

/// The nodes of one of several expressions, up to `end`, and the node of its match.
struct Member {
    end: usize,
    found: u32,
}

impl Net<'_> {
    fn too_large() -> Error {
        error!(Limit { what: "size of a pattern", found: MAX_STATES as u64 + 1, max: MAX_STATES as u64 })
    }

    fn spend(&mut self, work: usize) -> Result<()> {
        self.budget.spend(work)
    }

    fn add(&mut self, node: Node) -> Result<usize> {
        if self.nodes.len() == MAX_NODES {
            return Err(Net::too_large());
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    /// Emits an expression that continues at `next`; returns its first node.
    fn emit(&mut self, expression: &Expression, next: usize) -> Result<usize> {
        self.spend(1)?;
        match expression {
            Expression::Class(ranges) => {
                // Each boundary begins and ends a range, and these are sorted.
                self.spend(16 * ranges.len())?;
                self.add(Node::Class(ranges.clone(), next))
            }
            Expression::Start => self.add(Node::Start(next)),
            Expression::End => self.add(Node::End(next)),
            Expression::Sequence(parts) => {
                parts.iter().rev().try_fold(next, |next, part| self.emit(part, next))
            }
            Expression::Choice(choices) => {
                let mut all = None;
                for choice in choices.iter().rev() {
                    let one = self.emit(choice, next)?;
                    all = Some(match all {
                        None => one,
                        Some(others) => self.add(Node::Either(one, others))?,
                    });
                }
                Ok(all.unwrap_or(next))
            }
            Expression::Repeat(part, min, max) => {
                let mut at = next;
                match max {
                    None => {
                        at = self.add(Node::Either(next, next))?;
                        let body = self.emit(part, at)?;
                        if let Some(node) = self.nodes.get_mut(at) {
                            *node = Node::Either(body, next);
                        }
                    }
                    Some(max) => {
                        for _ in *min..*max {
                            let body = self.emit(part, at)?;
                            at = self.add(Node::Either(body, next))?;
                        }
                    }
                }
                for _ in 0..*min {
                    at = self.emit(part, at)?;
                }
                Ok(at)
            }
        }
    }

    /// All nodes reachable from those in `open` without a character, except those that only lead on.
    fn closure(&mut self, mut open: Vec<usize>, at_start: bool, at_end: bool) -> Result<Vec<u32>> {
        let (mut seen, mut set) = (vec![false; self.nodes.len()], Vec::new());
        self.spend(self.nodes.len() / 16)?;
        while let Some(at) = open.pop() {
            match seen.get_mut(at) {
                Some(seen) if !*seen => *seen = true,
                _ => continue,
            }
            self.spend(4)?;
            match self.nodes.get(at) {
                Some(Node::Either(a, b)) => open.extend([*b, *a]),
                Some(Node::Start(next)) if at_start => open.push(*next),
                Some(Node::End(next)) if at_end => open.push(*next),
                Some(Node::Start(_)) | None => {}
                Some(_) => set.push(at as u32),
            }
        }
        sort::sort(&mut set, &|a, b| a.cmp(&b));
        Ok(set)
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Ranges of characters and the state after them; sorted.
    edges: Vec<(Range, u32)>,
    /// Minimum number of bytes to the end.
    left: u32,
}

/// A deterministic automaton; the string can be completed from each of its states.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    states: Vec<State>,
    /// Of plain text, not of a JSON string.
    plain: bool,
}

/// A state being built: its nodes, how many characters precede it, and a hash.
struct Making {
    set: Vec<u32>,
    chars: u32,
    sum: u64,
}

impl Making {
    fn new(set: Vec<u32>, chars: u32) -> Making {
        let mix = |sum: u64, n: &u32| (sum ^ u64::from(*n)).wrapping_mul(0x0100_0000_01B3);
        let sum = set.iter().chain([&chars]).fold(0xCBF2_9CE4_8422_2325, mix);
        Making { set, chars, sum }
    }
}

impl Pattern {
    /// Compiles expressions for strings of `min` to `max` characters that match all of them.
    ///
    /// # Errors
    /// [`Error::Limit`] if it is too large.
    pub(super) fn new(all: &[Expression], min: u32, max: u32, budget: &mut Budget) -> Result<Pattern> {
        let pattern = Pattern::build(all, 0, u32::MAX, false, budget)?;
        let (least, most) = pattern.lengths();
        if least < min || max < most {
            return Pattern::build(all, min, max, false, budget);
        }
        Ok(pattern)
    }

    /// As [`Pattern::new`], with a part of the budget. `None` if that is too little, or if no string matches.
    pub(super) fn attempt(all: &[Expression], min: u32, max: u32, budget: &mut Budget) -> Option<Pattern> {
        let work = budget.work.min(MAX_WORK / 16);
        let mut part = Budget { work, edges: budget.edges };
        let pattern = Pattern::new(all, min, max, &mut part).ok().filter(|pattern| pattern.left(0) != NEVER);
        budget.work -= work - part.work;
        if pattern.is_some() {
            budget.edges = part.edges;
        }
        pattern
    }

    /// The expression that `text` is.
    pub(super) fn parse(text: &str, budget: &mut Budget) -> Result<Parsed<Expression>> {
        budget.spend(text.len())?;
        let mut parser = Parser { text, rest: text.chars(), nesting: 0 };
        let parsed = parser.choice();
        let at = parser.at();
        Ok(match parsed {
            // Only a closing parenthesis ends an alternative before the end of the text.
            Ok(_) if at < text.len() => Err(Refused::Malformed { at, expected: "a ( for each )" }),
            parsed => parsed,
        })
    }

    /// Compiles an expression for plain texts, all of which it matches.
    ///
    /// # Errors
    /// [`Error::Limit`] if it is too large.
    pub(super) fn plain(expression: &Expression, budget: &mut Budget) -> Result<Pattern> {
        Pattern::build(core::slice::from_ref(expression), 0, u32::MAX, true, budget)
    }

    fn build(all: &[Expression], min: u32, max: u32, plain: bool, budget: &mut Budget) -> Result<Pattern> {
        let mut net = Net { nodes: Vec::new(), budget };
        let (mut members, mut entries) = (Vec::new(), Vec::new());
        for expression in all {
            let any = || [(0, END - 1)].into();
            // Any text may follow a match, and any text may precede it.
            let found = net.add(Node::Match)?;
            let tail = net.add(Node::Either(found, found))?;
            let more = net.add(Node::Class(any(), tail))?;
            let begin = net.emit(expression, tail)?;
            let entry = net.add(Node::Either(begin, begin))?;
            let before = net.add(Node::Class(any(), entry))?;
            let around = [(tail, Node::Either(found, more)), (entry, Node::Either(begin, before))];
            for (node, value) in around.into_iter().filter(|_| !plain) {
                if let Some(node) = net.nodes.get_mut(node) {
                    *node = value;
                }
            }
            members.push(Member { end: net.nodes.len(), found: found as u32 });
            entries.push(entry);
        }

        let mut cuts: Vec<u32> = WRITTEN.to_vec();
        cuts.push(ASTRAL);
        for node in &net.nodes {
            if let Node::Class(ranges, _) = node {
                cuts.extend(ranges.iter().flat_map(|range| [range.0, range.1 + 1]));
            }
        }
        sort::sort(&mut cuts, &|a, b| a.cmp(&b));
        cuts.dedup();
        // All characters of a range are written, and lead on, in the same way.
        let kinds: Vec<Range> = cuts
            .iter()
            .zip(cuts.iter().skip(1).chain([&END]))
            .filter(|(from, _)| cost(**from, plain).is_some())
            .map(|(from, to)| (*from, to - 1))
            .collect();

        // Without a maximum, all lengths beyond the minimum are equivalent.
        let most = if max == u32::MAX { min } else { max };
        let mut making = vec![Making::new(net.closure(entries, true, false)?, 0)];
        let mut table = vec![NEVER; 2 * MAX_STATES];
        let mut states: Vec<State> = Vec::new();
        while let Some(Making { set, chars, .. }) = making.get(states.len()) {
            let (set, chars) = (set.clone(), *chars);
            let at_end = net.closure(set.iter().map(|&at| at as usize).collect(), states.is_empty(), true)?;
            let ends = chars >= min && members.iter().all(|member| at_end.contains(&member.found));
            let mut state = State { edges: Vec::new(), left: if ends { 0 } else { NEVER } };
            let mut last: Option<(Vec<usize>, u32)> = None;
            for &(from, to) in &kinds {
                if chars == most && max != u32::MAX {
                    break;
                }
                net.spend(set.len() + 1)?;
                let leads = |at: &u32| match net.nodes.get(*at as usize) {
                    Some(Node::Class(ranges, next)) => {
                        let at = ranges.partition_point(|range| range.1 < from);
                        ranges.get(at).is_some_and(|range| range.0 <= from && to <= range.1).then_some(*next)
                    }
                    _ => None,
                };
                let open: Vec<usize> = set.iter().filter_map(leads).collect();
                // Where one of the expressions cannot go on, none does.
                let mut begin = 0;
                let goes_on = |member: &Member| {
                    let nodes = core::mem::replace(&mut begin, member.end)..member.end;
                    open.iter().any(|at| nodes.contains(at))
                };
                if !members.iter().all(goes_on) {
                    continue;
                }
                let target = match &last {
                    Some((same, target)) if *same == open => *target,
                    _ => {
                        let next =
                            Making::new(net.closure(open.clone(), false, false)?, (chars + 1).min(most));
                        let known = |known: &Making| {
                            known.sum == next.sum && known.chars == next.chars && known.set == next.set
                        };
                        // The first state is at the start of the string; none of those in the table is.
                        let mut slot = next.sum as usize % table.len();
                        loop {
                            let at = table.get(slot).copied().unwrap_or(NEVER);
                            match making.get(at as usize) {
                                Some(there) if known(there) => break at,
                                Some(_) => slot = (slot + 1) % table.len(),
                                None => {
                                    let at = making.len() as u32;
                                    if making.len() == MAX_STATES {
                                        return Err(Net::too_large());
                                    }
                                    if let Some(slot) = table.get_mut(slot) {
                                        *slot = at;
                                    }
                                    making.push(next);
                                    break at;
                                }
                            }
                        }
                    }
                };
                last = Some((open, target));
                match state.edges.last_mut() {
                    Some((range, same)) if *same == target && range.1 + 1 == from => range.1 = to,
                    _ => {
                        net.budget.keep(1)?;
                        state.edges.push(((from, to), target));
                    }
                }
            }
            net.budget.keep(1)?;
            states.push(state);
        }
        let mut pattern = Pattern { states, plain };
        pattern.measure(&Writable::ALL, net.budget)?;
        Ok(pattern)
    }

    /// Characters of the shortest and the longest string.
    fn lengths(&self) -> (u32, u32) {
        let count = self.states.len();
        // States without a path to the end have no edges; all others can be reached from the first.
        let (mut incoming, mut alive) = (vec![0u32; count], 0);
        for state in &self.states {
            alive += usize::from(state.left != NEVER);
            for (_, to) in &state.edges {
                incoming[*to as usize] += 1;
            }
        }
        let ends = |lengths: &[u32]| {
            let ends = self.states.iter().zip(lengths).filter(|(state, _)| state.left == 0);
            ends.map(|(_, length)| *length).collect::<Vec<u32>>()
        };

        let (mut nearest, mut open) = (vec![NEVER; count], Vec::from_iter((count > 0).then_some(0)));
        nearest.iter_mut().take(1).for_each(|first| *first = 0);
        let mut done = 0;
        while let Some(&at) = open.get(done) {
            done += 1;
            for &(_, to) in &self.states[at].edges {
                let to = to as usize;
                if nearest[to] == NEVER {
                    nearest[to] = nearest[at] + 1;
                    open.push(to);
                }
            }
        }
        let least = ends(&nearest).into_iter().min().unwrap_or(NEVER);

        // Each state is done once all that lead to it are; states on a cycle never are.
        let (mut farthest, mut open) =
            (vec![0; count], Vec::from_iter((incoming.first() == Some(&0)).then_some(0)));
        let mut done = 0;
        while let Some(&at) = open.get(done) {
            done += 1;
            for &(_, to) in &self.states[at].edges {
                let to = to as usize;
                farthest[to] = farthest[to].max(farthest[at] + 1);
                incoming[to] -= 1;
                if incoming[to] == 0 {
                    open.push(to);
                }
            }
        }
        let most = if done < alive { NEVER } else { ends(&farthest).into_iter().max().unwrap_or(0) };
        (least, most)
    }

    /// Drops the strings that cannot be written; returns a byte that one of them lacks.
    ///
    /// # Errors
    /// [`Error::Limit`] if the budget is too small.
    pub(super) fn restrict(&mut self, writable: &Writable, budget: &mut Budget) -> Result<Option<u8>> {
        let ranges = self.states.iter().flat_map(|state| &state.edges).map(|(range, _)| *range);
        let lacking = ranges.filter(|range| writable.fewest(*range, self.plain).is_none());
        let lacking = lacking.filter_map(|(from, _)| char::from_u32(from)).next();
        let lacking =
            lacking.and_then(|c| c.encode_utf8(&mut [0; 4]).bytes().find(|byte| !writable.has(*byte)));
        self.states.iter_mut().filter(|state| state.left > 0).for_each(|state| state.left = NEVER);
        self.measure(writable, budget)?;
        Ok(lacking)
    }

    /// Computes the distance of each state to the end, and drops states that never reach it.
    fn measure(&mut self, writable: &Writable, budget: &mut Budget) -> Result<()> {
        loop {
            let mut changed = false;
            for at in 0..self.states.len() {
                let Some(state) = self.states.get(at) else { continue };
                budget.spend(state.edges.len() + 1)?;
                let nearest = state.edges.iter().map(|&edge| self.through(edge, writable)).min();
                if let Some(state) = self.states.get_mut(at)
                    && let Some(nearest) = nearest.filter(|nearest| *nearest < state.left)
                {
                    state.left = nearest;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        let dead: Vec<bool> = self.states.iter().map(|state| state.left == NEVER).collect();
        for state in &mut self.states {
            state.edges.retain(|&(range, to)| {
                dead.get(to as usize) == Some(&false) && writable.fewest(range, self.plain).is_some()
            });
        }
        Ok(())
    }

    /// Minimum number of bytes to the end through the cheapest of these characters.
    fn through(&self, (range, next): (Range, u32), writable: &Writable) -> u32 {
        writable.fewest(range, self.plain).unwrap_or(NEVER).saturating_add(self.left(next))
    }

    /// Minimum number of bytes from a state to the end.
    pub(super) fn left(&self, state: u32) -> u32 {
        self.states.get(state as usize).map_or(NEVER, |state| state.left)
    }

    /// Minimum number of bytes of a text that is not empty.
    pub(super) fn fewest(&self, writable: &Writable) -> u32 {
        let first = self.states.first().map(|state| &state.edges[..]).unwrap_or_default();
        first.iter().map(|&edge| self.through(edge, writable)).min().unwrap_or(NEVER)
    }

    /// Whether a text that has come to `state` ends there.
    pub(super) fn ends(&self, state: u32) -> bool {
        self.states.get(state as usize).is_some_and(|state| state.left == 0 && state.edges.is_empty())
    }

    /// The state after a character.
    fn next(&self, state: u32, c: u32) -> Option<u32> {
        let edges = &self.states.get(state as usize)?.edges;
        let at = edges.partition_point(|((_, to), _)| *to < c);
        edges.get(at).filter(|((from, _), _)| *from <= c).map(|(_, to)| *to)
    }

    /// Minimum number of bytes from within a character to the end; `quoted` gives its pending bytes, and `value` is the
    /// part decoded so far.
    pub(super) fn left_within(&self, state: u32, quoted: Quoted, value: u32, writable: &Writable) -> u32 {
        let Some(edges) = self.states.get(state as usize).map(|state| &state.edges) else { return NEVER };
        if quoted == Quoted::Escape {
            let written = ESCAPES.iter().filter(|(_, letter)| writable.has(*letter));
            let lefts = written.filter_map(|(c, _)| self.next(state, *c)).map(|to| self.left(to));
            return lefts.min().map_or(NEVER, |left| left + 1);
        }
        let pending = quoted.pending();
        let from = (value << (6 * pending)).max(match quoted {
            Quoted::AfterE0 => 0x800,
            Quoted::AfterF0 => ASTRAL,
            _ => 0,
        });
        let to = (value << (6 * pending)) | ((1 << (6 * pending)) - 1);
        let can_be = |&(a, b): &Range| writable.fewest((a.max(from), b.min(to)), true).is_some();
        let meets = edges.iter().filter(|(range, _)| range.0 <= to && from <= range.1 && can_be(range));
        meets.map(|(_, next)| self.left(*next)).min().map_or(NEVER, |left| left.saturating_add(pending))
    }

    /// Takes a byte of a string other than its end; returns the state, the position within a character, and
    /// the part of that character decoded so far.
    pub(super) fn step(
        &self,
        state: u32,
        quoted: Quoted,
        value: u32,
        byte: u8,
        writable: &Writable,
    ) -> Option<(u32, Quoted, u32)> {
        if !writable.has(byte) {
            return None;
        }
        let next = if self.plain { quoted.step_plain(byte) } else { quoted.step(byte, true) };
        let value = match quoted {
            _ if next == Quoted::Dead => return None,
            Quoted::Escape => ESCAPES.iter().find(|(_, letter)| *letter == byte)?.0,
            Quoted::Plain if byte < 0x80 => u32::from(byte),
            // The leading ones of a character's first byte count its bytes: two to four.
            Quoted::Plain => u32::from(byte) & (0x7F >> byte.leading_ones()),
            _ => value << 6 | u32::from(byte & 0x3F),
        };
        match next {
            Quoted::Plain => Some((self.next(state, value)?, Quoted::Plain, 0)),
            next => (self.left_within(state, next, value, writable) != NEVER).then_some((
                state,
                next,
                if next == Quoted::Escape { 0 } else { value },
            )),
        }
    }
}

/// Patterns with lookahead that zod writes beside these formats. All strings that match the pattern of [`format`] match them.
const IMPLIED: [(&str, &str); 2] = [
    (
        "duration",
        r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
    ),
    (
        "hostname",
        r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$",
    ),
];

/// Whether every string that matches the pattern of [`format`] is known to match `pattern`.
pub(super) fn is_implied(format: &str, pattern: &str) -> bool {
    IMPLIED.contains(&(format, pattern))
}

/// A pattern for a format of JSON Schema. All strings that match have the format; some formats also have
/// others. `None` for unsupported formats, an empty pattern for names that JSON Schema does not define.
pub(super) fn format(name: &str) -> Option<&'static str> {
    macro_rules! date {
        () => {
            r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
        };
    }
    macro_rules! time {
        () => {
            r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
        };
    }
    macro_rules! host {
        () => {
            r"[a-z0-9]{1,20}(-[a-z0-9]{1,20})?(\.[a-z][a-z0-9]{0,19}(-[a-z0-9]{1,20})?){0,2}"
        };
    }
    Some(match name {
        "date" => concat!("^", date!(), "$"),
        "time" => concat!("^", time!(), "$"),
        "date-time" => concat!("^", date!(), "T", time!(), "$"),
        "duration" => {
            r"^P(\d{1,4}Y(\d{1,4}M(\d{1,4}D)?)?|\d{1,4}M(\d{1,4}D)?|\d{1,4}D|\d{1,4}W|T(\d{1,4}H(\d{1,4}M(\d{1,4}S)?)?|\d{1,4}M(\d{1,4}S)?|\d{1,4}S))$"
        }
        "uuid" => r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
        "regex" | "relative-json-pointer" => return None,
        "json-pointer" => "^(/[A-Za-z0-9._-]*)*$",
        "email" | "idn-email" => {
            concat!(r"^[A-Za-z0-9_+-]{1,20}(\.[A-Za-z0-9_+-]{1,20})?@", host!(), r"\.[a-z]{2,12}$")
        }
        "hostname" | "idn-hostname" => concat!("^", host!(), "$"),
        "ipv4" => r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$",
        "ipv6" => r"^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$",
        "uri" | "iri" | "uri-reference" | "iri-reference" | "uri-template" => concat!(
            "^[a-z][a-z0-9]{0,15}://",
            host!(),
            r"(:[1-9]\d{0,3})?(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*)*",
            r"(\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*)?(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*)?$"
        ),
        _ => "",
    })
}
