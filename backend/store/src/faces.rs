//! Faces.
use crate::{Store, StoreError};
use serde_json::Value;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A face to store.
#[derive(Clone, Debug)]
pub struct NewFace {
    /// Its id (UUIDv7).
    pub id: Uuid,
    /// x, y, width, height in pixels of the upright image.
    pub bbox: [f32; 4],
    /// 0..1.
    pub det_score: f32,
    /// Five points, x then y.
    pub landmarks: [f32; 10],
    /// `vision::QualityReport` as JSON.
    pub quality: Option<Value>,
    /// Its `overall`.
    pub quality_overall: Option<f32>,
    /// Its `passed`.
    pub quality_passed: Option<bool>,
    /// L2-normalised.
    pub embedding: Vec<f32>,
    /// `store::models::EmbeddingModel::id`.
    pub model_id: i32,
    /// Blob key of the aligned 112x112 chip (PNG).
    pub chip_key: Option<String>,
    /// Blob key of the crop (JPEG).
    pub crop_key: Option<String>,
}

/// A stored face.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Face {
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub collection_id: Uuid,
    /// The collection's name.
    pub collection: String,
    /// Its image.
    pub image_id: Uuid,
    /// x, y, width, height.
    pub bbox: Vec<f32>,
    /// 0..1.
    pub det_score: f32,
    /// Ten numbers.
    pub landmarks: Vec<f32>,
    /// The report.
    pub quality: Option<Value>,
    /// The embedding model's name.
    pub embedding_model: String,
    /// Blob key.
    pub chip_key: Option<String>,
    /// Blob key.
    pub crop_key: Option<String>,
    /// When it was stored.
    pub created_at: OffsetDateTime,
}

/// Filters of `GET /faces`.
#[derive(Clone, Debug, Default)]
pub struct FaceFilter {
    /// Collection name.
    pub collection: String,
    /// In images found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// In this image.
    pub image_id: Option<Uuid>,
    /// At least this overall quality.
    pub min_quality: Option<f32>,
}

impl Store {
    /// Inserts the faces of one image and sets its `face_count`.
    pub async fn insert_faces(
        &self,
        _conn: &mut PgConnection,
        _collection: Uuid,
        _image: Uuid,
        _faces: &[NewFace],
    ) -> Result<(), StoreError> {
        todo!()
    }
    /// By id.
    pub async fn face(&self, _id: Uuid) -> Result<Face, StoreError> {
        todo!()
    }
    /// Newest first.
    pub async fn faces(
        &self,
        _filter: &FaceFilter,
        _before: Option<Uuid>,
        _limit: i64,
    ) -> Result<Vec<Face>, StoreError> {
        todo!()
    }
    /// A stored face's embedding with its model id.
    pub async fn embedding(&self, _face: Uuid) -> Result<(i32, Vec<f32>), StoreError> {
        todo!()
    }
    /// Deletes a face; returns its blob keys.
    pub async fn delete_face(&self, _conn: &mut PgConnection, _id: Uuid) -> Result<Vec<String>, StoreError> {
        todo!()
    }
}
