//! Tests the engine that keeps its faces in files of this process.
use super::memory::{catch_up, damage, set_of, start};
use super::{Implementation, gallery::gallery, graphs};
use crate::fixture;
use edge_index::{Edge, OpenError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use store::external_index::{Checked, Config, ExternalIndex};
use store::vector_engine::VectorEngine;
use tempfile::TempDir;
use testing::TestDatabase;
use uuid::Uuid;

/// The index that [`super::suite`] tests.
pub(crate) struct InFiles {
    index: ExternalIndex,
    /// Exists as long as the test.
    _folder: TempDir,
}

impl Implementation for InFiles {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let folder = tempfile::tempdir().unwrap();
        let (index, store) = start(db, Arc::new(Edge::open(folder.path()).unwrap())).await;
        (Self { index, _folder: folder }, store)
    }

    async fn catch_up(&self) {
        catch_up(&self.index).await;
    }
}

/// Compares the engine with the rows.
async fn check(index: &ExternalIndex, store: &Store, model: i32) -> Checked {
    store.request_index_check("edge").await.unwrap();
    catch_up(index).await;
    let set = set_of(store, model).await.unwrap();
    assert_eq!(set.check_requested_at, None);
    serde_json::from_value(set.check_result.unwrap()).unwrap()
}

#[tokio::test]
async fn a_folder_is_opened_by_one_process_at_a_time_and_keeps_its_faces() {
    let db = TestDatabase::create().await;
    let folder = tempfile::tempdir().unwrap();
    let engine = Arc::new(Edge::open(folder.path()).unwrap());
    let second = Edge::open(folder.path());
    assert!(matches!(second, Err(OpenError::InUse(_))), "{second:?}");
    let (index, store) = start(&db, engine).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 64).await;
    let faces = gallery(&store, collection, &model, 150, 1).await;
    catch_up(&index).await;
    let equal = Checked { rows: 150, faces: 150, ..Checked::default() };
    assert_eq!(check(&index, &store, model.id).await, equal);
    drop((index, store));

    let (index, store) = start(&db, Arc::new(Edge::open(folder.path()).unwrap())).await;
    assert_eq!(check(&index, &store, model.id).await, equal);
    let mut conn = store.pool().acquire().await.unwrap();
    store.delete_face(&mut conn, faces[0].0).await.unwrap();
    drop(conn);
    assert_eq!(check(&index, &store, model.id).await, Checked { rows: 149, faces: 149, ..equal });
}

#[tokio::test]
async fn a_comparison_counts_what_is_missing_surplus_and_different() {
    let db = TestDatabase::create().await;
    let folder = tempfile::tempdir().unwrap();
    let engine = Arc::new(Edge::open(folder.path()).unwrap());
    let (index, store) = start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 64).await;
    gallery(&store, collection, &model, 100, 1).await;
    catch_up(&index).await;
    let set = set_of(&store, model.id).await.unwrap().face_set();
    let expected = damage(engine.as_ref(), &set, i64::MAX).await;
    assert_eq!(check(&index, &store, model.id).await, expected);

    // A new set has the rows again. Searches use the old one until it is complete.
    assert_eq!(store.request_index_rebuild("edge").await.unwrap(), 1);
    assert_eq!(store.request_index_rebuild("edge").await.unwrap(), 0, "it is requested already");
    catch_up(&index).await;
    let rebuilt = set_of(&store, model.id).await.unwrap();
    assert_ne!(rebuilt.id, set.id);
    assert!(check(&index, &store, model.id).await.is_equal());
    let sets: BTreeSet<Uuid> = engine.sets().await.unwrap().into_iter().collect();
    assert_eq!(sets, BTreeSet::from([rebuilt.id]), "the old set is deleted");
    assert!(!folder.path().join(set.id.to_string()).exists());
}

#[tokio::test]
async fn a_set_whose_files_are_damaged_or_missing_is_built_again() {
    let db = TestDatabase::create().await;
    let folder = tempfile::tempdir().unwrap();
    let (index, store) = start(&db, Arc::new(Edge::open(folder.path()).unwrap())).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 64).await;
    gallery(&store, collection, &model, 60, 1).await;
    catch_up(&index).await;
    drop((index, store));
    for damage in [true, false] {
        let store = db.store();
        let before = set_of(&store, model.id).await.unwrap().id;
        let path = folder.path().join(before.to_string());
        if damage {
            std::fs::write(path.join("edge_config.json"), b"{").unwrap();
        } else {
            std::fs::remove_dir_all(&path).unwrap();
        }
        let (index, store) = start(&db, Arc::new(Edge::open(folder.path()).unwrap())).await;
        catch_up(&index).await;
        assert_ne!(set_of(&store, model.id).await.unwrap().id, before);
        assert!(check(&index, &store, model.id).await.is_equal(), "damage: {damage}");
    }
}

#[tokio::test]
async fn files_with_deleted_faces_are_replaced() {
    let db = TestDatabase::create().await;
    let folder = tempfile::tempdir().unwrap();
    let engine = Arc::new(Edge::open(folder.path()).unwrap());
    let (index, store) = start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 64).await;
    gallery(&store, collection, &model, 200, 1).await;
    catch_up(&index).await;
    let before = set_of(&store, model.id).await.unwrap();
    assert_eq!(before.deleted_since, None);

    // The first components of a face, as the files contain them.
    let set = before.face_set();
    let deleted = engine.page(&set, Uuid::nil(), 1).await.unwrap().remove(0);
    let pattern: Vec<u8> =
        deleted.embedding[..8].iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    let contained = || files(folder.path()).iter().any(|file| file.windows(16).any(|bytes| bytes == pattern));
    assert!(contained(), "the embedding is in a file");
    let mut conn = store.pool().acquire().await.unwrap();
    store.delete_face(&mut conn, deleted.id).await.unwrap();
    drop(conn);
    catch_up(&index).await;
    let with_deletion = set_of(&store, model.id).await.unwrap();
    assert_eq!((with_deletion.id, with_deletion.deleted_since.is_some()), (before.id, true));

    let index = index.with_config(Config { rebuild_age: Duration::ZERO, ..Config::default() });
    catch_up(&index).await;
    let after = set_of(&store, model.id).await.unwrap();
    assert_ne!(after.id, before.id);
    assert_eq!(after.deleted_since, None);
    assert!(!contained(), "the embedding of a deleted face is left");
    assert_eq!(
        check(&index, &store, model.id).await,
        Checked { rows: 199, faces: 199, ..Checked::default() }
    );
}

/// Returns the contents of all files in a folder and its subfolders.
fn files(folder: &std::path::Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![std::fs::read(path).unwrap()] })
        .collect()
}

#[tokio::test]
async fn a_large_collection_has_a_graph() {
    let folder = tempfile::tempdir().unwrap();
    // The engine builds a graph above 10 MB of embeddings in half precision, which are 78 of these.
    let scale = graphs::Scale { dimensions: 65_536, faces: [250, 20], least_quality: 0.65 };
    graphs::are_built_and_searched(&Edge::open(folder.path()).unwrap(), &scale).await;
}
