//! In place of `learn`, in libraries without the feature `teach`.

use crate::code::{Failure, Result, shohin_code};
use crate::teach::{shohin_fact, shohin_taught_info, shohin_teach_options, shohin_teach_step};
use shohin::Model;
use std::mem::size_of;
use std::ptr;

/// There is none.
pub(crate) enum Learned {}

impl Learned {
    pub(crate) fn info(&self) -> shohin_taught_info {
        match *self {}
    }

    pub(crate) fn save(&self, _: &str) -> Result<()> {
        match *self {}
    }
}

pub(crate) fn defaults() -> shohin_teach_options {
    shohin_teach_options {
        size: size_of::<shohin_teach_options>(),
        seed: 0,
        learning_rate: 0.0,
        steps: 0,
        rank: 0,
        rehearsals: 0,
        questions: ptr::null(),
        question_count: 0,
        name: ptr::null(),
        name_len: 0,
    }
}

pub(crate) unsafe fn teach(
    _: &Model,
    _: &[shohin_fact],
    _: &shohin_teach_options,
    _: &mut dyn FnMut(&shohin_teach_step) -> bool,
) -> Result<Learned> {
    let message = "this library was built without teaching; build it with `--features teach`";
    Err(Failure::new(shohin_code::SHOHIN_UNSUPPORTED, message))
}
