//! An engine that returns wrong candidates: faces of other collections and models, faces that the
//! filters exclude, faces that do not exist, and wrong similarities. No caller may notice.
use super::Implementation;
use super::memory::{self, Faults, Faulty};
use sqlx::PgPool;
use std::sync::Arc;
use store::Store;
use store::index::engine::Candidate;
use store::index::external::ExternalIndex;
use testing::TestDatabase;
use uuid::Uuid;

/// Maximum number of wrong candidates in an answer.
const WRONG: i64 = 200;

/// The index that [`super::suite`] tests.
pub(crate) struct Untrusted(ExternalIndex);

impl Implementation for Untrusted {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let wrong = Wrong { pool: db.pool().clone() };
        let (index, store) = memory::start(db, Arc::new(Faulty::new(wrong))).await;
        (Self(index), store)
    }

    async fn catch_up(&self) {
        memory::catch_up(&self.0).await;
    }
}

/// Adds wrong candidates to the answers.
#[derive(Debug)]
struct Wrong {
    pool: PgPool,
}

#[async_trait::async_trait]
impl Faults for Wrong {
    async fn answer(&self, answers: &mut [Vec<Candidate>]) {
        // Faces of all collections and models, and one that does not exist.
        let mut wrong: Vec<Uuid> = sqlx::query_scalar("select id from faces order by md5(id::text) limit $1")
            .bind(WRONG)
            .fetch_all(&self.pool)
            .await
            .unwrap();
        wrong.push(Uuid::now_v7());
        for answer in answers {
            answer.extend(wrong.iter().map(|id| Candidate { id: *id, similarity: 1.0 }));
            answer.iter_mut().for_each(|face| face.similarity = 1.0);
            answer.sort_by_key(|face| face.id);
        }
    }
}
