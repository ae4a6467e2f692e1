//! Takes the place of `gpu.rs` in a program that was built without it.

use crate::error::{Error, Result};
use crate::timeline::Timeline;
use shohin_core::{Activations, Gguf, SessionOptions};

/// There is none.
#[derive(Debug)]
pub enum Device {}

impl Device {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load(_: &str, _: &Gguf<'_>) -> Result<Device> {
        Err(Error::NoGpuSupport)
    }

    /// None.
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn bytes(&self, _: &SessionOptions, _: Activations) -> Result<(u64, u64)> {
        match *self {}
    }

    /// None.
    ///
    /// # Errors
    /// None.
    pub fn timeline(&self, _: &SessionOptions, _: Activations) -> Result<Box<dyn Timeline>> {
        match *self {}
    }
}
