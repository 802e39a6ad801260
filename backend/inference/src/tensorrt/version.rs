//! Finds the version of the TensorRT library that the process has loaded.
use std::path::{Path, PathBuf};

/// Start of the file name of TensorRT's main library.
const LIBRARY: &str = "libnvinfer.so";

/// Returns TensorRT's version. The provider must be loaded.
pub(crate) fn library_version() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    in_maps(&maps).map_or_else(|| "unknown".to_owned(), |path| of_file(&path))
}

/// Returns the library's file from the process's memory mappings (proc(5): the sixth column).
fn in_maps(maps: &str) -> Option<PathBuf> {
    maps.lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .map(Path::new)
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LIBRARY)))
        .map(Path::to_owned)
}

/// Returns the version from a name such as `libnvinfer.so.10.9.0`. Some packages have only
/// `libnvinfer.so.10`; for these the file's size is added.
fn of_file(path: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let version = name.strip_prefix(LIBRARY).unwrap_or_default().trim_start_matches('.').to_owned();
    match std::fs::metadata(&real) {
        Ok(file) if version.split('.').count() < 3 => format!("{version} ({} bytes)", file.len()),
        _ => version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_mapped_file() {
        let maps = "7f00-7f01 r--p 00000000 08:01 11 /usr/lib/libc.so.6\n\
             7f02-7f03 r-xp 00000000 08:01 12 /nowhere/libnvinfer.so.10.9.0\n\
             7f04-7f05 r-xp 00000000 08:01 13 /nowhere/libnvinfer_plugin.so.10\n";
        let path = in_maps(maps);
        assert_eq!(path.as_deref(), Some(Path::new("/nowhere/libnvinfer.so.10.9.0")));
        assert_eq!(of_file(Path::new("/nowhere/libnvinfer.so.10.9.0")), "10.9.0");
        assert_eq!(in_maps("7f00-7f01 rw-p 00000000 00:00 0\n"), None);
    }
}
