//! Tests blobs that contain the files of one image.
use crate::fixture::{self, Commit};
use bytes::Bytes;
use futures::TryStreamExt;
use sha2::{Digest, Sha256};
use store::blobs::parts::{BlobPart, NewFaceParts, NewImageParts};
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
        self.image_with_order(collection, number, [0, 1]).await
    }

    /// Works like [`Self::image`], with another order of the faces in the blob.
    async fn image_with_order(
        &self,
        collection: Uuid,
        number: u64,
        order: [usize; 2],
    ) -> (String, Uuid, [Uuid; 2]) {
        let (mut content, mut faces) = (THUMBNAIL.to_vec(), Vec::new());
        for at in order {
            let (crop, chip) = FACES[at];
            let offset = content.len() as i32;
            content.extend([crop, chip].concat());
            let (crop_bytes, chip_bytes) = (crop.len() as i32, chip.len() as i32);
            let parts = NewFaceParts { own_key: None, offset, crop_bytes, chip_bytes };
            let x = 300.0 * at as f32;
            let landmarks = std::array::from_fn(|n| if n % 2 == 0 { x + 10.0 + n as f32 } else { 20.0 });
            let bbox = [x, 2.0, 30.0, 40.0];
            let embedding = vec![at as f32, 1.0, 0.0, 0.0];
            let face = fixture::face(&self.model, embedding);
            faces.push(NewFace { parts: Some(parts), bbox, landmarks, ..face });
        }
        let key = self.blobs.put_parts(Bytes::from(content)).await.unwrap();
        let parts = Some(NewImageParts { key: key.clone(), thumbnail_bytes: THUMBNAIL.len() as i32 });
        let image = NewImage { parts, ..fixture::image(number) };
        let id = fixture::store_image(&self.store, collection, &image, &faces).await.unwrap();
        let id_of = |at: usize| faces[order.iter().position(|place| *place == at).unwrap()].id;
        (key, id, [id_of(0), id_of(1)])
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
    assert_eq!(keys, std::slice::from_ref(&key));
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

/// Waits until a transaction waits for a lock of this type.
async fn wait_for_waiting_lock(world: &World, kind: &str) {
    let waits = "select count(*) from pg_locks l
                 where l.locktype = $1 and not l.granted
                   and l.pid in (select pid from pg_stat_activity where datname = current_database())";
    let is_waiting = async || {
        let waiting = sqlx::query_scalar::<_, i64>(waits).bind(kind).fetch_one(world.store.pool());
        waiting.await.unwrap() > 0
    };
    while !is_waiting().await {
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn face_deleted_after_rewrite_of_shared_blob_is_removed_by_sweep() {
    let world = World::new().await;
    let store = &world.store;
    let (key, _, [rewritten_first, _]) = world.image(world.default, 1).await;
    let (_, rewritten_later, [first, _]) = world.image(world.other, 1).await;
    let delete_face =
        async |face: Uuid| store.commit(async |tx| store.faces().delete(tx.conn(), face).await).await;
    let keys = delete_face(rewritten_first).await;
    // The deletion stops when it has read both images, and before it changes the first one.
    let mut rows = store.begin().await.unwrap();
    sqlx::query("select 1 from images where id <> $1 for update")
        .bind(rewritten_later)
        .execute(rows.conn())
        .await
        .unwrap();
    let (copy, blobs) = (store.clone(), world.blobs.clone());
    let deletion = tokio::spawn(async move { copy.blobs().delete(&blobs, &keys).await });
    wait_for_waiting_lock(&world, "transactionid").await;
    // It stops again before it checks whether the blob is still used.
    let mut bucket = store.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock_shared($1, $2)")
        .bind(0x626c_6f62)
        .bind(i32::from(Sha256::digest(key.as_bytes())[0] % 64))
        .execute(bucket.conn())
        .await
        .unwrap();
    drop(rows);
    wait_for_waiting_lock(&world, "advisory").await;
    delete_face(first).await;
    drop(bucket);
    assert_eq!(deletion.await.unwrap().unwrap(), 0);

    assert_eq!(store.blobs().delete_pending(&world.blobs).await.unwrap(), 1);
    assert_eq!(world.all_bytes().await, [THUMBNAIL, FACES[1].0, FACES[1].1].concat());
    assert_eq!(store.blobs().delete_pending(&world.blobs).await.unwrap(), 0);
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

    // Nothing moves while a backup is written.
    let move_files = async || world.store.blobs().move_separate_files(&world.blobs, "", 10).await.unwrap();
    let backup = world.store.blobs().prevent_moves().await.unwrap();
    assert_eq!(move_files().await, (0, None));
    drop(backup);

    // The files of a face stay where they are if one of them is missing. It may be restored later.
    let crop = std::slice::from_ref(&separate[1].0);
    world.blobs.delete(crop).await.unwrap();
    while move_files().await.0 == 0 {}
    let content = [THUMBNAIL, FACES[0].0, FACES[0].1].concat();
    assert_eq!(world.all_bytes().await, [FACES[1].1, &content].concat());
    assert_eq!(world.crop_and_chip(faces[1]).await, (None, some(FACES[1].1)));
    assert_eq!(put("crops", "jpg", FACES[1].0).await, crop[0]);

    assert_eq!(move_files().await, (1, Some(separate[1].0.clone())));
    check().await;
    assert_eq!(move_files().await, (0, None));
    let content = [&content, FACES[1].0, FACES[1].1].concat();
    assert_eq!(world.all_bytes().await, content, "the separate files are deleted");
}

#[testing::test]
async fn missing_or_damaged_blob_does_not_keep_deleted_face() {
    let world = World::new().await;
    let (key, _, [first, second]) = world.image(world.default, 1).await;
    let keys = world.store.commit(async |tx| world.store.faces().delete(tx.conn(), first).await).await;
    let path = world.folder.path().join(&key);
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let delete = async || world.store.blobs().delete(&world.blobs, &keys).await.unwrap();
    assert_eq!(delete().await, 0, "the blob may be restored");
    std::fs::write(&path, &content[..content.len() - 1]).unwrap();
    assert_eq!(world.store.blobs().delete_pending(&world.blobs).await.unwrap(), 1);
    assert_eq!(world.crop_and_chip(second).await, (some(FACES[1].0), None), "the last chip is incomplete");
    assert_eq!(world.all_bytes().await, [THUMBNAIL, FACES[1].0].concat());
}

#[testing::test]
async fn face_with_own_blob_joins_blob_of_image() {
    let world = World::new().await;
    let (key, image, [first, second]) = world.image(world.default, 1).await;
    let own = world.blobs.put_parts(Bytes::from_static(b"<third crop><third chip>")).await.unwrap();
    let parts = NewFaceParts { own_key: Some(own.clone()), offset: 0, crop_bytes: 12, chip_bytes: 12 };
    let third = NewFace { parts: Some(parts), ..fixture::face(&world.model, vec![0.0, 0.0, 1.0, 0.0]) };
    let store = &world.store;
    store
        .commit(async |tx| {
            store.faces().insert(tx.conn(), world.default, image, std::slice::from_ref(&third)).await
        })
        .await;
    let files_of_third = (some(b"<third crop>"), some(b"<third chip>"));
    assert_eq!(world.crop_and_chip(third.id).await, files_of_third);
    let mut keys = store.blobs().keys("", 10).await.unwrap();
    keys.sort();
    let mut expected = vec![key, own];
    expected.sort();
    assert_eq!(keys, expected);

    let keys = store.commit(async |tx| store.faces().delete(tx.conn(), first).await).await;
    assert_eq!(store.blobs().delete(&world.blobs, &keys).await.unwrap(), 1);
    assert_eq!(store.blobs().delete_pending(&world.blobs).await.unwrap(), 1, "the blob of the third face");
    assert_eq!(world.crop_and_chip(second).await, (some(FACES[1].0), some(FACES[1].1)));
    assert_eq!(world.crop_and_chip(third.id).await, files_of_third);
    let content = [THUMBNAIL, FACES[1].0, FACES[1].1, b"<third crop><third chip>"].concat();
    assert_eq!(world.all_bytes().await, content);
}

#[testing::test]
async fn keys_are_listed_completely_in_pages() {
    let world = World::new().await;
    let mut expected = std::collections::BTreeSet::new();
    for number in 0..6 {
        let image = NewImage { parts: None, ..fixture::image(number) };
        // Each face has its own blob, or shares it with the other one.
        let faces: Vec<NewFace> = (0..2)
            .map(|face| {
                let key = format!("parts/{}", number * 10 + face * (number % 2));
                expected.insert(key.clone());
                let parts = NewFaceParts { own_key: Some(key), offset: 0, crop_bytes: 1, chip_bytes: 1 };
                NewFace { parts: Some(parts), ..fixture::face(&world.model, vec![0.0, 1.0, 0.0, 0.0]) }
            })
            .collect();
        fixture::store_image(&world.store, world.default, &image, &faces).await.unwrap();
        let image = fixture::image(100 + number);
        expected.insert(image.parts.clone().unwrap().key);
        fixture::store_image(&world.store, world.default, &image, &[]).await.unwrap();
    }
    for limit in 1..4 {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let keys = world.store.blobs().keys(&after, limit).await.unwrap();
            let Some(last) = keys.last() else { break };
            after.clone_from(last);
            found.extend(keys);
        }
        assert_eq!(found, expected.iter().cloned().collect::<Vec<_>>(), "{limit}");
    }
}

#[testing::test]
async fn full_disk_or_failed_rewrite_does_not_prevent_other_deletions() {
    let world = World::new().await;
    let blobs = world.blobs.clone().with_exact_reserve(u64::MAX / 2);
    let store = &world.store;
    let (failing, image, [first, _]) = world.image(world.default, 1).await;
    let (key, other_image, [other_first, other_second]) =
        world.image_with_order(world.default, 2, [1, 0]).await;
    for face in [first, other_first] {
        store.commit(async |tx| store.faces().delete(tx.conn(), face).await).await;
    }
    let sql = format!("alter table images add constraint failing check (id <> '{image}') not valid");
    world.execute(sql).await;
    store.blobs().delete_pending(&blobs).await.unwrap_err();
    assert!(world.blobs.exists(&failing).await.unwrap());
    assert!(!world.blobs.exists(&key).await.unwrap());
    assert_eq!(world.thumbnail(other_image).await, some(THUMBNAIL));
    assert_eq!(world.crop_and_chip(other_second).await, (some(FACES[1].0), some(FACES[1].1)));
    world.execute("alter table images drop constraint failing".into()).await;
    assert_eq!(store.blobs().delete_pending(&blobs).await.unwrap(), 1);
    assert!(!world.blobs.exists(&failing).await.unwrap());
}
