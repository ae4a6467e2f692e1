//! Values of templates, as Python has them.

use super::text::{Pieces, Text};
use minijinja::machinery::ast;
use shohin_core::json;
use std::cell::RefCell;
use std::rc::Rc;

/// How deep lists and dictionaries may be nested.
pub(super) const MAX_NESTING: usize = 160;

#[derive(Clone)]
pub(super) enum Value<'t> {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Text),
    List(Rc<List<'t>>),
    Map(Rc<Map<'t>>),
    Namespace(Rc<Namespace<'t>>),
    /// The variable `loop`.
    Loop(Rc<Loop<'t>>),
    Macro(&'t ast::Macro<'t>),
    /// A function that every template has.
    Function(&'static str),
}

pub(super) type Namespace<'t> = RefCell<Vec<(&'t str, Value<'t>)>>;

/// A list or a tuple.
pub(super) struct List<'t> {
    pub(super) items: Vec<Value<'t>>,
    /// It is shown in other brackets.
    is_tuple: bool,
    nesting: usize,
    /// As [`Value::size`]; a list may be a part of others many times.
    size: usize,
}

/// A dictionary; its keys are texts, in their order.
pub(super) struct Map<'t> {
    pub(super) entries: Vec<(Text, Value<'t>)>,
    nesting: usize,
    size: usize,
}

/// Where a loop is.
pub(super) struct Loop<'t> {
    pub(super) index: usize,
    pub(super) items: Rc<List<'t>>,
    pub(super) depth: usize,
}

impl<'t> Map<'t> {
    pub(super) fn get(&self, key: &str) -> Option<&Value<'t>> {
        self.entries.iter().find(|(name, _)| name.as_str() == key).map(|(_, value)| value)
    }
}

impl<'t> Value<'t> {
    pub(super) fn own(text: &str) -> Value<'t> {
        Value::Text(Text::own(text))
    }

    pub(super) fn foreign(text: &str) -> Value<'t> {
        Value::Text(Text::foreign(text))
    }

    fn nesting(&self) -> usize {
        match self {
            Value::List(list) => list.nesting,
            Value::Map(map) => map.nesting,
            // Dropping a loop drops its items.
            Value::Loop(state) => state.items.nesting,
            _ => 0,
        }
    }

    /// Whether it may be part of another value: what has parts that can change may not, or there could be circles.
    fn can_be_part(&self) -> bool {
        !matches!(self, Value::Namespace(_) | Value::Loop(_) | Value::Macro(_) | Value::Function(_))
    }

    /// `None` if it would be nested too deep, or has a part that cannot be one.
    pub(super) fn list(items: Vec<Value<'t>>) -> Option<Value<'t>> {
        let nesting = 1 + items.iter().map(Value::nesting).max().unwrap_or(0);
        let fits = nesting <= MAX_NESTING && items.iter().all(Value::can_be_part);
        let size = items.iter().map(Value::size).fold(1, usize::saturating_add);
        fits.then(|| Value::List(Rc::new(List { items, is_tuple: false, nesting, size })))
    }

    /// As [`Value::list`], a tuple.
    pub(super) fn tuple(items: Vec<Value<'t>>) -> Option<Value<'t>> {
        match Value::list(items)? {
            Value::List(list) => {
                let list = Rc::try_unwrap(list).ok()?;
                Some(Value::List(Rc::new(List { is_tuple: true, ..list })))
            }
            other => Some(other),
        }
    }

    /// As [`Value::list`]; of equal keys the last one counts.
    pub(super) fn map(pairs: Vec<(Text, Value<'t>)>) -> Option<Value<'t>> {
        let nesting = 1 + pairs.iter().map(|(_, value)| value.nesting()).max().unwrap_or(0);
        let fits = nesting <= MAX_NESTING && pairs.iter().all(|(_, value)| value.can_be_part());
        let mut places = std::collections::HashMap::new();
        let mut entries: Vec<(Text, Value<'t>)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let place = *places.entry(key.as_str().to_owned()).or_insert(entries.len());
            match entries.get_mut(place) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
        }
        let sizes = entries.iter().map(|(key, value)| (1 + key.len() / 16).saturating_add(value.size()));
        let size = sizes.fold(1, usize::saturating_add);
        fits.then(|| Value::Map(Rc::new(Map { entries, nesting, size })))
    }

    /// A JSON value. Its texts, and the names in it, are foreign.
    pub(super) fn from_json(value: json::Value<'_>) -> Value<'t> {
        if let Some(members) = value.members() {
            let pairs =
                members.into_iter().map(|(name, value)| (Text::foreign(&name), Value::from_json(value)));
            return Value::map(pairs.collect()).unwrap_or(Value::Undefined);
        }
        if let Some(elements) = value.elements() {
            return Value::list(elements.into_iter().map(Value::from_json).collect())
                .unwrap_or(Value::Undefined);
        }
        if let Some(text) = value.as_string() {
            return Value::foreign(&text);
        }
        match (value.as_bool(), value.text().parse(), value.as_number()) {
            (Some(it), ..) => Value::Bool(it),
            (_, Ok(number), _) => Value::Int(number),
            (_, _, Some(number)) => Value::Float(number),
            _ => Value::None,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(it) => *it,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Text(text) => text.len() > 0,
            Value::List(list) => !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Namespace(_) | Value::Loop(_) | Value::Macro(_) | Value::Function(_) => true,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// The number, if it is one; booleans count as 0 and 1.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Bool(it) => Some((*it).into()),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            other => other.as_int().map(|number| number as f64),
        }
    }

    /// What it is called in errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::None => "None",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a dictionary",
            Value::Namespace(_) => "a namespace",
            Value::Loop(_) => "loop",
            Value::Macro(_) | Value::Function(_) => "a function",
        }
    }

    /// About how many parts it has, for what it costs to look at all of them.
    pub(super) fn size(&self) -> usize {
        match self {
            Value::Text(text) => 1 + text.len() / 16,
            Value::List(list) => list.size,
            Value::Map(map) => map.size,
            _ => 1,
        }
    }

    /// About how many parts it has, without those of its parts.
    pub(super) fn breadth(&self) -> usize {
        match self {
            Value::List(list) => 1 + list.items.len(),
            Value::Map(map) => 1 + map.entries.len(),
            other => other.size(),
        }
    }

    /// Whether Python says that both are equal.
    pub(super) fn equals(&self, other: &Value<'t>) -> bool {
        match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => a.as_str() == b.as_str(),
            (Value::List(a), Value::List(b)) => {
                a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(|(a, b)| a.equals(b))
            }
            (Value::Map(a), Value::Map(b)) => {
                let same = |(key, value): &(Text, Value<'t>)| {
                    b.get(key.as_str()).is_some_and(|other| value.equals(other))
                };
                a.entries.len() == b.entries.len() && a.entries.iter().all(same)
            }
            (a, b) => match (a.as_int(), b.as_int(), a.as_float(), b.as_float()) {
                (Some(a), Some(b), ..) => a == b,
                (_, _, Some(a), Some(b)) => a == b,
                _ => false,
            },
        }
    }

    /// Writes what Python's `str` makes of it. False if it has no text.
    pub(super) fn show(&self, out: &mut Pieces) -> bool {
        match self {
            Value::Undefined => {}
            Value::Text(text) => out.text(text),
            other => return other.repr(out),
        }
        true
    }

    /// Writes what Python's `repr` makes of it. False if it has none.
    fn repr(&self, out: &mut Pieces) -> bool {
        match self {
            Value::None => out.own("None"),
            Value::Bool(it) => out.own(if *it { "True" } else { "False" }),
            Value::Int(number) => out.own(&number.to_string()),
            Value::Float(number) => out.own(&float(*number)),
            Value::Text(text) => quoted(text, out),
            Value::List(list) => {
                out.own(if list.is_tuple { "(" } else { "[" });
                for (i, item) in list.items.iter().enumerate() {
                    out.own(if i > 0 { ", " } else { "" });
                    if !item.repr(out) {
                        return false;
                    }
                }
                out.own(match (list.is_tuple, list.items.len()) {
                    (true, 1) => ",)",
                    (true, _) => ")",
                    (false, _) => "]",
                });
            }
            Value::Map(map) => {
                out.own("{");
                for (i, (key, value)) in map.entries.iter().enumerate() {
                    out.own(if i > 0 { ", " } else { "" });
                    quoted(key, out);
                    out.own(": ");
                    if !value.repr(out) {
                        return false;
                    }
                }
                out.own("}");
            }
            Value::Undefined
            | Value::Namespace(_)
            | Value::Loop(_)
            | Value::Macro(_)
            | Value::Function(_) => return false,
        }
        true
    }
}

/// A string as Python quotes it.
fn quoted(text: &Text, out: &mut Pieces) {
    let quote = if text.as_str().contains('\'') && !text.as_str().contains('"') { '"' } else { '\'' };
    out.char(quote, false);
    text.each(|c, foreign| match c {
        '\n' => out.own("\\n"),
        '\r' => out.own("\\r"),
        '\t' => out.own("\\t"),
        '\\' => out.own("\\\\"),
        c if c == quote => out.own(if c == '"' { "\\\"" } else { "\\'" }),
        c if c < ' ' || c == '\x7f' => out.own(&format!("\\x{:02x}", c as u32)),
        c => out.char(c, foreign),
    });
    out.char(quote, false);
}

/// A number as Python shows it.
pub(super) fn float(number: f64) -> String {
    let text = match number {
        n if n.is_nan() => return "nan".into(),
        n if n.is_infinite() => return if n > 0.0 { "inf".into() } else { "-inf".into() },
        n => format!("{n:?}"),
    };
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |rest| ("-", rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}
