//! The faces that a look-up compares with, and their conditions in SQL. `f` is the alias of the
//! table `faces` in every condition.
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

/// The faces that a search or a clustering compares with.
#[derive(Clone, Debug, PartialEq)]
pub struct FaceScope {
    /// Only faces of this collection.
    pub collection_id: Uuid,
    /// Only faces with embeddings of this model.
    pub model_id: i32,
    /// Only faces in images found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// Minimum overall quality.
    pub min_quality: Option<f32>,
    /// Omits faces that failed their quality profile.
    pub omit_failed: bool,
    /// Omits this face.
    pub exclude_face: Option<Uuid>,
    /// Only faces that belong to a subject.
    pub with_subject: bool,
}

impl FaceScope {
    /// Returns the scope of all faces of the collection and the model.
    pub fn all(collection_id: Uuid, model_id: i32) -> Self {
        Self {
            collection_id,
            model_id,
            crawl_id: None,
            min_quality: None,
            omit_failed: false,
            exclude_face: None,
            with_subject: false,
        }
    }

    /// Adds the conditions. The model's id is a literal, because the planner uses a partial index
    /// only if it can see the index's condition.
    pub(crate) fn push(&self, sql: &mut QueryBuilder<Postgres>) {
        sql.push(format!("f.model_id = {} and f.collection_id = ", self.model_id))
            .push_bind(self.collection_id);
        push_filters(sql, self.crawl_id, self.min_quality);
        if self.omit_failed {
            sql.push(" and f.quality_passed is distinct from false");
        }
        if let Some(face) = self.exclude_face {
            sql.push(" and f.id <> ").push_bind(face);
        }
        if self.with_subject {
            sql.push(" and exists (select 1 from subject_faces sf where sf.face_id = f.id)");
        }
    }
}

/// Adds the filters common to listing and search.
pub(crate) fn push_filters(
    query: &mut QueryBuilder<Postgres>,
    crawl_id: Option<Uuid>,
    min_quality: Option<f32>,
) {
    if let Some(crawl) = crawl_id {
        query.push(" and f.image_id in ");
        push_images_of_crawl(query, crawl);
    }
    if let Some(quality) = min_quality {
        query.push(" and f.quality_overall >= ").push_bind(quality);
    }
}

/// Adds a subquery for the images of a crawl or a scan, among them the stored frames of its videos.
pub(crate) fn push_images_of_crawl(query: &mut QueryBuilder<Postgres>, crawl: Uuid) {
    query
        .push("(select u.image_id from image_urls u where u.image_id is not null and u.crawl_id = ")
        .push_bind(crawl)
        .push(" union all select s.image_id from videos v join video_frames s on s.video_id = v.id where v.crawl_id = ")
        .push_bind(crawl)
        .push(" or v.scan_id = ")
        .push_bind(crawl)
        .push(")");
}
