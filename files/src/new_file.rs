//! The files that this library writes for its user: complete, or as they were.
#![forbid(unsafe_code)]

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file to write, which appears under its name with [`NewFile::finish`], and leaves nothing behind without that.
///
/// A symbolic link stays, and the file that it leads to is written. A file that is replaced keeps its permissions; one without
/// write permission is refused, as is what is no regular file.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

/// More symbolic links after one another are a circle, as for Linux.
const MAX_LINKS: usize = 40;
/// Permissions of new files, of which the user's umask takes some away, and of private ones.
const SHARED: u32 = 0o666;
const PRIVATE: u32 = 0o600;

impl NewFile {
    /// Begins the file `path`.
    ///
    /// # Errors
    /// Those of [`check`] and of the system.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        NewFile::with_mode(path, SHARED)
    }

    /// As [`NewFile::create`], but only the user may read and write a file that was not there before.
    ///
    /// # Errors
    /// As for [`NewFile::create`].
    pub fn private(path: &Path) -> io::Result<NewFile> {
        NewFile::with_mode(path, PRIVATE)
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<NewFile> {
        let old = check(path)?;
        let path = target(path)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".shohin-").suffix(".part");
        set_mode(&mut builder, if old.is_some() { PRIVATE } else { mode });
        let file = builder.tempfile_in(folder(&path))?;
        if let Some(old) = old {
            keep_access(file.as_file(), &old)?;
        }
        Ok(NewFile { path, file: BufWriter::with_capacity(1 << 20, file) })
    }

    /// Where the file is until it is finished.
    pub fn unfinished(&self) -> &Path {
        self.file.get_ref().path()
    }

    /// Gives the file its name, once all of it is on disk.
    ///
    /// # Errors
    /// What the system says; what was there under the name is unchanged then.
    pub fn finish(self) -> io::Result<()> {
        let NewFile { path, file } = self;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        sync_folder(&path)
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

/// What is there under the name, if it may be replaced.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] for a file without write permission; another for a folder, a pipe or a device.
pub fn check(path: &Path) -> io::Result<Option<Metadata>> {
    // What is wrong with a path that leads nowhere is said when it is written.
    let Ok(found) = fs::metadata(path) else { return Ok(None) };
    if !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if found.permissions().readonly() {
        // Also for root, to whom the system permits it.
        return Err(ErrorKind::PermissionDenied.into());
    }
    File::options().append(true).open(path)?;
    Ok(Some(found))
}

#[cfg(unix)]
fn set_mode(builder: &mut tempfile::Builder<'_, '_>, mode: u32) {
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
}

#[cfg(not(unix))]
fn set_mode(_: &mut tempfile::Builder<'_, '_>, _: u32) {}

/// Gives a file the access of the one that it replaces.
#[cfg(unix)]
fn keep_access(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let (new, mut mode) = (file.metadata()?, old.mode());
    let is_same = (new.uid(), new.gid()) == (old.uid(), old.gid());
    if !is_same
        && fchown(file, Some(old.uid()), Some(old.gid())).is_err()
        && fchown(file, None, Some(old.gid())).is_err()
    {
        // Another group may do no more than everybody.
        mode &= !0o070 | (mode & 0o007) << 3;
    }
    file.set_permissions(PermissionsExt::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_access(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Waits until the name of a new file is on disk, where the system can.
///
/// # Errors
/// What the system says.
#[cfg(unix)]
pub fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(folder(path)).and_then(|folder| folder.sync_all()) {
        // Folders that may be written but not read, and file systems that have nothing to wait for.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}

/// Folders cannot be waited for there.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    fn write(file: io::Result<NewFile>, text: &str) -> io::Result<()> {
        let mut file = file?;
        file.write_all(text.as_bytes())?;
        file.finish()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("file");
        // What another program would create, under whatever umask.
        fs::write(dir.path().join("usual"), "").unwrap();
        write(NewFile::create(&path), "first").unwrap();
        assert_eq!(mode(&path), mode(&dir.path().join("usual")));
        for kept in [0o600, 0o644, 0o640, 0o666, 0o755] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            for file in [NewFile::create, NewFile::private] {
                write(file(&path), "again").unwrap();
                assert_eq!(mode(&path), kept, "{kept:o}");
            }
        }
        assert_eq!(fs::read(&path).unwrap(), b"again");
    }

    #[test]
    fn a_private_file_is_the_users_alone() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("file");
        let file = NewFile::private(&path).unwrap();
        assert_eq!(mode(file.unfinished()), 0o600);
        write(Ok(file), "secret").unwrap();
        assert_eq!(mode(&path), 0o600);
        // Nobody reads what replaces it meanwhile.
        assert_eq!(mode(NewFile::create(&path).unwrap().unfinished()), 0o600);
    }

    #[test]
    fn a_symbolic_link_stays() {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("there")).unwrap();
        let (target, link) = (dir.path().join("there/file"), dir.path().join("link"));
        symlink("there/second", &link).unwrap();
        symlink("file", dir.path().join("there/second")).unwrap();
        for text in ["new", "again"] {
            write(NewFile::create(&link), text).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), text);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
        assert_eq!(fs::read_dir(dir.path().join("there")).unwrap().count(), 2);
        let circle = dir.path().join("circle");
        symlink(&circle, &circle).unwrap();
        assert!(NewFile::create(&circle).is_err());
    }

    #[test]
    fn a_file_without_write_permission_is_refused() {
        let dir = TempDir::new().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "mine").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        symlink("file", &link).unwrap();
        for path in [&path, &link] {
            let refused = NewFile::create(path).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [dir.path(), &socket, Path::new("/dev/null")] {
            assert_eq!(NewFile::create(path).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_file_that_is_not_finished_replaces_nothing() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(&[0; 3 << 20]).unwrap();
        file.flush().unwrap();
        // As if the program were killed here.
        std::mem::forget(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(&[0; 3 << 20]).unwrap();
        let unfinished = file.unfinished().to_path_buf();
        drop(file);
        assert!(!unfinished.exists());
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
