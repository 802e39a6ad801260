//! Scenes with dense frames where faces are, and sparse frames without faces.

use crate::scene::{Faults, NO_FAULTS, Person, draw, measure, person, track};
use tracking::Config;

/// People who come one after the other, with pauses without anybody.
fn visitors() -> Vec<Person> {
    (0..8u64)
        .map(|i| {
            let (start, speed) = (7.3 * i as f64, 40.0 + 10.0 * (i % 3) as f64);
            let path = move |t: f64| (200.0 + speed * (t - start), 300.0 + 10.0 * (t * 1.3).sin(), 80.0);
            Person { shown: (start, start + 2.6 + 0.9 * (i % 3) as f64), ..person(i, path) }
        })
        .collect()
}

#[test]
fn frames_without_faces_can_be_left_out() {
    for seed in 1..6 {
        let mut scene = draw(&visitors(), 4.0, 62.0, Faults { missed: 0.05, ..NO_FAULTS }, seed);
        let expected = measure(&scene, &track(&scene, Config::default()));
        // As with closer looks: frames are dense from the look before a face to the look after it.
        let looks: Vec<usize> = (0..scene.frames.len()).step_by(8).collect();
        let has_face = |look: usize| scene.frames.get(look).is_some_and(|(_, seen)| !seen.is_empty());
        let is_near = |at: usize| {
            let look = at / 8 * 8;
            has_face(look) || !at.is_multiple_of(8) && has_face(look + 8)
        };
        let kept: Vec<bool> = (0..scene.frames.len()).map(|at| looks.contains(&at) || is_near(at)).collect();
        let mut kept = kept.into_iter();
        scene.frames.retain(|_| kept.next().unwrap_or(true));
        assert!(scene.frames.len() < 200, "{}", scene.frames.len());
        let times: Vec<i64> = scene.frames.iter().map(|(at_us, _)| *at_us).collect();
        scene.truth.retain(|sample| times.binary_search(&sample.at_us).is_ok());
        let found = measure(&scene, &track(&scene, Config::default()));
        println!("recall {:.3}, IDF1 {:.3}, {} tracks", found.recall, found.counts.idf1(), found.tracks);
        assert!(found.recall >= expected.recall && found.counts.idf1() >= 0.95);
        assert_eq!(found.tracks, expected.tracks);
    }
}
