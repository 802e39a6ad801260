//! The folder for copies of videos that are uploaded, fetched or read.

use std::path::{Path, PathBuf};
use store::{DiskReserve, StoreError};

/// Bytes of a copy between two checks of the free space.
const BYTES_PER_CHECK: u64 = 64 << 20;

/// A folder for copies of files. The copies have no name, so nothing remains of them when the
/// process ends.
#[derive(Clone, Debug)]
pub struct SpoolFolder {
    path: PathBuf,
    reserve: DiskReserve,
}

impl SpoolFolder {
    /// Creates the description of an existing folder. `reserve` is the free space of its disk, in
    /// bytes, below which nothing is copied, but at most a tenth of the disk.
    pub fn new(path: impl Into<PathBuf>, reserve: u64) -> Self {
        let path = path.into();
        let reserve = DiskReserve::new(path.clone(), reserve).at_most_a_tenth();
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

    /// Checks that a copy can begin.
    ///
    /// # Errors
    /// Fails with `StoreError::DiskFull`.
    pub fn check_space(&self) -> Result<(), StoreError> {
        self.reserve.check()
    }

    /// Checks the space again whenever a copy has grown enough: `more` bytes were written after
    /// `before` bytes.
    ///
    /// # Errors
    /// Fails with `StoreError::DiskFull`.
    pub fn wrote(&self, before: u64, more: u64) -> Result<(), StoreError> {
        match before / BYTES_PER_CHECK == (before + more) / BYTES_PER_CHECK {
            true => Ok(()),
            false => self.check_space(),
        }
    }
}
