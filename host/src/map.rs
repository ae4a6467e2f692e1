//! Files mapped into memory, and memory in pages of its own. WASI has neither: there, files are read and memory is
//! allocated.

use std::fs::File;
use std::io;

#[cfg(not(target_os = "wasi"))]
pub(crate) use memmap2::{Mmap, MmapMut};
#[cfg(target_os = "wasi")]
pub(crate) use wasi::{Memory as Mmap, Memory as MmapMut};

/// Maps a file for reading.
#[cfg(not(target_os = "wasi"))]
#[allow(unsafe_code)]
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only. As with every mapped file, a program that truncates the file while it is mapped
    // terminates this one; one that changes its bytes changes what is read here.
    unsafe { Mmap::map(file) }
}

#[cfg(target_os = "wasi")]
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    Mmap::read(file)
}

#[cfg(target_os = "wasi")]
mod wasi {
    use std::fs::File;
    use std::io::{self, Read, Seek};
    use std::ops::{Deref, DerefMut, Range};

    /// As large as any alignment that weights and caches need.
    const ALIGNMENT: usize = 64;

    /// Aligned bytes in place of a mapping.
    #[derive(Debug)]
    pub struct Memory {
        bytes: Vec<u8>,
        range: Range<usize>,
    }

    impl Memory {
        /// Zeroed bytes.
        pub(crate) fn map_anon(len: usize) -> io::Result<Memory> {
            let room = len.checked_add(ALIGNMENT - 1).ok_or(io::ErrorKind::OutOfMemory)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(room).map_err(|_| io::ErrorKind::OutOfMemory)?;
            bytes.resize(room, 0);
            let start = bytes.as_ptr().align_offset(ALIGNMENT);
            Ok(Memory { bytes, range: start..start + len })
        }

        /// The bytes of a file.
        pub(crate) fn read(mut file: &File) -> io::Result<Memory> {
            let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
            let mut memory = Memory::map_anon(len)?;
            file.rewind()?;
            file.read_exact(&mut memory)?;
            Ok(memory)
        }

        pub(crate) fn make_read_only(self) -> io::Result<Memory> {
            Ok(self)
        }
    }

    impl Deref for Memory {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            &self.bytes[self.range.clone()]
        }
    }

    impl AsMut<[u8]> for Memory {
        fn as_mut(&mut self) -> &mut [u8] {
            self
        }
    }

    impl DerefMut for Memory {
        fn deref_mut(&mut self) -> &mut [u8] {
            &mut self.bytes[self.range.clone()]
        }
    }
}
