//! Tests that the default pack finds and distinguishes the synthetic people of other tests.
use crate::common::*;
use inference::{Embedding, Engine, Priority};
use std::sync::Arc;
use vision::Frame;

/// Images with one face each, and the person's name.
const PORTRAITS: [(&str, &str); 15] = [
    ("ada.jpg", "ada"),
    ("ada_2.jpg", "ada"),
    ("ada_3.jpg", "ada"),
    ("ada_4.jpg", "ada"),
    ("ada_small.jpg", "ada"),
    ("ada_wide.jpg", "ada"),
    ("ben.jpg", "ben"),
    ("ben_2.jpg", "ben"),
    ("cora.jpg", "cora"),
    ("cora_2.jpg", "cora"),
    ("dan.jpg", "dan"),
    ("dan_2.jpg", "dan"),
    ("dan_3.jpg", "dan"),
    ("eve.jpg", "eve"),
    ("finn.jpg", "finn"),
];

async fn embeddings(engine: &Engine, picture: &Frame) -> Vec<Embedding> {
    let mut found = Vec::new();
    for face in detect_at_640(engine, picture).await {
        let chip = vision::norm_crop(picture, &face.landmarks, 112).unwrap();
        found.push(engine.embed(Arc::new(chip), Priority::Background).await.unwrap().output);
    }
    found
}

#[testing::test]
async fn the_default_pack_finds_drawn_people_and_tells_them_apart() {
    let engine = default_engine();
    for (name, faces) in [
        ("two_people.jpg", 2),
        ("ada_and_ben.jpg", 2),
        ("small_pair.jpg", 2),
        ("group.jpg", 10),
        ("view.jpg", 0),
    ] {
        assert_eq!(detect_at_640(&engine, &drawing(name)).await.len(), faces, "{name}");
    }
    let mut known = Vec::new();
    for (name, person) in PORTRAITS {
        let mut found = embeddings(&engine, &drawing(name)).await;
        assert_eq!(found.len(), 1, "{name}");
        known.push((name, person, found.remove(0)));
    }
    let (mut same, mut different) = (Vec::new(), Vec::new());
    for (at, (name, person, embedding)) in known.iter().enumerate() {
        for (other_name, other_person, other) in &known[..at] {
            let pair = (embedding.similarity(other).unwrap(), *name, *other_name);
            if person == other_person { same.push(pair) } else { different.push(pair) }
        }
    }
    same.sort_by(|a, b| a.0.total_cmp(&b.0));
    different.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("same: {same:#?}\ndifferent: {:#?}", &different[..30]);
    let threshold = engine.embedder().match_threshold;
    assert!(same[0].0 > threshold + 0.1, "{:?}", &same[..5]);
    assert!(different[0].0 < threshold - 0.02, "{:?}", &different[..5]);
}
