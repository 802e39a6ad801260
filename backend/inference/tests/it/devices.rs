//! Tests models on all devices: batches, shapes, the self-test, reports of missing devices.
use crate::common::*;
use inference::backend::{Backend, BackendError, BatchView, OnnxModel, Placement};
use inference::models::{DetectionRequest, DetectorModel};
use inference::runtime::Runtime;
use inference::tensorrt::Profile;
use inference::{
    Config, CpuBackend, Engine, GpuBackend, ModelKind, Operation, PerformanceMode, Precision, StartError,
    TestResult, build_engines, self_test,
};
use std::sync::{Arc, Mutex};

#[test]
fn self_test_runs_every_model_and_explains_absent_providers() {
    let config = Config { gpu_batch_size: 4, ..config() };
    let report = self_test(&config, &testing::pack()).unwrap();
    let cpu: Vec<_> = report.tests.iter().filter(|test| test.provider == "cpu").collect();
    let operations: Vec<_> = cpu.iter().map(|test| test.operation.unwrap()).collect();
    assert_eq!(operations, Operation::ALL.map(Operation::name).as_slice());
    for test in &cpu {
        assert_eq!((test.outcome, test.device.as_str()), (TestResult::Passed, "cpu"), "{test:?}");
        assert!(test.runs.iter().all(|run| run.steady_seconds.is_some()));
    }
    let (models, graphs) = cpu.split_at(2);
    for test in models {
        // The files have fixed batch axes. A batch of 4 shows that the axis is dynamic and that the
        // results are equal.
        let sizes: Vec<_> = test.runs.iter().map(|run| run.batch).collect();
        assert_eq!(sizes, [1, 4], "{test:?}");
        assert!(test.runs.iter().all(|run| run.difference < 1e-3));
        assert!(test.load.as_ref().unwrap().bytes > 200_000);
    }
    for test in graphs {
        // Images run one by one, and the enhanced image may differ by four grey levels.
        assert_eq!(test.runs.iter().map(|run| run.batch).collect::<Vec<_>>(), [1], "{test:?}");
        assert!(test.runs[0].difference < 0.02, "{test:?}");
        assert!(test.load.as_ref().unwrap().bytes > 0);
    }
    for test in report.tests.iter().filter(|test| test.provider != "cpu") {
        assert_eq!(test.outcome, TestResult::Absent, "{test:?}");
        let expected = ["not_in_library", "not_in_build", "plugin_missing"];
        assert!(test.reason.is_some() && expected.contains(&test.reason_kind.unwrap()), "{test:?}");
    }
    let providers: Vec<_> = report.tests.iter().map(|test| test.provider).collect();
    let absent = ["openvino", "cuda", "tensorrt", "tensorrt-rtx", "rocm", "mps", "openvino-gpu", "webgpu"];
    assert_eq!(providers, [&["cpu"; 5][..], &absent].concat());
}

#[test]
fn missing_openvino_falls_back_to_onnx_runtime_with_reason() {
    let config = Config { cpu_backend: CpuBackend::OpenVino(Precision::Fp32), ..config() };
    let report = Engine::start(&config, &testing::pack()).unwrap().report();
    for operation in &report.operations[..2] {
        let reason = operation.reason.as_deref().unwrap_or_default();
        assert!(reason.starts_with("openvino: ") && reason.contains("built without it"), "{operation:?}");
        assert!(reason.contains("scripts/openvino"), "the reason must name the script: {operation:?}");
        assert_eq!((operation.requested.as_str(), operation.effective.as_str()), ("cpu", "cpu"));
    }
    assert!(
        report.models.iter().all(|model| (model.provider, model.precision) == ("cpu", "fp32")),
        "{report:?}"
    );
}

#[testing::needs(shared)]
#[test]
fn model_without_batch_axis_runs_single_items() {
    // SCRFD 2.5G joins items and anchors in one axis.
    let pack = resolve(&builtin("research"));
    let report = self_test(&Config { gpu_batch_size: 4, ..config() }, &pack).unwrap();
    let detection = report.tests.iter().find(|test| test.operation == Some("face_detection")).unwrap();
    assert_eq!(detection.outcome, TestResult::Passed, "{detection:?}");
    assert_eq!(detection.runs.iter().map(|run| run.batch).collect::<Vec<_>>(), [1]);
}

#[test]
fn building_engines_without_tensorrt_fails_with_reason() {
    let config = Config { backend: GpuBackend::Tensorrt, ..config() };
    match build_engines(&config, &testing::pack()).unwrap_err() {
        StartError::NoTensorrt { reason } => assert!(reason.contains("built without it"), "{reason}"),
        error => panic!("{error}"),
    }
    assert!(!config.tensorrt.cache_dir.exists(), "no folder is created");
}

/// Returns the runtime and the content of the fixture's detector.
fn runtime_and_detector() -> (Runtime, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = testing::fixture_pack(folder.path()).detector.path;
    (Runtime::load(Some(&testing::library())).unwrap(), std::fs::read(path).unwrap())
}

/// Runs a batch of equal values and returns the first output.
fn run(model: &mut OnnxModel, shape: [usize; 4]) -> Result<Vec<f32>, BackendError> {
    let data = vec![9.0; shape.iter().product()];
    let mut values = Vec::new();
    let result = model.run(BatchView { shape, data: &data }, &mut |outputs| {
        values = outputs[0].data.to_vec();
    });
    result.map(|()| values)
}

#[test]
fn shapes_outside_profile_use_fallback_or_fail() {
    let (runtime, bytes) = runtime_and_detector();
    let detector = || OnnxModel::load(&runtime, &bytes, &Placement::CPU).unwrap();
    let profile = || Profile::new(detector().input_name(), [3, 64, 64], 2, PerformanceMode::Throughput);
    let mut without_fallback = detector().with_profile(profile(), None);
    for shape in [[1, 3, 64, 64], [2, 3, 64, 64]] {
        run(&mut without_fallback, shape).unwrap();
    }
    for shape in [[3, 3, 64, 64], [1, 3, 96, 64], [1, 3, 32, 32]] {
        let error = run(&mut without_fallback, shape).unwrap_err().to_string();
        assert!(error.contains("outside the shapes") && error.contains("1x3x64x64"), "{error}");
    }
    let mut with_fallback = detector().with_profile(profile(), Some(detector()));
    assert_eq!(run(&mut with_fallback, [1, 3, 96, 64]), run(&mut detector(), [1, 3, 96, 64]));
}

#[test]
fn shape_specific_sessions_give_same_results() {
    let (runtime, bytes) = runtime_and_detector();
    let shapes = [[1, 3, 64, 64], [4, 3, 64, 64], [1, 3, 32, 32]];
    let mut expected = OnnxModel::load(&runtime, &bytes, &Placement::CPU).unwrap();
    for (memory_limit, other_shapes, sessions) in [(0, true, 1), (1 << 30, true, 4), (1 << 30, false, 3)] {
        let placement = Placement { memory_limit, ..Placement::CPU };
        let mut model =
            OnnxModel::load_for_shapes(&runtime, &bytes, &placement, &shapes, other_shapes).unwrap();
        assert_eq!(model.session_count(), sessions);
        for largest in [4, 1] {
            model.release_batches_above(largest);
            for shape in shapes.into_iter().chain([[2, 3, 96, 64]]) {
                assert_eq!(run(&mut model, shape), run(&mut expected, shape), "{shape:?}");
            }
        }
    }
}

#[testing::needs(shared)]
#[testing::test(flavor = "multi_thread")]
async fn batch_of_canvases_equals_single_runs() {
    let runtime = Runtime::load(Some(&testing::library())).unwrap();
    let bytes = std::fs::read(testing::model("face_detection_yunet_dynamic.onnx")).unwrap();
    let file = builtin("compact").file(ModelKind::Detector).unwrap().clone();
    let load = || {
        let session = OnnxModel::load(&runtime, &bytes, &Placement::CPU).unwrap();
        (DetectorModel::new(&file, session.input_shape(), session.output_count()).unwrap(), session)
    };
    let probes = ["obama.jpg", "two_people.jpg", "group_6.jpg", "view.jpg"].map(|name| {
        let frame = photograph(name);
        let letterbox = vision::Letterbox::fit((frame.width(), frame.height()), (320, 320));
        DetectionRequest { frame: Arc::new(frame), letterbox, min_score: 0.6 }
    });
    let mut faces = 0;
    for (batched, single) in run_batched_and_single(load, 4, &probes).await {
        assert_eq!(batched.len(), single.len());
        for (a, b) in batched.iter().zip(&single) {
            assert!(distance(&a.bbox, &b.bbox).0 < 0.01 && (a.det_score - b.det_score).abs() < 1e-4);
        }
        faces += single.len();
    }
    assert!(faces > 5, "{faces}");
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{field}={value:?} ");
        });
        self.0.lock().unwrap().push(text);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn missing_gpu_causes_one_warning_for_all_operations() {
    let warnings = Arc::new(Warnings::default());
    let config = Config { gpu_operations: Operation::ALL.to_vec(), backend: GpuBackend::Auto, ..config() };
    let engine = tracing::subscriber::with_default(warnings.clone(), || {
        Engine::start(&config, &testing::pack()).unwrap()
    });
    let texts = warnings.0.lock().unwrap().clone();
    assert_eq!(texts.len(), 1, "{texts:#?}");
    for operation in Operation::ALL {
        assert!(texts[0].contains(operation.name()), "{texts:?}");
    }
    assert!(texts[0].contains("webgpu: its plug-in is not installed"), "{texts:?}");
    let report = engine.report();
    for operation in &report.operations {
        assert_eq!(operation.reason_kind, Some("plugin_missing"));
        let detail = operation.detail.as_deref().unwrap();
        for provider in ["tensorrt-rtx: ", "cuda: ", "rocm: ", "mps: ", "openvino-gpu: ", "webgpu: "] {
            assert!(detail.contains(provider), "the detail names every provider that was tried: {detail}");
        }
    }
    assert!(report.providers.iter().any(|p| p.name == "cuda" && p.in_build && !p.in_library));
    assert_eq!(report.models.len(), 2);
    for model in &report.models {
        assert_eq!((model.device.as_str(), model.memory_before), ("cpu", None));
        assert!(model.seconds > 0.0 && model.sessions == 2);
    }
}
