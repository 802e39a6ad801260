//! Tests that a restored database repeats the deletions that followed its backup.
use crate::fixture::{self, Commit, admit_images, assert_not_found, image_url};
use store::erasures::deletion_log::Entry;
use store::erasures::suppressions::{Sketch, SuppressedImage, Suppression};
use store::erasures::{ErasureRecord, Target};
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

pub(crate) async fn deletion_log(store: &Store) -> Vec<Entry> {
    let mut entries = Vec::new();
    let result = store.erasures().deletion_log(|line| {
        entries.push(serde_json::from_str(line).unwrap());
        Ok::<_, StoreError>(())
    });
    result.await.unwrap();
    entries
}

/// Deletes all rows that the deletion log lists. Returns the numbers of faces, images and people.
pub(crate) async fn reapply(store: &Store, collection: Uuid, deletion_log: Vec<Entry>) -> (u64, u64, u64) {
    store.erasures().import_deletion_log(deletion_log).await.unwrap();
    let mut deleted = (0, 0, 0);
    loop {
        let repeated = store.commit(async |tx| store.erasures().reapply(tx.conn(), collection).await).await;
        if repeated.is_empty() {
            return deleted;
        }
        deleted = (deleted.0 + repeated.faces, deleted.1 + repeated.images, deleted.2 + repeated.subjects);
    }
}

#[testing::test]
async fn deletion_log_deletes_only_logged_rows_again() {
    let (live, copy) = (TestDatabase::create().await, TestDatabase::create().await);
    let stores = [live.store(), copy.store()];
    // Both databases have the same rows, as after a restore.
    let (single, pair, kept) = (fixture::image(1), fixture::image(2), fixture::image(3));
    let mut ids = Vec::new();
    let mut collection = Uuid::nil();
    let mut faces = Vec::new();
    for store in &stores {
        collection = fixture::collection(store, "default").await;
        let model = fixture::model(store, "m", 4).await;
        if faces.is_empty() {
            faces = (0..4).map(|_| fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0])).collect();
        }
        for (image, faces) in [(&single, &faces[..1]), (&pair, &faces[1..3]), (&kept, &faces[3..])] {
            ids.push(fixture::store_image(store, collection, image, faces).await.unwrap());
        }
    }
    let [live, copy] = stores;
    live.commit(async |tx| live.images().delete(tx.conn(), single.id).await).await;
    fixture::erase(&live, collection, &Target::Face(faces[1].id)).await;
    // A deletion that was rolled back leaves no tombstone.
    let mut tx = live.begin().await.unwrap();
    live.images().delete(tx.conn(), kept.id).await.unwrap();
    drop(tx);

    let deletion_log = deletion_log(&live).await;
    let text = serde_json::to_string(&deletion_log).unwrap();
    assert!(!text.contains(&single.id.to_string()), "the log contains digests instead of ids: {text}");
    assert_eq!(reapply(&copy, collection, deletion_log.clone()).await, (2, 1, 0));
    assert_not_found(copy.images().get(single.id).await, "image");
    assert_not_found(copy.faces().get(faces[1].id).await, "face");
    assert_eq!(copy.images().get(pair.id).await.unwrap().face_count, 1);
    assert_eq!(copy.faces().get(faces[3].id).await.unwrap().image_id, kept.id);
    assert_eq!(reapply(&copy, collection, deletion_log).await, (0, 0, 0), "no logged row is left");
    let log_of_copy = self::deletion_log(&copy).await;
    assert!(!log_of_copy.is_empty(), "the copy has the tombstones too");
}

#[testing::test]
async fn erased_image_erases_smaller_versions_in_backup() {
    let ((_live, live), (_copy, copy)) = (fixture::database().await, fixture::database().await);
    let (small, medium, large) = (fixture::image(1), fixture::image(2), fixture::image(3));
    let collection = fixture::collection(&copy, "default").await;
    fixture::store_image(&copy, collection, &small, &[]).await.unwrap();
    let crawl = fixture::crawl(&live).await;
    for image in [&small, &medium, &large] {
        fixture::store_image(&live, collection, image, &[]).await.unwrap();
    }
    let row = admit_images(&live, crawl.id, 9, &[image_url("a.jpg", "")]).await[0].id;
    for (old, new) in [(&small, &medium), (&medium, &large)] {
        live.commit(async |tx| live.images().replace(tx.conn(), &[old.id], new.id, row).await).await;
    }
    assert_eq!(
        reapply(&copy, collection, deletion_log(&live).await).await,
        (0, 0, 0),
        "a replacement is not an erasure"
    );
    live.commit(async |tx| live.images().delete(tx.conn(), large.id).await).await;
    assert_eq!(reapply(&copy, collection, deletion_log(&live).await).await, (0, 1, 0));
}

#[testing::test]
async fn imported_suppressions_keep_model_of_sketch() {
    let ((_live, live), (_copy, copy)) = (fixture::database().await, fixture::database().await);
    let collection = fixture::collection(&live, "default").await;
    // The same model has a different id here.
    fixture::model(&copy, "another", 4).await;
    let model = fixture::model(&live, "m", 4).await;
    let record =
        ErasureRecord { threshold: Some(0.5), suppressions: 2, ..fixture::erasure_by_likeness(collection) };
    let sketch = Sketch { bits: "01".repeat(128), key: "secret".into(), model_id: model.id };
    let face = Suppression::ImageFace {
        sha256: vec![7; 32],
        phash: 1,
        dhash: 2,
        ahash: 3,
        region: [0.1, 0.2, 0.3, 0.4],
        sketch: Sketch { bits: "10".repeat(128), ..sketch.clone() },
        whole_image: true,
    };
    let items = [Suppression::Url("http://site.test/a".into()), Suppression::Person(sketch.clone()), face];
    let mut tx = live.begin().await.unwrap();
    live.erasures().record(tx.conn(), &record).await.unwrap();
    live.suppressions().suppress(tx.conn(), collection, record.id, &items).await.unwrap();
    tx.commit().await.unwrap();

    copy.erasures().import_deletion_log(deletion_log(&live).await).await.unwrap();
    let copied_model = copy.models().register("identity of m", "m", 4).await.unwrap();
    assert_ne!(copied_model.id, model.id);
    let mut tx = copy.begin().await.unwrap();
    let person = Sketch { model_id: copied_model.id, ..sketch };
    let of_image = Sketch { bits: "10".repeat(128), ..person.clone() };
    let suppressed =
        copy.suppressions().suppressed_sketches(tx.conn(), collection, &[person, of_image], 0).await.unwrap();
    assert_eq!(suppressed, [true, false], "the sketch of a face applies to its image only");
    for (sha256, hashes, is_same_file) in [([7; 32], None, true), ([8; 32], Some((1, 2)), false)] {
        let matches =
            copy.suppressions().suppressed_images(tx.conn(), collection, &sha256, hashes).await.unwrap();
        let expected = SuppressedImage {
            is_same_file,
            phash: 1,
            dhash: 2,
            ahash: 3,
            region: Some(vec![0.1, 0.2, 0.3, 0.4]),
            whole_image: true,
            sha256: Some(vec![7; 32]),
            sketch: Some("10".repeat(128)),
            sketch_key: Some("secret".into()),
            model_id: Some(copied_model.id),
        };
        assert_eq!(matches, [expected]);
    }
    assert_eq!(copy.erasures().list(collection, None, 9).await.unwrap()[0].suppressions, 2);
    drop(tx);

    // Suppressions that were lifted in the meantime are lifted here too.
    live.commit(async |tx| live.erasures().lift(tx.conn(), record.id).await).await;
    copy.erasures().import_deletion_log(deletion_log(&live).await).await.unwrap();
    let mut tx = copy.begin().await.unwrap();
    assert!(!copy.suppressions().suppresses(tx.conn(), collection).await.unwrap());
    assert!(copy.erasures().list(collection, None, 9).await.unwrap()[0].lifted_at.is_some());
}

#[testing::test]
async fn restored_backup_loses_only_erased_people() {
    let (live, copy) = (TestDatabase::create().await, TestDatabase::create().await);
    let (erased, deleted) = (fixture::image(1), fixture::image(2));
    let (mut collection, mut faces) = (Uuid::nil(), Vec::new());
    for database in [&live, &copy] {
        let store = database.store();
        collection = fixture::collection(&store, "default").await;
        let model = fixture::model(&store, "m", 4).await;
        if faces.is_empty() {
            faces = (0..2).map(|_| fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0])).collect();
        }
        for (image, face) in [(&erased, &faces[..1]), (&deleted, &faces[1..])] {
            fixture::store_image(&store, collection, image, face).await.unwrap();
        }
        database
            .execute(
                "insert into subjects (id, collection_id, name)
                 select ('0198f1c2-3a55-7c30-9d35-6a2f5d0f6a1' || n)::uuid, c.id, 'person ' || n
                 from collections c, generate_series(1, 2) n where c.name = 'default'",
            )
            .await;
        database
            .execute(
                "insert into subject_faces (collection_id, subject_id, face_id)
                 select collection_id, ('0198f1c2-3a55-7c30-9d35-6a2f5d0f6a1' || row_number() over (order by id))::uuid, id
                 from faces",
            )
            .await;
    }
    let (live, copy) = (live.store(), copy.store());
    let subjects = ["0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11", "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a12"]
        .map(|id| id.parse::<Uuid>().unwrap());
    let plan = fixture::erase(&live, collection, &Target::Image(erased.id)).await;
    assert_eq!(plan.subjects, subjects[..1]);
    live.commit(async |tx| live.faces().delete(tx.conn(), faces[1].id).await).await;
    assert_eq!(
        live.people().get(subjects[1]).await.unwrap().face_count,
        0,
        "deleting an image is not an erasure"
    );

    assert_eq!(reapply(&copy, collection, deletion_log(&live).await).await.2, 1);
    assert_not_found(copy.people().get(subjects[0]).await, "subject");
    assert_eq!(copy.people().get(subjects[1]).await.unwrap().face_count, 0);
}

#[testing::test]
async fn erased_url_is_erased_again_in_restored_backup() {
    let (db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    fixture::admit_pages(&store, crawl.id, 9, &[fixture::page("secret"), fixture::page("other")]).await;
    // An image that was not stored.
    let image = admit_images(&store, crawl.id, 9, &[image_url("secret.jpg", "other")]).await[0].id;
    fixture::settle(&store, image, "failed", Some("http_404"), None).await;
    db.execute("update pages set state = 'fetched', title = 'a title'").await;
    let text = async || -> String {
        sqlx::query_scalar(
            "select concat((select string_agg(p::text, ' ' order by id) from pages p),
                           (select string_agg(u::text, ' ') from image_urls u),
                           (select string_agg(s::text, ' ') from image_sources s))",
        )
        .fetch_one(db.pool())
        .await
        .unwrap()
    };
    let text_before = text().await;
    assert!(text_before.contains("/secret ") || text_before.contains("/secret,"), "{text_before}");
    db.execute("create table backup_of_pages as select * from pages").await;
    db.execute("create table backup_of_images as select * from image_urls").await;
    for address in ["http://site.test/secret", "http://site.test/secret.jpg"] {
        fixture::erase(&store, crawl.collection_id, &Target::Url(vec![address.to_owned()])).await;
    }
    assert!(!text().await.contains("secret"));
    let deletion_log = deletion_log(&store).await;
    assert!(!serde_json::to_string(&deletion_log).unwrap().contains("secret"));

    // The rows are those of a backup from before the erasure.
    db.execute("update pages p set url = b.url, title = b.title from backup_of_pages b where b.id = p.id")
        .await;
    db.execute("update image_urls u set url = b.url from backup_of_images b where b.id = u.id").await;
    assert!(text().await.contains("secret"));
    assert_eq!(reapply(&store, crawl.collection_id, deletion_log).await, (0, 0, 0));
    let text_after = text().await;
    assert!(!text_after.contains("secret") && text_after.contains("/other"), "{text_after}");
}
