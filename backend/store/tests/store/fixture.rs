//! Creates collections, models, crawls, images, faces and videos, and computes searches by brute
//! force.
use domain::{CrawlKind, CrawlState, VideoState};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use store::blobs::parts::{NewFaceParts, NewImageParts};
use store::crawls::Crawl;
use store::crawls::pages::{AdmittedUrl, ImageUrlResult, NewImageUrl, NewPage};
use store::erasures::{ErasureRecord, Plan, Target};
use store::faces::NewFace;
use store::faces::search::{Hit, SearchQuery};
use store::images::NewImage;
use store::index::scope::{Assignment, FaceFilter};
use store::index::{EmbeddingModel, Pgvector};
use store::people::NewSubject;
use store::videos::tracks::{NewFrame, NewTrack, ShotFace};
use store::videos::{NewVideo, VideoEnd};
use store::{Store, StoreError, Tx};
use testing::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

pub(crate) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

pub(crate) async fn database() -> (TestDatabase, Store) {
    let db = TestDatabase::create().await;
    let store = db.store();
    (db, store)
}

/// Works like [`database`], and returns the collection `default` and a model with embeddings of
/// this number of components.
pub(crate) async fn with_model(dimensions: i32) -> (TestDatabase, Store, Uuid, EmbeddingModel) {
    let (db, store) = database().await;
    let (collection, model) = default_and_model(&store, dimensions).await;
    (db, store, collection, model)
}

pub(crate) trait Commit {
    /// Runs `work` in a transaction and commits it.
    async fn commit<T>(&self, work: impl AsyncFnOnce(&mut Tx) -> Result<T, StoreError>) -> T;
}

impl Commit for Store {
    async fn commit<T>(&self, work: impl AsyncFnOnce(&mut Tx) -> Result<T, StoreError>) -> T {
        let mut tx = self.begin().await.unwrap();
        let result = work(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        result
    }
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
        parts: Some(NewImageParts { key: format!("parts/{number}"), thumbnail_bytes: 1_000 }),
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
        parts: Some(NewFaceParts { own_key: None, offset: 1_000, crop_bytes: 200, chip_bytes: 30 }),
    }
}

/// Stores an image with `count` faces in random directions, and returns the faces.
pub(crate) async fn faces(
    store: &Store,
    collection: Uuid,
    model: &EmbeddingModel,
    seed: u64,
    count: usize,
) -> Vec<Uuid> {
    faces_with_change(store, collection, model, (seed, count), |_, _| {}).await
}

/// Works like [`faces`]. `change` changes each face, given its number.
pub(crate) async fn faces_with_change(
    store: &Store,
    collection: Uuid,
    model: &EmbeddingModel,
    (seed, count): (u64, usize),
    change: impl Fn(usize, &mut NewFace),
) -> Vec<Uuid> {
    let (mut rng, dimensions) = (rng(seed), model.dimensions as usize);
    let mut faces: Vec<_> =
        (0..count).map(|_| face(model, random_unit_vector(&mut rng, dimensions))).collect();
    faces.iter_mut().enumerate().for_each(|(number, face)| change(number, face));
    store_image(store, collection, &image(seed), &faces).await.unwrap();
    faces.iter().map(|face| face.id).collect()
}

pub(crate) fn unnamed_subject() -> NewSubject {
    NewSubject { metadata: json!({}), ..NewSubject::default() }
}

/// Stores a person and enrols these faces, even if they belong to other people.
pub(crate) async fn person(store: &Store, collection: Uuid, new: &NewSubject, faces: &[Uuid]) -> Uuid {
    let enrolled = store.commit(async |tx| {
        let person = store.people().insert(tx.conn(), collection, new).await?;
        store.people().enrol(tx.conn(), collection, person, faces, true).await?;
        Ok(person)
    });
    enrolled.await
}

/// Runs a statement with ids in its text.
pub(crate) async fn run(store: &Store, statement: String) -> Result<(), sqlx::Error> {
    sqlx::query(sqlx::AssertSqlSafe(statement)).execute(store.pool()).await.map(drop)
}

#[track_caller]
pub(crate) fn assert_not_found<T: std::fmt::Debug>(result: Result<T, StoreError>, expected: &str) {
    match result {
        Err(StoreError::NotFound { resource, .. }) => assert_eq!(resource, expected),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn count(store: &Store, table: &str) -> i64 {
    let sql = format!("select count(*) from {table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(store.pool()).await.unwrap()
}

pub(crate) async fn delete_faces(store: &Store, faces: impl Iterator<Item = &(Uuid, Vec<f32>)>) {
    let mut tx = store.begin().await.unwrap();
    for (face, _) in faces {
        store.faces().delete(tx.conn(), *face).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// Carries out an erasure without suppressions, and returns its plan.
pub(crate) async fn erase(store: &Store, collection: Uuid, target: &Target) -> Plan {
    let erased = store.commit(async |tx| {
        let plan = store.erasures().plan(tx.conn(), collection, target).await?;
        store.erasures().carry_out(tx.conn(), &plan).await?;
        Ok(plan)
    });
    erased.await
}

/// Returns a random unit vector.
pub(crate) fn random_unit_vector(rng: &mut StdRng, dimensions: usize) -> Vec<f32> {
    // Sums of uniform numbers are close enough to a normal distribution, so all directions are
    // about equally likely.
    let vector: Vec<f32> =
        (0..dimensions).map(|_| (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum()).collect();
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.into_iter().map(|x| x / length).collect()
}

pub(crate) async fn model(store: &Store, name: &str, dimensions: i32) -> EmbeddingModel {
    store.models().register(&format!("identity of {name}"), name, dimensions).await.unwrap()
}

/// Builds the index of pgvector, whatever number of faces the model has.
pub(crate) async fn build_index(store: &Store, model: &EmbeddingModel) {
    Pgvector::new(store.pool().clone()).rebuild(model).await.unwrap();
}

pub(crate) async fn collection(store: &Store, name: &str) -> Uuid {
    store.collections().ensure(name).await.unwrap().id
}

pub(crate) async fn collections(store: &Store, [first, second]: [&str; 2]) -> [Uuid; 2] {
    [collection(store, first).await, collection(store, second).await]
}

/// Returns the collection `default`, and the model `m` with embeddings of this number of
/// components.
pub(crate) async fn default_and_model(store: &Store, dimensions: i32) -> (Uuid, EmbeddingModel) {
    (collection(store, "default").await, model(store, "m", dimensions).await)
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

/// Returns a video without a source.
pub(crate) fn video(collection: Uuid, sha256: [u8; 32]) -> NewVideo {
    NewVideo {
        collection,
        sha256: Some(sha256),
        bytes: Some(1),
        source_url: None,
        source_key: None,
        scan: None,
        options: json!({}),
    }
}

/// Stores a completed video with a track of one face in each second. Returns its id, and the faces
/// in the order of the tracks.
pub(crate) async fn completed_video(
    store: &Store,
    model: &EmbeddingModel,
    sha256: [u8; 32],
    tracks: usize,
) -> (Uuid, Vec<Uuid>) {
    let collection = collection(store, "default").await;
    let new = video(collection, sha256);
    let mut tx = store.begin().await.unwrap();
    let id = store.videos().insert(tx.conn(), &new).await.unwrap().unwrap();
    let mut faces = Vec::new();
    for second in 0..tracks {
        let (number, at_us) = (second as i32 + 1, second as i64 * 1_000_000);
        let face = face(model, vec![1.0, 0.0, 0.0, 0.0]);
        faces.push(face.id);
        let frame = [NewFrame { at_us, face_count: 0, parts: None }];
        let image =
            store.tracks().insert_frames(tx.conn(), (collection, id), (640, 360), &frame).await.unwrap()[0];
        store.faces().insert(tx.conn(), collection, image, std::slice::from_ref(&face)).await.unwrap();
        let track = NewTrack {
            number,
            started_us: at_us,
            ended_us: at_us,
            samples: 1,
            // No boxes, in version 1.
            boxes: vec![1, 0],
            faces: vec![ShotFace { at_us, face }],
        };
        store.tracks().insert(tx.conn(), (collection, id), &[track]).await.unwrap();
    }
    let (state, people) = (VideoState::Completed, Some(1));
    let end = VideoEnd { state, people, reason: None, detail: None, original: None, keep_file: false };
    store.videos().end(tx.conn(), id, end).await.unwrap();
    tx.commit().await.unwrap();
    (id, faces)
}

/// Creates a crawl in `collection`.
pub(crate) async fn crawl(store: &Store) -> Crawl {
    let default = collection(store, "default").await;
    let (seeds, options) = (["http://site.test/".to_owned()], json!({"max_pages": 10}));
    let web = CrawlKind::Web;
    store.commit(async |tx| store.crawls().insert(tx.conn(), default, web, &seeds, &options).await).await
}

/// Ends or pauses a running crawl.
pub(crate) async fn set_state(store: &Store, crawl: Uuid, to: CrawlState) {
    let running = [CrawlState::Running];
    store.commit(async |tx| store.crawls().set_state(tx.conn(), crawl, &running, to, None).await).await;
}

pub(crate) fn page(path: impl std::fmt::Display) -> NewPage {
    NewPage { url: format!("http://site.test/{path}"), depth: 1 }
}

pub(crate) fn image_url(path: impl std::fmt::Display, page: &str) -> NewImageUrl {
    NewImageUrl {
        requested_url: None,
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
) -> Vec<AdmittedUrl> {
    store.commit(async |tx| store.ledger().admit_images(tx.conn(), crawl, max, urls).await).await
}

pub(crate) async fn admit_pages(store: &Store, crawl: Uuid, max: i64, pages: &[NewPage]) -> Vec<AdmittedUrl> {
    store.commit(async |tx| store.ledger().admit_pages(tx.conn(), crawl, max, pages).await).await
}

pub(crate) async fn settle(store: &Store, row: Uuid, state: &str, reason: Option<&str>, image: Option<Uuid>) {
    let (state, reason) = (state.parse().unwrap(), reason.map(Into::into));
    let result = ImageUrlResult { state, reason, detail: None, image, final_url: None };
    store.commit(async |tx| store.ledger().settle_image_url(tx.conn(), row, result).await).await;
}

pub(crate) async fn store_image(
    store: &Store,
    collection: Uuid,
    image: &NewImage,
    faces: &[NewFace],
) -> Result<Uuid, StoreError> {
    let mut tx = store.begin().await?;
    let id = match store.images().insert(tx.conn(), collection, image).await? {
        Ok(()) => image.id,
        Err(existing) => existing,
    };
    store.faces().insert(tx.conn(), collection, id, faces).await?;
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
    face_at_source(store, crawl, image_url(path, ""), image, face).await
}

/// Stores an image with one face, which the crawl found at this place.
pub(crate) async fn face_at_source(
    store: &Store,
    crawl: &Crawl,
    source: NewImageUrl,
    image: &NewImage,
    face: NewFace,
) -> Uuid {
    let admitted = admit_images(store, crawl.id, 1_000, &[source]).await;
    let id = store_image(store, crawl.collection_id, image, &[face]).await.unwrap();
    settle(store, admitted[0].id, "processed", None, Some(id)).await;
    id
}

/// Waits until a session of this database waits for a lock.
pub(crate) async fn wait_for_lock(db: &TestDatabase) {
    let deadline = std::time::Instant::now() + testing::MAX_WAIT;
    loop {
        let query = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";
        if db.number(query).await > 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "no session waits for a lock");
        tokio::task::yield_now().await;
    }
}

pub(crate) const DIMENSIONS: usize = 64;

/// Returns the embedding as stored, rounded to half precision.
fn to_half_precision(embedding: &[f32]) -> Vec<f64> {
    embedding.iter().map(|x| f16::from_f32(*x).to_f64()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (a, b) = (to_half_precision(a), to_half_precision(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a).sqrt() * dot(&b, &b).sqrt())
}

/// Stores faces in 20 clusters, so that there are near and distant faces. Returns (id, embedding)
/// in insertion order.
pub(crate) async fn gallery(
    store: &Store,
    collection: Uuid,
    model: &store::index::EmbeddingModel,
    count: usize,
    seed: u64,
) -> Vec<(Uuid, Vec<f32>)> {
    let mut rng = rng(seed);
    let centres: Vec<Vec<f32>> = (0..20).map(|_| random_unit_vector(&mut rng, DIMENSIONS)).collect();
    let mut gallery = Vec::new();
    for chunk in 0..count.div_ceil(50) {
        let faces: Vec<_> = (0..50.min(count - chunk * 50))
            .map(|n| {
                let noise = random_unit_vector(&mut rng, DIMENSIONS);
                let embedding: Vec<f32> =
                    centres[n % centres.len()].iter().zip(&noise).map(|(c, n)| c + 0.5 * n).collect();
                let length = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
                let mut face = face(model, embedding.into_iter().map(|x| x / length).collect());
                face.quality_overall = Some(n as f32 / 50.0);
                face
            })
            .collect();
        gallery.extend(faces.iter().map(|face| (face.id, face.embedding.clone())));
        let image = image(seed * 1_000 + chunk as u64);
        store_image(store, collection, &image, &faces).await.unwrap();
    }
    gallery
}

pub(crate) fn brute_force(
    gallery: &[(Uuid, Vec<f32>)],
    probe: &[f32],
    threshold: f32,
    limit: usize,
) -> Vec<(Uuid, f64)> {
    let mut matches: Vec<(Uuid, f64)> =
        gallery.iter().map(|(id, embedding)| (*id, cosine(embedding, probe))).collect();
    matches.retain(|(_, similarity)| *similarity >= f64::from(threshold));
    matches.sort_by(|a, b| b.1.total_cmp(&a.1));
    matches.truncate(limit);
    matches
}

pub(crate) fn query(collection_id: Uuid, model_id: i32, embedding: Vec<f32>) -> SearchQuery {
    SearchQuery {
        collection_id,
        embedding,
        model_id,
        threshold: -1.0,
        limit: 10,
        exact: false,
        filter: FaceFilter::default(),
        exclude_face: None,
        assignment: Assignment::Any,
    }
}

pub(crate) fn ids(hits: &[Hit]) -> Vec<Uuid> {
    hits.iter().map(|hit| hit.face.id).collect()
}

/// Asserts that there are ten hits: the first faces of `best`, in the same order, except those that
/// the search missed.
pub(crate) fn assert_best(hits: &[Hit], best: &[(Uuid, f64)]) {
    let expected: Vec<_> = best.iter().filter(|(id, _)| ids(hits).contains(id)).take(10).copied().collect();
    assert_eq!(expected.len(), 10);
    assert_same(hits, &expected);
}

pub(crate) fn assert_same(hits: &[Hit], expected: &[(Uuid, f64)]) {
    assert_eq!(hits.len(), expected.len());
    for (hit, (id, similarity)) in hits.iter().zip(expected) {
        assert_eq!(hit.face.id, *id);
        assert!((f64::from(hit.similarity) - similarity).abs() < 1e-4, "{} {similarity}", hit.similarity);
    }
}
