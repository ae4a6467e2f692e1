//! Metadata of one architecture.
#![forbid(unsafe_code)]

use alloc::string::String;

use crate::error::{Error, Name, Result};
use crate::gguf::Metadata;

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
