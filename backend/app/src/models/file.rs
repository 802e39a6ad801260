//! Hashes, copies and renames one model file on disk.
use super::ModelError;
use inference::ModelFile;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum FileState {
    Verified,
    Missing,
    /// The content differs from the manifest.
    Corrupt {
        /// The sha256 of the content, in hex.
        sha256: String,
    },
}

pub(super) fn inspect(directory: &Path, file: &ModelFile) -> Result<FileState, ModelError> {
    let path = directory.join(&file.file);
    match sha256_of(&path) {
        Ok(sha256) if sha256.eq_ignore_ascii_case(&file.sha256) => Ok(FileState::Verified),
        Ok(sha256) => Ok(FileState::Corrupt { sha256 }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileState::Missing),
        Err(error) => Err(ModelError::io(&path)(error)),
    }
}

/// Returns the sha256 of a file's content in hex.
pub(super) fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Returns the path, in the folder of `target`, of a file that is not verified yet. The name
/// contains the checksum, so that a partial download of another version is never resumed.
pub(super) fn part_path(target: &Path, sha256: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", sha256.get(..12).unwrap_or(sha256)));
    target.with_file_name(name)
}

/// Verifies the checksum of `part` and renames it to `target`. Removes `part` if the checksum is
/// wrong.
pub(super) fn verify_and_rename(part: &Path, target: &Path, sha256: &str) -> Result<(), String> {
    let say = |error: io::Error| format!("{}: {error}", part.display());
    let found = sha256_of(part).map_err(say)?;
    if !found.eq_ignore_ascii_case(sha256) {
        std::fs::remove_file(part).map_err(say)?;
        return Err(format!("the content has sha256 {found}, not {sha256}"));
    }
    File::open(part).and_then(|file| file.sync_all()).map_err(say)?;
    std::fs::rename(part, target).map_err(say)
}

/// Copies the file from the mirror. The inner error is the reason why the mirror cannot provide it.
pub(super) fn copy_from(
    mirror: &Path,
    directory: &Path,
    file: &ModelFile,
) -> Result<Result<(), String>, ModelError> {
    let source = mirror.join(&file.file);
    if !source.is_file() {
        return Ok(Err("the folder does not contain the file".to_owned()));
    }
    let target = directory.join(&file.file);
    let part = part_path(&target, &file.sha256);
    // Without the permissions of the source. If the process ends here, a part that is read-only
    // would make every later start fail.
    let copied = File::open(&source).and_then(|mut source| io::copy(&mut source, &mut File::create(&part)?));
    copied.map_err(ModelError::io(&part))?;
    Ok(verify_and_rename(&part, &target, &file.sha256))
}
