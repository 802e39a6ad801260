//! Lists and searches files in folders that a service changes concurrently, also inside gzip data.
use flate2::read::GzDecoder;
use std::collections::HashSet;
use std::io::{ErrorKind, Read};
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

/// Returns whether `content` contains `needle`. This crate is optimised, unlike the tests.
pub fn contains_bytes(content: &[u8], needle: &[u8]) -> bool {
    content.windows(needle.len()).any(|window| window == needle)
}

/// Returns whether `content` contains one of several byte strings of equal length.
pub fn contains_any<const N: usize>(content: &[u8], needles: &HashSet<[u8; N]>) -> bool {
    content.array_windows::<N>().any(|window| needles.contains(window))
}

/// The first bytes of a gzip member: magic number and compression method.
const GZIP: [u8; 3] = [0x1f, 0x8b, 0x08];

/// Returns the content, followed by the decompressed gzip members in it. Also finds members written
/// as hexadecimal digits, as in a Postgres dump. If a member is truncated or damaged, the result
/// contains its readable part.
pub fn with_decompressed_gzip(content: impl Into<Vec<u8>>) -> Vec<u8> {
    let mut content = content.into();
    let mut members = Vec::new();
    let positions_of = |content: &[u8], mark: &[u8]| -> Vec<usize> {
        let windows = content.windows(mark.len()).enumerate();
        windows.filter(|(_, window)| *window == mark).map(|(at, _)| at).collect()
    };
    for at in positions_of(&content, &GZIP) {
        decompress(&content[at..], &mut members);
    }
    for at in positions_of(&content, hex::encode(GZIP).as_bytes()) {
        let digits = content[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if let Ok(member) = hex::decode(&content[at..at + digits / 2 * 2]) {
            decompress(&member, &mut members);
        }
    }
    content.extend(members);
    content
}

fn decompress(member: &[u8], into: &mut Vec<u8>) {
    into.push(b'\n');
    // The bytes read before an error are kept.
    let _truncated = GzDecoder::new(member).read_to_end(into);
}
