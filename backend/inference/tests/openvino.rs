//! Tests models on OpenVINO. These tests run in a separate process, because a process can load only
//! one library of ONNX Runtime, and the library for OpenVINO contains the CPU backend too.
#![allow(clippy::unwrap_used)]
mod common;
use common::*;
use inference::{Config, CpuBackend, Engine, Precision, ResolvedPack, TestResult, self_test};
use vision::{Detection, Frame};

/// Returns synthetic images of people.
fn drawings() -> [Frame; 3] {
    ["ada.jpg", "group.jpg", "two_people.jpg"].map(drawing)
}

fn start_engine(cpu_backend: CpuBackend, pack: &ResolvedPack) -> Engine {
    let config = Config { dylib_path: Some(testing::openvino()), cpu_backend, ..config() };
    Engine::start(&config, pack).unwrap()
}

fn model_placements(engine: &Engine) -> Vec<(String, &'static str, &'static str)> {
    engine.report().models.into_iter().map(|model| (model.device, model.provider, model.precision)).collect()
}

/// Runs two engines on an image. Returns the faces of each, and the lowest cosine between the two
/// embeddings of a face.
async fn compare(first: &Engine, second: &Engine, image: &Frame) -> (Vec<Detection>, Vec<Detection>, f32) {
    let (expected, faces) = (detect_at_640(first, image).await, detect_at_640(second, image).await);
    let mut lowest = 1.0_f32;
    for face in &expected {
        let (a, b) = (embedding(first, image, face).await, embedding(second, image, face).await);
        lowest = lowest.min(a.similarity(&b).unwrap());
    }
    (expected, faces, lowest)
}

#[testing::needs(openvino)]
#[testing::test]
async fn openvino_finds_same_drawn_faces_as_onnx_runtime() {
    check_same_faces(&testing::pack(), &drawings()).await;
}

#[testing::needs(openvino, shared)]
#[testing::test]
async fn openvino_matches_on_photographs_in_fp32_and_bf16() {
    let photographs = ["obama.jpg", "group_1.jpg", "two_people.jpg"].map(photograph);
    for pack in ["compact", "research"].map(|pack| resolve(&builtin(pack))) {
        check_same_faces(&pack, &photographs).await;
        check_similar_faces(&pack, &photographs).await;
    }
}

async fn check_same_faces(pack: &ResolvedPack, images: &[Frame]) {
    let onnx_runtime = start_engine(CpuBackend::OnnxRuntime, pack);
    let openvino = start_engine(CpuBackend::OpenVino(Precision::Fp32), pack);
    assert!(model_placements(&onnx_runtime).iter().all(|at| *at == ("cpu".to_owned(), "cpu", "fp32")));
    assert!(model_placements(&openvino).iter().all(|at| *at == ("cpu".to_owned(), "openvino", "fp32")));
    assert!(openvino.report().operations.iter().all(|operation| operation.reason.is_none()));
    let pack_name = &pack.pack.name;
    for (number, image) in images.iter().enumerate() {
        let (expected, faces, cosine) = compare(&onnx_runtime, &openvino, image).await;
        assert!(
            !expected.is_empty() && expected.len() == faces.len(),
            "{pack_name}, image {number}: {expected:?} {faces:?}"
        );
        for (a, b) in expected.iter().zip(&faces) {
            assert!(
                distance(&a.bbox, &b.bbox).0 < 0.1 && (a.det_score - b.det_score).abs() < 1e-3,
                "{pack_name}, image {number}: {a:?} {b:?}"
            );
        }
        assert!(cosine > 0.9999, "{pack_name}, image {number}: {cosine}");
    }
}

#[testing::needs(openvino)]
#[testing::test]
async fn bf16_finds_same_drawn_faces_or_reports_missing_support() {
    check_similar_faces(&testing::pack(), &drawings()).await;
}

async fn check_similar_faces(pack: &ResolvedPack, images: &[Frame]) {
    let onnx_runtime = start_engine(CpuBackend::OnnxRuntime, pack);
    let bf16 = start_engine(CpuBackend::OpenVino(Precision::Bf16), pack);
    if model_placements(&bf16).iter().any(|at| at.1 != "openvino") {
        let report = bf16.report();
        let reasons: Vec<_> =
            report.operations[..2].iter().filter_map(|operation| operation.reason.clone()).collect();
        assert!(reasons.len() == 2 && reasons.iter().all(|reason| reason.contains("bf16")), "{reasons:?}");
        return;
    }
    assert!(model_placements(&bf16).iter().all(|at| at.2 == "bf16"));
    let pack_name = &pack.pack.name;
    for (number, image) in images.iter().enumerate() {
        let (expected, faces, cosine) = compare(&onnx_runtime, &bf16, image).await;
        for clear in expected.iter().filter(|face| face.det_score >= 0.7) {
            let face = most_overlapping(&faces, &clear.bbox).unwrap();
            let share = distance(&clear.bbox, &face.bbox).1;
            assert!(share < 0.03, "{pack_name}, image {number}: {clear:?} {face:?}");
        }
        assert!(cosine > 0.99, "{pack_name}, image {number}: {cosine}");
    }
}

#[testing::needs(openvino)]
#[test]
fn self_test_distinguishes_openvino_from_cpu_provider() {
    let (library, pack) = (testing::openvino(), testing::pack());
    let cpu_backend = CpuBackend::OpenVino(Precision::Fp32);
    let config = Config { dylib_path: Some(library), cpu_backend, gpu_batch_size: 4, ..config() };
    let report = self_test(&config, &pack).unwrap();
    let tests_of =
        |provider: &str| report.tests.iter().filter(|test| test.provider == provider).collect::<Vec<_>>();
    assert_eq!((tests_of("cpu").len(), tests_of("openvino").len()), (5, 2));
    for test in tests_of("openvino") {
        assert_eq!((test.outcome, test.device.as_str()), (TestResult::Passed, "openvino"), "{test:?}");
        assert!(test.runs.iter().all(|run| run.difference < 1e-3), "{test:?}");
    }
}
