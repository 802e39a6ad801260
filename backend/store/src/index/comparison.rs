//! Comparisons with the embeddings in the rows, without an index.
use super::{AllSimilar, Nearest, Neighbours, Pair, Similar};
use crate::StoreError;
use crate::faces::embeddings::{ROUNDING, halfvec};
use crate::faces::scope::Access;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, QueryBuilder};
use uuid::Uuid;

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
pub(crate) async fn among(
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
    let distance = distance_of_pair(query);
    // No index contains this expression, so the comparison is exact.
    let mut sql = neighbours_by(query, &format!("({distance}) + 0, f.id"));
    let pairs = sql.build_query_as().fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(sorted(pairs))
}

/// Returns the distance between the queried face `q` and the face `f` in SQL.
pub(super) fn distance_of_pair(query: &Neighbours<'_>) -> String {
    let dimensions = query.model.dimensions;
    format!("f.embedding::halfvec({dimensions}) <=> q.embedding::halfvec({dimensions})")
}

/// Returns the statement that looks up neighbours, sorted by the expression `order`.
pub(super) fn neighbours_by(query: &Neighbours<'_>, order: &str) -> QueryBuilder<Postgres> {
    let distance = distance_of_pair(query);
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

pub(super) fn sorted(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_by_key(|pair| (pair.face, pair.neighbour));
    pairs
}

/// Returns the pairs whose faces belong to the collection and the model, whose neighbour is in
/// scope, and whose similarity reaches the threshold, with their similarities. Each face keeps its
/// most similar neighbours, up to the limit.
pub(crate) async fn among_pairs(
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
    let last = "select id from faces where collection_id = $1 and id > $2 order by id offset $3 limit 1";
    let sql = format!(
        "select id, similarity::real from (
             select f.id, 1 - (f.embedding <=> $3::halfvec({})) as similarity from faces f
             where f.model_id = $2 and f.collection_id = $1 and f.id > $5 and f.id <= $6) scope
         where similarity >= $4 order by id",
        query.model.dimensions
    );
    let probe = halfvec(query.probe);
    let (mut found, mut after) = (Vec::new(), Uuid::nil());
    loop {
        let batch_end: Option<Uuid> = sqlx::query_scalar(last)
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
        found.extend(similar);
        match batch_end {
            Some(last) => after = last,
            None => return Ok(found),
        }
    }
}
