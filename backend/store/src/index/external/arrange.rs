//! Keeps the sets of an engine as the database records them: one for each model, and a second one
//! while a set is built again.
use super::ExternalIndex;
use super::follow::Progress;
use crate::StoreError;
use crate::index::engine::EngineError;
use crate::index::sets;
use crate::index::sets::IndexSet;
use domain::IndexSetState;
use sqlx::PgConnection;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Maximum number of faces outside the graphs at which searches may start to use a set. The engine
/// compares with these faces one by one, which takes some milliseconds.
const WITHOUT_GRAPH: u64 = 50_000;
/// Time between two measurements of the sizes of the sets.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

impl ExternalIndex {
    /// Records the server of this process as the one that contains the index. Starts to record
    /// changes if the database does not record them yet. Every later step of a process with another
    /// server fails with `IndexUnavailable`.
    ///
    /// Sets that were built while changes were not recorded are built again.
    ///
    /// # Errors
    /// Fails with the database's error, for example if the tables are locked for five seconds.
    /// Fails with `IndexUnavailable` if the engine is not available. Changes are recorded
    /// nevertheless.
    pub async fn take_over(&self) -> Result<(), StoreError> {
        if !self.store.records_index_changes().await? {
            self.store.forget_index_sets().await?;
            self.store.start_index_changes().await?;
        }
        let mut conn = self.store.pool().acquire().await?;
        sets::keep(&mut conn, self.engine.name()).await?;
        drop(conn);
        self.claim().await
    }

    /// Records the server of this process like [`Self::take_over`], but does not start to record
    /// changes. A process whose first attempt failed calls it again.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` if the engine is not available, or if another process has
    /// ended the use of this index. Fails with the database's error.
    pub async fn claim(&self) -> Result<(), StoreError> {
        let mut conn = self.store.pool().acquire().await?;
        let recorded = sets::server(&mut conn, self.engine.name()).await?;
        drop(conn);
        self.check_use(recorded).await?;
        let claimed = self.call(self.engine.claim(recorded.map(|server| server.id))).await?;
        let mut tx = self.store.begin().await?;
        sets::take_over(tx.conn(), self.engine.name(), claimed).await?;
        tx.commit().await?;
        // The id is recorded first: a server with an id that no database knows is refused.
        self.call(self.engine.mark(claimed)).await
    }

    /// Fails if another process has ended the use of this index.
    async fn check_use(&self, recorded: Option<sets::RecordedServer>) -> Result<(), StoreError> {
        if recorded.is_some_and(|recorded| recorded.released) {
            return Err(self.unavailable("a process with another SEARCH_INDEX is deleting the index"));
        }
        if !self.store.records_index_changes().await? {
            return Err(self.unavailable("a process with another SEARCH_INDEX stopped recording changes"));
        }
        Ok(())
    }

    /// Creates and deletes sets, and lets searches use sets that are complete. Returns the sets;
    /// `None` if another process is changing the engine.
    pub(super) async fn arrange(&self, progress: &mut Progress) -> Result<Option<Vec<IndexSet>>, StoreError> {
        let Some(mut tx) = self.exclusive().await? else { return Ok(None) };
        // The engine's sets are listed before the records are read. If this transaction loses the
        // lock, another process may create a set, which must not count as unrecorded.
        let existing: BTreeSet<Uuid> = self.call(self.engine.sets()).await?.into_iter().collect();
        self.check_ownership(tx.conn()).await?;
        sets::replace_old_sets(tx.conn(), self.engine.name(), self.config.rebuild_age).await?;
        let before = self.sets(tx.conn()).await?;
        let recorded: BTreeSet<Uuid> = before.iter().map(|set| set.id).collect();
        for set in existing.difference(&recorded) {
            self.call(self.engine.remove(*set)).await?;
        }
        for set in &before {
            self.arrange_set(tx.conn(), set, existing.contains(&set.id)).await?;
        }
        for model in models_without_set(tx.conn(), self.engine.name()).await? {
            sets::insert(tx.conn(), self.engine.name(), model).await?;
        }
        let after = self.sets(tx.conn()).await?;
        // The records are committed first, so that an interrupted creation is continued.
        tx.commit().await?;
        let without_faces = |set: &IndexSet| set.state == IndexSetState::Building && set.copied_to.is_nil();
        let incomplete: Vec<&IndexSet> =
            after.iter().filter(|set| !existing.contains(&set.id) || without_faces(set)).collect();
        let measure = progress.measured.is_none_or(|measured| measured.elapsed() >= MEASURE_INTERVAL);
        if incomplete.is_empty() && !measure {
            return Ok(Some(after));
        }
        let Some(mut tx) = self.exclusive().await? else { return Ok(None) };
        self.check_ownership(tx.conn()).await?;
        for set in incomplete {
            self.call(self.engine.create(&set.face_set())).await?;
            // Postgres ends a transaction without statements after 60 s.
            sqlx::query("select 1").execute(tx.conn()).await?;
        }
        if measure {
            for set in &after {
                let info = self.call(self.engine.info(&set.face_set())).await?;
                sets::record_size(tx.conn(), set.id, &info).await?;
            }
            progress.measured = Some(Instant::now());
        }
        tx.commit().await?;
        Ok(Some(after))
    }

    /// Fails if the recorded sets belong to another server, or if changes are not recorded.
    async fn check_ownership(&self, conn: &mut PgConnection) -> Result<(), StoreError> {
        let recorded = sets::server(conn, self.engine.name()).await?;
        self.check_use(recorded).await?;
        let Some(recorded) = recorded else {
            return Err(self.unavailable("no process that serves the API has started with this SEARCH_INDEX"));
        };
        if !self.call(self.engine.ids()).await?.contains(&recorded.id) {
            return Err(self.unavailable(
                "the recorded sets are in another server, or the server was emptied; if this one is right, restart the service",
            ));
        }
        Ok(())
    }

    async fn arrange_set(
        &self,
        conn: &mut PgConnection,
        set: &IndexSet,
        exists: bool,
    ) -> Result<(), StoreError> {
        match set.state {
            IndexSetState::Retired => {
                self.call(self.engine.remove(set.id)).await?;
                sets::delete(conn, set.id).await
            }
            // A set that was just recorded: it is created below.
            IndexSetState::Building if !exists && set.copied_to.is_nil() && !set.copied => Ok(()),
            // A node of a cluster may lack the set for a while.
            _ if !exists && self.engine.info(&set.face_set()).await.is_ok() => Ok(()),
            _ if !exists => {
                tracing::warn!(set = %set.id, model = set.model, "a set of the search index is missing; building it again");
                sets::delete(conn, set.id).await
            }
            IndexSetState::Building if set.copied => {
                let info = self.call(self.engine.info(&set.face_set())).await?;
                if info.settled || info.faces.saturating_sub(info.in_graph) <= WITHOUT_GRAPH {
                    sets::serve(conn, set).await?;
                    tracing::info!(set = %set.id, model = set.model, faces = info.faces, "search index ready");
                }
                Ok(())
            }
            IndexSetState::Building | IndexSetState::Serving => Ok(()),
        }
    }

    pub(super) async fn call<T>(
        &self,
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, StoreError> {
        work.await.map_err(|error| self.unavailable(error))
    }
}

/// Returns the models that have neither a set in use nor one that is being built.
async fn models_without_set(conn: &mut PgConnection, index: &str) -> Result<Vec<i32>, StoreError> {
    Ok(sqlx::query_scalar(
        "select m.id from embedding_models m where not exists (
             select from index_sets s where s.model_id = m.id and s.index_name = $1 and s.state <> 'retired')
         order by m.id",
    )
    .bind(index)
    .fetch_all(conn)
    .await?)
}
