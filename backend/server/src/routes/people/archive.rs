//! Reads the images of people from a ZIP archive that a caller sent.
//!
//! Everything in the archive is untrusted: names, declared sizes and the number of entries. No path
//! of the archive is a path of a file system, because nothing is extracted to files. The memory for
//! the list of entries is limited while it is read, each entry is inflated up to the limit of an
//! image, and all entries together up to a limit.
use crate::{ApiError, Code};
use bytes::Bytes;
use domain::EnrolmentOutcome;
use pipeline::people::import::list;
use pipeline::{ImportFile, Rejection};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc::Sender;
use vision::Format;
use zip::ZipArchive;

/// Maximum number of entries, including folders.
pub(super) const MAX_ENTRIES: usize = 10_000;
/// Maximum number of bytes that are read to find the entries. 10,000 entries with names of 200
/// bytes need 3 MB. An entry needs at least 46 bytes in the archive, and a few hundred bytes in
/// memory.
const MAX_DIRECTORY_BYTES: u64 = 4 << 20;
/// Maximum size of the list, in bytes.
const MAX_LIST_BYTES: u64 = 8 << 20;
/// Maximum size of all files of an archive together, in bytes.
const MAX_TOTAL_BYTES: u64 = 2 << 30;
/// Name of the list at the top of an archive.
pub(super) const LIST: &str = "subjects.csv";
/// Number of bytes that suffice to recognise an image.
const HEAD: usize = 200;

/// Limits of the files of an archive.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Maximum size of an image in bytes.
    pub(super) image: u64,
    /// Maximum size of all files together in bytes.
    pub(super) total: u64,
}

impl Limits {
    pub(super) fn new(image: usize) -> Self {
        Self { image: image as u64, total: MAX_TOTAL_BYTES }
    }
}

/// The reason why an archive cannot be used. It becomes a problem in the task of the request, which
/// knows the id of the request.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error("the archive cannot be read: {0}")]
    Bad(String),
    #[error("the archive has more than {MAX_ENTRIES} entries")]
    TooManyEntries,
}

impl From<ArchiveError> for ApiError {
    fn from(error: ArchiveError) -> Self {
        let message = error.to_string();
        match error {
            ArchiveError::Bad(_) => Self::new(Code::BadArchive, message),
            ArchiveError::TooManyEntries => {
                Self::new(Code::TooManyImages, message).allowed([format!("at most {MAX_ENTRIES} entries")])
            }
        }
    }
}

/// An archive whose entries were listed.
pub(super) struct Archive {
    zip: ZipArchive<Metered>,
    files: Vec<Listed>,
    limits: Limits,
}

/// A file of the archive.
struct Listed {
    file: String,
    name: Option<String>,
    /// Index of the entry, or the reason why it is not enrolled.
    entry: Result<usize, Rejection>,
    /// Whether the file was found in a folder. Such a file is ignored if it is not an image; a file
    /// that a list names is not.
    is_found: bool,
}

/// An entry with an allowed path.
struct Entry {
    index: usize,
    /// The path without the folder that contains everything.
    path: String,
    /// The reason why the entry cannot be read.
    problem: Option<&'static str>,
}

impl Archive {
    /// Lists the entries. Call it on a thread that may block.
    ///
    /// # Errors
    /// Fails for too many entries, and if the file is not a usable ZIP archive or its list cannot
    /// be read.
    pub(super) fn open(file: File, limits: Limits) -> Result<Self, ArchiveError> {
        let left = Arc::new(AtomicU64::new(MAX_DIRECTORY_BYTES));
        let metered = Metered { file: BufReader::new(file), left: left.clone() };
        let mut zip = ZipArchive::new(metered).map_err(|error| bad_archive(error.to_string()))?;
        if zip.len() > MAX_ENTRIES {
            return Err(ArchiveError::TooManyEntries);
        }
        if zip.has_duplicate_names() {
            return Err(bad_archive("several entries have the same name"));
        }
        let metadata = zip.metadata();
        let (mut entries, mut files) = (Vec::new(), Vec::new());
        for index in 0..zip.len() {
            let entry = metadata.entry(index).map_err(|error| bad_archive(error.to_string()))?;
            if entry.is_dir() {
                continue;
            }
            let problem = match () {
                () if entry.encrypted() => Some("the entry is encrypted"),
                () if entry.is_symlink() => Some("the entry is a symbolic link"),
                () => None,
            };
            match check_path(entry.name_raw()) {
                Ok(path) if is_ignored(path) => {}
                Ok(path) => entries.push(Entry { index, path: path.to_owned(), problem }),
                Err(detail) => files.push(Listed {
                    file: String::from_utf8_lossy(entry.name_raw()).into_owned(),
                    name: None,
                    entry: Err(Rejection::new(EnrolmentOutcome::BadName, detail)),
                    is_found: true,
                }),
            }
        }
        left.store(u64::MAX, Ordering::Relaxed);
        strip_common_folder(&mut entries);
        match entries.iter().find(|entry| entry.path == LIST) {
            Some(list) => files.extend(read_list(&mut zip, list.index, &entries)?),
            None => {
                files.extend(entries.into_iter().map(in_folders));
                files.sort_by(|a, b| a.file.cmp(&b.file));
            }
        }
        Ok(Self { zip, files, limits })
    }

    /// Reads the files and sends them in order. Ends early when the receiver is dropped. Call it on
    /// a thread that may block.
    pub(super) fn send(mut self, sender: &Sender<ImportFile>) {
        let mut left = self.limits.total;
        for Listed { file, name, entry, is_found } in std::mem::take(&mut self.files) {
            let content = match entry {
                Ok(index) => self.read(index, &mut left),
                Err(rejection) => Err(rejection),
            };
            if is_found && content.as_ref().is_ok_and(|bytes| !is_image(&file, bytes)) {
                continue;
            }
            if sender.blocking_send(ImportFile { file, name, content }).is_err() {
                return;
            }
        }
    }

    /// Inflates an entry. Reduces `left` by its size.
    fn read(&mut self, index: usize, left: &mut u64) -> Result<Bytes, Rejection> {
        if *left == 0 {
            let total = self.limits.total;
            return Err(Rejection::too_large(format!("the files before it have {total} bytes in total")));
        }
        let limit = self.limits.image;
        let too_large = || Rejection::too_large(format!("the file is longer than {limit} bytes"));
        let unreadable = |error: &dyn std::fmt::Display| Rejection::unreadable(error.to_string());
        let entry = self.zip.by_index(index).map_err(|error| unreadable(&error))?;
        // The declared size may be wrong, so the limit also applies to what is read.
        if entry.size() > limit {
            return Err(too_large());
        }
        let allowed = limit.min(*left);
        let mut bytes = Vec::new();
        let result = entry.take(allowed + 1).read_to_end(&mut bytes);
        *left = left.saturating_sub(bytes.len() as u64);
        result.map_err(|error| unreadable(&error))?;
        if bytes.len() as u64 <= allowed {
            return Ok(bytes.into());
        }
        if allowed == limit {
            return Err(too_large());
        }
        let total = self.limits.total;
        Err(Rejection::too_large(format!("the files of the archive have more than {total} bytes in total")))
    }
}

fn bad_archive(detail: impl Into<String>) -> ArchiveError {
    ArchiveError::Bad(detail.into())
}

/// Checks the path of an entry: UTF-8, relative, and with `/` between its parts.
fn check_path(name: &[u8]) -> Result<&str, &'static str> {
    let path = std::str::from_utf8(name).map_err(|_| "the path is not UTF-8")?;
    if path.chars().any(char::is_control) {
        return Err("the path contains control characters");
    }
    if path.contains('\\') {
        return Err("the path contains a backslash");
    }
    if path.split('/').any(|part| matches!(part.trim(), "" | "." | "..")) {
        return Err("the path is absolute, or has a part that is empty, `.` or `..`");
    }
    Ok(path)
}

/// Returns whether an entry is hidden, or was added by macOS.
fn is_ignored(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with('.') || part == "__MACOSX")
}

/// Returns whether a file of a folder counts as an image, by its content or by its name.
fn is_image(file: &str, bytes: &[u8]) -> bool {
    const EXTENSIONS: [&str; 12] =
        ["jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "avif", "heic", "jxl", "tif", "tiff"];
    let extension = file.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
        || Format::sniff(&bytes[..bytes.len().min(HEAD)]).is_some()
}

/// Removes a folder that contains everything: one that contains only folders, or the list. Many
/// programs add one.
fn strip_common_folder(entries: &mut [Entry]) {
    let Some((folder, _)) = entries.first().and_then(|entry| entry.path.split_once('/')) else { return };
    let prefix = format!("{folder}/");
    let rests: Option<Vec<&str>> = entries.iter().map(|entry| entry.path.strip_prefix(&prefix)).collect();
    let Some(rests) = rests else { return };
    if rests.contains(&LIST) || rests.iter().all(|rest| rest.contains('/')) {
        for entry in entries {
            entry.path.drain(..prefix.len());
        }
    }
}

fn in_folders(entry: Entry) -> Listed {
    let Entry { index, path: file, problem } = entry;
    let name = list::person_of_path(&file).map(str::to_owned);
    let entry = match (problem, &name) {
        (Some(problem), _) => Err(Rejection::unreadable(problem)),
        (None, None) => {
            let detail = "the file is not in the folder of a person";
            Err(Rejection::new(EnrolmentOutcome::BadName, detail))
        }
        (None, Some(_)) => Ok(index),
    };
    Listed { file, name, entry, is_found: true }
}

/// Returns the files that the list names. Its paths are relative to the list.
fn read_list(
    zip: &mut ZipArchive<Metered>,
    index: usize,
    entries: &[Entry],
) -> Result<Vec<Listed>, ArchiveError> {
    let mut text = Vec::new();
    let list = zip.by_index(index).map_err(|error| bad_archive(format!("{LIST}: {error}")))?;
    list.take(MAX_LIST_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| bad_archive(format!("{LIST}: {error}")))?;
    if text.len() as u64 > MAX_LIST_BYTES {
        return Err(bad_archive(format!("{LIST} is longer than {MAX_LIST_BYTES} bytes")));
    }
    let rows = list::parse(&text).map_err(|error| bad_archive(format!("{LIST}: {error}")))?;
    if rows.len() > MAX_ENTRIES {
        return Err(ArchiveError::TooManyEntries);
    }
    let by_path: HashMap<&str, &Entry> = entries.iter().map(|entry| (entry.path.as_str(), entry)).collect();
    let listed = |row: list::ListedFile| {
        let path = row.file.strip_prefix("./").unwrap_or(&row.file);
        let entry = match by_path.get(path) {
            Some(Entry { problem: Some(problem), .. }) => Err(Rejection::unreadable(*problem)),
            Some(entry) => Ok(entry.index),
            None => Err(Rejection::unreadable("the archive has no file with this path")),
        };
        Listed { file: row.file, name: Some(row.name), entry, is_found: false }
    };
    Ok(rows.into_iter().map(listed).collect())
}

/// A file of which a limited number of bytes is read. Otherwise, a list of millions of entries
/// could fill the memory.
struct Metered {
    file: BufReader<File>,
    /// Number of bytes that may be read. The limit is lifted when the entries were listed.
    left: Arc<AtomicU64>,
}

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::other("its list of entries is too long"));
        }
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read(&mut buffer[..length])?;
        if left < u64::MAX {
            self.left.store(left - read as u64, Ordering::Relaxed);
        }
        Ok(read)
    }
}

impl Seek for Metered {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.file.seek(position)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use tokio::sync::mpsc::channel;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn archive(names: &[&str], content: &[u8]) -> File {
        let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
        for name in names {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        }
        let mut file = zip.finish().unwrap();
        file.rewind().unwrap();
        file
    }

    fn read(file: File, limits: Limits) -> Vec<ImportFile> {
        let (sender, mut files) = channel(100);
        Archive::open(file, limits).unwrap().send(&sender);
        drop(sender);
        std::iter::from_fn(|| files.blocking_recv()).collect()
    }

    #[test]
    fn total_size_of_files_is_limited() {
        let file = archive(&["A/1.jpg", "A/2.jpg", "A/3.jpg", "A/4.jpg"], &[0; 1000]);
        let files = read(file, Limits { image: 1000, total: 2500 });
        let outcomes: Vec<_> =
            files.iter().map(|file| file.content.as_ref().map_err(|r| r.outcome)).collect();
        assert_eq!(outcomes[..2].iter().filter(|content| content.is_ok()).count(), 2);
        assert_eq!(outcomes[2..], [Err(EnrolmentOutcome::TooLarge), Err(EnrolmentOutcome::TooLarge)]);
    }

    #[test]
    fn only_folder_without_files_of_its_own_is_removed() {
        let people = |names: &[&str]| -> Vec<(String, Option<String>)> {
            let files = read(archive(names, b"x"), Limits { image: 100, total: 1000 });
            files.into_iter().map(|file| (file.file, file.name)).collect()
        };
        let person = |file: &str, name: &str| (file.to_owned(), Some(name.to_owned()));
        assert_eq!(
            people(&["all/Ada/1.jpg", "all/Ben/1.jpg", ".DS_Store"]),
            [person("Ada/1.jpg", "Ada"), person("Ben/1.jpg", "Ben")]
        );
        assert_eq!(
            people(&["Ada/1.jpg", "Ada/more/2.jpg"]),
            [person("Ada/1.jpg", "Ada"), person("Ada/more/2.jpg", "Ada")]
        );
    }

    #[test]
    fn reading_ends_when_receiver_is_gone() {
        let (sender, files) = channel(1);
        drop(files);
        let file = archive(&["A/1.jpg", "A/2.jpg"], b"x");
        Archive::open(file, Limits { image: 100, total: 1000 }).unwrap().send(&sender);
    }
}
