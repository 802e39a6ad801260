//! Checks the files for containers and system services against the code. No container engine is
//! needed.
mod compose;
mod dockerfiles;
mod units;

use app::cli::Cli;
use clap::Parser;
use testing::root;

/// Reads a file of the checkout.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns an error if the program does not accept these arguments.
fn accepts<S: AsRef<str>>(arguments: &[S]) -> Result<(), String> {
    let words = std::iter::once("facecrawl").chain(arguments.iter().map(AsRef::as_ref));
    Cli::try_parse_from(words).map(|_| ()).map_err(|error| error.to_string())
}
