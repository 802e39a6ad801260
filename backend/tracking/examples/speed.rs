//! Prints how long the tracker needs for a frame, and how long the numbers of people take.
//!
//! `cargo run -p facecrawl-tracking --example speed [people]`. The crate is optimised in every
//! profile. With `people`, only the numbers of 200 people are computed, once.
#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Instant;
use tracking::people::{Appearance, MAX_TRACKS, number_people};
use tracking::{Config, Observation, Tracker};
use vision::Rect;

/// Length of an embedding of ArcFace.
const LENGTH: usize = 512;

/// Returns a number from -1 to 1 that depends on the arguments only.
fn noise(a: usize, b: usize) -> f32 {
    let mut z =
        (a as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (b as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

fn embedding(person: usize, sample: usize) -> Arc<[f32]> {
    let values: Vec<f32> =
        (0..LENGTH).map(|i| noise(person, i) + 0.6 * noise(sample + 1_000_000, i)).collect();
    let length = values.iter().map(|v| v * v).sum::<f32>().sqrt();
    values.iter().map(|v| v / length).collect()
}

/// Prints the mean and the longest time of a frame with `faces` faces. One of ten is missed.
fn frames(faces: usize, gap_us: i64, has_embeddings: bool) {
    let known: Vec<Arc<[f32]>> = (0..faces).map(|i| embedding(i, i)).collect();
    let mut tracker = Tracker::new(Config::default());
    let (mut times, mut tracks) = (Vec::new(), 0);
    for frame in 0..250usize {
        let seen: Vec<Observation<()>> = (0..faces)
            .filter(|i| noise(frame, *i) > -0.8)
            .map(|i| Observation {
                bbox: Rect {
                    x: (i % 25) as f32 * 70.0 + frame as f32 + 2.0 * noise(frame, i + 1000),
                    y: (i / 25) as f32 * 70.0 + 2.0 * noise(frame, i + 2000),
                    width: 50.0,
                    height: 60.0,
                },
                score: 0.9,
                quality: Some(0.5),
                embedding: has_embeddings.then(|| known[i].clone()),
                payload: (),
            })
            .collect();
        let start = Instant::now();
        tracks += tracker.push(frame as i64 * gap_us, seen).len();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    tracks += tracker.finish().len();
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let longest = times.iter().copied().fold(0.0, f64::max);
    let embeddings = if has_embeddings { "with" } else { "without" };
    println!(
        "{faces:4} faces, {:4} ms, {embeddings:7} embeddings: mean {mean:7.0} us, longest {longest:7.0} us, {tracks} tracks",
        gap_us / 1000
    );
}

/// Prints the time for tracks of `people` people, with three embeddings each.
fn people(tracks: usize, people: usize) {
    let appearances: Vec<Appearance> = (0..tracks)
        .map(|i| Appearance {
            started_us: i as i64 * 1_000_000,
            ended_us: i as i64 * 1_000_000 + 900_000,
            embeddings: (0..3).map(|k| embedding(i % people, i * 3 + k)).collect(),
        })
        .collect();
    let start = Instant::now();
    let numbers = number_people(&appearances, 0.5).unwrap_or_default();
    let found = numbers.iter().flatten().max().map_or(0, |last| last + 1);
    println!(
        "{tracks} tracks of {people} people: {:.2} s, {found} people found",
        start.elapsed().as_secs_f64()
    );
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("people") {
        return people(MAX_TRACKS, 200);
    }
    for faces in [20, 500] {
        frames(faces, 40_000, false);
        frames(faces, 40_000, true);
        frames(faces, 2_000_000, true);
    }
    for count in [1, 200, MAX_TRACKS] {
        people(MAX_TRACKS, count);
    }
}
