//! Keeps the sets of an engine as the database records them: one for each model, and a second one
//! while a set is built again.
use super::ExternalIndex;
use crate::StoreError;
use crate::index_sets::{self, IndexSet};
use crate::vector_engine::EngineError;
use domain::IndexSetState;
use sqlx::PgConnection;
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

/// A share of faces that may lack a graph when searches begin to use a set: one in this number. The
/// engine compares with these faces one by one.
const WITHOUT_GRAPH: u64 = 10;
/// Number of faces for which a graph is not worth its cost.
const SMALL: u64 = 50_000;

impl ExternalIndex {
    /// Starts to record changes, if the database does not yet record them.
    ///
    /// Sets that were built while changes were not recorded are built again.
    ///
    /// # Errors
    /// Fails with the database's error, for example if the tables are locked for five seconds.
    pub async fn start_recording(&self) -> Result<(), StoreError> {
        if !self.store.records_index_changes().await? {
            self.store.forget_index_sets().await?;
            self.store.start_index_changes().await?;
        }
        Ok(())
    }

    /// Deletes all sets of the engine and stops recording changes. The caller has checked that no
    /// process uses the index.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable`, or with the database's error.
    pub async fn remove_all(&self) -> Result<usize, StoreError> {
        self.store.stop_index_changes().await?;
        self.store.forget_index_sets().await?;
        let sets = self.engine.sets().await.map_err(|error| self.unavailable(error))?;
        for set in &sets {
            self.engine.remove(*set).await.map_err(|error| self.unavailable(error))?;
        }
        Ok(sets.len())
    }

    /// Removes what is left of deleted faces from the files of sets whose last purge is older than
    /// `age`. May take minutes, and can run beside [`Self::step`]. Returns the number of sets.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable`, or with the database's error.
    pub async fn purge(&self, age: Duration) -> Result<usize, StoreError> {
        let began = self.store.clock().await?;
        let mut conn = self.store.pool().acquire().await?;
        let mut sets = self.sets(&mut conn).await?;
        drop(conn);
        sets.retain(|set| set.state != IndexSetState::Retired && set.purged_at <= began - age);
        for set in &sets {
            self.call(self.engine.purge(&set.face_set())).await?;
            let mut conn = self.store.pool().acquire().await?;
            index_sets::record_purge(&mut conn, set.id, began).await?;
        }
        Ok(sets.len())
    }

    /// Creates and deletes sets, and lets searches use sets that are complete. Carries out a
    /// requested comparison with the rows. Returns the sets; `None` if another process is changing
    /// the engine.
    pub(super) async fn arrange(&self) -> Result<Option<Vec<IndexSet>>, StoreError> {
        // A process with another `SEARCH_INDEX` may have stopped it.
        self.start_recording().await?;
        let Some(mut tx) = self.exclusive().await? else { return Ok(None) };
        let before = self.sets(tx.conn()).await?;
        let existing: BTreeSet<Uuid> = self.call(self.engine.sets()).await?.into_iter().collect();
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
        for set in after.iter().filter(|set| !existing.contains(&set.id)) {
            self.call(self.engine.create(&set.face_set())).await?;
        }
        tx.commit().await?;
        for set in after.iter().filter(|set| set.check_requested_at.is_some()) {
            self.check(set).await?;
        }
        Ok(Some(after))
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
                let without = info.faces.saturating_sub(info.in_graph);
                if without <= SMALL.max(info.faces / WITHOUT_GRAPH) || !info.building {
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
