//! A file that appears under its name when it is complete.

use super::ConvertError;
use crate::error::{Error, Result};
use crate::file;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file to write, which appears under its name with [`NewFile::finish`], and leaves nothing behind without that.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

/// More symbolic links after one another are a circle, as for Linux.
const MAX_LINKS: usize = 40;

impl NewFile {
    /// Begins the file `path`, or the one that a symbolic link of that name leads to. One that is there is replaced only
    /// if `replace` says so, at the end.
    ///
    /// # Errors
    /// [`ConvertError::Exists`]; [`ConvertError::NotRegular`] for a folder, a pipe or a device; [`Error::Io`].
    pub fn create(path: impl AsRef<Path>, replace: bool) -> Result<NewFile> {
        let path = path.as_ref();
        let failed = |source| Error::Io { action: "write", path: path.into(), source };
        if let Ok(found) = fs::metadata(path) {
            if !found.is_file() {
                return Err(ConvertError::NotRegular.at(path));
            }
            if !replace {
                return Err(ConvertError::Exists.at(path));
            }
        }
        let path = target(path).map_err(failed)?;
        let file = BufWriter::with_capacity(1 << 20, file::unfinished(&path).map_err(failed)?);
        Ok(NewFile { path, file })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self) -> Result<()> {
        let NewFile { path, file } = self;
        let failed = |source| Error::Io { action: "write", path: path.clone(), source };
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The file that `path` leads to if it is a symbolic link, also one to nothing. A file that takes its name would replace the link.
fn target(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
            return Ok(path);
        }
        // A path that is absolute stays as it is.
        path = path.parent().unwrap_or(Path::new("")).join(fs::read_link(&path)?);
    }
    Err(io::Error::other("a circle of symbolic links"))
}
