//! The filter `tojson` as transformers has it: Python's `json.dumps` without `ensure_ascii`.

use super::eval::{Args, Eval, Result};
use super::text::{Pieces, Text};
use super::value::{Value, float};

struct Style {
    indent: Option<String>,
    comma: String,
    colon: String,
    sorted: bool,
}

/// The value as JSON.
pub(super) fn tojson<'t>(eval: &mut Eval<'t>, value: &Value<'t>, args: &Args<'t>) -> Result<Value<'t>> {
    let named = |name| args.get(usize::MAX, name);
    let indent = match args.get(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Text(indent)) => Some(indent.as_str().to_owned()),
        Some(indent) => Some(" ".repeat(indent.as_int().unwrap_or(0).clamp(0, 100) as usize)),
    };
    let separators = match named("separators") {
        Some(Value::List(list)) => match list.items.as_slice() {
            [Value::Text(comma), Value::Text(colon)] => Some((comma.as_str().into(), colon.as_str().into())),
            _ => return eval.fail("writes JSON with separators that are not supported", ""),
        },
        _ => None,
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = separators.unwrap_or_else(|| (String::from(comma), String::from(": ")));
    let style = Style { indent, comma, colon, sorted: named("sort_keys").is_some_and(Value::is_true) };
    if named("ensure_ascii").is_some_and(Value::is_true) {
        return eval.fail("writes JSON in a way that is not supported", "ensure_ascii");
    }
    eval.spend(value.size())?;
    let mut pieces = eval.pieces();
    if let Err(kind) = write(value, &style, 0, &mut pieces) {
        return eval.fail("writes JSON of what has none", kind);
    }
    eval.text(pieces)
}

fn string(text: &Text, out: &mut Pieces) {
    out.own("\"");
    text.each(|c, foreign| match c {
        '"' => out.own("\\\""),
        '\\' => out.own("\\\\"),
        '\n' => out.own("\\n"),
        '\r' => out.own("\\r"),
        '\t' => out.own("\\t"),
        '\u{8}' => out.own("\\b"),
        '\u{c}' => out.own("\\f"),
        c if c < ' ' => out.own(&format!("\\u{:04x}", c as u32)),
        c => out.char(c, foreign),
    });
    out.own("\"");
}

fn line(style: &Style, depth: usize, out: &mut Pieces) {
    if let Some(indent) = &style.indent {
        out.own("\n");
        (0..depth).for_each(|_| out.own(indent));
    }
}

fn write(value: &Value<'_>, style: &Style, depth: usize, out: &mut Pieces) -> Result<(), &'static str> {
    match value {
        Value::None => out.own("null"),
        Value::Bool(it) => out.own(if *it { "true" } else { "false" }),
        Value::Int(number) => out.own(&number.to_string()),
        Value::Float(number) => out.own(&float(*number)),
        Value::Text(text) => string(text, out),
        Value::List(list) if list.items.is_empty() => out.own("[]"),
        Value::List(list) => {
            out.own("[");
            for (i, item) in list.items.iter().enumerate() {
                out.own(if i > 0 { &style.comma } else { "" });
                line(style, depth + 1, out);
                write(item, style, depth + 1, out)?;
            }
            line(style, depth, out);
            out.own("]");
        }
        Value::Map(map) if map.entries.is_empty() => out.own("{}"),
        Value::Map(map) => {
            let mut entries: Vec<_> = map.entries.iter().collect();
            if style.sorted {
                entries.sort_by_key(|(key, _)| key.as_str());
            }
            out.own("{");
            for (i, (key, value)) in entries.into_iter().enumerate() {
                out.own(if i > 0 { &style.comma } else { "" });
                line(style, depth + 1, out);
                string(key, out);
                out.own(&style.colon);
                write(value, style, depth + 1, out)?;
            }
            line(style, depth, out);
            out.own("}");
        }
        other => return Err(other.kind()),
    }
    Ok(())
}
