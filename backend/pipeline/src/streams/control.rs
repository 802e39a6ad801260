//! Enters the configured cameras in the database, and enqueues the jobs that watch them (`job`).
use crate::domain::ChangeError;
use crate::domain::jobs::StreamJob;
use crate::streams::config::StreamConfigs;
use queue::Queue;
use std::collections::HashMap;
use store::streams::ConfiguredStream;
use store::{Store, StoreError, retried};
use uuid::Uuid;

/// The cameras of the service. Cheap to clone.
#[derive(Clone)]
pub struct Streams {
    store: Store,
    queue: Queue,
}

impl Streams {
    pub fn new(store: Store, queue: Queue) -> Self {
        Self { store, queue }
    }

    /// Makes the table of streams equal to the configuration, and enqueues their jobs. A process
    /// calls it at its start. Returns the names of the streams whose collection does not exist.
    /// They are left out.
    ///
    /// # Errors
    /// Fails if the store or the queue fails. The table may be changed already. Another call
    /// completes the change.
    pub async fn configure(&self, configs: &StreamConfigs) -> Result<Vec<String>, ChangeError> {
        self.enter(configs, true).await
    }

    /// Adds the configured streams that are missing in the table, for example because their
    /// collection was created again, and enqueues the jobs of all streams that have none. Returns
    /// and fails like [`Self::configure`].
    pub async fn restore(&self, configs: &StreamConfigs) -> Result<Vec<String>, ChangeError> {
        self.enter(configs, false).await
    }

    async fn enter(&self, configs: &StreamConfigs, is_start: bool) -> Result<Vec<String>, ChangeError> {
        let (mut streams, mut without_collection) = (Vec::new(), Vec::new());
        let mut collections: HashMap<&str, Option<Uuid>> = HashMap::new();
        for (name, config) in configs.iter() {
            let collection = match collections.get(config.collection.as_str()) {
                Some(known) => *known,
                None => self.collection_id(&config.collection).await?,
            };
            collections.insert(&config.collection, collection);
            match collection {
                Some(collection_id) => streams.push(ConfiguredStream {
                    collection_id,
                    name: name.clone(),
                    kind: config.kind(),
                    purpose: config.purpose.clone(),
                    store: config.store,
                    retention_hours: config.retention_hours.into(),
                    fps: config.fps,
                }),
                None => without_collection.push(name.clone()),
            }
        }
        retried("configure_streams", || async {
            let mut tx = self.store.begin().await?;
            if is_start {
                self.store.streams().configure(tx.conn(), &streams).await?;
            } else {
                self.store.streams().restore(tx.conn(), &streams).await?;
            }
            Ok::<_, ChangeError>(tx.commit().await?)
        })
        .await?;
        self.reconcile().await?;
        Ok(without_collection)
    }

    /// Returns the id of a collection, or `None` if it does not exist.
    async fn collection_id(&self, name: &str) -> Result<Option<Uuid>, StoreError> {
        match retried("collection", || self.store.collections().get(name)).await {
            Ok(collection) => Ok(Some(collection.id)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enqueues the jobs of the streams that should be watched and have none.
    ///
    /// # Errors
    /// Fails if the store or the queue fails.
    pub async fn reconcile(&self) -> Result<(), ChangeError> {
        retried("reconcile_streams", || async {
            let mut tx = self.store.begin().await?;
            let wanted = self.store.streams().wanted(tx.conn()).await?;
            let jobs: Vec<_> = wanted
                .iter()
                .map(|(id, collection)| StreamJob { stream_id: *id }.queue_job(*collection))
                .collect();
            self.queue.enqueue(tx.conn(), &jobs).await?;
            Ok::<_, ChangeError>(tx.commit().await?)
        })
        .await
    }
}
