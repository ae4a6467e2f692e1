//! Memory for weights, keys and values.

use crate::map::MmapMut;
use shohin_core::cpu::CpuCache;
use shohin_core::device::BlockingDevice;
use shohin_core::model::ModelBytes;
use shohin_core::{Cpu, Device, Result, SessionOptions};
use std::io;

/// Sessions of at least this many bytes use large pages.
const LARGE: usize = 64 << 20;

/// Zeroed memory in large pages if the system supports them, allocated on first access. Reading is up to
/// twice as fast, as there are fewer TLB misses.
///
/// # Errors
/// If the system is out of memory.
pub fn large_pages(bytes: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes)?;
    // Kernels without large pages ignore it.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// The keys and values of a session in large pages, if it is large enough.
pub(crate) fn cache<'m, B: ModelBytes>(
    device: &mut Cpu<'m, B>,
    options: &SessionOptions,
) -> Result<CpuCache<'m>> {
    let bytes = device.memory_plan(options)?.session;
    match large_pages(bytes) {
        Ok(memory) if bytes >= LARGE => device.cache_in(options, memory),
        _ => Cpu::<B>::wait(device.cache(options)),
    }
}
