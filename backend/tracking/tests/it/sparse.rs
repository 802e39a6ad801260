//! Scenes with seconds between two frames, where only similarity can associate faces.

use crate::scene::{Faults, NO_FAULTS, Person, draw, measure, person, track};
use tracking::Config;

const SECONDS: f64 = 120.0;

/// Six people who change places all the time.
fn moving() -> Vec<Person> {
    (0..6u64)
        .map(|i| {
            let (phase, pace) = (i as f64, 1.0 + 0.17 * i as f64);
            let path = move |t: f64| {
                (
                    900.0 + 600.0 * (t * 0.9 * pace + phase).sin(),
                    400.0 + 200.0 * (t * 0.7 * pace + phase).cos(),
                    90.0,
                )
            };
            Person { shown: (4.0 * i as f64, SECONDS - 3.0 * i as f64), ..person(i, path) }
        })
        .collect()
}

/// Six people who sit still.
fn seated() -> Vec<Person> {
    (0..6u64)
        .map(|i| person(i, move |t| (200.0 + 250.0 * i as f64 + 10.0 * (t + i as f64).sin(), 400.0, 90.0)))
        .collect()
}

#[test]
fn embeddings_associate_faces_that_move_far() {
    for fps in [0.2, 0.5, 1.0, 3.0] {
        for seed in 1..6 {
            let faults = Faults { missed: 0.05, false_faces: 0.2, embeddings: Some(0.8), ..NO_FAULTS };
            let scene = draw(&moving(), fps, SECONDS, faults, seed);
            let figures = measure(&scene, &track(&scene, Config::default()));
            let idf1 = figures.counts.idf1();
            println!(
                "moving {fps} fps: recall {:.3}, IDF1 {idf1:.3}, {} tracks",
                figures.recall, figures.tracks
            );
            assert!(figures.recall >= 0.98 && idf1 >= 0.9);
        }
    }
}

#[test]
fn overlap_associates_faces_without_embeddings() {
    for fps in [0.5, 2.0] {
        let scene = draw(&seated(), fps, SECONDS, Faults { missed: 0.05, ..NO_FAULTS }, 1);
        let figures = measure(&scene, &track(&scene, Config::default()));
        println!("seated {fps} fps: recall {:.3}, IDF1 {:.3}", figures.recall, figures.counts.idf1());
        assert!(figures.recall >= 0.98 && figures.counts.idf1() >= 0.9);
    }
}

#[test]
fn seated_people_who_exchange_places_are_not_confused() {
    let people = [
        person(1, |t| (if t < 61.0 { 300.0 } else { 900.0 }, 400.0, 90.0)),
        person(2, |t| (if t < 61.0 { 900.0 } else { 300.0 }, 400.0, 90.0)),
    ];
    let scene = draw(&people, 0.5, SECONDS, Faults { embeddings: Some(0.7), ..NO_FAULTS }, 1);
    let figures = measure(&scene, &track(&scene, Config::default()));
    assert_eq!((figures.tracks, figures.counts.idf1()), (2, 1.0));
}
