//! The memory of a session: planned first, then allocated once.
#![forbid(unsafe_code)]

use bytemuck::Pod;

use crate::error::{Error, Result};

/// Alignment of every buffer: a cache line, which is also the widest vector.
pub const ALIGN: usize = 64;

/// Counts the bytes that the same sequence of [`Arena::take`] calls will need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planner {
    // Saturates on overflow, which `total` then reports.
    bytes: usize,
}

impl Planner {
    /// Adds a buffer of `len` elements; returns its bytes, rounded up to a multiple of [`ALIGN`].
    pub fn add<T: Pod>(&mut self, len: usize) -> usize {
        let bytes = len.saturating_mul(size_of::<T>()).checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
        bytes
    }

    /// Bytes to supply, including the slack that lets unaligned memory be aligned.
    pub fn total(&self) -> Result<usize> {
        self.bytes
            .checked_add(ALIGN - 1)
            .filter(|&b| b <= isize::MAX as usize)
            .ok_or(error!(Memory { need: u64::MAX, have: isize::MAX as u64 }))
    }
}

/// Hands out aligned, non-overlapping buffers from one block of memory, front to back.
#[derive(Debug)]
pub struct Arena<'b> {
    rest: &'b mut [u8],
}

impl<'b> Arena<'b> {
    /// Starts at the first aligned byte of `memory`.
    pub fn new(memory: &'b mut [u8]) -> Self {
        let skip = memory.as_ptr().align_offset(ALIGN).min(memory.len());
        Arena { rest: &mut memory[skip..] }
    }

    /// The next `len` elements. Their content is whatever the memory held.
    pub fn take<T: Pod>(&mut self, len: usize) -> Result<&'b mut [T]> {
        let need = len.checked_mul(size_of::<T>()).and_then(|b| b.checked_next_multiple_of(ALIGN));
        let rest = core::mem::take(&mut self.rest);
        match need {
            Some(need) if need <= rest.len() => {
                let (taken, rest) = rest.split_at_mut(need);
                self.rest = rest;
                Ok(bytemuck::cast_slice_mut(&mut taken[..len * size_of::<T>()]))
            }
            _ => Err(error!(Memory { need: need.map_or(u64::MAX, |n| n as u64), have: rest.len() as u64 })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_exactly_enough_at_any_alignment() {
        let mut plan = Planner::default();
        plan.add::<f32>(3);
        plan.add::<u8>(65);
        plan.add::<u16>(0);
        let total = plan.total().unwrap();
        assert_eq!(total, 64 + 128 + 63);
        let mut memory = [0u8; 64 + 128 + 63 + 64];
        for start in 0..64 {
            let mut arena = Arena::new(&mut memory[start..start + total]);
            let a = arena.take::<f32>(3).unwrap();
            let b = arena.take::<u8>(65).unwrap();
            assert_eq!((a.as_ptr() as usize % ALIGN, b.as_ptr() as usize % ALIGN), (0, 0));
            assert!(arena.take::<u16>(0).unwrap().is_empty());
            assert_eq!(arena.take::<u8>(65).unwrap_err().code(), "memory");
        }
    }

    #[test]
    fn sizes_that_overflow_are_errors() {
        let mut plan = Planner::default();
        plan.add::<f32>(usize::MAX / 2);
        assert_eq!(plan.total().unwrap_err().code(), "memory");
        let mut byte = [0u8];
        assert_eq!(Arena::new(&mut byte).take::<f32>(usize::MAX / 2).unwrap_err().code(), "memory");
    }
}
