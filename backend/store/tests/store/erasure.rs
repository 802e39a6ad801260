//! Tests the deletion of faces, images and crawls.
use crate::fixture::{self, admit_images, image_url, settle};
use domain::ImageState;
use store::images::ImageFilter;
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

async fn count(store: &Store, table: &str) -> i64 {
    let sql = format!("select count(*) from {table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(store.pool()).await.unwrap()
}

#[testing::test]
async fn a_face_goes_with_the_blobs_that_nobody_else_needs() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 4).await;
    let first = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let mut second = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    second.chip_key = first.chip_key.clone();
    let faces = [first.clone(), second.clone()];
    let image = fixture::store_image(&store, default, &fixture::image(1), &faces).await.unwrap();
    let mut conn = store.pool().acquire().await.unwrap();
    // The other face uses the same chip, but a different crop.
    let keys = store.delete_face(&mut conn, first.id).await.unwrap();
    assert_eq!(keys, [first.crop_key.unwrap()]);
    assert_eq!(store.image(image).await.unwrap().face_count, 1);
    assert!(matches!(store.face(first.id).await, Err(StoreError::NotFound { .. })));
    let mut expected = vec![second.chip_key.unwrap(), second.crop_key.unwrap()];
    expected.sort();
    assert_eq!(store.delete_face(&mut conn, second.id).await.unwrap(), expected);
    let again = store.delete_face(&mut conn, second.id).await;
    assert!(matches!(again, Err(StoreError::NotFound { what: "face", .. })));
}

#[testing::test]
async fn an_image_goes_with_its_faces_and_sources_and_a_roll_back_brings_all_back() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let crawl = fixture::crawl(&store).await;
    let model = fixture::model(&store, "m", 4).await;
    let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let new = fixture::image(1);
    let image = fixture::crawled_face(&store, &crawl, "a.jpg", &new, face.clone()).await;
    let mut tx = store.begin().await.unwrap();
    store.delete_image(tx.conn(), image).await.unwrap();
    drop(tx);
    assert_eq!(store.image(image).await.unwrap().face_count, 1);

    let mut tx = store.begin().await.unwrap();
    let keys = store.delete_image(tx.conn(), image).await.unwrap();
    tx.commit().await.unwrap();
    let mut expected = vec![face.chip_key.unwrap(), face.crop_key.unwrap(), new.thumbnail_key.unwrap()];
    expected.sort();
    assert_eq!(keys, expected);
    for table in ["images", "faces", "image_sources"] {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    // The ledger still contains the crawl's outcomes.
    let progress = store.crawl_progress(crawl.id).await.unwrap();
    assert_eq!((progress.images[&ImageState::Processed], progress.faces), (1, 0));
    let mut conn = store.pool().acquire().await.unwrap();
    let again = store.delete_image(&mut conn, image).await;
    assert!(matches!(again, Err(StoreError::NotFound { what: "image", .. })));
}

#[testing::test]
async fn a_crawl_goes_alone_and_its_images_stay_with_their_sources() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let crawl = fixture::crawl(&store).await;
    let model = fixture::model(&store, "m", 4).await;
    let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let image = fixture::crawled_face(&store, &crawl, "a.jpg", &fixture::image(1), face).await;
    fixture::admit_pages(&store, crawl.id, 9, &[fixture::page("a")]).await;
    let rows = admit_images(&store, crawl.id, 9, &[image_url("never.jpg", "a")]).await;
    settle(&store, rows[0].id, "failed", Some("timeout"), None).await;

    let mut tx = store.begin().await.unwrap();
    assert!(store.delete_crawl(tx.conn(), crawl.id, false).await.unwrap().blobs.is_empty());
    tx.commit().await.unwrap();
    assert!(matches!(store.crawl(crawl.id).await, Err(StoreError::NotFound { .. })));
    for table in ["crawls", "pages", "image_urls"] {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    assert_eq!(count(&store, "faces").await, 1);
    let sources = store.sources(&[image]).await.unwrap();
    assert_eq!(sources.len(), 1);
    assert_eq!((sources[0].1.crawl_id, sources[0].1.image_url.as_str()), (None, "http://site.test/a.jpg"));
    assert_eq!(count(&store, "image_sources").await, 1);
    let mut conn = store.pool().acquire().await.unwrap();
    let again = store.delete_crawl(&mut conn, crawl.id, true).await;
    assert!(matches!(again, Err(StoreError::NotFound { what: "crawl", .. })));
}

#[testing::test]
async fn a_crawl_goes_with_the_images_that_only_it_found() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let model = fixture::model(&store, "m", 4).await;
    let face = || fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let (past, one, two) =
        (fixture::crawl(&store).await, fixture::crawl(&store).await, fixture::crawl(&store).await);
    let only = fixture::image(1);
    let mine = fixture::crawled_face(&store, &one, "only.jpg", &only, face()).await;
    let shared = fixture::crawled_face(&store, &one, "shared.jpg", &fixture::image(2), face()).await;
    let kept = fixture::crawled_face(&store, &past, "kept.jpg", &fixture::image(3), face()).await;
    for (crawl, path, image) in
        [(&two, "shared.jpg", shared), (&one, "kept.jpg", kept), (&one, "copy.jpg", mine)]
    {
        let rows = admit_images(&store, crawl.id, 9, &[image_url(path, "other")]).await;
        settle(&store, rows[0].id, "duplicate", None, Some(image)).await;
    }
    // This crawl was deleted without its images.
    let mut tx = store.begin().await.unwrap();
    store.delete_crawl(tx.conn(), past.id, false).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = store.begin().await.unwrap();
    let keys = store.delete_crawl(tx.conn(), one.id, true).await.unwrap().blobs;
    tx.commit().await.unwrap();
    assert_eq!(keys.len(), 3);
    assert!(keys.contains(&only.thumbnail_key.unwrap()));
    let filter = ImageFilter { collection: "default".into(), ..ImageFilter::default() };
    let left: Vec<Uuid> =
        store.images(&filter, None, 9).await.unwrap().into_iter().map(|image| image.id).collect();
    assert_eq!(left, [kept, shared]);
    assert_eq!(count(&store, "faces").await, 2);
    assert_eq!(store.crawl_progress(two.id).await.unwrap().faces, 1);
}

#[testing::test]
async fn the_schema_itself_keeps_a_face_in_its_images_collection() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let default = fixture::collection(&store, "default").await;
    let other = fixture::collection(&store, "other").await;
    let model = fixture::model(&store, "m", 4).await;
    let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    fixture::store_image(&store, default, &fixture::image(1), std::slice::from_ref(&face)).await.unwrap();
    let moved = sqlx::query("update faces set collection_id = $1")
        .bind(other)
        .execute(store.pool())
        .await
        .unwrap_err();
    assert!(moved.as_database_error().unwrap().is_foreign_key_violation());
    let subject = Uuid::now_v7();
    sqlx::query("insert into subjects (id, collection_id, name) values ($1, $2, 'somebody')")
        .bind(subject)
        .bind(other)
        .execute(store.pool())
        .await
        .unwrap();
    for collection in [default, other] {
        let crossed =
            sqlx::query("insert into subject_faces (collection_id, subject_id, face_id) values ($1, $2, $3)")
                .bind(collection)
                .bind(subject)
                .bind(face.id)
                .execute(store.pool())
                .await
                .unwrap_err();
        assert!(crossed.as_database_error().unwrap().is_foreign_key_violation());
    }
    // Deleting a collection's row deletes all its content.
    sqlx::query("delete from collections where id = $1").bind(default).execute(store.pool()).await.unwrap();
    assert_eq!(count(&store, "faces").await, 0);
    assert_eq!(count(&store, "subjects").await, 1);
}
