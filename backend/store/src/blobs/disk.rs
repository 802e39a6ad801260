//! The calls that make a file durable, so that tests can observe their order.
use std::fs::File;
use std::io;
use std::path::Path;

/// Calls of the file system that block until they have an effect.
pub trait Disk: Send + Sync {
    /// Writes the content of a file to the device.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    fn sync_file(&self, file: &File) -> io::Result<()>;

    /// Gives a file its final name, and replaces a file of that name.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Writes the names in a folder to the device.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        use io::ErrorKind::{InvalidInput, NotFound, Unsupported};
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // The deletion of its last blob deleted it.
            Err(error) if error.kind() == NotFound => Ok(()),
            // Some network file systems cannot sync folders.
            Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => Ok(()),
            synced => synced,
        }
    }
}
