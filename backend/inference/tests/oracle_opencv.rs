//! The default pack against OpenCV, which runs the same two files.
#![allow(clippy::unwrap_used, missing_docs)]
mod common;
use common::*;
use inference::{Embedding, Lane};
use serde_json::Value;
use std::sync::Arc;

fn faces(image: &Value) -> &Vec<Value> {
    image["faces"].as_array().unwrap()
}

#[tokio::test]
async fn the_default_detector_agrees_with_opencv() {
    let Some(oracle) = testing::assets::oracle_opencv() else { return };
    let Some(engine) = engine(&builtin("opencv")) else { return };
    assert_eq!(engine.detector().fixed_size, None, "the canvas is free");
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (name, image) in oracle.as_object().unwrap() {
        let found = detect_at_640(&engine, &photograph(name)).await;
        let wanted: Vec<_> = faces(image).iter().map(oracle_face).collect();
        compared += wanted.iter().filter(|face| face.det_score >= 0.7).count();
        wrong.extend(missed(&found, &wanted).iter().map(|face| format!("{name}: missed {face:?}")));
        wrong.extend(invented(&found, &wanted).iter().map(|face| format!("{name}: invented {face:?}")));
    }
    println!("YuNet: {compared} faces of score 0.7 and more");
    assert!(compared > 300, "only {compared} faces were compared");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn the_default_embedder_agrees_with_opencv_on_every_face() {
    let Some(oracle) = testing::assets::oracle_opencv() else { return };
    let Some(engine) = engine(&builtin("opencv")) else { return };
    let (mut compared, mut lowest) = (0, (1.0_f32, String::new()));
    for (name, image) in oracle.as_object().unwrap() {
        let frame = photograph(name);
        for face in faces(image).iter().filter(|face| face.get("feature").is_some()) {
            let chip = vision::norm_crop(&frame, &oracle_face(face).landmarks, 112).unwrap();
            let wanted = Embedding::from_raw(numbers(&face["feature"])).unwrap();
            let found = engine.embed(Arc::new(chip), Lane::Background).await.unwrap().output;
            let cosine = found.similarity(&wanted).unwrap();
            compared += 1;
            if cosine < lowest.0 {
                lowest = (cosine, name.clone());
            }
        }
    }
    println!("SFace: {compared} faces, lowest cosine {} ({})", lowest.0, lowest.1);
    assert_eq!(compared, 139);
    assert!(lowest.0 >= 0.995, "{lowest:?}");
}
