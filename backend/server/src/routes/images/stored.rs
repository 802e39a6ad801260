//! A stored image with where it was found.
use crate::routes::dto::{Source, hash_hex};
use serde::Serialize;
use store::images::Image;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A stored image.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct StoredImage {
    /// Its id.
    id: Uuid,
    /// Whose it is.
    #[schema(example = "default")]
    collection: String,
    /// Pixels, as a browser shows it.
    width: i32,
    /// Pixels, as a browser shows it.
    height: i32,
    /// `jpeg`, `png`, `webp`, `gif`, `bmp`.
    #[schema(example = "jpeg")]
    format: String,
    /// Length of the file.
    bytes: i64,
    /// Of the file, hex.
    sha256: String,
    /// Perceptual hash of the picture, 16 hex digits.
    #[schema(example = "c3a1b4d29e6f0718")]
    phash: String,
    /// Clockwise turn in degrees that makes the faces upright.
    rotation: i32,
    /// Faces stored.
    face_count: i32,
    /// Where it was found.
    sources: Vec<Source>,
    /// When it was stored.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl StoredImage {
    pub(super) fn new(image: Image, sources: Vec<Source>) -> Self {
        Self {
            id: image.id,
            collection: image.collection,
            width: image.width,
            height: image.height,
            format: image.format,
            bytes: image.bytes,
            sha256: hex::encode(image.sha256),
            phash: hash_hex(image.phash.cast_unsigned()),
            rotation: image.rotation,
            face_count: image.face_count,
            sources,
            created_at: image.created_at,
        }
    }
}
