//! Writes blobs into a folder. A file is durable when its write returns, and only its owner can
//! read it.
//!
//! A file is written under another name, synced, renamed, and then its folders are synced. Writes
//! that arrive while others are synced wait and are synced together: the file system then writes
//! its journal once for all of them.
//!
//! A file is locked while it is written. The lock ends with the process, so an unlocked file with a
//! temporary name was left by a killed process.
use super::is_key;
use crate::StoreError;
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::oneshot;

/// Maximum number of files that are synced together.
const MAX_FILES_PER_SYNC: usize = 256;

#[derive(Clone)]
pub(super) struct Folder {
    root: Arc<Path>,
    disk: Arc<dyn Disk>,
    queue: Arc<Mutex<SyncQueue>>,
}

/// Files that wait for their sync.
#[derive(Default)]
struct SyncQueue {
    files: Vec<(TempFile, oneshot::Sender<io::Result<()>>)>,
    /// Whether a thread syncs files. It also syncs those that arrive meanwhile.
    is_syncing: bool,
}

/// A written file under its temporary name. Dropping it deletes the file, unless it was renamed.
pub(super) struct TempFile {
    pub(super) file: File,
    path: PathBuf,
    target: PathBuf,
    is_renamed: bool,
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates a folder and its missing parents, accessible only to their owner.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl Folder {
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn new(root: &Path, disk: Arc<dyn Disk>) -> Self {
        Self { root: root.into(), disk, queue: Arc::default() }
    }

    /// Creates an empty file for the blob `key`. Blocks the thread.
    pub(super) fn create_temp(&self, key: &str) -> io::Result<TempFile> {
        let target = self.root.join(key);
        let mut number = 1_u32;
        loop {
            // `LocalFileSystem` does not list files with such names.
            let mut path = target.clone().into_os_string();
            path.push(format!("#{number}"));
            let path = PathBuf::from(path);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) if lock(&file)? => return Ok(TempFile { file, path, target, is_renamed: false }),
                // A cleanup found the file before it was locked, and deletes it.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                // The deletion of a blob may delete the empty folder at the same time.
                Err(error) if error.kind() == ErrorKind::NotFound => match target.parent() {
                    Some(parent) => create_folder(parent)?,
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes the incomplete files that killed processes left, and returns their number. If the
    /// file system has no locks, only those that were last changed before `before` are deleted.
    /// With `dry_run`, deletes nothing. Blocks the thread.
    pub(super) fn remove_abandoned(&self, before: SystemTime, dry_run: bool) -> io::Result<u64> {
        let mut removed = 0;
        let mut folders = vec![self.root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            // A folder is deleted together with its last blob.
            let Some(entries) = if_exists(std::fs::read_dir(&folder))? else { continue };
            for entry in entries {
                let Some(entry) = if_exists(entry)? else { continue };
                let Some(kind) = if_exists(entry.file_type())? else { continue };
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file()
                    && self.is_temporary(&entry.path())
                    && remove_if_abandoned(&entry.path(), before, dry_run)?
                {
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    /// Returns whether a path is the temporary name of a blob: its key, `#` and a number. Other
    /// programs may keep files in the folder.
    fn is_temporary(&self, path: &Path) -> bool {
        let name = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
        let parts = name.and_then(|name| name.rsplit_once('#'));
        parts.is_some_and(|(key, number)| is_key(key) && number.parse::<u32>().is_ok())
    }

    /// Makes a written file durable under its key. If the caller stops waiting, it still becomes
    /// durable.
    pub(super) async fn persist(&self, temp: TempFile) -> Result<(), StoreError> {
        let (sender, outcome) = oneshot::channel();
        let is_first = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.files.push((temp, sender));
            !std::mem::replace(&mut queue.is_syncing, true)
        };
        if is_first {
            let folder = self.clone();
            tokio::task::spawn_blocking(move || folder.sync_waiting());
        }
        match outcome.await {
            Ok(outcome) => outcome.map_err(|error| StoreError::Blob(error.to_string())),
            Err(_) => Err(StoreError::Blob("the runtime stopped before the blob was synced".into())),
        }
    }

    fn sync_waiting(&self) {
        loop {
            let group: Vec<_> = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                if queue.files.is_empty() {
                    queue.is_syncing = false;
                    return;
                }
                let count = queue.files.len().min(MAX_FILES_PER_SYNC);
                queue.files.drain(..count).collect()
            };
            let (mut files, callers): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            for (caller, outcome) in callers.into_iter().zip(self.sync_group(&mut files)) {
                // The caller may have stopped waiting.
                let _ = caller.send(outcome);
            }
        }
    }

    /// Syncs and renames the files, and syncs their folders. Returns the outcome of each file.
    fn sync_group(&self, files: &mut [TempFile]) -> Vec<io::Result<()>> {
        let mut outcomes: Vec<io::Result<()>> =
            files.iter().map(|temp| self.disk.sync_file(&temp.file)).collect();
        let mut folders = BTreeSet::new();
        for (temp, outcome) in files.iter_mut().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            *outcome = self.disk.rename(&temp.path, &temp.target);
            if outcome.is_ok() {
                temp.is_renamed = true;
                // A folder may be new, so the folders above it are synced too.
                let ancestors = temp.target.ancestors().skip(1);
                folders.extend(ancestors.take_while(|path| path.starts_with(&self.root)).map(Path::to_owned));
            }
        }
        for folder in folders {
            let Err(error) = self.disk.sync_folder(&folder) else { continue };
            let affected =
                files.iter().zip(&mut outcomes).filter(|(temp, _)| temp.target.starts_with(&folder));
            for (_, outcome) in affected.filter(|(_, outcome)| outcome.is_ok()) {
                *outcome = Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display())));
            }
        }
        outcomes
    }
}

/// Locks a new file. Returns `false` if a cleanup has locked or deleted it.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(file.metadata()?.nlink() > 0),
        Err(TryLockError::WouldBlock) => Ok(false),
        // Some network file systems have no locks.
        Err(TryLockError::Error(_)) => Ok(true),
    }
}

/// Deletes a file with a temporary name, unless a process is writing it. Returns whether it was
/// abandoned.
fn remove_if_abandoned(path: &Path, before: SystemTime, dry_run: bool) -> io::Result<bool> {
    // NFS locks only files that can be written.
    let Some(file) = if_exists(OpenOptions::new().write(true).open(path))? else { return Ok(false) };
    let metadata = file.metadata()?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(_)) if metadata.modified()? < before => {}
        Err(TryLockError::Error(_)) => return Ok(false),
    }
    // The writer may have renamed the file, and another writer may have created a file with the
    // same name.
    let file_id = |file: &Metadata| (file.dev(), file.ino());
    if if_exists(std::fs::symlink_metadata(path))?.is_none_or(|named| file_id(&named) != file_id(&metadata)) {
        return Ok(false);
    }
    if !dry_run {
        if_exists(std::fs::remove_file(path))?;
    }
    Ok(true)
}

/// Returns `None` for a file that no longer exists.
fn if_exists<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// File system calls that return after their effect is durable.
pub trait Disk: Send + Sync {
    /// Writes the content of a file to the device.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    fn sync_file(&self, file: &File) -> io::Result<()>;

    /// Renames a file to its final name, and replaces an existing file with that name.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Writes the entries of a folder to the device.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        use io::ErrorKind::{InvalidInput, NotFound, Unsupported};
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // The folder was deleted with its last blob.
            Err(error) if error.kind() == NotFound => Ok(()),
            // Some network file systems cannot sync folders.
            Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => Ok(()),
            result => result,
        }
    }
}
