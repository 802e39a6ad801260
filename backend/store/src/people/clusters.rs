//! Reads and writes the data of face clustering: unclustered faces, their neighbours, and their
//! assignment to subjects. Nothing derived from embeddings is stored. Means are computed for each
//! step, so they never contain an erased face.
use crate::StoreError;
use crate::db::values::floats;
use crate::index::Neighbours;
pub use crate::index::Pair;
use crate::index::scope::{Access, FaceScope};
use crate::people::move_faces;
use crate::store::Clusters;
use domain::ClusteringState;
use pgvector::HalfVector;
use sqlx::{PgConnection, Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct ClusterScope {
    pub collection_id: Uuid,
    pub model_id: i32,
    /// Includes faces that failed their quality profile.
    pub any_quality: bool,
}

/// A unit of clustering: a subject, or a face without a subject.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ClusterUnit {
    /// The subject; `None` for a single face.
    #[sqlx(rename = "id")]
    pub subject: Option<Uuid>,
    /// Whether a user enrolled it. An enrolled subject is never merged into another subject.
    pub is_enrolled: bool,
    /// The queried faces that belong to it.
    pub faces: Vec<Uuid>,
    /// Mean of its embeddings, not normalised.
    #[sqlx(try_from = "pgvector::Vector")]
    pub mean: Vec<f32>,
    /// Number of embeddings in the mean.
    pub weight: i64,
    /// Images that contain its faces.
    pub images: Vec<Uuid>,
    /// Faces that a user removed from it, and the subjects to which these faces belong.
    pub refused: Vec<Uuid>,
}

/// Units that clustering identified as one person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The resulting subject; `None` for a new cluster.
    pub subject: Option<Uuid>,
    /// Clusters to merge into it.
    pub joined: Vec<Uuid>,
    /// Faces without a subject to add to it.
    pub faces: Vec<Uuid>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Number of faces assigned to a subject.
    pub assigned: i64,
    /// Number of clusters created.
    pub made: i64,
    /// Number of clusters merged into another subject.
    pub joined: i64,
}

/// Maximum number of faces, oldest first, from which a subject's mean is computed. The limit
/// prevents a person with thousands of images from slowing down every step.
const MAX_MEMBERS_FOR_MEAN: i64 = 256;
/// Up to this number of faces in scope, neighbours are found by comparing all faces. The comparison
/// is exact, and faster than an index that all collections share.
const MAX_EXACT_FACES: i64 = 5_000;
impl ClusterScope {
    fn faces(&self) -> FaceScope {
        let omit_failed = !self.any_quality;
        FaceScope { omit_failed, ..FaceScope::all(self.collection_id, self.model_id) }
    }
}

impl Clusters<'_> {
    /// Returns the number of faces in scope that no clustering has processed.
    pub async fn count_unclustered(self, scope: &ClusterScope) -> Result<i64, StoreError> {
        let mut sql = QueryBuilder::<Postgres>::new("select count(*) from faces f where ");
        scope.faces().push(&mut sql, Access::All);
        sql.push(NOT_CLUSTERED);
        Ok(sql.build_query_scalar().fetch_one(&self.0.pool).await?)
    }

    /// Returns the next unprocessed faces after `after`, ordered by id.
    pub async fn unclustered_faces(
        self,
        scope: &ClusterScope,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        let mut sql = QueryBuilder::<Postgres>::new("select f.id from faces f where ");
        scope.faces().push(&mut sql, Access::All);
        sql.push(NOT_CLUSTERED);
        sql.push(" and f.id > ").push_bind(after).push(" order by f.id limit ").push_bind(limit);
        Ok(sql.build_query_scalar().fetch_all(&self.0.pool).await?)
    }

    /// Returns, for each of `faces`, at most `limit` of the most similar faces in scope whose
    /// similarity is at least `threshold`. The result is exact for up to 5,000 faces in scope. For
    /// more faces, the search uses the model's index.
    ///
    /// # Errors
    /// Fails with `NotFound` if the model is unknown, and with `IndexUnavailable` if the index
    /// is not available.
    pub async fn neighbours(
        self,
        scope: &ClusterScope,
        faces: &[Uuid],
        limit: i64,
        threshold: f32,
    ) -> Result<Vec<Pair>, StoreError> {
        let model = self.0.models().get(scope.model_id).await?;
        let scope = scope.faces();
        let exact = !self.uses_index(&scope).await?;
        let query = Neighbours { faces, scope: &scope, model: &model, limit, threshold, exact };
        self.0.index.neighbours(&query).await
    }

    /// Makes the index of the model ready for look-ups of the neighbours of many faces, unless the
    /// scope has so few faces that [`Self::neighbours`] does not use the index. May take hours. The
    /// caller can cancel the call.
    ///
    /// # Errors
    /// Fails with the database's error. [`Self::neighbours`] then works without the index.
    pub async fn prepare_neighbours(self, scope: &ClusterScope) -> Result<(), StoreError> {
        match self.uses_index(&scope.faces()).await? {
            true => self.0.index.prepare_neighbours(scope.model_id).await,
            false => Ok(()),
        }
    }

    async fn uses_index(self, scope: &FaceScope) -> Result<bool, StoreError> {
        let mut count = QueryBuilder::<Postgres>::new("select count(*) from (select 1 from faces f where ");
        scope.push(&mut count, Access::All);
        count.push(" limit ").push_bind(MAX_EXACT_FACES + 1).push(") scope");
        let face_count: i64 = count.build_query_scalar().fetch_one(&self.0.pool).await?;
        Ok(face_count > MAX_EXACT_FACES)
    }

    /// Returns the subjects of the faces, then the faces without a subject, both ordered by id.
    /// Locks the subjects until the transaction ends.
    pub async fn units(
        self,
        conn: &mut PgConnection,
        scope: &ClusterScope,
        faces: &[Uuid],
    ) -> Result<Vec<ClusterUnit>, StoreError> {
        // Locks before reading, because the previous lock holder may have moved the faces.
        sqlx::query(
            "select 1 from subjects s where s.id in (select subject_id from subject_faces where face_id = any($1))
             order by s.id for update",
        )
        .bind(faces)
        .execute(&mut *conn)
        .await?;
        let mut units: Vec<ClusterUnit> = sqlx::query_as(
            "with queried as (
                 select subject_id, array_agg(face_id order by face_id) as faces from subject_faces
                 where face_id = any($1) group by subject_id
             )
             select s.id, s.origin = 'enrolled' as is_enrolled, queried.faces, m.mean, m.weight, m.images,
                    array(select r.face_id from subject_refusals r where r.subject_id = s.id
                          union select o.subject_id from subject_refusals r join subject_faces o on o.face_id = r.face_id
                          where r.subject_id = s.id) as refused
             from queried join subjects s on s.id = queried.subject_id
             cross join lateral (
                 select avg(f.embedding::vector) as mean, count(*) as weight, array_agg(distinct f.image_id) as images
                 from (select sf.face_id from subject_faces sf
                       where sf.collection_id = s.collection_id and sf.subject_id = s.id
                       order by sf.face_id limit $3) member
                 join faces f on f.id = member.face_id and f.model_id = $2) m
             where m.weight > 0 order by s.id",
        )
        .bind(faces)
        .bind(scope.model_id)
        .bind(MAX_MEMBERS_FOR_MEAN)
        .fetch_all(&mut *conn)
        .await?;
        let single_faces: Vec<(Uuid, Uuid, HalfVector)> = sqlx::query_as(
            "select f.id, f.image_id, f.embedding from faces f
             where f.id = any($1) and f.collection_id = $2 and f.model_id = $3
               and not exists (select 1 from subject_faces s where s.face_id = f.id)
             order by f.id for key share of f",
        )
        .bind(faces)
        .bind(scope.collection_id)
        .bind(scope.model_id)
        .fetch_all(conn)
        .await?;
        units.extend(single_faces.into_iter().map(|(face, image, embedding)| ClusterUnit {
            subject: None,
            is_enrolled: false,
            faces: vec![face],
            mean: floats(&embedding),
            weight: 1,
            images: vec![image],
            refused: Vec::new(),
        }));
        Ok(units)
    }

    /// Applies the groups. Their subjects must be locked. A face that was assigned in the meantime
    /// keeps its subject.
    pub async fn apply_groups(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        groups: &[Group],
    ) -> Result<Changes, StoreError> {
        let mut changes = Changes::default();
        for group in groups {
            let subject = match group.subject {
                Some(subject) => subject,
                None => {
                    changes.made += 1;
                    insert_cluster(conn, collection).await?
                }
            };
            let inserted = sqlx::query(
                "insert into subject_faces (collection_id, subject_id, face_id, assigned_by)
                 select $1, $2, face, 'clustering' from unnest($3::uuid[]) as faces (face) on conflict (face_id) do nothing",
            )
            .bind(collection)
            .bind(subject)
            .bind(&group.faces)
            .execute(&mut *conn)
            .await?;
            changes.assigned += inserted.rows_affected() as i64;
            if !group.joined.is_empty() {
                move_faces(conn, subject, &group.joined).await?;
                let deleted = sqlx::query("delete from subjects where id = any($1)")
                    .bind(&group.joined)
                    .execute(&mut *conn)
                    .await?;
                changes.joined += deleted.rows_affected() as i64;
            }
        }
        Ok(changes)
    }

    /// Marks the faces as processed. Returns the number of newly marked faces.
    pub async fn mark_clustered(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        faces: &[Uuid],
    ) -> Result<i64, StoreError> {
        let marked = sqlx::query(
            "insert into clustered_faces (collection_id, face_id)
             select collection_id, id from faces where collection_id = $1 and id = any($2) on conflict do nothing",
        )
        .bind(collection)
        .bind(faces)
        .execute(conn)
        .await?;
        Ok(marked.rows_affected() as i64)
    }
}

async fn insert_cluster(conn: &mut PgConnection, collection: Uuid) -> Result<Uuid, StoreError> {
    let id = Uuid::now_v7();
    sqlx::query("insert into subjects (id, collection_id, origin) values ($1, $2, 'cluster')")
        .bind(id)
        .bind(collection)
        .execute(conn)
        .await?;
    Ok(id)
}

const NOT_CLUSTERED: &str = " and not exists (select 1 from clustered_faces c where c.face_id = f.id)";

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

impl Clusters<'_> {
    /// Creates a run. Returns `Err` with the id of the live run if the collection has one.
    pub async fn begin(
        self,
        conn: &mut PgConnection,
        scope: &ClusterScope,
        threshold: f32,
    ) -> Result<Result<Uuid, Uuid>, StoreError> {
        let id = Uuid::now_v7();
        for _ in 0..3 {
            let inserted = sqlx::query(
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
            if inserted.rows_affected() == 1 {
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

    pub async fn get(self, id: Uuid) -> Result<Clustering, StoreError> {
        sqlx::query_as(select_clusterings!("where id = $1"))
            .bind(id)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("clustering", id))
    }

    pub async fn latest(self, collection: Uuid) -> Result<Option<Clustering>, StoreError> {
        Ok(sqlx::query_as(select_clusterings!("where collection_id = $1 order by id desc limit 1"))
            .bind(collection)
            .fetch_optional(&self.0.pool)
            .await?)
    }

    /// Marks a live run as running, with `remaining` faces to process. Returns `false` and changes
    /// nothing if the run has ended.
    pub async fn resume(self, id: Uuid, remaining: i64) -> Result<bool, StoreError> {
        let resumed = sqlx::query(
            "update clusterings set state = 'running', faces = looked + $2 where id = $1 and finished_at is null",
        )
        .bind(id)
        .bind(remaining)
        .execute(&self.0.pool)
        .await?;
        Ok(resumed.rows_affected() == 1)
    }

    /// Locks a live run until the transaction ends, so that only one worker executes a step at a
    /// time. Returns `false` if the run has ended.
    pub async fn lock(self, conn: &mut PgConnection, id: Uuid) -> Result<bool, StoreError> {
        let locked: Option<i32> =
            sqlx::query_scalar("select 1 from clusterings where id = $1 and finished_at is null for update")
                .bind(id)
                .fetch_optional(conn)
                .await?;
        Ok(locked.is_some())
    }

    /// Adds the counts of one step to a locked run.
    pub async fn count_step(
        self,
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
    pub async fn end(self, conn: &mut PgConnection, id: Uuid, error: Option<&str>) -> Result<(), StoreError> {
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
