//! JSON: reading values from text, and text in the layout of Python's
//! `json.dumps(value, ensure_ascii=False)`, which is `tojson` in chat templates, and so the layout that
//! models saw in training.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use crate::error::{Error, Result};

/// Largest nesting depth; tool descriptions nest some ten deep.
const MAX_DEPTH: usize = 128;

/// The tokens that may come next.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    CommaOrEnd,
}

/// Appends the JSON value `text` to `out` in the layout of Python's `json.dumps`: separators `", "` and
/// `": "`, characters unescaped, numbers as Python prints them. Members keep their order, and equal names are
/// not merged.
///
/// # Errors
/// [`Error::Json`] at the byte where `text` is not JSON, [`Error::Limit`] if it nests over 128 deep.
pub fn reformat(text: &str, out: &mut String) -> Result<()> {
    let mut r = Reader { text, at: 0 };
    let (mut depth, mut objects) = (0usize, 0u128); // bit d of `objects`: the container at depth d is one
    let mut next = Next::Value;
    loop {
        r.skip_space();
        let at = r.at;
        let Some(byte) = r.peek() else { return Err(r.malformed(fitting(next, depth, objects))) };
        match byte {
            b'{' | b'[' if matches!(next, Next::Value | Next::ValueOrEnd) => {
                if depth == MAX_DEPTH {
                    let (found, max) = (MAX_DEPTH as u64 + 1, MAX_DEPTH as u64);
                    return Err(error!(Limit { what: "nesting of JSON", found, max }));
                }
                let object = u128::from(byte == b'{');
                objects = objects & !(1 << depth) | object << depth;
                depth += 1;
                r.at += 1;
                out.push(char::from(byte));
                next = if object == 1 { Next::KeyOrEnd } else { Next::ValueOrEnd };
                continue;
            }
            b'}' | b']' if matches!(next, Next::KeyOrEnd | Next::ValueOrEnd | Next::CommaOrEnd) => {
                let object = depth > 0 && objects >> (depth - 1) & 1 == 1;
                if depth == 0 || object != (byte == b'}') {
                    return Err(r.malformed(fitting(next, depth, objects)));
                }
                depth -= 1;
                r.at += 1;
                out.push(char::from(byte));
            }
            b',' if next == Next::CommaOrEnd => {
                r.at += 1;
                out.push_str(", ");
                next = if objects >> (depth - 1) & 1 == 1 { Next::Key } else { Next::Value };
                continue;
            }
            b'"' if matches!(next, Next::Key | Next::KeyOrEnd) => {
                r.string(out)?;
                r.skip_space();
                if r.peek() != Some(b':') {
                    return Err(r.malformed("a colon"));
                }
                r.at += 1;
                out.push_str(": ");
                next = Next::Value;
                continue;
            }
            b'"' if matches!(next, Next::Value | Next::ValueOrEnd) => r.string(out)?,
            b'-' | b'0'..=b'9' if matches!(next, Next::Value | Next::ValueOrEnd) => r.number(out)?,
            _ if matches!(next, Next::Value | Next::ValueOrEnd) => {
                let rest = text.get(at..).unwrap_or("");
                let word = ["true", "false", "null"].into_iter().find(|w| rest.starts_with(w));
                let Some(word) = word else { return Err(r.malformed(fitting(next, depth, objects))) };
                r.at += word.len();
                out.push_str(word);
            }
            _ => return Err(r.malformed(fitting(next, depth, objects))),
        }
        // A value has ended.
        if depth == 0 {
            r.skip_space();
            return if r.at == text.len() { Ok(()) } else { Err(r.malformed("the end")) };
        }
        next = Next::CommaOrEnd;
    }
}

/// Describes `next` within `depth` containers, for errors.
fn fitting(next: Next, depth: usize, objects: u128) -> &'static str {
    let in_object = depth > 0 && objects >> (depth - 1) & 1 == 1;
    match next {
        Next::Value => "a value",
        Next::ValueOrEnd => "a value or ]",
        Next::Key => "a name in double quotes",
        Next::KeyOrEnd => "a name in double quotes or }",
        Next::CommaOrEnd if in_object => "a comma or }",
        Next::CommaOrEnd => "a comma or ]",
    }
}

/// Appends `text` as a JSON string, escaped as in Python.
pub fn string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        escape(c, out);
    }
    out.push('"');
}

/// The value of member `name` of the JSON object `text`, as written there; the last one if there are several,
/// `None` if there is none or if `text` is not an object.
///
/// # Errors
/// As [`reformat`].
pub fn member<'t>(text: &'t str, name: &str) -> Result<Option<&'t str>> {
    let mut unused = String::new();
    reformat(text, &mut unused)?; // validates the JSON
    let mut wanted = String::new();
    string(name, &mut wanted);
    let mut r = Reader { text, at: 0 };
    r.skip_space();
    let mut found = None;
    if r.peek() != Some(b'{') {
        return Ok(None);
    }
    while matches!(r.peek(), Some(b'{' | b',')) {
        r.at += 1;
        r.skip_space();
        if r.peek() != Some(b'"') {
            break; // an empty object
        }
        let mut key = String::new();
        r.string(&mut key)?;
        r.skip_space();
        r.at += 1; // the colon
        r.skip_space();
        let value = text.get(r.at..).unwrap_or("");
        let len = r.skip_value()?;
        if key == wanted {
            found = value.get(..len);
        }
        r.skip_space();
    }
    Ok(found)
}

/// The decoded JSON string `text`, `None` if it is another JSON value.
///
/// # Errors
/// As [`reformat`].
pub fn text(text: &str) -> Result<Option<String>> {
    let mut unused = String::new();
    reformat(text, &mut unused)?;
    let Some(inner) = text.trim().strip_prefix('"').and_then(|t| t.strip_suffix('"')) else {
        return Ok(None);
    };
    let mut r = Reader { text: inner, at: 0 };
    let mut out = String::new();
    while let Some(c) = inner.get(r.at..).and_then(|rest| rest.chars().next()) {
        r.at += c.len_utf8();
        out.push(if c == '\\' { r.escaped()? } else { c });
    }
    Ok(Some(out))
}

/// Refuses lone surrogates, which no text can have, in `text`, which is JSON.
///
/// # Errors
/// [`Error::Json`] at the escape of one.
pub(crate) fn refuse_lone_surrogates(text: &str) -> Result<()> {
    let mut r = Reader { text, at: 0 };
    while let Some(behind) = text.get(r.at..).and_then(|rest| rest.find('\\')) {
        let at = r.at + behind;
        r.at = at + 1;
        let surrogate = r.peek() == Some(b'u') && matches!(r.hex(at + 2)?, 0xD800..0xE000);
        r.escaped()?;
        if surrogate && r.at == at + 6 {
            return Err(r.malformed_at(at, "both halves of a surrogate pair"));
        }
    }
    Ok(())
}

/// A JSON value within validated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'t>(&'t str);

impl<'t> Value<'t> {
    /// Parses a text that holds one JSON value.
    ///
    /// # Errors
    /// As [`reformat`].
    pub fn parse(text: &'t str) -> Result<Value<'t>> {
        let mut unused = String::new();
        reformat(text, &mut unused)?;
        Ok(Value(text.trim_matches([' ', '\t', '\n', '\r'])))
    }

    /// The value as written.
    pub fn text(self) -> &'t str {
        self.0
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Whether it is an object.
    pub fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// The boolean, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn as_number(self) -> Option<f64> {
        if self.0.starts_with(|c: char| c == '-' || c.is_ascii_digit()) { self.0.parse().ok() } else { None }
    }

    /// The decoded string, if it is one.
    pub fn as_string(self) -> Option<String> {
        text(self.0).ok().flatten()
    }

    /// The members of an object, in order; `None` for another value.
    pub fn members(self) -> Option<Vec<(String, Value<'t>)>> {
        let mut members = Vec::new();
        self.parts(b'{', |name, value| members.extend(name.map(|name| (name, value)))).then_some(members)
    }

    /// The elements of an array; `None` for another value.
    pub fn elements(self) -> Option<Vec<Value<'t>>> {
        let mut elements = Vec::new();
        self.parts(b'[', |_, value| elements.push(value)).then_some(elements)
    }

    /// The value of member `name`, the last of several; `None` if there is none, or if this is not an object.
    pub fn get(self, name: &str) -> Option<Value<'t>> {
        let mut found = None;
        self.parts(b'{', |member, value| {
            if member.as_deref() == Some(name) {
                found = Some(value);
            }
        });
        found
    }

    /// Calls `visit` with each name and value of a container of this kind. False if the value is not one.
    fn parts(self, opening: u8, mut visit: impl FnMut(Option<String>, Value<'t>)) -> bool {
        let Value(text) = self;
        let mut r = Reader { text, at: 0 };
        if r.peek() != Some(opening) {
            return false;
        }
        while matches!(r.peek(), Some(b'{' | b'[' | b',')) {
            r.at += 1;
            r.skip_space();
            if matches!(r.peek(), Some(b'}' | b']')) {
                break; // an empty container
            }
            let mut name = None;
            if opening == b'{' {
                let mut quoted = String::new();
                if r.string(&mut quoted).is_err() {
                    break;
                }
                name = self::text(&quoted).ok().flatten();
                r.skip_space();
                r.at += 1; // the colon
                r.skip_space();
            }
            let value = text.get(r.at..).unwrap_or("");
            let Ok(len) = r.skip_value() else { break };
            visit(name, Value(value.get(..len).unwrap_or("")));
            r.skip_space();
        }
        true
    }
}

/// Appends a number, or `null` if it is not finite, which JSON cannot represent.
pub fn number(value: f64, out: &mut String) {
    let _ = if value.is_finite() { write!(out, "{value}") } else { out.write_str("null") }; // writing to a String cannot fail
}

fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        c if c < ' ' => {
            let _ = write!(out, "\\u{:04x}", c as u32); // writing to a String cannot fail
        }
        c => out.push(c),
    }
}

struct Reader<'t> {
    text: &'t str,
    /// A byte position, always at a character boundary.
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn malformed(&self, expected: &'static str) -> Error {
        self.malformed_at(self.at, expected)
    }

    fn malformed_at(&self, at: usize, expected: &'static str) -> Error {
        let found = self.text.get(at..).and_then(|rest| rest.chars().next());
        error!(Json { at: at as u64, found, expected })
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Copies the string that starts here.
    fn string(&mut self, out: &mut String) -> Result<()> {
        out.push('"');
        self.at += 1;
        loop {
            let Some(c) = self.text.get(self.at..).and_then(|rest| rest.chars().next()) else {
                return Err(self.malformed("a closing quote"));
            };
            match c {
                '"' => {
                    self.at += 1;
                    out.push('"');
                    return Ok(());
                }
                '\\' => {
                    self.at += 1;
                    let c = self.escaped()?;
                    escape(c, out);
                }
                c if c < ' ' => return Err(self.malformed("an escaped control character")),
                c => {
                    self.at += c.len_utf8();
                    escape(c, out);
                }
            }
        }
    }

    /// Skips a value in validated JSON; returns its length in bytes.
    fn skip_value(&mut self) -> Result<usize> {
        let (start, mut depth) = (self.at, 0);
        let mut unused = String::new();
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => self.string(&mut unused)?,
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => break,
                _ => self.at += 1, // within a container or a plain word, all ASCII outside strings
            }
        }
        Ok(self.at - start)
    }

    /// The character after a backslash. A lone surrogate, which is not a character, becomes U+FFFD.
    fn escaped(&mut self) -> Result<char> {
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => {
                let first = self.hex(self.at + 1)?;
                self.at += 5;
                let behind = self.text.get(self.at..).unwrap_or("");
                if (0xD800..0xDC00).contains(&first) && behind.starts_with("\\u") {
                    let second = self.hex(self.at + 2)?;
                    if (0xDC00..0xE000).contains(&second) {
                        self.at += 6;
                        let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                        return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                }
                return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            _ => return Err(self.malformed("an escape of JSON")),
        };
        self.at += 1;
        Ok(c)
    }

    fn hex(&self, at: usize) -> Result<u32> {
        let digits = self.text.get(at..at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        digits
            .and_then(|d| u32::from_str_radix(d, 16).ok())
            .ok_or_else(|| self.malformed_at(at, "four hex digits"))
    }

    /// Copies the number that starts here, formatted as in Python.
    fn number(&mut self, out: &mut String) -> Result<()> {
        let start = self.at;
        let digits = |r: &mut Self| {
            let from = r.at;
            while r.peek().is_some_and(|b| b.is_ascii_digit()) {
                r.at += 1;
            }
            if r.at > from { Ok(()) } else { Err(r.malformed("a digit")) }
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1; // no digit may follow, and none is taken
        } else {
            digits(self)?;
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            float = true;
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            float = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            digits(self)?;
        }
        match self.text.get(start..self.at).unwrap_or("0") {
            "-0" => out.push('0'),
            number if !float => out.push_str(number),
            number => float_repr(number.parse().unwrap_or(f64::NAN), out),
        }
        Ok(())
    }
}

/// Appends Python's `repr` of a float: the shortest digits that round-trip, positional for exponents -4 to
/// 15.
fn float_repr(value: f64, out: &mut String) {
    if !value.is_finite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        return;
    }
    let mut scientific = String::new();
    let _ = write!(scientific, "{value:e}"); // writing to a String cannot fail
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let _ = write!(out, "{value:?}"); // positional with at least one decimal in this range
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn python(text: &str) -> Result<String> {
        let mut out = String::new();
        reformat(text, &mut out).map(|()| out)
    }

    #[test]
    fn layout_is_that_of_python() {
        // Expected: json.dumps(json.loads(text), ensure_ascii=False), Python 3.11.
        for (text, expected) in [
            ("{}", "{}"),
            (" [ ] ", "[]"),
            (r#"{"a":1,"b":[1,2,{"c":null}]}"#, r#"{"a": 1, "b": [1, 2, {"c": null}]}"#),
            (r#""\u00e9\ud83e\udd99\/\u001f\u007f<&'""#, "\"é🦙/\\u001f\u{7f}<&'\""),
            (r#""\b\f\n\r\t\"\\""#, r#""\b\f\n\r\t\"\\""#),
            (
                "[1.0,1e5,1E400,-0,-0.0,1e16,123456789012345.0,1e-5,0.0001,1.5e-7,-1E22]",
                "[1.0, 100000.0, Infinity, 0, -0.0, 1e+16, 123456789012345.0, 1e-05, 0.0001, 1.5e-07, -1e+22]",
            ),
            (
                "[9007199254740993, 0.1, 1e15, 9999999999999998.0, 5e-324, 1.7976931348623157e308]",
                "[9007199254740993, 0.1, 1000000000000000.0, 9999999999999998.0, 5e-324, 1.7976931348623157e+308]",
            ),
            ("[true,false,null]", "[true, false, null]"),
        ] {
            assert_eq!(python(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn members_are_found_as_they_are_written() {
        let object = r#" {"a" : {"b":[1,"}]"]} , "\u0062":"x\"é", "c":-1.5e3 ,"d": null,"a":[ ] }"#;
        let get = |name| member(object, name).unwrap();
        assert_eq!(get("a"), Some("[ ]"));
        assert_eq!(get("b"), Some(r#""x\"é""#));
        assert_eq!(get("c"), Some("-1.5e3"));
        assert_eq!(get("d"), Some("null"));
        assert_eq!(get("e"), None);
        assert_eq!(text(get("b").unwrap()), Ok(Some("x\"é".into())));
        assert_eq!(text("12"), Ok(None));
        assert_eq!(
            (member("{}", "a"), member("[1]", "a"), member(" {} ", "")),
            (Ok(None), Ok(None), Ok(None))
        );
        assert_eq!(member("{\"a\":1", "a").map_err(|e| e.code()), Err("malformed"));
    }

    #[test]
    fn values_are_found_as_they_are_written() {
        let text = r#" {"a" : [ 1, {"b":["}]"]}, [] , "x\"é" ] , "\u0062":true, "c":-1.5e3,"d":null,"a\n":{ }, "c":2} "#;
        let object = Value::parse(text).unwrap();
        let members = object.members().unwrap();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "a\n", "c"]);
        let a = object.get("a").unwrap().elements().unwrap();
        assert_eq!(
            a.iter().map(|v| v.text()).collect::<Vec<_>>(),
            ["1", r#"{"b":["}]"]}"#, "[]", r#""x\"é""#]
        );
        assert_eq!(
            (a[3].as_string().as_deref(), a[3].as_number(), a[0].as_number()),
            (Some("x\"é"), None, Some(1.0))
        );
        assert_eq!(a[1].get("b").unwrap().elements().unwrap()[0].as_string().as_deref(), Some("}]"));
        assert_eq!((a[2].elements(), a[2].members()), (Some(Vec::new()), None));
        assert_eq!(object.get("a\n").unwrap().members(), Some(Vec::new()));
        assert_eq!(
            (object.get("b").unwrap().as_bool(), object.get("c").unwrap().as_number()),
            (Some(true), Some(2.0))
        );
        assert!(object.is_object() && object.get("d").unwrap().is_null() && object.get("e").is_none());
        assert_eq!((object.elements(), a[0].get("b")), (None, None));
        assert!(Value::parse("{").is_err() && Value::parse("1 2").is_err());
        let mut out = String::new();
        for x in [0.0, -1.5, 1e-7, 3e20, f64::NEG_INFINITY] {
            number(x, &mut out);
            out.push(' ');
        }
        assert_eq!(out, "0 -1.5 0.0000001 300000000000000000000 null ");
    }

    #[test]
    fn lone_surrogates_are_found() {
        for sound in
            [r#""\ud83d\ude00""#, r#""\\ud800""#, r#"["\u00e9\n", 1]"#, r#""\ud83d\ude00\ud83d\ude00""#]
        {
            assert_eq!(refuse_lone_surrogates(sound), Ok(()), "{sound}");
        }
        for (lone, place) in [
            (r#""\ud800""#, 1),
            (r#""a\udc00\ud800""#, 2),
            (r#""\ud83d\ud83d\ude00""#, 1),
            (r#""\ud83d\ude00\ude00""#, 13),
        ] {
            let error = refuse_lone_surrogates(lone);
            assert!(matches!(error, Err(Error::Json { at, .. }) if at == place), "{lone}: {error:?}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "[1}",
            "{\"a\"]",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "tru",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u12\"",
            "\"\n\"",
            "1 2",
            "]",
            ",",
            "{\"a\" 1}",
            "[1 2]",
            "NaN",
            "'a'",
            "\"\\ud800\\u\"",
            "{1:2}",
            "[,1]",
            "{,}",
            "\"\\u00é\"",
        ] {
            assert_eq!(python(text).map_err(|e| e.code()), Err("malformed"), "{text}");
        }
        assert_eq!(python(&"[".repeat(100_000)).map_err(|e| e.code()), Err("limit"));
        let deep = "[".repeat(128) + &"]".repeat(128);
        assert_eq!(python(&deep), Ok(deep.to_string()));
    }
}
