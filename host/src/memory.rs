//! Memory for weights, keys and values.

use shohin_core::cpu::CpuCache;
use shohin_core::device::BlockingDevice;
use shohin_core::model::ModelBytes;
use shohin_core::{Cpu, Device, Result, SessionOptions};
pub use shohin_files::large_pages;

/// Sessions of at least this many bytes use large pages.
const LARGE: usize = 64 << 20;

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
