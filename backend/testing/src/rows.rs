//! Makes rows of images and faces, for databases that are filled without images and models.
use crate::embeddings::Random;
use store::faces::NewFace;
use store::images::NewImage;
use uuid::Uuid;

/// Returns the row of an image of 1280x720 pixels whose hashes are random.
pub fn image(random: &mut Random) -> NewImage {
    let mut sha256 = [0; 32];
    sha256.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_be_bytes()));
    NewImage {
        id: Uuid::now_v7(),
        sha256,
        phash: random.bits().cast_signed(),
        dhash: random.bits().cast_signed(),
        ahash: random.bits().cast_signed(),
        width: 1280,
        height: 720,
        format: "jpeg".into(),
        bytes: 150_000,
        rotation: 0,
        parts: None,
    }
}

/// Returns the row of a face without blobs and without the parts of its quality.
pub fn face(embedding: Vec<f32>, model_id: i32, quality: f32) -> NewFace {
    NewFace {
        id: Uuid::now_v7(),
        bbox: [101.5, 80.25, 64.0, 80.5],
        det_score: 0.91,
        landmarks: [0.5; 10],
        quality: None,
        quality_overall: Some(quality),
        quality_passed: Some(true),
        embedding,
        model_id,
        parts: None,
    }
}
