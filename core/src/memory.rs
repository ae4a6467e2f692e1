//! Memory that a host may supply: static RAM on firmware, large pages on servers.
#![forbid(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::error::{Error, Result};

/// Bytes for scratch or for a cache.
pub(crate) struct Memory<'m>(Storage<'m>);

enum Storage<'m> {
    Owned(Vec<u8>),
    Custom(Box<dyn AsMut<[u8]> + Send + Sync + 'm>),
}

impl<'m> Memory<'m> {
    /// Zeroed bytes from the allocator.
    pub(crate) fn zeroed(bytes: usize) -> Result<Self> {
        // Most systems provide zeros without touching the pages: a long context costs nothing before it is
        // used.
        let memory = bytemuck::allocation::try_zeroed_vec(bytes)
            .map_err(|()| error!(Memory { need: bytes as u64, have: 0 }))?;
        Ok(Memory(Storage::Owned(memory)))
    }

    /// Memory from a host, at least `bytes` at any alignment and with any content.
    pub(crate) fn custom(bytes: usize, mut memory: impl AsMut<[u8]> + Send + Sync + 'm) -> Result<Self> {
        let (need, have) = (bytes as u64, memory.as_mut().len() as u64);
        if have < need {
            return Err(error!(Memory { need, have }));
        }
        Ok(Memory(Storage::Custom(Box::new(memory))))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Storage::Owned(memory) => memory,
            Storage::Custom(memory) => (**memory).as_mut(),
        }
    }
}
