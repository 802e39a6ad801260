//! What the tests of the binary share.
#![allow(clippy::unwrap_used, dead_code, missing_docs, unreachable_pub)]
#[cfg(unix)]
pub mod bucket;
pub mod files;
pub mod process;
#[cfg(unix)]
pub mod service;

/// Says that something is missing and that the test is skipped; a failure where `variable` is 1.
pub fn skip(variable: &str, missing: &str, remedy: &str) {
    let required = std::env::var(variable).as_deref() == Ok("1");
    assert!(!required, "{variable}=1, but {missing} is not there; {remedy}");
    eprintln!("skipped: {missing} is not there; {remedy} ({variable}=1 makes this a failure)");
}
