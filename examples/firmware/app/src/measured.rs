//! Measurements, printed when the input ends: instructions per token, memory, and a checksum of all logits. Without the
//! feature `report` nothing is measured.

use shohin_core::Error;
#[cfg(feature = "report")]
use shohin_core::cpu::{Isa, MemoryPlan};
use shohin_core::generate::Backend;

use crate::clock::Clock;
#[cfg(feature = "report")]
use crate::console::println;
#[cfg(feature = "report")]
use crate::{heap, stack};

/// A backend that is measured. It has no [`Backend::shift`] of its own: conversations here end before they are too long, and
/// rotating keys takes 2 kB of code.
pub(crate) struct Measured<'c, B> {
    backend: B,
    #[cfg_attr(not(feature = "report"), expect(dead_code, reason = "nothing is measured"))]
    clock: &'c mut dyn Clock,
    #[cfg(feature = "report")]
    counts: Counts,
}

impl<'c, B: Backend> Measured<'c, B> {
    pub(crate) fn new(backend: B, clock: &'c mut dyn Clock) -> Self {
        Measured {
            backend,
            clock,
            #[cfg(feature = "report")]
            counts: Counts::default(),
        }
    }
}

impl<B: Backend> Backend for Measured<'_, B> {
    fn position(&self) -> usize {
        self.backend.position()
    }

    fn capacity(&self) -> usize {
        self.backend.capacity()
    }

    #[cfg(not(feature = "report"))]
    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.backend.feed(tokens)
    }

    #[cfg(feature = "report")]
    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let before = self.clock.instructions();
        let logits = self.backend.feed(tokens)?;
        self.counts.add(tokens.len(), self.clock.instructions() - before, logits);
        Ok(logits)
    }

    fn truncate(&mut self, len: usize) -> Result<(), Error> {
        self.backend.truncate(len)
    }
}

/// Instructions of one kind of work.
#[cfg(feature = "report")]
#[derive(Default)]
struct Count {
    tokens: u64,
    instructions: u64,
}

#[cfg(feature = "report")]
impl Count {
    fn per_token(&self) -> u64 {
        self.instructions / self.tokens.max(1)
    }
}

/// What is counted while a backend is fed.
#[cfg(feature = "report")]
#[derive(Default)]
struct Counts {
    prompt: Count,
    reply: Count,
    /// The logits' bits in all steps so far, as a checksum: equal on every board and on the desktop.
    checksum: u32,
}

#[cfg(feature = "report")]
impl Counts {
    fn add(&mut self, tokens: usize, instructions: u64, logits: &[f32]) {
        let count = if tokens > 1 { &mut self.prompt } else { &mut self.reply };
        count.tokens += tokens as u64;
        count.instructions += instructions;
        for logit in logits {
            self.checksum = (self.checksum.rotate_left(5) ^ logit.to_bits()).wrapping_mul(0x9e37_79b9);
        }
    }
}

#[cfg(feature = "report")]
impl<B> Measured<'_, B> {
    /// Prints the measurements.
    pub(crate) fn report(&self, isa: Isa, plan: &MemoryPlan) {
        println!("# isa {}", isa.name());
        println!("# logits {:08x}", self.counts.checksum);
        println!("# heap-peak {}", heap::peak());
        println!("# heap {}", heap::used());
        println!("# scratch {}", plan.device);
        println!("# session {}", plan.session);
        println!("# stack {}", stack::peak());
        println!("# prompt {}", self.counts.prompt.per_token());
        println!("# reply {}", self.counts.reply.per_token());
    }
}

/// Prints the memory that a model on a card takes, in bytes: its header and the window, and what a token reads.
#[cfg(feature = "report")]
pub(crate) fn report_card(header: usize, window: usize, read: usize) {
    println!("# header {header}");
    println!("# window {window}");
    println!("# read {read}");
}
