//! Fields of requests in JSON, read by name; those that nobody knows are refused.
#![forbid(unsafe_code)]

use crate::error::{Error, Name, Result};
use crate::json::Value;
use crate::sample::SamplerConfig;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The largest whole number up to which every one is a number of JSON's readers.
const MAX_SAFE_INTEGER: f64 = ((1u64 << 53) - 1) as f64;

/// A value in a request, and its place there for errors.
pub(super) struct Field<'v> {
    pub(super) place: String,
    pub(super) value: Value<'v>,
}

// A request is read once a turn: inlined, this would be several kilobytes more of a WebAssembly module.
impl<'v> Field<'v> {
    #[inline(never)]
    pub(super) fn refused(&self, problem: &'static str) -> Error {
        refused(&self.place, problem)
    }

    #[inline(never)]
    pub(super) fn unsupported(&self, expected: &'static str) -> Error {
        let (key, found) = (Name::new(&self.place), Name::new(self.value.text()));
        error!(Unsupported { key, found, expected })
    }

    #[inline(never)]
    pub(super) fn string(&self) -> Result<String> {
        self.value.as_string().ok_or_else(|| self.refused("must be a string"))
    }

    /// Reads what it holds, if it is an array. Returns how much that is.
    #[inline(never)]
    pub(super) fn each(
        &self,
        problem: &'static str,
        read: &mut dyn FnMut(Field<'v>) -> Result<()>,
    ) -> Result<usize> {
        let elements = self.value.elements().ok_or_else(|| self.refused(problem))?;
        for (i, value) in elements.iter().enumerate() {
            read(Field { place: format!("{}[{i}]", self.place), value: *value })?;
        }
        Ok(elements.len())
    }

    /// As [`Object::read`], refused if it is not an object.
    #[inline(never)]
    pub(super) fn object(&self, known: &[&str], problem: &'static str) -> Result<Object<'v>> {
        Object::read(&format!("{}.", self.place), self.value, known)?.ok_or_else(|| self.refused(problem))
    }
}

/// An object in a request, whose fields are all known.
pub(super) struct Object<'v> {
    /// Comes before the names of its fields in errors.
    prefix: String,
    fields: Vec<(String, Value<'v>)>,
}

impl<'v> Object<'v> {
    /// A whole request.
    #[inline(never)]
    pub(super) fn request(text: &'v str, known: &[&str]) -> Result<Object<'v>> {
        let request = Object::read("", Value::parse(text)?, known)?;
        request.ok_or_else(|| refused("request", "must be an object"))
    }

    /// Refuses fields with another value than the only one that is supported.
    #[inline(never)]
    pub(super) fn only(&self, fields: &[(&str, &'static str)]) -> Result<()> {
        for (name, only) in fields {
            if let Some(field) = self.get(name).filter(|field| field.value.text() != *only) {
                return Err(field.unsupported(only));
            }
        }
        Ok(())
    }

    /// `None` for another value. Fields that are null count as left out; others than `known` are refused.
    #[inline(never)]
    pub(super) fn read(prefix: &str, value: Value<'v>, known: &[&str]) -> Result<Option<Object<'v>>> {
        let Some(mut fields) = value.members() else { return Ok(None) };
        fields.retain(|(_, value)| !value.is_null());
        for (name, value) in &fields {
            if !known.contains(&name.as_str()) {
                let field = Field { place: format!("{prefix}{name}"), value: *value };
                return Err(field.unsupported("a request without it"));
            }
        }
        Ok(Some(Object { prefix: prefix.into(), fields }))
    }

    /// A field; the last of several of one name.
    #[inline(never)]
    pub(super) fn get(&self, name: &str) -> Option<Field<'v>> {
        let (_, value) = self.fields.iter().rfind(|(other, _)| other == name)?;
        Some(Field { place: format!("{}{name}", self.prefix), value: *value })
    }

    /// What `read` makes of a field; if there is none, the default.
    pub(super) fn read_as<T: Default>(
        &self,
        name: &str,
        read: impl FnOnce(&Field<'v>) -> Result<T>,
    ) -> Result<T> {
        self.get(name).map_or_else(|| Ok(T::default()), |field| read(&field))
    }

    #[inline(never)]
    pub(super) fn string(&self, name: &str) -> Result<Option<String>> {
        self.get(name).map(|field| field.string()).transpose()
    }

    #[inline(never)]
    pub(super) fn boolean(&self, name: &str) -> Result<bool> {
        let Some(field) = self.get(name) else { return Ok(false) };
        field.value.as_bool().ok_or_else(|| field.refused("must be true or false"))
    }

    #[inline(never)]
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(field) = self.get(name) else { return Ok(None) };
        field.value.as_number().map(Some).ok_or_else(|| field.refused("must be a number"))
    }

    #[inline(never)]
    pub(super) fn float(&self, name: &str, setting: &mut f32) -> Result<()> {
        if let Some(number) = self.number(name)? {
            *setting = number as f32;
        }
        Ok(())
    }

    /// Reads how tokens are chosen. Returns the seed, if there is one.
    #[inline(never)]
    pub(super) fn sampling(&self, sampler: &mut SamplerConfig) -> Result<Option<u64>> {
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

    #[inline(never)]
    pub(super) fn count(&self, name: &'static str) -> Result<Option<u64>> {
        match self.number(name)? {
            Some(found) if !(0.0..=MAX_SAFE_INTEGER).contains(&found) || found as u64 as f64 != found => {
                Err(error!(Option { what: name, found, expected: "a whole number from 0 to 2^53 - 1" }))
            }
            found => Ok(found.map(|found| found as u64)),
        }
    }
}

#[inline(never)]
pub(super) fn refused(name: &str, problem: &'static str) -> Error {
    error!(Argument { name: Name::new(name), problem })
}
