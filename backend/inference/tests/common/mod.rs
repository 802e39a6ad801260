//! Starts engines and loads photographs for the tests on real models.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]
use futures::future::join_all;
use inference::backend::OnnxModel;
use inference::batcher::{Batcher, Device, Limits};
use inference::models::Model;
use inference::{
    Config, Embedding, Engine, Manifest, ModelFile, ModelKind, Pack, Priority, Refusal, ResolvedPack,
    StartError,
};
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
/// images of any size. `with_quality`: the pack has a quality model.
pub fn start_fixture(config: &Config, with_quality: bool) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    Engine::start(config, &fixture_pack(folder.path(), |file| with_quality.then_some(file))).unwrap()
}

pub fn fixture_engine() -> Engine {
    start_fixture(&config(), false)
}

/// Writes the fixture pack to `folder`. `change` may add a quality model from the fixture's.
pub fn fixture_pack(folder: &Path, change: impl FnOnce(ModelFile) -> Option<ModelFile>) -> ResolvedPack {
    let manifest = testing::fixture_pack(folder).manifest();
    let mut pack = Manifest::parse(&manifest).unwrap().pack("fixture").unwrap().clone();
    pack.files.extend(change(testing::fixture_quality(folder)));
    ResolvedPack::verify(&pack, folder).unwrap()
}

/// Returns the file and the reason of the error with which an engine does not start.
pub fn model_error(pack: &ResolvedPack) -> String {
    match Engine::start(&config(), pack).unwrap_err() {
        StartError::Model { model, reason } => format!("{model}: {reason}"),
        error => panic!("{error}"),
    }
}

/// Returns the operation, the requested provider and the refusal of an error because of
/// `FORCE_GPU_ONLY`.
pub fn gpu_only(error: StartError) -> (&'static str, String, Refusal) {
    match error {
        StartError::GpuOnly { operation, provider, refusal } => (operation, provider, *refusal),
        error => panic!("{error}"),
    }
}

/// Draws the faces of fixtures: column, row and identity of each.
pub fn draw_faces(width: u32, height: u32, faces: &[(u32, u32, u32)]) -> Arc<Frame> {
    let background = Frame::filled(width, height, [70, 80, 60]).into_data();
    let mut image = testing::fixture_models::Canvas::from_raw(width, height, background).unwrap();
    for (column, row, identity) in faces {
        testing::draw_face(&mut image, *column, *row, *identity);
    }
    Arc::new(Frame::new(width, height, image.into_raw()).unwrap())
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

/// Detects on the letterboxed 640x640 canvas. Coordinates are those of the image.
pub async fn detect_at_640(engine: &Engine, frame: &Frame) -> Vec<Detection> {
    let letterbox = vision::Letterbox::fit((frame.width(), frame.height()), (640, 640));
    let canvas = Arc::new(letterbox.draw(frame));
    let min_score = engine.detector().min_score;
    let result = engine.detect(canvas, min_score, Priority::Interactive).await.unwrap();
    result.output.iter().map(|face| letterbox.map_to_image(face)).collect()
}

/// Runs the inputs on one session, in batches of `max_batch` (a divisor of their number) and one by
/// one. `load` loads the model. Returns both outputs of each input.
pub async fn run_batched_and_single<M: Model>(
    load: impl Fn() -> (M, OnnxModel),
    max_batch: usize,
    inputs: &[M::Input],
) -> Vec<(M::Output, M::Output)>
where
    M::Input: Clone,
{
    let run = async |max_batch: usize| {
        let (model, session) = load();
        let device = Device { primary: Box::new(session), fallback: None };
        let (max_delay, prefetch) = (Duration::from_secs(3600), max_batch > 1);
        let limits = Limits { queue_capacity: 64, max_batch, max_delay, prefetch };
        let batcher = Batcher::start(model, vec![device], limits).unwrap();
        join_all(inputs.iter().map(|input| batcher.run(input.clone(), Priority::Background))).await
    };
    let outputs = run(max_batch).await.into_iter().zip(run(1).await);
    outputs.map(|(batched, single)| (batched.unwrap().output, single.unwrap().output)).collect()
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
    engine.embed(Arc::new(chip), Priority::Background).await.unwrap().output
}

pub fn numbers(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// Parses a face of the oracle, for either detector.
pub fn oracle_face(value: &serde_json::Value) -> Detection {
    let has_size = value.get("bbox_xywh").is_some();
    let b = numbers(&value[if has_size { "bbox_xywh" } else { "bbox_xyxy" }]);
    let (width, height) = if has_size { (b[2], b[3]) } else { (b[2] - b[0], b[3] - b[1]) };
    let points = numbers(&value["landmarks"]);
    let landmarks: Landmarks = std::array::from_fn(|i| Point { x: points[2 * i], y: points[2 * i + 1] });
    let bbox = Rect { x: b[0], y: b[1], width, height };
    Detection { bbox, det_score: value["score"].as_f64().unwrap() as f32, landmarks }
}

/// Returns the face that overlaps `bbox` most.
pub fn most_overlapping<'a>(faces: &'a [Detection], bbox: &Rect) -> Option<&'a Detection> {
    faces.iter().max_by(|a, b| a.bbox.iou(bbox).total_cmp(&b.bbox.iou(bbox)))
}

/// Returns the distance of two boxes: the largest difference of an edge in pixels, and as a share
/// of the longer side.
pub fn distance(a: &Rect, b: &Rect) -> (f32, f32) {
    let edges = |r: &Rect| [r.x, r.y, r.x + r.width, r.y + r.height];
    let pixels = edges(a).iter().zip(edges(b)).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    (pixels, pixels / b.width.max(b.height))
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
