//! Tests that the default pack finds and distinguishes the synthetic people of the gallery and of
//! the standard film.
use crate::common::*;
use inference::{Embedding, Engine};
use testing::film::{Codec, Container, Encoding, Film};
use testing::people::lookalike_of;
use vision::Detection;

/// People with one or more images, which contain only one face: the name, and the ends of the names
/// of the images.
const PORTRAITS: [(&str, &[&str]); 6] = [
    ("ada", &["", "_2", "_3", "_4", "_small", "_wide"]),
    ("ben", &["", "_2"]),
    ("cora", &["", "_2"]),
    ("dan", &["", "_2", "_3"]),
    ("eve", &[""]),
    ("finn", &[""]),
];

#[testing::test]
async fn default_pack_detects_and_distinguishes_drawn_people() {
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
    let mut entries = Vec::new();
    for (person, ends) in PORTRAITS {
        for end in ends {
            let image = drawing(&format!("{person}{end}.jpg"));
            let faces = detect_at_640(&engine, &image).await;
            assert_eq!(faces.len(), 1, "{person}{end}");
            entries.push((person, (person, *end), embedding(&engine, &image, &faces[0]).await));
        }
    }
    let (same, different) = pairs(&entries);
    println!("same: {same:#?}\ndifferent: {:#?}", &different[..30]);
    let threshold = engine.embedder().match_threshold;
    assert!(same[0].0 > threshold + 0.1, "{:?}", &same[..5]);
    assert!(different[0].0 < threshold - 0.02, "{:?}", &different[..5]);
}

/// The distance in frames between two analysed frames.
const FRAME_STEP: usize = 10;

#[testing::test]
async fn default_pack_matches_ground_truth_of_standard_film() {
    let (engine, film) = (default_engine(), Film::standard());
    let truth = film.truth(&Encoding::new(Codec::H264, Container::Mp4));
    let mut frames = film.frames();
    let (mut ious, mut missed, mut extra) = (Vec::new(), Vec::new(), Vec::new());
    let mut embeddings = Vec::new();
    for expected in truth.frames.iter().step_by(FRAME_STEP) {
        let frame = frames.draw(expected.index);
        let detections = detect_at_640(&engine, &frame).await;
        for face in expected.faces.iter().filter(|face| face.is_clear()) {
            let nearest = most_overlapping(&detections, &face.bbox);
            match nearest.map(|nearest| (nearest, nearest.bbox.iou(&face.bbox))) {
                Some((nearest, iou)) if iou > 0.4 => {
                    ious.push(iou);
                    if face.visible > 0.99 {
                        let embedding = embedding(&engine, &frame, nearest).await;
                        embeddings.push((face.person, (face.person, expected.index), embedding));
                    }
                }
                _ => missed.push((expected.index, *face)),
            }
        }
        let is_extra =
            |detection: &&Detection| expected.faces.iter().all(|face| face.bbox.iou(&detection.bbox) < 0.3);
        extra.extend(detections.iter().filter(is_extra).map(|face| (expected.index, face.bbox)));
    }
    let mean = ious.iter().sum::<f32>() / ious.len() as f32;
    println!("{} found, mean IoU {mean:.3}, missed {missed:?}, extra {extra:?}", ious.len());
    let faces = ious.len() + missed.len();
    assert!(missed.len() * 50 <= faces, "{missed:?}");
    assert!(extra.len() * 50 <= faces, "{extra:?}");
    assert!(mean >= 0.7, "{mean}");
    check_similarities(&engine, &embeddings);
}

/// Checks that faces of one person match and that faces of different people do not. The similarity
/// of the two people who look alike is between these values.
fn check_similarities(engine: &Engine, embeddings: &[(u32, (u32, u32), Embedding)]) {
    let (same, different) = pairs(embeddings);
    let (alike, different): (Vec<_>, Vec<_>) = different
        .into_iter()
        .partition(|(_, (first, _), (second, _))| first.max(second) == &lookalike_of(*first.min(second)));
    println!("same: {:?}\nalike: {:?}\ndifferent: {:?}", &same[..3], &alike[..3], &different[..3]);
    let embedder = engine.embedder();
    let (threshold, certain) = (embedder.match_threshold, embedder.match_threshold + embedder.cluster_margin);
    assert!(same[0].0 > certain + 0.05, "{:?}", &same[..5]);
    // The similarity of these two people is near the match threshold, and below the threshold of
    // clustering.
    assert!((threshold - 0.05..certain).contains(&alike[0].0), "{:?}", &alike[..5]);
    assert!(different[0].0 < certain, "{:?}", &different[..5]);
}
