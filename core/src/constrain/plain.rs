//! Grammars of plain text: choices, regular expressions and GBNF.
//!
//! Rules become nodes without empty texts: a part that may be empty is left out in an alternative. Whatever has no
//! reference to a rule is one automaton.
#![forbid(unsafe_code)]

use super::characters::Range;
use super::grammar::{Grammar, MAX_NODES, Node, NodeId, Text, Whitespace};
use super::pattern::{self, Budget, Expression, Pattern, Refused, others};
use super::writable::Writable;
use crate::error::{Error, Name, Result};
use crate::sort;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Maximum number of bytes of a grammar.
const MAX_BYTES: usize = 1 << 16;
/// Largest nesting of groups, and of rules that begin with one another.
const MAX_NESTING: usize = 64;
/// Largest bound of a repetition.
const MAX_REPEATS: u32 = 4096;
/// Largest expression of a rule that is copied to where the rule is used.
const MAX_COPIED: usize = 256;
/// Maximum number of parts of all copies together.
const MAX_COPIES: usize = 1 << 16;
/// Maximum number of rounds over all rules to find those that may be empty.
const MAX_ROUNDS: usize = 256;
/// Maximum number of choices.
const MAX_CHOICES: usize = 4096;

impl Grammar {
    /// One of these texts.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is none, or an empty one; [`Error::Limit`] for more than 4096.
    pub fn choices<T: AsRef<str>>(choices: &[T]) -> Result<Grammar> {
        let refused = |problem| error!(Argument { name: Name::new("choices"), problem });
        if choices.is_empty() || choices.iter().any(|choice| choice.as_ref().is_empty()) {
            return Err(refused("must be texts, at least one, none of them empty"));
        }
        if choices.len() > MAX_CHOICES {
            let found = choices.len() as u64;
            return Err(error!(Limit { what: "number of choices", found, max: MAX_CHOICES as u64 }));
        }
        let text = |i: u32| choices.get(i as usize).map_or("", |choice| choice.as_ref()).as_bytes();
        let order = sort::sorted(choices.len(), &|a, b| text(a).cmp(text(b)));
        let mut texts: Vec<&[u8]> = order.into_iter().map(text).collect();
        texts.dedup();
        finish(vec![Node::Texts(texts.into_iter().map(Text::new).collect())], 0, "choices")
    }

    /// Texts that the regular expression matches from beginning to end, at least one character. The syntax is that of
    /// `pattern` in JSON Schema.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for lookaround, back references, `\b` and `\p`; [`Error::Regex`] for what is no expression;
    /// [`Error::Limit`] for one that is too large, [`Error::Argument`] for one that no text matches.
    pub fn regex(expression: &str) -> Result<Grammar> {
        let mut budget = Budget::new();
        let parsed = Pattern::parse(expression, &mut budget)?.map_err(|refused| match refused {
            Refused::Unsupported => error!(Unsupported {
                key: Name::new("regex"),
                found: Name::new(expression),
                expected: "a regular expression without lookaround, back references, \\b and \\p",
            }),
            Refused::Malformed { at, expected } => {
                let found = Name::new(expression.get(at..).unwrap_or_default());
                error!(Regex { at: at as u64, found, expected })
            }
        })?;
        let pattern = Pattern::plain(&parsed, &mut budget)?;
        finish(vec![Node::Plain(Box::new(pattern))], 0, "regex")
    }

    /// Texts of the rule `root` of a grammar in GBNF, llama.cpp's notation, at least one character: rules
    /// `name ::= "text" [a-z] (other | rule)* .{2,3}`, and comments after `#`.
    ///
    /// # Errors
    /// [`Error::Grammar`] with the line for what is no grammar, a rule that is missing or begins with itself, and for
    /// tokens in angle brackets; [`Error::Limit`] for one that is too large, [`Error::Argument`] for one without a text.
    pub fn gbnf(text: &str) -> Result<Grammar> {
        if text.len() > MAX_BYTES {
            let (found, max) = (text.len() as u64, MAX_BYTES as u64);
            return Err(error!(Limit { what: "bytes of a grammar", found, max }));
        }
        let mut parser = Parser { text, at: 0, rules: Vec::new(), nesting: 0 };
        parser.rules()?;
        let mut rules = parser.rules;
        let Some(root) = rules.iter().position(|rule| rule.name == "root") else {
            return Err(error!(Grammar { line: 1, problem: "has no rule root", found: Name::new("") }));
        };
        inline(&mut rules);
        let mut compiler = Compiler { nodes: Vec::new(), nullable: nullable(&rules)?, budget: Budget::new() };
        // A node for each rule, so that rules can refer to one another.
        compiler.nodes.extend(rules.iter().map(|_| Node::Any(Vec::new())));
        for (i, rule) in rules.iter().enumerate() {
            let Some(body) = &rule.body else {
                let found = Name::new(rule.name);
                return Err(error!(Grammar {
                    line: line(text, rule.at),
                    problem: "uses a rule that is missing",
                    found,
                }));
            };
            let body = compiler.item(body)?;
            if let Some(node) = compiler.nodes.get_mut(i) {
                *node = Node::Any(Vec::from_iter(body));
            }
        }
        if let Some(rule) = left_recursive(&compiler.nodes).and_then(|node| rules.get(node)) {
            let problem =
                "has a rule that begins with itself, or rules that begin with one another too deeply";
            return Err(error!(Grammar { line: line(text, rule.at), problem, found: Name::new(rule.name) }));
        }
        finish(compiler.nodes, root as NodeId, "grammar")
    }
}

/// The grammar of text `root`.
fn finish(nodes: Vec<Node>, root: NodeId, name: &str) -> Result<Grammar> {
    Grammar::finish(nodes, root, Whitespace::None.first()).map_err(|error| match error {
        Error::Option { .. } => {
            error!(Argument { name: Name::new(name), problem: "has no text of at least one character" })
        }
        error => error,
    })
}

/// A rule; without a body until it has been defined.
struct Rule<'t> {
    name: &'t str,
    /// Where it is defined, else first used, in bytes.
    at: usize,
    body: Option<Item>,
}

/// The line of a byte.
fn line(text: &str, at: usize) -> usize {
    1 + text.get(..at).unwrap_or_default().matches('\n').count()
}

/// A part of a rule.
#[derive(Clone, Debug)]
enum Item {
    /// Without references to rules.
    Regular(Expression),
    Rule(usize),
    Sequence(Vec<Item>),
    Choice(Vec<Item>),
    Repeat(Box<Item>, u32, Option<u32>),
}

/// The expressions of items that are all regular; the items themselves if one is not.
fn regular(items: Vec<Item>) -> core::result::Result<Vec<Expression>, Vec<Item>> {
    if !items.iter().all(|item| matches!(item, Item::Regular(_))) {
        return Err(items);
    }
    let expression = |item| match item {
        Item::Regular(expression) => Some(expression),
        _ => None,
    };
    Ok(items.into_iter().filter_map(expression).collect())
}

impl Item {
    fn sequence(items: Vec<Item>) -> Item {
        // Neighbours without references become one automaton.
        let mut joined: Vec<Item> = Vec::new();
        for item in items {
            match (joined.last_mut(), item) {
                (Some(Item::Regular(Expression::Sequence(parts))), Item::Regular(next)) => parts.push(next),
                (_, Item::Regular(first)) => joined.push(Item::Regular(Expression::Sequence(vec![first]))),
                (_, item) => joined.push(item),
            }
        }
        if joined.is_empty() {
            return Item::Regular(Expression::Sequence(Vec::new()));
        }
        match joined.len() {
            1 => joined.remove(0),
            _ => Item::Sequence(joined),
        }
    }

    fn choice(items: Vec<Item>) -> Item {
        match regular(items) {
            Ok(choices) => Item::Regular(Expression::Choice(choices)),
            Err(items) => Item::Choice(items),
        }
    }

    fn repeat(item: Item, min: u32, max: Option<u32>) -> Item {
        match item {
            Item::Regular(body) => Item::Regular(Expression::Repeat(Box::new(body), min, max)),
            item => Item::Repeat(Box::new(item), min, max),
        }
    }

    /// Replaces references to known rules by the rules, while there is room for copies.
    fn inlined(self, known: &[Option<Expression>], room: &mut usize) -> Item {
        let mut all = |items: Vec<Item>| items.into_iter().map(|item| item.inlined(known, room)).collect();
        match self {
            Item::Regular(_) => self,
            Item::Rule(rule) => match known.get(rule) {
                Some(Some(expression)) if size(expression) <= *room => {
                    *room -= size(expression);
                    Item::Regular(expression.clone())
                }
                _ => self,
            },
            Item::Sequence(items) => Item::sequence(all(items)),
            Item::Choice(items) => Item::choice(all(items)),
            Item::Repeat(item, min, max) => Item::repeat(item.inlined(known, room), min, max),
        }
    }
}

/// The parts of an expression.
fn size(expression: &Expression) -> usize {
    match expression {
        Expression::Sequence(parts) | Expression::Choice(parts) => 1 + parts.iter().map(size).sum::<usize>(),
        Expression::Repeat(part, ..) => 1 + size(part),
        Expression::Class(_) | Expression::Start | Expression::End => 1,
    }
}

/// Copies small rules without references to where they are used. What is not copied stays a reference.
fn inline(rules: &mut [Rule<'_>]) {
    let small = |rule: &Rule<'_>| match &rule.body {
        Some(Item::Regular(expression)) if size(expression) <= MAX_COPIED => Some(expression.clone()),
        _ => None,
    };
    let mut known: Vec<Option<Expression>> = rules.iter().map(small).collect();
    let mut room = MAX_COPIES;
    // Rules mostly come before those they use: from the last to the first, one round does most.
    for _ in 0..MAX_NESTING {
        let mut changed = false;
        for (number, rule) in rules.iter_mut().enumerate().rev() {
            if matches!(rule.body, Some(Item::Regular(_))) {
                continue;
            }
            rule.body = rule.body.take().map(|body| body.inlined(&known, &mut room));
            if let (Some(expression), Some(known)) = (small(rule), known.get_mut(number)) {
                *known = Some(expression);
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

/// Whether an expression matches the empty text.
fn may_be_empty(expression: &Expression) -> bool {
    match expression {
        Expression::Class(_) => false,
        Expression::Sequence(parts) => parts.iter().all(may_be_empty),
        Expression::Choice(choices) => choices.iter().any(may_be_empty),
        Expression::Repeat(part, min, _) => *min == 0 || may_be_empty(part),
        Expression::Start | Expression::End => true,
    }
}

fn item_may_be_empty(item: &Item, rules: &[bool]) -> bool {
    match item {
        Item::Regular(expression) => may_be_empty(expression),
        Item::Rule(rule) => rules.get(*rule) == Some(&true),
        Item::Sequence(items) => items.iter().all(|item| item_may_be_empty(item, rules)),
        Item::Choice(items) => items.iter().any(|item| item_may_be_empty(item, rules)),
        Item::Repeat(item, min, _) => *min == 0 || item_may_be_empty(item, rules),
    }
}

/// For each rule whether it has the empty text.
fn nullable(rules: &[Rule<'_>]) -> Result<Vec<bool>> {
    let mut nullable = vec![false; rules.len()];
    for round in 0..MAX_ROUNDS {
        let mut changed = false;
        // In both directions, since a rule may come before or after those it uses.
        for i in 0..rules.len() {
            let i = if round % 2 == 0 { rules.len() - 1 - i } else { i };
            if !nullable[i] && rules[i].body.as_ref().is_some_and(|body| item_may_be_empty(body, &nullable)) {
                (nullable[i], changed) = (true, true);
            }
        }
        if !changed {
            return Ok(nullable);
        }
    }
    let (found, max) = (MAX_ROUNDS as u64 + 1, MAX_ROUNDS as u64);
    Err(error!(Limit { what: "number of rules that may be empty because others may", found, max }))
}

/// The first rule on a way from a node to itself, or to more than [`MAX_NESTING`] others, without a character.
fn left_recursive(nodes: &[Node]) -> Option<usize> {
    // How deep each node begins; 0 while it is being looked at.
    let mut depths: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut path: Vec<(usize, usize)> = Vec::new();
    for start in 0..nodes.len() {
        if depths[start].is_some() {
            continue;
        }
        depths[start] = Some(0);
        path.push((start, 0));
        while let Some((node, next)) = path.last_mut() {
            let first: &[NodeId] = match &nodes[*node] {
                Node::Any(choices) => choices,
                Node::Sequence { parts, .. } => parts.get(..1).unwrap_or_default(),
                _ => &[],
            };
            let node = *node;
            if let Some(&child) = first.get(*next) {
                *next += 1;
                match depths[child as usize] {
                    None => {
                        depths[child as usize] = Some(0);
                        path.push((child as usize, 0));
                    }
                    Some(0) => return Some(rule_of(&path, nodes)),
                    Some(_) => {}
                }
                continue;
            }
            let deepest = first.iter().filter_map(|&child| depths[child as usize]).max().unwrap_or(0);
            if deepest >= 4 * MAX_NESTING {
                return Some(rule_of(&path, nodes));
            }
            depths[node] = Some(deepest + 1);
            path.pop();
        }
    }
    None
}

/// The latest rule on a path: the nodes of rules are the first.
fn rule_of(path: &[(usize, usize)], nodes: &[Node]) -> usize {
    path.iter().map(|(node, _)| *node).min().unwrap_or(nodes.len())
}

struct Compiler {
    nodes: Vec<Node>,
    nullable: Vec<bool>,
    budget: Budget,
}

impl Compiler {
    fn add(&mut self, node: Node) -> Result<NodeId> {
        if self.nodes.len() >= MAX_NODES {
            let (found, max) = (self.nodes.len() as u64 + 1, MAX_NODES as u64);
            return Err(error!(Limit { what: "size of the grammar", found, max }));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() as NodeId - 1)
    }

    /// The node of an item's texts that are not empty, if it has any.
    fn item(&mut self, item: &Item) -> Result<Option<NodeId>> {
        match item {
            Item::Regular(expression) => {
                let pattern = Pattern::plain(expression, &mut self.budget)?;
                match pattern.fewest(&Writable::ALL) {
                    u32::MAX => Ok(None),
                    _ => self.add(Node::Plain(Box::new(pattern))).map(Some),
                }
            }
            Item::Rule(rule) => Ok(Some(*rule as NodeId)),
            Item::Choice(items) => {
                let mut choices = Vec::new();
                for item in items {
                    choices.extend(self.item(item)?);
                }
                if choices.is_empty() { Ok(None) } else { self.one_of(choices, MAX_NESTING).map(Some) }
            }
            Item::Sequence(items) => {
                let mut rest = None;
                let mut rest_may_be_empty = true;
                for item in items.iter().rev() {
                    let one = self.item(item)?;
                    let may_be_empty = item_may_be_empty(item, &self.nullable);
                    rest = self.followed(one, may_be_empty, rest, rest_may_be_empty)?;
                    rest_may_be_empty &= may_be_empty;
                }
                Ok(rest)
            }
            Item::Repeat(item, min, max) => {
                let one = self.item(item)?;
                let Some(once) = one else { return Ok(None) };
                // Repetitions that may be empty need not be there.
                let min = if item_may_be_empty(item, &self.nullable) { 0 } else { *min };
                let mut rest = match max {
                    None => {
                        let more = self.nodes.len() as NodeId;
                        Some(self.add(Node::Sequence { parts: vec![once, more], may_end: true })?)
                    }
                    Some(max) => {
                        let mut rest = None;
                        for _ in min..*max {
                            rest = self.followed(one, false, rest, true)?;
                        }
                        rest
                    }
                };
                let mut rest_may_be_empty = true;
                for _ in 0..min {
                    rest = self.followed(one, false, rest, rest_may_be_empty)?;
                    rest_may_be_empty = false;
                }
                Ok(rest)
            }
        }
    }

    /// `one` and then `rest`, where each may be empty: their texts that are not empty together.
    fn followed(
        &mut self,
        one: Option<NodeId>,
        one_may_be_empty: bool,
        rest: Option<NodeId>,
        rest_may_be_empty: bool,
    ) -> Result<Option<NodeId>> {
        let mut choices = Vec::new();
        if let (Some(one), Some(rest)) = (one, rest) {
            choices.push(self.add(Node::Sequence { parts: vec![one, rest], may_end: rest_may_be_empty })?);
        } else {
            choices.extend(one.filter(|_| rest_may_be_empty));
        }
        choices.extend(rest.filter(|_| one_may_be_empty));
        if choices.is_empty() { Ok(None) } else { self.one_of(choices, MAX_NESTING).map(Some) }
    }

    /// One of these nodes. Those that begin alike are followed together until they differ: `a "+" b | a "-" b | a` becomes
    /// `a ("+" b | "-" b)?`, or every level of operators would double what a byte begins.
    fn one_of(&mut self, choices: Vec<NodeId>, nesting: usize) -> Result<NodeId> {
        /// What follows a beginning, and whether nothing may.
        #[derive(Default)]
        struct Rests {
            nodes: Vec<NodeId>,
            may_end: bool,
        }
        if let [only] = choices[..] {
            return Ok(only);
        }
        let (mut order, mut groups) = (Vec::new(), BTreeMap::<NodeId, Rests>::new());
        for &choice in &choices {
            let (first, rest, may_end) = match self.nodes.get(choice as usize) {
                Some(Node::Sequence { parts, may_end }) if let [first, rest] = parts[..] => {
                    (first, Some(rest), *may_end)
                }
                _ => (choice, None, true),
            };
            let rests = groups.entry(first).or_insert_with(|| {
                order.push(first);
                Rests::default()
            });
            rests.nodes.extend(rest);
            rests.may_end |= may_end;
        }
        if nesting == 0 || order.len() == choices.len() {
            return self.add(Node::Any(choices));
        }
        let mut merged = Vec::new();
        for first in order {
            let Some(Rests { nodes, may_end }) = groups.remove(&first) else { continue };
            merged.push(if nodes.is_empty() {
                first
            } else {
                // Repetitions are followed by themselves.
                let nesting = if nodes == choices { 0 } else { nesting - 1 };
                let rest = self.one_of(nodes, nesting)?;
                self.add(Node::Sequence { parts: vec![first, rest], may_end })?
            });
        }
        match merged[..] {
            [only] => Ok(only),
            _ => self.add(Node::Any(merged)),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    /// The byte that is next.
    at: usize,
    rules: Vec<Rule<'t>>,
    nesting: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn wrong(&self, problem: &'static str) -> Error {
        let found: String = self.rest().chars().take_while(|c| *c != '\n').take(20).collect();
        error!(Grammar { line: line(self.text, self.at), problem, found: Name::new(found) })
    }

    /// White space and comments; line ends too, if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' => self.at += 1,
                '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Option<&'t str> {
        let rest = self.rest();
        let len =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        self.at += len;
        rest.get(..len).filter(|name| !name.is_empty())
    }

    /// The number of the rule `name`.
    fn rule(&mut self, name: &'t str) -> usize {
        let known = self.rules.iter().position(|rule| rule.name == name);
        known.unwrap_or_else(|| {
            self.rules.push(Rule { name, at: self.at, body: None });
            self.rules.len() - 1
        })
    }

    fn rules(&mut self) -> Result<()> {
        self.space(true);
        while self.peek().is_some() {
            let at = self.at;
            let Some(name) = self.name() else { return Err(self.wrong("expects the name of a rule")) };
            self.space(false);
            if !self.take("::=") {
                return Err(self.wrong("expects ::= after the name of a rule"));
            }
            self.space(true);
            let rule = self.rule(name);
            let body = self.choice(false)?;
            if self.peek().is_some_and(|c| c != '\n') {
                return Err(self.wrong("expects a text, a class, a rule or a group"));
            }
            match self.rules.get_mut(rule) {
                Some(Rule { body: Some(_), .. }) => {
                    let (line, found) = (line(self.text, at), Name::new(name));
                    return Err(error!(Grammar { line, problem: "has two rules", found }));
                }
                Some(rule) => (rule.at, rule.body) = (at, Some(body)),
                None => {}
            }
            self.space(true);
        }
        Ok(())
    }

    /// Alternatives, over several lines within a group.
    fn choice(&mut self, group: bool) -> Result<Item> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.wrong("nests groups too deeply"));
        }
        let mut choices = vec![self.sequence(group)?];
        loop {
            let before = self.at;
            // An alternative may begin on the next line.
            self.space(true);
            if !self.take("|") {
                self.at = if group { self.at } else { before };
                break;
            }
            self.space(true);
            choices.push(self.sequence(group)?);
        }
        self.nesting -= 1;
        Ok(Item::choice(choices))
    }

    fn sequence(&mut self, group: bool) -> Result<Item> {
        let mut items = Vec::new();
        loop {
            self.space(group);
            let item = match self.peek() {
                Some('"') => {
                    let opening = self.at;
                    self.at += 1;
                    let mut texts = Vec::new();
                    while !self.take("\"") {
                        self.within(opening, "has a text without an end")?;
                        let c = self.character("ends within a text")?;
                        texts.push(Expression::Class([(c, c)].into()));
                    }
                    Item::Regular(Expression::Sequence(texts))
                }
                Some('[') => {
                    self.at += 1;
                    Item::Regular(Expression::Class(self.class()?.into()))
                }
                Some('.') => {
                    self.at += 1;
                    Item::Regular(Expression::Class(others(&[]).into()))
                }
                Some('(') => {
                    self.at += 1;
                    self.space(true);
                    let item = self.choice(true)?;
                    if !self.take(")") {
                        return Err(self.wrong("expects ) at the end of a group"));
                    }
                    item
                }
                Some(c) if c.is_ascii_alphanumeric() => {
                    let name = self.name().unwrap_or_default();
                    Item::Rule(self.rule(name))
                }
                _ => return Ok(Item::sequence(items)),
            };
            items.push(self.repeated(item)?);
        }
    }

    /// An item with what says how often it is repeated.
    fn repeated(&mut self, mut item: Item) -> Result<Item> {
        loop {
            let before = self.at;
            self.space(false);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let wrong = "expects {count}, {min,} or {min,max} of at most 4096";
                    let number = |parser: &mut Self| {
                        parser.space(false);
                        let rest = parser.rest();
                        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                        let number = rest.get(..len)?.parse().ok().filter(|n: &u32| *n <= MAX_REPEATS)?;
                        parser.at += len;
                        parser.space(false);
                        Some(number)
                    };
                    let min = number(self).ok_or_else(|| self.wrong(wrong))?;
                    let max = match self.take(",") {
                        false => Some(min),
                        true => number(self),
                    };
                    if self.peek() != Some('}') || max.is_some_and(|max| max < min) {
                        return Err(self.wrong(wrong));
                    }
                    (min, max)
                }
                _ => {
                    self.at = before;
                    return Ok(item);
                }
            };
            self.at += 1;
            item = Item::repeat(item, min, max);
        }
    }

    /// After an opening bracket.
    fn class(&mut self) -> Result<Vec<Range>> {
        let cut = "ends within a class";
        let opening = self.at - 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            self.within(opening, "has a class without an end")?;
            if let Some(kind) = self.kind() {
                ranges.extend(kind);
                continue;
            }
            let first = self.character(cut)?;
            let last = if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                self.character(cut)?
            } else {
                first
            };
            if last < first {
                return Err(self.wrong("has a class with a range whose end is before its beginning"));
            }
            ranges.push((first, last));
        }
        let all_others = others(&ranges);
        Ok(if negated { all_others } else { others(&all_others) })
    }

    /// The characters of an escape such as `\d`, which grammars that were made from regular expressions have.
    fn kind(&mut self) -> Option<Vec<Range>> {
        let name = self.rest().strip_prefix('\\')?.chars().next()?;
        let kind = pattern::kind(name)?;
        self.at += 2;
        Some(kind)
    }

    /// Refuses the end of the grammar, for what begins at `opening`.
    fn within(&mut self, opening: usize, problem: &'static str) -> Result<()> {
        if self.peek().is_none() {
            self.at = opening;
            return Err(self.wrong(problem));
        }
        Ok(())
    }

    /// A character of a text or a class, which may be a line end.
    fn character(&mut self, cut: &'static str) -> Result<u32> {
        match self.next() {
            None => Err(self.wrong(cut)),
            Some('\\') => {
                let escape = self.at - 1;
                let digits = match self.next() {
                    Some('n') => return Ok(10),
                    Some('r') => return Ok(13),
                    Some('t') => return Ok(9),
                    // Each stands for itself.
                    Some(c) if c.is_ascii_punctuation() => return Ok(c.into()),
                    Some('x') => 2,
                    Some('u') => 4,
                    Some('U') => 8,
                    _ => {
                        self.at = escape;
                        return Err(self.wrong("has an escape that is not known"));
                    }
                };
                let code = self.rest().get(..digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let code = code.filter(|code| char::from_u32(*code).is_some());
                let code = code.ok_or_else(|| self.wrong("expects the digits of a character"))?;
                self.at += digits;
                Ok(code)
            }
            Some(c) => Ok(c.into()),
        }
    }
}
