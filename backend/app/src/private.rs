//! Writes files that show people, so that only their owner can read them.
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Creates a folder and its missing parents. Other users cannot enter folders that it creates.
///
/// # Errors
/// Fails with the error of the file system.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates or truncates a file. Other users cannot read a file that it creates. An existing file
/// keeps its mode.
///
/// # Errors
/// Fails with the error of the file system.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Writes a whole file, like [`create`].
///
/// # Errors
/// Fails with the error of the file system.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    create(path)?.write_all(content)
}
