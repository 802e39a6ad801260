//! Applies the recorded changes of faces to an engine.
//!
//! The lock ends with the database session. The lock is not a fence: a process that was paused may
//! update the engine after its session has ended, and could store a deleted face there again.
//! Searches still return no deleted face, because candidates are checked against the rows. An
//! engine that several processes can reach needs its own fence.
use super::{ExternalIndex, floats};
use crate::StoreError;
use crate::vector_engine::EngineFace;
use pgvector::HalfVector;
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use time::OffsetDateTime;
use uuid::Uuid;

/// Advisory lock of the transaction that changes the engine.
const FOLLOWING: i64 = 0x0066_6163_6503;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The number of changes or faces that were applied. They are durable in the engine. Zero means
    /// that no change or face was left.
    Applied(usize),
    /// Another process is applying changes.
    Busy,
}

impl ExternalIndex {
    /// Applies the next changes, at most `limit`.
    ///
    /// The engine receives the current rows of the changed faces. If a call fails or is
    /// interrupted, the next call repeats its work. Only one process at a time applies changes.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable`, or with the database's error.
    pub async fn follow(&self, limit: i64) -> Result<Followed, StoreError> {
        let mut tx = self.store.begin().await?;
        if !try_lock(tx.conn()).await? {
            return Ok(Followed::Busy);
        }
        let changes = self.store.index_changes(tx.conn(), limit).await?;
        let changed: BTreeSet<(i32, Uuid)> =
            changes.iter().map(|change| (change.model_id, change.face_id)).collect();
        let ids: Vec<Uuid> = changed.iter().map(|(_, face)| *face).collect();
        let mut present: HashMap<(i32, Uuid), EngineFace> = rows(tx.conn(), &ids)
            .await?
            .into_iter()
            .map(|row| ((row.model_id, row.id), row.face()))
            .collect();
        let mut updates: BTreeMap<i32, (Vec<EngineFace>, Vec<Uuid>)> = BTreeMap::new();
        for key @ (model, id) in changed {
            let (stored, deleted) = updates.entry(model).or_default();
            match present.remove(&key) {
                Some(face) => stored.push(face),
                None => deleted.push(id),
            }
        }
        for (model, (stored, deleted)) in updates {
            let model = self.store.model(model).await?;
            let updated = self.engine.update(&model, stored, deleted).await;
            updated.map_err(|error| self.unavailable(error))?;
        }
        let numbers: Vec<i64> = changes.iter().map(|change| change.change).collect();
        self.store.settle_index_changes(tx.conn(), &numbers).await?;
        tx.commit().await?;
        Ok(Followed::Applied(numbers.len()))
    }

    /// Copies the faces of a model that were stored before the changes were recorded: the next
    /// `limit` after `after`, in the order of their ids. Returns the result and the last id.
    ///
    /// # Errors
    /// Fails like [`Self::follow`].
    pub async fn copy(&self, model: i32, after: Uuid, limit: i64) -> Result<(Followed, Uuid), StoreError> {
        let model = self.store.model(model).await?;
        let mut tx = self.store.begin().await?;
        // A face that is deleted after it was read is deleted in the engine after this transaction.
        if !try_lock(tx.conn()).await? {
            return Ok((Followed::Busy, after));
        }
        let ids: Vec<Uuid> =
            sqlx::query_scalar("select id from faces where id > $1 and model_id = $2 order by id limit $3")
                .bind(after)
                .bind(model.id)
                .bind(limit)
                .fetch_all(tx.conn())
                .await?;
        let Some(&last) = ids.last() else { return Ok((Followed::Applied(0), after)) };
        let rows = rows(tx.conn(), &ids).await?.into_iter().filter(|row| row.model_id == model.id);
        let faces: Vec<EngineFace> = rows.map(Row::face).collect();
        self.engine.update(&model, faces, Vec::new()).await.map_err(|error| self.unavailable(error))?;
        tx.commit().await?;
        Ok((Followed::Applied(ids.len()), last))
    }
}

async fn try_lock(conn: &mut PgConnection) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar("select pg_try_advisory_xact_lock($1)").bind(FOLLOWING).fetch_one(conn).await?)
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Uuid,
    model_id: i32,
    collection_id: Uuid,
    image_id: Uuid,
    subject_id: Option<Uuid>,
    quality_overall: Option<f32>,
    quality_passed: Option<bool>,
    created_at: OffsetDateTime,
    embedding: HalfVector,
}

impl Row {
    fn face(self) -> EngineFace {
        EngineFace {
            id: self.id,
            collection_id: self.collection_id,
            image_id: self.image_id,
            subject_id: self.subject_id,
            quality_overall: self.quality_overall,
            quality_passed: self.quality_passed,
            created_at: self.created_at,
            embedding: floats(&self.embedding),
        }
    }
}

async fn rows(conn: &mut PgConnection, faces: &[Uuid]) -> Result<Vec<Row>, StoreError> {
    Ok(sqlx::query_as(
        "select f.id, f.model_id, f.collection_id, f.image_id, s.subject_id, f.quality_overall, f.quality_passed,
                f.created_at, f.embedding
         from faces f left join subject_faces s on s.face_id = f.id where f.id = any($1)",
    )
    .bind(faces)
    .fetch_all(conn)
    .await?)
}
