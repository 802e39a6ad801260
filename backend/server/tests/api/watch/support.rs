//! Stores faces with chosen embeddings, whose similarities a test knows.
use crate::support::receiver::SECRET;
use crate::support::{App, Json, Models, Options, merge};
use serde_json::{Value, json};
use store::faces::NewFace;
use store::people::NewSubject;
use testing::embeddings::Random;
use testing::rows;
use uuid::Uuid;

/// Returns a service with a worker, whose model is not used.
pub(super) async fn app() -> App {
    App::spawn_with(options()).await
}

pub(super) fn options() -> Options {
    Options { models: Models::Fixture, webhook_secret: Some(SECRET), ..Options::default() }
}

/// The faces of a collection.
pub(super) struct Gallery<'a> {
    app: &'a App,
    pub(super) collection: Uuid,
    dimensions: usize,
    model: i32,
}

impl<'a> Gallery<'a> {
    pub(super) async fn new(app: &'a App, collection: &str) -> Self {
        let services = &app.state.services;
        Self {
            app,
            collection: services.store.collections().ensure(collection).await.unwrap().id,
            dimensions: services.analyzer.engine().embedder().dimensions,
            model: services.face_store.model_id(),
        }
    }

    /// Returns a face in the direction of this angle. The similarity of two faces is the cosine of
    /// the difference of their angles.
    pub(super) fn face(&self, degrees: f32) -> NewFace {
        let mut embedding = vec![0.0; self.dimensions];
        (embedding[0], embedding[1]) = (degrees.to_radians().cos(), degrees.to_radians().sin());
        rows::face(embedding, self.model, 0.9)
    }

    /// Stores an image with a face at each of these angles, in one transaction. Returns the faces.
    pub(super) async fn store(&self, degrees: &[f32]) -> Vec<String> {
        let faces: Vec<NewFace> = degrees.iter().map(|degrees| self.face(*degrees)).collect();
        self.store_faces(&faces).await
    }

    pub(super) async fn store_faces(&self, faces: &[NewFace]) -> Vec<String> {
        let store = &self.app.state.services.store;
        let image = rows::image(&mut Random(Uuid::now_v7().as_u64_pair().1));
        let stored = self.app.commit(async |tx| {
            store.suppressions().lock(tx.conn(), self.collection, false).await?;
            store.images().insert(tx.conn(), self.collection, &image).await?.unwrap();
            store.faces().insert(tx.conn(), self.collection, image.id, faces).await
        });
        stored.await;
        faces.iter().map(|face| face.id.to_string()).collect()
    }

    /// Stores a face and enrols it, in separate transactions. Returns the subject.
    pub(super) async fn enrol(&self, degrees: f32) -> String {
        let face: Uuid = self.store(&[degrees]).await[0].parse().unwrap();
        let store = &self.app.state.services.store;
        let new = NewSubject { metadata: json!({}), ..NewSubject::default() };
        let subject = self.app.commit(async |tx| {
            let subject = store.people().insert(tx.conn(), self.collection, &new).await?;
            store.people().enrol(tx.conn(), self.collection, subject, &[face], false).await?;
            Ok::<_, store::StoreError>(subject)
        });
        subject.await.to_string()
    }
}

/// Creates a watchlist of one subject, with further fields.
pub(super) async fn watch(app: &App, subject: &str, fields: Value) -> Value {
    let name = format!("watch {}", Uuid::now_v7());
    let body = json!({"name": name, "purpose": "a test", "subjects": [subject]});
    app.create("/watchlists", &merge(body, fields)).await
}

/// Waits for the alerts of a watchlist, and returns them in order.
pub(super) async fn alerts(app: &App, watchlist: &Value, count: usize) -> Vec<Value> {
    let path = format!("/alerts?watchlist_id={}", watchlist.text("id"));
    let page = app.poll(&path, |page| page.list("alerts").len() >= count).await;
    let mut alerts = page.list("alerts").clone();
    assert_eq!(alerts.len(), count, "{page:#}");
    alerts.reverse();
    alerts
}

/// Waits until every stored face has been compared.
pub(super) async fn settle(app: &App) {
    let start = std::time::Instant::now();
    loop {
        let waiting = app.database.number("select count(*) from watch_outbox").await;
        if waiting == 0 {
            return;
        }
        assert!(start.elapsed() < testing::MAX_WAIT, "{waiting} faces wait for their comparison");
        tokio::task::yield_now().await;
    }
}
