//! Runs the checks of the fuzz targets with random damage instead of coverage, for toolchains
//! without a fuzzer.
//!
//! `cargo run --release -p facecrawl-vision --example mutate -- SECONDS SEED FILE...`. Damaged
//! files that still decode are added to the seeds, so that damage accumulates. The program prints
//! the count of each outcome at the end. A failed check panics with the number of the round.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testing::damage::{Random, damage};
use vision::{DecodeError, Limits, PerceptualHashes, View, crop, decode};

const LIMITS: Limits = Limits { max_bytes: 1 << 20, max_pixels: 1 << 20, max_side: 4096 };
/// Maximum number of seeds besides the files.
const KEPT: usize = 4000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, seed, files @ ..] = arguments.as_slice() else {
        panic!("usage: mutate SECONDS SEED FILE...")
    };
    let until = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let mut random = Random::new(seed.parse().unwrap());
    let mut seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let mut outcomes = BTreeMap::<String, u64>::new();
    let mut slowest = Duration::ZERO;
    let mut round = 0_u64;
    while Instant::now() < until {
        round += 1;
        let bytes = damage(&seeds[random.below(seeds.len())], &mut random);
        let started = Instant::now();
        let outcome = match decode(&bytes, &LIMITS) {
            Ok(decoded) => {
                let size = (decoded.frame.width(), decoded.frame.height());
                assert!(u64::from(size.0) * u64::from(size.1) <= LIMITS.max_pixels, "round {round}");
                let hashes = PerceptualHashes::of(&decoded.frame);
                assert!(hashes.is_near(&PerceptualHashes::of(&crop::mirror(&crop::mirror(&decoded.frame)))));
                assert!(crop::thumbnail(&decoded.frame, 64).width() <= 64, "round {round}");
                assert!(!View::tiles(size, (640, 640), 1.0).is_empty(), "round {round}");
                if seeds.len() < files.len() + KEPT {
                    seeds.push(bytes);
                }
                "decoded".to_owned()
            }
            Err(DecodeError::Corrupt { reason, .. })
                if reason.contains("the decoder failed unexpectedly") =>
            {
                panic!("round {round}: a decoder panicked on {} bytes: {bytes:02x?}", bytes.len())
            }
            Err(error) => error.reason().to_string(),
        };
        slowest = slowest.max(started.elapsed());
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!("{round} rounds, slowest {slowest:?}: {outcomes:?}");
}
