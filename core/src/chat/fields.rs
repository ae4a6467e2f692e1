//! Fields of requests in JSON, read by name; those that nobody knows are refused, or listed if a [`Reading`] leaves them aside.
//!
//! Errors of their readers are [`Argument`](Error::Argument) with the name of a field that is invalid,
//! [`Unsupported`](Error::Unsupported) for one that is not supported, and [`Option`](Error::Option) for a number outside its
//! range.
#![forbid(unsafe_code)]

use crate::error::{Error, Name, Result};
use crate::json::{self, Value};
use crate::sample::SamplerConfig;
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;

/// The largest whole number up to which every one is a number of JSON's readers.
const MAX_SAFE_INTEGER: f64 = ((1u64 << 53) - 1) as f64;

/// Maximum number of fields that a [`Reading`] lists.
const MAX_ASIDE: usize = 64;

/// What a host learns of a request beside its values.
#[derive(Debug, Default)]
pub struct Reading {
    strict: bool,
    aside: RefCell<Vec<String>>,
    refused: RefCell<String>,
}

impl Reading {
    /// Unknown fields are refused if `strict`, and otherwise left aside.
    pub fn new(strict: bool) -> Reading {
        Reading { strict, ..Reading::default() }
    }

    /// The places of fields that were left aside, each once and without the indices of arrays; at most 64.
    pub fn left_aside(&self) -> Vec<String> {
        self.aside.borrow().clone()
    }

    /// The whole place of the field that was refused last. An [`Error`] has its beginning.
    pub fn refused(&self) -> String {
        self.refused.borrow().clone()
    }

    /// Lists a field as left aside.
    pub fn leave(&self, place: &str) {
        let mut name = String::with_capacity(place.len());
        for (i, part) in place.split('[').enumerate() {
            match part.split_once(']').filter(|(index, _)| i > 0 && index.bytes().all(|b| b.is_ascii_digit()))
            {
                Some((_, rest)) => name.extend(["[]", rest]),
                None => name.extend([if i > 0 { "[" } else { "" }, part]),
            }
        }
        let mut aside = self.aside.borrow_mut();
        if aside.len() < MAX_ASIDE && !aside.contains(&name) {
            aside.push(name);
        }
    }
}

/// A value in a request, and its place there for errors.
#[derive(Debug)]
pub struct Field<'v> {
    /// Its place.
    pub place: String,
    /// The value.
    pub value: Value<'v>,
    /// What is done with unknown fields. `None`: they are refused.
    pub reading: Option<&'v Reading>,
}

// A request is read once a turn: inlined, this would be several kilobytes more of a WebAssembly module.
impl<'v> Field<'v> {
    /// The error of an invalid value.
    #[inline(never)]
    pub fn refused(&self, problem: &'static str) -> Error {
        self.note(&self.place);
        refused(&self.place, problem)
    }

    /// The error of a field within it that is invalid or missing.
    #[inline(never)]
    pub fn refused_within(&self, name: &str, problem: &'static str) -> Error {
        let place = format!("{}.{name}", self.place);
        self.note(&place);
        refused(&place, problem)
    }

    fn note(&self, place: &str) {
        if let Some(reading) = self.reading {
            *reading.refused.borrow_mut() = place.into();
        }
    }

    /// Leaves it aside. Returns false if it has to be refused instead.
    #[inline(never)]
    pub fn leave(&self) -> bool {
        let reading = self.reading.filter(|reading| !reading.strict);
        reading.inspect(|reading| reading.leave(&self.place)).is_some()
    }

    /// Whether what is unknown within it is left aside.
    pub fn is_lenient(&self) -> bool {
        self.reading.is_some_and(|reading| !reading.strict)
    }

    /// Whether it asks for nothing: null, false, or an empty text, array or object.
    #[inline(never)]
    pub fn asks_nothing(&self) -> bool {
        let empty = |text: &str| matches!(text.trim(), "\"\"" | "null" | "false");
        empty(self.value.text())
            || self.value.elements().is_some_and(|all| all.is_empty())
            || self.value.members().is_some_and(|all| all.is_empty())
    }

    /// The error of a value that is not supported.
    #[inline(never)]
    pub fn unsupported(&self, expected: &'static str) -> Error {
        self.note(&self.place);
        let text = self.value.as_string().map_or(Cow::Borrowed(self.value.text()), Cow::Owned);
        let (key, found) = (Name::new(&self.place), Name::new(&*text));
        error!(Unsupported { key, found, expected })
    }

    /// Its text.
    ///
    /// # Errors
    /// If it is not a string.
    #[inline(never)]
    pub fn string(&self) -> Result<String> {
        self.value.as_string().ok_or_else(|| self.refused("must be a string"))
    }

    /// Reads the elements of an array. Returns their number.
    ///
    /// # Errors
    /// If it is not an array, and those of `read`.
    #[inline(never)]
    pub fn each(
        &self,
        problem: &'static str,
        read: &mut dyn FnMut(Field<'v>) -> Result<()>,
    ) -> Result<usize> {
        let elements = self.value.elements().ok_or_else(|| self.refused(problem))?;
        for (i, value) in elements.iter().enumerate() {
            read(Field { place: format!("{}[{i}]", self.place), value: *value, reading: self.reading })?;
        }
        Ok(elements.len())
    }

    /// Its fields that are among `known`.
    ///
    /// # Errors
    /// If it is not an object; if it has other fields that are not null, and they are not left aside.
    #[inline(never)]
    pub fn object(&self, known: &[&str], problem: &'static str) -> Result<Object<'v>> {
        Object::read(&format!("{}.", self.place), self.value, known, self.reading)?
            .ok_or_else(|| self.refused(problem))
    }
}

/// An object in a request, whose fields are all known.
#[derive(Debug)]
pub struct Object<'v> {
    /// Comes before the names of its fields in errors.
    prefix: String,
    fields: Vec<(String, Value<'v>)>,
    reading: Option<&'v Reading>,
    /// Whether none was left aside.
    whole: bool,
}

impl<'v> Object<'v> {
    /// A whole request.
    ///
    /// # Errors
    /// As [`Field::object`]; [`Json`](Error::Json) if `text` is not JSON.
    #[inline(never)]
    pub fn request(text: &'v str, known: &[&str]) -> Result<Object<'v>> {
        Object::request_with(text, known, None)
    }

    /// As [`Object::request`]. `reading` says what is done with unknown fields.
    ///
    /// # Errors
    /// As [`Object::request`].
    #[inline(never)]
    pub fn request_with(text: &'v str, known: &[&str], reading: Option<&'v Reading>) -> Result<Object<'v>> {
        let request = Object::read("", Value::parse(text)?, known, reading)?;
        request.ok_or_else(|| refused("request", "must be an object"))
    }

    /// Refuses these fields if they ask for anything, with what to do instead: what a reply would be like without them is not
    /// what was asked for.
    ///
    /// # Errors
    /// If there is one.
    #[inline(never)]
    pub fn refuse(&self, fields: &[(&str, &'static str)]) -> Result<()> {
        for (name, expected) in fields {
            if let Some(field) = self.get(name).filter(|field| !field.asks_nothing()) {
                return Err(field.unsupported(expected));
            }
        }
        Ok(())
    }

    /// Refuses fields with another value than the only one that is supported.
    ///
    /// # Errors
    /// If there is one.
    #[inline(never)]
    pub fn only(&self, fields: &[(&str, &'static str)]) -> Result<()> {
        for (name, only) in fields {
            if let Some(field) = self.get(name).filter(|field| field.value.text() != *only) {
                return Err(field.unsupported(only));
            }
        }
        Ok(())
    }

    /// `None` for another value. Fields that are null count as left out; others than `known` are left aside or refused.
    #[inline(never)]
    fn read(
        prefix: &str,
        value: Value<'v>,
        known: &[&str],
        reading: Option<&'v Reading>,
    ) -> Result<Option<Object<'v>>> {
        let Some(mut fields) = value.members() else { return Ok(None) };
        fields.retain(|(_, value)| !value.is_null());
        let is_known = |name: &String| known.contains(&name.as_str());
        for (name, value) in fields.iter().filter(|(name, _)| !is_known(name)) {
            let field = Field { place: format!("{prefix}{name}"), value: *value, reading };
            if !field.leave() {
                return Err(field.unsupported("a request without it"));
            }
        }
        let given = fields.len();
        fields.retain(|(name, _)| is_known(name));
        let whole = fields.len() == given;
        Ok(Some(Object { prefix: prefix.into(), fields, reading, whole }))
    }

    /// Whether no field of it was left aside.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Its fields that were not left aside, as an object in JSON.
    #[inline(never)]
    pub fn text(&self) -> String {
        let mut out = String::from("{");
        for (i, (name, value)) in self.fields.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { ", " });
            json::string(name, &mut out);
            out.extend([": ", value.text()]);
        }
        out.push('}');
        out
    }

    /// A field; the last of several of one name.
    #[inline(never)]
    pub fn get(&self, name: &str) -> Option<Field<'v>> {
        let (_, value) = self.fields.iter().rfind(|(other, _)| other == name)?;
        Some(Field { place: format!("{}{name}", self.prefix), value: *value, reading: self.reading })
    }

    /// What `read` makes of a field; if there is none, the default.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read_as<T: Default>(&self, name: &str, read: impl FnOnce(&Field<'v>) -> Result<T>) -> Result<T> {
        self.get(name).map_or_else(|| Ok(T::default()), |field| read(&field))
    }

    /// A text.
    ///
    /// # Errors
    /// If it is not a string.
    #[inline(never)]
    pub fn string(&self, name: &str) -> Result<Option<String>> {
        self.get(name).map(|field| field.string()).transpose()
    }

    /// True or false, which it is if there is none.
    ///
    /// # Errors
    /// If it is neither.
    #[inline(never)]
    pub fn boolean(&self, name: &str) -> Result<bool> {
        let Some(field) = self.get(name) else { return Ok(false) };
        field.value.as_bool().ok_or_else(|| field.refused("must be true or false"))
    }

    /// A number.
    ///
    /// # Errors
    /// If it is not one.
    #[inline(never)]
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(field) = self.get(name) else { return Ok(None) };
        field.value.as_number().map(Some).ok_or_else(|| field.refused("must be a number"))
    }

    /// Reads a number, if there is one.
    ///
    /// # Errors
    /// If it is not one.
    #[inline(never)]
    pub fn float(&self, name: &str, setting: &mut f32) -> Result<()> {
        if let Some(number) = self.number(name)? {
            *setting = number as f32;
        }
        Ok(())
    }

    /// Reads how tokens are chosen. Returns the seed, if there is one.
    ///
    /// # Errors
    /// If one of the fields is not a number, or the seed not an integer of 64 bits.
    #[inline(never)]
    pub fn sampling(&self, sampler: &mut SamplerConfig) -> Result<Option<u64>> {
        self.float("temperature", &mut sampler.temperature)?;
        self.float("top_p", &mut sampler.top_p)?;
        self.float("presence_penalty", &mut sampler.presence_penalty)?;
        self.float("frequency_penalty", &mut sampler.frequency_penalty)?;
        let seed = self.seed()?;
        sampler.seed = seed.unwrap_or(sampler.seed);
        Ok(seed)
    }

    /// Any integer of 64 bits; one below 0 is its two's complement.
    #[inline(never)]
    fn seed(&self) -> Result<Option<u64>> {
        let Some(found) = self.number("seed")? else { return Ok(None) };
        // A float would round it.
        let text = self.get("seed").map_or("", |field| field.value.text());
        let exact = text.parse::<u64>().ok().or_else(|| Some(text.parse::<i64>().ok()? as u64));
        let is_whole = libm::fabs(found) <= MAX_SAFE_INTEGER && found as i64 as f64 == found;
        match exact.or(is_whole.then_some(found as i64 as u64)) {
            None => Err(error!(Option { what: "seed", found, expected: "an integer of 64 bits" })),
            seed => Ok(seed),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    /// If it is not one, or is larger than JSON's readers know exactly.
    #[inline(never)]
    pub fn count(&self, name: &'static str) -> Result<Option<u64>> {
        match self.number(name)? {
            Some(found) if !(0.0..=MAX_SAFE_INTEGER).contains(&found) || found as u64 as f64 != found => {
                Err(error!(Option { what: name, found, expected: "a whole number from 0 to 2^53 - 1" }))
            }
            found => Ok(found.map(|found| found as u64)),
        }
    }
}

/// The error of a field that is invalid or missing.
#[inline(never)]
pub fn refused(name: &str, problem: &'static str) -> Error {
    error!(Argument { name: Name::new(name), problem })
}
