//! What operations carry from row to row of a sequence, and copies of it at earlier positions.
//!
//! A state is a sum over all tokens before: none can be taken out of it. To go back, a copy is restored, and the tokens after
//! it are computed again ([`Session`](crate::Session) does that by itself). Copies are made
//!
//! - before each run of several tokens, such as the check of guessed ones: in a place of their own, as they are soon of no use;
//! - after each part of a long run that was computed at once: ends of prompts, and every batch within them.
//!
//! Of the latter there are as many as fit in the memory of the sequence's keys and values, 2 to 16; the oldest gives way.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use crate::error::{Error, Result};

/// Runs of fewer tokens leave no copy behind.
const LONG: usize = 16;
/// The current state, and the one before the last run.
const OTHERS: usize = 2;
/// A state that is of no position.
const NOWHERE: usize = usize::MAX;

/// The state of a sequence.
#[derive(Debug, Default)]
pub(super) struct Recurrent {
    /// Floats of a state; 0 without one.
    len: usize,
    /// The current state, that before the last run, and the copies, `(OTHERS + copies, len)`.
    data: Vec<f32>,
    /// The position after which each of them is.
    at: Vec<usize>,
    /// The copy that was made last.
    newest: usize,
    /// Tokens of the run that is being computed.
    running: usize,
}

fn copies(len: usize, kv: usize) -> usize {
    (kv / (len * size_of::<f32>()).max(1)).clamp(2, 16)
}

impl Recurrent {
    /// Bytes of the states of a sequence whose keys and values take `kv`; `None` if they exceed the address space.
    pub(super) fn bytes(len: usize, kv: usize) -> Option<usize> {
        if !cfg!(feature = "variants") || len == 0 {
            return Some(0);
        }
        (OTHERS + copies(len, kv)).checked_mul(len)?.checked_mul(size_of::<f32>())
    }

    /// Whether there is none.
    fn is_none(&self) -> bool {
        !cfg!(feature = "variants") || self.len == 0
    }

    /// Bytes of this state and its copies.
    pub(super) fn held_bytes(&self) -> usize {
        size_of_val(&*self.data)
    }

    /// That of no tokens.
    pub(super) fn new(len: usize, kv: usize) -> Result<Self> {
        let places = OTHERS + copies(len, kv);
        let need = Self::bytes(len, kv).map_or(u64::MAX, |bytes| bytes as u64);
        let zeroed = bytemuck::allocation::try_zeroed_vec(places.saturating_mul(len));
        let data = zeroed.map_err(|()| error!(Memory { need, have: 0 }))?;
        let mut at = alloc::vec![NOWHERE; places];
        at[0] = 0;
        Ok(Recurrent { len, data, at, newest: OTHERS, running: 0 })
    }

    pub(super) fn copy(&self) -> Result<Self> {
        if self.is_none() {
            return Ok(Recurrent::default());
        }
        let need = (self.data.len() * size_of::<f32>()) as u64;
        let mut data = Vec::new();
        data.try_reserve_exact(self.data.len()).map_err(|_| error!(Memory { need, have: 0 }))?;
        data.extend_from_slice(&self.data);
        Ok(Recurrent { len: self.len, data, at: self.at.clone(), newest: self.newest, running: 0 })
    }

    /// The current state.
    pub(super) fn current(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }

    /// Checks that the state is that after `position` tokens.
    pub(super) fn check(&self, position: usize) -> Result<()> {
        match self.at.first() {
            Some(at) if *at != position => Err(error!(Device {
                problem: "the recurrent state is that of another position: rewind first"
            })),
            _ => Ok(()),
        }
    }

    fn keep(&mut self, place: usize) {
        self.data.copy_within(..self.len, place * self.len);
        self.at[place] = self.at[0];
    }

    /// A run of `tokens` begins. Until it ends the state is of no position: an error may leave parts of it.
    pub(super) fn begin(&mut self, tokens: usize) {
        if self.is_none() {
            return;
        }
        if tokens > 1 {
            self.keep(1);
        }
        self.running = tokens;
        self.at[0] = NOWHERE;
    }

    /// Rows of that run, up to position `end`, have been computed at once.
    pub(super) fn advance(&mut self, end: usize, rows: usize) {
        if self.is_none() {
            return;
        }
        self.at[0] = end;
        if self.running >= LONG && rows > 1 && !self.at[OTHERS..].contains(&end) {
            self.newest = if self.newest + 1 < self.at.len() { self.newest + 1 } else { OTHERS };
            self.keep(self.newest);
        }
    }

    /// Goes back to the last state that is known of the first `len` positions; returns its position.
    pub(super) fn rewind(&mut self, len: usize) -> usize {
        if self.is_none() || self.at[0] == len {
            return len;
        }
        // Copies after it are of tokens that are forgotten.
        self.at.iter_mut().filter(|at| **at > len).for_each(|at| *at = NOWHERE);
        let known = self.at.iter().enumerate().filter(|(_, at)| **at != NOWHERE);
        let (place, at) = known.max_by_key(|(_, at)| **at).map_or((None, 0), |(i, at)| (Some(i), *at));
        match place {
            Some(0) => {}
            Some(place) => self.data.copy_within(place * self.len..(place + 1) * self.len, 0),
            None => self.current().fill(0.0),
        }
        self.at[0] = at;
        at
    }

    pub(super) fn export_len(&self) -> usize {
        if self.is_none() { 0 } else { self.len * size_of::<f32>() }
    }

    /// Writes the state after `len` tokens, which must be the current one.
    pub(super) fn export(&self, len: usize, out: &mut [u8]) -> Result<()> {
        if self.is_none() {
            return Ok(());
        }
        self.check(len)?;
        for (out, x) in out.as_chunks_mut().0.iter_mut().zip(&self.data[..self.len]) {
            *out = x.to_le_bytes();
        }
        Ok(())
    }

    pub(super) fn import(&mut self, len: usize, from: &[u8]) {
        if self.is_none() {
            return;
        }
        self.at.fill(NOWHERE);
        self.at[0] = len;
        for (x, from) in self.current().iter_mut().zip(from.as_chunks().0) {
            *x = f32::from_le_bytes(*from);
        }
    }
}
