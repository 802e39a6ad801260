//! Clusters random faces and prints the accuracy and the time.
//!
//!     TEST_DATABASE_URL=postgres://… cargo run --release -p facecrawl-pipeline \
//!       --example clustering -- FACES PEOPLE FREEDOM GENUINE THRESHOLD
//!
//! Each of the `PEOPLE` people has a direction in a space of `FREEDOM` of the 128 dimensions.
//! Similarities of different people have a standard deviation of `1 / sqrt(FREEDOM)` around 0. The
//! faces of a person are distributed around that direction, so that the mean similarity of two of
//! them is `GENUINE`. Every face is in a separate image. With 32 degrees of freedom, the embeddings
//! are about as inaccurate as those of the default embedder for small faces in crowds
//! (docs/reference/ACCURACY.md).
#![allow(clippy::unwrap_used)]

use futures::{StreamExt, TryStreamExt, stream};
use pipeline::Clusters;
use queue::{Queue, Runner, RunnerConfig};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use store::Store;
use store::clusters::ClusterScope;
use store::faces::NewFace;
use store::images::NewImage;
use testing::TestDatabase;
use testing::embeddings::{DIMENSIONS, Random};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of faces in one transaction.
const CHUNK: usize = 250;

#[tokio::main]
async fn main() {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let [faces, people, freedom, genuine, threshold] = arguments[..] else {
        panic!("usage: clustering FACES PEOPLE FREEDOM GENUINE THRESHOLD")
    };
    let (faces, people) = (faces as usize, people as usize);
    let database = TestDatabase::create().await;
    let store = database.store();
    let collection = store.collection("default").await.unwrap().id;
    let model = store.register_model("drawn", "drawn", DIMENSIONS as i32).await.unwrap();

    let mut random = Random(1);
    let centres: Vec<Vec<f32>> = (0..people).map(|_| random.direction(freedom as usize)).collect();
    // The spread that leads to this mean similarity; see `Random::near`.
    let spread = (1.0 / genuine - 1.0).sqrt();
    let mut person_of = HashMap::new();
    let mut drawn = Vec::with_capacity(faces);
    for index in 0..faces {
        let person = random.below(people);
        let id = Uuid::now_v7();
        person_of.insert(id, person);
        drawn.push((index as u64, face(id, random.near(&centres[person], spread), model.id)));
    }
    let started = Instant::now();
    stream::iter(drawn.chunks(CHUNK).map(|chunk| insert(&store, collection, chunk)))
        .buffer_unordered(4)
        .try_collect::<Vec<()>>()
        .await
        .unwrap();
    println!("{faces} faces of {people} people stored in {:.0} s", started.elapsed().as_secs_f64());

    let queue = Queue::new(database.pool().clone(), queue::Config::default());
    let scope = ClusterScope { collection_id: collection, model_id: model.id, any_quality: false };
    let started = Instant::now();
    let (run, _) = Clusters::new(store.clone(), queue.clone()).begin(&scope, threshold as f32).await.unwrap();
    let handler = pipeline::worker::cluster_handler(store.clone(), queue.clone());
    let handlers = HashMap::from([(domain::JobKind::ClusterCollection.into(), handler)]);
    let config = RunnerConfig {
        concurrency: HashMap::new(),
        poll: Duration::from_millis(100),
        drain: Duration::from_secs(5),
        worker: "example".into(),
    };
    let stop = CancellationToken::new();
    let runner = Runner::start(queue, handlers, config, stop.clone());
    let ended = loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = store.clustering(run.id).await.unwrap();
        if now.finished_at.is_some() {
            break now;
        }
        eprintln!("{} of {} after {:.0} s", now.looked, now.faces, started.elapsed().as_secs_f64());
    };
    println!("clustered in {:.0} s: {ended:?}", started.elapsed().as_secs_f64());
    stop.cancel();
    runner.stopped().await;
    judge(&store, &person_of).await;
}

fn face(id: Uuid, embedding: Vec<f32>, model_id: i32) -> NewFace {
    NewFace {
        id,
        bbox: [0.0; 4],
        det_score: 1.0,
        landmarks: [0.0; 10],
        quality: None,
        quality_overall: None,
        quality_passed: Some(true),
        embedding,
        model_id,
        chip_key: None,
        crop_key: None,
    }
}

async fn insert(store: &Store, collection: Uuid, chunk: &[(u64, NewFace)]) -> Result<(), store::StoreError> {
    let mut tx = store.begin().await?;
    for (number, face) in chunk {
        let mut sha256 = [0; 32];
        sha256[..8].copy_from_slice(&number.to_be_bytes());
        let image = NewImage {
            id: Uuid::now_v7(),
            sha256,
            phash: number.cast_signed(),
            dhash: 0,
            ahash: 0,
            width: 1,
            height: 1,
            format: "png".into(),
            bytes: 1,
            rotation: 0,
            thumbnail_key: None,
        };
        store.insert_image(tx.conn(), collection, &image).await?.unwrap();
        store.insert_faces(tx.conn(), collection, image.id, std::slice::from_ref(face)).await?;
    }
    tx.commit().await
}

/// Prints pairwise and B-cubed precision and recall. A face without a subject counts as a separate
/// cluster.
async fn judge(store: &Store, person_of: &HashMap<Uuid, usize>) {
    let ids: Vec<Uuid> = person_of.keys().copied().collect();
    let shown = store.face_subjects(&ids).await.unwrap();
    let mut both: HashMap<(Uuid, usize), f64> = HashMap::new();
    let (mut clusters, mut people): (HashMap<Uuid, f64>, HashMap<usize, f64>) = Default::default();
    for (face, person) in person_of {
        let cluster = shown.get(face).map_or(*face, |shown| shown.subject_id);
        *both.entry((cluster, *person)).or_default() += 1.0;
        *clusters.entry(cluster).or_default() += 1.0;
        *people.entry(*person).or_default() += 1.0;
    }
    let faces = person_of.len() as f64;
    let pairs = |n: f64| n * (n - 1.0) / 2.0;
    let right: f64 = both.values().map(|n| pairs(*n)).sum();
    let precision = right / clusters.values().map(|n| pairs(*n)).sum::<f64>();
    let recall = right / people.values().map(|n| pairs(*n)).sum::<f64>();
    println!("pairwise: precision {precision:.4}, recall {recall:.4}");
    let precision: f64 = both.iter().map(|((cluster, _), n)| n * n / clusters[cluster]).sum();
    let recall: f64 = both.iter().map(|((_, person), n)| n * n / people[person]).sum();
    let alone = clusters.values().filter(|n| **n == 1.0).count();
    println!(
        "B-cubed: precision {:.4}, recall {:.4}; {} clusters, {alone} faces alone",
        precision / faces,
        recall / faces,
        clusters.len() - alone,
    );
}
