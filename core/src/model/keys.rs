//! Metadata of one architecture.
#![forbid(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;

use crate::error::{Error, Name, Result};
use crate::gguf::{Metadata, Value};

/// Metadata whose keys are given without the name of the architecture and the dot.
pub(super) struct Keys<'m, 'a> {
    pub(super) meta: &'m Metadata<'a>,
    pub(super) architecture: &'static str,
}

impl<'a> Keys<'_, 'a> {
    pub(super) fn key(&self, key: &str) -> String {
        [self.architecture, ".", key].concat()
    }

    pub(super) fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let key = self.key(key);
        match default {
            Some(default) => Ok(self.meta.u32(&key)?.map_or(default, |value| value as usize)),
            None => Ok(self.meta.need(&key, self.meta.u32(&key)?)? as usize),
        }
    }

    /// As many flags as there are layers.
    pub(super) fn bools(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(found) = self.meta.bools(&self.key(key))? else { return Ok(None) };
        if found.len() != layers {
            return Err(bad(self.architecture, key, found.len() as f64, "one element for each layer"));
        }
        Ok(Some(found.collect()))
    }

    /// The same number for each layer, or an array with one for each of which those that are not 0 are the same. Returns the
    /// layers with a 0.
    pub(super) fn size_of_layers(
        &self,
        key: &str,
        layers: usize,
        default: usize,
    ) -> Result<(usize, Vec<usize>)> {
        let name = self.key(key);
        if !cfg!(feature = "variants") || !matches!(self.meta.get(&name), Some(Value::Array(_))) {
            return Ok((self.size(key, Some(default))?, Vec::new()));
        }
        let found: Vec<u32> = self.meta.u32s(&name)?.into_iter().flatten().collect();
        if found.len() != layers {
            return Err(bad(self.architecture, key, found.len() as f64, "one element for each layer"));
        }
        let most = found.iter().copied().max().unwrap_or(0);
        if let Some(other) = found.iter().find(|size| **size != 0 && **size != most) {
            return Err(bad(self.architecture, key, f64::from(*other), "0 or the same in every layer"));
        }
        let none = found.iter().enumerate().filter(|(_, size)| **size == 0).map(|(layer, _)| layer);
        Ok((most as usize, none.collect()))
    }

    pub(super) fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.meta.f32(&self.key(key))
    }

    pub(super) fn need_f32(&self, key: &str) -> Result<f32> {
        self.meta.need(&self.key(key), self.f32(key)?)
    }

    pub(super) fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.meta.str(&self.key(key))
    }
}

/// An error for the number under `key` of `architecture`.
pub(super) fn bad(architecture: &str, key: &str, found: f64, expected: &'static str) -> Error {
    error!(KeyValue { key: Name::new([architecture, ".", key].concat()), found, expected })
}
