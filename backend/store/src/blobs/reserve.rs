//! Keeps a reserve of free disk space, so that uploads, crawls and videos do not fill the disk of
//! the database.
use crate::StoreError;
use std::path::{Path, PathBuf};

/// Bytes of a file that are written between two checks of the free space.
pub(super) const BYTES_PER_CHECK: u64 = 64 << 20;

/// Space that must stay free in the file system of a folder.
#[derive(Clone, Debug)]
pub struct DiskReserve {
    folder: PathBuf,
    bytes: u64,
}

impl DiskReserve {
    /// Creates a reserve of `bytes`; 0 permits every write.
    pub fn new(folder: impl Into<PathBuf>, bytes: u64) -> Self {
        Self { folder: folder.into(), bytes }
    }

    /// Reduces the reserve to a tenth of the file system, for small disks.
    #[must_use]
    pub fn limited_to_tenth(self) -> Self {
        let total = file_system_space(&self.folder).map_or(u64::MAX, |space| space.total);
        Self { bytes: self.bytes.min(total / 10), ..self }
    }

    /// Checks that the reserve is still free after another `bytes` are written. A file system that
    /// does not report its free space permits every write.
    ///
    /// # Errors
    /// Fails with [`StoreError::DiskFull`].
    pub fn check(&self, bytes: u64) -> Result<(), StoreError> {
        let needed = self.bytes.saturating_add(bytes);
        if self.bytes == 0 || file_system_space(&self.folder).is_none_or(|space| space.free >= needed) {
            return Ok(());
        }
        Err(StoreError::DiskFull { reserve_mb: self.bytes >> 20 })
    }
}

/// A folder for copies of files. The copies have no name, so nothing remains of them when the
/// process ends.
#[derive(Clone, Debug)]
pub struct SpoolFolder {
    path: PathBuf,
    reserve: DiskReserve,
}

impl SpoolFolder {
    /// Describes an existing folder. `reserve` is the free space of its disk, in bytes, below which
    /// nothing is copied, but at most a tenth of the disk.
    pub fn new(path: impl Into<PathBuf>, reserve: u64) -> Self {
        let path = path.into();
        let reserve = DiskReserve::new(path.clone(), reserve).limited_to_tenth();
        Self { path, reserve }
    }

    /// Works like [`Self::new`], without the limit of a tenth.
    pub fn with_exact_reserve(path: impl Into<PathBuf>, reserve: u64) -> Self {
        let path = path.into();
        Self { reserve: DiskReserve::new(path.clone(), reserve), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that a copy can begin. `bytes` is its size if it is known, otherwise 0.
    ///
    /// # Errors
    /// Fails with `StoreError::DiskFull`.
    pub fn check_space(&self, bytes: u64) -> Result<(), StoreError> {
        self.reserve.check(bytes)
    }

    /// Checks the space again after every [`BYTES_PER_CHECK`] bytes of a copy. `added` bytes were
    /// written after `written` bytes.
    ///
    /// # Errors
    /// Fails with `StoreError::DiskFull`.
    pub fn check_after_write(&self, written: u64, added: u64) -> Result<(), StoreError> {
        match written / BYTES_PER_CHECK == (written + added) / BYTES_PER_CHECK {
            true => Ok(()),
            false => self.check_space(0),
        }
    }
}

/// Space of a file system, in bytes.
struct Space {
    total: u64,
    /// Space that a user without privileges can use.
    free: u64,
}

fn file_system_space(folder: &Path) -> Option<Space> {
    match rustix::fs::statvfs(folder) {
        Ok(stats) => Some(Space {
            total: stats.f_blocks.saturating_mul(stats.f_frsize),
            free: stats.f_bavail.saturating_mul(stats.f_frsize),
        }),
        Err(error) => {
            tracing::debug!(folder = %folder.display(), %error, "the free space cannot be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_of_known_size_must_leave_reserve_free() {
        let folder = SpoolFolder::with_exact_reserve(std::env::temp_dir(), 1);
        assert!(folder.check_space(1).is_ok());
        assert!(matches!(folder.check_space(u64::MAX / 2), Err(StoreError::DiskFull { .. })));
        let unlimited = SpoolFolder::with_exact_reserve(std::env::temp_dir(), 0);
        assert!(unlimited.check_space(u64::MAX / 2).is_ok());
    }
}
