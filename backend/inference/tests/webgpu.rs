//! Tests operations on a GPU: the WebGPU plug-in on SwiftShader. These tests run in a separate
//! process, because other tests expect that no plug-in is loaded.
#![allow(clippy::unwrap_used)]
mod common;
use common::*;
use futures::future::join_all;
use inference::{Config, DeviceId, Engine, GpuBackend, Operation, Priority, TestResult, self_test};
use std::sync::Arc;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox, Limits, crop};

const IMAGE_OPERATIONS: [Operation; 3] =
    [Operation::ImageProcessing, Operation::ImageEnhancement, Operation::QualityChecks];

/// Returns the configuration of an engine whose `operations` must run on the software GPU.
fn webgpu_config(operations: &[Operation]) -> Config {
    Config {
        gpu_operations: operations.to_vec(),
        backend: GpuBackend::WebGpu,
        plugins_dir: Some(testing::plugins_dir()),
        gpu_batch_size: 4,
        detection_size: 128,
        force_gpu_only: true,
        ..config()
    }
}

/// Draws an image with edges, gradients and noise.
fn draw_test_image(width: u32, height: u32) -> Arc<Frame> {
    let mut noise = 0x2545_f491_u32;
    let mut level = |x: u32, y: u32| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let edge = if (x / 5 + y / 3).is_multiple_of(2) { 160 } else { 0 };
        (edge + (noise >> 28) + (x * 70 / width)) as u8
    };
    let data = (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).flat_map(|(x, y)| {
        let v = level(x, y);
        [v, 255 - v, v / 2]
    });
    Arc::new(Frame::new(width, height, data.collect()).unwrap())
}

const SIZES: [(u32, u32); 9] =
    [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (17, 13), (640, 640), (399, 30), (1001, 401)];

/// Returns the largest difference between two images in grey levels.
fn max_difference(a: &Frame, b: &Frame) -> u8 {
    assert_eq!((a.width(), a.height()), (b.width(), b.height()));
    a.data().iter().zip(b.data()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

async fn compare(engine: &Engine, name: &str, frame: &Arc<Frame>) {
    let (priority, limits) = (Priority::Interactive, Limits::default());
    for canvas in [(640, 640), (320, 192)] {
        let letterbox = Letterbox::fit((frame.width(), frame.height()), canvas);
        let actual = engine.canvas(frame.clone(), letterbox, priority).await.unwrap().output;
        let difference = max_difference(&letterbox.draw(frame), &actual);
        assert!(difference <= 1, "{name}: the canvas differs by {difference} grey levels");
    }
    let actual = engine.statistics(frame.clone(), priority).await.unwrap().output;
    let expected = vision::quality::grey_statistics(frame);
    let values = |s: &GreyStatistics| [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped];
    for (a, b) in values(&expected).into_iter().zip(values(&actual)) {
        assert!((a - b).abs() <= 1e-4 * a.max(1.0), "{name}: {expected:?} {actual:?}");
    }
    let actual = engine.enhance(frame.clone(), limits, priority).await.unwrap().output;
    let expected = vision::enhance::enhance(frame, &limits);
    assert_eq!(actual.scale, expected.scale, "{name}");
    let difference = max_difference(&expected.frame, &actual.frame);
    assert!(difference <= 4, "{name}: the enhanced image differs by {difference} grey levels");
    let pairs = expected.frame.data().iter().zip(actual.frame.data());
    let sum: u64 = pairs.map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let mean = sum as f64 / expected.frame.data().len() as f64;
    assert!(mean <= 0.05, "{name}: the enhanced image differs by {mean} grey levels on average");
}

#[testing::needs(webgpu, slow)]
#[testing::test]
async fn webgpu_processes_images_like_cpu() {
    let engine = Engine::start(&webgpu_config(&IMAGE_OPERATIONS), &testing::pack()).unwrap();
    assert!(IMAGE_OPERATIONS.iter().all(|operation| engine.runs_on_device(*operation)));
    for (width, height) in SIZES {
        compare(&engine, &format!("{width}x{height}"), &draw_test_image(width, height)).await;
    }
    let names: Vec<&str> = testing::gallery::names().step_by(6).collect();
    join_all(names.iter().map(async |name| {
        let frame = Arc::new(crop::thumbnail(&drawing(name), 400));
        compare(&engine, name, &frame).await;
        // Most images are too large to be enlarged.
        compare(&engine, &format!("{name}, small"), &Arc::new(crop::thumbnail(&frame, 120))).await;
    }))
    .await;
}

/// Returns images of faces with different identities at different places.
fn faces() -> Vec<Arc<Frame>> {
    let faces = |number| [(1 + number % 4, 2, number), (8, 3 + number % 4, number + 40)];
    (0..12_u32).map(|number| draw_faces(320, 256, &faces(number))).collect()
}

#[testing::needs(webgpu)]
#[testing::test]
async fn webgpu_runs_concurrent_requests_in_batches_like_cpu() {
    let operations = [Operation::FaceDetection, Operation::FaceEmbedding, Operation::QualityChecks];
    let (gpu, cpu) = (start_fixture(&webgpu_config(&operations), true), start_fixture(&config(), true));
    let report = gpu.report();
    for operation in report.operations.iter().filter(|operation| operation.gpu_requested) {
        assert_eq!((operation.effective.as_str(), &operation.reason), ("webgpu:0", &None), "{operation:?}");
    }
    assert!(
        report.models.iter().all(|model| (model.provider, model.max_batch) == ("webgpu", 4)),
        "{report:?}"
    );
    assert!(
        report.devices.iter().any(|gpu| gpu.backend == "webgpu" && gpu.name.contains("SwiftShader")),
        "{report:?}"
    );

    let results = async |engine: &Engine| {
        join_all(faces().into_iter().map(async |frame| {
            let found = engine.detect(frame.clone(), 0.6, Priority::Interactive).await.unwrap().output;
            let mut faces = Vec::new();
            for face in found {
                let chip = Arc::new(vision::norm_crop(&frame, &face.landmarks, 112).unwrap());
                let score = engine.score(chip, Priority::Interactive).await.unwrap().output;
                faces.push((embedding(engine, &frame, &face).await, score, face));
            }
            faces
        }))
        .await
    };
    let (on_gpu, on_cpu) = (results(&gpu).await, results(&cpu).await);
    for (on_gpu, on_cpu) in on_gpu.iter().zip(&on_cpu) {
        assert_eq!((on_gpu.len(), on_cpu.len()), (2, 2));
        for ((gpu_embedding, gpu_score, gpu_face), (cpu_embedding, cpu_score, cpu_face)) in
            on_gpu.iter().zip(on_cpu)
        {
            assert!(distance(&gpu_face.bbox, &cpu_face.bbox).0 < 0.1, "{gpu_face:?} {cpu_face:?}");
            assert!((gpu_score - cpu_score).abs() < 1e-4, "{gpu_score} {cpu_score}");
            assert!(gpu_embedding.similarity(cpu_embedding).unwrap() > 0.9999);
        }
    }
}

#[testing::needs(webgpu)]
#[testing::test]
async fn detector_draws_canvases_on_webgpu() {
    let operations = [Operation::FaceDetection, Operation::ImageProcessing];
    let (gpu, cpu) = (start_fixture(&webgpu_config(&operations), false), fixture_engine());
    assert!(gpu.draws_canvases_on_device());
    for frame in faces() {
        let letterbox = Letterbox::fit((frame.width(), frame.height()), (320, 256));
        let detect = async |engine: &Engine| {
            let detector = engine.face_detector();
            detector.detect(frame.clone(), letterbox, 0.6, Priority::Interactive).await.unwrap().output
        };
        let (on_gpu, on_cpu) = (detect(&gpu).await, detect(&cpu).await);
        assert_eq!((on_gpu.len(), on_cpu.len()), (2, 2));
        assert!(on_gpu.iter().zip(&on_cpu).all(|(a, b)| distance(&a.bbox, &b.bbox).0 < 0.1));
    }
}

#[testing::needs(webgpu)]
#[test]
fn auto_reports_providers_that_were_passed_over() {
    let config = Config { backend: GpuBackend::Auto, ..webgpu_config(&[Operation::QualityChecks]) };
    let report = Engine::start(&config, &testing::pack()).unwrap().report();
    let checks = &report.operations[4];
    assert_eq!((checks.requested.as_str(), checks.effective.as_str()), ("auto", "webgpu:0"));
    let passed_over: Vec<_> =
        checks.passed_over.iter().map(|failure| (failure.provider, failure.reason_kind)).collect();
    let expected = [
        ("tensorrt-rtx", "plugin_missing"),
        ("cuda", "not_in_library"),
        ("rocm", "not_in_library"),
        ("mps", "not_in_build"),
    ];
    assert_eq!(passed_over[..4], expected);
    assert_eq!(passed_over[4].0, "openvino-gpu");
}

#[testing::needs(webgpu)]
#[test]
fn gpu_numbers_that_webgpu_lacks_are_rejected() {
    let pack = testing::pack();
    for (id, backend) in [(1, None), (7, Some(GpuBackend::WebGpu))] {
        let device_ids = vec![DeviceId { backend, id }];
        let config = Config { device_ids, ..webgpu_config(&[Operation::QualityChecks]) };
        let (_, _, refusal) = gpu_only(Engine::start(&config, &pack).unwrap_err());
        assert_eq!(refusal.main_reason.kind.name(), "device_id", "{refusal:?}");
        assert!(refusal.to_string().contains("the driver lists 1 GPU"), "{refusal}");
    }
}

#[testing::needs(webgpu)]
#[test]
fn devices_of_several_backends_must_all_work() {
    let device = |backend| DeviceId { backend: Some(backend), id: 0 };
    let device_ids = vec![device(GpuBackend::WebGpu), device(GpuBackend::Cuda)];
    let config = Config { device_ids, ..webgpu_config(&[Operation::QualityChecks]) };
    let (_, provider, refusal) = gpu_only(Engine::start(&config, &testing::pack()).unwrap_err());
    assert_eq!((provider.as_str(), refusal.main_reason.kind.name()), ("webgpu,cuda", "not_in_library"));
}

#[testing::needs(webgpu)]
#[testing::test]
async fn operations_without_device_return_error() {
    let engine = start_fixture(&webgpu_config(&[Operation::FaceDetection]), false);
    assert!(!engine.draws_canvases_on_device());
    assert!(IMAGE_OPERATIONS.iter().all(|operation| !engine.runs_on_device(*operation)));
    let frame = draw_test_image(8, 8);
    let error = engine.statistics(frame, Priority::Interactive).await.unwrap_err();
    assert!(error.to_string().contains("no device"), "{error}");
}

#[testing::needs(webgpu)]
#[test]
fn self_test_passes_on_webgpu() {
    let folder = tempfile::tempdir().unwrap();
    let report = self_test(&webgpu_config(&[]), &fixture_pack(folder.path(), Some)).unwrap();
    let tests: Vec<_> = report.tests.iter().filter(|test| test.provider == "webgpu").collect();
    let operations: Vec<_> = tests.iter().map(|test| test.operation.unwrap()).collect();
    let [detection, embedding, processing, enhancement, quality] = Operation::ALL.map(Operation::name);
    assert_eq!(operations, [detection, embedding, quality, processing, enhancement, quality]);
    assert!(
        tests.iter().all(|test| test.outcome == TestResult::Passed && test.device == "webgpu:0"),
        "{tests:#?}"
    );
}
