//! No pages: in builds without the feature `serving`, and on processors without atomic read-modify-write instructions,
//! where threads cannot count references to them.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::ChunkedPlacement;
use crate::error::Result;

/// No such value exists.
#[derive(Debug)]
pub(crate) enum Pages {}

impl Pages {
    pub(crate) fn fork(&self, _positions: usize, _capacity: usize) -> Result<Self> {
        match *self {}
    }

    pub(crate) fn own(&mut self, _: Range<usize>, _kept: usize, _: ChunkedPlacement) -> Result<()> {
        match *self {}
    }

    pub(crate) fn hold(&self, _positions: usize, _page_len: usize) -> bool {
        match *self {}
    }

    pub(crate) fn page(&self, _page: usize) -> &[u8] {
        match *self {}
    }

    pub(crate) fn page_mut(&mut self, _page: usize) -> &mut [u8] {
        match *self {}
    }

    pub(crate) fn two_mut(&mut self, _pages: [usize; 2]) -> Option<[&mut [u8]; 2]> {
        match *self {}
    }
}
