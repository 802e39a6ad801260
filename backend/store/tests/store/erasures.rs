//! Tests the deletion of faces, images and crawls, erasures by likeness, and suppressions.
use crate::fixture::{self, Commit, admit_images, assert_not_found, count, image_url, settle};
use domain::ImageState;
use store::erasures::Target;
use store::erasures::suppressions::{Sketch, Suppression};
use store::images::ImageFilter;
use uuid::Uuid;

#[testing::test]
async fn deleted_face_is_gone_and_returns_its_blob() {
    let (_db, store, default, model) = fixture::with_model(4).await;
    let first = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let second = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let faces = [first.clone(), second.clone()];
    let new = fixture::image(1);
    let expected = [new.parts.clone().unwrap().key];
    let image = fixture::store_image(&store, default, &new, &faces).await.unwrap();
    let mut conn = store.pool().acquire().await.unwrap();
    assert_eq!(store.faces().delete(&mut conn, first.id).await.unwrap(), expected);
    assert_eq!(store.images().get(image).await.unwrap().face_count, 1);
    assert_not_found(store.faces().get(first.id).await, "face");
    assert_eq!(store.faces().delete(&mut conn, second.id).await.unwrap(), expected);
    let result = store.faces().delete(&mut conn, second.id).await;
    assert_not_found(result, "face");
}

#[testing::test]
async fn deleting_image_deletes_faces_and_sources() {
    let (_db, store, _, model) = fixture::with_model(4).await;
    let crawl = fixture::crawl(&store).await;
    let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let new = fixture::image(1);
    let image = fixture::crawled_face(&store, &crawl, "a.jpg", &new, face).await;
    let mut tx = store.begin().await.unwrap();
    store.images().delete(tx.conn(), image).await.unwrap();
    drop(tx);
    assert_eq!(store.images().get(image).await.unwrap().face_count, 1);

    let keys = store.commit(async |tx| store.images().delete(tx.conn(), image).await).await;
    assert_eq!(keys, [new.parts.unwrap().key]);
    for table in ["images", "faces", "image_sources"] {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    // The ledger still contains the crawl's outcomes.
    let progress = store.crawls().progress(crawl.id).await.unwrap();
    assert_eq!((progress.images[&ImageState::Processed], progress.faces), (1, 0));
    let mut conn = store.pool().acquire().await.unwrap();
    let result = store.images().delete(&mut conn, image).await;
    assert_not_found(result, "image");
}

#[testing::test]
async fn deleting_crawl_alone_keeps_images_and_sources() {
    let (_db, store, _, model) = fixture::with_model(4).await;
    let crawl = fixture::crawl(&store).await;
    let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let image = fixture::crawled_face(&store, &crawl, "a.jpg", &fixture::image(1), face).await;
    fixture::admit_pages(&store, crawl.id, 9, &[fixture::page("a")]).await;
    let rows = admit_images(&store, crawl.id, 9, &[image_url("never.jpg", "a")]).await;
    settle(&store, rows[0].id, "failed", Some("timeout"), None).await;

    let mut tx = store.begin().await.unwrap();
    assert!(store.crawls().delete(tx.conn(), crawl.id, false).await.unwrap().blobs.is_empty());
    tx.commit().await.unwrap();
    assert_not_found(store.crawls().get(crawl.id).await, "crawl");
    for table in ["crawls", "pages", "image_urls"] {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    assert_eq!(count(&store, "faces").await, 1);
    let sources = store.images().sources(&[image]).await.unwrap();
    assert_eq!(sources.len(), 1);
    assert_eq!((sources[0].1.crawl_id, sources[0].1.image_url.as_str()), (None, "http://site.test/a.jpg"));
    assert_eq!(count(&store, "image_sources").await, 1);
    let mut conn = store.pool().acquire().await.unwrap();
    let result = store.crawls().delete(&mut conn, crawl.id, true).await;
    assert_not_found(result, "crawl");
}

#[testing::test]
async fn deleting_crawl_with_images_keeps_shared_images() {
    let (_db, store, _, model) = fixture::with_model(4).await;
    let face = || fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let (deleted_crawl, one, two) =
        (fixture::crawl(&store).await, fixture::crawl(&store).await, fixture::crawl(&store).await);
    let single_image = fixture::image(1);
    let single = fixture::crawled_face(&store, &one, "only.jpg", &single_image, face()).await;
    let shared = fixture::crawled_face(&store, &one, "shared.jpg", &fixture::image(2), face()).await;
    let kept = fixture::crawled_face(&store, &deleted_crawl, "kept.jpg", &fixture::image(3), face()).await;
    for (crawl, path, image) in
        [(&two, "shared.jpg", shared), (&one, "kept.jpg", kept), (&one, "copy.jpg", single)]
    {
        let rows = admit_images(&store, crawl.id, 9, &[image_url(path, "other")]).await;
        settle(&store, rows[0].id, "duplicate", None, Some(image)).await;
    }
    // This crawl was deleted without its images.
    store.commit(async |tx| store.crawls().delete(tx.conn(), deleted_crawl.id, false).await).await;

    let keys = store.commit(async |tx| store.crawls().delete(tx.conn(), one.id, true).await).await.blobs;
    assert_eq!(keys, [single_image.parts.unwrap().key]);
    let filter = ImageFilter { collection: "default".into(), ..ImageFilter::default() };
    let remaining: Vec<Uuid> =
        store.images().list(&filter, None, 9).await.unwrap().into_iter().map(|image| image.id).collect();
    assert_eq!(remaining, [kept, shared]);
    assert_eq!(count(&store, "faces").await, 2);
    assert_eq!(store.crawls().progress(two.id).await.unwrap().faces, 1);
}

#[testing::test]
async fn schema_keeps_face_in_collection_of_its_image() {
    let (_db, store) = fixture::database().await;
    let default = fixture::collection(&store, "default").await;
    let other = fixture::collection(&store, "other").await;
    let model = fixture::model(&store, "m", 4).await;
    let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    fixture::store_image(&store, default, &fixture::image(1), std::slice::from_ref(&face)).await.unwrap();
    let move_faces = format!("update faces set collection_id = '{other}'");
    let error = fixture::run(&store, move_faces).await.unwrap_err();
    assert!(error.as_database_error().unwrap().is_foreign_key_violation());
    let subject = Uuid::now_v7();
    let insert =
        format!("insert into subjects (id, collection_id, name) values ('{subject}', '{other}', 'somebody')");
    fixture::run(&store, insert).await.unwrap();
    for collection in [default, other] {
        let columns = "subject_faces (collection_id, subject_id, face_id)";
        let insert = format!("insert into {columns} values ('{collection}', '{subject}', '{}')", face.id);
        let error = fixture::run(&store, insert).await.unwrap_err();
        assert!(error.as_database_error().unwrap().is_foreign_key_violation());
    }
    // Deleting a collection's row deletes all its content.
    sqlx::query("delete from collections where id = $1").bind(default).execute(store.pool()).await.unwrap();
    assert_eq!(count(&store, "faces").await, 0);
    assert_eq!(count(&store, "subjects").await, 1);
}

/// Number of faces. Comparing them takes more than two statements.
const FACES: i32 = 120_000;

#[testing::test]
async fn erasure_compares_every_face_of_large_collection() {
    let (_db, store, collection, model) = fixture::with_model(4).await;
    let image = fixture::store_image(&store, collection, &fixture::image(1), &[]).await.unwrap();
    let other = fixture::collection(&store, "other").await;
    let other_image = fixture::store_image(&store, other, &fixture::image(1), &[]).await.unwrap();
    // Similar faces: the first, the last, and those on both sides of each batch boundary.
    let is_similar = "n in (1, 49999, 50000, 50001, 99999, 100000, 100001, 120000)";
    for (collection, image, prefix) in [(collection, image, "1"), (other, other_image, "2")] {
        let sql = format!(
            "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, embedding, model_id)
             select (lpad(to_hex(n), 8, '0') || '-0000-7000-8000-{prefix}00000000000')::uuid, $1, $2, '{{0,0,9,9}}', 1,
                    '{{0,0,0,0,0,0,0,0,0,0}}', case when {is_similar} then '[1,0,0,0]' else '[0,1,0,0]' end::halfvec, $3
             from generate_series(1, {FACES}) n"
        );
        let insert = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(collection).bind(image).bind(model.id);
        insert.execute(store.pool()).await.unwrap();
    }
    let target = Target::Likeness { embedding: vec![1.0, 0.0, 0.0, 0.0], model_id: model.id, threshold: 0.9 };
    let plan = fixture::erase(&store, collection, &target).await;
    let mut erased: Vec<Uuid> = plan.faces.iter().map(|face| face.id).collect();
    erased.sort();
    let expected = [1_u32, 49_999, 50_000, 50_001, 99_999, 100_000, 100_001, 120_000]
        .map(|n| Uuid::parse_str(&format!("{n:08x}-0000-7000-8000-100000000000")).unwrap());
    assert_eq!(erased, expected);
    assert!(plan.images.is_empty(), "the image has other faces");
    assert_eq!(store.images().get(image).await.unwrap().face_count, FACES - 8);
}

/// Number of images. Inserting their suppressions takes more than two statements.
const IMAGES: i64 = 2_500;

#[testing::test]
async fn many_suppressions_are_stored_once_each() {
    let (db, store, collection, model) = fixture::with_model(4).await;
    let image = |number: i64, region| Suppression::Image {
        sha256: [number.to_be_bytes(); 4].concat(),
        phash: number,
        dhash: number + 1,
        ahash: number + 2,
        region,
    };
    // Every second image has one face. The width of the face's box is the image's number.
    let region = |number: i64| (number % 2 == 1).then_some([0.25, 0.5, number as f32, 0.75]);
    let mut items: Vec<Suppression> = (0..IMAGES).map(|number| image(number, region(number))).collect();
    let sketch = Sketch { bits: "01".repeat(128), key: "secret".into(), model_id: model.id };
    items.extend([Suppression::Url("http://site.test/a".into()), Suppression::Person(sketch.clone())]);
    let distinct = items.len() as u64;
    // Adds all of them again, in different batches, and another face of an image in the list.
    items.extend(items.clone());
    items.push(image(1, Some([0.0, 0.0, 1.0, 1.0])));

    let record = fixture::erasure_by_likeness(collection);
    let mut tx = store.begin().await.unwrap();
    store.erasures().record(tx.conn(), &record).await.unwrap();
    let written = store.suppressions().suppress(tx.conn(), collection, record.id, &items).await.unwrap();
    assert_eq!(written, distinct + 1);
    tx.commit().await.unwrap();

    let count = async |condition: &'static str| db.number(condition).await;
    assert_eq!(count("select count(*) from suppressions").await as u64, distinct + 1);
    let whole_images = "select count(*) from suppressions where region is null and phash % 2 = 0
                 and sha256 = repeat_of(phash) and dhash = phash + 1 and ahash = phash + 2";
    db.execute(
        "create function repeat_of(n bigint) returns bytea language sql as
         'select int8send(n) || int8send(n) || int8send(n) || int8send(n)'",
    )
    .await;
    assert_eq!(count(whole_images).await, IMAGES / 2);
    let faces = "select count(*) from suppressions where region = array[0.25, 0.5, phash, 0.75]::real[]";
    assert_eq!(count(faces).await, IMAGES / 2);
    let mut tx = store.begin().await.unwrap();
    let found = store.suppressions().suppressed_sketches(tx.conn(), collection, &[sketch], 0).await.unwrap();
    assert_eq!(found, [true]);
    let (record, lifted) = store.erasures().lift(tx.conn(), record.id).await.unwrap();
    assert_eq!((record.suppressions, lifted), (0, distinct + 1));
}
