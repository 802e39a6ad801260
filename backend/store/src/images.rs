//! Images and where they were found.
use crate::{Store, StoreError};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// An image to store.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// Its id (UUIDv7).
    pub id: Uuid,
    /// Of the file's bytes.
    pub sha256: [u8; 32],
    /// DCT hash.
    pub phash: i64,
    /// Gradient hash.
    pub dhash: i64,
    /// Mean hash.
    pub ahash: i64,
    /// Upright width in pixels.
    pub width: i32,
    /// Upright height in pixels.
    pub height: i32,
    /// `jpeg`, …
    pub format: String,
    /// Length of the file.
    pub bytes: i64,
    /// Clockwise turn that makes its faces upright.
    pub rotation: i32,
    /// Blob key.
    pub thumbnail_key: Option<String>,
}

/// A stored image.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Image {
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub collection_id: Uuid,
    /// The collection's name.
    pub collection: String,
    /// Of the file's bytes.
    pub sha256: Vec<u8>,
    /// DCT hash.
    pub phash: i64,
    /// Gradient hash.
    pub dhash: i64,
    /// Mean hash.
    pub ahash: i64,
    /// Upright width in pixels.
    pub width: i32,
    /// Upright height in pixels.
    pub height: i32,
    /// `jpeg`, …
    pub format: String,
    /// Length of the file.
    pub bytes: i64,
    /// Clockwise turn that makes its faces upright.
    pub rotation: i32,
    /// Faces stored.
    pub face_count: i32,
    /// Blob key.
    pub thumbnail_key: Option<String>,
    /// When it was stored.
    pub created_at: OffsetDateTime,
}

/// Where an image was found.
#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct Source {
    /// The page, if any.
    pub page_url: Option<String>,
    /// The file.
    pub image_url: String,
    /// The crawl that found it, while it exists.
    pub crawl_id: Option<Uuid>,
    /// Alternative text.
    pub alt: Option<String>,
    /// When.
    pub found_at: OffsetDateTime,
}

/// Filters of `GET /images`.
#[derive(Clone, Debug, Default)]
pub struct ImageFilter {
    /// Collection name.
    pub collection: String,
    /// Found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// With (or without) faces.
    pub has_faces: Option<bool>,
}

impl Store {
    /// By the file's hash, inside a collection.
    pub async fn image_by_sha256(
        &self,
        _collection: Uuid,
        _sha256: &[u8; 32],
    ) -> Result<Option<Image>, StoreError> {
        todo!()
    }
    /// Images of the collection whose three hashes may be near (by banded lookup); the caller decides with `vision::PerceptualHashes::is_near`.
    pub async fn near_candidates(
        &self,
        _collection: Uuid,
        _phash: i64,
        _dhash: i64,
    ) -> Result<Vec<Image>, StoreError> {
        todo!()
    }
    /// Inserts; answers the existing row's id instead when the same bytes are there already (a race lost).
    pub async fn insert_image(
        &self,
        _conn: &mut PgConnection,
        _collection: Uuid,
        _image: &NewImage,
    ) -> Result<Result<(), Uuid>, StoreError> {
        todo!()
    }
    /// By id.
    pub async fn image(&self, _id: Uuid) -> Result<Image, StoreError> {
        todo!()
    }
    /// Newest first.
    pub async fn images(
        &self,
        _filter: &ImageFilter,
        _before: Option<Uuid>,
        _limit: i64,
    ) -> Result<Vec<Image>, StoreError> {
        todo!()
    }
    /// Sources of several images.
    pub async fn sources(&self, _images: &[Uuid]) -> Result<Vec<(Uuid, Source)>, StoreError> {
        todo!()
    }
    /// Deletes an image with its faces and sources; returns the blob keys to delete after the commit.
    pub async fn delete_image(&self, _conn: &mut PgConnection, _id: Uuid) -> Result<Vec<String>, StoreError> {
        todo!()
    }
}
