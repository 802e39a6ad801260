//! Starts engines and loads photographs for the tests on real models.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]
use inference::backend::OnnxModel;
use inference::batcher::{Batcher, Device, Limits};
use inference::models::Model;
use inference::{Config, Embedding, Engine, Manifest, ModelFile, ModelKind, Pack, ResolvedPack};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use vision::{Detection, Frame, Landmarks, Point, Rect};

pub fn config() -> Config {
    Config { dylib_path: Some(testing::library()), cpu_sessions: 2, ..Config::default() }
}

/// Verifies a pack in the folder of shared models.
pub fn resolve(pack: &Pack) -> ResolvedPack {
    ResolvedPack::verify(pack, &testing::shared_models()).unwrap()
}

pub fn builtin(name: &str) -> Pack {
    Manifest::builtin().pack(name).unwrap().clone()
}

/// Starts an engine with a pack from the folder of shared models.
pub fn engine(pack: &Pack) -> Engine {
    Engine::start(&config(), &resolve(pack)).unwrap()
}

/// Starts an engine with the fixture models, which have no trained weights. Their detector takes
/// images of any size.
pub fn fixture_engine() -> Engine {
    let folder = tempfile::tempdir().unwrap();
    Engine::start(&config(), &fixture_pack(folder.path(), |_| None)).unwrap()
}

/// Writes the fixture pack to `folder`. `change` may add a quality model from the fixture's.
pub fn fixture_pack(folder: &Path, change: impl FnOnce(ModelFile) -> Option<ModelFile>) -> ResolvedPack {
    let manifest = testing::fixture_pack(folder).manifest();
    let mut pack = Manifest::parse(&manifest).unwrap().pack("fixture").unwrap().clone();
    pack.files.extend(change(testing::fixture_quality(folder)));
    ResolvedPack::verify(&pack, folder).unwrap()
}

pub fn default_engine() -> Engine {
    Engine::start(&config(), &testing::pack()).unwrap()
}

/// Returns the `compact` pack with a different detector.
pub fn pack_with(detector: ModelFile) -> Pack {
    let mut pack = builtin("compact");
    pack.files.retain(|f| f.kind != ModelKind::Detector);
    pack.files.push(detector);
    pack
}

/// Returns a shared reference photograph.
pub fn photograph(name: &str) -> Frame {
    vision::decode(&testing::image(name), &vision::Limits::default()).unwrap().frame
}

/// Returns a synthetic image of the gallery.
pub fn drawing(name: &str) -> Frame {
    vision::decode(&testing::drawing(name), &vision::Limits::default()).unwrap().frame
}

/// Returns the image with a black border at the right and at the bottom. Both sides become
/// multiples of 32.
pub fn pad(frame: &Frame) -> Frame {
    let (width, height) = (frame.width().next_multiple_of(32), frame.height().next_multiple_of(32));
    let mut canvas = Frame::filled(width, height, [0, 0, 0]);
    let (row_bytes, target_bytes) = (frame.width() as usize * 3, width as usize * 3);
    for (row, target) in
        frame.data().chunks_exact(row_bytes).zip(canvas.data_mut().chunks_exact_mut(target_bytes))
    {
        target[..row_bytes].copy_from_slice(row);
    }
    canvas
}

/// Detects on the letterboxed 640x640 canvas. Coordinates are those of the image.
pub async fn detect_at_640(engine: &Engine, frame: &Frame) -> Vec<Detection> {
    let letterbox = vision::Letterbox::fit((frame.width(), frame.height()), (640, 640));
    let canvas = Arc::new(letterbox.draw(frame));
    let result =
        engine.detect(canvas, engine.detector().min_score, inference::Priority::Interactive).await.unwrap();
    result.output.iter().map(|face| letterbox.map_to_image(face)).collect()
}

/// Starts a model on one session. A batch runs when `max_batch` requests have arrived.
pub fn batcher<M: Model>(model: M, session: OnnxModel, max_batch: usize) -> Batcher<M> {
    let device = Device { primary: Box::new(session), fallback: None };
    let (max_delay, prefetch) = (Duration::from_secs(3600), max_batch > 1);
    let limits = Limits { queue_capacity: 64, max_batch, max_delay, prefetch };
    Batcher::start(model, vec![device], limits).unwrap()
}

/// Two items and the similarity of their embeddings.
pub type Pair<T> = (f32, T, T);

/// Returns the pairs of one person, the least similar first, and those of two people, the most
/// similar first.
pub fn pairs<P: PartialEq, T: Copy>(entries: &[(P, T, Embedding)]) -> (Vec<Pair<T>>, Vec<Pair<T>>) {
    let (mut same, mut different) = (Vec::new(), Vec::new());
    for (at, (person, item, embedding)) in entries.iter().enumerate() {
        for (other_person, other_item, other_embedding) in &entries[..at] {
            let pair = (embedding.similarity(other_embedding).unwrap(), *item, *other_item);
            if person == other_person { same.push(pair) } else { different.push(pair) }
        }
    }
    same.sort_by(|a, b| a.0.total_cmp(&b.0));
    different.sort_by(|a, b| b.0.total_cmp(&a.0));
    (same, different)
}

/// Returns the embedding of a face.
pub async fn embedding(engine: &Engine, frame: &Frame, face: &Detection) -> Embedding {
    let chip = vision::norm_crop(frame, &face.landmarks, 112).unwrap();
    engine.embed(Arc::new(chip), inference::Priority::Background).await.unwrap().output
}

pub fn numbers(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// Parses a face of the oracle, for either detector.
pub fn oracle_face(value: &serde_json::Value) -> Detection {
    let bbox = match value.get("bbox_xywh") {
        Some(b) => {
            let b = numbers(b);
            Rect { x: b[0], y: b[1], width: b[2], height: b[3] }
        }
        None => {
            let b = numbers(&value["bbox_xyxy"]);
            Rect { x: b[0], y: b[1], width: b[2] - b[0], height: b[3] - b[1] }
        }
    };
    let points = numbers(&value["landmarks"]);
    let landmarks: Landmarks = std::array::from_fn(|i| Point { x: points[2 * i], y: points[2 * i + 1] });
    Detection { bbox, det_score: value["score"].as_f64().unwrap() as f32, landmarks }
}

pub fn iou(a: &Rect, b: &Rect) -> f32 {
    let width = (a.x + a.width).min(b.x + b.width) - a.x.max(b.x);
    let height = (a.y + a.height).min(b.y + b.height) - a.y.max(b.y);
    let shared = width.max(0.0) * height.max(0.0);
    shared / (a.width * a.height + b.width * b.height - shared)
}

/// Returns the face of `faces` that overlaps `expected` most.
pub fn most_overlapping<'a>(faces: &'a [Detection], expected: &Detection) -> Option<&'a Detection> {
    faces.iter().max_by(|a, b| iou(&a.bbox, &expected.bbox).total_cmp(&iou(&b.bbox, &expected.bbox)))
}

/// Returns the distance of two boxes: the largest difference of an edge in pixels, and as a share
/// of the longer side.
pub fn distance(a: &Rect, b: &Rect) -> (f32, f32) {
    let edges = |r: &Rect| [r.x, r.y, r.x + r.width, r.y + r.height];
    let pixels = edges(a).iter().zip(edges(b)).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    (pixels, pixels / b.width.max(b.height))
}

/// Returns whether the two are the same face within the tolerances of the reference: 2 px or 2 %,
/// and 0.02 in score.
pub fn is_same_face(face: &Detection, expected: &Detection) -> bool {
    let (pixels, share) = distance(&face.bbox, &expected.bbox);
    (pixels <= 2.0 || share <= 0.02) && (face.det_score - expected.det_score).abs() <= 0.02
}

/// Returns the oracle's clear faces (score 0.7 and more) that are not among `detections`.
pub fn missed_faces<'a>(detections: &[Detection], oracle: &'a [Detection]) -> Vec<&'a Detection> {
    let clear = oracle.iter().filter(|f| f.det_score >= 0.7);
    clear.filter(|expected| !detections.iter().any(|face| is_same_face(face, expected))).collect()
}

/// Returns clear faces of `detections` (score 0.72 and more) that overlap no face of the oracle.
pub fn unexpected_faces<'a>(detections: &'a [Detection], oracle: &[Detection]) -> Vec<&'a Detection> {
    let clear = detections.iter().filter(|f| f.det_score >= 0.72);
    clear.filter(|face| oracle.iter().all(|expected| iou(&expected.bbox, &face.bbox) < 0.3)).collect()
}

/// Builds a shared library that has ONNX Runtime's entry point and reports `version`.
pub fn build_fake_library(folder: &Path, version: &str) -> PathBuf {
    let source = folder.join("fake_library.rs");
    let text = format!(
        r#"
        #[repr(C)] pub struct Base {{ api: extern "C" fn(u32) -> *const u8, version: extern "C" fn() -> *const u8 }}
        extern "C" fn api(_: u32) -> *const u8 {{ std::ptr::null() }}
        extern "C" fn version() -> *const u8 {{ b"{version}\0".as_ptr() }}
        static BASE: Base = Base {{ api, version }};
        #[unsafe(no_mangle)] pub extern "C" fn OrtGetApiBase() -> *const Base {{ &BASE }}
        "#
    );
    std::fs::write(&source, text).unwrap();
    let target = folder.join(format!("libfake{}.so", version.replace('.', "_")));
    testing::build_library(&source, &target, &[]);
    target
}
