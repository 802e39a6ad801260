//! Tests people, their faces, and the reads and writes of clustering.
use crate::fixture::{self, Commit, assert_not_found, random_unit_vector, wait_for_lock};
use domain::ClusteringState;
use std::sync::Arc;
use store::people::clusters::{ClusterScope, Group};
use store::people::{NewSubject, Subject, SubjectFilter, SubjectPatch};
use store::{Store, StoreError};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use uuid::Uuid;

async fn subject(store: &Store, collection: Uuid, name: &str, external_id: Option<&str>) -> Uuid {
    let new = NewSubject {
        name: Some(name.into()),
        external_id: external_id.map(Into::into),
        metadata: serde_json::json!({ name: 1, "all": name }),
    };
    store.commit(async |tx| store.people().insert(tx.conn(), collection, &new).await).await
}

async fn enrol(
    store: &Store,
    collection: Uuid,
    subject: Uuid,
    faces: &[Uuid],
    allow_move: bool,
) -> Result<u64, StoreError> {
    let mut tx = store.begin().await?;
    store.people().lock(tx.conn(), collection, &[subject]).await?;
    let enrolled = store.people().enrol(tx.conn(), collection, subject, faces, allow_move).await?;
    tx.commit().await?;
    Ok(enrolled)
}

async fn unlink(store: &Store, subject: Uuid, face: Uuid, delete: bool) -> Result<Vec<String>, StoreError> {
    let mut tx = store.begin().await?;
    let keys = store.people().unlink_face(tx.conn(), subject, face, delete).await?;
    tx.commit().await?;
    Ok(keys)
}

async fn merge(store: &Store, collection: Uuid, into: Uuid, merged: &[Uuid]) -> Result<Subject, StoreError> {
    let mut tx = store.begin().await?;
    let mut ids = merged.to_vec();
    ids.push(into);
    store.people().lock(tx.conn(), collection, &ids).await?;
    store.people().merge(tx.conn(), into, merged).await?;
    tx.commit().await?;
    store.people().get(into).await
}

async fn faces_of(store: &Store, subject: Uuid, collection: Uuid) -> Vec<Uuid> {
    let faces = store.people().faces(collection, subject, None, 100).await.unwrap();
    faces.into_iter().rev().map(|face| face.id).collect()
}

#[testing::test]
async fn face_moves_to_another_subject_only_on_request() {
    let (_db, store) = fixture::database().await;
    let [ours, theirs] = fixture::collections(&store, ["default", "theirs"]).await;
    let model = fixture::model(&store, "m", 16).await;
    let faces = fixture::faces(&store, ours, &model, 1, 3).await;
    let foreign = fixture::faces(&store, theirs, &model, 2, 1).await;
    let (ada, bob) =
        (subject(&store, ours, "Ada", Some("a")).await, subject(&store, ours, "Bob", None).await);

    assert_eq!(enrol(&store, ours, ada, &faces[..2], false).await.unwrap(), 2);
    assert_eq!(
        enrol(&store, ours, ada, &faces[..2], false).await.unwrap(),
        2,
        "a repeated enrolment changes nothing"
    );
    let result = enrol(&store, ours, bob, &faces[1..], false).await;
    assert!(
        matches!(&result, Err(StoreError::Conflict(message)) if message.contains(&faces[1].to_string())),
        "{result:?}"
    );
    assert_eq!(faces_of(&store, bob, ours).await, [] as [Uuid; 0], "no face is enrolled after a conflict");
    enrol(&store, ours, bob, &faces[1..], true).await.unwrap();
    assert_eq!(faces_of(&store, ada, ours).await, faces[..1]);
    assert_eq!(faces_of(&store, bob, ours).await, faces[1..]);

    // Faces and subjects of another collection are not found.
    assert_not_found(enrol(&store, ours, ada, &foreign, true).await, "face");
    assert_not_found(enrol(&store, theirs, ada, &foreign, true).await, "subject");
    assert!(store.within(theirs).people().get(ada).await.is_err());
    let mut tx = store.begin().await.unwrap();
    let duplicate = NewSubject { external_id: Some("a".into()), metadata: serde_json::json!({}), name: None };
    assert!(matches!(
        store.people().insert(tx.conn(), ours, &duplicate).await,
        Err(StoreError::Conflict(message)) if message.contains("\"a\"")
    ));
}

#[testing::test]
async fn subjects_are_listed_changed_merged_and_deleted() {
    let (_db, store, ours, model) = fixture::with_model(16).await;
    let faces = fixture::faces(&store, ours, &model, 1, 4).await;
    let ada = subject(&store, ours, "Ada", Some("a")).await;
    let bob = subject(&store, ours, "Bob", None).await;
    let eve = subject(&store, ours, "Eve", Some("e")).await;
    enrol(&store, ours, ada, &faces[..1], false).await.unwrap();
    enrol(&store, ours, bob, &faces[1..3], false).await.unwrap();

    let all = SubjectFilter { collection_id: ours, name: None, external_id: None, origin: None };
    let ids = |subjects: Vec<Subject>| subjects.into_iter().map(|s| s.id).collect::<Vec<_>>();
    assert_eq!(ids(store.people().list(&all, None, 2).await.unwrap()), [eve, bob]);
    assert_eq!(ids(store.people().list(&all, Some(bob), 2).await.unwrap()), [ada]);
    let by_name = SubjectFilter { name: Some("aDA".into()), ..all.clone() };
    assert_eq!(ids(store.people().list(&by_name, None, 9).await.unwrap()), [ada]);
    let by_external_id = SubjectFilter { external_id: Some("e".into()), ..all.clone() };
    assert_eq!(ids(store.people().list(&by_external_id, None, 9).await.unwrap()), [eve]);
    let clusters = SubjectFilter { origin: Some("cluster".into()), ..all.clone() };
    assert_eq!(ids(store.people().list(&clusters, None, 9).await.unwrap()), [] as [Uuid; 0]);

    let merged = merge(&store, ours, ada, &[bob]).await.unwrap();
    assert_eq!((merged.name.as_deref(), merged.external_id.as_deref()), (Some("Ada"), Some("a")));
    assert_eq!(merged.metadata, serde_json::json!({"Ada": 1, "Bob": 1, "all": "Ada"}));
    assert_eq!((merged.face_count, merged.best_face_id), (3, Some(faces[0])));
    assert_not_found(store.people().get(bob).await, "subject");
    let result = merge(&store, ours, ada, &[eve]).await;
    assert!(matches!(&result, Err(StoreError::Conflict(message)) if message.contains("a, e")), "{result:?}");

    let mut tx = store.begin().await.unwrap();
    let patch = SubjectPatch { external_id: Some(None), ..SubjectPatch::default() };
    store.people().update(tx.conn(), eve, &patch).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(merge(&store, ours, ada, &[eve]).await.unwrap().external_id.as_deref(), Some("a"));

    store.commit(async |tx| store.people().delete(tx.conn(), ada).await).await;
    assert_eq!(ids(store.people().list(&all, None, 9).await.unwrap()), [] as [Uuid; 0]);
    assert!(store.faces().get(faces[0]).await.is_ok(), "the faces are kept");
}

#[testing::test]
async fn unlinking_last_face_deletes_only_enrolled_image() {
    let (_db, store) = fixture::database().await;
    let crawl = fixture::crawl(&store).await;
    let ours = crawl.collection_id;
    let model = fixture::model(&store, "m", 16).await;
    let ada = subject(&store, ours, "Ada", None).await;
    let enrolled = fixture::faces(&store, ours, &model, 1, 2).await;
    let crawled = fixture::face(&model, random_unit_vector(&mut fixture::rng(3), 16));
    let crawled_id = crawled.id;
    let image = fixture::crawled_face(&store, &crawl, "a.jpg", &fixture::image(3), crawled).await;
    let sent = store.faces().get(enrolled[0]).await.unwrap().image_id;
    let mut tx = store.begin().await.unwrap();
    for image in [sent, image, sent] {
        store.people().add_enrolment_source(tx.conn(), image, ada, None, None).await.unwrap();
    }
    tx.commit().await.unwrap();
    assert_eq!(store.images().sources(&[sent]).await.unwrap().len(), 1, "an equal source is recorded once");
    enrol(&store, ours, ada, &[enrolled[0], enrolled[1], crawled_id], false).await.unwrap();

    assert_eq!(unlink(&store, ada, crawled_id, true).await.unwrap(), [] as [String; 0]);
    assert!(store.images().get(image).await.is_ok());
    assert_eq!(unlink(&store, ada, enrolled[0], true).await.unwrap(), [] as [String; 0]);
    assert!(store.faces().get(enrolled[0]).await.is_ok(), "another face of the image still shows a subject");
    let keys = unlink(&store, ada, enrolled[1], true).await.unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(store.images().get(sent).await.is_err());
    assert_not_found(unlink(&store, ada, enrolled[1], true).await, "face of this subject");
}

#[testing::test]
async fn clustering_respects_user_decisions() {
    let (_db, store) = fixture::database().await;
    let ours = fixture::collection(&store, "default").await;
    let (model, other) = (fixture::model(&store, "m", 16).await, fixture::model(&store, "n", 16).await);
    let mut found = Vec::new();
    for seed in 0..5 {
        found.extend(fixture::faces(&store, ours, &model, seed, 1).await);
    }
    let foreign = fixture::faces(&store, ours, &other, 9, 1).await;
    let ada = subject(&store, ours, "Ada", None).await;
    enrol(&store, ours, ada, &found[..2], false).await.unwrap();
    unlink(&store, ada, found[1], false).await.unwrap();

    let scope = ClusterScope { collection_id: ours, model_id: model.id, any_quality: true };
    assert_eq!(store.clusters().count_unclustered(&scope).await.unwrap(), 5);
    assert_eq!(store.clusters().unclustered_faces(&scope, found[1], 2).await.unwrap(), found[2..4]);
    let mut tx = store.begin().await.unwrap();
    let all_faces = [&found[..], &foreign].concat();
    let units = store.clusters().units(tx.conn(), &scope, &all_faces).await.unwrap();
    assert_eq!(units.len(), 5);
    assert_eq!((units[0].subject, units[0].is_enrolled, units[0].weight), (Some(ada), true, 1));
    assert_eq!(units[0].refused, [found[1]]);
    assert_eq!(units[0].mean.len(), 16);
    assert_eq!(units[1].faces, [found[1]]);
    let groups = [
        Group { subject: Some(ada), joined: vec![], faces: vec![found[2]] },
        Group { subject: None, joined: vec![], faces: vec![found[3], found[4], found[2]] },
    ];
    let changes = store.clusters().apply_groups(tx.conn(), ours, &groups).await.unwrap();
    assert_eq!((changes.assigned, changes.made), (3, 1), "a face with a subject keeps it");
    assert_eq!(store.clusters().mark_clustered(tx.conn(), ours, &found).await.unwrap(), 5);
    tx.commit().await.unwrap();
    assert_eq!(store.clusters().count_unclustered(&scope).await.unwrap(), 0);

    // A cluster is merged into Ada, and its refusals move with it. A cluster that a user changes
    // becomes `enrolled`.
    let filter =
        SubjectFilter { collection_id: ours, name: None, external_id: None, origin: Some("cluster".into()) };
    let cluster = store.people().list(&filter, None, 9).await.unwrap()[0].id;
    unlink(&store, cluster, found[4], false).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.clusters().units(tx.conn(), &scope, &found).await.unwrap();
    let merge_group = Group { subject: Some(ada), joined: vec![cluster], faces: vec![] };
    assert_eq!(store.clusters().apply_groups(tx.conn(), ours, &[merge_group]).await.unwrap().joined, 1);
    let units = store.clusters().units(tx.conn(), &scope, &found).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(units[0].faces, [found[0], found[2], found[3]]);
    assert_eq!(units[0].refused.iter().filter(|id| [found[1], found[4]].contains(id)).count(), 2);
    assert_eq!(store.people().list(&filter, None, 9).await.unwrap(), []);
}

#[testing::test]
async fn collection_has_one_running_clustering() {
    let (_db, store, ours, model) = fixture::with_model(16).await;
    let scope = ClusterScope { collection_id: ours, model_id: model.id, any_quality: false };
    let mut tx = store.begin().await.unwrap();
    let first = store.clusters().begin(tx.conn(), &scope, 0.5).await.unwrap().unwrap();
    assert_eq!(store.clusters().begin(tx.conn(), &scope, 0.9).await.unwrap(), Err(first));
    tx.commit().await.unwrap();
    assert!(store.clusters().resume(first, 10).await.unwrap());
    let mut tx = store.begin().await.unwrap();
    assert!(store.clusters().lock(tx.conn(), first).await.unwrap());
    store.clusters().count_step(tx.conn(), first, 4, Default::default()).await.unwrap();
    tx.commit().await.unwrap();
    assert!(store.clusters().resume(first, 6).await.unwrap());
    let run = store.clusters().get(first).await.unwrap();
    assert_eq!((run.state, run.faces, run.looked, run.threshold), (ClusteringState::Running, 10, 4, 0.5));
    let mut tx = store.begin().await.unwrap();
    store.clusters().end(tx.conn(), first, Some("no more")).await.unwrap();
    assert!(store.clusters().begin(tx.conn(), &scope, 0.9).await.unwrap().is_ok());
    tx.commit().await.unwrap();
    assert_eq!(store.clusters().get(first).await.unwrap().state, ClusteringState::Failed);
    assert!(!store.clusters().resume(first, 1).await.unwrap());
    assert_eq!(store.clusters().latest(ours).await.unwrap().unwrap().threshold, 0.9);
}

/// Stores an image with two faces that was sent to enrol a person, with one face or both. Returns
/// the faces that belong to the person.
async fn enrolled_image(store: &Store, collection: Uuid, person: Uuid, seed: u64, count: usize) -> Vec<Uuid> {
    let model = fixture::model(store, "m", 16).await;
    let faces = fixture::faces(store, collection, &model, seed, 2).await[..count].to_vec();
    enrol(store, collection, person, &faces, false).await.unwrap();
    let image = store.faces().get(faces[0]).await.unwrap().image_id;
    store
        .commit(async |tx| store.people().add_enrolment_source(tx.conn(), image, person, None, None).await)
        .await;
    faces
}

#[testing::test]
async fn enrolled_image_is_deleted_with_last_assigned_face() {
    #[derive(Clone, Copy, Debug)]
    enum Step {
        DeleteFace(usize),
        Unlink(usize),
        DeletePerson,
    }
    use Step::{DeleteFace, DeletePerson, Unlink};
    let orders: [(usize, &[Step]); 8] = [
        (1, &[DeletePerson]),
        (1, &[DeleteFace(0), DeletePerson]),
        (1, &[Unlink(0), DeletePerson]),
        (2, &[DeletePerson]),
        (2, &[DeleteFace(0), DeletePerson]),
        (2, &[DeleteFace(1), DeleteFace(0)]),
        (2, &[Unlink(0), DeleteFace(1), DeletePerson]),
        (2, &[DeleteFace(0), Unlink(1)]),
    ];
    let (_db, store) = fixture::database().await;
    let collection = fixture::collection(&store, "default").await;
    for (seed, (count, steps)) in orders.iter().enumerate() {
        let person = subject(&store, collection, "Ada", None).await;
        let faces = enrolled_image(&store, collection, person, seed as u64, *count).await;
        let image = store.faces().get(faces[0]).await.unwrap().image_id;
        for step in *steps {
            let mut tx = store.begin().await.unwrap();
            store.people().lock(tx.conn(), collection, &[person]).await.unwrap();
            match *step {
                DeleteFace(index) => drop(store.faces().delete(tx.conn(), faces[index]).await.unwrap()),
                Unlink(index) => {
                    drop(store.people().unlink_face(tx.conn(), person, faces[index], true).await.unwrap())
                }
                DeletePerson => {
                    let images = store.people().lock_images(tx.conn(), person).await.unwrap();
                    store.people().delete(tx.conn(), person).await.unwrap();
                    store.people().delete_enrolled_images(tx.conn(), &images).await.unwrap();
                }
            }
            tx.commit().await.unwrap();
            // The image remains exactly as long as one of its faces belongs to the person.
            let is_used = !faces_of(&store, person, collection).await.is_empty();
            assert_eq!(store.images().get(image).await.is_ok(), is_used, "{step:?} of {steps:?}");
        }
        let result = store.images().get(image).await;
        assert!(matches!(result, Err(StoreError::NotFound { .. })), "after {steps:?}");
    }
}

#[testing::test]
async fn deleting_face_waits_for_concurrent_enrolment() {
    let (db, store, collection, model) = fixture::with_model(16).await;
    let found = fixture::faces(&store, collection, &model, 1, 2).await;
    let ada = subject(&store, collection, "Ada", None).await;
    // An enrolment locks the person, the image and the face, in this order.
    let mut tx = store.begin().await.unwrap();
    store.people().lock(tx.conn(), collection, &[ada]).await.unwrap();
    let insertion = store.images().insert(tx.conn(), collection, &fixture::image(1)).await.unwrap();
    assert!(insertion.is_err(), "the image is stored");
    let deletion = tokio::spawn({
        let (store, face) = (store.clone(), found[0]);
        async move {
            let mut tx = store.begin().await?;
            store.faces().delete(tx.conn(), face).await?;
            tx.commit().await
        }
    });
    wait_for_lock(&db).await;
    store.people().enrol(tx.conn(), collection, ada, &found[..1], false).await.unwrap();
    tx.commit().await.unwrap();
    deletion.await.unwrap().unwrap();
    assert_eq!(faces_of(&store, ada, collection).await, [] as [Uuid; 0]);
    assert!(store.faces().get(found[1]).await.is_ok());
}

/// A change of a face or a person that users make at the same time as others.
#[derive(Clone, Copy, Debug)]
enum Change {
    DeleteFace(Uuid),
    DeletePerson(Uuid),
    /// Enrols the stored image again, with this face.
    Enrol {
        seed: u64,
        face: Uuid,
        person: Uuid,
    },
    Move {
        face: Uuid,
        to: Uuid,
    },
    Unlink {
        face: Uuid,
        from: Uuid,
    },
}

impl Change {
    async fn make(self, store: &Store, collection: Uuid) -> Result<(), StoreError> {
        let mut tx = store.begin().await?;
        match self {
            Self::DeleteFace(face) => drop(store.faces().delete(tx.conn(), face).await?),
            Self::DeletePerson(person) => {
                store.people().lock(tx.conn(), collection, &[person]).await?;
                let images = store.people().lock_images(tx.conn(), person).await?;
                store.people().delete(tx.conn(), person).await?;
                store.people().delete_enrolled_images(tx.conn(), &images).await?;
            }
            Self::Enrol { seed, face, person } => {
                store.people().lock(tx.conn(), collection, &[person]).await?;
                let image = fixture::image(seed);
                if let Err(stored) = store.images().insert(tx.conn(), collection, &image).await? {
                    store.people().enrol(tx.conn(), collection, person, &[face], true).await?;
                    store.people().add_enrolment_source(tx.conn(), stored, person, None, None).await?;
                }
            }
            Self::Move { face, to } => {
                store.people().lock(tx.conn(), collection, &[to]).await?;
                store.people().enrol(tx.conn(), collection, to, &[face], true).await?;
            }
            Self::Unlink { face, from } => {
                store.people().lock(tx.conn(), collection, &[from]).await?;
                store.people().unlink_face(tx.conn(), from, face, true).await?;
            }
        }
        tx.commit().await
    }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_face_and_subject_changes_never_deadlock() {
    const ROUNDS: u64 = 40;
    let (_db, store) = fixture::database().await;
    let collection = fixture::collection(&store, "default").await;
    for seed in 0..ROUNDS {
        let ada = subject(&store, collection, "Ada", None).await;
        let bob = subject(&store, collection, "Bob", None).await;
        let found = enrolled_image(&store, collection, ada, seed, 2).await;
        let changes = [
            Change::DeleteFace(found[0]),
            Change::Move { face: found[0], to: bob },
            Change::Unlink { face: found[1], from: ada },
            Change::Enrol { seed, face: found[1], person: bob },
            Change::DeletePerson(ada),
            Change::DeleteFace(found[1]),
        ];
        let start = Arc::new(Barrier::new(changes.len()));
        let mut running = JoinSet::new();
        for change in changes {
            let (store, start) = (store.clone(), start.clone());
            running.spawn(async move {
                start.wait().await;
                (change, change.make(&store, collection).await)
            });
        }
        while let Some(task) = running.join_next().await {
            let (change, result) = task.unwrap();
            // Content that another change deleted is not found.
            let is_expected = matches!(result, Ok(()) | Err(StoreError::NotFound { .. }));
            assert!(is_expected, "round {seed}, {change:?}: {result:?}");
        }
    }
}
