//! Arguments of calls as elements, as Qwen3.5 writes them, which are no JSON object.
#![forbid(unsafe_code)]

use super::grammar::{Node, NodeId, Text};
use super::schema::{Builder, Function};
use crate::error::{Error, Result};
use crate::json;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

const CLOSE: &str = "</parameter>\n";

impl Builder {
    /// The node of the arguments of a function, tool number `index`: for each property of its schema, in the order of the
    /// schema, a line with its name, its value, and the end; optional ones may be left out. Strings are free text, or one of
    /// those of an `enum`; other values are JSON of their schema, or any JSON if that is not supported.
    pub(super) fn elements(&mut self, index: u32, function: &Function<'_>, follow: bool) -> Result<NodeId> {
        let schema = function.parameters.and_then(|schema| json::Value::parse(schema).ok());
        let get = |name| schema.and_then(|schema| schema.get(name));
        let properties = get("properties").and_then(json::Value::members).unwrap_or_default();
        let required = get("required").and_then(json::Value::elements).unwrap_or_default();
        let required: Vec<String> = required.into_iter().filter_map(json::Value::as_string).collect();
        let mut next = self.texts([""]);
        for (name, schema) in properties.into_iter().rev() {
            if name.contains(['<', '>', '\n']) {
                return Err(error!(Tool {
                    index,
                    problem: "a parameter has a name that this model cannot write"
                }));
            }
            let open = self.texts([&*format!("<parameter={name}>\n")]);
            let mut parts = vec![open];
            let kind = schema.get("type").and_then(json::Value::as_string);
            let listed = schema.get("enum").and_then(json::Value::elements);
            let listed: Option<Vec<String>> =
                listed.map(|values| values.into_iter().filter_map(json::Value::as_string).collect());
            match (kind.as_deref(), listed) {
                (Some("string"), Some(texts)) if !texts.is_empty() => {
                    let texts: Vec<String> = texts.into_iter().map(|text| text + "\n" + CLOSE).collect();
                    parts.extend([self.texts(texts.iter().map(String::as_str)), next]);
                }
                (Some("string"), _) => {
                    let marker = Text::new(CLOSE.as_bytes());
                    parts.push(self.add(Node::Free { marker, then: next, may_end: false }));
                }
                _ => {
                    let value = self.value(schema.text(), follow)?;
                    let close = self.texts([&*format!("\n{CLOSE}")]);
                    parts.extend([value, close, next]);
                }
            }
            let element = self.add(Node::Sequence { parts, may_end: false });
            let is_required = required.contains(&name);
            next = if is_required { element } else { self.add(Node::Any(vec![element, next])) };
        }
        Ok(next)
    }

    /// A JSON value of a schema; any value if the schema is not supported, as one that refers to another place.
    fn value(&mut self, schema: &str, follow: bool) -> Result<NodeId> {
        if !follow {
            return Ok(self.any());
        }
        self.or_any(|builder| builder.schema(schema))
    }
}
