//! Reads the folder of `--images`, an option of several commands.
use super::UsageError;
use crate::image_files;
use anyhow::Context;
use bytes::Bytes;
use std::path::{Path, PathBuf};

/// Returns the images of the folder, ordered by name.
///
/// # Errors
/// Fails if `path` is not a folder, contains no images, or cannot be read.
pub(super) fn list(path: &Path) -> Result<Vec<PathBuf>, UsageError> {
    let wrong = |reason: &str| UsageError(format!("--images {}: {reason}", path.display()));
    if !path.is_dir() {
        return Err(wrong("not a folder"));
    }
    let found = image_files::find_images(path).map_err(|error| wrong(&error.to_string()))?;
    if found.is_empty() {
        return Err(wrong("the folder contains no images"));
    }
    Ok(found)
}

pub(super) fn read(path: &Path) -> anyhow::Result<Bytes> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes.into())
}
