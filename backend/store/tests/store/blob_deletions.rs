use crate::fixture;
use bytes::Bytes;
use store::images::NewImage;
use store::{Blobs, Store};
use testing::TestDatabase;
use uuid::Uuid;

struct World {
    store: Store,
    blobs: Blobs,
    default: Uuid,
    _folder: tempfile::TempDir,
    _database: TestDatabase,
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let store = database.store();
        let default = fixture::collection(&store, "default").await;
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
        Self { store, blobs, default, _folder: folder, _database: database }
    }

    async fn put(&self) -> String {
        self.blobs.put("thumbnails", "jpg", Bytes::from_static(b"the same picture")).await.unwrap()
    }

    async fn exists(&self, key: &str) -> bool {
        self.blobs.get(key).await.unwrap().is_some()
    }

    /// Stores an image whose row refers to the blob.
    async fn image(&self, number: u64, key: &str) -> Uuid {
        let image = NewImage { thumbnail_key: Some(key.to_owned()), ..fixture::image(number) };
        fixture::store_image(&self.store, self.default, &image, &[]).await.unwrap()
    }

    async fn delete(&self, image: Uuid) -> Vec<String> {
        let mut tx = self.store.begin().await.unwrap();
        let keys = self.store.delete_image(tx.conn(), image).await.unwrap();
        tx.commit().await.unwrap();
        keys
    }
}

#[testing::test]
async fn what_a_crash_left_over_goes_with_the_next_sweep() {
    let world = World::new().await;
    let key = world.put().await;
    let image = world.image(1, &key).await;
    // Simulates a crash between the commit and the deletion of the blob.
    assert_eq!(world.delete(image).await, std::slice::from_ref(&key));
    assert!(world.exists(&key).await);
    assert_eq!(world.store.delete_pending_blobs(&world.blobs).await.unwrap(), 1);
    assert!(!world.exists(&key).await);
    assert_eq!(world.store.delete_pending_blobs(&world.blobs).await.unwrap(), 0);
}

#[testing::test]
async fn a_blob_that_another_row_names_stays_until_both_are_gone() {
    let world = World::new().await;
    let key = world.put().await;
    let (one, other) = (world.image(1, &key).await, world.image(2, &key).await);
    assert!(world.delete(one).await.is_empty());
    assert_eq!(world.store.delete_pending_blobs(&world.blobs).await.unwrap(), 0);
    assert!(world.exists(&key).await);
    let keys = world.delete(other).await;
    assert_eq!(world.store.drop_blobs(&world.blobs, &keys).await.unwrap(), 1);
    assert!(!world.exists(&key).await);
}

#[testing::test]
async fn who_wrote_a_blob_before_it_was_removed_is_told_to_write_it_again() {
    let world = World::new().await;
    let key = world.put().await;
    let image = world.image(1, &key).await;
    // Another image writes the same content. Its row does not exist yet.
    assert_eq!(world.put().await, key);
    let keys = world.delete(image).await;
    world.store.drop_blobs(&world.blobs, &keys).await.unwrap();
    assert!(!world.exists(&key).await);

    let keep = async || {
        let mut tx = world.store.begin().await.unwrap();
        let lost = world.store.keep_blobs(tx.conn(), std::slice::from_ref(&key)).await.unwrap();
        (tx, lost)
    };
    // After a rollback, the blob is returned again. After a commit, it is not.
    let (tx, lost) = keep().await;
    assert_eq!(lost, std::slice::from_ref(&key));
    drop(tx);
    let (tx, lost) = keep().await;
    assert_eq!(lost, std::slice::from_ref(&key));
    tx.commit().await.unwrap();
    assert!(keep().await.1.is_empty());
}

#[testing::test]
async fn a_removal_waits_for_a_picture_that_is_being_stored_and_then_sees_its_row() {
    let world = World::new().await;
    let key = world.put().await;
    let image = world.image(1, &key).await;
    let mut tx = world.store.begin().await.unwrap();
    let new = NewImage { thumbnail_key: Some(key.clone()), ..fixture::image(2) };
    world.store.insert_image(tx.conn(), world.default, &new).await.unwrap().unwrap();
    assert!(world.store.keep_blobs(tx.conn(), std::slice::from_ref(&key)).await.unwrap().is_empty());

    let keys = world.delete(image).await;
    assert_eq!(keys, std::slice::from_ref(&key), "the other row is not visible yet");
    let (store, blobs) = (world.store.clone(), world.blobs.clone());
    let removal = tokio::spawn(async move { store.drop_blobs(&blobs, &keys).await });
    let waits = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                 where d.datname = current_database() and l.locktype = 'advisory' and not l.granted";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(world.store.pool()).await.unwrap() == 0 {
        assert!(!removal.is_finished(), "the deletion did not wait for the lock");
        tokio::task::yield_now().await;
    }
    assert!(world.exists(&key).await);
    tx.commit().await.unwrap();
    assert_eq!(removal.await.unwrap().unwrap(), 0);
    assert!(world.exists(&key).await);
}
