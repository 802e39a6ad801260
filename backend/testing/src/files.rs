//! Looking at folders that a service changes meanwhile.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns every file below a folder. A folder that is gone holds no file: who deletes the last file of a folder may delete
/// the folder at any moment.
///
/// # Panics
/// When a folder cannot be read for another reason.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => panic!("{}: {error}", folder.display()),
        };
        for entry in entries {
            let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) => files.push(entry.path()),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => panic!("{}: {error}", entry.path().display()),
            }
        }
    }
    files
}
