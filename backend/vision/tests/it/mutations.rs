//! Tests damaged files: for any bytes, decoding returns pixels within the limits or an error.

use std::collections::BTreeMap;
use std::path::Path;
use testing::damage::{Random, damage};
use vision::{Limits, decode};

const ROUNDS: u64 = 300;

#[test]
fn thousands_of_damaged_files() {
    let limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_side: 4096 };
    let mut outcomes = BTreeMap::<String, usize>::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e != "py"));
    files.sort();
    assert!(files.len() >= 20);
    for (index, path) in files.iter().enumerate() {
        let bytes = std::fs::read(path).unwrap();
        let mut random = Random::new(index as u64);
        for _ in 0..ROUNDS {
            let outcome = match decode(&damage(&bytes, &mut random), &limits) {
                Ok(decoded) => {
                    let (width, height) = (decoded.frame.width(), decoded.frame.height());
                    assert!(u64::from(width) * u64::from(height) <= limits.max_pixels);
                    "decoded".to_owned()
                }
                Err(error) => error.reason().to_string(),
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    // The damage must cause all of these outcomes. Otherwise, the test has no value.
    for outcome in ["decoded", "corrupt_image", "not_an_image", "image_too_large"] {
        assert!(outcomes.contains_key(outcome), "{outcomes:?}");
    }
}

#[test]
fn every_truncation_of_every_fixture() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for length in 0..bytes.len().min(1500) {
            let _ = decode(&bytes[..length], &Limits::default());
        }
    }
}
