//! The interface of a vector index: it finds the ids of similar faces. Rows are read and written by
//! other modules.
//!
//! Postgres is the source of truth. Results contain only faces whose rows are in the scope of the
//! request, with the rows' similarities. Only [`FaceIndex::all_similar`] may return other faces.
//! [`crate::index::external`] does this for an engine that keeps its own copy of the embeddings.

pub mod builds;
pub mod changes;
pub mod engine;
pub mod external;
pub mod pgvector;
pub mod scope;
use crate::StoreError;
use crate::db::values::halfvec;
use crate::index::scope::{Access, FaceScope};
pub use pgvector::Pgvector;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, QueryBuilder};
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

/// A look-up of the faces that are most similar to a probe.
#[derive(Clone, Debug)]
pub struct Nearest<'a> {
    pub scope: &'a FaceScope,
    pub model: &'a EmbeddingModel,
    /// The probe embedding. It fits the model.
    pub probe: &'a [f32],
    /// Minimum similarity of an exact comparison. Other comparisons ignore it, so that the number
    /// of faces tells the caller that a result is incomplete.
    pub threshold: f32,
    pub limit: i64,
    /// Requires a comparison with every face in scope.
    pub exact: bool,
}

#[derive(Clone, Debug)]
pub struct Neighbours<'a> {
    pub faces: &'a [Uuid],
    pub scope: &'a FaceScope,
    pub model: &'a EmbeddingModel,
    /// Maximum number of neighbours of each face.
    pub limit: i64,
    pub threshold: f32,
    pub exact: bool,
}

/// A look-up of all faces of a collection that are similar to a probe.
#[derive(Clone, Debug)]
pub struct AllSimilar<'a> {
    pub collection_id: Uuid,
    /// Only faces with embeddings of this model.
    pub model: &'a EmbeddingModel,
    /// The probe embedding. It fits the model.
    pub probe: &'a [f32],
    pub threshold: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, sqlx::FromRow)]
pub struct Similar {
    pub id: Uuid,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, sqlx::FromRow)]
pub struct Pair {
    /// The queried face.
    pub face: Uuid,
    pub neighbour: Uuid,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NearestFaces {
    /// The faces, in any order.
    pub faces: Vec<Similar>,
    /// Whether every face in scope was compared.
    pub exact: bool,
}

/// A vector index over the embeddings of the stored faces. Every method that searches faces fails
/// with [`StoreError::IndexUnavailable`] if the index is not available. The caller then compares in
/// Postgres, or tries again later.
#[async_trait::async_trait]
pub trait FaceIndex: fmt::Debug + Send + Sync {
    /// Returns the name of the implementation, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Returns the most similar faces. An approximate result may omit some of them.
    async fn nearest(&self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError>;

    /// Returns the most similar faces of each of the stored faces, without the face itself, in the
    /// order of the ids of the face and its neighbour.
    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError>;

    /// Makes the index of a model ready for [`Self::neighbours`] of many faces, if this is useful.
    /// Look-ups work in any case. May take hours. The caller can cancel the call, and a later call
    /// repeats the work. By default, this does nothing.
    ///
    /// # Errors
    /// Fails with the database's error.
    async fn prepare_neighbours(&self, model: i32) -> Result<(), StoreError> {
        let _ = model;
        Ok(())
    }

    /// Returns all faces that `conn` can see and that are at least as similar as the threshold. The
    /// result may contain other faces too, but it must not omit any of these, because an erasure
    /// uses it. It is ordered by id.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` if the index cannot be complete, or with the database's error.
    async fn all_similar(
        &self,
        conn: &mut PgConnection,
        query: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError>;

    /// Returns the age of the oldest change of a face that the index lacks; zero if there is none.
    async fn lag(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }

    /// Waits until the index contains every change that was committed before the call.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` after the time `within`, or with the database's error.
    async fn wait_for_changes(&self, within: Duration) -> Result<(), StoreError> {
        let _ = within;
        Ok(())
    }
}

/// Number of faces that one statement of [`all_similar`] compares. Such a statement takes only a
/// small part of the statement timeout, even on a slow machine.
const BATCH: i64 = 50_000;

/// Compares with every face in scope. Sorts by an expression that no index contains, so that
/// Postgres cannot use an approximate index.
pub(crate) async fn nearest(pool: &PgPool, query: &Nearest<'_>) -> Result<Vec<Similar>, StoreError> {
    let mut sql =
        QueryBuilder::<Postgres>::new("select id, similarity::real from (select f.id, 1 - (f.embedding <=> ");
    sql.push_bind(halfvec(query.probe));
    sql.push(format!("::halfvec({})) as similarity from faces f where ", query.model.dimensions));
    query.scope.push(&mut sql, Access::All);
    sql.push(") scope where similarity >= ").push_bind(f64::from(query.threshold) - ROUNDING);
    sql.push(" order by similarity desc, id limit ").push_bind(query.limit);
    Ok(sql.build_query_as().fetch_all(pool).await?)
}

/// Returns the candidates that are in the scope of the query, with their similarities.
pub(crate) async fn check_candidates(
    pool: &PgPool,
    query: &Nearest<'_>,
    candidates: &[Uuid],
) -> Result<Vec<Similar>, StoreError> {
    let mut sql = QueryBuilder::<Postgres>::new("select f.id, (1 - (f.embedding <=> ");
    sql.push_bind(halfvec(query.probe));
    sql.push(format!("::halfvec({})))::real as similarity from faces f where ", query.model.dimensions));
    query.scope.push(&mut sql, Access::EachFace);
    sql.push(" and f.id = any(").push_bind(candidates).push(")");
    Ok(sql.build_query_as().fetch_all(pool).await?)
}

/// Compares each of the faces with every face in scope.
pub(crate) async fn neighbours(pool: &PgPool, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
    let mut tx = pool.begin().await?;
    sqlx::raw_sql("set local statement_timeout = 0").execute(&mut *tx).await?;
    let distance = distance_sql(query);
    // No index contains this expression, so the comparison is exact.
    let mut sql = neighbours_statement(query, &format!("({distance}) + 0, f.id"));
    let pairs = sql.build_query_as().fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(sort_pairs(pairs))
}

/// Returns the distance between the queried face `q` and the face `f` in SQL.
fn distance_sql(query: &Neighbours<'_>) -> String {
    let dimensions = query.model.dimensions;
    format!("f.embedding::halfvec({dimensions}) <=> q.embedding::halfvec({dimensions})")
}

/// Returns the statement that looks up neighbours, sorted by the expression `order`.
fn neighbours_statement(query: &Neighbours<'_>, order: &str) -> QueryBuilder<Postgres> {
    let distance = distance_sql(query);
    let mut sql = QueryBuilder::<Postgres>::new(format!(
        "select q.id as face, n.id as neighbour, n.similarity::real as similarity from faces q cross join lateral (
             select f.id, 1 - ({distance}) as similarity from faces f where f.id <> q.id and "
    ));
    query.scope.push(&mut sql, Access::All);
    sql.push(format!(" order by {order} limit ")).push_bind(query.limit);
    sql.push(") n where q.id = any(").push_bind(query.faces.to_vec());
    sql.push(") and n.similarity >= ").push_bind(f64::from(query.threshold));
    sql
}

fn sort_pairs(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_by_key(|pair| (pair.face, pair.neighbour));
    pairs
}

/// Returns the pairs whose faces belong to the collection and the model, whose neighbour is in
/// scope, and whose similarity reaches the threshold, with their similarities. Each face keeps its
/// most similar neighbours, up to the limit.
pub(crate) async fn check_pairs(
    pool: &PgPool,
    query: &Neighbours<'_>,
    candidates: &[(Uuid, Uuid)],
) -> Result<Vec<Pair>, StoreError> {
    let (faces, neighbours): (Vec<Uuid>, Vec<Uuid>) = candidates.iter().copied().unzip();
    let mut sql = QueryBuilder::<Postgres>::new(
        "select face, neighbour, similarity::real from (
             select face, neighbour, similarity, row_number() over (partition by face order by similarity desc, neighbour) as rank
             from (select q.id as face, f.id as neighbour, 1 - (q.embedding <=> f.embedding) as similarity from unnest(",
    );
    sql.push_bind(faces).push("::uuid[], ").push_bind(neighbours);
    sql.push(format!(
        "::uuid[]) as pair (face, neighbour) join faces q on q.id = pair.face join faces f on f.id = pair.neighbour
         where q.id <> f.id and q.model_id = {} and q.collection_id = ",
        query.scope.model_id
    ));
    sql.push_bind(query.scope.collection_id).push(" and ");
    query.scope.push(&mut sql, Access::EachFace);
    sql.push(") compared where similarity >= ").push_bind(f64::from(query.threshold));
    sql.push(") ranked where rank <= ").push_bind(query.limit).push(" order by face, neighbour");
    Ok(sql.build_query_as().fetch_all(pool).await?)
}

/// Compares with every face of the collection and model. Reads the faces in id order in batches, so
/// no statement takes long.
pub(crate) async fn all_similar(
    conn: &mut PgConnection,
    query: &AllSimilar<'_>,
) -> Result<Vec<Similar>, StoreError> {
    // The range matches the index on (collection_id, id), so the end of a batch is found without
    // reading rows.
    let end_sql = "select id from faces where collection_id = $1 and id > $2 order by id offset $3 limit 1";
    let sql = format!(
        "select id, similarity::real from (
             select f.id, 1 - (f.embedding <=> $3::halfvec({})) as similarity from faces f
             where f.model_id = $2 and f.collection_id = $1 and f.id > $5 and f.id <= $6) scope
         where similarity >= $4 order by id",
        query.model.dimensions
    );
    let probe = halfvec(query.probe);
    let (mut faces, mut after) = (Vec::new(), Uuid::nil());
    loop {
        let batch_end: Option<Uuid> = sqlx::query_scalar(end_sql)
            .bind(query.collection_id)
            .bind(after)
            .bind(BATCH - 1)
            .fetch_optional(&mut *conn)
            .await?;
        // Built at run time, because the probe's type contains the number of dimensions.
        let similar: Vec<Similar> = sqlx::query_as(AssertSqlSafe(sql.as_str()))
            .bind(query.collection_id)
            .bind(query.model.id)
            .bind(&probe)
            .bind(f64::from(query.threshold) - ROUNDING)
            .bind(after)
            .bind(batch_end.unwrap_or(Uuid::max()))
            .fetch_all(&mut *conn)
            .await?;
        faces.extend(similar);
        match batch_end {
            Some(last) => after = last,
            None => return Ok(faces),
        }
    }
}

#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct EmbeddingModel {
    /// Short id that faces refer to.
    pub id: i32,
    /// Identity of the model (`inference::EmbedderInfo::identity`).
    pub identity: String,
    /// File name.
    pub name: String,
    pub dimensions: i32,
}

/// Tolerance for comparing in double precision with a threshold in single precision. A face whose
/// similarity rounds up to the threshold must not be lost.
pub(crate) const ROUNDING: f64 = 1e-6;
