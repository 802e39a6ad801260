//! From frames to people: tracks, shots, splits and numbers.

use crate::scene::{Faults, NO_FAULTS, Person, draw, person, track};
use std::collections::BTreeMap;
use tracking::people::{Appearance, number_people};
use tracking::{Config, Track, split};

const THRESHOLD: f32 = 0.4;

/// Four people who are in the picture for 4 of every 12 seconds, so that each has several tracks.
fn visitors() -> Vec<Person> {
    (0..4u64)
        .map(|i| {
            let hidden =
                (0..5).map(|k| 12.0 * f64::from(k) + 2.0 * i as f64).map(|t| (t + 4.0, t + 12.0)).collect();
            let shown = (2.0 * i as f64, 52.0);
            Person {
                shown,
                hidden,
                ..person(i, move |t| (300.0 * (i + 1) as f64 + 20.0 * t.sin(), 300.0, 80.0))
            }
        })
        .collect()
}

#[test]
fn visits_of_one_person_get_one_number() {
    let scene = draw(&visitors(), 5.0, 60.0, Faults { embeddings: Some(0.7), missed: 0.1, ..NO_FAULTS }, 1);
    let tracks = track(&scene, Config::for_threshold(THRESHOLD));
    assert!(tracks.len() >= 16, "{} tracks", tracks.len());
    let appearances: Vec<Appearance> = tracks.iter().map(Appearance::from).collect();
    let numbers = number_people(&appearances, THRESHOLD + 0.1).unwrap();
    let mut known = BTreeMap::new();
    for (track, number) in tracks.iter().zip(numbers) {
        assert_eq!(*known.entry(track.best[0].payload).or_insert(number), number);
    }
    assert_eq!(known.len(), 4);
}

/// A hard cut that nobody reported: another face at the same place. The embeddings are computed
/// for best shots only, after the track ended.
#[test]
fn a_track_of_two_people_is_split_where_they_change() {
    let mut people = vec![person(1, |_| (300.0, 300.0, 80.0)), person(2, |_| (310.0, 305.0, 84.0))];
    (people[0].shown, people[1].shown) = ((0.0, 6.0), (6.0, 12.0));
    let scene = draw(&people, 10.0, 12.0, Faults { embeddings: Some(0.5), ..NO_FAULTS }, 1);
    let known: BTreeMap<(i64, u64), _> = scene
        .frames
        .iter()
        .flat_map(|(at, seen)| seen.iter().map(|s| ((*at, s.payload), s.embedding.clone())))
        .collect();
    let mut blind = scene;
    for observation in blind.frames.iter_mut().flat_map(|(_, seen)| seen) {
        observation.embedding = None;
    }
    let config = Config { best_shots: 6, ..Config::for_threshold(THRESHOLD) };
    let mut tracks: Vec<Track<u64>> = track(&blind, config);
    assert_eq!(tracks.len(), 1);
    for shot in &mut tracks[0].best {
        shot.embedding = known[&(shot.at_us, shot.payload)].clone();
    }
    let parts = split(tracks.remove(0), THRESHOLD, || 1);
    assert_eq!(parts.len(), 2);
    for (part, identity) in parts.iter().zip([1, 2]) {
        assert!(part.best.iter().all(|shot| shot.payload == identity));
    }
    assert!(parts[1].started_us.abs_diff(6_000_000) < 1_500_000);
}
