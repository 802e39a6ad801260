//! Compares the results of real models with those of reference implementations. The reference for
//! the default pack is OpenCV with the same two files.
use crate::common::*;
use inference::backend::{OnnxModel, Placement};
use inference::models::EmbedderModel;
use inference::runtime::Runtime;
use inference::{Config, CpuBackend, Embedding, Engine, ModelKind, Priority, ResolvedPack};
use serde_json::Value;
use std::sync::Arc;
use vision::{Detection, Frame, Letterbox};

fn oracle_faces(image: &Value, detector: &str) -> Vec<Detection> {
    image[detector].as_array().unwrap().iter().map(oracle_face).collect()
}

/// Returns whether the two are the same face within the tolerances of the reference: 2 px or 2 %,
/// and 0.02 in score.
fn is_same_face(face: &Detection, expected: &Detection) -> bool {
    let (pixels, share) = distance(&face.bbox, &expected.bbox);
    (pixels <= 2.0 || share <= 0.02) && (face.det_score - expected.det_score).abs() <= 0.02
}

/// Returns whether the detector suppressed `face`, which OpenCV kept.
///
/// OpenCV suppresses overlaps on boxes that are rounded to whole pixels. Among small faces in a
/// crowd, it may therefore keep the other one of two overlapping candidates. Such a face must be
/// one of the `candidates` within the tolerances. A face of `actual` with at least the same score
/// must overlap it.
fn is_suppressed(face: &Detection, candidates: &[Detection], actual: &[Detection]) -> bool {
    candidates.iter().filter(|candidate| is_same_face(candidate, face)).any(|candidate| {
        let is_better = |kept: &&Detection| kept.det_score >= candidate.det_score;
        actual.iter().filter(is_better).any(|kept| kept.bbox.iou(&candidate.bbox) > 0.3)
    })
}

/// Returns the pack with a detector that suppresses no candidates.
fn without_nms(mut pack: ResolvedPack) -> ResolvedPack {
    pack.pack.files.iter_mut().for_each(|file| file.nms_iou = file.nms_iou.map(|_| 1.0));
    pack
}

/// The comparison of a detector with its reference.
#[derive(Default)]
struct Comparison {
    errors: Vec<String>,
    /// Number of the reference's clear faces (score 0.7 and more).
    compared: usize,
    /// Number of clear faces that were suppressed by another candidate.
    suppressed: usize,
}

impl Comparison {
    /// Adds the faces of an image. Clear faces of `actual` (score 0.72 and more) that overlap no
    /// expected face are errors. Returns the clear faces that are missing.
    fn add(&mut self, name: &str, actual: &[Detection], expected: &[Detection]) -> Vec<Detection> {
        let overlaps_none = |face: &&Detection| expected.iter().all(|other| other.bbox.iou(&face.bbox) < 0.3);
        let unexpected = actual.iter().filter(|face| face.det_score >= 0.72).filter(overlaps_none);
        self.errors.extend(unexpected.map(|face| format!("{name}: unexpected {face:?}")));
        let clear: Vec<_> = expected.iter().copied().filter(|face| face.det_score >= 0.7).collect();
        self.compared += clear.len();
        let is_missing = |face: &Detection| !actual.iter().any(|other| is_same_face(other, face));
        clear.into_iter().filter(is_missing).collect()
    }

    /// Adds a missing face of an image. It is an error unless it was suppressed.
    fn add_missing(&mut self, name: &str, face: &Detection, is_suppressed: bool) {
        if is_suppressed {
            self.suppressed += 1;
        } else {
            self.errors.push(format!("{name}: missed {face:?}"));
        }
    }

    /// Checks that there are no errors, more than `min_compared` clear faces, and at most one
    /// suppressed face in `suppressed_of`.
    fn check(self, min_compared: usize, suppressed_of: usize) {
        let Self { errors, compared, suppressed } = self;
        println!("{compared} clear faces, of which {suppressed} were suppressed by another candidate");
        assert!(compared > min_compared, "only {compared} faces were compared");
        assert!(errors.is_empty(), "{} of {compared}:\n{}", errors.len(), errors.join("\n"));
        assert!(suppressed * suppressed_of <= compared, "{suppressed} of {compared} were suppressed");
    }
}

/// The number of faces that we suppressed ([`is_suppressed`]) must be small. OpenCV also keeps
/// boxes on a part of a face.
#[testing::needs(shared)]
#[testing::test]
async fn yunet_matches_reference_at_native_image_size() {
    let pack = resolve(&builtin("compact"));
    let engine = Engine::start(&config(), &pack).unwrap();
    let unsuppressed = Engine::start(&config(), &without_nms(pack)).unwrap();
    let mut comparison = Comparison::default();
    for (name, image) in testing::oracle().as_object().unwrap() {
        let frame = photograph(name);
        let content = (frame.width(), frame.height());
        let canvas = (content.0.next_multiple_of(32), content.1.next_multiple_of(32));
        let canvas = Arc::new(Letterbox { scale: 1.0, canvas, content }.draw(&frame));
        let actual = engine.detect(canvas.clone(), 0.6, Priority::Background).await.unwrap().output;
        let missing = comparison.add(name, &actual, &oracle_faces(image, "yunet_native"));
        if missing.is_empty() {
            continue;
        }
        let candidates = unsuppressed.detect(canvas, 0.6, Priority::Background).await.unwrap().output;
        for face in &missing {
            let is_part = actual.iter().any(|kept| {
                let shared = kept.bbox.intersection(&face.bbox).area();
                kept.det_score >= face.det_score && shared > 0.6 * face.bbox.area()
            });
            comparison.add_missing(name, face, is_part || is_suppressed(face, &candidates, &actual));
        }
    }
    comparison.check(800, 100);
}

#[testing::needs(shared)]
#[testing::test]
async fn scrfd_matches_reference_at_640() {
    let engine = engine(&builtin("research"));
    assert!(engine.detector().landmarks && engine.detector().fixed_size.is_none());
    let mut comparison = Comparison::default();
    for (name, image) in testing::oracle().as_object().unwrap() {
        let actual = detect_at_640(&engine, &photograph(name)).await;
        for face in comparison.add(name, &actual, &oracle_faces(image, "scrfd_640")) {
            comparison.add_missing(name, &face, false);
        }
    }
    comparison.check(300, 1);
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
            let face = most_overlapping(&actual, &expected.bbox);
            let face = face.unwrap_or_else(|| panic!("{name}: nothing found"));
            assert!(face.bbox.iou(&expected.bbox) > 0.6, "{name}: {face:?} {expected:?}");
            let eyes = face.landmarks[0].distance(expected.landmarks[0]);
            assert!(eyes < 0.15 * expected.bbox.width, "{name}: the right eye differs by {eyes} px");
            compared += 1;
        }
    }
    assert!(compared >= 15, "only {compared} faces were compared");
}

/// Returns chips aligned by an oracle's landmarks, with the reference's embeddings of them and the
/// names of the images. Faces without an embedding are omitted.
fn chips(oracle: &Value, faces: &str, embedding: &str) -> Vec<(String, Arc<Frame>, Embedding)> {
    let mut chips = Vec::new();
    for (name, image) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        let faces = image[faces].as_array().unwrap().iter();
        chips.extend(faces.filter_map(|face| {
            let embedding = Embedding::from_raw(numbers(face.get(embedding)?)).unwrap();
            let chip = vision::norm_crop(&frame, &oracle_face(face).landmarks, 112).unwrap();
            Some((name.clone(), Arc::new(chip), embedding))
        }));
    }
    chips
}

/// Checks that the embeddings of the chips have a cosine of at least 0.995 to those of the
/// reference.
async fn check_embeddings(engine: &Engine, chips: &[(String, Arc<Frame>, Embedding)]) {
    let mut lowest = (1.0_f32, "");
    for (name, chip, expected) in chips {
        let actual = engine.embed(chip.clone(), Priority::Background).await.unwrap().output;
        let cosine = actual.similarity(expected).unwrap();
        if cosine < lowest.0 {
            lowest = (cosine, name);
        }
    }
    println!("{}: {} faces, lowest cosine {lowest:?}", engine.embedder().name, chips.len());
    assert!(lowest.0 >= 0.995, "{lowest:?}, {:?}", engine.report().models);
}

#[testing::needs(shared)]
#[testing::test]
async fn mobilefacenet_matches_reference_embeddings() {
    let engine = engine(&builtin("compact"));
    assert_eq!(engine.embedder().dimensions, 128);
    let chips = chips(&testing::oracle(), "scrfd_640", "embedding");
    assert!(chips.len() > 500);
    check_embeddings(&engine, &chips).await;
}

#[testing::needs(shared)]
#[testing::test]
async fn batched_embeddings_equal_single_runs() {
    let bytes = std::fs::read(testing::model("mobilefacenet_dynamic.onnx")).unwrap();
    let runtime = Runtime::load(Some(&testing::library())).unwrap();
    let file = builtin("compact").file(ModelKind::Embedder).unwrap().clone();
    let load = || {
        let session = OnnxModel::load(&runtime, &bytes, &Placement::CPU).unwrap();
        assert_eq!(session.input_shape()[0], None);
        (EmbedderModel::new(&file, session.input_shape(), session.output_count()).unwrap(), session)
    };
    let chips = chips(&testing::oracle(), "scrfd_640", "embedding");
    let chips: Vec<_> = chips.into_iter().map(|(_, chip, _)| chip).take(16).collect();
    for (batched, single) in run_batched_and_single(load, 8, &chips).await {
        assert!(batched.similarity(&single).unwrap() > 0.99999);
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
    let engine = default_engine();
    let unsuppressed = Engine::start(&config(), &without_nms(testing::pack())).unwrap();
    assert_eq!(engine.detector().fixed_size, None, "the canvas is dynamic");
    let mut comparison = Comparison::default();
    for (name, image) in testing::assets::oracle_opencv().as_object().unwrap() {
        let frame = photograph(name);
        let actual = detect(&engine, &frame, image).await;
        let missing = comparison.add(name, &actual, &oracle_faces(image, "faces"));
        if missing.is_empty() {
            continue;
        }
        let candidates = detect(&unsuppressed, &frame, image).await;
        for face in &missing {
            comparison.add_missing(name, face, is_suppressed(face, &candidates, &actual));
        }
    }
    comparison.check(400, 50);
}

#[testing::needs(shared)]
#[testing::test]
async fn default_embedder_matches_opencv_on_every_face() {
    let chips = chips(&testing::assets::oracle_opencv(), "faces", "feature");
    assert_eq!(chips.len(), 139);
    for cpu_backend in [CpuBackend::OnnxRuntime, CpuBackend::OnnxRuntimeInt8] {
        let engine = Engine::start(&Config { cpu_backend, ..config() }, &testing::pack()).unwrap();
        check_embeddings(&engine, &chips).await;
    }
}
