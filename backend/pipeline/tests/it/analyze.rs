//! Tests the analysis of an image: faces, options, enhancement, and operations on a device.
use crate::support::{analyze, analyzer, analyzer_on, pixels, rotation_options, similarity};
use inference::{DetectionCanvas, Engine, GpuBackend, Operation, Priority};
use pipeline::{Analysis, AnalyzeError, AnalyzeOptions, Analyzer, Enhance, Passes};
use sha2::Digest;
use std::sync::Arc;
use std::time::Instant;
use testing::drawing;
use vision::{DecodeError, Frame, Rect, crop, encode};

async fn analyze_drawing(analyzer: &Analyzer, name: &str, options: &AnalyzeOptions) -> Analysis {
    analyze(analyzer, drawing(name), options).await
}

#[testing::test]
async fn finds_portrait_face_in_image_coordinates() {
    assert_one_face(drawing("ada.jpg"), (720, 900), testing::gallery::face("ada.jpg")).await;
}

#[testing::needs(shared)]
#[testing::test]
async fn finds_photographed_reference_face_at_every_rotation() {
    let oracle = testing::oracle();
    let expected = &oracle["obama.jpg"];
    let side = |name: &str| expected[name].as_u64().unwrap() as u32;
    // The reference implementation ran the same model at the full resolution of the image. The face
    // is the same and the box is almost the same.
    let face = serde_json::from_value(expected["yunet_native"][0]["bbox_xywh"].clone()).unwrap();
    assert_one_face(testing::image("obama.jpg"), (side("width"), side("height")), face).await;
    for pack in ["compact", "research"] {
        let photograph = |degrees| testing::image(&format!("rotate_rot_{degrees}.jpg"));
        check_rotations(&analyzer_on(pack).await, photograph).await;
    }
}

#[testing::needs(video)]
#[testing::test]
async fn finds_face_in_formats_decoded_by_ffmpeg() {
    let images = video::ImageDecoder::new(|| Some(crate::videos::decoder()));
    let (without_ffmpeg, config) =
        (analyzer().await, pipeline::Config { images, ..pipeline::Config::default() });
    let with_ffmpeg = Analyzer::new(without_ffmpeg.engine().clone(), config);
    let [x, y, width, height] = testing::gallery::face("ada.jpg");
    let expected = Rect { x, y, width, height };
    let portrait = pixels(&drawing("ada.jpg"));
    for (format, file) in testing::still::of_each_format(&portrait) {
        let analysis = analyze(&with_ffmpeg, file.clone(), &AnalyzeOptions::default()).await;
        assert_eq!((analysis.format.name(), analysis.faces.len()), (format, 1));
        assert!(analysis.faces[0].detection.bbox.iou(&expected) > 0.8, "{format}");
        // A crawl or a scan skips the image with this reason.
        let error = without_ffmpeg
            .analyze(file.into(), &AnalyzeOptions::default(), Priority::Interactive)
            .await
            .unwrap_err();
        assert_eq!(
            (error.reason(), error.state()),
            (domain::Reason::NeedsFfmpeg, domain::Unprocessed::Skipped)
        );
    }
}

/// Checks the analysis of an image of `size` with one face at `expected` (x, y, width, height).
async fn assert_one_face(image: Vec<u8>, size: (u32, u32), expected: [f32; 4]) {
    let analyzer = analyzer().await;
    let sha256: [u8; 32] = sha2::Sha256::digest(&image).into();
    let result =
        analyze(&analyzer, image, &AnalyzeOptions { chips: true, ..AnalyzeOptions::default() }).await;
    assert_eq!((result.frame.width(), result.frame.height()), size);
    assert_eq!(result.sha256, sha256);
    assert_eq!((result.faces.len(), result.rotation), (1, 0));

    let face = &result.faces[0];
    let [x, y, width, height] = expected;
    let expected = Rect { x, y, width, height };
    assert!(face.detection.bbox.iou(&expected) > 0.8, "{:?} {expected:?}", face.detection.bbox);
    let chip = face.chip.as_ref().unwrap();
    assert_eq!((chip.width(), chip.height()), (112, 112));
    assert_eq!(face.embedding.as_ref().unwrap().as_slice().len(), analyzer.engine().embedder().dimensions);
    assert!(face.quality.as_ref().unwrap().passed, "{:?}", face.quality);
}

#[testing::test]
async fn face_boxes_stay_inside_image() {
    let analyzer = analyzer().await;
    let options = AnalyzeOptions::default();
    let portrait = analyze_drawing(&analyzer, "ada.jpg", &options).await;
    let Rect { x, y, width, height } = portrait.faces[0].detection.bbox;
    let (mut faces, mut truncated) = (0, 0);
    for share in [0.1, 0.2, 0.3] {
        // The image ends inside the face at one of its sides.
        let (across, down) = (share * width, share * height);
        let (right, bottom) = (portrait.frame.width() as f32, portrait.frame.height() as f32);
        for part in [
            Rect { x: x + across, y: 0.0, width: right, height: bottom },
            Rect { x: 0.0, y: y + down, width: right, height: bottom },
            Rect { x: 0.0, y: 0.0, width: x + width - across, height: bottom },
            Rect { x: 0.0, y: 0.0, width: right, height: y + height - down },
        ] {
            let part = encode::png(&crop::face_crop(&portrait.frame, &part, 0.0));
            let analysis = analyze(&analyzer, part, &options).await;
            for face in &analysis.faces {
                let bbox = face.detection.bbox;
                let size = (analysis.frame.width(), analysis.frame.height());
                assert_eq!(bbox.clip_to(size), Some(bbox), "{size:?}");
                faces += 1;
                truncated += usize::from(face.quality.as_ref().unwrap().truncation.raw < 1.0);
            }
        }
    }
    assert!(faces > 0 && truncated > 0, "no box of the {faces} detected faces extends beyond the image");
}

#[testing::test]
async fn same_person_scores_higher_than_other_people() {
    let analyzer = analyzer().await;
    let options = AnalyzeOptions::default();
    let ada = analyze_drawing(&analyzer, "ada.jpg", &options).await;
    let ada2 = analyze_drawing(&analyzer, "ada_2.jpg", &options).await;
    let ben = analyze_drawing(&analyzer, "ben.jpg", &options).await;
    assert!(similarity(&ada, &ada2) > similarity(&ada, &ben) + 0.2);
    assert!(similarity(&ada, &ada2) > similarity(&ada2, &ben) + 0.2);
}

#[testing::test]
async fn rotated_image_gives_same_face_as_upright() {
    check_rotations(&analyzer().await, |degrees| drawing(&format!("turned_{degrees}.jpg"))).await;
}

async fn check_rotations(analyzer: &Analyzer, image: impl Fn(u32) -> Vec<u8>) {
    let options = rotation_options();
    let upright = analyze(analyzer, image(0), &options).await;
    assert_eq!((upright.faces.len(), upright.rotation), (1, 0));
    let mut rotations = Vec::new();
    let mut analyses: Vec<Analysis> = Vec::new();
    for name in [90, 180, 270] {
        let rotated = analyze(analyzer, image(name), &options).await;
        assert_eq!(rotated.faces.len(), 1, "{name}");
        for other in analyses.iter().chain([&upright]) {
            assert!(similarity(other, &rotated) >= 0.95, "{name}: {}", similarity(other, &rotated));
        }
        rotations.push(rotated.rotation);

        // `rotation` makes the image upright and maps the box to the position of the face there.
        let frame = crop::rotate(&rotated.frame, rotated.rotation);
        assert_eq!(
            (frame.width(), frame.height()),
            (upright.frame.width(), upright.frame.height()),
            "{name}"
        );
        let (width, height) = (rotated.frame.width() as f32, rotated.frame.height() as f32);
        let bbox = rotated.faces[0].detection.bbox;
        let upright_box = match rotated.rotation {
            90 => {
                Rect { x: height - bbox.y - bbox.height, y: bbox.x, width: bbox.height, height: bbox.width }
            }
            180 => Rect { x: width - bbox.x - bbox.width, y: height - bbox.y - bbox.height, ..bbox },
            _ => Rect { x: bbox.y, y: width - bbox.x - bbox.width, width: bbox.height, height: bbox.width },
        };
        let expected = upright.faces[0].detection.bbox;
        assert!(upright_box.iou(&expected) > 0.85, "{name}: {upright_box:?} {expected:?}");
        let roll = rotated.faces[0].quality.as_ref().unwrap().pose.roll;
        let upright_roll = upright.faces[0].quality.as_ref().unwrap().pose.roll;
        assert!((roll - upright_roll).abs() < 10.0, "{name}: roll {roll}, upright {upright_roll}");
        analyses.push(rotated);
    }
    rotations.sort_unstable();
    assert_eq!(rotations, [90, 180, 270]);
}

#[testing::test]
async fn returns_best_faces_first_up_to_limit() {
    let analyzer = analyzer().await;
    let options = AnalyzeOptions { embeddings: false, quality: false, ..AnalyzeOptions::default() };
    let unlimited = analyze_drawing(&analyzer, "crowd.jpg", &options).await;
    assert!(unlimited.faces.len() > 5);
    assert!(unlimited.faces.is_sorted_by(|a, b| a.detection.det_score >= b.detection.det_score));
    assert!(unlimited.faces.iter().all(|face| face.embedding.is_none() && face.quality.is_none()));

    let limited = AnalyzeOptions { max_faces: Some(2), ..options.clone() };
    let best = analyze_drawing(&analyzer, "crowd.jpg", &limited).await;
    let boxes = |faces: &[pipeline::AnalyzedFace]| faces.iter().map(|f| f.detection.bbox).collect::<Vec<_>>();
    assert_eq!(boxes(&best.faces), boxes(&unlimited.faces[..2]));

    let strict = AnalyzeOptions { min_score: Some(0.9), ..options.clone() };
    let strict = analyze_drawing(&analyzer, "crowd.jpg", &strict).await;
    assert!(strict.faces.len() < unlimited.faces.len());
    assert!(strict.faces.iter().all(|face| face.detection.det_score >= 0.9));

    let coarse = AnalyzeOptions { det_size: Some(160), passes: Some(pipeline::Passes::Single), ..options };
    assert!(analyze_drawing(&analyzer, "crowd.jpg", &coarse).await.faces.len() < unlimited.faces.len());
}

#[testing::test]
async fn image_without_faces_gives_empty_result() {
    let analyzer = analyzer().await;
    let options = rotation_options();
    let view = analyze_drawing(&analyzer, "view.jpg", &options).await;
    assert_eq!((view.faces.len(), view.rotation), (0, 0));
}

#[testing::test]
async fn out_of_range_options_name_allowed_values() {
    let analyzer = analyzer().await;
    let default = AnalyzeOptions::default;
    for (options, allowed) in [
        (AnalyzeOptions { min_score: Some(1.5), ..default() }, "from 0.1 to 1"),
        (AnalyzeOptions { min_score: Some(f32::NAN), ..default() }, "from 0.1 to 1"),
        (AnalyzeOptions { min_score: Some(0.0), ..default() }, "from 0.1 to 1"),
        (AnalyzeOptions { min_score: Some(0.099), ..default() }, "from 0.1 to 1"),
        (AnalyzeOptions { max_faces: Some(0), ..default() }, "at least 1"),
        (AnalyzeOptions { det_size: Some(100), ..default() }, "multiple of 32 from 64 to 2048"),
        (AnalyzeOptions { det_size: Some(32), ..default() }, "multiple of 32 from 64 to 2048"),
        (AnalyzeOptions { det_size: Some(4096), ..default() }, "multiple of 32 from 64 to 2048"),
    ] {
        let result = analyzer.analyze(drawing("view.jpg").into(), &options, Priority::Interactive).await;
        let Err(AnalyzeError::Option(reason)) = result else { panic!("{options:?}: {result:?}") };
        assert!(reason.contains(allowed), "{reason}");
    }
}

#[testing::test]
async fn undecodable_image_is_rejected_with_reason() {
    let analyzer = analyzer().await;
    let analyze = async |bytes: Vec<u8>| {
        analyzer.analyze(bytes.into(), &AnalyzeOptions::default(), Priority::Interactive).await.unwrap_err()
    };
    let error = analyze(b"<html></html>".to_vec()).await;
    assert!(matches!(error, AnalyzeError::Decode(DecodeError::NotAnImage)), "{error:?}");
    let mut truncated = drawing("view.jpg");
    truncated.truncate(200);
    let error = analyze(truncated).await;
    assert_eq!(error.reason().code(), "corrupt_image", "{error:?}");
}

#[testing::test]
async fn concurrent_analyses_match_single_analyses() {
    let analyzer = analyzer().await;
    let options = AnalyzeOptions::default();
    let names = ["ada_small.jpg", "cora.jpg", "small_pair.jpg", "ada_wide.jpg"];
    let concurrent = futures::future::join_all(
        names.iter().cycle().take(12).map(|name| analyze_drawing(&analyzer, name, &options)),
    )
    .await;
    for (at, name) in names.iter().enumerate() {
        let single = analyze_drawing(&analyzer, name, &options).await;
        for analysis in concurrent.iter().skip(at).step_by(names.len()) {
            assert_eq!(single.faces.len(), analysis.faces.len(), "{name}");
            for (a, b) in single.faces.iter().zip(&analysis.faces) {
                assert_eq!(a.detection, b.detection, "{name}");
                let score = a.embedding.as_ref().unwrap().similarity(b.embedding.as_ref().unwrap()).unwrap();
                assert!(score > 0.9999, "{name}: {score}");
            }
        }
    }
}

/// Without a threshold, the detector finds thousands of faces in each view of a grey image.
#[testing::test]
async fn grey_image_returns_bounded_number_of_faces() {
    let analyzer = analyzer().await;
    let frame = Arc::new(Frame::filled(4_000, 3_000, [127; 3]));
    let grey = vision::encode::jpeg(&frame, 80);
    let options = AnalyzeOptions {
        min_score: Some(0.1),
        passes: Some(Passes::Thorough),
        embeddings: false,
        quality: false,
        ..AnalyzeOptions::default()
    };
    let analysis = analyze(&analyzer, grey, &options).await;
    assert!(analysis.views > 20, "{}", analysis.views);
    assert!(analysis.faces.len() <= 1_000, "{}", analysis.faces.len());
}

#[testing::test]
async fn image_processing_fails_after_deadline() {
    let analyzer = analyzer().await;
    let frame = Arc::new(Frame::filled(64, 64, [127; 3]));
    assert!(analyzer.pixels().statistics(frame.clone(), Priority::Interactive).await.is_ok());
    let expired = analyzer.with_deadline(Instant::now());
    let result = expired.pixels().statistics(frame, Priority::Interactive).await;
    assert_eq!(result.unwrap_err().reason().code(), "deadline_exceeded");
    let result = expired.digest(drawing("ada.jpg").into()).await;
    assert_eq!(result.unwrap_err().reason().code(), "deadline_exceeded");
}

async fn analyze_enhanced(analyzer: &Analyzer, frame: &Frame, enhance: Enhance) -> Analysis {
    let options = AnalyzeOptions { enhance, ..AnalyzeOptions::default() };
    analyze(analyzer, encode::png(frame), &options).await
}

/// Returns `ada_wide.jpg` with a face of 48 pixels and its contrast multiplied by `contrast`.
fn low_contrast(contrast: f32) -> Frame {
    let frame = pixels(&drawing("ada_wide.jpg"));
    let mut small = crop::thumbnail(&frame, 295);
    for value in small.data_mut() {
        *value = (f32::from(*value) * contrast + 90.0 * (1.0 - contrast)) as u8;
    }
    small
}

#[testing::test]
async fn enhancement_finds_and_recognises_faint_face() {
    let analyzer = analyzer().await;
    let small = low_contrast(0.12);
    let plain = analyze_enhanced(&analyzer, &small, Enhance::Off).await;
    assert_eq!((plain.faces.len(), plain.enhancement_scale), (0, None), "too faint without enhancement");

    let result = analyze_enhanced(&analyzer, &small, Enhance::Auto).await;
    let scale = result.enhancement_scale.unwrap();
    assert!((scale - 640.0 / 166.0).abs() < 1e-3, "{scale}");
    assert_eq!((result.frame.width(), result.frame.height()), (295, 166), "the frame is the original image");
    let clear = analyze_enhanced(&analyzer, &low_contrast(1.0), Enhance::Auto).await;
    assert_eq!(clear.enhancement_scale, None, "no enhancement if a reliable face is found");
    let (expected, bbox) = (clear.faces[0].detection.bbox, result.faces[0].detection.bbox);
    assert!((46.0..52.0).contains(&bbox.height), "{bbox:?}");
    let distance = (bbox.x - expected.x).abs().max((bbox.y - expected.y).abs());
    assert!(distance < 4.0, "{bbox:?} is not in coordinates of the image; expected {expected:?}");

    let options = AnalyzeOptions::default();
    let large = analyze_drawing(&analyzer, "ada.jpg", &options).await;
    let score = similarity(&result, &large);
    assert!(score >= analyzer.engine().embedder().match_threshold, "{score}");
}

#[testing::test]
async fn large_image_is_never_enhanced() {
    let analyzer = analyzer().await;
    let frame = pixels(&drawing("view.jpg"));
    let analysis = analyze_enhanced(&analyzer, &frame, Enhance::Auto).await;
    assert_eq!((analysis.faces.len(), analysis.enhancement_scale), (0, None));
}

/// Starts an analyzer whose image operations run on the software GPU, or on the CPU.
async fn analyzer_with_image_operations(on_gpu: bool) -> Analyzer {
    let start = move || {
        let image_operations =
            [Operation::ImageProcessing, Operation::ImageEnhancement, Operation::QualityChecks];
        let config = inference::Config {
            dylib_path: Some(testing::library()),
            plugins_dir: on_gpu.then(testing::plugins_dir),
            gpu_operations: if on_gpu { image_operations.to_vec() } else { Vec::new() },
            backend: GpuBackend::WebGpu,
            force_gpu_only: true,
            // The canvas that a device uses, so that both sides process the same input.
            detection_canvas: DetectionCanvas::Square,
            ..inference::Config::default()
        };
        Engine::start(&config, &testing::pack()).unwrap()
    };
    let engine = tokio::task::spawn_blocking(start).await.unwrap();
    Analyzer::new(engine, pipeline::Config::default())
}

#[testing::needs(webgpu)]
#[testing::test]
async fn device_operations_find_same_faces_as_cpu() {
    let device = analyzer_with_image_operations(true).await;
    let cpu = analyzer_with_image_operations(false).await;
    assert!(device.engine().runs_on_device(Operation::ImageEnhancement));
    let options = AnalyzeOptions { enhance: Enhance::Auto, ..rotation_options() };
    for name in ["ada.jpg", "turned_90.jpg", "small_pair.jpg", "view.jpg"] {
        let [a, b] = [&device, &cpu].map(|analyzer| {
            let bytes = drawing(name).into();
            analyzer.analyze(bytes, &options, Priority::Interactive)
        });
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        assert_eq!((a.faces.len(), a.rotation), (b.faces.len(), b.rotation), "{name}");
        for (a, b) in a.faces.iter().zip(&b.faces) {
            assert!((a.detection.det_score - b.detection.det_score).abs() < 1e-3, "{name}");
            assert!((a.detection.bbox.x - b.detection.bbox.x).abs() < 0.5, "{name}");
            let score = a.embedding.as_ref().unwrap().similarity(b.embedding.as_ref().unwrap()).unwrap();
            assert!(score > 0.999, "{name}: {score}");
        }
    }
}
