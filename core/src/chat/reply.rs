//! Streaming parser for replies: reasoning, content, tool calls.
//!
//! ```text
//! [<think> reasoning </think>] content [<tool_call> call </tool_call>]...
//! ```
//!
//! That is Qwen3's format; calls may have [other forms](CallForm).
//!
//! Text is released as soon as it is certain: a possible prefix of a marker, and line breaks that may precede
//! one, are held back.
#![forbid(unsafe_code)]

use super::calls::{self, CallForm, Found, Scan};
use super::template::{THINK, THINK_END};
use crate::error::{Error, Name, Result};
use crate::json;
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";

/// Which `<tool_call>` blocks of a reply, or what else begins calls, are calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallBlocks {
    /// None: everything is text. For replies in JSON, and without tools.
    Text,
    /// Those that [`Reply::call`] can parse. A reply without a valid call keeps its blocks as text.
    Valid,
    /// As `Valid` if the reply begins with a block, otherwise none: for replies that are calls or have a format.
    Leading,
    /// Every complete block, whatever its content. An incomplete one is left out. As `Valid` with another form than
    /// [`CallForm::Hermes`].
    Any,
}

/// A reply, or its latest part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The contents of the `<think>` block, if there is one. It may be incomplete.
    pub reasoning: Option<String>,
    /// The text for the reader.
    pub content: String,
    /// The contents of each `<tool_call>` block that is a call: see [`Reply::call`]. Calls of another [`CallForm`] as such ones.
    pub calls: Vec<String>,
}

impl Reply {
    /// Parses a reply in which every complete `<tool_call>` block is a call, and in which `</think>` may end
    /// reasoning that was opened before the reply. Never fails: other text is content.
    pub fn parse(text: &str) -> Reply {
        let mut parser = ReplyParser::new(CallBlocks::Any);
        let mut rest = text;
        if let Some(opened) = opened_thoughts(text).and_then(|at| text.get(at..)) {
            parser.open_thoughts();
            rest = opened;
        }
        parser.finish(rest);
        parser.reply
    }

    /// Parses a reply that begins with its reasoning, if it has any. Never fails.
    pub fn parse_with(text: &str, blocks: CallBlocks) -> Reply {
        let mut parser = ReplyParser::new(blocks);
        parser.finish(text);
        parser.reply
    }

    /// Name and arguments (a JSON text) of an element of [`Reply::calls`].
    ///
    /// # Errors
    /// If it is not JSON, or not an object with a name and arguments.
    pub fn call(call: &str) -> Result<(String, &str)> {
        let missing = |name| error!(MissingKey { key: Name::new(name) });
        let name = json::member(call, "name")?.ok_or(missing("name"))?;
        let name = json::text(name)?.ok_or(missing("name"))?;
        Ok((name, json::member(call, "arguments")?.ok_or(missing("arguments"))?))
    }

    fn clear(&mut self) {
        self.reasoning = None;
        self.content.clear();
        self.calls.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    Thoughts,
    AfterThoughts,
    Content,
    Call,
    BetweenCalls,
}

/// Parses a reply piece by piece.
#[derive(Clone, Debug)]
pub struct ReplyParser {
    blocks: CallBlocks,
    form: CallForm,
    /// Functions and those of their parameters that are strings.
    strings: Vec<(String, String)>,
    scan: Scan,
    place: Place,
    /// Text that is not released yet.
    held: String,
    /// Within a call: how much of `held` was searched for its end, and whether that position is inside a JSON
    /// string.
    searched: usize,
    quoted: bool,
    escaped: bool,
    /// The part that the last piece made certain, and the whole reply so far.
    delta: Reply,
    reply: Reply,
}

impl ReplyParser {
    /// A parser at the beginning of a reply.
    pub fn new(blocks: CallBlocks) -> ReplyParser {
        ReplyParser {
            blocks,
            form: CallForm::Hermes,
            strings: Vec::new(),
            scan: Scan::default(),
            place: Place::Start,
            held: String::new(),
            searched: 0,
            quoted: false,
            escaped: false,
            delta: Reply::default(),
            reply: Reply::default(),
        }
    }

    /// The same parser for calls of this form. `tools` are descriptions of the functions, which tell texts from numbers where the
    /// form does not.
    #[must_use]
    pub fn with_form(mut self, form: CallForm, tools: &[String]) -> ReplyParser {
        self.form = form;
        if form == CallForm::Xml {
            self.strings = tools.iter().flat_map(|tool| strings(tool)).collect();
        }
        self
    }

    /// States that `<think>` came before the reply.
    pub fn open_thoughts(&mut self) {
        if self.place == Place::Start {
            self.begin_thoughts();
        }
    }

    /// Takes the beginning of a reply that continues: all of it counts as returned before.
    pub(super) fn resume(&mut self, text: &str) {
        if !text.is_empty() {
            self.finish(text);
            self.delta.clear();
        }
    }

    /// Takes the next text and returns the part that is now certain.
    pub fn push(&mut self, text: &str) -> &Reply {
        self.held.push_str(text);
        self.run(false)
    }

    /// Takes the last text and returns everything held back.
    pub fn finish(&mut self, text: &str) -> &Reply {
        self.held.push_str(text);
        self.run(true)
    }

    /// Whether reasoning has begun and not ended.
    pub fn thinking(&self) -> bool {
        self.place == Place::Thoughts
    }

    /// The part that the last piece made certain.
    pub fn delta(&self) -> &Reply {
        &self.delta
    }

    /// The reply so far.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    fn run(&mut self, end: bool) -> &Reply {
        self.delta.clear();
        while self.advance(end) {}
        let Reply { reasoning, content, calls } = &self.delta;
        if let Some(reasoning) = reasoning {
            self.reply.reasoning.get_or_insert_default().push_str(reasoning);
        }
        self.reply.content.push_str(content);
        self.reply.calls.extend_from_slice(calls);
        &self.delta
    }

    /// Releases the text that is certain. True if the state changed, so that there may be more.
    fn advance(&mut self, end: bool) -> bool {
        match self.place {
            Place::Start => self.start(end),
            Place::Thoughts => self.thoughts(end),
            Place::AfterThoughts => {
                let breaks = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.drain(..breaks);
                self.place = if self.held.is_empty() { Place::AfterThoughts } else { Place::Content };
                !self.held.is_empty()
            }
            Place::Content => self.content(end),
            Place::Call if self.form != CallForm::Hermes => self.formed_call(end),
            Place::Call if self.blocks == CallBlocks::Any => self.any_call(end),
            Place::Call => self.valid_call(end),
            Place::BetweenCalls => {
                let marker = self.form.marker();
                if let Some(at) = self.held.find(marker) {
                    self.held.drain(..at);
                    self.begin_call();
                    return true;
                }
                // Only the prefix of a marker can matter.
                self.held.drain(..floor(&self.held, self.held.len().saturating_sub(marker.len())));
                false
            }
        }
    }

    fn begin_thoughts(&mut self) {
        self.place = Place::Thoughts;
        self.reply.reasoning = Some(String::new());
    }

    fn begin_call(&mut self) {
        self.place = Place::Call;
        self.scan = Scan::default();
        self.searched = 0;
        (self.quoted, self.escaped) = (false, false);
    }

    fn start(&mut self, end: bool) -> bool {
        let begun = self.held.trim_start();
        if begun.starts_with(THINK) {
            self.held.drain(..self.held.len() - begun.len() + THINK.len());
            self.begin_thoughts();
        } else if THINK.starts_with(begun) && !end {
            return false;
        } else {
            self.place = Place::Content;
        }
        true
    }

    fn thoughts(&mut self, end: bool) -> bool {
        let found = self.held.find(THINK_END);
        let stop = found.unwrap_or_else(|| certain(&self.held, THINK_END, end));
        let said = self.held.get(..stop).unwrap_or_default();
        let all = self.reply.reasoning.as_ref().is_none_or(String::is_empty);
        let reasoning = self.delta.reasoning.get_or_insert_default();
        // Line breaks around reasoning are part of the format.
        let first = all && reasoning.is_empty();
        reasoning.push_str(if first { said.trim_start_matches('\n') } else { said });
        if found.is_some() || end {
            reasoning.truncate(reasoning.trim_end_matches('\n').len());
        }
        match found {
            Some(at) => {
                self.held.drain(..at + THINK_END.len());
                self.place = Place::AfterThoughts;
            }
            None => drop(self.held.drain(..stop)),
        }
        found.is_some()
    }

    fn content(&mut self, end: bool) -> bool {
        let marker = self.form.marker();
        if self.form.leads() && self.blocks != CallBlocks::Text {
            match calls::begins(&self.held) {
                Some(true) => {
                    self.begin_call();
                    return true;
                }
                None if !end => return false,
                Some(false) | None => self.blocks = CallBlocks::Text,
            }
        }
        if self.blocks == CallBlocks::Leading {
            if self.held.starts_with(marker) {
                self.begin_call();
                return true;
            }
            if marker.starts_with(&self.held) && !end {
                return false;
            }
            self.blocks = CallBlocks::Text;
        }
        let text = self.blocks == CallBlocks::Text;
        let found = if text { None } else { self.held.find(marker) };
        let said = match found {
            Some(at) => self.held.get(..at).unwrap_or_default().trim_end_matches('\n'),
            None => self.held.get(..certain(&self.held, marker, end || text)).unwrap_or_default(),
        };
        self.delta.content.push_str(said);
        self.held.drain(..said.len());
        if found.is_some() {
            self.begin_call();
        }
        found.is_some()
    }

    /// In a call of another form than that of Hermes.
    fn formed_call(&mut self, end: bool) -> bool {
        // Line breaks before it are only part of the text if it is no call.
        let from = if self.form.leads() { 0 } else { self.held.find(self.form.marker()).unwrap_or(0) };
        let call = self.held.get(from..).unwrap_or_default();
        match calls::read(self.form, call, &mut self.scan, &self.strings, end) {
            Found::More => false,
            Found::Calls(calls, len) => {
                self.delta.calls.extend(calls);
                self.held.drain(..from + len);
                self.place = Place::BetweenCalls;
                true
            }
            Found::No if self.reply.calls.is_empty() && self.delta.calls.is_empty() => {
                (self.blocks, self.place) = (CallBlocks::Text, Place::Content);
                true
            }
            Found::No => {
                // Past the marker, so that it is not found again.
                let marker = (from + self.form.marker().len()).min(self.held.len());
                self.held.drain(..marker);
                self.place = Place::BetweenCalls;
                true
            }
        }
    }

    /// In a call that ends with the first marker before which it is valid; a marker within a JSON string does
    /// not end it.
    fn valid_call(&mut self, end: bool) -> bool {
        while let Some(at) = self.held.get(self.searched..).and_then(|rest| rest.find(END_CALL)) {
            let at = self.searched + at;
            let stop = at + END_CALL.len();
            let block = self.held.get(..stop).unwrap_or_default();
            let before = self.delta.calls.len();
            self.delta
                .calls
                .extend(complete_calls(block).filter(|c| Reply::call(c).is_ok()).map(str::to_owned));
            if self.delta.calls.len() > before {
                self.held.drain(..stop);
                self.place = Place::BetweenCalls;
                return true;
            }
            self.searched = at + 1;
        }
        self.searched = floor(&self.held, self.held.len().saturating_sub(END_CALL.len())).max(self.searched);
        if end {
            if self.reply.calls.is_empty() && self.delta.calls.is_empty() {
                // It was not a call.
                self.delta.content.push_str(&self.held);
            }
            self.held.clear();
        }
        false
    }

    /// In a call that ends with the first marker outside a JSON string, or else with the first marker.
    fn any_call(&mut self, end: bool) -> bool {
        let from = self.held.find(CALL).map_or(0, |at| at + CALL.len());
        let text = self.held.get(from..).unwrap_or_default();
        let mut found = None;
        for (at, byte) in text.bytes().enumerate().skip(self.searched) {
            self.searched = at + 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                b'<' if !self.quoted => {
                    let rest = text.get(at..).unwrap_or_default();
                    if rest.starts_with(END_CALL) {
                        found = Some(at);
                        break;
                    }
                    if END_CALL.starts_with(rest) && !end {
                        self.searched = at;
                        return false;
                    }
                }
                _ => {}
            }
        }
        let found = found.or_else(|| text.find(END_CALL).filter(|_| end));
        match found {
            Some(at) => {
                self.delta.calls.push(text.get(..at).unwrap_or_default().trim_matches('\n').to_owned());
                self.held.drain(..from + at + END_CALL.len());
                self.place = Place::BetweenCalls;
            }
            None if end => self.held.clear(),
            None => {}
        }
        found.is_some()
    }
}

/// The function of a description, with each of its parameters that is a string.
fn strings(tool: &str) -> Vec<(String, String)> {
    let Ok(tool) = json::Value::parse(tool) else { return Vec::new() };
    let function = tool.get("function").unwrap_or(tool);
    let name = function.get("name").and_then(json::Value::as_string).unwrap_or_default();
    let properties = function.get("parameters").and_then(|parameters| parameters.get("properties"));
    let members = properties.and_then(json::Value::members).unwrap_or_default();
    let is_string = |schema: &json::Value<'_>| {
        schema.get("type").and_then(json::Value::as_string).as_deref() == Some("string")
    };
    members.into_iter().filter(|(_, schema)| is_string(schema)).map(|(key, _)| (name.clone(), key)).collect()
}

/// The largest character boundary up to `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Length of `text` that can be released before a possible `marker` and the line breaks before it.
fn certain(text: &str, marker: &str, end: bool) -> usize {
    if end {
        return text.len();
    }
    let begun = (1..marker.len()).rev().filter_map(|n| marker.get(..n)).find(|begin| text.ends_with(begin));
    let stop = text.len() - begun.map_or(0, str::len);
    text.get(..stop).unwrap_or_default().trim_end_matches('\n').len()
}

/// Where reasoning begins in a complete reply, which need not start with it.
fn opened_thoughts(text: &str) -> Option<usize> {
    match split_thoughts(text, THINK_END) {
        Some((thoughts, _)) => Some(thoughts.find(THINK).map_or(0, |at| at + THINK.len())),
        None => split_thoughts(text, THINK).map(|(before, _)| before.len() + THINK.len()),
    }
}

/// The text before and after a reasoning marker. A marker within a call is part of the call's text, unless
/// the call itself is only reasoning.
fn split_thoughts<'s>(text: &'s str, marker: &str) -> Option<(&'s str, &'s str)> {
    let (before, after) = text.split_once(marker)?;
    let mut rest = text;
    if text.trim_start().starts_with(THINK) {
        return Some((before, after));
    }
    while let Some((_, call)) = rest.split_once(CALL)
        && let Some(reach) = call.len().checked_sub(marker.len() + after.len())
    {
        let within = match split_call(call) {
            Some((_, following)) if following.len() > after.len() => {
                rest = following;
                continue;
            }
            Some((call, _)) => Reply::call(call).is_ok(),
            None => call.get(..reach).is_some_and(|half| half.trim_start().starts_with('{')),
        };
        return (!within).then_some((before, after));
    }
    Some((before, after))
}

/// The contents of the complete blocks in `text`.
fn complete_calls(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let (call, after) = split_call(rest.split_once(CALL)?.1)?;
        rest = after;
        Some(call.trim_matches('\n'))
    })
}

/// The text before and after the marker that ends a call. A marker within a JSON string does not count,
/// unless there is no other.
fn split_call(text: &str) -> Option<(&str, &str)> {
    let (mut quoted, mut escaped) = (false, false);
    let end = text.bytes().enumerate().find_map(|(at, byte)| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'<' if !quoted => return text.get(at..)?.starts_with(END_CALL).then_some(at),
            _ => {}
        }
        None
    });
    let end = end.or_else(|| text.find(END_CALL))?;
    Some((text.get(..end)?, text.get(end + END_CALL.len()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Pcg32;
    use alloc::format;
    use alloc::vec;

    #[test]
    fn markers_in_json_are_text() {
        let json = r#"{"a": "</think> <tool_call>x</tool_call>"}"#;
        let reply = Reply::parse_with(json, CallBlocks::Text);
        assert_eq!((reply.reasoning, reply.content.as_str()), (None, json));
        let text = format!("<think>\nHm.\n</think>\n\n{json}");
        let reply = Reply::parse_with(&text, CallBlocks::Text);
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("Hm."), json));
    }

    #[test]
    fn a_reply_that_does_not_begin_with_a_call_is_text() {
        let call = "{\"name\": \"f\", \"arguments\": {}}";
        let block = format!("<tool_call>\n{call}\n</tool_call>");
        for (before, text, calls) in [
            ("", block.clone(), 1),
            ("<think>\nHm.\n</think>\n\n", format!("{block}\n{block}"), 2),
            ("", format!("{{\"a\": {block:?}}}"), 0),
            ("<think>\nHm.\n</think>\n\n", format!("{{\"a\": {block:?}}}"), 0),
            ("", format!("So {block}"), 0),
            ("", "<tool_call>".into(), 0),
            ("", "<tool".into(), 0),
        ] {
            let reply = Reply::parse_with(&format!("{before}{text}"), CallBlocks::Leading);
            assert_eq!(reply.calls, vec![call; calls], "{text}");
            assert_eq!(reply.content, if calls > 0 { "" } else { text.as_str() });
        }
    }

    #[test]
    fn blocks_that_cannot_be_read_are_text() {
        let add = "\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n";
        let inner = add.trim_matches('\n');
        for (text, content, calls) in [
            (format!("I add.\n\n\n<tool_call>{add}</tool_call>"), "I add.", vec![inner]),
            (
                format!("<tool_call>{add}</tool_call> and <tool_call>{add}</tool_call> so"),
                "",
                vec![inner, inner],
            ),
            ("It is\n\n<tool_call>{not JSON}</tool_call> or so.".into(), "", vec![]),
            ("It is\n\n<tool_call>{not JSON}</tool_call>".into(), "", vec![]),
            (format!("<tool_call>{add}"), "", vec![]),
            (format!("<tool_call>{add}</tool_call>\n<tool_call>{{\"na"), "", vec![inner]),
        ] {
            let reply = Reply::parse_with(&text, CallBlocks::Valid);
            assert_eq!(reply.calls, calls, "{text}");
            assert_eq!(reply.content, if calls.is_empty() { text.as_str() } else { content }, "{text}");
        }
        let quoted = r#"{"name": "note", "arguments": {"text": "a </tool_call> b"}}"#;
        let reply = Reply::parse_with(&format!("<tool_call>{quoted}</tool_call>"), CallBlocks::Valid);
        assert_eq!(reply.calls, [quoted]);
    }

    /// The result does not depend on how a text is cut, and released text is never taken back.
    #[test]
    fn pieces_make_the_reply() {
        let parts = [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "\n",
            "\n\n",
            " ",
            "a",
            "é",
            "\"",
            "\\",
            "<",
            "{",
            "{\"name\": \"f\", \"arguments\": {}}",
            "{\"name\": \"f\", \"arguments\": \"</tool_call>\"}",
            "<tool",
            "</",
        ];
        let mut rng = Pcg32::new(3);
        let mut pick = |n: usize| rng.next_u32() as usize % n;
        for _ in 0..4000 {
            let mut text = String::new();
            for _ in 0..pick(14) {
                text.push_str(parts[pick(parts.len())]);
            }
            for blocks in [CallBlocks::Text, CallBlocks::Valid, CallBlocks::Leading, CallBlocks::Any] {
                let whole = Reply::parse_with(&text, blocks);
                let mut parser = ReplyParser::new(blocks);
                let mut sum = Reply::default();
                let mut add = |delta: &Reply| {
                    if let Some(reasoning) = &delta.reasoning {
                        sum.reasoning.get_or_insert_default().push_str(reasoning);
                    }
                    sum.content.push_str(&delta.content);
                    sum.calls.extend_from_slice(&delta.calls);
                };
                let mut rest = text.as_str();
                while !rest.is_empty() {
                    let at = floor(rest, 1 + pick(9).min(rest.len() - 1))
                        .max(rest.chars().next().map_or(1, char::len_utf8));
                    let (now, later) = rest.split_at(at);
                    add(parser.push(now));
                    rest = later;
                }
                add(parser.finish(""));
                assert_eq!(&whole, parser.reply(), "{blocks:?} {text:?}");
                assert_eq!(whole.content, sum.content, "{blocks:?} {text:?}");
                assert_eq!(whole.calls, sum.calls, "{blocks:?} {text:?}");
                assert_eq!(
                    whole.reasoning.unwrap_or_default(),
                    sum.reasoning.unwrap_or_default(),
                    "{blocks:?} {text:?}"
                );
            }
        }
    }
}
