//! The kinds of JSON lines, and the object of a face, which the lines of images and tracks share.
use crate::routes::dto::{BoundingBox, Quality, points};
use serde::Serialize;
use store::images::sources::ExportedFace;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Image,
    Video,
    Track,
}

#[derive(Serialize)]
pub(crate) struct FaceLine<'a> {
    face_id: Uuid,
    bbox: BoundingBox,
    det_score: f32,
    landmarks: Vec<[f32; 2]>,
    quality: Option<Quality>,
    embedding_model: &'a str,
    /// Present only if the request includes embeddings.
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
}

impl<'a> From<&'a ExportedFace> for FaceLine<'a> {
    fn from((face, embedding): &'a ExportedFace) -> Self {
        Self {
            face_id: face.id,
            bbox: BoundingBox::from_slice(&face.bbox),
            det_score: face.det_score,
            landmarks: points(&face.landmarks),
            quality: Quality::from_stored(face.quality.clone()),
            embedding_model: &face.embedding_model,
            embedding: embedding.as_deref(),
        }
    }
}

pub(crate) fn json(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).expect("a line is plain data");
    text.push('\n');
    text
}
