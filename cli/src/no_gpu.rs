//! Takes the place of `gpu.rs` in a program that was built without it.

use crate::failure::{Failure, Outcome};
use crate::timeline::Timeline;
use shohin_core::{Gguf, SessionOptions};

/// There is none.
pub(crate) enum Device {}

impl Device {
    pub(crate) fn load(_: &str, _: &Gguf<'_>) -> Outcome<Device> {
        Err(Failure::new("this program was built without GPUs; build it with `--features gpu`"))
    }

    pub(crate) fn name(&self) -> &str {
        match *self {}
    }

    pub(crate) fn bytes(&self, _: &SessionOptions) -> Outcome<(u64, u64)> {
        match *self {}
    }

    pub(crate) fn timeline(&self, _: &SessionOptions) -> Outcome<Box<dyn Timeline>> {
        match *self {}
    }
}
