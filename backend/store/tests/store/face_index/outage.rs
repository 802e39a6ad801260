//! Tests what happens while the index cannot answer.
use super::gallery::{assert_same, brute_force, gallery, query};
use crate::fixture;
use sqlx::PgConnection;
use std::sync::Arc;
use store::StoreError;
use store::clusters::ClusterScope;
use store::erasures::Target;
use store::face_index::{AllSimilar, FaceIndex, Found, Nearest, Neighbours, Pair, Similar};
use store::models::EmbeddingModel;
use testing::TestDatabase;

/// An index that is down.
#[derive(Debug)]
struct Down;

impl Down {
    fn unavailable<T>() -> Result<T, StoreError> {
        Err(StoreError::IndexUnavailable("it is down".into()))
    }
}

#[async_trait::async_trait]
impl FaceIndex for Down {
    fn name(&self) -> &'static str {
        "down"
    }

    fn reads_rows(&self) -> bool {
        false
    }

    async fn is_prepared(&self, _: &EmbeddingModel) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn prepare(&self, _: &mut PgConnection, _: &EmbeddingModel) -> Result<(), StoreError> {
        Ok(())
    }

    async fn nearest(&self, _: &Nearest<'_>) -> Result<Found, StoreError> {
        Self::unavailable()
    }

    async fn neighbours(&self, _: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        Self::unavailable()
    }

    async fn all_similar(
        &self,
        _: &mut PgConnection,
        _: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError> {
        Self::unavailable()
    }
}

#[tokio::test]
async fn without_the_index_faces_are_stored_searched_exactly_and_erased() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(10).with_index(Arc::new(Down));
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 64).await;
    let gallery = gallery(&store, collection, &model, 60, 1).await;
    let probe = gallery[5].1.clone();
    let (hits, exact) = store.search(&query(collection, model.id, probe.clone())).await.unwrap();
    assert!(exact);
    assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));

    // A clustering compares too many faces to go on without the index. It is repeated later.
    let scope = ClusterScope { collection_id: collection, model_id: model.id, any_quality: true };
    let refused = store.neighbours(&scope, &[gallery[5].0], 3, 0.5).await;
    assert!(matches!(refused, Err(StoreError::IndexUnavailable(_))), "{refused:?}");

    let expected = brute_force(&gallery, &probe, 0.5, 60);
    let target = Target::Likeness { embedding: probe, model_id: model.id, threshold: 0.5 };
    let mut tx = store.begin().await.unwrap();
    let plan = store.plan_erasure(tx.conn(), collection, &target).await.unwrap();
    assert_eq!(plan.faces.iter().filter(|face| face.similarity.is_some()).count(), expected.len());
    store.carry_out(tx.conn(), &plan).await.unwrap();
    tx.commit().await.unwrap();
}
