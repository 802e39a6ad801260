//! Keeps the sets of an engine as the database records them: one for each model, and a second one
//! while a set is built again.
use super::ExternalIndex;
use super::follow::Progress;
use crate::StoreError;
use crate::index_sets::{self, IndexSet};
use crate::vector_engine::EngineError;
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
    /// Makes the engine of this process the one that is brought up to the rows, and starts to
    /// record changes if the database does not yet record them. Every later step of a process with
    /// another folder or server fails with `IndexUnavailable`.
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
        let folder = self.call(self.engine.folder_id()).await?;
        let mut tx = self.store.begin().await?;
        index_sets::take_over(tx.conn(), self.engine.name(), folder).await?;
        tx.commit().await
    }

    /// Creates and deletes sets, and lets searches use sets that are complete. Returns the sets;
    /// `None` if another process is changing the engine.
    pub(super) async fn arrange(&self, progress: &mut Progress) -> Result<Option<Vec<IndexSet>>, StoreError> {
        let Some(mut tx) = self.exclusive().await? else { return Ok(None) };
        // Before the records are read: a set that another process creates after this transaction
        // has lost the lock must not count as unknown.
        let existing: BTreeSet<Uuid> = self.call(self.engine.sets()).await?.into_iter().collect();
        self.check_ownership(tx.conn()).await?;
        index_sets::replace_sets_with_deletions(tx.conn(), self.engine.name(), self.config.rebuild_age)
            .await?;
        let before = self.sets(tx.conn()).await?;
        let recorded: BTreeSet<Uuid> = before.iter().map(|set| set.id).collect();
        for set in existing.difference(&recorded) {
            self.call(self.engine.remove(*set)).await?;
        }
        for set in &before {
            self.arrange_set(tx.conn(), set, existing.contains(&set.id)).await?;
        }
        for model in models_without_set(tx.conn(), self.engine.name()).await? {
            index_sets::insert(tx.conn(), self.engine.name(), model).await?;
        }
        let after = self.sets(tx.conn()).await?;
        let without_faces = |set: &&IndexSet| set.state == IndexSetState::Building && set.copied_to.is_nil();
        for set in after.iter().filter(|set| !existing.contains(&set.id) || without_faces(set)) {
            self.call(self.engine.create(&set.face_set())).await?;
        }
        if progress.measured.is_none_or(|measured| measured.elapsed() >= MEASURE_INTERVAL) {
            for set in &after {
                let info = self.call(self.engine.info(&set.face_set())).await?;
                index_sets::record_size(tx.conn(), set.id, &info).await?;
            }
            progress.measured = Some(Instant::now());
        }
        tx.commit().await?;
        Ok(Some(after))
    }

    /// Fails if the recorded sets belong to another folder, or if recording is off. In both cases
    /// another process has taken over.
    async fn check_ownership(&self, conn: &mut PgConnection) -> Result<(), StoreError> {
        let recorded = index_sets::folder_id(conn, self.engine.name()).await?;
        if recorded != Some(self.call(self.engine.folder_id()).await?) {
            return Err(self.unavailable("another process has built this index elsewhere"));
        }
        if !self.store.records_index_changes().await? {
            return Err(self.unavailable("a process with another SEARCH_INDEX stopped recording changes"));
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
                index_sets::delete(conn, set.id).await
            }
            // A set that was just recorded: it is created below.
            IndexSetState::Building if !exists && set.copied_to.is_nil() => Ok(()),
            _ if !exists => {
                tracing::warn!(set = %set.id, model = set.model, "a set of the search index is missing; building it again");
                index_sets::delete(conn, set.id).await
            }
            IndexSetState::Building if set.copied => {
                let info = self.call(self.engine.info(&set.face_set())).await?;
                if info.settled || info.faces.saturating_sub(info.in_graph) <= WITHOUT_GRAPH {
                    index_sets::serve(conn, set).await?;
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
