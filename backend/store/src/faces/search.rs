//! 1:N face search by similarity. Similarity is the cosine. Every query is limited to one
//! collection and one embedding model. The statements that compare embeddings are in `index`.
use crate::db::values::{check_embedding, floats};
use crate::faces::{Face, FaceSubject};
use crate::index::scope::{Access, Assignment, FaceFilter, FaceScope, Scope, images_of_small_site};
use crate::index::{EmbeddingModel, Nearest, NearestFaces, Similar};
use crate::store::Faces;
use crate::{StoreError, index};
use pgvector::HalfVector;
use sqlx::{Postgres, QueryBuilder};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct SearchQuery {
    pub collection_id: Uuid,
    /// The probe embedding, L2-normalised.
    pub embedding: Vec<f32>,
    pub model_id: i32,
    pub threshold: f32,
    pub limit: i64,
    /// Whether to compare with all faces instead of using the index.
    pub exact: bool,
    pub filter: FaceFilter,
    /// Excludes this face (for a search by `face_id`).
    pub exclude_face: Option<Uuid>,
    /// The condition on the subjects of the compared faces.
    pub assignment: Assignment,
}

#[derive(Clone, Debug)]
pub struct Hit {
    pub face: Face,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

/// Number of faces read first per requested subject, and maximum number of faces read.
const FACES_PER_SUBJECT: i64 = 4;
const MAX_FACES: i64 = 20_000;

impl Faces<'_> {
    /// Returns the name of the vector index, a value of `SEARCH_INDEX`.
    pub fn index_name(self) -> &'static str {
        self.0.index.name()
    }

    /// Returns the age of the oldest change of a face that the index lacks; zero if there is none.
    pub async fn index_lag(self) -> Result<Duration, StoreError> {
        self.0.index.lag().await
    }

    /// Waits until the index contains every change that was committed before the call.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` after the time `within`, or with the database's error.
    pub async fn wait_for_index(self, within: Duration) -> Result<(), StoreError> {
        self.0.index.wait_for_changes(within).await
    }

    /// Returns the most similar faces, best first, and whether the search was exact (`true`).
    ///
    /// Up to 50,000 faces in scope ([`crate::Config::exact_limit`]) the search is exact; above that
    /// it uses the index. If the index returns fewer faces than requested, or is not available, an
    /// exact search follows.
    ///
    /// # Errors
    /// Fails with `NotFound` if the model is unknown or the collection is outside the store's
    /// scope. Fails with `Invalid` if the embedding does not fit the model.
    pub async fn search(self, query: &SearchQuery) -> Result<(Vec<Hit>, bool), StoreError> {
        if self.0.collection_scope.is_some_and(|collection| collection != query.collection_id) {
            return Err(StoreError::not_found("collection", query.collection_id));
        }
        let model = self.0.models().get(query.model_id).await?;
        check_embedding(&query.embedding, &model.name, model.dimensions)?;
        let limit = query.limit.max(0);
        let scope = FaceScope {
            filter: query.filter.clone(),
            site_images: images_of_small_site(
                &self.0.pool,
                query.collection_id,
                &query.filter,
                self.0.exact_limit,
            )
            .await?,
            exclude_face: query.exclude_face,
            assignment: query.assignment,
            ..FaceScope::all(query.collection_id, query.model_id)
        };
        let exact = query.exact || !self.uses_index(&scope, limit).await?;
        let nearest = Nearest {
            scope: &scope,
            model: &model,
            probe: &query.embedding,
            threshold: query.threshold,
            limit,
            exact,
        };
        let mut result = self.nearest(&nearest).await?;
        if !result.exact && (result.faces.len() as i64) < limit {
            result = self.nearest(&Nearest { exact: true, ..nearest }).await?;
        }
        let NearestFaces { faces: mut similar, exact } = result;
        similar.retain(|face| face.similarity >= query.threshold);
        // The index returns rows in relaxed order. Ties are ordered by id, so that results are
        // reproducible.
        similar.sort_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id)));
        similar.truncate(usize::try_from(limit).unwrap_or(usize::MAX));

        let ids: Vec<Uuid> = similar.iter().map(|face| face.id).collect();
        let mut faces: HashMap<Uuid, Face> =
            self.by_ids(&ids).await?.into_iter().map(|face| (face.id, face)).collect();
        let hits = similar
            .into_iter()
            .filter_map(|Similar { id, similarity }| Some(Hit { face: faces.remove(&id)?, similarity }))
            .collect();
        Ok((hits, exact))
    }

    /// Returns the best face of each subject, best first, and whether the result is exact. Returns
    /// at most `query.limit` subjects. Omits faces without a subject. The score of a subject is the
    /// similarity of its best face.
    ///
    /// The result is not exact if the [`MAX_FACES`] most similar faces belong to fewer subjects:
    /// subjects may be missing then, even with [`SearchQuery::exact`].
    ///
    /// # Errors
    /// Fails with the errors of [`Self::search`].
    pub async fn search_people(
        self,
        query: &SearchQuery,
    ) -> Result<(Vec<(Hit, FaceSubject)>, bool), StoreError> {
        let limit = usize::try_from(query.limit).unwrap_or(0);
        // Many faces can belong to the same person. Read more faces until there are enough people
        // or no more faces.
        let mut faces = query.limit.max(1).saturating_mul(FACES_PER_SUBJECT);
        let assignment = match query.assignment {
            Assignment::Any => Assignment::Subject,
            assignment => assignment,
        };
        loop {
            let step = SearchQuery { limit: faces, assignment, ..query.clone() };
            let (hits, exact) = self.search(&step).await?;
            let has_all = (hits.len() as i64) < faces;
            let ids: Vec<Uuid> = hits.iter().map(|hit| hit.face.id).collect();
            let mut subjects = self.0.people().of_faces(&ids).await?;
            let mut subject_ids = HashSet::new();
            let mut best: Vec<(Hit, FaceSubject)> = hits
                .into_iter()
                .filter_map(|hit| subjects.remove(&hit.face.id).map(|subject| (hit, subject)))
                .filter(|(_, subject)| subject_ids.insert(subject.subject_id))
                .collect();
            let is_complete = has_all || best.len() >= limit;
            if is_complete || faces >= MAX_FACES {
                best.truncate(limit);
                return Ok((best, exact && is_complete));
            }
            faces = faces.saturating_mul(4).min(MAX_FACES);
        }
    }

    /// Returns whether a search for this number of faces uses the index: more faces are in scope
    /// than [`crate::Config::exact_limit`].
    pub async fn uses_index(self, scope: &FaceScope, limit: i64) -> Result<bool, StoreError> {
        self.scope_exceeds(scope, self.0.exact_limit.max(limit)).await
    }

    /// Returns `true` if more than `bound` faces are in scope. Stops counting there. Counting can
    /// take longer than the search itself, so `true` is cached for a minute. If it becomes
    /// outdated, the index search returns too few faces and the exact search runs.
    async fn scope_exceeds(self, scope: &FaceScope, bound: i64) -> Result<bool, StoreError> {
        let key = Scope::from(scope);
        if self.0.large_scopes.contains(&key, bound) {
            return Ok(true);
        }
        let mut sql = QueryBuilder::<Postgres>::new("select count(*) from (select 1 from faces f where ");
        scope.push(&mut sql, Access::All);
        sql.push(" limit ").push_bind(bound.saturating_add(1)).push(") scope");
        let count: i64 = sql.build_query_scalar().fetch_one(&self.0.pool).await?;
        if count > bound {
            self.0.large_scopes.insert(key, bound);
        }
        Ok(count > bound)
    }

    /// Queries the index. If it is not available, compares with every face in scope.
    async fn nearest(self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError> {
        match self.0.index.nearest(query).await {
            Err(StoreError::IndexUnavailable(reason)) => {
                let index = self.0.index.name();
                tracing::warn!(index, reason, "vector index not available; comparing all faces in scope");
                Ok(NearestFaces { faces: index::nearest(&self.0.pool, query).await?, exact: true })
            }
            result => result,
        }
    }
}

/// Similarity of a probe to the stored face from which it was made. Two images of one person often
/// have about this similarity; see `docs/reference/ACCURACY.md`.
const PROBE_SIMILARITY: f32 = 0.7;
/// Number of other faces that are added to a face as noise, each with a random sign. Embeddings do
/// not vary equally in all directions. Noise made of other embeddings has the same directions.
const NOISE_TERMS: usize = 8;
/// Number of rows to sample for each probe. `tablesample system` reads whole pages, whose faces
/// were stored together. With many pages, the probes are more independent.
const ROWS_PER_PROBE: f64 = 50.0;

#[derive(Clone, Debug)]
pub struct Probe {
    /// The collection of the stored face from which the probe was made.
    pub collection_id: Uuid,
    /// The embedding, L2-normalised.
    pub embedding: Vec<f32>,
}

impl Faces<'_> {
    /// Returns probes made from random stored faces of the model, at most `count`. There are fewer
    /// if the model has fewer faces. The probe of a model's only face equals that face.
    pub async fn probes(self, model: &EmbeddingModel, count: usize) -> Result<Vec<Probe>, StoreError> {
        let rows: f32 = sqlx::query_scalar("select reltuples from pg_class where oid = 'faces'::regclass")
            .fetch_one(&self.0.pool)
            .await?;
        // More faces than probes, so that each probe has enough other faces for its noise.
        let sample_size = count + NOISE_TERMS;
        // Without statistics, the number of rows is -1.
        let mut percent = match rows {
            1.0.. => (100.0 * ROWS_PER_PROBE * count as f64 / f64::from(rows)).min(100.0),
            _ => 100.0,
        };
        loop {
            let sample: Vec<(Uuid, HalfVector)> = sqlx::query_as(
                "select collection_id, embedding from faces tablesample system ($1)
                 where model_id = $2 order by random() limit $3",
            )
            .bind(percent)
            .bind(model.id)
            .bind(i64::try_from(sample_size).unwrap_or(i64::MAX))
            .fetch_all(&self.0.pool)
            .await?;
            if sample.len() >= sample_size || percent >= 100.0 {
                let mut probes = with_noise(&sample);
                probes.truncate(count);
                return Ok(probes);
            }
            percent = (percent * 10.0).min(100.0);
        }
    }
}

/// Returns a probe near each face. The noise comes from the other faces.
fn with_noise(sample: &[(Uuid, HalfVector)]) -> Vec<Probe> {
    let faces: Vec<Vec<f32>> = sample.iter().map(|(_, embedding)| normalised(&floats(embedding))).collect();
    let probe = |(index, (collection_id, _)): (usize, &(Uuid, HalfVector))| {
        let face = &faces[index];
        let mut noise = vec![0.0; face.len()];
        for offset in 1..=NOISE_TERMS.min(faces.len() - 1) {
            let sign = if rand::random() { 1.0 } else { -1.0 };
            let other_face = &faces[(index + offset) % faces.len()];
            noise.iter_mut().zip(other_face).for_each(|(sum, component)| *sum += sign * component);
        }
        // The part of the noise that is orthogonal to the face does not change their similarity.
        let projection = dot(&noise, face);
        noise.iter_mut().zip(face).for_each(|(sum, component)| *sum -= projection * component);
        let noise = normalised(&noise);
        let (scale, rest) = (PROBE_SIMILARITY, (1.0 - PROBE_SIMILARITY * PROBE_SIMILARITY).sqrt());
        let probe: Vec<f32> = face.iter().zip(&noise).map(|(a, b)| scale * a + rest * b).collect();
        Probe { collection_id: *collection_id, embedding: normalised(&probe) }
    };
    sample.iter().enumerate().map(probe).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Returns the vector with a length of 1, or unchanged if it is zero.
fn normalised(vector: &[f32]) -> Vec<f32> {
    let length = dot(vector, vector).sqrt();
    match length > 0.0 {
        true => vector.iter().map(|component| component / length).collect(),
        false => vector.to_vec(),
    }
}
