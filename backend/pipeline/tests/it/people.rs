//! Tests clustering and the recomputation of embeddings, on drawn people and on photographs.

use crate::support::{World, wait_for};
use domain::ClusteringState;
use pipeline::people::reembed::reembed;
use pipeline::{AnalyzeOptions, Clusters, Dedupe};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use store::people::SubjectFilter;
use store::people::clusters::ClusterScope;
use testing::drawing;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Images with one face each, and the person in it. No two are versions of one image.
const DRAWN: &[(&str, &str)] = &[
    ("dan_2.jpg", "dan"),
    ("dan.jpg", "dan"),
    ("dan_3.jpg", "dan"),
    ("ben.jpg", "ben"),
    ("ben_2.jpg", "ben"),
    ("ada.jpg", "ada"),
    ("ada_4.jpg", "ada"),
    ("ada_2.jpg", "ada"),
    ("ada_3.jpg", "ada"),
    ("cora.jpg", "cora"),
    ("cora_2.jpg", "cora"),
    ("eve.jpg", "eve"),
    ("finn.jpg", "finn"),
];

/// The same for the photographs in ../shared.
const PHOTOGRAPHED: &[(&str, &str)] = &[
    ("alex-lacamoire.png", "alex"),
    ("alex2.jpg", "alex"),
    ("alex_lacamoire1.jpg", "alex"),
    ("biden.jpg", "biden"),
    ("biden2.jpg", "biden"),
    ("obama.jpg", "obama"),
    ("obama1.jpg", "obama"),
    ("obama2.jpg", "obama"),
    ("obama3.jpg", "obama"),
    ("Rob_Lowe_0001.jpg", "rob"),
    ("Rob_Lowe_0002.jpg", "rob"),
    ("Nathalie_Baye_0002.jpg", "nathalie"),
    ("lin-manuel-miranda.png", "lin"),
];

/// Reads an image file by name.
type ReadImage = fn(&str) -> Vec<u8>;

/// Stores the images and returns the best face of each file.
async fn store_all(world: &World, read: ReadImage, files: &[&'static str]) -> HashMap<&'static str, Uuid> {
    let folder = tempfile::tempdir().unwrap();
    let scan = world.scan(Dedupe::Exact, AnalyzeOptions::default()).await;
    let mut best = HashMap::new();
    for file in files {
        let path = folder.path().join(file);
        std::fs::write(&path, read(file)).unwrap();
        let row = scan.add(&[&path]).await.unwrap().remove(0);
        let stored = scan.ingest(row.id, std::fs::read(&path).unwrap().into()).await.unwrap();
        let (pipeline::IngestOutcome::Stored { image, .. }
        | pipeline::IngestOutcome::Duplicate { image, .. }) = stored
        else {
            panic!("nothing is suppressed: {stored:?}")
        };
        let faces = world.faces().await;
        let of_image = faces.iter().filter(|face| face.image_id == image);
        best.insert(*file, of_image.max_by(|a, b| a.det_score.total_cmp(&b.det_score)).unwrap().id);
    }
    scan.finish(false).await.unwrap();
    best
}

async fn cluster(world: &World, threshold: f32) -> store::people::clusters::Clustering {
    let collection = world.store.collections().get("default").await.unwrap().id;
    let model_id = world.face_store.model_id();
    let scope = ClusterScope { collection_id: collection, model_id, any_quality: true };
    let clusters = Clusters::new(world.store.clone(), world.queue.clone());
    let (run, is_new) = clusters.begin(&scope, threshold).await.unwrap();
    assert!(is_new);
    let worker = world.worker("clustering");
    let ended = wait_for(async || {
        let current = world.store.clusters().get(run.id).await.unwrap();
        current.finished_at.is_some().then_some(current)
    });
    let ended = ended.await.expect("the clustering ends");
    worker.stop().await;
    assert_eq!(ended.state, ClusteringState::Completed, "{:?}", ended.error);
    ended
}

/// Returns B-cubed precision and recall (Bagga and Baldwin 1998) of the known faces. A face without
/// a subject counts as a separate cluster.
async fn b_cubed(world: &World, images: &[(&str, &str)], faces: &HashMap<&'static str, Uuid>) -> (f64, f64) {
    let ids: Vec<Uuid> = faces.values().copied().collect();
    let assignments = world.store.people().of_faces(&ids).await.unwrap();
    let pairs: Vec<(Uuid, &str)> = (images.iter().filter(|(file, _)| faces.contains_key(file)))
        .map(|(file, person)| {
            let face = faces[file];
            (assignments.get(&face).map_or(face, |assignments| assignments.subject_id), *person)
        })
        .collect();
    let (mut precision, mut recall) = (0.0, 0.0);
    for (cluster, person) in &pairs {
        let in_cluster = pairs.iter().filter(|(other, _)| other == cluster).count();
        let of_person = pairs.iter().filter(|(_, other)| other == person).count();
        let in_both = pairs.iter().filter(|(c, p)| c == cluster && p == person).count();
        precision += in_both as f64 / in_cluster as f64;
        recall += in_both as f64 / of_person as f64;
    }
    (precision / pairs.len() as f64, recall / pairs.len() as f64)
}

#[testing::test]
async fn drawn_images_of_one_person_form_one_cluster() {
    assert_clusters(DRAWN, ["group.jpg", "small_pair.jpg"], drawing).await;
}

#[testing::needs(shared)]
#[testing::test]
async fn photographs_of_one_person_form_one_cluster() {
    assert_clusters(PHOTOGRAPHED, ["group_24.jpg", "group_1.jpg"], testing::image).await;
}

/// Clusters the faces of all these images, and compares the clusters with the people.
async fn assert_clusters(images: &[(&'static str, &str)], groups: [&'static str; 2], read: ReadImage) {
    let world = World::new().await;
    let embedder = world.face_store.analyzer().engine().embedder();
    let threshold = pipeline::default_merge_threshold(embedder.match_threshold, embedder.cluster_margin);
    let files: Vec<&str> = images.iter().map(|(file, _)| *file).collect();
    // The first run processes about half of the images and one group image, the second run the
    // rest. The second run must add to the existing clusters.
    let mut faces = store_all(&world, read, &files[..7]).await;
    store_all(&world, read, &groups[..1]).await;
    let first = cluster(&world, threshold).await;
    assert_eq!((first.looked, first.faces), (world.faces().await.len() as i64, first.looked));
    let first_subjects = subjects(&world).await;
    faces.extend(store_all(&world, read, &files[7..]).await);
    store_all(&world, read, &groups[1..]).await;
    let second = cluster(&world, threshold).await;
    assert_eq!(
        first.looked + second.looked,
        world.faces().await.len() as i64,
        "only new faces are processed"
    );
    let (precision, recall) = b_cubed(&world, images, &faces).await;
    println!("B-cubed at {threshold}: precision {precision:.3}, recall {recall:.3}; {first:?} {second:?}");
    assert_eq!(precision, 1.0);
    assert!(recall >= 0.95, "{recall}");
    // A later run adds to the existing clusters and removes nothing from them.
    let second_subjects = subjects(&world).await;
    for (subject, members) in first_subjects {
        let current = second_subjects.values().find(|current| members.is_subset(current));
        assert!(current.is_some(), "{subject} was split");
    }
    // No cluster contains two faces of one image.
    for members in second_subjects.values() {
        let images: Vec<Uuid> = (world.faces().await.iter().filter(|face| members.contains(&face.id)))
            .map(|face| face.image_id)
            .collect();
        assert_eq!(images.iter().collect::<BTreeSet<_>>().len(), images.len());
    }
}

async fn subjects(world: &World) -> BTreeMap<Uuid, BTreeSet<Uuid>> {
    let collection_id = world.store.collections().get("default").await.unwrap().id;
    let filter = SubjectFilter { collection_id, name: None, external_id: None, origin: None };
    let mut subjects_by_id = BTreeMap::new();
    for subject in world.store.people().list(&filter, None, 1_000).await.unwrap() {
        let faces = world.store.people().faces(collection_id, subject.id, None, 1_000).await.unwrap();
        subjects_by_id.insert(subject.id, faces.into_iter().map(|face| face.id).collect());
    }
    subjects_by_id
}

#[testing::test]
async fn reembedding_computes_embeddings_from_chips() {
    let world = World::new().await;
    let faces = store_all(&world, drawing, &["ada.jpg", "ben.jpg", "group.jpg"]).await;
    let count = world.faces().await.len() as i64;
    let collection = world.store.collections().get("default").await.unwrap().id;
    let mut expected = HashMap::new();
    for face in world.faces().await {
        expected.insert(face.id, world.store.faces().embedding(face.id).await.unwrap().1);
    }
    // Simulates embeddings of a different model: different values, with a different length.
    world
        .execute("insert into embedding_models (identity, name, dimensions) values ('other', 'other', 3)")
        .await;
    world
        .execute("update faces set embedding = '[1,0,0]', model_id = (select id from embedding_models where name = 'other')")
        .await;
    // The chip of one face is deleted, and another face never had a chip.
    let (without_file, without_chip) = (faces["ben.jpg"], faces["group.jpg"]);
    let chip = world.store.faces().get(without_file).await.unwrap().parts.chip().unwrap();
    world.blobs.delete(&[chip.key]).await.unwrap();
    world.execute("update faces set chip_bytes = 0 where id in (select f.id from faces f join images i on i.id = f.image_id where i.face_count > 5 order by f.det_score desc limit 1)").await;

    let stop = CancellationToken::new();
    stop.cancel();
    let cancelled = reembed(&world.face_store, collection, &stop, |_| ()).await.unwrap();
    assert_eq!((cancelled.done, cancelled.left.len()), (0, 0));
    let running = CancellationToken::new();
    let done = reembed(&world.face_store, collection, &running, |_| ()).await.unwrap();
    assert_eq!((done.done as i64, done.left.len()), (count - 2, 2));
    let reasons: BTreeMap<Uuid, &str> = done.left.iter().map(|left| (left.face_id, left.reason)).collect();
    assert_eq!(reasons, BTreeMap::from([(without_file, "chip_missing"), (without_chip, "no_chip")]));
    for (face, embedding) in expected {
        let (model, recomputed) = world.store.faces().embedding(face).await.unwrap();
        if reasons.contains_key(&face) {
            assert_eq!(recomputed.len(), 3, "no face is lost, and none is changed without a chip");
            continue;
        }
        assert_eq!(model, world.face_store.model_id());
        let cosine: f32 = embedding.iter().zip(&recomputed).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.999, "{cosine}");
    }
    let second = reembed(&world.face_store, collection, &running, |_| ()).await.unwrap();
    assert_eq!((second.done, second.left.len()), (0, 2), "a finished face is not processed again");
}

#[testing::test]
async fn clustering_step_resets_job_crashes() {
    let world = World::new().await;
    store_all(&world, drawing, &["ada.jpg", "ada_2.jpg", "ben.jpg"]).await;
    // Records the jobs whose number of crashes is reset during a run.
    for statement in [
        "create table trusted (kind text)",
        "create function record_trust() returns trigger language plpgsql as $$
         begin insert into trusted values (new.kind); return null; end $$",
        "create trigger trust after update on jobs for each row
             when (old.crashes > 1 and new.crashes = 0 and new.attempt = 1 and new.state = 'running')
             execute function record_trust()",
        "create function distrust() returns trigger language plpgsql as $$
         begin new.crashes = 3; new.attempt = 3; return new; end $$",
        "create trigger distrust before insert on jobs for each row execute function distrust()",
    ] {
        world.execute(statement).await;
    }
    cluster(&world, 0.5).await;
    let trusted =
        "do $$ begin assert (select count(*) from trusted where kind = 'cluster_collection') > 0; end $$";
    world.execute(trusted).await;
}
