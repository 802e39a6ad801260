//! Keeps a reserve of free disk space, so that uploads, crawls and videos do not fill the disk of
//! the database.
use crate::StoreError;
use std::path::{Path, PathBuf};

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
    pub fn at_most_a_tenth(self) -> Self {
        let total = space(&self.folder).map_or(u64::MAX, |space| space.total);
        Self { bytes: self.bytes.min(total / 10), ..self }
    }

    /// Checks that the reserve is free. A file system that does not report its free space permits
    /// every write.
    ///
    /// # Errors
    /// Fails with [`StoreError::DiskFull`].
    pub fn check(&self) -> Result<(), StoreError> {
        if self.bytes == 0 || space(&self.folder).is_none_or(|space| space.free >= self.bytes) {
            return Ok(());
        }
        Err(StoreError::DiskFull { reserve_mb: self.bytes >> 20 })
    }
}

/// Space of a file system, in bytes.
struct Space {
    total: u64,
    /// Space that a user without privileges can use.
    free: u64,
}

fn space(folder: &Path) -> Option<Space> {
    match rustix::fs::statvfs(folder) {
        Ok(found) => Some(Space {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
        }),
        Err(error) => {
            tracing::debug!(folder = %folder.display(), %error, "the free space cannot be read");
            None
        }
    }
}
