//! Reads calls in replies, of all forms but that of Hermes, as far as they have come.
#![forbid(unsafe_code)]

use super::CallForm;
use crate::json;
use alloc::string::String;
use alloc::vec::Vec;

/// What a text that may begin with a call is.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::chat) enum Found {
    /// What follows decides.
    More,
    /// No call.
    No,
    /// Calls as JSON objects with `name` and `arguments`, and the bytes that they take.
    Calls(Vec<String>, usize),
}

/// How much of a text was looked at.
#[derive(Clone, Debug, Default)]
pub(in crate::chat) struct Scan {
    at: usize,
    /// Brackets around `at`, and whether it is inside a string.
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Scan {
    /// The end of the JSON array or object that begins at `from`, once it is there.
    fn end_of_json(&mut self, text: &str, from: usize) -> Option<usize> {
        self.at = self.at.max(from);
        for byte in text.bytes().skip(self.at) {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                _ if self.quoted => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

const PYTHON: &str = "<|python_tag|>";
const FENCE: &str = "```";
const END: &str = "</tool_call>";
const ARGS: &str = "[ARGS]";

/// The bytes before the object of a reply that is a call; `None` if it is none, and `Err` if what follows decides.
fn lead(text: &str) -> Result<Option<usize>, ()> {
    let mut rest = text.trim_start();
    rest = rest.strip_prefix(PYTHON).map_or(rest, str::trim_start);
    if let Some(fenced) = rest.strip_prefix(FENCE) {
        let Some((word, after)) = fenced.split_once('\n') else {
            return if fenced.len() < 16 { Err(()) } else { Ok(None) };
        };
        if !matches!(word.trim_end(), "" | "json" | "tool_code" | "tool_call") {
            return Ok(None);
        }
        rest = after.trim_start();
    }
    match rest.is_empty() || PYTHON.starts_with(rest) || FENCE.starts_with(rest) {
        true => Err(()),
        false => Ok(rest.starts_with('{').then_some(text.len() - rest.len())),
    }
}

/// Whether a reply is one call, by its first bytes; `None` if what follows decides.
pub(in crate::chat) fn begins(text: &str) -> Option<bool> {
    lead(text).ok().map(|at| at.is_some())
}

/// Reads the call that `text` begins with, after its marker. `strings` are the functions and the names of those of their
/// parameters that are strings, and `end` says whether the reply has ended.
pub(in crate::chat) fn read(
    form: CallForm,
    text: &str,
    scan: &mut Scan,
    strings: &[(String, String)],
    end: bool,
) -> Found {
    let body = form.marker().len();
    let found = match form {
        CallForm::Xml => read_elements(text, body, scan, strings),
        CallForm::Llama3 | CallForm::Gemma => match lead(text) {
            Err(()) => Found::More,
            Ok(None) => Found::No,
            Ok(Some(from)) => {
                let fenced = text.get(..from).unwrap_or_default().contains(FENCE);
                read_json(text, from, scan, if fenced { FENCE } else { "" }, end)
            }
        },
        CallForm::Hermes | CallForm::List => match first(text, body) {
            None => Found::More,
            Some((from, b'[' | b'{')) => read_json(text, from, scan, END, end),
            Some(_) => Found::No,
        },
        CallForm::Mistral | CallForm::MistralNamed => match first(text, body) {
            None => Found::More,
            Some((from, b'[')) => match text.get(from..).unwrap_or_default() {
                // No name.
                rest if rest.starts_with(ARGS) => Found::No,
                rest if ARGS.starts_with(rest) => Found::More,
                _ => read_json(text, from, scan, "", end),
            },
            Some((from, b'{')) => read_json(text, from, scan, "", end),
            Some((from, _)) => read_named(text, from, scan),
        },
    };
    if end && found == Found::More { Found::No } else { found }
}

/// Place and value of the first byte from `from` on that is no white space.
fn first(text: &str, from: usize) -> Option<(usize, u8)> {
    let rest = text.get(from..)?;
    let begun = rest.trim_start();
    begun.bytes().next().map(|byte| (from + rest.len() - begun.len(), byte))
}

/// Reads a JSON object or an array of them, and `close` behind it.
fn read_json(text: &str, from: usize, scan: &mut Scan, close: &str, end: bool) -> Found {
    let known = scan.depth == 0 && scan.at > from;
    let Some(stop) = (if known { Some(scan.at) } else { scan.end_of_json(text, from) }) else {
        return Found::More;
    };
    let Ok(value) = json::Value::parse(text.get(from..stop).unwrap_or_default()) else { return Found::No };
    let calls = match value.elements() {
        Some(elements) => elements.into_iter().map(normalized).collect(),
        None => normalized(value).map(|call| [call].into()),
    };
    let Some(calls) = calls.filter(|calls: &Vec<String>| !calls.is_empty()) else { return Found::No };
    let rest = text.get(stop..).unwrap_or_default();
    let after = rest.trim_start();
    match after.strip_prefix(close) {
        Some(after) if !close.is_empty() => Found::Calls(calls, text.len() - after.len()),
        None if close.starts_with(after) && !end => Found::More,
        _ => Found::Calls(calls, stop),
    }
}

/// An object with `name` and `arguments` or `parameters` as one with `name` and `arguments`.
fn normalized(value: json::Value<'_>) -> Option<String> {
    let name = value.get("name")?.as_string()?;
    let arguments = value.get("arguments").or_else(|| value.get("parameters"))?;
    // Some models write the object as a text.
    let text =
        arguments.as_string().filter(|text| json::Value::parse(text).is_ok_and(json::Value::is_object));
    let arguments = text.as_deref().unwrap_or(arguments.text());
    arguments.starts_with('{').then(|| call(&name, arguments))
}

fn call(name: &str, arguments: &str) -> String {
    let mut call = String::from("{\"name\": ");
    json::string(name, &mut call);
    call.extend([", \"arguments\": ", arguments, "}"]);
    call
}

/// Reads `NAME[ARGS]{...}`, also with an identifier of the call between them.
fn read_named(text: &str, from: usize, scan: &mut Scan) -> Found {
    let rest = text.get(from..).unwrap_or_default();
    let Some(open) = rest.find('{') else {
        return if rest.len() > 1024 { Found::No } else { Found::More };
    };
    let head = rest.get(..open).unwrap_or_default();
    let head = head.trim_end().strip_suffix(ARGS).unwrap_or(head);
    let name = head.split_once("[CALL_ID]").map_or(head, |(name, _)| name).trim();
    if name.is_empty() || name.contains(['\n', '"', '[']) {
        return Found::No;
    }
    let Some(stop) = scan.end_of_json(text, from + open) else { return Found::More };
    let arguments = text.get(from + open..stop).unwrap_or_default();
    match json::Value::parse(arguments) {
        Ok(_) => Found::Calls([call(name, arguments)].into(), stop),
        Err(_) => Found::No,
    }
}

/// Reads a function with its parameters as elements.
fn read_elements(text: &str, body: usize, scan: &mut Scan, strings: &[(String, String)]) -> Found {
    const FUNCTION: &str = "<function=";
    if let Some((from, _)) = first(text, body) {
        let begun = text.get(from..).unwrap_or_default();
        if !begun.starts_with(FUNCTION) && !FUNCTION.starts_with(begun) {
            return Found::No;
        }
    }
    scan.at = scan.at.max(body);
    while let Some(at) = text.get(scan.at..).and_then(|rest| rest.find(END)) {
        let at = scan.at + at;
        if let Some(call) = elements(text.get(body..at).unwrap_or_default().trim(), strings) {
            return Found::Calls([call].into(), at + END.len());
        }
        scan.at = at + 1;
    }
    // The end may have begun.
    let back = text.len().saturating_sub(END.len());
    scan.at = scan.at.max((0..=back).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    Found::More
}

/// `<function=NAME>` and what is in it as a call.
fn elements(text: &str, strings: &[(String, String)]) -> Option<String> {
    let (name, rest) = text.strip_prefix("<function=")?.split_once('>')?;
    let mut rest = rest.strip_suffix("</function>")?.trim_start();
    let mut arguments = String::from("{");
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        // A value may have what ends one: another parameter or nothing follows the end.
        let ends = after.match_indices("</parameter>").map(|(at, close)| (at, at + close.len()));
        let mut ends = ends.filter(|(_, end)| {
            let next = after.get(*end..).unwrap_or_default().trim_start();
            next.is_empty() || next.starts_with("<parameter=")
        });
        let (at, end) = ends.next()?;
        let value = after.get(..at)?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        if arguments.len() > 1 {
            arguments.push_str(", ");
        }
        json::string(key, &mut arguments);
        arguments.push_str(": ");
        let is_string = strings.iter().any(|(function, parameter)| function == name && parameter == key);
        match json::Value::parse(value) {
            Ok(value) if !is_string && value.as_string().is_none() => arguments.push_str(value.text()),
            _ => json::string(value, &mut arguments),
        }
        rest = after.get(end..)?.trim_start();
    }
    arguments.push('}');
    Some(call(name.trim(), &arguments))
}
