//! The store, whose handles give access to the tables. The methods of a handle are in the folder
//! with its name.
use crate::db::schema::Schema;
use crate::db::{Config, DEFAULT_EXACT_LIMIT, Tx};
use crate::index::changes::IndexLog;
use crate::index::scope::LargeScopes;
use crate::index::{FaceIndex, Pgvector};
use crate::{StoreError, db};
use sqlx::PgPool;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// A handle to the database. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: PgPool,
    pub(crate) exact_limit: i64,
    pub(crate) large_scopes: Arc<LargeScopes>,
    pub(crate) index: Arc<dyn FaceIndex>,
    /// The only collection whose rows this handle can access; see [`Store::within`].
    pub(crate) collection_scope: Option<Uuid>,
}

impl Store {
    /// Returns the time of the database's clock, which all processes share.
    pub async fn clock(&self) -> Result<OffsetDateTime, StoreError> {
        db::clock(&self.pool).await
    }

    /// Connects to the database. Checks that the version of Postgres is at least 15 and that of
    /// pgvector at least 0.8.4. Retries for up to ten seconds while the server starts.
    ///
    /// # Errors
    /// Fails with `Invalid` if the URL cannot be parsed, with `Unsupported` if the server is too
    /// old, and otherwise with the database's error.
    pub async fn connect(config: &Config) -> Result<Self, StoreError> {
        let pool = db::connect(config).await?;
        let index = Pgvector::new(pool.clone()).with_candidates(config.candidates);
        Ok(Self::from_pool(pool).with_exact_limit(config.exact_limit).with_index(Arc::new(index)))
    }

    /// Wraps a pool (for tests).
    pub fn from_pool(pool: PgPool) -> Self {
        Self {
            index: Arc::new(Pgvector::new(pool.clone())),
            pool,
            exact_limit: DEFAULT_EXACT_LIMIT,
            large_scopes: Arc::default(),
            collection_scope: None,
        }
    }

    /// Returns the same store with another [`Config::exact_limit`].
    pub fn with_exact_limit(mut self, faces: i64) -> Self {
        self.exact_limit = faces;
        self
    }

    /// Returns the same store with another vector index. The default is [`Pgvector`].
    #[must_use]
    pub fn with_index(mut self, index: Arc<dyn FaceIndex>) -> Self {
        self.index = index;
        self
    }

    /// Returns the same store limited to one collection. A call that takes an id then finds no
    /// other collection, and no crawl, image or face of another collection. Every statement that
    /// reads or deletes a row identified by a caller's id contains this condition, because a caller
    /// may have guessed the id.
    #[must_use]
    pub fn within(&self, collection: Uuid) -> Self {
        Self { collection_scope: Some(collection), ..self.clone() }
    }

    /// Returns the pool, for the queue and for single statements outside a transaction.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub async fn begin(&self) -> Result<Tx, StoreError> {
        Tx::begin(&self.pool).await
    }

    /// Begins a transaction whose statements store many rows at once.
    ///
    /// A statement fails if it waits longer than `max_lock_wait` for a lock. Each connection plans
    /// a statement of such transactions once, not at each execution, so its plan must not depend
    /// on the values of its parameters.
    pub async fn begin_batch(&self, max_lock_wait: Duration) -> Result<Tx, StoreError> {
        Tx::begin_batch(&self.pool, max_lock_wait).await
    }

    /// Runs `select 1` with a time limit of one second.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let result = sqlx::query("select 1").execute(&self.pool);
        match tokio::time::timeout(Duration::from_secs(1), result).await {
            Ok(result) => Ok(result.map(drop)?),
            Err(_) => Err(StoreError::Database(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Schema and migrations.
    pub fn schema(&self) -> Schema<'_> {
        Schema(&self.pool)
    }

    /// The change log of a search index outside the database, and its sets.
    pub fn index(&self) -> IndexLog<'_> {
        IndexLog(&self.pool)
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $Handle:ident,)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $Handle<'a>(pub(crate) &'a Store);
        )*

        impl Store {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> $Handle<'_> {
                    $Handle(self)
                }
            )*
        }
    };
}

handles! {
    /// Crawls: their states, their schedules and their end.
    crawls: Crawls,
    /// Ledgers of a crawl: pages and image URLs with their outcomes.
    ledger: Ledgers,
    /// Hosts: permits, robots.txt, and cached responses for conditional requests.
    hosts: Hosts,
    /// Images, and the places where they were found.
    images: Images,
    /// Videos: their states and their progress.
    videos: Videos,
    /// Videos that a crawl or a scan found.
    crawled_videos: CrawledVideos,
    /// Tracks of videos.
    tracks: Tracks,
    /// Faces and the search for similar faces.
    faces: Faces,
    /// Embedding models, and faces of models that are no longer in use.
    models: Models,
    /// People (`subjects`) and the faces that are assigned to them.
    people: People,
    /// Runs of clustering and their steps.
    clusters: Clusters,
    /// Erasures, and the traces that they remove.
    erasures: Erasures,
    /// Suppressions: content that must not be stored again.
    suppressions: Suppressions,
    /// Deletion of content whose retention period has ended.
    retention: Retention,
    /// Numbers of rows that a deletion would delete.
    deletion_counts: DeletionCounter,
    /// Watchlists, and the new faces that wait for their comparison.
    watchlists: Watchlists,
    /// Alerts of watchlists, and their deliveries.
    alerts: Alerts,
    /// What is published by MQTT.
    mqtt: Mqtt,
    /// Cameras: their states, and what is stored of them.
    streams: Streams,
    /// Collections, their settings and their deletion.
    collections: Collections,
    /// API keys.
    keys: Keys,
    /// The audit log.
    audit: Audit,
    /// Keys of blobs in rows, and blobs that wait for their deletion.
    blobs: BlobKeys,
}
