//! What a template has while it is executed, its bounds, and what all operations need.

use super::text::{Pieces, Text};
use super::value::Value;
use minijinja::machinery::ast::CompareOpKind;

/// Why a template fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fail {
    pub(super) line: u32,
    pub(super) problem: &'static str,
    pub(super) found: String,
}

pub(super) type Result<T, E = Box<Fail>> = std::result::Result<T, E>;

/// What a template may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Steps: parts of expressions, items of loops, and for each 16 bytes of a text that is read or written.
    pub(super) steps: usize,
    /// Bytes of all texts, lists and dictionaries that are made.
    pub(super) bytes: usize,
}

/// Arguments of a call.
pub(super) struct Args<'t> {
    pub(super) list: Vec<Value<'t>>,
    pub(super) named: Vec<(&'t str, Value<'t>)>,
}

impl<'t> Args<'t> {
    /// The argument at this place or with this name.
    pub(super) fn get(&self, place: usize, name: &str) -> Option<&Value<'t>> {
        let named = || self.named.iter().find(|(given, _)| *given == name).map(|(_, value)| value);
        self.list.get(place).or_else(named)
    }
}

/// A template that is executed.
pub(super) struct Eval<'t> {
    pub(super) left: Bounds,
    pub(super) line: u32,
    pub(super) depth: usize,
    /// Variables by their scopes, the outermost first.
    pub(super) scopes: Vec<Vec<(&'t str, Value<'t>)>>,
    /// The first scope of the macro that is executed; it sees the outermost one, too.
    pub(super) floor: usize,
    pub(super) out: Vec<Pieces>,
    /// Loops within each other.
    pub(super) loops: usize,
    /// Seconds since 1970, if the template can ask for the date.
    pub(super) now: Option<i64>,
}

impl<'t> Eval<'t> {
    pub(super) fn new(globals: Vec<(&'t str, Value<'t>)>, bounds: Bounds, now: Option<i64>) -> Eval<'t> {
        let out = vec![Pieces::new(bounds.bytes)];
        Eval { left: bounds, line: 1, depth: 0, scopes: vec![globals], floor: 0, out, loops: 0, now }
    }

    pub(super) fn fail<T>(&self, problem: &'static str, found: impl Into<String>) -> Result<T> {
        Err(Box::new(Fail { line: self.line, problem, found: found.into() }))
    }

    pub(super) fn out_of_memory(&self) -> Box<Fail> {
        let problem = "makes texts or lists that are too large";
        Box::new(Fail { line: self.line, problem, found: String::new() })
    }

    /// Takes steps off those that are left.
    pub(super) fn spend(&mut self, steps: usize) -> Result<()> {
        match self.left.steps.checked_sub(steps) {
            Some(left) => self.left.steps = left,
            None => return self.fail("takes too many steps", ""),
        }
        Ok(())
    }

    /// Takes bytes off those that are left.
    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        self.spend(1 + bytes / 16)?;
        match self.left.bytes.checked_sub(bytes) {
            Some(left) => self.left.bytes = left,
            None => return Err(self.out_of_memory()),
        }
        Ok(())
    }

    /// Room for a text as large as may be.
    pub(super) fn pieces(&self) -> Pieces {
        Pieces::new(self.left.bytes)
    }

    /// The text that was written.
    pub(super) fn text(&mut self, pieces: Pieces) -> Result<Value<'t>> {
        Ok(Value::Text(self.finish(pieces)?))
    }

    pub(super) fn finish(&mut self, pieces: Pieces) -> Result<Text> {
        if pieces.is_over() {
            return Err(self.out_of_memory());
        }
        self.take(pieces.len())?;
        Ok(pieces.into())
    }

    /// A part of a text.
    pub(super) fn part(&mut self, text: &Text, range: std::ops::Range<usize>) -> Result<Value<'t>> {
        self.take(range.len())?;
        Ok(Value::Text(text.slice(range)))
    }

    pub(super) fn list(&mut self, items: Vec<Value<'t>>) -> Result<Value<'t>> {
        self.made(items, Value::list)
    }

    pub(super) fn tuple(&mut self, items: Vec<Value<'t>>) -> Result<Value<'t>> {
        self.made(items, Value::tuple)
    }

    fn made(
        &mut self,
        items: Vec<Value<'t>>,
        make: fn(Vec<Value<'t>>) -> Option<Value<'t>>,
    ) -> Result<Value<'t>> {
        self.take(size_of_val(items.as_slice()))?;
        match make(items) {
            Some(list) => Ok(list),
            None => self.fail("makes a list that cannot be made", "nested too deep, or of a namespace"),
        }
    }

    pub(super) fn map(&mut self, pairs: Vec<(Text, Value<'t>)>) -> Result<Value<'t>> {
        self.take(2 * size_of_val(pairs.as_slice()))?;
        match Value::map(pairs) {
            Some(map) => Ok(map),
            None => self.fail("makes a dictionary that cannot be made", "nested too deep, or of a namespace"),
        }
    }

    /// Writes what Python's `str` makes of a value.
    pub(super) fn show(&mut self, value: &Value<'t>, out: &mut Pieces) -> Result<()> {
        self.spend(value.size())?;
        if value.show(out) { Ok(()) } else { self.fail("shows what has no text", value.kind()) }
    }

    /// The text that Python's `str` makes of a value.
    pub(super) fn shown(&mut self, value: &Value<'t>) -> Result<Text> {
        if let Value::Text(text) = value {
            return Ok(text.clone());
        }
        let mut pieces = self.pieces();
        self.show(value, &mut pieces)?;
        self.finish(pieces)
    }

    pub(super) fn now(&self) -> Option<i64> {
        self.now
    }

    /// What a loop over the value goes through.
    pub(super) fn items(&mut self, value: &Value<'t>) -> Result<Vec<Value<'t>>> {
        self.take(match value {
            Value::Text(text) => text.len() * 64,
            Value::List(list) => size_of_val(list.items.as_slice()),
            Value::Map(map) => map.entries.len() * size_of::<Value<'_>>(),
            _ => 0,
        })?;
        Ok(match value {
            Value::Undefined => Vec::new(),
            Value::Text(text) => text.chars().map(Value::Text).collect(),
            Value::List(list) => list.items.clone(),
            Value::Map(map) => map.entries.iter().map(|(key, _)| Value::Text(key.clone())).collect(),
            other => return self.fail("goes through what has no items", other.kind()),
        })
    }

    /// Whether a comparison holds.
    pub(super) fn compare(&mut self, op: CompareOpKind, left: &Value<'t>, right: &Value<'t>) -> Result<bool> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        self.spend(left.size().saturating_add(right.size()))?;
        let order = match op {
            CompareOpKind::Eq => return Ok(left.equals(right)),
            CompareOpKind::Ne => return Ok(!left.equals(right)),
            CompareOpKind::In => return self.contains(right, left),
            CompareOpKind::NotIn => return Ok(!self.contains(right, left)?),
            CompareOpKind::Lt | CompareOpKind::Lte | CompareOpKind::Gt | CompareOpKind::Gte => {
                match (left.as_str(), right.as_str(), left.as_float(), right.as_float()) {
                    (Some(a), Some(b), ..) => Some(a.cmp(b)),
                    (_, _, Some(a), Some(b)) => a.partial_cmp(&b),
                    _ => {
                        return self.fail(
                            "compares what has no order",
                            format!("{} and {}", left.kind(), right.kind()),
                        );
                    }
                }
            }
        };
        Ok(match op {
            CompareOpKind::Lt => order == Some(Less),
            CompareOpKind::Lte => matches!(order, Some(Less | Equal)),
            CompareOpKind::Gt => order == Some(Greater),
            _ => matches!(order, Some(Greater | Equal)),
        })
    }

    /// Whether `whole` has `part`.
    pub(super) fn contains(&mut self, whole: &Value<'t>, part: &Value<'t>) -> Result<bool> {
        match (whole, part) {
            (Value::Text(whole), Value::Text(part)) => Ok(whole.as_str().contains(part.as_str())),
            (Value::List(list), part) => {
                self.spend(part.size().saturating_mul(list.items.len()))?;
                Ok(list.items.iter().any(|item| item.equals(part)))
            }
            (Value::Map(map), Value::Text(key)) => Ok(map.get(key.as_str()).is_some()),
            (Value::Namespace(vars), Value::Text(key)) => {
                Ok(vars.borrow().iter().any(|(name, _)| *name == key.as_str()))
            }
            (Value::Map(_) | Value::Undefined, _) => Ok(false),
            (whole, _) => self.fail("looks into what has no parts", whole.kind()),
        }
    }

    /// `value.name`
    pub(super) fn attribute(&mut self, value: &Value<'t>, name: &str) -> Result<Value<'t>> {
        Ok(match value {
            Value::Undefined => return self.fail("reads from what is undefined", name),
            Value::Map(map) => {
                self.spend(map.entries.len() / 8)?;
                map.get(name).cloned().unwrap_or(Value::Undefined)
            }
            Value::Namespace(vars) => {
                let vars = vars.borrow();
                let found = vars.iter().find(|(var, _)| *var == name);
                found.map_or(Value::Undefined, |(_, value)| value.clone())
            }
            Value::Loop(state) => {
                let (index, count) = (state.index, state.items.items.len());
                let int = |number: usize| Value::Int(number as i64);
                let at = |place: Option<usize>| {
                    place.and_then(|i| state.items.items.get(i)).cloned().unwrap_or(Value::Undefined)
                };
                match name {
                    "index" => int(index + 1),
                    "index0" => int(index),
                    "revindex" => int(count - index),
                    "revindex0" => int(count - index - 1),
                    "first" => Value::Bool(index == 0),
                    "last" => Value::Bool(index + 1 == count),
                    "length" => int(count),
                    "depth" => int(state.depth),
                    "depth0" => int(state.depth - 1),
                    "previtem" => at(index.checked_sub(1)),
                    "nextitem" => at(Some(index + 1)),
                    _ => Value::Undefined,
                }
            }
            _ => Value::Undefined,
        })
    }
}
