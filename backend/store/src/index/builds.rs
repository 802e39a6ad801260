//! Decides when the index of pgvector is built for the first time. Up to [`Config::exact_limit`]
//! faces, searches are exact and no face is added to an index. Building the index once is also much
//! cheaper than adding the same faces one by one, so a set that grows fast gets its index later. A
//! clustering of many faces builds it earlier; see [`FaceIndex::prepare_neighbours`].
//!
//! [`FaceIndex::prepare_neighbours`]: crate::index::FaceIndex::prepare_neighbours
//! [`Config::exact_limit`]: crate::Config::exact_limit
use crate::StoreError;
use crate::index::Pgvector;
use crate::index::pgvector::HnswIndex;
use sqlx::PgPool;
use std::collections::HashMap;

/// The index is not built while the number of faces grows by more than this part of
/// [`crate::Config::exact_limit`] between two calls of [`IndexBuilds::run_due`].
const FAST_GROWTH_DIVISOR: i64 = 20;
/// The index is built in any case when the number of faces exceeds this multiple of
/// [`crate::Config::exact_limit`]. With the default, an exact search takes about 0.2 s then.
const MAX_DEFERRED: i64 = 4;

/// Builds missing indexes of pgvector.
#[derive(Debug)]
pub struct IndexBuilds {
    pgvector: Pgvector,
    exact_limit: i64,
    /// The number of faces of each model without an index at the last call.
    face_counts: HashMap<i32, i64>,
}

impl IndexBuilds {
    /// `exact_limit` is [`crate::Config::exact_limit`].
    pub fn new(pool: PgPool, exact_limit: i64) -> Self {
        Self { pgvector: Pgvector::new(pool), exact_limit, face_counts: HashMap::new() }
    }

    /// Builds the index of each model that has more faces than [`crate::Config::exact_limit`] and
    /// no usable index, unless its number of faces grows fast or an operator has begun a bulk load.
    /// Drops what an interrupted build has left. Returns the names of the models whose indexes it
    /// built. May take hours.
    ///
    /// Call it regularly, for example every five minutes: it compares the number of faces with that
    /// of the last call. If several processes call it, one of them builds.
    ///
    /// # Errors
    /// Fails with the database's error. A later call repeats the build.
    pub async fn run_due(&mut self) -> Result<Vec<String>, StoreError> {
        let mut built = Vec::new();
        for index in self.pgvector.indexes().await? {
            if !index.complete && self.is_due(&index).await? {
                if self.pgvector.build_missing(index.model_id).await? {
                    built.push(index.model);
                }
            } else if index.building {
                self.pgvector.drop_interrupted(index.model_id).await?;
            }
        }
        Ok(built)
    }

    async fn is_due(&mut self, index: &HnswIndex) -> Result<bool, StoreError> {
        let limit = self.exact_limit;
        let max = limit.saturating_mul(MAX_DEFERRED);
        let faces = self.pgvector.count_faces(index.model_id, max.saturating_add(1)).await?;
        let previous = self.face_counts.insert(index.model_id, faces);
        if faces <= limit {
            return Ok(false);
        }
        if index.bulk_load {
            if previous.is_none() {
                tracing::warn!(
                    model = index.model,
                    "there is no search index; searches compare with every face in scope until \
                     `facecrawl index rebuild` has built it"
                );
            }
            return Ok(false);
        }
        let is_stable = previous.is_some_and(|previous| faces - previous <= limit / FAST_GROWTH_DIVISOR);
        Ok(is_stable || faces > max)
    }
}
