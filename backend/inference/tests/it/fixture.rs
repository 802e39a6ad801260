//! Tests on the real engine that the fixture models behave as their documentation says. The tests
//! of other crates rely on these models. The score of the fixture quality model can be computed by
//! hand.
use crate::common::*;
use inference::{ModelFile, Operation, Priority};
use std::sync::Arc;
use testing::fixture_score;
use vision::Frame;

#[testing::test]
async fn fixture_models_detect_and_distinguish_drawn_faces() {
    let engine = fixture_engine();
    let image = draw_faces(640, 480, &[(3, 2, 7), (12, 9, 7), (8, 4, 8)]);
    let faces = engine.detect(image.clone(), 0.6, Priority::Interactive).await.unwrap().output;
    let mut corners: Vec<_> = faces.iter().map(|f| (f.bbox.x.round(), f.bbox.y.round())).collect();
    corners.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(corners, [(80.0, 48.0), (240.0, 112.0), (368.0, 272.0)]);
    let mut embeddings = Vec::new();
    for face in &faces {
        assert!((face.bbox.width - 64.0).abs() < 0.01 && (face.bbox.height - 64.0).abs() < 0.01);
        assert!((face.det_score - testing::fixture_models::SCORE).abs() < 1e-4);
        let is_other = face.bbox.x.round() == 240.0;
        embeddings.push((is_other, face.bbox.x, embedding(&engine, &image, face).await));
    }
    let (same, different) = pairs(&embeddings);
    assert!(same.len() == 1 && same[0].0 > 0.99, "faces of the same identity are similar: {same:?}");
    assert!(different.len() == 2 && different[0].0 < 0.5, "faces of two identities differ: {different:?}");
    assert!(
        engine.detect(draw_faces(320, 96, &[]), 0.6, Priority::Background).await.unwrap().output.is_empty()
    );
}

/// Colours of uniform chips, so that the means of their channels are known.
const COLOURS: [[u8; 3]; 6] =
    [[0, 0, 0], [255, 255, 255], [200, 40, 90], [40, 200, 90], [90, 40, 200], [127, 128, 129]];

#[testing::test]
async fn quality_score_is_model_output_for_normalised_chip() {
    let engine = start_fixture(&config(), true);
    assert_eq!(engine.scorer().unwrap().name, "fixture_quality");
    let chips = COLOURS.map(|colour| Arc::new(Frame::filled(112, 112, colour)));
    let requests = chips.map(|chip| engine.score(chip, Priority::Background));
    for (colour, result) in COLOURS.iter().zip(futures::future::join_all(requests).await) {
        let (score, expected) = (result.unwrap().output, fixture_score(colour.map(f32::from)));
        assert!((score - expected).abs() < 1e-4, "{colour:?}: {score}, not {expected}");
    }
    let report = engine.report();
    let names: Vec<_> = report.operations.iter().map(|o| o.operation).collect();
    assert_eq!(names, Operation::ALL.map(Operation::name), "the score is a part of quality_checks");
    let loaded = report.models.iter().find(|model| model.file == "fixture_quality.onnx").unwrap();
    assert_eq!((loaded.operation, loaded.device.as_str()), ("quality_checks", "cpu"));
    engine.check_ready().unwrap();

    let small = Arc::new(Frame::filled(111, 112, [0; 3]));
    let error = engine.score(small, Priority::Interactive).await.unwrap_err().to_string();
    assert!(error.contains("quality_checks") && error.contains("111x112"), "{error}");
}

#[testing::test]
async fn missing_quality_model_gives_no_score() {
    let engine = fixture_engine();
    assert!(engine.scorer().is_none());
    let chip = Arc::new(Frame::filled(112, 112, [0; 3]));
    let error = engine.score(chip, Priority::Interactive).await.unwrap_err().to_string();
    assert!(error.contains("no quality model"), "{error}");
}

#[test]
fn rejects_wrong_quality_model_at_start() {
    let folder = tempfile::tempdir().unwrap();
    // The fixture's detector has other sides and twelve outputs.
    let detector_as_quality = |file: ModelFile| {
        let detector = testing::fixture_pack(folder.path()).detector;
        Some(ModelFile { file: detector.file, sha256: detector.sha256, bytes: None, ..file })
    };
    let error = model_error(&fixture_pack(folder.path(), detector_as_quality));
    assert!(error.starts_with("fixture_detector.onnx: "), "{error}");
    assert!(error.contains("one score is expected"), "{error}");
}
