//! Tests the start of engines, rejected inputs and reports.
use crate::common::*;
use futures::future::join_all;
use inference::{
    Config, Engine, GpuBackend, ModelKind, Operation, Priority, ResolvedPack, RunError, StartError,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vision::Frame;

/// A metrics recorder that counts `facecrawl_ep_fallback_total` by its labels.
#[derive(Default)]
struct Fallbacks(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Recorder for Fallbacks {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        assert_eq!(key.name(), "facecrawl_ep_fallback_total");
        let mut labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        labels.sort();
        Counter::from_arc(self.0.lock().unwrap().entry(labels.join(",")).or_default().clone())
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn start_counting(
    config: &Config,
    pack: &ResolvedPack,
) -> (Result<Engine, StartError>, BTreeMap<String, u64>) {
    let fallbacks = Fallbacks::default();
    let engine = metrics::with_local_recorder(&fallbacks, || Engine::start(config, pack));
    let counts = fallbacks.0.into_inner().unwrap().into_iter();
    (engine, counts.map(|(labels, count)| (labels, count.load(Ordering::SeqCst))).collect())
}

#[testing::test]
async fn absent_gpu_provider_fallback_is_reported() {
    let config = Config {
        gpu_operations: vec![Operation::FaceDetection, Operation::QualityChecks],
        backend: GpuBackend::Cuda,
        ..config()
    };
    let (engine, counts) = start_counting(&config, &testing::pack());
    let engine = engine.unwrap();
    let expected = [
        ("operation=face_detection,provider=cuda".to_owned(), 1),
        ("operation=quality_checks,provider=cuda".to_owned(), 1),
    ];
    assert_eq!(counts, BTreeMap::from(expected));

    let report = engine.report();
    assert_eq!(report.backends, ["cpu"]);
    let names: Vec<_> = report.operations.iter().map(|o| o.operation).collect();
    assert_eq!(names, Operation::ALL.map(Operation::name));
    for operation in &report.operations {
        assert_eq!(operation.effective, "cpu");
        let is_requested = operation.operation == "face_detection" || operation.operation == "quality_checks";
        assert_eq!(operation.gpu_requested, is_requested);
        assert_eq!(operation.requested, if is_requested { "cuda" } else { "cpu" });
        assert_eq!(operation.reason.is_some(), is_requested, "{operation:?}");
        assert_eq!(operation.reason_kind, is_requested.then_some("not_in_library"), "{operation:?}");
        assert_eq!(operation.detail.is_some(), is_requested, "{operation:?}");
    }
    let reason = report.operations[0].reason.as_deref().unwrap();
    assert!(reason.contains("cuda") && reason.contains("built without"), "{reason}");

    let frame = drawing("ada.jpg");
    assert_eq!(detect_at_640(&engine, &frame).await.len(), 1, "the engine runs on the CPU");
    engine.check_ready().unwrap();
}

#[test]
fn missing_backend_is_named_in_fallback_reason() {
    let pack = testing::pack();
    for (backend, requested, reason) in [
        (GpuBackend::Auto, "auto", "webgpu: "),
        (GpuBackend::Tensorrt, "tensorrt", "tensorrt-rtx: "),
        (GpuBackend::Rocm, "rocm", "rocm: "),
        (GpuBackend::Mps, "mps", "mps: this program was built without it"),
        (GpuBackend::OpenVino, "openvino", "openvino-gpu: its plug-in is not installed"),
        (GpuBackend::WebGpu, "webgpu", "`./scripts/gpu-runtime webgpu` installs it"),
        (GpuBackend::Cpu, "cpu", "GPU_BACKEND is cpu"),
    ] {
        let config = Config { gpu_operations: vec![Operation::FaceEmbedding], backend, ..config() };
        let (engine, counts) = start_counting(&config, &pack);
        let report = engine.unwrap().report();
        assert_eq!(report.operations[1].requested, requested);
        assert!(report.operations[1].reason.as_deref().unwrap().contains(reason), "{report:?}");
        assert_eq!(counts[&format!("operation=face_embedding,provider={requested}")], 1);
    }
}

#[test]
fn force_gpu_only_prevents_start_without_gpu() {
    let pack = testing::pack();
    for operation in Operation::ALL {
        let config = Config {
            gpu_operations: vec![operation],
            backend: GpuBackend::Cuda,
            force_gpu_only: true,
            ..config()
        };
        let (engine, counts) = start_counting(&config, &pack);
        let error = engine.unwrap_err();
        let text = error.to_string();
        let [problem, reason, advice] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(problem.contains(operation.name()) && reason.contains("built without it"), "{text}");
        assert!(advice.contains("FORCE_GPU_ONLY=false"), "{text}");
        let (actual_operation, provider, refusal) = gpu_only(error);
        assert_eq!((actual_operation, provider.as_str()), (operation.name(), "cuda"));
        assert_eq!(refusal.main_reason.kind.name(), "not_in_library");
        assert!(counts.is_empty(), "no operation fell back");
    }
    // Without an operation on a GPU, FORCE_GPU_ONLY has no effect.
    Engine::start(&Config { force_gpu_only: true, ..config() }, &pack).unwrap();
}

/// Returns the fixture pack in `folder`, with `detector` as the content of its detector and a
/// matching hash.
fn pack_with_detector(folder: &std::path::Path, detector: &[u8]) -> ResolvedPack {
    use sha2::Digest;
    let mut pack = fixture_pack(folder, |_| None);
    std::fs::write(pack.path(&pack.pack.files[0]), detector).unwrap();
    pack.pack.files[0].sha256 = hex::encode(sha2::Sha256::digest(detector));
    pack
}

#[test]
fn unusable_model_error_names_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let error = model_error(&pack_with_detector(folder.path(), b"not an ONNX file"));
    assert!(error.starts_with("fixture_detector.onnx: "), "{error}");

    let embedder = std::fs::read(path("fixture_embedder.onnx")).unwrap();
    let error = model_error(&pack_with_detector(folder.path(), &embedder));
    assert!(error.contains("1 outputs"), "{error}");

    let mut changed = pack_with_detector(folder.path(), &embedder);
    changed.pack.files[0].sha256 = hex::encode([0; 32]);
    assert!(model_error(&changed).contains("is corrupt"));

    testing::fixture_pack(folder.path());
    let detector = std::fs::read(path("fixture_detector.onnx")).unwrap();
    let mut missing = pack_with_detector(folder.path(), &detector);
    std::fs::remove_file(path("fixture_embedder.onnx")).unwrap();
    assert!(model_error(&missing).starts_with("fixture_embedder.onnx: "));
    missing.pack.files.retain(|f| f.kind == ModelKind::Detector);
    assert!(model_error(&missing).contains("no embedder"));
}

#[testing::test]
async fn invalid_engine_input_error_names_valid_input() {
    let engine = fixture_engine();
    let detect = |width, height, min_score| {
        engine.detect(Arc::new(Frame::filled(width, height, [9, 9, 9])), min_score, Priority::Interactive)
    };
    let chip = Arc::new(Frame::filled(111, 112, [9, 9, 9]));
    for (error, expected) in [
        (detect(100, 64, 0.5).await.unwrap_err(), "multiples of 32"),
        (detect(64, 64, 1.5).await.unwrap_err(), "0 to 1"),
        (detect(64, 64, f32::NAN).await.unwrap_err(), "0 to 1"),
        (engine.embed(chip, Priority::Interactive).await.unwrap_err(), "112x112"),
    ] {
        assert!(matches!(&error, RunError::Failed { reason, .. } if reason.contains(expected)), "{error}");
    }
    assert!(detect(32, 32, 0.5).await.unwrap().output.is_empty());
    // A threshold of 0 accepts every score. Non-maximum suppression limits the faces.
    assert!(detect(640, 640, 0.0).await.unwrap().output.len() <= 5000);
}

#[testing::test(flavor = "multi_thread")]
async fn concurrent_detections_equal_single_runs() {
    let engine = default_engine();
    let names = ["ada.jpg", "two_people.jpg", "view.jpg", "ben.jpg", "group.jpg", "cora.jpg"];
    let mut expected_faces = Vec::new();
    for name in names {
        expected_faces.push((Arc::new(drawing(name)), detect_at_640(&engine, &drawing(name)).await));
    }
    let tasks = (0..60).map(|i| {
        let (engine, (frame, expected)) = (engine.clone(), expected_faces[i % expected_faces.len()].clone());
        tokio::spawn(async move { assert_eq!(detect_at_640(&engine, &frame).await, expected) })
    });
    join_all(tasks.collect::<Vec<_>>()).await.into_iter().for_each(Result::unwrap);
    assert_eq!(engine.embedder().name, "face_recognition_sface_2021dec_int8bq");
    assert_eq!(engine.detector().name, "face_detection_yunet_2023mar_int8bq");
    assert_eq!(engine.embedder().identity.len(), 64);
}

#[testing::test]
async fn engine_rejects_requests_after_deadline() {
    let engine = fixture_engine();
    let expired = engine.with_deadline(std::time::Instant::now());
    let canvas = || Arc::new(Frame::filled(64, 64, [9, 9, 9]));
    let error = expired.detect(canvas(), 0.5, Priority::Interactive).await.unwrap_err();
    assert!(matches!(error, RunError::DeadlineExceeded { operation: "face_detection" }), "{error}");
    let chip = Arc::new(Frame::filled(112, 112, [9, 9, 9]));
    let error = expired.embed(chip, Priority::Interactive).await.unwrap_err();
    assert!(matches!(error, RunError::DeadlineExceeded { operation: "face_embedding" }), "{error}");
    // The deadline is that of one caller; other callers are not affected.
    assert!(engine.detect(canvas(), 0.5, Priority::Interactive).await.is_ok());
}
