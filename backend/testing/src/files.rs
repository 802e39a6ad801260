//! Lists and searches files in folders that a service changes concurrently.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns all files below a folder. A folder that does not exist is treated as empty, because a
/// folder may be deleted together with its last file. Panics if a folder cannot be read for another
/// reason.
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

/// Returns whether `content` contains `wanted`. This crate is optimised, unlike the tests.
pub fn holds(content: &[u8], wanted: &[u8]) -> bool {
    content.windows(wanted.len()).any(|window| window == wanted)
}
