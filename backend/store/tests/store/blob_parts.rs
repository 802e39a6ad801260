//! Tests blobs that contain the files of one image.
use crate::fixture::{self, Commit};
use bytes::Bytes;
use futures::TryStreamExt;
use sha2::{Digest, Sha256};
use store::blobs::parts::{BlobPart, NewFaceParts, NewThumbnail};
use store::erasures::Target;
use store::faces::NewFace;
use store::images::NewImage;
use store::index::EmbeddingModel;
use store::{Blobs, Store};
use testing::TestDatabase;
use uuid::Uuid;

struct World {
    store: Store,
    blobs: Blobs,
    default: Uuid,
    other: Uuid,
    model: EmbeddingModel,
    folder: tempfile::TempDir,
    _database: TestDatabase,
}

const THUMBNAIL: &[u8] = b"<thumbnail>";
const FACES: [(&[u8], &[u8]); 2] = [(b"<first crop>", b"<first chip>"), (b"<second crop>", b"<second chip>")];

impl World {
    async fn new() -> Self {
        let (database, store) = fixture::database().await;
        let [default, other] = fixture::collections(&store, ["default", "other"]).await;
        let model = fixture::model(&store, "model", 4).await;
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
        Self { store, blobs, default, other, model, folder, _database: database }
    }

    /// Stores an image with a thumbnail and two faces, whose boxes do not overlap. Returns the key
    /// of its blob, its id, and the ids of its faces.
    async fn image(&self, collection: Uuid, number: u64) -> (String, Uuid, [Uuid; 2]) {
        let content = [THUMBNAIL, FACES[0].0, FACES[0].1, FACES[1].0, FACES[1].1].concat();
        let key = self.blobs.put_parts(Bytes::from(content)).await.unwrap();
        let mut offset = THUMBNAIL.len() as i32;
        let faces = FACES.iter().enumerate().map(|(at, (crop, chip))| {
            let (crop_bytes, chip_bytes) = (crop.len() as i32, chip.len() as i32);
            let parts = NewFaceParts { key: key.clone(), offset, crop_bytes, chip_bytes };
            offset += crop_bytes + chip_bytes;
            let x = 300.0 * at as f32;
            let landmarks = std::array::from_fn(|n| if n % 2 == 0 { x + 10.0 + n as f32 } else { 20.0 });
            let bbox = [x, 2.0, 30.0, 40.0];
            let embedding = vec![at as f32, 1.0, 0.0, 0.0];
            NewFace { parts: Some(parts), bbox, landmarks, ..fixture::face(&self.model, embedding) }
        });
        let faces: Vec<NewFace> = faces.collect();
        let thumbnail = Some(NewThumbnail { key: key.clone(), bytes: THUMBNAIL.len() as i32 });
        let image = NewImage { thumbnail, ..fixture::image(number) };
        let id = fixture::store_image(&self.store, collection, &image, &faces).await.unwrap();
        (key, id, [faces[0].id, faces[1].id])
    }

    async fn read(&self, part: Option<BlobPart>) -> Option<Bytes> {
        self.blobs.get_part(&part?).await.unwrap()
    }

    async fn thumbnail(&self, image: Uuid) -> Option<Bytes> {
        self.read(self.store.images().get(image).await.unwrap().parts.thumbnail()).await
    }

    async fn crop_and_chip(&self, face: Uuid) -> (Option<Bytes>, Option<Bytes>) {
        let parts = self.store.faces().get(face).await.unwrap().parts;
        (self.read(parts.crop()).await, self.read(parts.chip()).await)
    }

    /// Returns the contents of all files below the blob folder, joined.
    async fn all_bytes(&self) -> Vec<u8> {
        let keys: Vec<String> = self.blobs.list().map_ok(|blob| blob.key).try_collect().await.unwrap();
        let files = keys.iter().map(|key| std::fs::read(self.folder.path().join(key)).unwrap());
        files.collect::<Vec<_>>().concat()
    }

    async fn execute(&self, sql: String) {
        fixture::run(&self.store, sql).await.unwrap();
    }
}

fn some(bytes: &'static [u8]) -> Option<Bytes> {
    Some(Bytes::from_static(bytes))
}

#[testing::test]
async fn deleted_face_leaves_no_bytes_and_others_stay_readable() {
    let world = World::new().await;
    let (key, image, [first, second]) = world.image(world.default, 1).await;
    assert_eq!(world.crop_and_chip(first).await, (some(FACES[0].0), some(FACES[0].1)));
    let keys = world.store.commit(async |tx| world.store.faces().delete(tx.conn(), first).await).await;
    assert_eq!(keys, [key.clone()]);
    assert_eq!(world.store.blobs().delete(&world.blobs, &keys).await.unwrap(), 1);

    assert!(!world.blobs.exists(&key).await.unwrap());
    assert_eq!(world.all_bytes().await, [THUMBNAIL, FACES[1].0, FACES[1].1].concat());
    assert_eq!(world.thumbnail(image).await, some(THUMBNAIL));
    assert_eq!(world.crop_and_chip(second).await, (some(FACES[1].0), some(FACES[1].1)));

    let keys = world.store.commit(async |tx| world.store.images().delete(tx.conn(), image).await).await;
    assert_eq!(world.store.blobs().delete(&world.blobs, &keys).await.unwrap(), 1);
    assert!(world.all_bytes().await.is_empty());
}

#[testing::test]
async fn erased_face_leaves_only_separate_files_of_other_faces() {
    let world = World::new().await;
    let (_, image, [first, second]) = world.image(world.default, 1).await;
    let erase = async |face: Uuid| {
        let outcome = world.store.commit(async |tx| {
            let plan = world.store.erasures().plan(tx.conn(), world.default, &Target::Face(face)).await?;
            world.store.erasures().carry_out(tx.conn(), &plan).await
        });
        let blobs = outcome.await.blobs;
        world.store.blobs().delete(&world.blobs, &blobs).await.unwrap();
    };
    // The crop of the second face shows a part of the first one.
    world.execute(format!("update faces set bbox = '{{40, 2, 30, 40}}' where id = '{second}'")).await;
    erase(first).await;
    assert_eq!(world.thumbnail(image).await, None, "the thumbnail shows every face");
    assert_eq!(world.crop_and_chip(second).await, (None, some(FACES[1].1)));
    assert_eq!(world.all_bytes().await, FACES[1].1);
}

#[testing::test]
async fn shared_blob_is_rewritten_only_for_image_that_lost_face() {
    let world = World::new().await;
    let (key, _, [first, second]) = world.image(world.default, 1).await;
    let (other_key, _, [other_first, _]) = world.image(world.other, 1).await;
    assert_eq!(key, other_key, "the images have the same files");
    let delete = async |face: Uuid| {
        let keys = world.store.commit(async |tx| world.store.faces().delete(tx.conn(), face).await).await;
        world.store.blobs().delete(&world.blobs, &keys).await.unwrap()
    };
    assert_eq!(delete(first).await, 0);
    assert!(world.blobs.exists(&key).await.unwrap(), "the other collection has the face");
    assert_eq!(world.crop_and_chip(second).await, (some(FACES[1].0), some(FACES[1].1)));
    assert_eq!(world.crop_and_chip(other_first).await, (some(FACES[0].0), some(FACES[0].1)));
    assert_eq!(delete(other_first).await, 1);
    let remaining = [THUMBNAIL, FACES[1].0, FACES[1].1].concat();
    assert_eq!(world.all_bytes().await, remaining, "both images share the new blob");
}

/// Waits until a transaction waits for an advisory lock.
async fn wait_for_waiting_lock(world: &World, is_finished: impl Fn() -> bool) {
    let waits = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                 where d.datname = current_database() and l.locktype = 'advisory' and not l.granted";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(world.store.pool()).await.unwrap() == 0 {
        assert!(!is_finished(), "the deletion did not wait for the lock");
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn face_deleted_during_deletion_of_shared_blob_is_removed_by_sweep() {
    let world = World::new().await;
    let (key, image, _) = world.image(world.default, 1).await;
    let (_, _, [first, _]) = world.image(world.other, 1).await;
    // The deletion of the first image waits after it has examined the second image.
    let bucket = i32::from(Sha256::digest(key.as_bytes())[0] % 64);
    let mut lock = world.store.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock_shared($1, $2)")
        .bind(0x626c_6f62)
        .bind(bucket)
        .execute(lock.conn())
        .await
        .unwrap();
    let keys = world.store.commit(async |tx| world.store.images().delete(tx.conn(), image).await).await;
    let (store, blobs) = (world.store.clone(), world.blobs.clone());
    let deletion = tokio::spawn(async move { store.blobs().delete(&blobs, &keys).await });
    wait_for_waiting_lock(&world, || deletion.is_finished()).await;
    world.store.commit(async |tx| world.store.faces().delete(tx.conn(), first).await).await;
    drop(lock);
    assert_eq!(deletion.await.unwrap().unwrap(), 0);

    assert_eq!(world.store.blobs().delete_pending(&world.blobs).await.unwrap(), 1);
    assert_eq!(world.all_bytes().await, [THUMBNAIL, FACES[1].0, FACES[1].1].concat());
    assert_eq!(world.store.blobs().delete_pending(&world.blobs).await.unwrap(), 0);
}

#[testing::test]
async fn separate_files_of_earlier_release_are_moved_into_one_blob() {
    let world = World::new().await;
    let (key, image, faces) = world.image(world.default, 1).await;
    let put = async |kind: &str, extension: &str, bytes: &'static [u8]| {
        world.blobs.put(kind, extension, Bytes::from_static(bytes)).await.unwrap()
    };
    // Rows as an earlier release wrote them.
    let thumbnail = put("thumbnails", "jpg", THUMBNAIL).await;
    let mut separate = Vec::new();
    for (crop, chip) in FACES {
        separate.push((put("crops", "jpg", crop).await, put("chips", "png", chip).await));
    }
    world
        .execute(format!(
            "update images set parts_key = null, thumbnail_bytes = null, thumbnail_key = '{thumbnail}'"
        ))
        .await;
    for ((crop, chip), face) in separate.iter().zip(faces) {
        let sql = format!(
            "update faces set parts_key = null, parts_offset = null, crop_bytes = null, chip_bytes = null,
                              crop_key = '{crop}', chip_key = '{chip}' where id = '{face}'"
        );
        world.execute(sql).await;
    }
    world.blobs.delete(std::slice::from_ref(&key)).await.unwrap();
    let check = async || {
        assert_eq!(world.thumbnail(image).await, some(THUMBNAIL));
        for ((crop, chip), face) in FACES.iter().zip(faces) {
            assert_eq!(world.crop_and_chip(face).await, (some(crop), some(chip)));
        }
    };
    check().await;

    // A missing file may be restored later.
    world.blobs.delete(std::slice::from_ref(&separate[1].0)).await.unwrap();
    let move_files = async || world.store.blobs().move_separate_files(&world.blobs, "", 10).await.unwrap();
    assert_eq!(move_files().await, (0, Some(thumbnail.clone())));
    assert_eq!(world.thumbnail(image).await, some(THUMBNAIL));
    put("crops", "jpg", FACES[1].0).await;

    assert_eq!(move_files().await, (1, Some(thumbnail)));
    check().await;
    assert_eq!(move_files().await, (0, None));
    let content = [THUMBNAIL, FACES[0].0, FACES[0].1, FACES[1].0, FACES[1].1].concat();
    assert_eq!(world.all_bytes().await, content, "the separate files are deleted");
}

#[testing::test]
async fn missing_or_damaged_blob_is_rewritten_by_later_sweep() {
    let world = World::new().await;
    let (key, _, [first, second]) = world.image(world.default, 1).await;
    let keys = world.store.commit(async |tx| world.store.faces().delete(tx.conn(), first).await).await;
    let path = world.folder.path().join(&key);
    let content = std::fs::read(&path).unwrap();
    std::fs::write(&path, &content[..content.len() - 1]).unwrap();
    let delete = async || world.store.blobs().delete(&world.blobs, &keys).await.unwrap();
    assert_eq!(delete().await, 0, "the last chip is incomplete");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(delete().await, 0);
    std::fs::write(&path, &content).unwrap();
    assert_eq!(world.store.blobs().delete_pending(&world.blobs).await.unwrap(), 1);
    assert_eq!(world.crop_and_chip(second).await, (some(FACES[1].0), some(FACES[1].1)));
    assert_eq!(world.all_bytes().await, [THUMBNAIL, FACES[1].0, FACES[1].1].concat());
}
