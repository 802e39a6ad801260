use crate::fixture::{self, assert_not_found};
use store::StoreError;
use store::blobs::parts::BlobPart;
use store::faces::FaceListQuery;
use store::index::scope::{FaceFilter, Site};
use uuid::Uuid;

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_registered_once() {
    let (_db, store) = fixture::database().await;
    let models =
        futures::future::try_join_all((0..6).map(|_| store.models().register("sha+norm", "mobile", 128)))
            .await;
    let models = models.unwrap();
    assert!(models.iter().all(|model| model.id == models[0].id));
    let other = store.models().register("sha+other", "mobile", 128).await.unwrap();
    assert_ne!(other.id, models[0].id);
    assert_eq!(store.models().get(other.id).await.unwrap().identity, "sha+other");
    let result = store.models().register("sha+norm", "mobile", 512).await;
    assert!(matches!(result, Err(StoreError::Conflict(_))));
    for dimensions in [0, -1, 2001] {
        let result = store.models().register("odd", "odd", dimensions).await;
        assert!(matches!(result, Err(StoreError::Invalid(_))), "{dimensions}");
    }
    assert_not_found(store.models().get(99).await, "embedding model");
}

#[testing::test]
async fn stored_faces_are_read_back_unchanged() {
    let (_db, store) = fixture::database().await;
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "mobile", 4).await;
    let mut second = fixture::face(&model, vec![0.0, 0.6, 0.0, 0.8]);
    (second.quality, second.quality_overall, second.quality_passed) = (None, None, None);
    second.parts = None;
    (second.bbox, second.landmarks) = ([9.0, 8.0, 7.0, 6.0], [3.25; 10]);
    let first = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let new = fixture::image(1);
    let faces = [first.clone(), second.clone()];
    let image_key = new.parts.as_ref().unwrap().key.clone();
    let image = fixture::store_image(&store, default, &new, &faces).await.unwrap();
    assert_eq!(store.images().get(image).await.unwrap().face_count, 2);
    for new in &faces {
        let face = store.faces().get(new.id).await.unwrap();
        assert_eq!((face.id, face.image_id, face.collection_id), (new.id, image, default));
        assert_eq!((face.collection.as_str(), face.embedding_model.as_str()), ("default", "mobile"));
        assert_eq!((face.bbox.as_slice(), face.landmarks.as_slice()), (&new.bbox[..], &new.landmarks[..]));
        assert_eq!((face.det_score, &face.quality), (new.det_score, &new.quality));
        let part = |range, media_type| {
            new.parts.as_ref()?;
            Some(BlobPart { key: image_key.clone(), range: Some(range), media_type })
        };
        assert_eq!(face.parts.crop(), part(1_000..1_200, "image/jpeg"));
        assert_eq!(face.parts.chip(), part(1_200..1_230, "image/png"));
        let (model_id, embedding) = store.faces().embedding(new.id).await.unwrap();
        assert_eq!(model_id, model.id);
        for (stored, expected) in embedding.iter().zip(&new.embedding) {
            assert!((stored - expected).abs() < 1e-3);
        }
    }
    assert_not_found(store.faces().get(Uuid::now_v7()).await, "face");
    assert_not_found(store.faces().embedding(image).await, "face");
}

#[testing::test]
async fn incomparable_or_foreign_face_is_rejected() {
    let (_db, store) = fixture::database().await;
    let [default, other] = fixture::collections(&store, ["default", "other"]).await;
    let model = fixture::model(&store, "mobile", 4).await;
    let image = fixture::store_image(&store, default, &fixture::image(1), &[]).await.unwrap();
    let insert_error = |collection: Uuid, image: Uuid, face: store::faces::NewFace| {
        let store = store.clone();
        async move {
            let mut tx = store.begin().await.unwrap();
            store.faces().insert(tx.conn(), collection, image, &[face]).await.unwrap_err()
        }
    };
    for (embedding, word) in [
        (vec![1.0; 3], "3 components"),
        (vec![f32::NAN, 0.0, 0.0, 1.0], "finite"),
        (vec![1e6, 0.0, 0.0, 1.0], "finite"),
        (vec![0.0; 4], "zero"),
    ] {
        let error = insert_error(default, image, fixture::face(&model, embedding)).await;
        assert!(matches!(&error, StoreError::Invalid(message) if message.contains(word)), "{error}");
    }
    let good = || fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    let error = insert_error(other, image, good()).await;
    assert!(matches!(error, StoreError::NotFound { resource: "image", .. }));
    assert!(matches!(insert_error(default, Uuid::now_v7(), good()).await, StoreError::NotFound { .. }));
    let mut unknown = good();
    unknown.model_id = 99;
    let unknown = insert_error(default, image, unknown).await;
    assert!(matches!(unknown, StoreError::NotFound { resource: "embedding model", .. }));
    assert_eq!(store.images().get(image).await.unwrap().face_count, 0);
}

#[testing::test]
async fn face_list_filters_and_pages_newest_first() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let model = fixture::model(&store, "mobile", 4).await;
    let mut faces = Vec::new();
    for number in 0..4u64 {
        let mut face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
        face.quality_overall = Some(number as f32 / 4.0);
        faces.push(face.id);
        let image = fixture::image(number);
        if number < 2 {
            fixture::crawled_face(&store, &crawl, &number.to_string(), &image, face).await;
        } else {
            fixture::store_image(&store, crawl.collection_id, &image, &[face]).await.unwrap();
        }
    }
    let other = fixture::collection(&store, "other").await;
    let other_face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
    fixture::store_image(&store, other, &fixture::image(9), &[other_face]).await.unwrap();

    let list = |filter: FaceListQuery, before: Option<Uuid>, limit: i64| {
        let store = store.clone();
        async move {
            let listed = store.faces().list(&filter, before, limit).await.unwrap();
            listed.into_iter().map(|face| face.id).collect::<Vec<_>>()
        }
    };
    let all = FaceListQuery { collection: "default".into(), ..FaceListQuery::default() };
    let with_filter = |filter: FaceFilter| FaceListQuery { filter, ..all.clone() };
    let newest: Vec<Uuid> = faces.iter().rev().copied().collect();
    assert_eq!(list(all.clone(), None, 100).await, newest);
    assert_eq!(list(all.clone(), Some(newest[0]), 2).await, newest[1..3]);
    assert_eq!(
        list(with_filter(FaceFilter { crawl_id: Some(crawl.id), ..FaceFilter::default() }), None, 9).await,
        newest[2..]
    );
    assert_eq!(
        list(with_filter(FaceFilter { min_quality: Some(0.5), ..FaceFilter::default() }), None, 9).await,
        newest[..2]
    );
    let image = store.faces().get(faces[1]).await.unwrap().image_id;
    assert_eq!(list(FaceListQuery { image_id: Some(image), ..all.clone() }, None, 9).await, [faces[1]]);
    let no_match = FaceListQuery { collection: "other".into(), image_id: Some(image), ..all.clone() };
    assert!(list(no_match, None, 9).await.is_empty());
}

#[test]
fn site_is_host_name_or_ip_address() {
    for (text, host) in [
        ("example.org", "example.org"),
        (" WWW.Example.ORG. ", "www.example.org"),
        ("b\u{fc}cher.example", "xn--bcher-kva.example"),
        ("example.org%2E", "example.org"),
        ("127.1", "127.0.0.1"),
        ("::1", "[::1]"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
    ] {
        assert_eq!(Site::parse(text).unwrap().as_str(), host, "{text:?}");
    }
    let (long_name, long_unicode_name) = (format!("{}.org", "a".repeat(250)), "\u{fc}".repeat(250));
    for text in [
        "",
        ".",
        "a..b",
        ".example.org",
        "*.example.org",
        "https://example.org",
        "example.org:80",
        "a b",
        "a/b",
        &long_name,
        &long_unicode_name,
    ] {
        assert!(Site::parse(text).is_err(), "{text:?}");
    }
}
