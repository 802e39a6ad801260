//! Tests of the crate in one program, so that they are linked once. Tests that need their own
//! process are in the parent folder.
#![allow(clippy::unwrap_used)]

mod decode;
mod encode;
mod enhance;
mod geometry;
mod oracle;
mod probe;

/// Returns the names and the contents of the images in the folder `fixtures`, by name.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension != "py"));
    paths.sort();
    let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    paths.into_iter().map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}
