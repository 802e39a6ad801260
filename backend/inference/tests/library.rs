//! Tests that invalid shared libraries cause clear errors. It is a single test, because a process
//! can load only one library.
#![allow(clippy::unwrap_used)]
mod common;
use common::build_fake_library;
use inference::StartError;
use inference::runtime::Runtime;
use std::path::Path;

fn reason(path: &Path) -> String {
    match Runtime::load(Some(path)).unwrap_err() {
        StartError::Library { path: actual, reason } => {
            assert_eq!(Path::new(&actual).file_name(), path.file_name(), "the error names the file");
            reason
        }
        error => panic!("{error}"),
    }
}

#[test]
fn invalid_library_error_names_file_and_valid_one_loads() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();

    let missing = reason(&folder.join("nowhere.so"));
    assert!(missing.contains("No such file"), "{missing}");
    assert!(reason(folder).contains("not a file"));
    let text = folder.join("text.so");
    std::fs::write(&text, "this is not a shared library").unwrap();
    let text = reason(&text);
    assert!(text.contains("text.so"), "{text}");
    let old = reason(&build_fake_library(folder, "1.18.0"));
    assert!(
        old.contains("version 1.18.0") && old.contains("1.23 or newer") && old.contains("./scripts/setup"),
        "the error must contain the version, the required version and the script: {old}"
    );

    let library = testing::library();
    let runtime = Runtime::load(Some(&library)).unwrap();
    assert_eq!(runtime.path(), library.canonicalize().unwrap());
    assert!(runtime.version().starts_with("1."), "{}", runtime.version());
    Runtime::load(Some(&library)).unwrap();

    let copy = folder.join("libonnxruntime-copy.so");
    std::fs::copy(&library, &copy).unwrap();
    let second = reason(&copy);
    assert!(second.contains("only one library"), "{second}");
}
