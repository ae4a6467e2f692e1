//! Files mapped into memory, and memory in pages of its own. WASI has neither: there, files are read and memory is
//! allocated.

use crate::error::{Error, Result, failed};
use std::fs::{self, File};
use std::io;
use std::path::Path;

#[cfg(not(target_os = "wasi"))]
pub use memmap2::{Mmap, MmapMut};
#[cfg(target_os = "wasi")]
pub use wasi::{Memory as Mmap, Memory as MmapMut};

/// Maps a file for reading.
///
/// # Errors
/// What the system says.
#[cfg(not(target_os = "wasi"))]
#[allow(unsafe_code)]
pub fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only. As with every mapped file, a program that truncates the file while it is mapped
    // terminates this one; one that changes its bytes changes what is read here.
    unsafe { Mmap::map(file) }
}

/// Reads a file into memory.
///
/// # Errors
/// What the system says.
#[cfg(target_os = "wasi")]
pub fn map_file(file: &File) -> io::Result<Mmap> {
    Mmap::read(file)
}

/// Opens and maps a regular file.
///
/// # Errors
/// [`Error::NotAFile`], [`Error::Io`].
pub fn open_mapped(path: &Path) -> Result<Mmap> {
    let failed = failed("open", path);
    // Before it is opened: opening a pipe waits for a writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::NotAFile { path: path.into(), problem: "is not a regular file" });
    }
    let file = File::open(path).map_err(failed)?;
    let map = map_file(&file).map_err(failed)?;
    match map.starts_with(POINTER) {
        true => Err(Error::NotAFile { path: path.into(), problem: IS_POINTER }),
        false => Ok(map),
    }
}

/// What a file begins with that only names the one that Git LFS would get.
pub const POINTER: &[u8] = b"version https://git-lfs";

/// What is wrong with such a file.
pub const IS_POINTER: &str = "is a pointer of Git LFS to the file, not the file; `git lfs pull` gets that";

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

/// Asks for large pages for a mapped file.
pub fn advise_large_pages(map: &Mmap) {
    // Kernels that cannot map files in large pages ignore it.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    #[cfg(not(target_os = "linux"))]
    let _ = map;
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
        ///
        /// # Errors
        /// [`io::ErrorKind::OutOfMemory`].
        pub fn map_anon(len: usize) -> io::Result<Memory> {
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

        /// The same bytes: nothing here makes memory read-only.
        ///
        /// # Errors
        /// None.
        pub fn make_read_only(self) -> io::Result<Memory> {
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
