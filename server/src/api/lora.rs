//! The field `lora` of requests, which is none of an interface's: the server's, and llama.cpp's.

use shohin::core::chat::fields::{Field, refused};
use shohin::core::json::{self, Value};
use shohin::core::{Error, Result};
use std::borrow::Cow;

/// Maximum number of adapters of a request.
const MAX_ADAPTERS: usize = 8;

/// An adapter that a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AskedAdapter {
    /// Where the request names it.
    pub(crate) place: String,
    pub(crate) which: Which,
    /// `None`: that with which it was loaded.
    pub(crate) scale: Option<f32>,
}

/// What names an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Name(String),
    /// Its place in the list.
    Id(usize),
}

/// Takes the adapters out of a request, which is what is left then. `None` if it does not say which.
///
/// # Errors
/// As [`ChatCompletionRequest::parse`](shohin::core::chat::openai::ChatCompletionRequest::parse).
pub(crate) fn take(text: &str) -> Result<(Cow<'_, str>, Option<Vec<AskedAdapter>>)> {
    let members = Value::parse(text)?.members().unwrap_or_default();
    let Some((_, value)) = members.iter().rfind(|(name, _)| name == "lora") else {
        return Ok((text.into(), None));
    };
    let asked = if value.is_null() { None } else { Some(read(*value)?) };
    let mut rest = String::with_capacity(text.len());
    for (name, value) in members.iter().filter(|(name, _)| name != "lora") {
        rest.push(if rest.is_empty() { '{' } else { ',' });
        json::string(name, &mut rest);
        rest.push(':');
        rest.push_str(value.text());
    }
    rest.push_str(if rest.is_empty() { "{}" } else { "}" });
    Ok((rest.into(), asked))
}

fn read(value: Value<'_>) -> Result<Vec<AskedAdapter>> {
    let field = Field { place: "lora".into(), value, reading: None };
    let mut asked = Vec::new();
    let found = field.each("must be an array of adapters", &mut |one| {
        asked.push(adapter(&one)?);
        Ok(())
    })?;
    if found > MAX_ADAPTERS {
        let (what, found) = ("lora", found as f64);
        return Err(Error::Option { what, found, expected: "at most 8 adapters" });
    }
    Ok(asked)
}

fn adapter(field: &Field<'_>) -> Result<AskedAdapter> {
    let given = field.object(&["name", "id", "scale"], "must be an object with a name")?;
    let scale = given.get("scale").map(|scale| finite(&scale)).transpose()?;
    let (name, id) = (given.string("name")?, given.get("id"));
    let (place, which) = match (name, id) {
        (Some(name), None) => (format!("{}.name", field.place), Which::Name(name)),
        (None, Some(id)) => {
            let at = id.value.text().parse().map_err(|_| id.refused("must be a whole number"))?;
            (id.place, Which::Id(at))
        }
        (Some(_), Some(_)) => return Err(field.refused("has a name and an id, expected one of them")),
        (None, None) => return Err(field.refused("has no name")),
    };
    Ok(AskedAdapter { place, which, scale })
}

/// A scale.
pub(crate) fn finite(field: &Field<'_>) -> Result<f32> {
    let number = field.value.as_number().map(|number| number as f32).filter(|number| number.is_finite());
    number.ok_or_else(|| refused(&field.place, "must be a finite number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_taken_out_of_a_request() {
        let text = r#" {"a\n": [1, {"lora": 2}], "\u006cora": [{"name": "poet", "scale": 0.5}, {"id": 1}], "b": "x"} "#;
        let (rest, asked) = take(text).unwrap();
        assert_eq!(rest, r#"{"a\n":[1, {"lora": 2}],"b":"x"}"#);
        let one = |place: &str, which, scale| AskedAdapter { place: place.into(), which, scale };
        let poet = one("lora[0].name", Which::Name("poet".into()), Some(0.5));
        assert_eq!(asked.unwrap(), [poet, one("lora[1].id", Which::Id(1), None)]);
        for (text, rest, asked) in [
            ("{ }", "{ }", None),
            ("[1]", "[1]", None),
            (r#"{"lora":null}"#, "{}", None),
            (r#"{"lora":[]}"#, "{}", Some(vec![])),
            (r#"{"lora":7,"lora":[]}"#, "{}", Some(vec![])),
        ] {
            assert_eq!(take(text).unwrap(), (rest.into(), asked), "{text}");
        }
    }

    #[test]
    fn adapters_that_are_none_are_refused_by_their_place() {
        let many = format!("[{}]", [r#"{"name":"a"}"#; 9].join(","));
        for (lora, says) in [
            ("1", "lora must be an array"),
            ("[1]", "lora[0] must be an object"),
            (r#"["poet"]"#, "lora[0] must be an object"),
            ("[{}]", "lora[0] has no name"),
            (r#"[{"name":"a","id":0}]"#, "lora[0] has a name and an id"),
            (r#"[{"name":1}]"#, "lora[0].name must be a string"),
            (r#"[{"id":-1}]"#, "lora[0].id must be a whole number"),
            (r#"[{"id":0.5}]"#, "lora[0].id must be a whole number"),
            (r#"[{"name":"a"},{"name":"a","scale":1e39}]"#, "lora[1].scale must be a finite number"),
            (r#"[{"name":"a","scale":1e999}]"#, "lora[0].scale must be a finite number"),
            (r#"[{"name":"a","scale":"1"}]"#, "lora[0].scale must be a finite number"),
            (r#"[{"name":"a","path":"x"}]"#, "lora[0].path"),
            (&many, "at most 8 adapters"),
        ] {
            let error = take(&format!("{{\"lora\":{lora}}}")).unwrap_err().to_string();
            assert!(error.contains(says), "{lora}: {error}");
        }
    }
}
