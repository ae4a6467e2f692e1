//! Compiles JSON Schema to a grammar.
//!
//! Unsupported keywords are refused by name: if a schema is accepted, every text of its grammar matches it.
//! The grammar may have fewer texts than the schema.
#![forbid(unsafe_code)]

use super::decimal::Bounds;
use super::grammar::{Grammar, MAX_NODES, MAX_PROPERTIES, Node, NodeId, Property, Text, Whitespace};
use super::pattern::{self, Budget, Pattern, Refused};
use super::spelling::Spelling;
use crate::error::{Error, Name, Result};
use crate::json;
use crate::sort;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

/// Maximum number of bytes of a schema.
const MAX_BYTES: usize = 1 << 18;
/// Largest nesting of schemas.
const MAX_NESTING: usize = 64;
/// Maximum number of schemas that are referenced.
const MAX_REFERENCES: usize = 512;
/// Maximum number of schemas of one `oneOf`, which are compared pairwise.
const MAX_ONE_OF: usize = 64;
/// Maximum number of bytes searched to resolve references.
const MAX_SEARCH: usize = 1 << 27;
/// Maximum number of keywords that are left out of one schema.
const MAX_LEFT_OUT: usize = 64;
/// Maximum number of schemas that are merged into one.
const MAX_MERGED: usize = 64;
/// Maximum number of values of one `enum`.
const MAX_VALUES: usize = 4096;
/// Digits of a constant: a float holds every whole number with as many.
const MAX_DIGITS: u32 = 308;
/// Maximum number of bytes of all constants and names of a grammar, with a fixed overhead for each.
const MAX_TEXT: usize = 1 << 22;

/// A value within text written by [`json::reformat`], which is valid and has one spelling for everything.
#[derive(Clone, Copy, Debug)]
struct Value<'t>(&'t str);

impl<'t> Value<'t> {
    fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// The text between the brackets, split at the commas.
    fn parts(self) -> Vec<&'t str> {
        let inner = self.0.get(1..self.0.len() - 1).unwrap_or("");
        let (mut parts, mut depth, mut quoted, mut escaped, mut start) = (Vec::new(), 0, false, false, 0);
        for (at, byte) in inner.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                b',' if depth == 0 => {
                    parts.extend(inner.get(start..at));
                    start = at + 2; // a space follows
                }
                _ => {}
            }
        }
        if !inner.is_empty() {
            parts.extend(inner.get(start..));
        }
        parts
    }

    fn items(self) -> Option<Vec<Value<'t>>> {
        self.0.starts_with('[').then(|| self.parts().into_iter().map(Value).collect())
    }

    /// Names, as spelled with their quotes, and values; the last of equal names counts.
    fn members(self) -> Option<Vec<(&'t str, Value<'t>)>> {
        if !self.is_object() {
            return None;
        }
        let mut members: Vec<(&str, Value<'_>)> = Vec::new();
        for part in self.parts() {
            let mut escaped = false;
            let close = part.bytes().enumerate().skip(1).find(|&(_, byte)| {
                let closes = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                closes
            });
            let at = close.map_or(0, |(at, _)| at + 1);
            let (name, value) = part.split_at_checked(at).unwrap_or((part, ""));
            members.push((name, Value(value.get(2..).unwrap_or(""))));
        }
        let name = |i: u32| members.get(i as usize).map(|member| member.0);
        let order = sort::sorted(members.len(), &|a, b| (name(a), a).cmp(&(name(b), b)));
        let again: Vec<u32> =
            order.array_windows().filter(|[a, b]| name(*a) == name(*b)).map(|[a, _]| *a).collect();
        for i in again {
            if let Some(member) = members.get_mut(i as usize) {
                member.0 = "";
            }
        }
        members.retain(|(name, _)| !name.is_empty());
        Some(members)
    }

    /// The value of a keyword without its quotes.
    fn of(telling: &[(&'t str, Value<'t>)], name: &str) -> Option<Value<'t>> {
        telling.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    fn get(members: &[(&'t str, Value<'t>)], name: &str) -> Option<Value<'t>> {
        let is = |spelled: &str| spelled.strip_prefix('"').and_then(|s| s.strip_suffix('"')) == Some(name);
        members.iter().find(|(spelled, _)| is(spelled)).map(|(_, value)| *value)
    }

    /// The text between the quotes of a string, as spelled.
    fn spelled(self) -> Option<&'t str> {
        self.0.strip_prefix('"')?.strip_suffix('"')
    }

    /// Whether it contains a number too large for a float.
    fn overflows(self) -> bool {
        let (mut quoted, mut escaped) = (false, false);
        let mut digits = 0;
        self.0.bytes().any(|byte| {
            digits = if byte.is_ascii_digit() && !quoted { digits + 1 } else { 0 };
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ => {}
            }
            // Floats are spelled with fewer digits, or as `Infinity`.
            byte == b'I' && !quoted || digits > MAX_DIGITS
        })
    }

    /// Whether it is a number without a fraction, in whichever spelling.
    fn is_whole(self) -> bool {
        match self.kind() {
            Kind::Integer => true,
            // Python gives an exponent of 16 or more to at most 17 digits.
            Kind::Number => self.0.ends_with(".0") || self.0.contains("e+"),
            _ => false,
        }
    }

    fn kind(self) -> Kind {
        match self.0.bytes().next() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') => Kind::Null,
            // All other JSON values are numbers.
            _ if self.0.contains(['.', 'e']) => Kind::Number,
            Some(_) | None => Kind::Integer,
        }
    }
}

/// The types that `type` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
    String,
    Number,
    Integer,
    Boolean,
    Null,
}

impl Kind {
    const ALL: [(Kind, &'static str); 7] = [
        (Kind::Object, "object"),
        (Kind::Array, "array"),
        (Kind::String, "string"),
        (Kind::Number, "number"),
        (Kind::Integer, "integer"),
        (Kind::Boolean, "boolean"),
        (Kind::Null, "null"),
    ];
}

/// Annotations: keywords that do not restrict the value.
const REMARKS: [&str; 16] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "deprecated",
    "discriminator",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
];

/// Keywords that apply to one type.
const OF_KIND: [(Kind, &[&str]); 4] = [
    (Kind::Object, &["properties", "required", "additionalProperties"]),
    (Kind::Array, &["items", "prefixItems", "minItems", "maxItems"]),
    (Kind::String, &["minLength", "maxLength", "pattern", "format"]),
    (Kind::Number, &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
];

/// The JSON pointer of a keyword; a long one is cut at the front.
fn pointer(path: &str, keyword: &str) -> Name {
    let full = alloc::format!("{path}/{keyword}");
    let cut = full.len().checked_sub(35).and_then(|from| Some(from + full.get(from..)?.find('/')?));
    match cut {
        Some(from) if full.len() > 38 => Name::new(alloc::format!("...{}", full.get(from..).unwrap_or(""))),
        _ => Name::new(full),
    }
}

#[cold]
fn limit<T>(what: &'static str, found: usize, max: usize) -> Result<T> {
    Err(error!(Limit { what, found: found as u64, max: max as u64 }))
}

/// A graph being built.
pub(super) struct Builder {
    pub(super) nodes: Vec<Node>,
    /// As in [`Grammar`].
    spaced: NodeId,
    any: Option<NodeId>,
    /// The remaining budget for patterns.
    budget: Budget,
    /// The remaining part of [`MAX_TEXT`].
    text: usize,
}

impl Builder {
    fn new(whitespace: Whitespace) -> Builder {
        Builder::with(Vec::new(), whitespace.first())
    }

    fn with(nodes: Vec<Node>, spaced: NodeId) -> Builder {
        Builder { nodes, spaced, any: None, budget: Budget::new(), text: MAX_TEXT }
    }

    fn finish(self, root: NodeId) -> Result<Grammar> {
        Grammar::finish(self.nodes, root, self.spaced)
    }

    /// Charges the budget for texts of the schema; a schema that is compiled twice is charged twice.
    fn keep(&mut self, texts: impl Iterator<Item = usize>) -> Result<()> {
        let len = texts.map(|len| len + 16).sum();
        match self.text.checked_sub(len) {
            Some(left) => self.text = left,
            None => return limit("length of all constants and names", MAX_TEXT - self.text + len, MAX_TEXT),
        }
        Ok(())
    }

    pub(super) fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    pub(super) fn texts<'t>(&mut self, texts: impl IntoIterator<Item = &'t str>) -> NodeId {
        let texts: Vec<&[u8]> = texts.into_iter().map(str::as_bytes).collect();
        let at = |i: u32| texts.get(i as usize).copied().unwrap_or_default();
        let mut order = sort::sorted(texts.len(), &|a, b| at(a).cmp(at(b)));
        order.dedup_by(|a, b| at(*a) == at(*b));
        self.add(Node::Texts(order.into_iter().map(|i| Text::new(at(i))).collect()))
    }

    /// Any JSON value.
    pub(super) fn any(&mut self) -> NodeId {
        if let Some(any) = self.any {
            return any;
        }
        let any = self.add(Node::Any(Vec::new()));
        self.any = Some(any);
        let object = self.object();
        let choices = vec![
            object,
            self.add(Node::Array { prefix: Vec::new(), items: any, min: 0, max: u32::MAX }),
            self.add(Node::String { min: 0, max: u32::MAX }),
            self.add(Node::Number(Bounds::none(false))),
            self.texts(["true", "false", "null"]),
        ];
        if let Some(node) = self.nodes.get_mut(any as usize) {
            *node = Node::Any(choices);
        }
        any
    }

    /// Any JSON object.
    pub(super) fn object(&mut self) -> NodeId {
        let any = self.any();
        self.add(Node::Object { properties: Vec::new(), required: 0, other: Some(any) })
    }

    /// The node of the arguments of a function, tool number `index`; see [`Grammar::calls_with`].
    fn arguments(
        &mut self,
        index: u32,
        function: &Function<'_>,
        follow: bool,
        left_out: &mut Vec<String>,
    ) -> Result<NodeId> {
        let Some(schema) = function.parameters.filter(|_| function.strict.unwrap_or(follow)) else {
            return Ok(self.object());
        };
        if function.strict.is_some() {
            let built = self.schema(schema).and_then(|root| self.objects_of(root));
            return built.map_err(|error| error.of_tool(index));
        }
        let (nodes, any, text) = (self.nodes.len(), self.any, self.text);
        match self.lenient_schema(schema, left_out).and_then(|root| self.objects_of(root)) {
            Err(Error::Unsupported { .. } | Error::Limit { .. }) => {
                self.nodes.truncate(nodes);
                (self.any, self.text) = (any, text);
                left_out.push(String::new());
                Ok(self.object())
            }
            built => built.map_err(|error| error.of_tool(index)),
        }
    }

    /// What `build` makes; any value if it is not supported.
    pub(super) fn or_any(&mut self, build: impl FnOnce(&mut Self) -> Result<NodeId>) -> Result<NodeId> {
        let (nodes, any, text) = (self.nodes.len(), self.any, self.text);
        match build(self) {
            Err(Error::Unsupported { .. } | Error::Limit { .. } | Error::Argument { .. }) => {
                self.nodes.truncate(nodes);
                (self.any, self.text) = (any, text);
                Ok(self.any())
            }
            built => built,
        }
    }

    /// The objects among the values of a schema: arguments are nothing else, whatever the schema allows.
    fn objects_of(&mut self, root: NodeId) -> Result<NodeId> {
        let (mut queue, mut seen) = (vec![root], vec![false; self.nodes.len()]);
        let (mut objects, mut listed) = (Vec::new(), Vec::new());
        while let Some(id) = queue.pop() {
            let (Some(seen), Some(node)) = (seen.get_mut(id as usize), self.nodes.get(id as usize)) else {
                continue;
            };
            match node {
                Node::Any(choices) if !*seen => queue.extend(choices),
                Node::Object { .. } if !*seen => objects.push(id),
                Node::Texts(texts) if !*seen => {
                    let of_objects = texts.iter().filter(|text| text.bytes.starts_with(b"{"));
                    listed.extend(of_objects.map(|text| text.bytes.clone()));
                }
                Node::Any(_)
                | Node::Object { .. }
                | Node::Texts(_)
                | Node::Sequence { .. }
                | Node::Cases { .. }
                | Node::String { .. }
                | Node::Pattern(_)
                | Node::Plain(_)
                | Node::Number(_)
                | Node::Array { .. }
                | Node::Free { .. } => {}
            }
            *seen = true;
        }
        if !listed.is_empty() {
            objects.push(self.texts(listed.iter().filter_map(|text| core::str::from_utf8(text).ok())));
        }
        if objects.is_empty() {
            let (found, expected) = (Name::new("no object"), "a schema that objects satisfy");
            return Err(error!(Unsupported { key: Name::new(""), found, expected }));
        }
        Ok(self.add(Node::Any(objects)))
    }

    /// The node of the schema `text`.
    pub(super) fn schema(&mut self, text: &str) -> Result<NodeId> {
        let sound = sound(text)?;
        self.compile(Value(&sound), &mut Vec::new(), false).0
    }

    /// The node of the schema `text` without what is not supported, whose JSON pointers are added to `left_out`.
    fn lenient_schema(&mut self, text: &str, left_out: &mut Vec<String>) -> Result<NodeId> {
        let sound = sound(text)?;
        let (nodes, any, kept) = (self.nodes.len(), self.any, self.text);
        let mut left = Vec::new();
        loop {
            let (error, place) = match self.compile(Value(&sound), &mut left, true) {
                (Ok(root), _) => {
                    left_out.extend(left.into_iter().map(|left| left.pointer));
                    return Ok(root);
                }
                (Err(error), place) => (error, place),
            };
            match place {
                Some(place) if left.len() < MAX_LEFT_OUT && !left.contains(&place) => left.push(place),
                Some(_) | None => return Err(error),
            }
            self.nodes.truncate(nodes);
            (self.any, self.text) = (any, kept);
        }
    }

    /// The node of a schema without what is `left` out, or why it is refused, and what of it could be left out.
    fn compile(
        &mut self,
        root: Value<'_>,
        left: &mut Vec<LeftOut>,
        lenient: bool,
    ) -> (Result<NodeId>, Option<LeftOut>) {
        let mut compiler = Compiler {
            builder: self,
            root,
            references: Vec::new(),
            queue: Vec::new(),
            search: MAX_SEARCH,
            path: String::new(),
            lenient,
            left: core::mem::take(left),
            refused: RefCell::new(None),
        };
        let built = compiler.all();
        let (place, found) = (compiler.refused.take(), compiler.left);
        *left = found;
        (built, place)
    }
}

/// The schema in one spelling.
fn sound(text: &str) -> Result<String> {
    if text.len() > MAX_BYTES {
        return limit("length of the schema", text.len(), MAX_BYTES);
    }
    let mut sound = String::with_capacity(text.len());
    json::reformat(text, &mut sound)?;
    json::refuse_lone_surrogates(text)?;
    Ok(sound)
}

/// What is left out of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeftOut {
    /// The address of its text, or of a part of it.
    at: usize,
    /// The whole JSON pointer.
    pointer: String,
}

impl LeftOut {
    fn is_within(&self, value: Value<'_>) -> bool {
        let start = value.0.as_ptr().addr();
        (start..start + value.0.len()).contains(&self.at)
    }
}

struct Compiler<'b, 't> {
    builder: &'b mut Builder,
    root: Value<'t>,
    /// Each referenced schema: its path, its value and its node.
    references: Vec<(String, Value<'t>, NodeId)>,
    /// Those that are not compiled yet.
    queue: Vec<(String, Value<'t>, NodeId)>,
    /// The remaining part of [`MAX_SEARCH`].
    search: usize,
    /// The JSON pointer of the current schema.
    path: String,
    /// Whether `nullable` and `oneOf` are read as most programs do, rather than refused.
    lenient: bool,
    left: Vec<LeftOut>,
    /// What was refused last.
    refused: RefCell<Option<LeftOut>>,
}

/// A part of a URI's fragment as text (RFC 6901, section 6); `None` if it is malformed.
fn percent_decoded(part: &str) -> Option<Cow<'_, str>> {
    let Some((before, escaped)) = part.split_once('%') else { return Some(Cow::Borrowed(part)) };
    let mut bytes = Vec::from(before);
    for escaped in escaped.split('%') {
        let code = escaped.get(..2).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(escaped.get(2..)?.as_bytes());
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

impl<'t> Compiler<'_, 't> {
    /// The node of the whole.
    fn all(&mut self) -> Result<NodeId> {
        let id = self.reference("#")?;
        // References can form a long chain or a cycle.
        while let Some((path, schema, id)) = self.queue.pop() {
            self.path = path;
            let target = self.compile(schema, 0)?;
            if let Some(node) = self.builder.nodes.get_mut(id as usize) {
                *node = Node::Any(vec![target]);
            }
        }
        Ok(id)
    }

    fn unsupported<T>(&self, keyword: &str, found: Value<'_>, expected: &'static str) -> Result<T> {
        Err(self.refusal(keyword, found, expected))
    }

    #[cold]
    #[inline(never)]
    fn refusal(&self, keyword: &str, found: Value<'_>, expected: &'static str) -> Error {
        let at = found.0.as_ptr().addr();
        let whole = alloc::format!("{}/{keyword}", self.path);
        *self.refused.borrow_mut() = Some(LeftOut { at, pointer: whole });
        let found = Name::new(found.spelled().unwrap_or(found.0));
        error!(Unsupported { key: pointer(&self.path, keyword), found, expected })
    }

    fn reference(&mut self, path: &str) -> Result<NodeId> {
        if let Some((.., id)) = self.references.iter().find(|(known, ..)| known == path) {
            return Ok(*id);
        }
        let Some(target) = self.locate(path) else {
            let expected = "# and the JSON pointer of a schema in this text";
            return self.unsupported("$ref", Value(path), expected);
        };
        // `~` and `~0` are the same in a name.
        if let Some((.., id)) = self.references.iter().find(|(_, known, _)| core::ptr::eq(known.0, target.0))
        {
            return Ok(*id);
        }
        if self.references.len() == MAX_REFERENCES {
            return limit("number of references in the schema", MAX_REFERENCES + 1, MAX_REFERENCES);
        }
        let id = self.builder.add(Node::Any(Vec::new()));
        self.references.push((path.into(), target, id));
        self.queue.push((path.strip_prefix('#').unwrap_or(path).into(), target, id));
        Ok(id)
    }

    /// The value at a JSON pointer after a `#`.
    fn locate(&mut self, path: &str) -> Option<Value<'t>> {
        let mut value = self.root;
        let mut parts = path.strip_prefix('#')?.split('/');
        if parts.next() != Some("") {
            return None;
        }
        for part in parts {
            let part = &*percent_decoded(part)?;
            self.search = self.search.checked_sub(value.0.len())?;
            value = match value.items() {
                // As in JSON Pointer, each index has one spelling.
                Some(_) if part.starts_with('+') || part.len() > 1 && part.starts_with('0') => return None,
                Some(items) => *items.get(part.parse::<usize>().ok()?)?,
                // The two characters that a pointer escapes.
                None => Value::get(&value.members()?, &part.replace("~1", "/").replace("~0", "~"))?,
            };
        }
        Some(value)
    }

    /// The node of a subschema.
    fn part(
        &mut self,
        keyword: &str,
        name: Option<&str>,
        schema: Value<'t>,
        nesting: usize,
    ) -> Result<NodeId> {
        let len = self.path.len();
        for part in [Some(keyword), name].into_iter().flatten() {
            self.path.push('/');
            self.path.push_str(part);
        }
        let id = self.compile(schema, nesting + 1)?;
        self.path.truncate(len);
        Ok(id)
    }

    fn compile(&mut self, schema: Value<'t>, nesting: usize) -> Result<NodeId> {
        if nesting > MAX_NESTING {
            return limit("nesting of schemas", nesting, MAX_NESTING);
        }
        if self.builder.nodes.len() > MAX_NODES {
            return limit("size of the schema", self.builder.nodes.len(), MAX_NODES);
        }
        if schema.0 == "true" || self.left.iter().any(|left| left.at == schema.0.as_ptr().addr()) {
            return Ok(self.builder.any());
        }
        if schema.0 == "false" {
            return Ok(self.builder.add(Node::Any(Vec::new())));
        }
        let Some(members) = schema.members() else {
            return self.unsupported("", schema, "a schema: an object, true or false");
        };
        let nullable = Value::get(&members, "nullable").is_some_and(|value| value.0 == "true");
        let node = self.members(members, nesting)?;
        if !nullable {
            return Ok(node);
        }
        // Of OpenAPI; it was refused otherwise.
        let null = self.builder.texts(["null"]);
        Ok(self.builder.add(Node::Any(vec![node, null])))
    }

    /// The keywords of a schema that restrict the value and are not left out, in the order of the schema.
    fn telling(&self, members: Vec<(&'t str, Value<'t>)>) -> Result<Vec<(&'t str, Value<'t>)>> {
        let mut telling = Vec::new();
        for (spelled, value) in members {
            let name = Value(spelled).spelled().unwrap_or("");
            let schemas = matches!(name, "properties" | "items" | "additionalProperties" | "prefixItems")
                || matches!(name, "anyOf" | "oneOf" | "allOf");
            let is_left = |left: &LeftOut| match schemas {
                // What is within them is left out by itself.
                true => left.at == value.0.as_ptr().addr(),
                false => left.is_within(value),
            };
            if self.left.iter().any(is_left) {
                continue;
            }
            let known =
                matches!(name, "type" | "enum" | "const" | "anyOf" | "oneOf" | "allOf" | "$ref" | "not")
                    || OF_KIND.iter().any(|(_, keywords)| keywords.contains(&name));
            let is_ignored = match name {
                "uniqueItems" => value.0 == "false",
                "nullable" => value.0 == "false" || self.lenient && value.0 == "true",
                "$id" => self.path.is_empty(),
                _ => REMARKS.contains(&name),
            };
            if known {
                telling.push((name, value));
            } else if !is_ignored {
                return self.unsupported(name, value, "a schema without it");
            }
        }
        Ok(telling)
    }

    /// Replaces references that have something beside them, and all of `allOf`, by what they stand for.
    fn merged(
        &mut self,
        mut telling: Vec<(&'t str, Value<'t>)>,
        merges: &mut usize,
    ) -> Result<Vec<(&'t str, Value<'t>)>> {
        loop {
            let is_one = |(name, _): &(&str, Value<'_>)| matches!(*name, "$ref" | "allOf");
            let Some(at) = telling.iter().position(is_one).filter(|_| telling.len() > 1) else {
                let Some(("allOf", value)) = telling.first().copied() else { return Ok(telling) };
                if value.items().is_some_and(|schemas| schemas.len() < 2) {
                    return Ok(telling);
                }
                // Schemas beside each other.
                telling = self.merge_all(value, Vec::new(), merges)?;
                continue;
            };
            let (name, value) = telling.remove(at);
            telling = if name == "allOf" {
                self.merge_all(value, telling, merges)?
            } else {
                let target = value.spelled().and_then(|path| self.locate(path));
                let Some(target) = target else {
                    let expected = "# and the JSON pointer of a schema in this text";
                    return self.unsupported("$ref", value, expected);
                };
                self.merge(target, telling, merges)?
            };
        }
    }

    fn merge_all(
        &mut self,
        value: Value<'t>,
        mut telling: Vec<(&'t str, Value<'t>)>,
        merges: &mut usize,
    ) -> Result<Vec<(&'t str, Value<'t>)>> {
        let Some(schemas) = value.items().filter(|schemas| !schemas.is_empty()) else {
            return self.unsupported("allOf", value, "an array of schemas");
        };
        for schema in schemas {
            telling = self.merge(schema, telling, merges)?;
        }
        Ok(telling)
    }

    /// The keywords of `schema` and of what is beside it. Where both say something else, that is refused.
    fn merge(
        &mut self,
        schema: Value<'t>,
        beside: Vec<(&'t str, Value<'t>)>,
        merges: &mut usize,
    ) -> Result<Vec<(&'t str, Value<'t>)>> {
        *merges += 1;
        if *merges > MAX_MERGED {
            return limit("number of merged schemas", *merges, MAX_MERGED);
        }
        if schema.0 == "true" {
            return Ok(beside);
        }
        let Some(members) = schema.members() else {
            return self.unsupported("", schema, "a schema that is an object");
        };
        let mut all = self.telling(members)?;
        all = self.merged(all, merges)?;
        // A single reference or `allOf` is left as it is.
        if let [(name @ ("$ref" | "allOf"), value)] = all[..]
            && !beside.is_empty()
        {
            let target = match name {
                "allOf" => value.items().and_then(|schemas| schemas.first().copied()),
                _ => value.spelled().and_then(|path| self.locate(path)),
            };
            let Some(target) = target else { return self.unsupported(name, value, "a schema in this text") };
            return self.merge(target, beside, merges);
        }
        let mut both = Vec::new();
        for (name, value) in beside {
            match all.iter().find(|(other, _)| *other == name) {
                Some((_, other)) if other.0 == value.0 => {}
                None => both.push((name, value)),
                // There may be several of these.
                Some(_) if matches!(name, "required" | "properties") => both.push((name, value)),
                Some(_) => {
                    return self.unsupported(
                        name,
                        value,
                        "the same keyword once in schemas beside each other",
                    );
                }
            }
        }
        both.extend(all);
        self.closed(&both)?;
        Ok(both)
    }

    /// Refuses `additionalProperties` of merged schemas, which are of the properties of one of them.
    fn closed(&self, all: &[(&'t str, Value<'t>)]) -> Result<()> {
        let count = all.iter().filter(|(name, _)| *name == "properties").count();
        let other = all.iter().find(|(name, value)| *name == "additionalProperties" && value.0 != "true");
        match other {
            Some((name, value)) if count > 1 && !self.lenient => {
                self.unsupported(name, *value, "no additionalProperties in schemas beside each other")
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The node of a schema with these members.
    fn members(&mut self, members: Vec<(&'t str, Value<'t>)>, nesting: usize) -> Result<NodeId> {
        let mut telling = self.telling(members)?;
        let patterns = self.patterns(&telling);
        if patterns.iter().any(|(name, _)| name != "pattern") {
            telling.retain(|(name, _)| *name != "allOf");
        }
        telling = self.merged(telling, &mut 0)?;
        if let Some(at) = telling.iter().position(|(name, _)| *name == "not") {
            let (name, value) = telling.remove(at);
            match value.0 {
                // Nothing, as a schema for what must not be there is written.
                "{}" | "true" => return Ok(self.builder.add(Node::Any(Vec::new()))),
                "false" => {}
                _ => return self.unsupported(name, value, "a schema without it"),
            }
        }
        for combined in ["$ref", "anyOf", "oneOf", "allOf"] {
            let Some(at) = telling.iter().position(|(name, _)| *name == combined) else { continue };
            let (_, value) = telling.remove(at);
            if telling.is_empty() {
                return self.combined(combined, value, nesting);
            }
            return self.distributed(combined, value, telling, nesting);
        }
        self.plain(&telling, &patterns, nesting)
    }

    /// The node of `anyOf` or `oneOf` with something beside it, which each of its schemas is merged with.
    fn distributed(
        &mut self,
        keyword: &'static str,
        value: Value<'t>,
        beside: Vec<(&'t str, Value<'t>)>,
        nesting: usize,
    ) -> Result<NodeId> {
        let schemas = self.alternatives(keyword, value)?;
        let mut choices = Vec::new();
        for (i, schema) in schemas.into_iter().enumerate() {
            let len = self.path.len();
            self.path.push_str(&alloc::format!("/{keyword}/{i}"));
            let merged = self.merge(schema, beside.clone(), &mut 0)?;
            // Names are spelled with quotes in members.
            choices.push(self.within(merged, nesting + 1)?);
            self.path.truncate(len);
        }
        Ok(self.builder.add(Node::Any(choices)))
    }

    /// The node of merged keywords.
    fn within(&mut self, mut telling: Vec<(&'t str, Value<'t>)>, nesting: usize) -> Result<NodeId> {
        if nesting > MAX_NESTING {
            return limit("nesting of schemas", nesting, MAX_NESTING);
        }
        for combined in ["anyOf", "oneOf"] {
            let Some(at) = telling.iter().position(|(name, _)| *name == combined) else { continue };
            let (_, value) = telling.remove(at);
            return self.distributed(combined, value, telling, nesting);
        }
        let patterns = self.patterns(&telling);
        self.plain(&telling, &patterns, nesting)
    }

    /// The node of a schema that combines no others.
    fn plain(
        &mut self,
        telling: &[(&'t str, Value<'t>)],
        patterns: &[(String, Value<'t>)],
        nesting: usize,
    ) -> Result<NodeId> {
        let members = telling;
        let get = |name: &str| Value::of(telling, name);
        let kinds = self.kinds(get("type"), telling)?;
        if get("enum").or(get("const")).is_some() {
            return self.values(get("enum"), get("const"), &kinds, telling);
        }
        let mut choices = Vec::new();
        for &kind in &kinds {
            choices.push(match kind {
                Kind::Object => self.object(members, nesting)?,
                Kind::Array => self.array(members, nesting)?,
                Kind::String => {
                    let (min, max) = (self.count(members, "minLength")?, self.count(members, "maxLength")?);
                    let (min, max) = (min.unwrap_or(0), max.unwrap_or(u32::MAX));
                    let node = match self.pattern(patterns, get("format"), min, max)? {
                        Some(pattern) => Node::Pattern(Box::new(pattern)),
                        None => Node::String { min, max },
                    };
                    self.builder.add(node)
                }
                // Every integer is a number.
                Kind::Integer if kinds.contains(&Kind::Number) => continue,
                Kind::Number | Kind::Integer => self.number(kind, telling)?,
                Kind::Boolean => self.builder.texts(["true", "false"]),
                Kind::Null => self.builder.texts(["null"]),
            });
        }
        Ok(match choices[..] {
            [only] => only,
            _ => self.builder.add(Node::Any(choices)),
        })
    }

    /// The node of `enum` or `const`: those of the values that have one of `kinds`.
    fn values(
        &mut self,
        listed: Option<Value<'t>>,
        constant: Option<Value<'t>>,
        kinds: &[Kind],
        telling: &[(&str, Value<'t>)],
    ) -> Result<NodeId> {
        let values = match (listed, constant) {
            (Some(_), Some(both)) => return self.unsupported("const", both, "only one of const and enum"),
            (Some(values), None) => match values.items() {
                Some(items) => items,
                None => return self.unsupported("enum", values, "an array"),
            },
            (None, value) => value.into_iter().collect(),
        };
        if let Some((name, value)) =
            telling.iter().find(|(name, _)| !matches!(*name, "type" | "enum" | "const"))
        {
            return self.unsupported(name, *value, "nothing but type beside enum and const");
        }
        let right = |v: &&Value<'_>| match v.kind() {
            Kind::Integer => kinds.contains(&Kind::Integer) || kinds.contains(&Kind::Number),
            kind => kinds.contains(&kind) || v.is_whole() && kinds.contains(&Kind::Integer),
        };
        let texts: Vec<&str> = values.iter().filter(right).map(|v| v.0).collect();
        if texts.len() > MAX_VALUES {
            return limit("number of values of an enum", texts.len(), MAX_VALUES);
        }
        if let Some(text) = texts.iter().find(|text| Value(text).overflows()) {
            let keyword = if listed.is_some() { "enum" } else { "const" };
            return self.unsupported(keyword, Value(text), "numbers that a float can hold");
        }
        self.builder.keep(texts.iter().map(|text| text.len()))?;
        if self.builder.nodes.len() as NodeId >= self.builder.spaced {
            return Ok(self.builder.texts(texts));
        }
        let texts: Vec<String> = texts.into_iter().map(without_whitespace).collect();
        Ok(self.builder.texts(texts.iter().map(String::as_str)))
    }

    fn array(&mut self, members: &[(&'t str, Value<'t>)], nesting: usize) -> Result<NodeId> {
        let (min, max) = (self.count(members, "minItems")?, self.count(members, "maxItems")?);
        let mut prefix = Vec::new();
        if let Some(schemas) = Value::of(members, "prefixItems") {
            let Some(schemas) = schemas.items() else {
                return self.unsupported("prefixItems", schemas, "an array of schemas");
            };
            for (i, schema) in schemas.into_iter().enumerate() {
                let name = alloc::format!("{i}");
                prefix.push(self.part("prefixItems", Some(&name), schema, nesting)?);
            }
        }
        let items = match Value::of(members, "items") {
            Some(items) if items.0.starts_with('[') => {
                return self.unsupported("items", items, "one schema for all items, or prefixItems");
            }
            Some(items) => self.part("items", None, items, nesting)?,
            None => self.builder.any(),
        };
        let (min, max) = (min.unwrap_or(0), max.unwrap_or(u32::MAX));
        Ok(self.builder.add(Node::Array { prefix, items, min, max }))
    }

    fn number(&mut self, kind: Kind, telling: &[(&str, Value<'t>)]) -> Result<NodeId> {
        let mut bounds = Bounds::none(kind == Kind::Integer);
        for (name, value) in telling {
            if OF_KIND[3].1.contains(name) && !matches!(value.kind(), Kind::Integer | Kind::Number) {
                return self.unsupported(name, *value, "a number");
            }
            match *name {
                "multipleOf" => {
                    if bounds.multiple_of(value.0).is_none() {
                        return self.unsupported(name, *value, "a whole number below 2^32");
                    }
                    continue;
                }
                "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" => {}
                _ => continue,
            }
            let exclusive = name.starts_with("ex");
            let narrowed = match name.ends_with("inimum") {
                true => bounds.at_least(value.0, exclusive),
                false => bounds.at_most(value.0, exclusive),
            };
            if narrowed.is_none() {
                return self.unsupported(name, *value, "a number of at most 15 digits");
            }
        }
        Ok(self.builder.add(Node::Number(bounds)))
    }

    /// The types that a schema allows; if it has no `type`, those that its keywords apply to.
    fn kinds(&self, of: Option<Value<'t>>, telling: &[(&str, Value<'t>)]) -> Result<Vec<Kind>> {
        let Some(of) = of else {
            let about = |keywords: &[&str]| telling.iter().any(|(name, _)| keywords.contains(name));
            let kinds: Vec<Kind> =
                OF_KIND.iter().filter(|(_, keywords)| about(keywords)).map(|(kind, _)| *kind).collect();
            let all = || Kind::ALL.iter().map(|(kind, _)| *kind).collect();
            return Ok(if kinds.is_empty() { all() } else { kinds });
        };
        let mut kinds = Vec::new();
        for name in of.items().unwrap_or_else(|| vec![of]) {
            match Kind::ALL.iter().find(|(_, known)| name.spelled() == Some(known)) {
                Some((kind, _)) if kinds.contains(kind) => {}
                Some((kind, _)) => kinds.push(*kind),
                None => return self.unsupported("type", name, "a type of JSON Schema, or a list of them"),
            }
        }
        Ok(kinds)
    }

    fn combined(&mut self, keyword: &str, value: Value<'t>, nesting: usize) -> Result<NodeId> {
        if keyword == "$ref" {
            return match value.spelled() {
                Some(path) => self.reference(path),
                None => self.unsupported(keyword, value, "a string"),
            };
        }
        let schemas = self.alternatives(keyword, value)?;
        let mut choices = Vec::new();
        for (i, schema) in schemas.into_iter().enumerate() {
            choices.push(self.part(keyword, Some(&alloc::format!("{i}")), schema, nesting)?);
        }
        Ok(self.builder.add(Node::Any(choices)))
    }

    /// The schemas of `anyOf`, `oneOf` or `allOf`.
    fn alternatives(&mut self, keyword: &str, value: Value<'t>) -> Result<Vec<Value<'t>>> {
        let Some(schemas) = value.items().filter(|schemas| !schemas.is_empty()) else {
            return self.unsupported(keyword, value, "an array of schemas");
        };
        if keyword == "oneOf" && !self.lenient {
            if schemas.len() > MAX_ONE_OF {
                return limit("number of oneOf schemas", schemas.len(), MAX_ONE_OF);
            }
            let resolved: Vec<_> = schemas.iter().map(|schema| self.resolve(*schema)).collect();
            for (i, a) in resolved.iter().enumerate() {
                let disjoint = |b: &Option<Vec<_>>| match (a, b) {
                    (Some(a), Some(b)) => self.disjoint(a, b),
                    _ => false,
                };
                if !resolved.iter().skip(i + 1).all(disjoint) {
                    return self.unsupported(
                        keyword,
                        value,
                        "schemas of different types, different constants, or a required property that tells them \
                         apart; anyOf has no such limit",
                    );
                }
            }
        }
        Ok(schemas)
    }

    /// The schema after following references.
    fn resolve(&mut self, mut schema: Value<'t>) -> Option<Vec<(&'t str, Value<'t>)>> {
        for _ in 0..16 {
            let members = schema.members()?;
            let Some(path) = Value::get(&members, "$ref").and_then(Value::spelled) else {
                return Some(members);
            };
            schema = self.locate(path)?;
        }
        None
    }

    /// Whether it is certain that no value satisfies both.
    fn disjoint(&self, a: &[(&'t str, Value<'t>)], b: &[(&'t str, Value<'t>)]) -> bool {
        if let (Some(a), Some(b)) = (constants(a), constants(b)) {
            // 1 and 1.0 are the same value in two spellings.
            return !a.iter().any(|a| a.0.contains(['.', 'e']) && a.kind() == Kind::Number)
                && !b.iter().any(|b| b.kind() == Kind::Number || a.iter().any(|a| a.0 == b.0))
                && !a.iter().chain(&b).any(|v| matches!(v.kind(), Kind::Object | Kind::Array));
        }
        let kinds = |members: &[(&'t str, Value<'t>)]| match constants(members) {
            Some(values) => Some(values.iter().map(|v| v.kind()).collect()),
            // Without a type, a schema accepts values of all other types.
            None => self.kinds(Some(Value::get(members, "type")?), &[]).ok(),
        };
        let (Some(of_a), Some(of_b)): (Option<Vec<Kind>>, Option<Vec<Kind>>) = (kinds(a), kinds(b)) else {
            return false;
        };
        let plain = |kind: &Kind| if *kind == Kind::Integer { Kind::Number } else { *kind };
        if !of_a.iter().any(|a| of_b.iter().any(|b| plain(a) == plain(b))) {
            return true;
        }
        if of_a != [Kind::Object] || of_b != [Kind::Object] {
            return false;
        }
        let required =
            |members: &[(&'t str, Value<'t>)]| Value::get(members, "required").and_then(Value::items);
        let property = |members: &[(&'t str, Value<'t>)], name| {
            constants(&Value::get(&Value::get(members, "properties")?.members()?, name)?.members()?)
        };
        let (Some(in_a), Some(in_b)) = (required(a), required(b)) else { return false };
        in_a.iter().filter(|a| in_b.iter().any(|b| a.0 == b.0)).filter_map(|name| name.spelled()).any(
            |name| match (property(a, name), property(b, name)) {
                (Some(a), Some(b)) => {
                    let strings = a.iter().chain(&b).all(|v| v.kind() == Kind::String);
                    strings && !a.iter().any(|a| b.iter().any(|b| a.0 == b.0))
                }
                _ => false,
            },
        )
    }

    fn object(&mut self, members: &[(&'t str, Value<'t>)], nesting: usize) -> Result<NodeId> {
        let get = |name| Value::of(members, name);
        let mut named: Vec<(&'t str, Value<'t>)> = Vec::new();
        let mut required = Vec::new();
        for &(keyword, value) in members {
            match keyword {
                "properties" => {
                    let Some(more) = value.members() else {
                        return self.unsupported("properties", value, "an object");
                    };
                    for (name, schema) in more {
                        match named.iter_mut().find(|(other, _)| *other == name) {
                            None => named.push((name, schema)),
                            // That of the alternative.
                            Some((_, other)) if other.0 == schema.0 || self.lenient => *other = schema,
                            Some(_) => {
                                let expected = "each property once in schemas beside each other";
                                return self.unsupported("properties", schema, expected);
                            }
                        }
                    }
                }
                "required" => {
                    let names = value.items().filter(|names| names.iter().all(|n| n.spelled().is_some()));
                    let Some(names) = names else {
                        return self.unsupported("required", value, "an array of strings");
                    };
                    required.extend(names.into_iter().map(|name| name.0));
                }
                _ => {}
            }
        }
        let most = named.len().max(required.len());
        if most > MAX_PROPERTIES {
            return limit("number of properties", most, MAX_PROPERTIES);
        }
        for i in (1..required.len()).rev() {
            if required.get(..i).is_some_and(|before| before.contains(&required[i])) {
                required.remove(i);
            }
        }
        let extra = required.iter().filter(|name| !named.iter().any(|(known, _)| known == *name)).count();
        if named.len() + extra > MAX_PROPERTIES {
            return limit("number of properties", named.len() + extra, MAX_PROPERTIES);
        }
        let other = match get("additionalProperties") {
            Some(Value("false")) => None,
            Some(schema) => Some(self.part("additionalProperties", None, schema, nesting)?),
            // If properties are listed, only these; otherwise any.
            None if named.is_empty() => Some(self.builder.any()),
            None => None,
        };
        let mut properties = Vec::new();
        for (name, schema) in &named {
            let value = self.part("properties", Value(name).spelled(), *schema, nesting)?;
            properties.push((*name, value));
        }
        for name in &required {
            if !named.iter().any(|(known, _)| known == name) {
                let closed = get("additionalProperties").is_some();
                let value = match other {
                    Some(other) => other,
                    None if closed => self.builder.add(Node::Any(Vec::new())),
                    None => self.builder.any(),
                };
                properties.push((*name, value));
            }
        }
        self.builder.keep(properties.iter().map(|(name, _)| name.len()))?;
        let name = |i: u32| properties.get(i as usize).map(|(name, _)| name.as_bytes().get(1..));
        let order = sort::sorted(properties.len(), &|a, b| name(a).cmp(&name(b)));
        let (mut bits, mut sorted) = (0, Vec::new());
        for place in order {
            let Some(&(name, value)) = properties.get(place as usize) else { continue };
            bits |= u128::from(required.contains(&name)) << place;
            let name = Text::new(name.as_bytes().get(1..).unwrap_or_default());
            sorted.push(Property { place, name, value });
        }
        let properties = sorted;
        Ok(self.builder.add(Node::Object { properties, required: bits, other }))
    }

    /// The patterns of a string: that of `pattern`, and those of `allOf` if they are all that is in it.
    fn patterns(&self, telling: &[(&'t str, Value<'t>)]) -> Vec<(String, Value<'t>)> {
        let get = |name| Value::of(telling, name);
        let mut patterns = Vec::from_iter(get("pattern").map(|pattern| ("pattern".into(), pattern)));
        if ["type", "enum", "const"].map(|name| get(name).is_some()) != [true, false, false] {
            return patterns;
        }
        let all = get("allOf").and_then(Value::items).unwrap_or_default();
        for (i, schema) in all.iter().enumerate() {
            let of_string = |(name, value): &(&str, Value<'_>)| match *name {
                "\"type\"" => value.spelled() == Some("string"),
                name => name == "\"pattern\"",
            };
            let parts = schema.members().filter(|parts| parts.iter().all(of_string));
            match parts.and_then(|parts| Value::get(&parts, "pattern")) {
                Some(pattern) => patterns.push((alloc::format!("allOf/{i}/pattern"), pattern)),
                None => return Vec::from_iter(patterns.into_iter().filter(|(name, _)| name == "pattern")),
            }
        }
        patterns
    }

    /// The strings that match all patterns. They have the format too, unless there are none or it takes too large an automaton:
    /// in JSON Schema it is an annotation.
    fn pattern(
        &mut self,
        patterns: &[(String, Value<'t>)],
        format: Option<Value<'t>>,
        min: u32,
        max: u32,
    ) -> Result<Option<Pattern>> {
        let name = match format {
            None => String::new(),
            Some(value) => match json::text(value.0)? {
                Some(name) => name,
                None => return self.unsupported("format", value, "a string"),
            },
        };
        let mut all = Vec::new();
        let mut implied = false;
        for (keyword, value) in patterns {
            let Some(text) = json::text(value.0)? else {
                return self.unsupported(keyword, *value, "a string");
            };
            if pattern::is_implied(&name, &text) {
                implied = true;
                continue;
            }
            let expected = match Pattern::parse(&text, &mut self.builder.budget)? {
                Ok(expression) => {
                    all.push(expression);
                    continue;
                }
                Err(Refused::Unsupported) => {
                    "a regular expression without lookaround, back references, \\b and \\p"
                }
                Err(Refused::Malformed { expected, .. }) => expected,
            };
            return self.unsupported(keyword, *value, expected);
        }
        match format.map(|value| (value, pattern::format(&name))) {
            // A format that JSON Schema does not define does not restrict the value.
            None | Some((_, Some(""))) => {}
            Some((value, None)) if all.is_empty() => {
                return self.unsupported("format", value, "another format");
            }
            Some((_, None)) => {}
            Some((_, Some(text))) => {
                let patterns = all.len();
                // These texts are expressions.
                all.extend(Pattern::parse(text, &mut self.builder.budget)?.ok());
                if patterns > 0 && !implied {
                    match Pattern::attempt(&all, min, max, &mut self.builder.budget) {
                        Some(both) => return Ok(Some(both)),
                        None => all.truncate(patterns),
                    }
                }
            }
        }
        if all.is_empty() {
            return Ok(None);
        }
        Pattern::new(&all, min, max, &mut self.builder.budget).map(Some)
    }

    fn count(&self, members: &[(&str, Value<'_>)], name: &'static str) -> Result<Option<u32>> {
        let Some(value) = Value::of(members, name) else { return Ok(None) };
        match value.0.strip_suffix(".0").unwrap_or(value.0).parse::<u64>() {
            // Larger counts are equivalent, given the size of memory.
            Ok(count) if count < 1 << 30 => Ok(Some(count as u32)),
            _ => self.unsupported(name, value, "a whole number below 2^30"),
        }
    }
}

/// The values of `const` or `enum`.
fn constants<'t>(members: &[(&'t str, Value<'t>)]) -> Option<Vec<Value<'t>>> {
    match Value::get(members, "const") {
        Some(value) => Some(vec![value]),
        None => Value::get(members, "enum")?.items(),
    }
}

/// JSON as [`json::reformat`] writes it, without the spaces between tokens.
fn without_whitespace(text: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let keep = |c: &char| {
        quoted ^= *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        quoted || *c != ' '
    };
    text.chars().filter(keep).collect()
}

/// A function that a tool description is of.
pub(super) struct Function<'t> {
    name: String,
    /// The schema of its arguments.
    pub(super) parameters: Option<&'t str>,
    /// Whether arguments follow the schema. If it is not said, they do where the schema is supported.
    strict: Option<bool>,
}

/// Reads a tool description; `index` is for errors.
fn tool(index: u32, description: &str) -> Result<Function<'_>> {
    let missing = || error!(Tool { index, problem: "key \"name\" is missing" });
    // Either the function itself, or `{"type": "function", "function": ...}` around it.
    let function = json::member(description, "function")?.unwrap_or(description);
    let name = json::member(function, "name")?.ok_or_else(missing)?;
    json::refuse_lone_surrogates(name)?;
    let name = json::text(name)?.ok_or(error!(Tool { index, problem: "its name is no text" }))?;
    let strict = match json::member(function, "strict")? {
        None | Some("null") => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(error!(Tool { index, problem: "key \"strict\" is not true or false" })),
    };
    let parameters = json::member(function, "parameters")?.filter(|parameters| *parameters != "null");
    if parameters.is_some_and(|schema| !schema.starts_with('{') && !matches!(schema, "true" | "false")) {
        return Err(error!(Tool { index, problem: "key \"parameters\" is not a JSON Schema" }));
    }
    Ok(Function { name, parameters, strict })
}

/// The part of replies that is not calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Around<'g> {
    /// Any text before, between and after calls.
    Text,
    /// None.
    Nothing,
    /// A reply without a call is of this grammar, one with calls has no other part.
    Or(&'g Grammar),
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object(whitespace: Whitespace) -> Grammar {
        let mut builder = Builder::new(whitespace);
        let root = builder.object();
        // This graph is always accepted.
        builder.finish(root).unwrap_or_else(|_| Grammar::nothing())
    }

    /// JSON values that match the JSON Schema `text`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names an unsupported keyword, [`Error::Json`] is for text that is not JSON,
    /// [`Error::Limit`] for a schema that is too large, and [`Error::Option`] for one that no value matches.
    pub fn json_schema(text: &str, whitespace: Whitespace) -> Result<Grammar> {
        let mut builder = Builder::new(whitespace);
        let root = builder.schema(text)?;
        builder.finish(root)
    }

    /// Replies in which each tool call, in Qwen3's format, names one of `tools` (as in
    /// [`ChatOptions::tools`](crate::chat::ChatOptions::tools)) and has arguments that match its
    /// `parameters`. They are any object for tools with `"strict": false`. For those that do not say `strict`, what is not supported
    /// of the schema is [left out](Grammar::left_out). Any text may come before, between and after calls; with `required`, the reply begins with a call and
    /// consists of calls only.
    ///
    /// # Errors
    /// [`Error::ToolSchema`] names an unsupported keyword of a tool with `"strict": true`; otherwise as
    /// [`Grammar::json_schema`]. [`Error::Tool`] for a tool without a name, [`Error::Duplicate`] for two of the same name.
    pub fn tool_calls(tools: &[&str], required: bool) -> Result<Grammar> {
        let tools: Vec<(u32, &str)> = (0..).zip(tools.iter().copied()).collect();
        let around = if required { Around::Nothing } else { Around::Text };
        Grammar::calls(&tools, around, true, &Spelling::HERMES)
    }

    /// The JSON pointers within the `parameters` of a tool to what [`Grammar::tool_calls`] leaves out, because it is not supported.
    /// An empty one is all of it.
    ///
    /// # Errors
    /// As [`Grammar::tool_calls`].
    pub fn left_out(tool: &str) -> Result<Vec<String>> {
        let mut left_out = Vec::new();
        let function = self::tool(0, tool)?;
        Builder::new(Whitespace::Allowed).arguments(0, &function, true, &mut left_out)?;
        Ok(left_out)
    }

    /// The whole JSON pointer to what is not supported of a schema, of which errors have the end. `None` if it is supported, or
    /// refused for another reason.
    pub fn unsupported_in(schema: &str) -> Option<String> {
        let sound = sound(schema).ok()?;
        let (built, place) = Builder::new(Whitespace::Allowed).compile(Value(&sound), &mut Vec::new(), false);
        place.filter(|_| built.is_err()).map(|place| place.pointer)
    }

    /// As [`Grammar::unsupported_in`], of the `parameters` of a tool.
    pub fn unsupported_in_tool(tool: &str) -> Option<String> {
        Grammar::unsupported_in(self::tool(0, tool).ok()?.parameters?)
    }

    /// As [`Grammar::tool_calls`], of tools with these numbers and calls that are spelled so; unless `parallel`, a call ends the reply.
    pub(crate) fn calls(
        tools: &[(u32, &str)],
        around: Around<'_>,
        parallel: bool,
        spelling: &Spelling,
    ) -> Result<Grammar> {
        match Grammar::calls_with(tools, around, parallel, spelling, true) {
            // Schemas that are small enough one by one may be too large together.
            Err(Error::Limit { .. }) => Grammar::calls_with(tools, around, parallel, spelling, false),
            built => built,
        }
    }

    /// `follow` says whether arguments follow schemas that they need not.
    fn calls_with(
        tools: &[(u32, &str)],
        around: Around<'_>,
        parallel: bool,
        spelling: &Spelling,
        follow: bool,
    ) -> Result<Grammar> {
        let mut builder = match around {
            Around::Or(format) => {
                let spaced = format.spaced.min(format.nodes.len() as NodeId);
                Builder::with(format.nodes.clone(), spaced)
            }
            Around::Text | Around::Nothing => Builder::new(Whitespace::Allowed),
        };
        let again = spelling.again.filter(|_| parallel);
        let more = builder.nodes.len() as NodeId;
        builder.add(Node::Any(Vec::new()));
        let end = builder.texts([spelling.end]);
        let mut calls = Vec::new();
        for &(index, description) in tools {
            let function = tool(index, description)?;
            let mut parts = vec![match spelling.elements {
                true => builder.elements(index, &function, follow)?,
                false => builder.arguments(index, &function, follow, &mut Vec::new())?,
            }];
            parts.extend(Some(end).filter(|_| !spelling.end.is_empty()));
            parts.extend(Some(more).filter(|_| again.is_some() || !spelling.last.is_empty()));
            let then = builder.add(Node::Sequence { parts, may_end: false });
            let Some(head) = spelling.head(&function.name) else {
                return Err(error!(Tool { index, problem: "has a name that this model cannot write" }));
            };
            calls.push((head, function.name, then));
        }
        let head = |i: u32| calls.get(i as usize).map(|(head, ..)| head.as_str());
        let order = sort::sorted(calls.len(), &|a, b| head(a).cmp(&head(b)));
        if let Some([a, _]) = order.array_windows().find(|[a, b]| head(*a) == head(*b)) {
            let name = calls.get(*a as usize).map_or("", |(_, name, _)| name);
            return Err(error!(Duplicate { what: "tool", name: Name::new(name) }));
        }
        let (mut texts, mut then) = (Vec::new(), Vec::new());
        for (head, _, next) in order.into_iter().filter_map(|i| calls.get(i as usize)) {
            texts.push(Text::new(head.as_bytes()));
            then.push(*next);
        }
        let call = builder.add(Node::Cases { texts, then });
        let root = if !matches!(around, Around::Text) {
            let mut choices = vec![builder.texts([spelling.last])];
            if let Some(again) = again {
                let again = builder.texts([again]);
                choices.push(builder.add(Node::Sequence { parts: vec![again, call], may_end: false }));
            }
            if let Some(node) = builder.nodes.get_mut(more as usize) {
                *node = Node::Any(choices);
            }
            let calls = match spelling.opening {
                "" => call,
                opening => {
                    let opening = builder.texts([opening]);
                    builder.add(Node::Sequence { parts: vec![opening, call], may_end: false })
                }
            };
            match around {
                Around::Or(format) => builder.add(Node::Any(vec![format.root, calls])),
                Around::Text | Around::Nothing => calls,
            }
        } else {
            let marker = Text::new(spelling.opening.as_bytes());
            let free = builder.add(Node::Free { marker, then: call, may_end: true });
            if let Some(node) = builder.nodes.get_mut(more as usize) {
                *node = Node::Any(vec![free]);
            }
            free
        };
        builder.finish(root)
    }

    /// The same grammar, after a `<think>` block if the text begins with one.
    ///
    /// # Errors
    /// [`Error::Limit`] if the grammar already has the maximum size.
    pub fn after_thoughts(self) -> Result<Grammar> {
        let mut builder = Builder::with(self.nodes, self.spaced);
        let begin = builder.texts(["<think>"]);
        let gap = builder.texts(["", "\n", "\n\n"]);
        let answer = builder.add(Node::Sequence { parts: vec![gap, self.root], may_end: false });
        let marker = Text::new(b"</think>");
        let thoughts = builder.add(Node::Free { marker, then: answer, may_end: false });
        let thinking = builder.add(Node::Sequence { parts: vec![begin, thoughts], may_end: false });
        let root = builder.add(Node::Any(vec![self.root, thinking]));
        builder.finish(root)
    }

    /// The same grammar, after the end of thoughts that were opened before the text.
    ///
    /// # Errors
    /// [`Error::Limit`] if the grammar already has the maximum size.
    pub fn after_open_thoughts(self) -> Result<Grammar> {
        let mut builder = Builder::with(self.nodes, self.spaced);
        let gap = builder.texts(["", "\n", "\n\n"]);
        let answer = builder.add(Node::Sequence { parts: vec![gap, self.root], may_end: false });
        let marker = Text::new(b"</think>");
        let root = builder.add(Node::Free { marker, then: answer, may_end: false });
        builder.finish(root)
    }
}
