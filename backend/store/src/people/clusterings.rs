//! Records of clustering runs.
use crate::people::clusters::{Changes, ClusterScope};
use crate::{Store, StoreError};
use domain::ClusteringState;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct Clustering {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub state: ClusteringState,
    /// Minimum mean similarity between the parts of a cluster.
    pub threshold: f32,
    /// Whether faces that failed their quality profile are included.
    pub any_quality: bool,
    pub model_id: i32,
    /// Number of faces to process.
    pub faces: i64,
    /// Number of faces processed.
    pub looked: i64,
    /// Number of faces assigned to a subject.
    pub assigned: i64,
    /// Number of clusters created.
    pub made: i64,
    /// Number of clusters merged into another subject.
    pub joined: i64,
    pub error: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<OffsetDateTime>,
}

macro_rules! select_clusterings {
    ($tail:literal) => {
        concat!(
            "select id, collection_id, state, threshold, any_quality, model_id, faces, looked, assigned, made, joined, error, ",
            "created_at, finished_at from clusterings ",
            $tail
        )
    };
}

impl Store {
    /// Creates a run. Returns `Err` with the id of the live run if the collection has one.
    pub async fn begin_clustering(
        &self,
        conn: &mut PgConnection,
        scope: &ClusterScope,
        threshold: f32,
    ) -> Result<Result<Uuid, Uuid>, StoreError> {
        let id = Uuid::now_v7();
        for _ in 0..3 {
            let entered = sqlx::query(
                "insert into clusterings (id, collection_id, threshold, any_quality, model_id) values ($1, $2, $3, $4, $5)
                 on conflict (collection_id) where finished_at is null do nothing",
            )
            .bind(id)
            .bind(scope.collection_id)
            .bind(threshold)
            .bind(scope.any_quality)
            .bind(scope.model_id)
            .execute(&mut *conn)
            .await?;
            if entered.rows_affected() == 1 {
                return Ok(Ok(id));
            }
            // The live run may end before it can be read. The insert is then retried.
            let live: Option<Uuid> = sqlx::query_scalar(
                "select id from clusterings where collection_id = $1 and finished_at is null",
            )
            .bind(scope.collection_id)
            .fetch_optional(&mut *conn)
            .await?;
            if let Some(live) = live {
                return Ok(Err(live));
            }
        }
        Err(StoreError::Conflict("clusterings of the collection start and end repeatedly; try again".into()))
    }

    pub async fn clustering(&self, id: Uuid) -> Result<Clustering, StoreError> {
        sqlx::query_as(select_clusterings!("where id = $1"))
            .bind(id)
            .fetch_optional(&self.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("clustering", id))
    }

    pub async fn latest_clustering(&self, collection: Uuid) -> Result<Option<Clustering>, StoreError> {
        Ok(sqlx::query_as(select_clusterings!("where collection_id = $1 order by id desc limit 1"))
            .bind(collection)
            .fetch_optional(&self.pool)
            .await?)
    }

    /// Marks a live run as running, with `left` faces to process. Returns `false` and changes
    /// nothing if the run has ended.
    pub async fn resume_clustering(&self, id: Uuid, left: i64) -> Result<bool, StoreError> {
        let resumed = sqlx::query(
            "update clusterings set state = 'running', faces = looked + $2 where id = $1 and finished_at is null",
        )
        .bind(id)
        .bind(left)
        .execute(&self.pool)
        .await?;
        Ok(resumed.rows_affected() == 1)
    }

    /// Locks a live run until the transaction ends, so that only one worker executes a step at a
    /// time. Returns `false` if the run has ended.
    pub async fn lock_clustering(&self, conn: &mut PgConnection, id: Uuid) -> Result<bool, StoreError> {
        let held: Option<i32> =
            sqlx::query_scalar("select 1 from clusterings where id = $1 and finished_at is null for update")
                .bind(id)
                .fetch_optional(conn)
                .await?;
        Ok(held.is_some())
    }

    /// Adds the counts of one step to a locked run.
    pub async fn count_step(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        looked: i64,
        changes: Changes,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update clusterings set looked = looked + $2, assigned = assigned + $3, made = made + $4, joined = joined + $5,
                    faces = greatest(faces, looked + $2)
             where id = $1",
        )
        .bind(id)
        .bind(looked)
        .bind(changes.assigned)
        .bind(changes.made)
        .bind(changes.joined)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Ends a live run as `completed`, or as `failed` if `error` is set.
    pub async fn end_clustering(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        error: Option<&str>,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update clusterings set state = case when $2::text is null then 'completed' else 'failed' end, error = $2,
                    finished_at = now()
             where id = $1 and finished_at is null",
        )
        .bind(id)
        .bind(error)
        .execute(conn)
        .await?;
        Ok(())
    }
}
