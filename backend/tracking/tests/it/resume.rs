//! A film that is resumed at a checkpoint gives the same tracks as one run.

use crate::scene::{Faults, NO_FAULTS, Person, Scene, draw, person, track};
use tracking::{Config, Track, Tracker};

/// People who come and go, so that tracks end at any time.
fn visitors() -> Vec<Person> {
    (0..12u64)
        .map(|i| {
            let start = 1.7 * i as f64;
            let path =
                move |t: f64| (150.0 * (i + 1) as f64 + 30.0 * (t * 1.1).sin(), 300.0 + 20.0 * t.cos(), 70.0);
            Person { shown: (start, start + 3.0 + (i % 4) as f64 * 2.0), ..person(i, path) }
        })
        .collect()
}

fn summary(track: &Track<u64>) -> (i64, i64, u32, Vec<(i64, u64)>) {
    let shots = track.best.iter().map(|shot| (shot.at_us, shot.payload)).collect();
    (track.started_us, track.ended_us, track.samples, shots)
}

/// Runs up to the frame at `checkpoint`, then resumes with a new tracker, as a worker does after a
/// crash.
fn resumed(scene: &Scene, checkpoint: usize) -> Vec<Track<u64>> {
    let mut tracker = Tracker::new(Config::default());
    let mut stored = Vec::new();
    for (at_us, seen) in &scene.frames[..=checkpoint] {
        stored.extend(tracker.push(*at_us, seen.clone()));
    }
    let checkpoint_us = scene.frames[checkpoint].0;
    let resume_us = tracker.oldest_open_us().unwrap_or(checkpoint_us + 1);
    let mut tracker = Tracker::starting_at(Config::default(), stored.len() as u64);
    for (at_us, seen) in scene.frames.iter().filter(|(at_us, _)| *at_us >= resume_us) {
        let ended = tracker.push(*at_us, seen.clone());
        if *at_us > checkpoint_us {
            stored.extend(ended);
        }
    }
    stored.extend(tracker.finish());
    stored
}

#[test]
fn a_checkpoint_at_any_frame_changes_nothing() {
    let scene = draw(&visitors(), 5.0, 30.0, Faults { missed: 0.1, ..NO_FAULTS }, 4);
    let mut expected: Vec<_> = track(&scene, Config::default()).iter().map(summary).collect();
    expected.sort();
    for checkpoint in 0..scene.frames.len() {
        let mut found: Vec<_> = resumed(&scene, checkpoint).iter().map(summary).collect();
        found.sort();
        assert_eq!(found, expected, "checkpoint at frame {checkpoint}");
    }
}
