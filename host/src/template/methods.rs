//! Functions of templates, and methods of Python's strings, lists and dictionaries.

use super::date;
use super::eval::{Args, Eval, Result};
use super::text::Text;
use super::value::Value;
use std::ops::Range;

/// The functions that every template has.
pub(super) const FUNCTIONS: [&str; 6] =
    ["raise_exception", "strftime_now", "namespace", "range", "dict", "list"];

/// Calls a function.
pub(super) fn function<'t>(eval: &mut Eval<'t>, name: &str, args: &Args<'t>) -> Result<Value<'t>> {
    match (name, args.list.as_slice()) {
        ("raise_exception", [message, ..]) => {
            let message = eval.shown(message)?;
            eval.fail("refuses the conversation", message.as_str())
        }
        ("strftime_now", [Value::Text(format)]) => {
            match date::strftime(format.as_str(), eval.now().unwrap_or(0)) {
                Ok(date) => Ok(Value::own(&date)),
                Err(unknown) => eval.fail("has a format of dates that is not supported", unknown.to_string()),
            }
        }
        ("range", [start, rest @ ..]) => {
            let int = |value: &Value<'t>| value.as_int();
            let (from, to, step) = match rest {
                [] => (Some(0), int(start), Some(1)),
                [to] => (int(start), int(to), Some(1)),
                [to, step, ..] => (int(start), int(to), int(step)),
            };
            let (Some(mut at), Some(to), Some(step)) = (from, to, step.filter(|step| *step != 0)) else {
                return eval.fail("has a range of what are no numbers", "");
            };
            let mut items = Vec::new();
            while if step > 0 { at < to } else { at > to } {
                eval.take(size_of::<Value<'_>>())?;
                items.push(Value::Int(at));
                at = at.saturating_add(step);
            }
            eval.list(items)
        }
        ("dict", []) => {
            let named = args.named.iter();
            let pairs = named.map(|(name, value)| (Text::own(name), value.clone())).collect();
            eval.map(pairs)
        }
        ("list", []) => eval.list(Vec::new()),
        ("list", [value]) => {
            let items = eval.items(value)?;
            eval.list(items)
        }
        _ => eval.fail("calls a function with other arguments than it takes", name),
    }
}

/// Calls a method.
pub(super) fn method<'t>(
    eval: &mut Eval<'t>,
    value: &Value<'t>,
    name: &str,
    args: &Args<'t>,
) -> Result<Value<'t>> {
    eval.spend(1 + value.breadth())?;
    match value {
        Value::Text(text) => of_text(eval, text, name, args),
        Value::Map(map) => match (name, args.list.as_slice()) {
            ("items" | "keys" | "values", []) => entries(eval, value, name),
            ("get", [Value::Text(key), ..]) => {
                let default = || args.list.get(1).cloned().unwrap_or(Value::None);
                Ok(map.get(key.as_str()).cloned().unwrap_or_else(default))
            }
            ("get", [_, ..]) => Ok(args.list.get(1).cloned().unwrap_or(Value::None)),
            _ => eval.fail("calls a method that is not supported", name),
        },
        Value::List(list) => match (name, args.list.as_slice()) {
            ("index" | "count", [_]) if eval.spend(value.size()).is_err() => {
                eval.fail("takes too many steps", "")
            }
            ("index", [item]) => match list.items.iter().position(|other| other.equals(item)) {
                Some(at) => Ok(Value::Int(at as i64)),
                None => eval.fail("looks for what is not in a list", ""),
            },
            ("count", [item]) => {
                Ok(Value::Int(list.items.iter().filter(|other| other.equals(item)).count() as i64))
            }
            _ => eval.fail("calls a method that is not supported", name),
        },
        Value::Loop(state) => match (name, args.list.as_slice()) {
            ("cycle", choices @ [_, ..]) => {
                Ok(choices.get(state.index % choices.len()).cloned().unwrap_or(Value::Undefined))
            }
            _ => eval.fail("calls a method that is not supported", name),
        },
        other => {
            let found = format!("{name} of {}", other.kind());
            eval.fail("calls a method that is not supported", found)
        }
    }
}

/// The items, keys or values of a dictionary.
pub(super) fn entries<'t>(eval: &mut Eval<'t>, value: &Value<'t>, name: &str) -> Result<Value<'t>> {
    let Value::Map(map) = value else {
        return eval.fail("goes through the items of what is no dictionary", value.kind());
    };
    let mut items = Vec::new();
    for (key, value) in &map.entries {
        let key = Value::Text(key.clone());
        items.push(match name {
            "keys" => key,
            "values" => value.clone(),
            _ => eval.tuple(vec![key, value.clone()])?,
        });
    }
    eval.list(items)
}

/// What Python takes for white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The part of a text that `strip`, `lstrip` or `rstrip` leaves.
fn stripped(text: &str, name: &str, chars: Option<&str>) -> Range<usize> {
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let start = if name == "rstrip" { 0 } else { text.len() - text.trim_start_matches(strips).len() };
    let rest = text.get(start..).unwrap_or_default();
    let len = if name == "lstrip" { rest.len() } else { rest.trim_end_matches(strips).len() };
    start..start + len
}

/// `strip` and its kind, also as the filter `trim`.
pub(super) fn strip<'t>(
    eval: &mut Eval<'t>,
    text: &Text,
    name: &str,
    chars: Option<&Value<'t>>,
) -> Result<Value<'t>> {
    let range = stripped(text.as_str(), name, chars.and_then(Value::as_str));
    eval.part(text, range)
}

fn of_text<'t>(eval: &mut Eval<'t>, text: &Text, name: &str, args: &Args<'t>) -> Result<Value<'t>> {
    let whole = text.as_str();
    let first = args.list.first();
    match (name, first) {
        ("strip" | "lstrip" | "rstrip", chars) => strip(eval, text, name, chars),
        ("upper" | "lower" | "title" | "capitalize", _) => cased(eval, text, name),
        ("startswith" | "endswith", Some(affix)) => {
            let matches = |affix: &Value<'t>| match (affix.as_str(), name) {
                (Some(affix), "startswith") => whole.starts_with(affix),
                (Some(affix), _) => whole.ends_with(affix),
                (None, _) => false,
            };
            Ok(Value::Bool(match affix {
                Value::List(affixes) => affixes.items.iter().any(matches),
                affix => matches(affix),
            }))
        }
        ("split" | "rsplit", _) => split(eval, text, name, args),
        ("splitlines", _) => {
            let mut parts = Vec::new();
            let mut at = 0;
            while at < whole.len() {
                let rest = whole.get(at..).unwrap_or_default();
                let len = rest.find([
                    '\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}',
                ]);
                parts.push(at..at + len.unwrap_or(rest.len()));
                let after = len.map(|len| rest.get(len..).unwrap_or_default());
                let end = after.map_or(0, |after| match after.starts_with("\r\n") {
                    true => 2,
                    false => after.chars().next().map_or(0, char::len_utf8),
                });
                at += len.unwrap_or(rest.len()) + end;
            }
            parted(eval, text, parts)
        }
        ("replace", Some(Value::Text(from))) => {
            let Some(Value::Text(to)) = args.get(1, "new") else {
                return eval.fail("replaces by what is no string", "");
            };
            let count = args.get(2, "count").and_then(Value::as_int);
            replace(eval, text, from, to, count.and_then(|count| usize::try_from(count).ok()))
        }
        ("removeprefix", Some(Value::Text(affix))) => {
            let start = if whole.starts_with(affix.as_str()) { affix.len() } else { 0 };
            eval.part(text, start..whole.len())
        }
        ("removesuffix", Some(Value::Text(affix))) => {
            let cut = if whole.ends_with(affix.as_str()) { affix.len() } else { 0 };
            eval.part(text, 0..whole.len() - cut)
        }
        ("find" | "rfind" | "index", Some(Value::Text(part))) => {
            let at = if name == "rfind" { whole.rfind(part.as_str()) } else { whole.find(part.as_str()) };
            let place = at.map(|at| whole.get(..at).unwrap_or_default().chars().count() as i64);
            match (place, name) {
                (None, "index") => eval.fail("looks for what is not in a string", ""),
                (place, _) => Ok(Value::Int(place.unwrap_or(-1))),
            }
        }
        ("count", Some(Value::Text(part))) => Ok(Value::Int(match part.len() {
            0 => whole.chars().count() as i64 + 1,
            _ => whole.matches(part.as_str()).count() as i64,
        })),
        ("partition" | "rpartition", Some(Value::Text(part))) if part.len() > 0 => {
            let at = if name == "partition" { whole.find(part.as_str()) } else { whole.rfind(part.as_str()) };
            let (all, none) = (0..whole.len(), 0..0);
            let parts = match (at, name) {
                (Some(at), _) => vec![0..at, at..at + part.len(), at + part.len()..whole.len()],
                (None, "partition") => vec![all, none.clone(), none],
                (None, _) => vec![none.clone(), none, all],
            };
            let parts: Result<Vec<_>> = parts.into_iter().map(|range| eval.part(text, range)).collect();
            let parts = parts?;
            eval.tuple(parts)
        }
        ("join", Some(items)) => join(eval, items, text),
        ("isdigit" | "isnumeric" | "isdecimal", _) => every(whole, char::is_numeric),
        ("isalpha", _) => every(whole, char::is_alphabetic),
        ("isalnum", _) => every(whole, char::is_alphanumeric),
        ("isspace", _) => every(whole, is_space),
        ("isupper" | "islower", _) => {
            let no_args = Args { list: Vec::new(), named: Vec::new() };
            let name = if name == "isupper" { "upper" } else { "lower" };
            super::tests::test(eval, name, &Value::Text(text.clone()), &no_args).map(Value::Bool)
        }
        _ => eval.fail("calls a method that is not supported", name),
    }
}

fn every<'t>(text: &str, is: impl Fn(char) -> bool) -> Result<Value<'t>> {
    Ok(Value::Bool(!text.is_empty() && text.chars().all(is)))
}

/// Parts of a text as a list.
fn parted<'t>(eval: &mut Eval<'t>, text: &Text, parts: Vec<Range<usize>>) -> Result<Value<'t>> {
    let parts: Result<Vec<_>> = parts
        .into_iter()
        .map(|range| {
            eval.take(64)?;
            eval.part(text, range)
        })
        .collect();
    let parts = parts?;
    eval.list(parts)
}

fn split<'t>(eval: &mut Eval<'t>, text: &Text, name: &str, args: &Args<'t>) -> Result<Value<'t>> {
    let whole = text.as_str();
    let most = args.get(1, "maxsplit").and_then(Value::as_int).and_then(|most| usize::try_from(most).ok());
    let most = most.unwrap_or(usize::MAX);
    // Where separators are, at which the text is cut.
    let mut cuts: Vec<Range<usize>> = Vec::new();
    let inner = match args.get(0, "sep") {
        Some(Value::Text(by)) if by.len() == 0 => return eval.fail("splits by an empty string", ""),
        Some(Value::Text(by)) => {
            match name {
                "rsplit" => cuts
                    .extend(whole.rmatch_indices(by.as_str()).take(most).map(|(at, by)| at..at + by.len())),
                _ => {
                    cuts.extend(whole.match_indices(by.as_str()).take(most).map(|(at, by)| at..at + by.len()))
                }
            }
            0..whole.len()
        }
        None | Some(Value::None) => {
            let inner = stripped(whole, "strip", None);
            if inner.is_empty() {
                return eval.list(Vec::new());
            }
            let mut gaps: Vec<Range<usize>> = Vec::new();
            let within = whole.get(inner.clone()).unwrap_or_default();
            for (at, c) in within.char_indices().filter(|(_, c)| is_space(*c)) {
                let (start, end) = (inner.start + at, inner.start + at + c.len_utf8());
                match gaps.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => gaps.push(start..end),
                }
            }
            let skipped = if name == "rsplit" { gaps.len().saturating_sub(most) } else { 0 };
            cuts.extend(gaps.into_iter().skip(skipped).take(most));
            // What is left of a text that is cut a few times keeps the white space at its other end.
            match (cuts.len() == most, name) {
                (true, "split") => inner.start..whole.len(),
                (true, _) => 0..inner.end,
                (false, _) => inner,
            }
        }
        Some(other) => return eval.fail("splits by what is no string", other.kind()),
    };
    cuts.sort_by_key(|cut| cut.start);
    let (mut parts, mut from) = (Vec::new(), inner.start);
    for cut in cuts {
        parts.push(from..cut.start);
        from = cut.end;
    }
    parts.push(from..inner.end);
    parted(eval, text, parts)
}

/// `text.replace(from, to, count)`, also as a filter.
pub(super) fn replace<'t>(
    eval: &mut Eval<'t>,
    text: &Text,
    from: &Text,
    to: &Text,
    count: Option<usize>,
) -> Result<Value<'t>> {
    let mut pieces = eval.pieces();
    let mut done = 0;
    for (at, found) in text.as_str().match_indices(from.as_str()).take(count.unwrap_or(usize::MAX)) {
        eval.spend(1 + to.len() / 16)?;
        pieces.slice(text, done..at);
        pieces.text(to);
        done = at + found.len();
    }
    pieces.slice(text, done..text.len());
    eval.text(pieces)
}

/// The texts of items with `by` between them.
pub(super) fn join<'t>(eval: &mut Eval<'t>, items: &Value<'t>, by: &Text) -> Result<Value<'t>> {
    let items = eval.items(items)?;
    let mut pieces = eval.pieces();
    for (i, item) in items.iter().enumerate() {
        eval.spend(1 + by.len() / 16)?;
        if i > 0 {
            pieces.text(by);
        }
        eval.show(item, &mut pieces)?;
    }
    eval.text(pieces)
}

/// `upper`, `lower`, `title` and `capitalize`, also as filters.
pub(super) fn cased<'t>(eval: &mut Eval<'t>, text: &Text, name: &str) -> Result<Value<'t>> {
    let mut pieces = eval.pieces();
    let (mut begins, mut word) = (true, false);
    text.each(|c, foreign| {
        let upper = match name {
            "upper" => true,
            "title" => !word,
            "capitalize" => begins,
            _ => false,
        };
        (begins, word) = (false, c.is_alphabetic());
        if upper {
            c.to_uppercase().for_each(|c| pieces.char(c, foreign));
        } else {
            c.to_lowercase().for_each(|c| pieces.char(c, foreign));
        }
    });
    eval.text(pieces)
}
