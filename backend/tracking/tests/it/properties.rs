//! Tests rules that hold for every input.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracking::track::MAX_COORDINATE;
use tracking::{Config, Observation, Track, Tracker, box_at};
use vision::Rect;

type Frames = Vec<(i64, Vec<Observation<usize>>)>;

/// Generates a number that is usually in `range`, and sometimes invalid.
fn value_in(range: std::ops::Range<f32>) -> impl Strategy<Value = f32> {
    prop_oneof![
        30 => range,
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -5.0, f32::MAX, 1e-40]),
    ]
}

fn observation() -> impl Strategy<Value = Observation<usize>> {
    let embedding = prop::option::of(prop::collection::vec(value_in(-1.0..1.0), 0..4));
    let numbers = (value_in(0.0..300.0), value_in(0.0..300.0), value_in(20.0..60.0), value_in(20.0..60.0));
    (numbers, value_in(0.0..1.0), prop::option::of(value_in(0.0..1.0)), embedding).prop_map(
        |((x, y, width, height), score, quality, embedding)| Observation {
            bbox: Rect { x, y, width, height },
            score,
            quality,
            embedding: embedding.map(Arc::from),
            payload: 0,
        },
    )
}

/// Generates frames with arbitrary gaps. Every observation has a number as its payload.
fn frames() -> impl Strategy<Value = Frames> {
    let gap = prop_oneof![
        20 => 1..250_000i64,
        5 => 250_000..5_000_000i64,
        1 => prop::sample::select(vec![0, -1_000_000, 40_000_000, i64::MAX / 8]),
    ];
    prop::collection::vec((gap, prop::collection::vec(observation(), 0..8)), 0..30).prop_map(|list| {
        let (mut at_us, mut number) = (0i64, 0);
        list.into_iter()
            .map(|(gap, mut observations)| {
                at_us = at_us.saturating_add(gap);
                for observation in &mut observations {
                    (observation.payload, number) = (number, number + 1);
                }
                (at_us, observations)
            })
            .collect()
    })
}

/// Returns settings with which every observation with a quality becomes a best shot.
fn config() -> Config {
    let min_shot_gap = Duration::ZERO;
    Config { max_best_shots: 1000, min_shot_gap, max_tracks: 12, max_observations: 6, ..Config::default() }
}

fn track(frames: &Frames) -> Vec<Track<usize>> {
    let mut tracker = Tracker::new(config());
    let mut tracks = Vec::new();
    for (at_us, observations) in frames {
        tracks.extend(tracker.push(*at_us, observations.clone()));
    }
    tracks.extend(tracker.finish());
    tracks
}

/// Returns whether the observation must be in a track.
fn must_have_track(observation: &Observation<usize>) -> bool {
    let b = observation.bbox;
    let is_usable = [b.x, b.y, b.width, b.height].iter().all(|v| v.is_finite() && v.abs() <= MAX_COORDINATE);
    is_usable
        && b.width > 0.0
        && b.height > 0.0
        && observation.score.is_finite()
        && observation.score >= config().high_score
}

proptest! {
    #[test]
    fn times_and_boxes_of_tracks_are_consistent(frames in frames()) {
        let tracks = track(&frames);
        let ids: BTreeSet<u64> = tracks.iter().map(|track| track.id).collect();
        prop_assert_eq!(ids.len(), tracks.len());
        prop_assert_eq!(ids, (0..tracks.len() as u64).collect::<BTreeSet<_>>());
        for track in &tracks {
            prop_assert!(track.ended_us >= track.started_us);
            prop_assert_eq!(track.boxes.len(), track.samples as usize);
            prop_assert_eq!(track.boxes[0].at_us, track.started_us);
            prop_assert_eq!(track.boxes[track.boxes.len() - 1].at_us, track.ended_us);
            prop_assert!(track.boxes.windows(2).all(|pair| pair[0].at_us < pair[1].at_us));
            prop_assert!(track.best_shots.windows(2).all(|pair| pair[0].quality >= pair[1].quality));
            let encoded = tracking::boxes::encode(&track.boxes);
            prop_assert!(tracking::boxes::decode(&encoded).is_ok());
        }
    }

    #[test]
    fn each_face_with_high_score_is_in_exactly_one_track(frames in frames()) {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for shot in track(&frames).iter().flat_map(|track| &track.best_shots) {
            *counts.entry(shot.payload).or_default() += 1;
        }
        prop_assert!(counts.values().all(|count| *count == 1));
        for (_, observations) in &frames {
            let required: Vec<_> = observations.iter().filter(|observation| must_have_track(observation)).collect();
            if required.len() <= config().max_observations {
                let mut with_quality = required.iter().filter(|observation| observation.quality.is_some_and(f32::is_finite));
                prop_assert!(with_quality.all(|observation| counts.contains_key(&observation.payload)));
            }
        }
    }

    #[test]
    fn observation_order_does_not_affect_tracks(frames in frames(), rotation in 0..8usize) {
        let mut rotated = frames.clone();
        for (_, observations) in &mut rotated {
            observations.reverse();
            let rotation = rotation % observations.len().max(1);
            observations.rotate_left(rotation);
        }
        let summary = |track: &Track<usize>| (track.id, track.boxes.clone(), track.samples);
        let (first, second) = (track(&frames), track(&rotated));
        prop_assert_eq!(first.iter().map(summary).collect::<Vec<_>>(), second.iter().map(summary).collect::<Vec<_>>());
    }
}

fn face(x: f32, score: f32) -> Observation<usize> {
    let bbox = Rect { x, y: 0.0, width: 40.0, height: 40.0 };
    Observation { bbox, score, quality: None, embedding: None, payload: 0 }
}

#[test]
fn track_ends_after_maximum_gap() {
    for (gap_us, expected) in [(2_040_000, 1), (2_080_000, 2)] {
        let mut tracker = Tracker::new(Config::default());
        tracker.push(-40_000, vec![face(0.0, 0.9)]);
        tracker.push(0, vec![face(0.0, 0.9)]);
        let mut ended = 0;
        for at_us in (40_000..gap_us).step_by(40_000) {
            ended += tracker.push(at_us, vec![]).len();
        }
        assert_eq!(ended, 0);
        ended += tracker.push(gap_us, vec![face(0.0, 0.9)]).len();
        assert_eq!(ended + tracker.finish().len(), expected, "after {gap_us} us");
    }
}

#[test]
fn shot_boundary_time_jump_or_long_gap_ends_all_tracks() {
    let mut tracker = Tracker::new(Config::default());
    assert!(tracker.push(1_000_000, vec![face(0.0, 0.9), face(100.0, 0.8)]).is_empty());
    assert_eq!(tracker.end_all().iter().map(|track| track.id).collect::<Vec<_>>(), [0, 1]);
    tracker.push(1_040_000, vec![face(0.0, 0.9)]);
    assert_eq!(tracker.push(1_040_000, vec![face(0.0, 0.9)])[0].id, 2);
    assert_eq!(tracker.push(40_000, vec![face(0.0, 0.9)])[0].id, 3);
    assert_eq!(tracker.push(60_000_000, vec![face(0.0, 0.9)])[0].id, 4);
}

#[test]
fn faces_with_low_scores_continue_but_do_not_start_tracks() {
    let mut tracker = Tracker::new(Config::default());
    assert!(tracker.push(0, vec![face(0.0, 0.4)]).is_empty());
    tracker.push(40_000, vec![face(0.0, 0.9)]);
    tracker.push(80_000, vec![face(1.0, 0.4)]);
    tracker.push(120_000, vec![face(2.0, 0.1)]);
    assert_eq!(tracker.finish()[0].samples, 2);
}

#[test]
fn limits_faces_per_frame_and_boxes_per_track() {
    let mut tracker = Tracker::new(Config { max_boxes: 100, ..Config::default() });
    for i in 0..1000i64 {
        tracker.push(i * 40_000, vec![face(i as f32 * 0.5, 0.9)]);
    }
    let still_face = |i: usize| face(1e4 + 100.0 * i as f32, 0.6 + i as f32 * 1e-4);
    tracker.push(40_000_000, (0..600).map(still_face).collect());
    let tracks = tracker.finish();
    assert_eq!(tracks.len(), 501);
    assert_eq!((tracks[0].samples, tracks[0].boxes[0].at_us), (1000, 0));
    assert!(tracks[0].boxes.len() <= 100 && box_at(&tracks[0].boxes, 20_000_000).unwrap().x == 250.0);
}
