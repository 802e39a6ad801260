//! Files without a name, which are passed to a decoder.

use std::fs::File;
use std::io::{self, Write};

/// Returns a file with these bytes that is only in memory.
#[cfg(target_os = "linux")]
pub(crate) fn file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Returns a temporary file with these bytes, because other systems have no files in memory.
#[cfg(not(target_os = "linux"))]
pub(crate) fn file(bytes: &[u8]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    Ok(file)
}
