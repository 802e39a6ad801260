//! Extracts a model from a zip archive.
use super::file::{part_path, verify_and_rename};
use inference::ModelFile;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use zip::ZipArchive;

/// Maximum size of a model without a known length. All known models are smaller.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// Extracts `member` to `target`. `member` is the path in the archive, or a file name in any of its
/// folders.
pub(super) fn extract(archive: &Path, member: &str, target: &Path, file: &ModelFile) -> Result<(), String> {
    let say = |error: &dyn std::fmt::Display| format!("{}: {error}", archive.display());
    let mut zip = ZipArchive::new(File::open(archive).map_err(|e| say(&e))?).map_err(|error| say(&error))?;
    let names: Vec<String> =
        zip.file_names().filter_map(|name| name.ok().map(std::borrow::Cow::into_owned)).collect();
    let inside = |name: &&String| name.as_str() == member;
    let anywhere = |name: &&String| name.rsplit('/').next() == Some(member);
    let name = names.iter().find(inside).or_else(|| names.iter().find(anywhere));
    let name = name.ok_or_else(|| format!("the archive does not contain {member}"))?;
    let limit = file.bytes.unwrap_or(MAX_FILE_BYTES);
    let part = part_path(target, &file.sha256);
    let entry = zip.by_name(name).map_err(|error| say(&error))?;
    let mut sink = File::create(&part).map_err(|error| say(&error))?;
    let written = io::copy(&mut entry.take(limit + 1), &mut sink).map_err(|error| say(&error))?;
    if written > limit {
        drop(sink);
        std::fs::remove_file(&part).map_err(|error| say(&error))?;
        return Err(format!("{member} is longer than {limit} bytes"));
    }
    verify_and_rename(&part, target, &file.sha256)
}
