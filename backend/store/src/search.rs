//! 1:N face search by similarity.
//!
//! Similarity is the cosine: 1 minus pgvector's cosine distance. Every query is limited to one
//! collection and one embedding model. The statement contains the model's id as a literal, because
//! the planner uses a partial index only if it can see the index's condition.
use crate::faces::{Face, check_embedding, halfvec, push_scope};
use crate::large_scopes::Scope;
use crate::models::EmbeddingModel;
use crate::subject_faces::FaceSubject;
use crate::{Store, StoreError};
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// The parameters of a search.
#[derive(Clone, Debug)]
pub struct SearchQuery {
    /// The collection.
    pub collection_id: Uuid,
    /// The probe embedding, L2-normalised.
    pub embedding: Vec<f32>,
    /// Only faces of this model.
    pub model_id: i32,
    /// Minimum cosine similarity.
    pub threshold: f32,
    /// Maximum number of results.
    pub limit: i64,
    /// Compare with all faces instead of using the index.
    pub exact: bool,
    /// Only faces in images found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// Minimum overall quality.
    pub min_quality: Option<f32>,
    /// Excludes this face (for a search by `face_id`).
    pub exclude_face: Option<Uuid>,
    /// Only faces that belong to a subject.
    pub with_subject: bool,
}

/// A face and its similarity to the probe.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The face.
    pub face: Face,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

/// Number of candidates per result that the index search keeps (`hnsw.ef_search`), within the
/// bounds below (pgvector allows 1 to 1000).
const EF_PER_RESULT: i64 = 4;
const EF_SEARCH: std::ops::RangeInclusive<i64> = 100..=1000;
/// Maximum number of index entries that a filtered search visits. If this is not enough, the search
/// is repeated as an exact search.
const MAX_SCAN_TUPLES: i64 = 100_000;
/// Number of faces read first per requested subject, and maximum number of faces read.
const FACES_PER_SUBJECT: i64 = 4;
const MAX_FACES: i64 = 20_000;

impl Store {
    /// Returns the most similar faces, best first, and whether the search was exact (`true`).
    ///
    /// Up to 50,000 faces in scope ([`crate::Config::exact_limit`]) the search is exact; above that
    /// it uses HNSW with an iterative scan. If the index returns fewer faces than requested, an
    /// exact search follows.
    ///
    /// # Errors
    /// Fails with `NotFound` if the model is unknown or the collection is outside the store's
    /// scope. Fails with `Invalid` if the embedding does not fit the model.
    pub async fn search(&self, query: &SearchQuery) -> Result<(Vec<Hit>, bool), StoreError> {
        if self.collection_scope.is_some_and(|collection| collection != query.collection_id) {
            return Err(StoreError::not_found("collection", query.collection_id));
        }
        let model = self.model(query.model_id).await?;
        check_embedding(&query.embedding, &model.name, model.dimensions)?;
        let limit = query.limit.max(0);
        let mut found = None;
        if !query.exact && self.scope_exceeds(query, self.exact_limit.max(limit)).await? {
            let rows = self.search_index(query, &model, limit).await?;
            found = (rows.len() as i64 == limit).then_some(rows);
        }
        let exact = found.is_none();
        let mut rows = match found {
            Some(rows) => rows,
            None => self.search_all(query, &model, limit).await?,
        };
        rows.retain(|(_, similarity)| *similarity >= query.threshold);
        // The index returns rows in relaxed order. Ties are ordered by id, so that results are
        // reproducible.
        rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));

        let ids: Vec<Uuid> = rows.iter().map(|(id, _)| *id).collect();
        let mut faces: HashMap<Uuid, Face> =
            self.faces_by_id(&ids).await?.into_iter().map(|face| (face.id, face)).collect();
        let hits = rows
            .into_iter()
            .filter_map(|(id, similarity)| Some(Hit { face: faces.remove(&id)?, similarity }))
            .collect();
        Ok((hits, exact))
    }

    /// Returns the best face of each subject, best first, and whether every face in scope was
    /// compared.
    ///
    /// Returns at most `query.limit` subjects. Omits faces without a subject. The score of a
    /// subject is the similarity of its best face.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::search`].
    pub async fn search_subjects(
        &self,
        query: &SearchQuery,
    ) -> Result<(Vec<(Hit, FaceSubject)>, bool), StoreError> {
        let limit = usize::try_from(query.limit).unwrap_or(0);
        // Many faces can belong to the same person. Read more faces until there are enough people
        // or no more faces.
        let mut faces = query.limit.max(1).saturating_mul(FACES_PER_SUBJECT);
        loop {
            let step = SearchQuery { limit: faces, with_subject: true, ..query.clone() };
            let (hits, exact) = self.search(&step).await?;
            let all = (hits.len() as i64) < faces || faces >= MAX_FACES;
            let ids: Vec<Uuid> = hits.iter().map(|hit| hit.face.id).collect();
            let mut subjects = self.face_subjects(&ids).await?;
            let mut seen = HashSet::new();
            let mut best: Vec<(Hit, FaceSubject)> = hits
                .into_iter()
                .filter_map(|hit| subjects.remove(&hit.face.id).map(|subject| (hit, subject)))
                .filter(|(_, subject)| seen.insert(subject.subject_id))
                .collect();
            if all || best.len() >= limit {
                best.truncate(limit);
                return Ok((best, exact));
            }
            faces = faces.saturating_mul(4).min(MAX_FACES);
        }
    }

    /// Returns `true` if more than `bound` faces are in scope. Counts no further than that.
    ///
    /// Counting can take longer than the search itself, so a `true` is cached for a minute. If it
    /// becomes outdated, the index search returns too few faces and the exact search runs.
    async fn scope_exceeds(&self, query: &SearchQuery, bound: i64) -> Result<bool, StoreError> {
        let scope = scope(query);
        if self.large_scopes.contains(&scope, bound) {
            return Ok(true);
        }
        let mut sql = QueryBuilder::<Postgres>::new("select count(*) from (select 1 from faces f where ");
        push_filters(&mut sql, query);
        sql.push(" limit ").push_bind(bound.saturating_add(1)).push(") scope");
        let count: i64 = sql.build_query_scalar().fetch_one(&self.pool).await?;
        if count > bound {
            self.large_scopes.insert(scope, bound);
        }
        Ok(count > bound)
    }

    /// Compares with every face in scope. The order is by an expression that no index has.
    async fn search_all(
        &self,
        query: &SearchQuery,
        model: &EmbeddingModel,
        limit: i64,
    ) -> Result<Vec<(Uuid, f32)>, StoreError> {
        let mut sql = QueryBuilder::<Postgres>::new(
            "select id, similarity::real from (select f.id, 1 - (f.embedding <=> ",
        );
        sql.push_bind(halfvec(&query.embedding));
        sql.push(format!("::halfvec({})) as similarity from faces f where ", model.dimensions));
        push_filters(&mut sql, query);
        sql.push(") scope where similarity >= ").push_bind(f64::from(query.threshold) - ROUNDING);
        sql.push(" order by similarity desc, id limit ").push_bind(limit);
        Ok(sql.build_query_as().fetch_all(&self.pool).await?)
    }

    /// Searches the model's HNSW index. The scan continues until enough results pass the filters or
    /// the scan limit is reached.
    async fn search_index(
        &self,
        query: &SearchQuery,
        model: &EmbeddingModel,
        limit: i64,
    ) -> Result<Vec<(Uuid, f32)>, StoreError> {
        let ef_search = limit.saturating_mul(EF_PER_RESULT).clamp(*EF_SEARCH.start(), *EF_SEARCH.end());
        let mut tx = self.begin().await?;
        // Sorting is disabled, so that the planner must use an index that returns rows in this
        // order.
        let settings = format!(
            "set local hnsw.iterative_scan = 'relaxed_order'; set local hnsw.ef_search = {ef_search};
             set local hnsw.max_scan_tuples = {MAX_SCAN_TUPLES}; set local enable_sort = off"
        );
        sqlx::raw_sql(AssertSqlSafe(settings)).execute(tx.conn()).await?;
        let distance = format!("f.embedding::halfvec({0}) <=> ", model.dimensions);
        let mut sql = QueryBuilder::<Postgres>::new("select f.id, (1 - (");
        sql.push(&distance).push_bind(halfvec(&query.embedding));
        sql.push("))::real from faces f where ");
        push_filters(&mut sql, query);
        sql.push(" order by ").push(&distance).push_bind(halfvec(&query.embedding));
        sql.push(" limit ").push_bind(limit);
        let rows = sql.build_query_as().fetch_all(tx.conn()).await?;
        tx.commit().await?;
        Ok(rows)
    }
}

/// Returns the scope of a search.
fn scope(query: &SearchQuery) -> Scope {
    Scope {
        model: query.model_id,
        collection: query.collection_id,
        crawl: query.crawl_id,
        quality: query.min_quality.map(f32::to_bits),
        with_subject: query.with_subject,
    }
}

/// Tolerance for comparing in double precision with a threshold in single precision. A face whose
/// similarity rounds up to the threshold must not be lost.
pub(crate) const ROUNDING: f64 = 1e-6;

/// Adds the conditions on model and collection and the query's filters. `f` is the face.
fn push_filters(sql: &mut QueryBuilder<Postgres>, query: &SearchQuery) {
    sql.push(format!("f.model_id = {} and f.collection_id = ", query.model_id))
        .push_bind(query.collection_id);
    push_scope(sql, query.crawl_id, query.min_quality);
    if let Some(face) = query.exclude_face {
        sql.push(" and f.id <> ").push_bind(face);
    }
    if query.with_subject {
        sql.push(" and exists (select 1 from subject_faces sf where sf.face_id = f.id)");
    }
}
