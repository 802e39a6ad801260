//! Damaged files: whatever the bytes, decoding answers with pixels or an error, within its limits.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use vision::{Limits, decode};

/// Mutations of each fixture.
const ROUNDS: u64 = 300;

/// xorshift64*: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit.max(1)
    }
}

fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(4) {
        // Headers decide the most, so that half of the damage goes there.
        let reach = if random.below(2) == 0 { out.len().min(64) } else { out.len() };
        let at = random.below(reach);
        match random.below(7) {
            0 => out.truncate(at.max(1)),
            1 => out[at] ^= 1 << random.below(8),
            2 => out[at] = random.next() as u8,
            3 => out[at] = [0, 0xFF, 0x7F, 0x80][random.below(4)],
            4 => {
                let end = (at + 1 + random.below(8)).min(out.len());
                out.drain(at..end);
            }
            5 => {
                let piece = out[at..(at + 1 + random.below(16)).min(out.len())].to_vec();
                let to = random.below(out.len());
                out.splice(to..to, piece);
            }
            _ => {
                let end = (at + 4).min(out.len());
                out[at..end].fill(0xFF);
            }
        }
        if out.is_empty() {
            out.push(0);
        }
    }
    out
}

#[test]
fn thousands_of_damaged_files() {
    let limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_side: 4096 };
    let mut outcomes = BTreeMap::<&str, usize>::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e != "py"));
    files.sort();
    assert!(files.len() >= 20);
    for (index, path) in files.iter().enumerate() {
        let bytes = std::fs::read(path).unwrap();
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ index as u64);
        for _ in 0..ROUNDS {
            let outcome = match decode(&damage(&bytes, &mut random), &limits) {
                Ok(decoded) => {
                    let (width, height) = (decoded.frame.width(), decoded.frame.height());
                    assert!(u64::from(width) * u64::from(height) <= limits.max_pixels);
                    "decoded"
                }
                Err(error) => error.code(),
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    // The damage must reach all of these, or it tests nothing.
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
