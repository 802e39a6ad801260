//! Tests that every change of a face is recorded for an index outside the database.
use crate::fixture::{self, Commit, random_unit_vector};
use std::collections::BTreeSet;
use store::Store;
use store::erasures::Target;
use store::faces::NewFace;
use store::index::EmbeddingModel;
use store::index::changes::IndexChange;
use testing::TestDatabase;
use uuid::Uuid;

const DIMENSIONS: usize = 8;

/// A collection whose changes are recorded.
struct World {
    db: TestDatabase,
    store: Store,
    collection: Uuid,
    model: EmbeddingModel,
}

impl World {
    async fn create() -> Self {
        let (db, store, collection, model) = fixture::with_model(DIMENSIONS as i32).await;
        store.index().start_changes().await.unwrap();
        Self { db, store, collection, model }
    }

    /// Stores an image with two faces, and deletes the recorded changes.
    async fn image(&self, seed: u64) -> (Uuid, [NewFace; 2]) {
        let mut rng = fixture::rng(seed);
        let faces = [(); 2].map(|()| fixture::face(&self.model, random_unit_vector(&mut rng, DIMENSIONS)));
        let image =
            fixture::store_image(&self.store, self.collection, &fixture::image(seed), &faces).await.unwrap();
        self.changes().await;
        (image, faces)
    }

    /// Returns and deletes the recorded changes: the faces, their models, and whether they were
    /// deleted.
    async fn changes(&self) -> BTreeSet<(Uuid, i32, bool)> {
        let mut conn = self.store.pool().acquire().await.unwrap();
        let changes = self.store.index().changes(&mut conn, 1_000).await.unwrap();
        assert!(changes.iter().all(|change| change.collection_id == self.collection));
        let change_ids: Vec<i64> = changes.iter().map(|change| change.change).collect();
        assert_eq!(
            self.store.index().delete_applied_changes(&mut conn, &change_ids).await.unwrap(),
            change_ids.len() as u64
        );
        assert_eq!(self.store.index().changes(&mut conn, 1).await.unwrap(), []);
        let content = |change: IndexChange| (change.face_id, change.model_id, change.deleted);
        changes.into_iter().map(content).collect()
    }

    fn deleted(&self, faces: &[&NewFace]) -> BTreeSet<(Uuid, i32, bool)> {
        faces.iter().map(|face| (face.id, self.model.id, true)).collect()
    }

    fn stored(&self, faces: &[&NewFace]) -> BTreeSet<(Uuid, i32, bool)> {
        faces.iter().map(|face| (face.id, self.model.id, false)).collect()
    }
}

#[testing::test]
async fn index_changes_are_recorded_only_between_start_and_stop() {
    let (_db, store, collection, model) = fixture::with_model(DIMENSIONS as i32).await;
    let mut number = 0;
    for is_recording in [false, true, true, false] {
        match is_recording {
            true => store.index().start_changes().await.unwrap(),
            false => store.index().stop_changes().await.unwrap(),
        }
        assert_eq!(store.index().records_changes().await.unwrap(), is_recording);
        number += 1;
        let face = fixture::face(&model, random_unit_vector(&mut fixture::rng(number), DIMENSIONS));
        fixture::store_image(&store, collection, &fixture::image(number), &[face]).await.unwrap();
        let mut conn = store.pool().acquire().await.unwrap();
        let changes = store.index().changes(&mut conn, 9).await.unwrap();
        assert_eq!(!changes.is_empty(), is_recording, "{changes:?}");
        assert_eq!(store.index().oldest_change().await.unwrap().is_some(), is_recording);
    }
}

#[testing::test]
async fn stored_face_is_recorded_after_commit() {
    let world = World::create().await;
    let faces = [1, 2].map(|seed| {
        let mut rng = fixture::rng(seed);
        fixture::face(&world.model, random_unit_vector(&mut rng, DIMENSIONS))
    });
    let mut tx = world.store.begin().await.unwrap();
    let image = fixture::image(1);
    world.store.images().insert(tx.conn(), world.collection, &image).await.unwrap().unwrap();
    world.store.faces().insert(tx.conn(), world.collection, image.id, &faces).await.unwrap();
    assert_eq!(world.changes().await, BTreeSet::new(), "the transaction is not committed");
    drop(tx);
    assert_eq!(world.changes().await, BTreeSet::new());
    fixture::store_image(&world.store, world.collection, &image, &faces).await.unwrap();
    assert_eq!(world.changes().await, world.stored(&[&faces[0], &faces[1]]));
}

#[testing::test]
async fn every_kind_of_face_deletion_is_recorded() {
    let world = World::create().await;
    let store = &world.store;

    let (_, [first, second]) = world.image(1).await;
    store.commit(async |tx| store.faces().delete(tx.conn(), first.id).await).await;
    assert_eq!(world.changes().await, world.deleted(&[&first]));

    let target =
        Target::Likeness { embedding: second.embedding.clone(), model_id: world.model.id, threshold: 0.99 };
    fixture::erase(store, world.collection, &target).await;
    assert_eq!(world.changes().await, world.deleted(&[&second]));

    let (image, [first, second]) = world.image(2).await;
    let mut tx = store.begin().await.unwrap();
    store.images().delete(tx.conn(), image).await.unwrap();
    drop(tx);
    assert_eq!(world.changes().await, BTreeSet::new(), "the deletion was rolled back");
    store.commit(async |tx| store.images().delete(tx.conn(), image).await).await;
    assert_eq!(world.changes().await, world.deleted(&[&first, &second]));

    // The foreign keys delete the faces, and with them the rows of their people.
    for delete in ["delete from images where collection_id = $1", "delete from collections where id = $1"] {
        let (_, [first, second]) = world.image(3).await;
        fixture::person(store, world.collection, &fixture::unnamed_subject(), &[first.id]).await;
        world.changes().await;
        sqlx::query(delete).bind(world.collection).execute(store.pool()).await.unwrap();
        assert_eq!(world.changes().await, world.deleted(&[&first, &second]), "{delete}");
    }
}

#[testing::test]
async fn changed_embedding_quality_or_subject_is_recorded() {
    let world = World::create().await;
    let store = &world.store;
    let (_, [first, second]) = world.image(1).await;

    let new = fixture::model(store, "new", 4).await;
    let embedding = vec![1.0, 0.0, 0.0, 0.0];
    assert_eq!(store.models().replace_embeddings(&new, &[(first.id, embedding.clone())]).await.unwrap(), 1);
    let expected = BTreeSet::from([(first.id, world.model.id, true), (first.id, new.id, false)]);
    assert_eq!(world.changes().await, expected);
    assert_eq!(store.models().replace_embeddings(&new, &[(first.id, embedding)]).await.unwrap(), 0);
    assert_eq!(world.changes().await, BTreeSet::new(), "the face already has this embedding");

    let update = |columns: &'static str| {
        let sql = format!("update faces set {columns} where id = $1");
        sqlx::query(sqlx::AssertSqlSafe(sql)).bind(second.id).execute(world.db.pool())
    };
    for columns in ["quality_overall = 0.1", "quality_passed = null", "embedding = '[1,0,0,0,0,0,0,0]'"] {
        update(columns).await.unwrap();
        assert_eq!(world.changes().await, world.stored(&[&second]), "{columns}");
        update(columns).await.unwrap();
        assert_eq!(world.changes().await, BTreeSet::new(), "{columns}, the same value");
    }
    update("parts_offset = null, crop_bytes = null, chip_bytes = null").await.unwrap();
    assert_eq!(world.changes().await, BTreeSet::new(), "an index contains no keys");

    let mut subjects = Vec::new();
    for _ in 0..2 {
        subjects
            .push(fixture::person(store, world.collection, &fixture::unnamed_subject(), &[second.id]).await);
        assert_eq!(world.changes().await, world.stored(&[&second]));
    }
    store.commit(async |tx| store.people().delete(tx.conn(), subjects[1]).await).await;
    assert_eq!(world.changes().await, world.stored(&[&second]));
}

#[testing::test]
async fn index_changes_list_deletions_first_and_are_deleted_once() {
    let world = World::create().await;
    let store = &world.store;
    let (_, [erased, _]) = world.image(1).await;
    for seed in 2..5 {
        let face = fixture::face(&world.model, random_unit_vector(&mut fixture::rng(seed), DIMENSIONS));
        fixture::store_image(store, world.collection, &fixture::image(seed), &[face]).await.unwrap();
    }
    let mut conn = store.pool().acquire().await.unwrap();
    store.faces().delete(&mut conn, erased.id).await.unwrap();
    let changes = store.index().changes(&mut conn, 3).await.unwrap();
    assert_eq!(changes.len(), 3);
    assert_eq!((changes[0].face_id, changes[0].deleted), (erased.id, true));
    assert!(changes[1].change < changes[2].change && changes[2].change < changes[0].change);
    assert_eq!(store.index().delete_applied_changes(&mut conn, &[changes[0].change]).await.unwrap(), 1);
    assert_eq!(store.index().delete_applied_changes(&mut conn, &[changes[0].change]).await.unwrap(), 0);
    assert_eq!(store.index().changes(&mut conn, 9).await.unwrap().len(), 3);
}

#[testing::test]
async fn recording_waits_for_running_face_transactions() {
    let (db, store, collection, model) = fixture::with_model(DIMENSIONS as i32).await;
    let face = fixture::face(&model, random_unit_vector(&mut fixture::rng(1), DIMENSIONS));
    let image = fixture::image(1);
    let mut tx = store.begin().await.unwrap();
    store.images().insert(tx.conn(), collection, &image).await.unwrap().unwrap();
    store.faces().insert(tx.conn(), collection, image.id, std::slice::from_ref(&face)).await.unwrap();
    let start_task = tokio::spawn({
        let store = store.clone();
        async move { store.index().start_changes().await }
    });
    fixture::wait_for_lock(&db).await;
    tx.commit().await.unwrap();
    start_task.await.unwrap().unwrap();
    // The face was stored before, so a statement that reads the rows now finds it.
    let mut conn = store.pool().acquire().await.unwrap();
    assert_eq!(store.index().changes(&mut conn, 1).await.unwrap(), []);
    assert!(store.faces().get(face.id).await.is_ok());
}
