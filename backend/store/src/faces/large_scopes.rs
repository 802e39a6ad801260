//! Remembers which scopes are large, so that not every search has to count the faces in its scope.
use crate::faces::scope::{FaceScope, Site};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use uuid::Uuid;

/// The set of faces that a search compares with, apart from `exclude_face`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) model: i32,
    pub(crate) collection: Uuid,
    pub(crate) crawl: Option<Uuid>,
    pub(crate) site: Option<Site>,
    /// `since` and `until` in whole minutes since 1970. Searches whose bounds differ only within a
    /// minute share an entry, because the number of faces in scope hardly differs.
    pub(crate) stored: (Option<i64>, Option<i64>),
    /// The minimum quality, as bits.
    pub(crate) quality: Option<u32>,
    pub(crate) with_subject: bool,
}

impl From<&FaceScope> for Scope {
    fn from(scope: &FaceScope) -> Self {
        let filter = &scope.filter;
        let minute = |time: OffsetDateTime| time.unix_timestamp().div_euclid(60);
        Self {
            model: scope.model_id,
            collection: scope.collection_id,
            crawl: filter.crawl_id,
            site: filter.site.clone(),
            stored: (filter.since.map(minute), filter.until.map(minute)),
            quality: filter.min_quality.map(f32::to_bits),
            with_subject: scope.with_subject,
        }
    }
}

/// Scopes known to have more faces than a bound, with the time of the count.
#[derive(Debug, Default)]
pub(crate) struct LargeScopes(Mutex<HashMap<Scope, (i64, Instant)>>);

impl LargeScopes {
    const MAX_AGE: Duration = Duration::from_secs(60);

    /// Returns whether the scope is known to have more than `bound` faces.
    pub(crate) fn contains(&self, scope: &Scope, bound: i64) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(scope).is_some_and(|(above, since)| bound <= *above && since.elapsed() < Self::MAX_AGE)
    }

    pub(crate) fn insert(&self, scope: Scope, bound: i64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, since)| since.elapsed() < Self::MAX_AGE);
        known.insert(scope, (bound, Instant::now()));
    }
}
