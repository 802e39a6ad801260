//! Tests on the real engine that the fixture models behave as their documentation says. The tests
//! of other crates rely on these models.
use inference::{Engine, Manifest, Priority, ResolvedPack};
use std::sync::Arc;
use testing::{draw_face, fixture_pack};
use vision::Frame;

fn frame(width: u32, height: u32, faces: &[(u32, u32, u32)]) -> Arc<Frame> {
    let mut frame = Frame::filled(width, height, [70, 80, 60]);
    let mut picture =
        testing::fixture_models::Picture::from_raw(width, height, frame.data().to_vec()).unwrap();
    for (column, row, identity) in faces {
        draw_face(&mut picture, *column, *row, *identity);
    }
    frame.data_mut().copy_from_slice(&picture);
    Arc::new(frame)
}

#[testing::test]
async fn fixture_models_follow_their_rules() {
    let folder = std::env::temp_dir().join(format!("facecrawl-fixture-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let fixture = fixture_pack(&folder);
    let manifest = Manifest::parse(&fixture.manifest()).unwrap();
    let pack = ResolvedPack::verify(manifest.pack("fixture").unwrap(), &fixture.directory).unwrap();
    let engine = Engine::start(&crate::common::config(), &pack).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let picture = frame(640, 480, &[(3, 2, 7), (12, 9, 7), (8, 4, 8)]);
    let faces = engine.detect(picture.clone(), 0.6, Priority::Interactive).await.unwrap().output;
    let mut corners: Vec<_> = faces.iter().map(|f| (f.bbox.x.round(), f.bbox.y.round())).collect();
    corners.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(corners, [(80.0, 48.0), (240.0, 112.0), (368.0, 272.0)]);
    let mut embeddings = Vec::new();
    for face in &faces {
        assert!((face.bbox.width - 64.0).abs() < 0.01 && (face.bbox.height - 64.0).abs() < 0.01);
        assert!((face.det_score - testing::fixture_models::SCORE).abs() < 1e-4);
        let chip = vision::norm_crop(&picture, &face.landmarks, 112).unwrap();
        let embedding = engine.embed(Arc::new(chip), Priority::Interactive).await.unwrap().output;
        embeddings.push((face.bbox.x.round() == 240.0, embedding));
    }
    for (i, (other, a)) in embeddings.iter().enumerate() {
        for (second_other, b) in &embeddings[..i] {
            let similarity = a.similarity(b).unwrap();
            if other == second_other {
                assert!(similarity > 0.99, "the same identity: {similarity}");
            } else {
                assert!(similarity < 0.5, "two identities: {similarity}");
            }
        }
    }
    assert!(engine.detect(frame(320, 96, &[]), 0.6, Priority::Background).await.unwrap().output.is_empty());
}
