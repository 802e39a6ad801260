//! Tests the comparison of new faces with watchlists: exactly one alert for each match, also with
//! several matchers, rolled back transactions and concurrent changes. No model is needed.
use crate::support::WAIT_FOR_BLOCKED_SESSION;
use domain::{DeliveryState, WatchNotify};
use pipeline::watch::matcher::Step;
use pipeline::{Maintenance, Matcher};
use serde_json::json;
use std::collections::HashSet;
use store::faces::NewFace;
use store::index::EmbeddingModel;
use store::keys::audit::{Action, AuditFilter};
use store::people::NewSubject;
use store::watch::alerts::{Alert, AlertFilter};
use store::watch::{NewWatchlist, Watched};
use store::{Blobs, Store, StoreError, Tx};
use testing::embeddings::Random;
use testing::{TestDatabase, rows};
use uuid::Uuid;

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) store: Store,
    pub(crate) collection: Uuid,
    model: EmbeddingModel,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await;
        let store = database.store();
        let collection = store.collections().ensure("default").await.unwrap().id;
        let model = store.models().register("a model", "a model", 2).await.unwrap();
        Self { database, store, collection, model }
    }

    pub(crate) fn matcher(&self) -> Matcher {
        Matcher::new(self.store.clone(), Some(0.9))
    }

    pub(crate) async fn commit<T>(&self, work: impl AsyncFnOnce(&mut Tx) -> Result<T, StoreError>) -> T {
        let mut tx = self.store.begin().await.unwrap();
        let result = work(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        result
    }

    /// Stores faces in the direction of these angles, in one transaction.
    pub(crate) async fn store_faces(&self, degrees: &[f32]) -> Vec<Uuid> {
        self.commit(async |tx| {
            self.store.suppressions().lock(tx.conn(), self.collection, false).await?;
            self.insert_faces(tx, degrees).await
        })
        .await
    }

    async fn insert_faces(&self, tx: &mut Tx, degrees: &[f32]) -> Result<Vec<Uuid>, StoreError> {
        let image = rows::image(&mut Random(Uuid::now_v7().as_u64_pair().1));
        self.store.images().insert(tx.conn(), self.collection, &image).await?.unwrap();
        let faces: Vec<NewFace> = degrees.iter().map(|degrees| new_face(self.model.id, *degrees)).collect();
        self.store.faces().insert(tx.conn(), self.collection, image.id, &faces).await?;
        Ok(faces.iter().map(|face| face.id).collect())
    }

    /// Stores a person with a face in this direction.
    pub(crate) async fn person(&self, degrees: f32) -> Uuid {
        let faces = self.store_faces(&[degrees]).await;
        let new = NewSubject { metadata: json!({}), ..NewSubject::default() };
        self.commit(async |tx| {
            let person = self.store.people().insert(tx.conn(), self.collection, &new).await?;
            self.store.people().enrol(tx.conn(), self.collection, person, &faces, false).await?;
            Ok(person)
        })
        .await
    }

    pub(crate) async fn watch(&self, name: &str, subjects: Vec<Uuid>) -> Uuid {
        let new = new_watchlist(name);
        let watched = Watched { subjects, faces: Vec::new() };
        self.commit(async |tx| {
            self.store.suppressions().lock(tx.conn(), self.collection, true).await?;
            self.store.watchlists().insert(tx.conn(), self.collection, &new, &watched).await
        })
        .await
    }

    /// Returns all alerts in order.
    pub(crate) async fn alerts(&self) -> Vec<Alert> {
        let filter = AlertFilter { collection_id: self.collection, ..AlertFilter::default() };
        self.store.alerts().list_after(&filter, 0, 100_000).await.unwrap()
    }

    async fn waiting(&self) -> i64 {
        self.database.number("select count(*) from watch_outbox").await
    }
}

pub(crate) fn new_watchlist(name: &str) -> NewWatchlist {
    NewWatchlist {
        name: name.into(),
        purpose: "a test".into(),
        notify: WatchNotify::Match,
        threshold: None,
        quality_profile: None,
        webhook: None,
        cooldown_seconds: 0,
        expires_at: None,
    }
}

/// Returns a face in the direction of this angle.
fn new_face(model_id: i32, degrees: f32) -> NewFace {
    let angle = degrees.to_radians();
    rows::face(vec![angle.cos(), angle.sin()], model_id, 0.9)
}

#[testing::test(flavor = "multi_thread")]
async fn concurrent_matchers_create_one_alert_per_match_in_order() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    world.watch("a", vec![ada]).await;
    let mut expected = HashSet::new();
    for _ in 0..20 {
        let degrees: Vec<f32> = (0..40).map(|number| if number % 2 == 0 { 5.0 } else { 90.0 }).collect();
        expected.extend(world.store_faces(&degrees).await.into_iter().step_by(2));
    }
    let work = (0..4).map(|_| {
        let mut matcher = world.matcher();
        tokio::spawn(async move { while matcher.step().await.unwrap().compared > 0 {} })
    });
    for task in work.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(world.waiting().await, 0);
    let alerts = world.alerts().await;
    let faces: HashSet<Uuid> = alerts.iter().map(|alert| alert.face_id).collect();
    assert_eq!((alerts.len(), faces), (expected.len(), expected));
    let numbers: Vec<i64> = alerts.iter().map(|alert| alert.sequence).collect();
    assert_eq!(numbers, (1..=alerts.len() as i64).collect::<Vec<_>>(), "no number is missing");
}

#[testing::test]
async fn entry_of_killed_matcher_is_compared_again() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    world.watch("a", vec![ada]).await;
    let face = world.store_faces(&[1.0]).await[0];
    // A process that is killed after the claim closes its connection, and Postgres rolls back.
    let mut killed = world.store.begin().await.unwrap();
    let claimed = world.store.watchlists().claim(killed.conn(), world.collection, 10).await.unwrap();
    assert_eq!(claimed.faces.iter().map(|claimed| claimed.entry.face_id).collect::<Vec<_>>(), [face]);
    assert_eq!(world.matcher().step().await.unwrap(), Step::default(), "the entry is claimed");
    drop(killed);
    let mut matcher = world.matcher();
    let mut step = matcher.step().await.unwrap();
    // The connection may still be rolling back.
    while step.compared == 0 {
        step = matcher.step().await.unwrap();
    }
    assert_eq!(step, Step { compared: 1, busy: 0, alerts: 1 });
    assert_eq!(world.alerts().await.len(), 1);
}

#[testing::test]
async fn collection_without_watchlist_writes_no_entry() {
    let world = World::new().await;
    world.store_faces(&[1.0, 2.0]).await;
    assert_eq!(world.database.number("select count(*) from watch_outbox").await, 0);
    assert_eq!(world.database.number("select count(*) from watch_changes").await, 0);
    let ada = world.person(0.0).await;
    let watchlist = world.watch("a", vec![ada]).await;
    world.commit(async |tx| world.store.watchlists().delete(tx.conn(), watchlist).await).await;
    world.store_faces(&[1.0]).await;
    assert_eq!(world.waiting().await, 0, "a deleted watchlist needs no entry");
}

#[testing::test(flavor = "multi_thread")]
async fn creation_of_watchlist_waits_for_transactions_that_store_faces() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    let mut storing = world.store.begin().await.unwrap();
    world.store.suppressions().lock(storing.conn(), world.collection, false).await.unwrap();
    world.insert_faces(&mut storing, &[1.0]).await.unwrap();
    let (created, late) = tokio::join!(world.watch("a", vec![ada]), async {
        world.database.execute(WAIT_FOR_BLOCKED_SESSION).await;
        storing.commit().await.unwrap();
        world.store_faces(&[2.0]).await[0]
    });
    // The first face was stored before the watchlist was created, so it has no alert. The late face
    // was stored before or after the creation, so it may have one.
    let mut matcher = world.matcher();
    while matcher.step().await.unwrap().compared > 0 {}
    let alerts = world.alerts().await;
    assert!(alerts.iter().all(|alert| alert.face_id == late && alert.watchlist_id == created));
    let face = world.store_faces(&[3.0]).await[0];
    matcher.step().await.unwrap();
    assert_eq!(world.alerts().await.last().unwrap().face_id, face);
}

#[testing::test]
async fn change_between_claim_and_commit_creates_no_alert_of_erased_data() {
    let world = World::new().await;
    let (ada, ben) = (world.person(0.0).await, world.person(90.0).await);
    world.watch("a", vec![ada, ben]).await;
    world.store_faces(&[1.0, 91.0]).await;
    let mut matcher = world.matcher();
    // Another transaction deletes a person, and has not committed.
    let mut deleting = world.store.begin().await.unwrap();
    world.store.people().lock(deleting.conn(), world.collection, &[ada]).await.unwrap();
    world.store.people().delete(deleting.conn(), ada).await.unwrap();
    let step = matcher.step().await.unwrap();
    assert_eq!(step, Step { compared: 1, busy: 1, alerts: 1 }, "the other face is not delayed");
    assert_eq!(world.alerts().await[0].subject_id, Some(ben));
    assert_eq!(matcher.step().await.unwrap(), Step { compared: 0, busy: 1, alerts: 0 });
    deleting.commit().await.unwrap();
    assert_eq!(matcher.step().await.unwrap(), Step { compared: 1, busy: 0, alerts: 0 });
    assert_eq!(world.alerts().await.len(), 1);
}

#[testing::test]
async fn deleted_face_leaves_no_entry_and_no_alert() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    world.watch("a", vec![ada]).await;
    let faces = world.store_faces(&[1.0, 2.0, 3.0]).await;
    world.commit(async |tx| world.store.faces().delete(tx.conn(), faces[0]).await).await;
    let mut deleting = world.store.begin().await.unwrap();
    world.store.faces().delete(deleting.conn(), faces[1]).await.unwrap();
    let mut matcher = world.matcher();
    let step = matcher.step().await.unwrap();
    assert_eq!(step, Step { compared: 2, busy: 1, alerts: 1 });
    deleting.commit().await.unwrap();
    assert_eq!(matcher.step().await.unwrap(), Step { compared: 1, busy: 0, alerts: 0 });
    assert_eq!(world.alerts().await.iter().map(|alert| alert.face_id).collect::<Vec<_>>(), [faces[2]]);
}

#[testing::test]
async fn deletion_waits_for_comparison_and_removes_its_alert() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    world.watch("a", vec![ada]).await;
    let face = world.store_faces(&[1.0]).await[0];
    let mut comparing = world.store.begin().await.unwrap();
    let claimed = world.store.watchlists().claim(comparing.conn(), world.collection, 10).await.unwrap();
    let alert = store::watch::new_alerts::NewAlert {
        collection_id: world.collection,
        watchlist_id: watchlist_id(&world).await,
        face_id: face,
        subject_id: Some(ada),
        watched_face_id: None,
        similarity: Some(1.0),
        has_webhook: false,
        cooldown_seconds: 0,
        stored_at: claimed.faces[0].entry.stored_at,
        track_id: None,
    };
    let entries = [claimed.faces[0].entry.id];
    let alerts = [alert];
    let stored = world.store.watchlists().store_alerts(comparing.conn(), &alerts, &entries).await.unwrap();
    assert_eq!(stored[0].delivery, DeliveryState::None);
    let deletion = world.commit(async |tx| world.store.faces().delete(tx.conn(), face).await);
    tokio::join!(deletion, async {
        let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        while world.database.number(blocked).await == 0 {}
        assert!(world.alerts().await.is_empty(), "the alert is not committed");
        comparing.commit().await.unwrap();
    });
    assert!(world.alerts().await.is_empty(), "the deletion removes the alert");
}

async fn watchlist_id(world: &World) -> Uuid {
    world.store.watchlists().list(world.collection, None, 1).await.unwrap()[0].id
}

#[testing::test]
async fn version_of_watchlists_never_repeats() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    let watchlists = world.store.watchlists();
    let version = async || {
        let mut tx = world.store.begin().await.unwrap();
        let versions = watchlists.versions(tx.conn(), &[world.collection]).await.unwrap();
        versions.get(&world.collection).cloned().unwrap_or_default()
    };
    let mut seen = HashSet::from([version().await]);
    for number in 0..70 {
        world.watch(&number.to_string(), vec![ada]).await;
        let current = version().await;
        assert!(seen.insert(current.clone()), "{current:?} is not new");
        watchlists.compact_changes(world.collection, &current).await.unwrap();
        let compacted = version().await;
        assert!(compacted.len() <= 66 && (compacted == current || seen.insert(compacted)));
    }
}

#[testing::test]
async fn restored_watchlist_is_deleted_again_and_old_alerts_expire() {
    let world = World::new().await;
    let ada = world.person(0.0).await;
    let (first, second) = (world.watch("a", vec![ada]).await, world.watch("b", vec![ada]).await);
    world.store_faces(&[1.0]).await;
    world.matcher().step().await.unwrap();
    assert_eq!(world.alerts().await.len(), 2);
    // A backup that was made before the deletion contains the watchlist.
    world.database.execute("create table restored as select * from watchlists").await;
    world.commit(async |tx| world.store.watchlists().delete(tx.conn(), first).await).await;
    world.database.execute("insert into watchlists select * from restored on conflict do nothing").await;
    world.store.erasures().import_deletion_log(Vec::new()).await.unwrap();
    let rows = world.store.watchlists().list(world.collection, None, 10).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [second]);

    // The image of an enrolled person is kept, and the alert about it is not.
    let face = world.alerts().await[0].face_id;
    world.commit(async |tx| world.store.people().lock(tx.conn(), world.collection, &[ada]).await).await;
    world
        .commit(async |tx| world.store.people().enrol(tx.conn(), world.collection, ada, &[face], false).await)
        .await;
    world.database.execute("update collections set retention_days = 1").await;
    world.database.execute("update alerts set created_at = now() - interval '2 days'").await;
    world.database.execute("update images set created_at = now() - interval '2 days'").await;
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
    let expiry = Maintenance::new(world.store.clone(), blobs).expire().await.unwrap();
    assert_eq!((expiry.images, expiry.alerts), (0, 1));
    let filter = AuditFilter { action: Some(Action::Expire), ..AuditFilter::default() };
    let records = world.store.audit().list(&filter, None, 10).await.unwrap();
    assert_eq!(records.iter().map(|record| &record.detail["alerts"]).collect::<Vec<_>>(), [1]);
    assert!(world.alerts().await.is_empty());
    assert!(world.store.faces().get(face).await.is_ok(), "the face is kept");
}

#[testing::test]
async fn collections_are_compared_in_turn() {
    let mut world = World::new().await;
    let mut locked = Vec::new();
    let mut collections = vec![world.collection];
    for name in ["b", "c"] {
        let settings = Default::default();
        let create = async |tx: &mut Tx| world.store.collections().create(tx.conn(), name, &settings).await;
        collections.push(world.commit(create).await.id);
    }
    for collection in &collections {
        world.collection = *collection;
        let ada = world.person(0.0).await;
        world.watch("a", vec![ada]).await;
        locked = world.store_faces(&[1.0; 300]).await;
    }
    // The faces of the last collection are locked, and the comparison of the others continues.
    let mut deleting = world.store.begin().await.unwrap();
    for face in locked {
        world.store.faces().delete(deleting.conn(), face).await.unwrap();
    }
    let mut matcher = world.matcher();
    let mut steps = Vec::new();
    for _ in 0..6 {
        let step = matcher.step().await.unwrap();
        steps.push((step.compared, step.busy));
    }
    assert_eq!(steps, [(256, 0), (256, 0), (0, 256), (44, 0), (44, 0), (0, 256)]);
}

#[testing::test]
async fn image_with_watched_face_is_not_replaced() {
    let world = World::new().await;
    let face = world.store_faces(&[0.0]).await[0];
    let image = world.store.faces().get(face).await.unwrap().image_id;
    let is_replaceable = async || {
        let mut tx = world.store.begin().await.unwrap();
        world.store.images().lock_to_replace(tx.conn(), &[image]).await.unwrap()
    };
    assert!(is_replaceable().await);
    let watched = Watched { subjects: Vec::new(), faces: vec![face] };
    world
        .commit(async |tx| {
            world.store.watchlists().insert(tx.conn(), world.collection, &new_watchlist("a"), &watched).await
        })
        .await;
    assert!(!is_replaceable().await);
}
