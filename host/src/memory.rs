//! Memory for weights, keys and values.

use memmap2::MmapMut;
use shohin_core::model::ModelBytes;
use shohin_core::{Cpu, Result, Session, SessionOptions};
use std::io;

/// A session of at least this many bytes gets large pages. It may fill one for each before it needs them.
const LARGE: usize = 64 << 20;

/// Zeroed memory in large pages where the system has them, taken as it is touched. Reading it is up to twice
/// as fast: there are fewer addresses to translate.
///
/// # Errors
/// If the system has not so much.
pub fn large_pages(bytes: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes)?;
    // A kernel without large pages does without.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// A session in such memory, if that pays.
///
/// # Errors
/// Those of [`Session::new`].
pub fn session<'m, B: ModelBytes>(
    device: &mut Cpu<'m, B>,
    options: &SessionOptions,
) -> Result<Session<Cpu<'m, B>>> {
    let bytes = device.memory_plan(options)?.session;
    match large_pages(bytes) {
        Ok(memory) if bytes >= LARGE => device.session_in(options, memory),
        _ => Session::new(device, options),
    }
}
