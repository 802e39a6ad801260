//! Applies the recorded changes of faces to an engine, and copies older faces to new sets.
//!
//! A process changes the engine only in a transaction that holds an advisory lock. The lock ends
//! with the transaction. A paused process may still send its update afterwards. Each update
//! therefore has a number, and the engine ignores outdated changes ([`Update::fence`]).
use super::{CheckResult, ExternalIndex, floats, to_microseconds};
use crate::index::changes;
use crate::index::changes::{IndexLog, IndexSet};
use crate::index::engine::{EngineError, EngineFace, Update};
use crate::{StoreError, Tx};
use domain::IndexSetState;
use pgvector::HalfVector;
use sqlx::{PgConnection, PgPool};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use uuid::Uuid;

/// Advisory lock of the transaction that changes the engine.
const LOCK_KEY: i64 = 0x0066_6163_6503;

/// The state that [`ExternalIndex::step`] keeps between its calls.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// When the sizes of the sets were last measured.
    pub(super) measured: Option<Instant>,
    /// Comparisons in progress, by set: the time of the request, the last compared face, and the
    /// counts up to it.
    pub(super) checks: HashMap<Uuid, (OffsetDateTime, Uuid, CheckResult)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The number of changes, compared faces and copied faces. Changes and copies are durable
    /// in the engine. Zero means that no work remains.
    Applied(usize),
    /// Another process is applying changes.
    Busy,
}

impl ExternalIndex {
    /// Runs one step. Creates missing sets and deletes old ones. Applies at most `limit` changes.
    /// Compares the next 2,000 faces of each set whose comparison was requested. Copies at most
    /// `limit` faces to each set that is being built.
    ///
    /// If a call fails or is interrupted, the next call repeats its work. Only one process at a
    /// time changes the engine.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable`, or with the database's error.
    pub async fn step(&self, limit: i64) -> Result<StepOutcome, StoreError> {
        let mut progress = self.progress.lock().await;
        let Some(sets) = self.prepare(&mut progress).await? else { return Ok(StepOutcome::Busy) };
        let StepOutcome::Applied(mut applied) = self.apply_changes(limit).await? else {
            return Ok(StepOutcome::Busy);
        };
        for set in sets.iter().filter(|set| set.check_requested_at.is_some()) {
            let page = self.check_page(set, &mut progress).await?;
            let StepOutcome::Applied(compared) = page else { return Ok(StepOutcome::Busy) };
            applied += compared;
        }
        for set in sets.iter().filter(|set| set.state == IndexSetState::Building && !set.copied) {
            let StepOutcome::Applied(copied) = self.copy(set, limit).await? else {
                return Ok(StepOutcome::Busy);
            };
            applied += copied;
        }
        Ok(StepOutcome::Applied(applied))
    }

    /// Starts a transaction in which only this process may change the engine. Returns `None` if
    /// another process has such a transaction.
    pub(super) async fn begin_exclusive(&self) -> Result<Option<Tx>, StoreError> {
        let mut tx = Tx::begin(&self.pool).await?;
        let locked: bool = sqlx::query_scalar("select pg_try_advisory_xact_lock($1)")
            .bind(LOCK_KEY)
            .fetch_one(tx.conn())
            .await?;
        Ok(locked.then_some(tx))
    }

    /// Records that an index will be deleted. Returns the recorded id of its server; `None` if the
    /// database has no record of the index. Waits until the process that changes the index has
    /// ended its transaction. Afterwards, every step for this index fails with `IndexUnavailable`.
    pub async fn release(pool: &PgPool, index: &str) -> Result<Option<Uuid>, StoreError> {
        let mut tx = Tx::begin(pool).await?;
        // A process that starts must not wait for the process that changes another index.
        if changes::recorded_server(tx.conn(), index).await?.is_none() {
            return Ok(None);
        }
        // This time limit exceeds the time for which an idle transaction can hold the lock.
        sqlx::query("set local statement_timeout = '90s'").execute(tx.conn()).await?;
        sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK_KEY).execute(tx.conn()).await?;
        let released = changes::release(tx.conn(), index).await?;
        tx.commit().await?;
        Ok(released)
    }

    pub(super) async fn sets(&self, conn: &mut PgConnection) -> Result<Vec<IndexSet>, StoreError> {
        let mut sets = IndexLog(&self.pool).sets(conn).await?;
        sets.retain(|set| set.index_name == self.engine.name());
        Ok(sets)
    }

    /// Applies the next changes to every set of their model. The engine receives the current rows
    /// of the changed faces.
    async fn apply_changes(&self, limit: i64) -> Result<StepOutcome, StoreError> {
        let Some(mut tx) = self.begin_exclusive().await? else { return Ok(StepOutcome::Busy) };
        let changes = IndexLog(&self.pool).changes(tx.conn(), limit).await?;
        if changes.is_empty() {
            // Releases the lock before the next step requests it.
            tx.commit().await?;
            return Ok(StepOutcome::Applied(0));
        }
        let changed: BTreeSet<(i32, Uuid)> =
            changes.iter().map(|change| (change.model_id, change.face_id)).collect();
        let ids: Vec<Uuid> = changed.iter().map(|(_, face)| *face).collect();
        let fence = next_fence(tx.conn()).await?;
        let mut current_faces: HashMap<(i32, Uuid), EngineFace> = read_rows(tx.conn(), &ids)
            .await?
            .into_iter()
            .map(|row| ((row.model_id, row.id), row.into_engine_face()))
            .collect();
        let mut updates: BTreeMap<i32, (Vec<EngineFace>, Vec<Uuid>)> = BTreeMap::new();
        for key @ (model, id) in changed {
            let (stored, deleted) = updates.entry(model).or_default();
            match current_faces.remove(&key) {
                Some(face) => stored.push(face),
                None => deleted.push(id),
            }
        }
        let sets = self.sets(tx.conn()).await?;
        for set in sets.iter().filter(|set| set.state != IndexSetState::Retired) {
            // A model without a set needs no update: its faces are copied when its set is built.
            let Some((stored, deleted)) = updates.get(&set.model_id) else { continue };
            let update = Update { fence, stored: stored.clone(), deleted: deleted.clone() };
            self.call(self.engine.update(&set.face_set(), update)).await?;
            if !deleted.is_empty() {
                changes::record_deletion(tx.conn(), set.id).await?;
            }
        }
        let change_ids: Vec<i64> = changes.iter().map(|change| change.change).collect();
        IndexLog(&self.pool).delete_applied_changes(tx.conn(), &change_ids).await?;
        tx.commit().await?;
        Ok(StepOutcome::Applied(change_ids.len()))
    }

    /// Copies the next faces to a set that is being built, in the order of their ids.
    async fn copy(&self, set: &IndexSet, limit: i64) -> Result<StepOutcome, StoreError> {
        // A face that is deleted after it was read is deleted in the engine after this transaction.
        let Some(mut tx) = self.begin_exclusive().await? else { return Ok(StepOutcome::Busy) };
        // Another process may have changed the set since it was read.
        let Some(copied_to) = changes::last_copied_face(tx.conn(), set.id).await? else {
            tx.commit().await?;
            return Ok(StepOutcome::Applied(0));
        };
        let ids: Vec<Uuid> =
            sqlx::query_scalar("select id from faces where id > $1 and model_id = $2 order by id limit $3")
                .bind(copied_to)
                .bind(set.model_id)
                .bind(limit)
                .fetch_all(tx.conn())
                .await?;
        let last = ids.last().copied().unwrap_or(copied_to);
        if !ids.is_empty() {
            let fence = next_fence(tx.conn()).await?;
            let rows =
                read_rows(tx.conn(), &ids).await?.into_iter().filter(|row| row.model_id == set.model_id);
            let update =
                Update { fence, stored: rows.map(Row::into_engine_face).collect(), deleted: Vec::new() };
            self.call(self.engine.update(&set.face_set(), update)).await?;
        }
        // Later faces are applied as recorded changes, so the copy ends even if new faces arrive
        // continuously.
        let is_complete = i64::try_from(ids.len()).is_ok_and(|copied| copied < limit);
        if is_complete {
            self.call(self.engine.start_graphs(&set.face_set())).await?;
        }
        changes::record_copy(tx.conn(), set.id, last, is_complete).await?;
        tx.commit().await?;
        Ok(StepOutcome::Applied(ids.len()))
    }
}

/// Returns the next number of `index_fence` for this transaction. The transaction must hold the
/// lock, and must read the rows of its update afterwards.
async fn next_fence(conn: &mut PgConnection) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar("select next_index_fence()").fetch_one(conn).await?)
}

/// A face with the values that an engine stores.
#[derive(sqlx::FromRow)]
pub(super) struct Row {
    pub(super) id: Uuid,
    pub(super) model_id: i32,
    collection_id: Uuid,
    has_subject: bool,
    quality: Option<f32>,
    failed_quality: bool,
    created_at: OffsetDateTime,
    embedding: HalfVector,
}

impl Row {
    pub(super) fn into_engine_face(self) -> EngineFace {
        EngineFace {
            id: self.id,
            collection_id: self.collection_id,
            has_subject: self.has_subject,
            quality: self.quality,
            failed_quality: self.failed_quality,
            stored_us: to_microseconds(self.created_at),
            embedding: floats(&self.embedding),
        }
    }
}

pub(super) async fn read_rows(conn: &mut PgConnection, faces: &[Uuid]) -> Result<Vec<Row>, StoreError> {
    Ok(sqlx::query_as(
        "select f.id, f.model_id, f.collection_id, f.embedding, f.created_at, f.quality_overall as quality,
                f.quality_passed is not distinct from false as failed_quality,
                exists (select from subject_faces s where s.face_id = f.id) as has_subject
         from faces f where f.id = any($1)",
    )
    .bind(faces)
    .fetch_all(conn)
    .await?)
}

/// Maximum number of faces outside the graphs at which searches may start to use a set. The engine
/// compares with these faces one by one, which takes some milliseconds.
const MAX_FACES_OUTSIDE_GRAPH: u64 = 50_000;
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
        if !IndexLog(&self.pool).records_changes().await? {
            IndexLog(&self.pool).delete_set_records().await?;
            IndexLog(&self.pool).start_changes().await?;
        }
        let mut conn = self.pool.acquire().await?;
        changes::cancel_release(&mut conn, self.engine.name()).await?;
        drop(conn);
        self.claim().await
    }

    /// Records the server of this process like [`Self::take_over`], but does not start to record
    /// changes. A process whose first attempt failed calls it again.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` if the engine is not available, or if another process is
    /// deleting this index. Fails with the database's error.
    pub async fn claim(&self) -> Result<(), StoreError> {
        let mut conn = self.pool.acquire().await?;
        let recorded = changes::recorded_server(&mut conn, self.engine.name()).await?;
        drop(conn);
        self.check_not_released(recorded).await?;
        let claimed = self.call(self.engine.claim(recorded.map(|server| server.id))).await?;
        let mut tx = Tx::begin(&self.pool).await?;
        changes::record_server(tx.conn(), self.engine.name(), claimed).await?;
        tx.commit().await?;
        // The id is recorded first, because a server with an unrecorded id is refused.
        self.call(self.engine.store_server_id(claimed)).await
    }

    /// Fails if another process is deleting this index or has stopped recording changes.
    async fn check_not_released(&self, recorded: Option<changes::RecordedServer>) -> Result<(), StoreError> {
        if recorded.is_some_and(|recorded| recorded.released) {
            return Err(self.unavailable("a process with another SEARCH_INDEX is deleting the index"));
        }
        if !IndexLog(&self.pool).records_changes().await? {
            return Err(self.unavailable("a process with another SEARCH_INDEX stopped recording changes"));
        }
        Ok(())
    }

    /// Creates and deletes sets, and lets searches use sets that are complete. Returns the sets, or
    /// `None` if another process is changing the engine.
    pub(super) async fn prepare(&self, progress: &mut Progress) -> Result<Option<Vec<IndexSet>>, StoreError> {
        let Some(mut tx) = self.begin_exclusive().await? else { return Ok(None) };
        // The engine's sets are listed before the records are read. If this transaction loses the
        // lock, another process may create a set, which must not count as unrecorded.
        let existing: BTreeSet<Uuid> = self.call(self.engine.sets()).await?.into_iter().collect();
        self.check_ownership(tx.conn()).await?;
        changes::replace_old_sets(tx.conn(), self.engine.name(), self.config.rebuild_age).await?;
        let sets = self.sets(tx.conn()).await?;
        let recorded: BTreeSet<Uuid> = sets.iter().map(|set| set.id).collect();
        for set in existing.difference(&recorded) {
            self.call(self.engine.remove(*set)).await?;
        }
        for set in &sets {
            self.prepare_set(tx.conn(), set, existing.contains(&set.id)).await?;
        }
        for model in models_without_set(tx.conn(), self.engine.name()).await? {
            changes::insert(tx.conn(), self.engine.name(), model).await?;
        }
        let updated = self.sets(tx.conn()).await?;
        // The records are committed first, so that an interrupted creation is continued.
        tx.commit().await?;
        let is_empty = |set: &IndexSet| set.state == IndexSetState::Building && set.copied_to.is_nil();
        let incomplete: Vec<&IndexSet> =
            updated.iter().filter(|set| !existing.contains(&set.id) || is_empty(set)).collect();
        let must_measure = progress.measured.is_none_or(|measured| measured.elapsed() >= MEASURE_INTERVAL);
        if incomplete.is_empty() && !must_measure {
            return Ok(Some(updated));
        }
        let Some(mut tx) = self.begin_exclusive().await? else { return Ok(None) };
        self.check_ownership(tx.conn()).await?;
        for set in incomplete {
            self.call(self.engine.create(&set.face_set())).await?;
            // Postgres ends a transaction without statements after 60 s.
            sqlx::query("select 1").execute(tx.conn()).await?;
        }
        if must_measure {
            for set in &updated {
                let info = self.call(self.engine.info(&set.face_set())).await?;
                changes::record_size(tx.conn(), set.id, &info).await?;
            }
            progress.measured = Some(Instant::now());
        }
        tx.commit().await?;
        Ok(Some(updated))
    }

    /// Fails if the recorded sets belong to another server, or if changes are not recorded.
    async fn check_ownership(&self, conn: &mut PgConnection) -> Result<(), StoreError> {
        let recorded = changes::recorded_server(conn, self.engine.name()).await?;
        self.check_not_released(recorded).await?;
        let Some(recorded) = recorded else {
            return Err(self.unavailable("no process that serves the API has started with this SEARCH_INDEX"));
        };
        if !self.call(self.engine.server_ids()).await?.contains(&recorded.id) {
            return Err(self.unavailable(
                "the recorded sets are in another server, or the server was emptied; if this one is right, restart the service",
            ));
        }
        Ok(())
    }

    async fn prepare_set(
        &self,
        conn: &mut PgConnection,
        set: &IndexSet,
        exists: bool,
    ) -> Result<(), StoreError> {
        match set.state {
            IndexSetState::Retired => {
                self.call(self.engine.remove(set.id)).await?;
                changes::delete(conn, set.id).await
            }
            // The set was just recorded. The caller creates it.
            IndexSetState::Building if !exists && set.copied_to.is_nil() && !set.copied => Ok(()),
            // A node of a cluster may lack the set for a while.
            _ if !exists && self.engine.info(&set.face_set()).await.is_ok() => Ok(()),
            _ if !exists => {
                tracing::warn!(set = %set.id, model = set.model, "a set of the search index is missing; building it again");
                changes::delete(conn, set.id).await
            }
            IndexSetState::Building if set.copied => {
                let info = self.call(self.engine.info(&set.face_set())).await?;
                if info.settled || info.faces.saturating_sub(info.in_graph) <= MAX_FACES_OUTSIDE_GRAPH {
                    changes::start_serving(conn, set).await?;
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
