//! Compares the results of real models with those of reference implementations. The reference for
//! the default pack is OpenCV with the same two files.
use crate::common::*;
use inference::backend::{OnnxModel, Placement};
use inference::models::EmbedderModel;
use inference::runtime::Runtime;
use inference::{Config, CpuBackend, Embedding, Engine, ModelKind, Priority};
use serde_json::Value;
use std::sync::Arc;
use vision::{Detection, Frame, Letterbox};

fn oracle_faces(image: &Value, detector: &str) -> Vec<Detection> {
    image[detector].as_array().unwrap().iter().map(oracle_face).collect()
}

/// Returns whether the detector suppressed `face`, which OpenCV kept.
///
/// OpenCV suppresses overlaps on boxes that are rounded to whole pixels. Among small faces in a
/// crowd, it may therefore keep the other one of two overlapping candidates. Such a face must be
/// one of the `candidates` within the tolerances. A face of `actual` with at least the same score
/// must overlap it.
fn is_suppressed(face: &Detection, candidates: &[Detection], actual: &[Detection]) -> bool {
    candidates.iter().filter(|candidate| is_same_face(candidate, face)).any(|candidate| {
        actual
            .iter()
            .any(|kept| kept.det_score >= candidate.det_score && iou(&kept.bbox, &candidate.bbox) > 0.3)
    })
}

/// The number of faces that we suppressed ([`is_suppressed`]) must be small. OpenCV also keeps
/// boxes on a part of a face.
#[testing::needs(shared)]
#[testing::test]
async fn yunet_matches_reference_at_native_image_size() {
    let oracle = testing::oracle();
    let pack = builtin("compact");
    let mut without_nms = pack.clone();
    without_nms.files.iter_mut().for_each(|f| f.nms_iou = f.nms_iou.map(|_| 1.0));
    let (engine, unsuppressed) = (engine(&pack), engine(&without_nms));
    let (mut errors, mut compared, mut explained) = (Vec::new(), 0, 0);
    for (name, image) in oracle.as_object().unwrap() {
        let canvas = Arc::new(pad(&photograph(name)));
        let actual = engine.detect(canvas.clone(), 0.6, Priority::Background).await.unwrap().output;
        let expected = oracle_faces(image, "yunet_native");
        compared += expected.iter().filter(|f| f.det_score >= 0.7).count();
        errors.extend(
            unexpected_faces(&actual, &expected).iter().map(|face| format!("{name}: unexpected {face:?}")),
        );
        let missed = missed_faces(&actual, &expected);
        if missed.is_empty() {
            continue;
        }
        let candidates = unsuppressed.detect(canvas, 0.6, Priority::Background).await.unwrap().output;
        for face in missed {
            let is_part = actual.iter().any(|kept| {
                let shared = kept.bbox.intersection(&face.bbox).area();
                kept.det_score >= face.det_score && shared > 0.6 * face.bbox.area()
            });
            if is_suppressed(face, &candidates, &actual) || is_part {
                explained += 1
            } else {
                errors.push(format!("{name}: missed {face:?}"))
            }
        }
    }
    println!("YuNet: {compared} faces, of which {explained} were suppressed by another candidate");
    assert!(compared > 800, "only {compared} faces were compared");
    assert!(errors.is_empty(), "{} of {compared}:\n{}", errors.len(), errors.join("\n"));
    assert!(explained * 100 <= compared, "{explained} of {compared} differ in the suppression");
}

#[testing::needs(shared)]
#[testing::test]
async fn scrfd_matches_reference_at_640() {
    let oracle = testing::oracle();
    let engine = engine(&builtin("research"));
    assert!(engine.detector().landmarks && engine.detector().fixed_size.is_none());
    let (mut errors, mut compared) = (Vec::new(), 0);
    for (name, image) in oracle.as_object().unwrap() {
        let actual = detect_at_640(&engine, &photograph(name)).await;
        let expected = oracle_faces(image, "scrfd_640");
        compared += expected.iter().filter(|f| f.det_score >= 0.7).count();
        errors.extend(missed_faces(&actual, &expected).iter().map(|face| format!("{name}: missed {face:?}")));
        errors.extend(
            unexpected_faces(&actual, &expected).iter().map(|face| format!("{name}: unexpected {face:?}")),
        );
    }
    println!("SCRFD: {compared} faces, {} differences from the reference", errors.len());
    assert!(compared > 300, "only {compared} faces were compared");
    assert!(errors.is_empty(), "{} of {compared}:\n{}", errors.len(), errors.join("\n"));
}

/// The fixed 640x640 input of the first model is made dynamic when it is loaded.
#[testing::needs(shared)]
#[testing::test]
async fn fixed_yunet_equals_dynamic_yunet() {
    let fixed = builtin("opencv-fp32").file(ModelKind::Detector).unwrap().clone();
    let (fixed, dynamic) = (engine(&pack_with(fixed)), engine(&builtin("compact")));
    assert_eq!(fixed.detector().fixed_size, None, "the canvas is dynamic");
    assert_eq!(dynamic.detector().fixed_size, None);
    for name in ["obama.jpg", "group_1.jpg", "two_people.jpg", "view.jpg"] {
        let frame = photograph(name);
        let (a, b) = (detect_at_640(&fixed, &frame).await, detect_at_640(&dynamic, &frame).await);
        assert_eq!(a.len(), b.len(), "{name}");
        for (a, b) in a.iter().zip(&b) {
            assert!(distance(&a.bbox, &b.bbox).0 < 0.1 && (a.det_score - b.det_score).abs() < 1e-3, "{name}");
        }
    }
}

/// Tests a different export, with a batch axis, a different order of outputs and a fixed size. The
/// network is weaker, so only obvious faces must be found.
#[testing::needs(shared)]
#[testing::test]
async fn fixed_size_scrfd_finds_obvious_faces() {
    let mut file = builtin("research").file(ModelKind::Detector).unwrap().clone();
    file.file = "scrfd_500m_kps_640.onnx".into();
    file.sha256 = "517cb1980c72422e676738fc45431700fb7cbee56d0f825b623ee427b3e5ce58".into();
    let engine = engine(&pack_with(file));
    let oracle = testing::oracle();
    assert_eq!(engine.detector().fixed_size, Some((640, 640)));
    let mut compared = 0;
    for (name, image) in oracle.as_object().unwrap() {
        if name.starts_with("group") || name.starts_with("rotate") || name.starts_with("images") {
            continue;
        }
        let actual = detect_at_640(&engine, &photograph(name)).await;
        for expected in oracle_faces(image, "scrfd_640").iter().filter(|f| f.det_score >= 0.8) {
            let face = most_overlapping(&actual, expected).unwrap_or_else(|| panic!("{name}: nothing found"));
            assert!(iou(&face.bbox, &expected.bbox) > 0.6, "{name}: {face:?} {expected:?}");
            let eye_distance = (face.landmarks[0].x - expected.landmarks[0].x)
                .hypot(face.landmarks[0].y - expected.landmarks[0].y);
            assert!(
                eye_distance < 0.15 * expected.bbox.width,
                "{name}: the right eye differs by {eye_distance} px"
            );
            compared += 1;
        }
    }
    assert!(compared >= 15, "only {compared} faces were compared");
}

/// Returns chips aligned by the oracle's landmarks, with the reference's embeddings of them.
fn chips() -> Vec<(String, Arc<Frame>, Embedding)> {
    let oracle = testing::oracle();
    let mut chips = Vec::new();
    for (name, image) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        for face in image["scrfd_640"].as_array().unwrap() {
            let chip = vision::norm_crop(&frame, &oracle_face(face).landmarks, 112).unwrap();
            chips.push((
                name.clone(),
                Arc::new(chip),
                Embedding::from_raw(numbers(&face["embedding"])).unwrap(),
            ));
        }
    }
    chips
}

#[testing::needs(shared)]
#[testing::test]
async fn mobilefacenet_matches_reference_embeddings() {
    let (engine, chips) = (engine(&builtin("compact")), chips());
    assert_eq!(engine.embedder().dimensions, 128);
    let (mut errors, mut lowest) = (Vec::new(), 1.0_f32);
    for (name, chip, expected) in &chips {
        let actual = engine.embed(chip.clone(), Priority::Background).await.unwrap().output;
        let cosine = actual.similarity(expected).unwrap();
        lowest = lowest.min(cosine);
        if cosine < 0.995 {
            errors.push(format!("{name}: {cosine}"));
        }
    }
    println!("{} embeddings, lowest cosine {lowest}", chips.len());
    assert!(chips.len() > 500);
    assert!(errors.is_empty(), "{} of {}:\n{}", errors.len(), chips.len(), errors.join("\n"));
}

#[testing::needs(shared)]
#[testing::test]
async fn batched_embeddings_equal_single_runs() {
    let (path, chips) = (testing::model("mobilefacenet_dynamic.onnx"), chips());
    let runtime = Runtime::load(Some(&testing::library())).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let file = builtin("compact").file(ModelKind::Embedder).unwrap().clone();
    let start = |max_batch: usize| {
        let session = OnnxModel::load(&runtime, &bytes, &Placement::CPU).unwrap();
        assert_eq!(session.input_shape()[0], None);
        let model = EmbedderModel::new(&file, session.input_shape(), session.output_count()).unwrap();
        batcher(model, session, max_batch)
    };
    let (single_batcher, batcher) = (start(1), start(8));
    let chips: Vec<_> = chips.into_iter().map(|(_, chip, _)| chip).take(16).collect();
    let tasks: Vec<_> = chips
        .iter()
        .map(|chip| {
            let (batcher, chip) = (batcher.clone(), chip.clone());
            tokio::spawn(async move { batcher.run(chip, Priority::Background).await.unwrap().output })
        })
        .collect();
    for (task, chip) in tasks.into_iter().zip(&chips) {
        let single = single_batcher.run(chip.clone(), Priority::Background).await.unwrap().output;
        assert!(task.await.unwrap().similarity(&single).unwrap() > 0.99999);
    }
}

async fn embed_largest_face(engine: &Engine, name: &str) -> Embedding {
    let frame = photograph(name);
    let faces = detect_at_640(engine, &frame).await;
    let area = |f: &Detection| f.bbox.width * f.bbox.height;
    let face =
        faces.iter().max_by(|a, b| area(a).total_cmp(&area(b))).unwrap_or_else(|| panic!("{name}: no face"));
    embedding(engine, &frame, face).await
}

#[testing::needs(shared)]
#[testing::test]
async fn pairs_of_one_person_are_more_similar_than_others() {
    const PEOPLE: [&[&str]; 4] = [
        &[
            "obama.jpg",
            "obama1.jpg",
            "obama2.jpg",
            "obama3.jpg",
            "obama_small.jpg",
            "obama-240p.jpg",
            "obama-480p.jpg",
            "obama-1080p.jpg",
        ],
        &["biden.jpg", "biden2.jpg"],
        &["alex-lacamoire.png", "alex_lacamoire1.jpg", "alex2.jpg"],
        &["Rob_Lowe_0001.jpg", "Rob_Lowe_0002.jpg"],
    ];
    for pack in ["research", "compact"] {
        let engine = engine(&builtin(pack));
        let mut faces = Vec::new();
        for (person, names) in PEOPLE.iter().enumerate() {
            for name in *names {
                faces.push((person, *name, embed_largest_face(&engine, name).await));
            }
        }
        let (same, different) = pairs(&faces);
        let (lowest, highest) = (&same[0], &different[0]);
        println!("{pack}: lowest same {lowest:?}, highest different {highest:?}");
        assert!(lowest.0 > highest.0, "{pack}: {lowest:?} {highest:?}");
        let threshold = engine.embedder().match_threshold;
        assert!(lowest.0 > threshold && highest.0 < threshold, "{pack}: {threshold} does not separate them");
    }
}

fn faces(image: &Value) -> &Vec<Value> {
    image["faces"].as_array().unwrap()
}

/// Detects faces on the reference's canvas. The reference rounds the content's sides;
/// [`Letterbox::fit`] drops the fraction.
async fn detect(engine: &Engine, frame: &Frame, image: &Value) -> Vec<Detection> {
    let scale = image["scale"].as_f64().unwrap();
    let side = |pixels: u32| (f64::from(pixels) * scale).round() as u32;
    let content = (side(frame.width()), side(frame.height()));
    let letterbox = Letterbox { scale: scale as f32, canvas: (640, 640), content };
    let actual = engine.detect(Arc::new(letterbox.draw(frame)), 0.6, Priority::Background).await.unwrap();
    actual.output.iter().map(|face| letterbox.map_to_image(face)).collect()
}

/// Faces of crowds are about twelve pixels high on the canvas, so OpenCV may keep other candidates
/// ([`is_suppressed`]).
#[testing::needs(shared)]
#[testing::test]
async fn default_detector_matches_opencv() {
    let oracle = testing::assets::oracle_opencv();
    let engine = default_engine();
    let mut without_nms = testing::pack();
    without_nms.pack.files.iter_mut().for_each(|file| file.nms_iou = file.nms_iou.map(|_| 1.0));
    let unsuppressed = Engine::start(&config(), &without_nms).unwrap();
    assert_eq!(engine.detector().fixed_size, None, "the canvas is dynamic");
    let (mut errors, mut compared, mut explained) = (Vec::new(), 0, 0);
    for (name, image) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        let actual = detect(&engine, &frame, image).await;
        let expected: Vec<_> = faces(image).iter().map(oracle_face).collect();
        compared += expected.iter().filter(|face| face.det_score >= 0.7).count();
        errors.extend(
            unexpected_faces(&actual, &expected).iter().map(|face| format!("{name}: unexpected {face:?}")),
        );
        let missed = missed_faces(&actual, &expected);
        if missed.is_empty() {
            continue;
        }
        let candidates = detect(&unsuppressed, &frame, image).await;
        for face in missed {
            let suppressed = is_suppressed(face, &candidates, &actual);
            if suppressed { explained += 1 } else { errors.push(format!("{name}: missed {face:?}")) }
        }
    }
    println!(
        "YuNet: {compared} faces of score 0.7 and more, of which {explained} were suppressed by another candidate"
    );
    assert!(compared > 400, "only {compared} faces were compared");
    assert!(errors.is_empty(), "{} of {compared}:\n{}", errors.len(), errors.join("\n"));
    assert!(explained * 50 <= compared, "{explained} of {compared} differ in the suppression");
}

#[testing::needs(shared)]
#[testing::test]
async fn default_embedder_matches_opencv_on_every_face() {
    let oracle = testing::assets::oracle_opencv();
    let resolved = testing::pack();
    for cpu_backend in [CpuBackend::OnnxRuntime, CpuBackend::OnnxRuntimeInt8] {
        let engine = Engine::start(&Config { cpu_backend, ..config() }, &resolved).unwrap();
        let (mut compared, mut lowest) = (0, (1.0_f32, String::new()));
        for (name, image) in oracle.as_object().unwrap() {
            let frame = photograph(name);
            for face in faces(image).iter().filter(|face| face.get("feature").is_some()) {
                let expected = Embedding::from_raw(numbers(&face["feature"])).unwrap();
                let actual = embedding(&engine, &frame, &oracle_face(face)).await;
                let cosine = actual.similarity(&expected).unwrap();
                compared += 1;
                if cosine < lowest.0 {
                    lowest = (cosine, name.clone());
                }
            }
        }
        println!("SFace, {cpu_backend:?}: {compared} faces, lowest cosine {} ({})", lowest.0, lowest.1);
        assert_eq!(compared, 139);
        assert!(lowest.0 >= 0.995, "{cpu_backend:?}: {lowest:?}");
    }
}
