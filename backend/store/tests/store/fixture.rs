use domain::{CrawlKind, VideoState};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use store::crawls::Crawl;
use store::crawls::pages::{Admitted, ImageUrlResult, NewImageUrl, NewPage};
use store::erasures::ErasureRecord;
use store::faces::NewFace;
use store::faces::models::EmbeddingModel;
use store::images::NewImage;
use store::videos::tracks::{NewTrack, ShotFace};
use store::videos::{NewVideo, VideoEnd};
use store::{Store, StoreError};
use testing::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

pub(crate) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Returns an image whose hash is derived from `number`.
pub(crate) fn image(number: u64) -> NewImage {
    let mut sha256 = [0; 32];
    sha256[..8].copy_from_slice(&number.to_be_bytes());
    let mut rng = rng(number);
    NewImage {
        id: Uuid::now_v7(),
        sha256,
        phash: rng.random(),
        dhash: rng.random(),
        ahash: rng.random(),
        width: 640,
        height: 480,
        format: "jpeg".into(),
        bytes: 12_345,
        rotation: 0,
        thumbnail_key: Some(format!("thumbnail/{number}")),
    }
}

pub(crate) fn face(model: &EmbeddingModel, embedding: Vec<f32>) -> NewFace {
    let id = Uuid::now_v7();
    NewFace {
        id,
        bbox: [1.5, 2.0, 30.25, 40.0],
        det_score: 0.75,
        landmarks: std::array::from_fn(|i| i as f32 + 0.5),
        quality: Some(json!({"overall": 0.5})),
        quality_overall: Some(0.5),
        quality_passed: Some(true),
        embedding,
        model_id: model.id,
        chip_key: Some(format!("chip/{id}")),
        crop_key: Some(format!("crop/{id}")),
    }
}

/// Returns a random unit vector.
pub(crate) fn direction(rng: &mut StdRng, dimensions: usize) -> Vec<f32> {
    // Sums of uniform numbers are close enough to a normal distribution, so all directions are
    // about equally likely.
    let raw: Vec<f32> =
        (0..dimensions).map(|_| (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum()).collect();
    let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
    raw.into_iter().map(|x| x / length).collect()
}

pub(crate) async fn model(store: &Store, name: &str, dimensions: i32) -> EmbeddingModel {
    store.register_model(&format!("identity of {name}"), name, dimensions).await.unwrap()
}

pub(crate) async fn collection(store: &Store, name: &str) -> Uuid {
    store.ensure_collection(name).await.unwrap().id
}

/// Returns the record of an erasure that suppresses images and the person, and that found no faces.
pub(crate) fn erasure_by_likeness(collection: Uuid) -> ErasureRecord {
    ErasureRecord {
        id: Uuid::now_v7(),
        collection_id: collection,
        kind: "likeness".into(),
        suppress: true,
        suppress_person: true,
        threshold: None,
        faces: 0,
        images: 0,
        videos: Some(0),
        suppressions: 0,
        created_at: OffsetDateTime::now_utc(),
        lifted_at: None,
    }
}

/// Stores a completed video with a track of one face in each second. Returns its id, and the faces
/// in the order of the tracks.
pub(crate) async fn film(
    store: &Store,
    model: &EmbeddingModel,
    sha256: [u8; 32],
    tracks: usize,
) -> (Uuid, Vec<Uuid>) {
    let collection = collection(store, "default").await;
    let new = NewVideo {
        collection,
        sha256: Some(sha256),
        bytes: Some(1),
        source_url: None,
        source_key: None,
        scan: None,
        options: json!({}),
    };
    let mut tx = store.begin().await.unwrap();
    let id = store.insert_video(tx.conn(), &new).await.unwrap().unwrap();
    let mut faces = Vec::new();
    for second in 0..tracks {
        let (number, at_us) = (second as i32 + 1, second as i64 * 1_000_000);
        let face = face(model, vec![1.0, 0.0, 0.0, 0.0]);
        faces.push(face.id);
        let image = store.insert_video_frame(tx.conn(), (collection, id), at_us, (640, 360)).await.unwrap();
        store.insert_faces(tx.conn(), collection, image, std::slice::from_ref(&face)).await.unwrap();
        let track = NewTrack {
            number,
            started_us: at_us,
            ended_us: at_us,
            samples: 1,
            // No boxes, in version 1.
            boxes: vec![1, 0],
            faces: vec![ShotFace { at_us, face }],
        };
        store.insert_tracks(tx.conn(), (collection, id), &[track]).await.unwrap();
    }
    let (state, people) = (VideoState::Completed, Some(1));
    let end = VideoEnd { state, people, reason: None, detail: None, original: None, keeps_file: false };
    store.end_video(tx.conn(), id, end).await.unwrap();
    tx.commit().await.unwrap();
    (id, faces)
}

/// Creates a crawl in `default`.
pub(crate) async fn crawl(store: &Store) -> Crawl {
    let default = collection(store, "default").await;
    let mut tx = store.begin().await.unwrap();
    let seeds = ["http://site.test/".to_owned()];
    let crawl = store
        .insert_crawl(tx.conn(), default, CrawlKind::Web, &seeds, &json!({"max_pages": 10}))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    crawl
}

pub(crate) fn page(path: impl std::fmt::Display) -> NewPage {
    NewPage { url: format!("http://site.test/{path}"), depth: 1 }
}

pub(crate) fn image_url(path: impl std::fmt::Display, page: &str) -> NewImageUrl {
    NewImageUrl {
        asked_url: None,
        url: format!("http://site.test/{path}"),
        page_url: Some(format!("http://site.test/{page}")),
        alt: Some("a face".into()),
    }
}

pub(crate) async fn admit_images(
    store: &Store,
    crawl: Uuid,
    max: i64,
    urls: &[NewImageUrl],
) -> Vec<Admitted> {
    let mut tx = store.begin().await.unwrap();
    let admitted = store.admit_images(tx.conn(), crawl, max, urls).await.unwrap();
    tx.commit().await.unwrap();
    admitted
}

pub(crate) async fn admit_pages(store: &Store, crawl: Uuid, max: i64, pages: &[NewPage]) -> Vec<Admitted> {
    let mut tx = store.begin().await.unwrap();
    let admitted = store.admit_pages(tx.conn(), crawl, max, pages).await.unwrap();
    tx.commit().await.unwrap();
    admitted
}

pub(crate) async fn settle(store: &Store, row: Uuid, state: &str, reason: Option<&str>, image: Option<Uuid>) {
    let mut tx = store.begin().await.unwrap();
    let state = state.parse().unwrap();
    let result = ImageUrlResult { state, reason: reason.map(Into::into), detail: None, image };
    store.settle_image_url(tx.conn(), row, result).await.unwrap();
    tx.commit().await.unwrap();
}

pub(crate) async fn store_image(
    store: &Store,
    collection: Uuid,
    image: &NewImage,
    faces: &[NewFace],
) -> Result<Uuid, StoreError> {
    let mut tx = store.begin().await?;
    let id = match store.insert_image(tx.conn(), collection, image).await? {
        Ok(()) => image.id,
        Err(existing) => existing,
    };
    store.insert_faces(tx.conn(), collection, id, faces).await?;
    tx.commit().await?;
    Ok(id)
}

/// Stores an image with one face, found by the crawl under `path`.
pub(crate) async fn crawled_face(
    store: &Store,
    crawl: &Crawl,
    path: &str,
    image: &NewImage,
    face: NewFace,
) -> Uuid {
    face_found(store, crawl, image_url(path, ""), image, face).await
}

/// Stores an image with one face, which the crawl found at this place.
pub(crate) async fn face_found(
    store: &Store,
    crawl: &Crawl,
    place: NewImageUrl,
    image: &NewImage,
    face: NewFace,
) -> Uuid {
    let admitted = admit_images(store, crawl.id, 1_000, &[place]).await;
    let id = store_image(store, crawl.collection_id, image, &[face]).await.unwrap();
    settle(store, admitted[0].id, "processed", None, Some(id)).await;
    id
}

/// Waits until a session of this database waits for a lock.
pub(crate) async fn wait_for_a_lock(db: &TestDatabase) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let waiting: bool = sqlx::query_scalar(
            "select exists(select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
        )
        .fetch_one(db.pool())
        .await
        .unwrap();
        if waiting {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "no session waits for a lock");
        tokio::task::yield_now().await;
    }
}
