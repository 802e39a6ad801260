//! Ensures that one process at a time fetches models.
use super::ModelError;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

/// Waits for the lock of the folder. The lock is held while the file is open. It is released when
/// the process ends, for any reason.
pub(super) fn acquire(directory: &Path) -> Result<File, ModelError> {
    let path = directory.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(ModelError::io(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            tracing::info!(directory = %directory.display(), "waiting for another process that fetches models");
            file.lock().map_err(ModelError::io(&path))?;
        }
        Err(TryLockError::Error(error)) => return Err(ModelError::io(&path)(error)),
    }
    Ok(file)
}
