//! An index that returns wrong candidates: faces of other collections and models, faces that the
//! filters exclude, faces that do not exist, and wrong similarities. No caller may notice.
use super::Implementation;
use sqlx::{PgConnection, PgPool};
use std::sync::Arc;
use store::face_index::{AllSimilar, FaceIndex, Found, Nearest, Neighbours, Pair, Pgvector, Similar};
use store::models::EmbeddingModel;
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

/// Maximum number of wrong candidates in an answer.
const WRONG: i64 = 200;

/// The index that [`super::suite`] tests.
pub(crate) struct Untrusted;

impl Implementation for Untrusted {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let pool = db.pool().clone();
        let index = Wrong { right: Pgvector::new(pool.clone()), pool };
        (Self, db.store().with_index(Arc::new(index)))
    }

    async fn catch_up(&self) {}
}

/// Adds wrong candidates to the answers of another index.
#[derive(Debug)]
struct Wrong {
    right: Pgvector,
    pool: PgPool,
}

impl Wrong {
    /// Returns faces of all collections and models, and one that does not exist.
    async fn candidates(&self) -> Result<Vec<Uuid>, StoreError> {
        let mut ids: Vec<Uuid> = sqlx::query_scalar("select id from faces order by md5(id::text) limit $1")
            .bind(WRONG)
            .fetch_all(&self.pool)
            .await?;
        ids.push(Uuid::now_v7());
        Ok(ids)
    }

    /// Returns the faces once each, with a similarity that is too high, in the wrong order.
    async fn wrong(&self, mut faces: Vec<Similar>) -> Result<Vec<Similar>, StoreError> {
        faces.extend(self.candidates().await?.into_iter().map(|id| Similar { id, similarity: 1.0 }));
        faces.sort_by_key(|face| face.id);
        faces.dedup_by_key(|face| face.id);
        Ok(faces.into_iter().map(|face| Similar { similarity: 1.0, ..face }).collect())
    }
}

#[async_trait::async_trait]
impl FaceIndex for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn reads_rows(&self) -> bool {
        false
    }

    async fn is_prepared(&self, model: &EmbeddingModel) -> Result<bool, StoreError> {
        self.right.is_prepared(model).await
    }

    async fn prepare(&self, conn: &mut PgConnection, model: &EmbeddingModel) -> Result<(), StoreError> {
        self.right.prepare(conn, model).await
    }

    async fn nearest(&self, query: &Nearest<'_>) -> Result<Found, StoreError> {
        let Found { faces, exact } = self.right.nearest(query).await?;
        Ok(Found { faces: self.wrong(faces).await?, exact })
    }

    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        let mut pairs = self.right.neighbours(query).await?;
        let candidates = self.candidates().await?;
        for face in query.faces {
            let wrong = |neighbour: &Uuid| Pair { face: *face, neighbour: *neighbour, similarity: 1.0 };
            pairs.extend(candidates.iter().map(wrong));
        }
        pairs.sort_by_key(|pair| (pair.face, pair.neighbour));
        pairs.dedup_by_key(|pair| (pair.face, pair.neighbour));
        Ok(pairs)
    }

    async fn all_similar(
        &self,
        conn: &mut PgConnection,
        query: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError> {
        let faces = self.right.all_similar(conn, query).await?;
        self.wrong(faces).await
    }
}
