//! Tests image operations on a device (here the CPU provider) against the CPU's code.
use crate::common::*;
use futures::future::join_all;
use inference::{Config, Engine, FakeGpu, Operation, Priority, RunError};
use std::sync::Arc;
use vision::quality::GreyStatistics;
use vision::{Detection, Frame, Letterbox, Limits, crop};

const IMAGE_OPERATIONS: [Operation; 3] =
    [Operation::ImageProcessing, Operation::ImageEnhancement, Operation::QualityChecks];

/// Starts an engine whose `operations` run on two devices.
fn start_on_devices(operations: &[Operation], fake_gpu: FakeGpu) -> Engine {
    let config = Config {
        gpu_operations: operations.to_vec(),
        device_ids: vec![0, 1],
        gpu_batch_size: 4,
        second_canvas: Some(192),
        fake_gpu,
        ..config()
    };
    Engine::start(&config, &testing::pack()).unwrap()
}

/// Returns all images of the gallery, decoded.
fn drawings() -> Vec<(String, Arc<Frame>)> {
    testing::gallery::names().map(|name| (name.to_owned(), Arc::new(drawing(name)))).collect()
}

fn photographs() -> Vec<(String, Arc<Frame>)> {
    let decode = |path: std::path::PathBuf| {
        let decoded = vision::decode(&std::fs::read(&path).unwrap(), &Limits::default()).unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), Arc::new(decoded.frame))
    };
    testing::images().into_iter().map(decode).collect()
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

fn statistics_values(s: &GreyStatistics) -> [f64; 5] {
    [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped]
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
    for (a, b) in statistics_values(&expected).into_iter().zip(statistics_values(&actual)) {
        assert!((a - b).abs() <= 1e-4 * a.max(1.0), "{name}: {expected:?} {actual:?}");
    }
    let actual = engine.enhance(frame.clone(), limits, priority).await.unwrap().output;
    let expected = vision::enhance::enhance(frame, &limits);
    assert_eq!(actual.scale, expected.scale, "{name}");
    let difference = max_difference(&expected.frame, &actual.frame);
    assert!(difference <= 4, "{name}: the enhanced image differs by {difference} grey levels");
    let sum: u64 =
        expected.frame.data().iter().zip(actual.frame.data()).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let mean = sum as f64 / expected.frame.data().len() as f64;
    assert!(mean <= 0.05, "{name}: the enhanced image differs by {mean} grey levels on average");
}

#[testing::test]
async fn device_processes_images_of_every_size_like_cpu() {
    let engine = start_on_devices(&IMAGE_OPERATIONS, FakeGpu::Cpu);
    for (width, height) in SIZES {
        compare(&engine, &format!("{width}x{height}"), &draw_test_image(width, height)).await;
    }
}

#[testing::test]
async fn device_processes_drawn_people_like_cpu() {
    compare_with_cpu(&drawings()).await;
}

#[testing::needs(shared)]
#[testing::test]
async fn device_processes_photographs_like_cpu() {
    let photographs = photographs();
    assert!(photographs.len() > 40);
    compare_with_cpu(&photographs).await;
}

async fn compare_with_cpu(images: &[(String, Arc<Frame>)]) {
    let engine = start_on_devices(&IMAGE_OPERATIONS, FakeGpu::Cpu);
    join_all(images.iter().map(async |(name, frame)| {
        compare(&engine, name, frame).await;
        // Most images are too large to be enlarged.
        compare(&engine, &format!("{name}, small"), &Arc::new(crop::thumbnail(frame, 120))).await;
    }))
    .await;
}

/// Returns whether the faces and their places are equal: scores within 0.001, edges and landmarks
/// within 0.1 pixels.
fn are_same_faces(a: &[Detection], b: &[Detection]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            (a.det_score - b.det_score).abs() < 1e-3
                && distance(&a.bbox, &b.bbox).0 < 0.1
                && a.landmarks.iter().zip(&b.landmarks).all(|(p, q)| p.distance(*q) < 0.1)
        })
}

#[testing::test]
async fn device_detects_same_faces_in_uploaded_frames() {
    let operations = [Operation::FaceDetection, Operation::ImageProcessing];
    let device = start_on_devices(&operations, FakeGpu::Cpu);
    let cpu_engine = default_engine();
    assert!(device.draws_canvases_on_device() && !cpu_engine.draws_canvases_on_device());
    // There is a session for each batch size (1 and 4) of each of the two canvases, and one session
    // for other shapes.
    let report = device.report();
    let models = report.models.iter().filter(|model| model.operation == "face_detection");
    assert!(
        models.clone().count() == 2
            && models.clone().all(|model| (model.sessions, model.max_batch) == (5, 4))
    );
    let images = drawings();
    let detect = |engine: &Engine| {
        let engine = engine.clone();
        let images = images.clone();
        // All requests run at the same time, so that batches form.
        async move {
            join_all(images.iter().map(async |(_, frame)| {
                let letterbox = Letterbox::fit((frame.width(), frame.height()), (640, 640));
                engine
                    .face_detector()
                    .detect(frame.clone(), letterbox, 0.6, Priority::Interactive)
                    .await
                    .unwrap()
                    .output
            }))
            .await
        }
    };
    let (device_faces, cpu_faces) = (detect(&device).await, detect(&cpu_engine).await);
    let faces: usize = cpu_faces.iter().map(Vec::len).sum();
    assert!(faces > 100, "{faces} faces");
    for ((name, frame), (device_faces, cpu_faces)) in images.iter().zip(device_faces.iter().zip(&cpu_faces)) {
        assert!(are_same_faces(device_faces, cpu_faces), "{name}: {device_faces:?} {cpu_faces:?}");
        let letterbox = Letterbox::fit((frame.width(), frame.height()), (640, 640));
        let canvas = Arc::new(letterbox.draw(frame));
        let canvas = device.detect(canvas, 0.6, Priority::Interactive).await.unwrap().output;
        assert!(are_same_faces(&canvas, cpu_faces), "{name}: the faces on a drawn canvas differ");
    }
}

#[testing::test]
async fn operations_without_device_return_error() {
    let engine = start_on_devices(&[Operation::FaceDetection], FakeGpu::Cpu);
    assert!(!engine.draws_canvases_on_device());
    assert!(IMAGE_OPERATIONS.iter().all(|operation| !engine.runs_on_device(*operation)));
    let error = engine.statistics(draw_test_image(8, 8), Priority::Interactive).await.unwrap_err();
    assert!(error.to_string().contains("no device"), "{error}");
}

#[testing::test]
async fn failing_device_allows_cpu_fallback_unless_forced() {
    let engine = start_on_devices(&IMAGE_OPERATIONS, FakeGpu::Failing);
    engine.check_ready().unwrap();
    let error = engine.statistics(draw_test_image(8, 8), Priority::Interactive).await.unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    assert!(engine.may_fall_back_to_cpu(Operation::QualityChecks, &error));
    assert!(
        !engine.may_fall_back_to_cpu(Operation::QualityChecks, &RunError::Stopped),
        "the engine has stopped"
    );

    let config = Config {
        gpu_operations: IMAGE_OPERATIONS.to_vec(),
        fake_gpu: FakeGpu::Failing,
        force_gpu_only: true,
        ..config()
    };
    let forced = Engine::start(&config, &testing::pack()).unwrap();
    let error =
        forced.enhance(draw_test_image(8, 8), Limits::default(), Priority::Interactive).await.unwrap_err();
    assert!(!forced.may_fall_back_to_cpu(Operation::ImageEnhancement, &error), "FORCE_GPU_ONLY forbids it");
}
