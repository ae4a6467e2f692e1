//! Filters of templates: `value | name(args)`.

use super::eval::{Args, Eval, Result};
use super::methods::{cased, entries, join, replace, strip};
use super::text::Text;
use super::value::Value;
use super::{tests, tojson};
use minijinja::machinery::ast::CompareOpKind;

/// The value of a filter.
pub(super) fn filter<'t>(
    eval: &mut Eval<'t>,
    name: &str,
    value: &Value<'t>,
    args: &Args<'t>,
) -> Result<Value<'t>> {
    eval.spend(1 + value.breadth())?;
    match name {
        "default" | "d" => {
            let is_missing = matches!(value, Value::Undefined)
                || args.get(1, "boolean").is_some_and(Value::is_true) && !value.is_true();
            let default = || args.get(0, "default_value").cloned().unwrap_or_else(|| Value::own(""));
            Ok(if is_missing { default() } else { value.clone() })
        }
        "safe" => Ok(value.clone()),
        "string" => eval.shown(value).map(Value::Text),
        "tojson" => tojson::tojson(eval, value, args),
        "length" | "count" => match value {
            Value::Undefined => Ok(Value::Int(0)),
            Value::Text(text) => Ok(Value::Int(text.as_str().chars().count() as i64)),
            Value::List(list) => Ok(Value::Int(list.items.len() as i64)),
            Value::Map(map) => Ok(Value::Int(map.entries.len() as i64)),
            other => eval.fail("measures what has no length", other.kind()),
        },
        "trim" | "upper" | "lower" | "title" | "capitalize" | "replace" | "indent" => {
            let text = eval.shown(value)?;
            of_text(eval, name, &text, args)
        }
        "join" => {
            let by = match args.get(0, "d") {
                Some(by) => eval.shown(by)?,
                None => Text::default(),
            };
            match args.get(1, "attribute").cloned() {
                Some(attribute) => {
                    let chosen =
                        map(eval, value, &Args { list: Vec::new(), named: vec![("attribute", attribute)] })?;
                    join(eval, &chosen, &by)
                }
                None => join(eval, value, &by),
            }
        }
        "list" => {
            let items = eval.items(value)?;
            eval.list(items)
        }
        "items" => match value {
            Value::Undefined => eval.list(Vec::new()),
            value => entries(eval, value, "items"),
        },
        "first" => Ok(eval.items(value)?.first().cloned().unwrap_or(Value::Undefined)),
        "last" => Ok(eval.items(value)?.pop().unwrap_or(Value::Undefined)),
        "reverse" => {
            let mut items = eval.items(value)?;
            items.reverse();
            if matches!(value, Value::Text(_)) {
                let items = eval.list(items)?;
                return join(eval, &items, &Text::default());
            }
            eval.list(items)
        }
        "map" => map(eval, value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(eval, name, value, args),
        "sort" | "dictsort" | "unique" | "min" | "max" | "sum" => ordered(eval, name, value, args),
        "int" | "float" | "abs" | "round" => number(eval, name, value, args),
        _ => eval.fail("uses a filter that is not supported", name),
    }
}

fn of_text<'t>(eval: &mut Eval<'t>, name: &str, text: &Text, args: &Args<'t>) -> Result<Value<'t>> {
    match name {
        "trim" => strip(eval, text, "strip", args.get(0, "chars")),
        "replace" => {
            let (Some(from), Some(to)) = (args.get(0, "old"), args.get(1, "new")) else {
                return eval.fail("replaces without what to replace by what", "");
            };
            let (from, to) = (eval.shown(from)?, eval.shown(to)?);
            let count = args.get(2, "count").and_then(Value::as_int);
            replace(eval, text, &from, &to, count.and_then(|count| usize::try_from(count).ok()))
        }
        "indent" => {
            let by = match args.get(0, "width") {
                Some(Value::Text(by)) => by.clone(),
                width => {
                    let width = width.map_or(Some(4), Value::as_int).unwrap_or(4).clamp(0, 1000);
                    Text::own(&" ".repeat(width as usize))
                }
            };
            let is_set = |place, name| args.get(place, name).is_some_and(Value::is_true);
            let (first, blank) = (is_set(1, "first"), is_set(2, "blank"));
            let (mut pieces, mut from) = (eval.pieces(), 0);
            for line in text.as_str().split_inclusive('\n') {
                eval.spend(1 + by.len() / 16)?;
                if (from > 0 || first) && (blank || !line.trim_end_matches('\n').is_empty()) {
                    pieces.text(&by);
                }
                pieces.slice(text, from..from + line.len());
                from += line.len();
            }
            eval.text(pieces)
        }
        _ => cased(eval, text, name),
    }
}

fn map<'t>(eval: &mut Eval<'t>, value: &Value<'t>, args: &Args<'t>) -> Result<Value<'t>> {
    let mut mapped = Vec::new();
    for item in eval.items(value)? {
        mapped.push(match (args.get(usize::MAX, "attribute"), args.list.as_slice()) {
            (Some(Value::Text(name)), _) => {
                let found = eval.attribute(&item, name.as_str())?;
                match (&found, args.get(usize::MAX, "default")) {
                    (Value::Undefined, Some(default)) => default.clone(),
                    _ => found,
                }
            }
            (_, [Value::Text(name), rest @ ..]) => {
                let name = name.as_str().to_owned();
                filter(eval, &name, &item, &Args { list: rest.to_vec(), named: Vec::new() })?
            }
            _ => return eval.fail("maps by what is no filter", ""),
        });
    }
    eval.list(mapped)
}

fn select<'t>(eval: &mut Eval<'t>, name: &str, value: &Value<'t>, args: &Args<'t>) -> Result<Value<'t>> {
    let by_attribute = name.ends_with("attr");
    let mut rest = args.list.iter();
    let attribute = if by_attribute { rest.next().and_then(Value::as_str) } else { None };
    if by_attribute && attribute.is_none() {
        return eval.fail("selects without the name of an attribute", "");
    }
    let by = rest.next().and_then(Value::as_str);
    let test_args = Args { list: rest.cloned().collect(), named: Vec::new() };
    let mut kept = Vec::new();
    for item in eval.items(value)? {
        let looked_at = match attribute {
            Some(attribute) => eval.attribute(&item, attribute)?,
            None => item.clone(),
        };
        let holds = match by {
            Some(by) => tests::test(eval, by, &looked_at, &test_args)?,
            None => looked_at.is_true(),
        };
        if holds == name.starts_with("select") {
            kept.push(item);
        }
    }
    eval.list(kept)
}

/// Filters for which items have an order, or are added up.
fn ordered<'t>(eval: &mut Eval<'t>, name: &str, value: &Value<'t>, args: &Args<'t>) -> Result<Value<'t>> {
    let is_set = |name| args.get(usize::MAX, name).is_some_and(Value::is_true);
    let mut items = match name {
        "dictsort" => {
            let pairs = entries(eval, value, "items")?;
            eval.items(&pairs)?
        }
        _ => eval.items(value)?,
    };
    if name == "sum" {
        let mut sum = 0.0;
        for item in &items {
            match item.as_float() {
                Some(number) => sum += number,
                None => return eval.fail("calculates with what are no numbers", item.kind()),
            }
        }
        let is_whole = items.iter().all(|item| item.as_int().is_some());
        return Ok(if is_whole { Value::Int(sum as i64) } else { Value::Float(sum) });
    }
    let attribute = args.get(usize::MAX, "attribute").and_then(Value::as_str).map(str::to_owned);
    let mut keys = Vec::new();
    for item in &items {
        let key = match (&attribute, item) {
            (Some(attribute), item) => eval.attribute(item, attribute)?,
            (None, Value::List(pair)) if name == "dictsort" => {
                let at = usize::from(args.get(1, "by").and_then(Value::as_str) == Some("value"));
                pair.items.get(at).cloned().unwrap_or(Value::Undefined)
            }
            (None, item) => item.clone(),
        };
        // Capital letters are not told from others.
        keys.push(match (&key, is_set("case_sensitive")) {
            (Value::Text(text), false) => cased(eval, text, "lower")?,
            _ => key,
        });
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    if name == "unique" {
        let mut seen: Vec<usize> = Vec::new();
        for at in order {
            eval.spend(seen.len().saturating_mul(keys[at].size()))?;
            if !seen.iter().any(|other| keys[*other].equals(&keys[at])) {
                seen.push(at);
            }
        }
        items = seen.into_iter().map(|at| items[at].clone()).collect();
        return eval.list(items);
    }
    let mut failed = None;
    order.sort_by(|&a, &b| {
        let less =
            |eval: &mut Eval<'t>, a: usize, b: usize| eval.compare(CompareOpKind::Lt, &keys[a], &keys[b]);
        match (less(eval, a, b), less(eval, b, a)) {
            (Ok(true), _) => std::cmp::Ordering::Less,
            (_, Ok(true)) => std::cmp::Ordering::Greater,
            (Err(error), _) | (_, Err(error)) => {
                failed = Some(error);
                std::cmp::Ordering::Equal
            }
            (Ok(false), Ok(false)) => std::cmp::Ordering::Equal,
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let mut sorted: Vec<Value<'t>> = order.into_iter().map(|at| items[at].clone()).collect();
    match name {
        "min" => Ok(sorted.first().cloned().unwrap_or(Value::Undefined)),
        "max" => Ok(sorted.pop().unwrap_or(Value::Undefined)),
        _ => {
            if is_set("reverse") || name == "sort" && args.list.first().is_some_and(Value::is_true) {
                sorted.reverse();
            }
            eval.list(sorted)
        }
    }
}

fn number<'t>(eval: &mut Eval<'t>, name: &str, value: &Value<'t>, args: &Args<'t>) -> Result<Value<'t>> {
    let text = value.as_str().map(str::trim);
    let parsed = value.as_float().or_else(|| text?.parse().ok());
    Ok(match (name, value.as_int().or_else(|| text?.parse().ok()), parsed) {
        ("int", Some(number), _) => Value::Int(number),
        ("int", None, Some(number)) => Value::Int(number as i64),
        ("int", None, None) => args.get(0, "default").cloned().unwrap_or(Value::Int(0)),
        ("float", _, Some(number)) => Value::Float(number),
        ("float", _, None) => args.get(0, "default").cloned().unwrap_or(Value::Float(0.0)),
        ("abs", Some(number), _) if text.is_none() => Value::Int(number.saturating_abs()),
        ("abs", _, Some(number)) if text.is_none() => Value::Float(number.abs()),
        ("round", _, Some(number)) if text.is_none() => {
            let digits = args.get(0, "precision").and_then(Value::as_int).unwrap_or(0).clamp(0, 15);
            let scale = 10f64.powi(digits as i32);
            Value::Float((number * scale).round_ties_even() / scale)
        }
        _ => return eval.fail("calculates with what are no numbers", value.kind()),
    })
}
