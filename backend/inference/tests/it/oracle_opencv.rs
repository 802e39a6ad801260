//! Tests the default pack against OpenCV, which runs the same two files.
use crate::common::*;
use inference::{Config, CpuBackend, Embedding, Engine, Priority};
use serde_json::Value;
use std::sync::Arc;
use vision::{Detection, Frame, Letterbox};

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
    let found = engine.detect(Arc::new(letterbox.draw(frame)), 0.6, Priority::Background).await.unwrap();
    found.output.iter().map(|face| letterbox.restore(face)).collect()
}

/// OpenCV suppresses overlaps on boxes rounded to whole pixels of the canvas. Faces of crowds are
/// about twelve pixels high there, so it may keep the other one of two overlapping candidates. Such
/// a face must still be one of our candidates within the tolerances. A face that we kept, with at
/// least the same score, must have suppressed it.
#[testing::needs(shared)]
#[testing::test]
async fn the_default_detector_agrees_with_opencv() {
    let oracle = testing::assets::oracle_opencv();
    let engine = default_engine();
    let mut all = testing::pack();
    all.pack.files.iter_mut().for_each(|file| file.nms_iou = file.nms_iou.map(|_| 1.0));
    let unsuppressed = Engine::start(&config(), &all).unwrap();
    assert_eq!(engine.detector().fixed_size, None, "the canvas is free");
    let (mut wrong, mut compared, mut explained) = (Vec::new(), 0, 0);
    for (name, image) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        let found = detect(&engine, &frame, image).await;
        let wanted: Vec<_> = faces(image).iter().map(oracle_face).collect();
        compared += wanted.iter().filter(|face| face.det_score >= 0.7).count();
        wrong.extend(invented(&found, &wanted).iter().map(|face| format!("{name}: invented {face:?}")));
        let missed = missed(&found, &wanted);
        if missed.is_empty() {
            continue;
        }
        let candidates = detect(&unsuppressed, &frame, image).await;
        for face in missed {
            let suppressed = candidates.iter().filter(|candidate| agrees(candidate, face)).any(|candidate| {
                found.iter().any(|kept| {
                    kept.det_score >= candidate.det_score && iou(&kept.bbox, &candidate.bbox) > 0.3
                })
            });
            if suppressed { explained += 1 } else { wrong.push(format!("{name}: missed {face:?}")) }
        }
    }
    println!("YuNet: {compared} faces of score 0.7 and more, {explained} of them by another candidate");
    assert!(compared > 400, "only {compared} faces were compared");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(explained * 50 <= compared, "{explained} of {compared} differ in the suppression");
}

#[testing::needs(shared)]
#[testing::test]
async fn the_default_embedder_agrees_with_opencv_on_every_face() {
    let oracle = testing::assets::oracle_opencv();
    let resolved = testing::pack();
    for cpu_backend in [CpuBackend::OnnxRuntime, CpuBackend::OnnxRuntimeInt8] {
        let engine = Engine::start(&Config { cpu_backend, ..config() }, &resolved).unwrap();
        let (mut compared, mut lowest) = (0, (1.0_f32, String::new()));
        for (name, image) in oracle.as_object().unwrap() {
            let frame = photograph(name);
            for face in faces(image).iter().filter(|face| face.get("feature").is_some()) {
                let chip = vision::norm_crop(&frame, &oracle_face(face).landmarks, 112).unwrap();
                let wanted = Embedding::from_raw(numbers(&face["feature"])).unwrap();
                let found = engine.embed(Arc::new(chip), Priority::Background).await.unwrap().output;
                let cosine = found.similarity(&wanted).unwrap();
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
