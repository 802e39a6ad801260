//! One process fetches at a time.
use super::ModelError;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

/// Waits for the folder's lock. It is held while the file is open and goes with the process, however that ends.
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
