//! Containers and system services against the code: a machine without a container engine can tell that much.
#![allow(clippy::unwrap_used, missing_docs)]
mod compose;
mod dockerfiles;
mod units;

use app::cli::Cli;
use clap::Parser;
use std::path::PathBuf;

/// Variables of glibc's allocator, which the images and the units set.
const ALLOCATOR: [&str; 2] = ["MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_"];

/// The checkout.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the checkout.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Whether the program takes these arguments.
fn accepts<S: AsRef<str>>(arguments: &[S]) -> Result<(), String> {
    let words = std::iter::once("facecrawl").chain(arguments.iter().map(AsRef::as_ref));
    Cli::try_parse_from(words).map(|_| ()).map_err(|error| error.to_string())
}
