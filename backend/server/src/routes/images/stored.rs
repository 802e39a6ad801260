//! Defines a stored image with the places where it was found.
use crate::routes::dto::{FirstSources, Source, hash_hex};
use serde::Serialize;
use store::images::Image;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A stored image.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct StoredImage {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b02")]
    id: Uuid,
    /// The collection of the image.
    #[schema(example = "default")]
    collection: String,
    /// Width in pixels, after the file's orientation is applied.
    #[schema(example = 480)]
    width: i32,
    /// Height in pixels, after the file's orientation is applied.
    #[schema(example = 560)]
    height: i32,
    /// `jpeg`, `png`, `webp`, `gif`, `bmp`, or `video_frame` for the frame of a video.
    #[schema(example = "jpeg")]
    format: String,
    /// Length of the file in bytes; 0 for a frame.
    #[schema(example = 23886)]
    bytes: i64,
    /// SHA-256 hash of the file, in hexadecimal. For a frame, a hash of the video's id and the
    /// time.
    #[schema(example = "b7c0ab6c412b751031fb091d747ab6a7a41ff258fd2fc4879b826772c317530c")]
    sha256: String,
    /// Perceptual hash of the image, as 16 hexadecimal digits; null for a frame.
    #[schema(example = "6cc143f08e9f929c")]
    phash: Option<String>,
    /// Clockwise rotation in degrees that makes the faces upright.
    #[schema(example = 0)]
    rotation: i32,
    /// Number of stored faces.
    #[schema(example = 1)]
    face_count: i32,
    /// The first places where it was found.
    #[schema(value_type = Vec<Source>)]
    sources: FirstSources,
    /// Number of places where it was found. Counting stops at 1,000.
    #[schema(example = 1)]
    sources_total: i64,
    /// Whether `sources` is incomplete; `GET /images/{id}/sources` lists all places.
    #[schema(example = false)]
    sources_cut: bool,
    /// Time at which it was stored.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl StoredImage {
    pub(super) fn new(image: Image, sources: FirstSources) -> Self {
        Self {
            id: image.id,
            collection: image.collection,
            width: image.width,
            height: image.height,
            format: image.format,
            bytes: image.bytes,
            sha256: hex::encode(image.sha256),
            phash: image.phash.map(|hash| hash_hex(hash.cast_unsigned())),
            rotation: image.rotation,
            face_count: image.face_count,
            sources_total: sources.total,
            sources_cut: sources.is_truncated(),
            sources,
            created_at: image.created_at,
        }
    }
}
