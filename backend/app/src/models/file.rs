//! Hashes, copies, extracts and renames model files on disk, and locks their folder.
use super::ModelError;
use inference::ModelFile;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use zip::ZipArchive;

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
fn sha256_of(path: &Path) -> io::Result<String> {
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

/// Returns the path of the unverified part of `target`, which is in the same folder. The name
/// contains the checksum, so that a partial download of another version is never resumed.
pub(super) fn part_path(target: &Path, sha256: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", sha256.get(..12).unwrap_or(sha256)));
    target.with_file_name(name)
}

/// Verifies the checksum of `part` and renames it to `target`. Removes `part` if the checksum is
/// wrong.
pub(super) fn verify_and_rename(part: &Path, target: &Path, sha256: &str) -> Result<(), String> {
    let to_message = |error: io::Error| format!("{}: {error}", part.display());
    let actual = sha256_of(part).map_err(to_message)?;
    if !actual.eq_ignore_ascii_case(sha256) {
        std::fs::remove_file(part).map_err(to_message)?;
        return Err(format!("the content has sha256 {actual}, not {sha256}"));
    }
    File::open(part).and_then(|file| file.sync_all()).map_err(to_message)?;
    std::fs::rename(part, target).map_err(to_message)
}

/// Copies the file from the mirror. The inner error is the reason why the mirror cannot provide it.
pub(super) fn copy_from_mirror(
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
    // The permissions of the source are not copied: if the process ends here, a part that is
    // read-only would make every later start fail.
    let copied = File::open(&source).and_then(|mut source| io::copy(&mut source, &mut File::create(&part)?));
    copied.map_err(ModelError::io(&part))?;
    Ok(verify_and_rename(&part, &target, &file.sha256))
}

/// Maximum size of a model without a known length. All known models are smaller.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// Extracts `member` to `target`. `member` is the path in the archive, or a file name in any of its
/// folders.
pub(super) fn extract(archive: &Path, member: &str, target: &Path, file: &ModelFile) -> Result<(), String> {
    let to_message = |error: &dyn std::fmt::Display| format!("{}: {error}", archive.display());
    let mut zip = ZipArchive::new(File::open(archive).map_err(|error| to_message(&error))?)
        .map_err(|error| to_message(&error))?;
    let names: Vec<String> =
        zip.file_names().filter_map(|name| name.ok().map(std::borrow::Cow::into_owned)).collect();
    let is_member = |name: &&String| name.as_str() == member;
    let has_file_name = |name: &&String| name.rsplit('/').next() == Some(member);
    let name = names.iter().find(is_member).or_else(|| names.iter().find(has_file_name));
    let name = name.ok_or_else(|| format!("the archive does not contain {member}"))?;
    let limit = file.bytes.unwrap_or(MAX_FILE_BYTES);
    let part = part_path(target, &file.sha256);
    let entry = zip.by_name(name).map_err(|error| to_message(&error))?;
    let mut sink = File::create(&part).map_err(|error| to_message(&error))?;
    let size = io::copy(&mut entry.take(limit + 1), &mut sink).map_err(|error| to_message(&error))?;
    if size > limit {
        drop(sink);
        std::fs::remove_file(&part).map_err(|error| to_message(&error))?;
        return Err(format!("{member} is longer than {limit} bytes"));
    }
    verify_and_rename(&part, target, &file.sha256)
}

/// Waits for the lock of the folder. The lock is held while the file is open. It is released when
/// the process ends, for any reason.
pub(super) fn lock(directory: &Path) -> Result<File, ModelError> {
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
