//! Tests of templates: `x is defined`.

use super::eval::{Args, Eval, Result};
use super::value::Value;
use minijinja::machinery::ast::CompareOpKind;

/// Whether `value is name(args)`.
pub(super) fn test<'t>(eval: &mut Eval<'t>, name: &str, value: &Value<'t>, args: &Args<'t>) -> Result<bool> {
    let compare = match name {
        "eq" | "equalto" | "==" | "sameas" => Some(CompareOpKind::Eq),
        "ne" | "!=" => Some(CompareOpKind::Ne),
        "lt" | "lessthan" | "<" => Some(CompareOpKind::Lt),
        "le" | "<=" => Some(CompareOpKind::Lte),
        "gt" | "greaterthan" | ">" => Some(CompareOpKind::Gt),
        "ge" | ">=" => Some(CompareOpKind::Gte),
        "in" => Some(CompareOpKind::In),
        _ => None,
    };
    if let Some(op) = compare {
        let Some(other) = args.list.first() else {
            return eval.fail("has a test without what it compares with", name);
        };
        return eval.compare(op, value, other);
    }
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        // A string, a dictionary and what is undefined have a length and items, too.
        "sequence" | "iterable" => {
            matches!(value, Value::Text(_) | Value::List(_) | Value::Map(_) | Value::Undefined)
        }
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_)),
        "odd" | "even" | "divisibleby" => {
            let by = args.list.first().map_or(Some(2), Value::as_int);
            let (Some(number), Some(by)) = (value.as_int(), by.filter(|by| *by != 0)) else {
                return eval.fail("divides what is no number", value.kind());
            };
            (number.checked_rem(by) == Some(0)) != (name == "odd")
        }
        "lower" | "upper" => {
            let upper = name == "upper";
            value.as_str().is_some_and(|text| {
                let mut cased = text.chars().filter(|c| c.is_lowercase() || c.is_uppercase()).peekable();
                cased.peek().is_some() && cased.all(|c| c.is_uppercase() == upper)
            })
        }
        _ => return eval.fail("has a test that is not supported", name),
    })
}
