//! Per-host politeness shared by every process: who may send the next request, and when; robots.txt as last fetched.
use crate::{Store, StoreError};
use time::OffsetDateTime;

/// The answer to "may I send a request to this host now?".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn {
    /// Yes; call `finish_request` with the token when the answer's head has arrived or the request failed.
    Granted {
        /// Names the grant.
        token: i64,
    },
    /// No; ask again at that time.
    Wait {
        /// The earliest useful moment.
        until: OffsetDateTime,
    },
}

/// robots.txt as last fetched.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct RobotsRecord {
    /// HTTP status; 0 for a network error.
    pub status: i32,
    /// The body of a 2xx answer.
    pub body: Option<Vec<u8>>,
    /// When.
    pub fetched_at: OffsetDateTime,
}

impl Store {
    /// Asks for the host's next turn with at least `delay_ms` after the end of the previous request. With `delay_ms` 0 always granted
    /// (unless the host asked for a pause). One grant at a time; a grant that is not finished within 60 s (its holder died) expires.
    pub async fn take_turn(&self, _host_key: &str, _delay_ms: i64) -> Result<Turn, StoreError> {
        todo!()
    }
    /// Ends a grant: the next turn is `delay_ms` from now (database clock), or at `not_before` if that is later (Retry-After).
    pub async fn finish_request(
        &self,
        _host_key: &str,
        _token: i64,
        _delay_ms: i64,
        _not_before: Option<OffsetDateTime>,
    ) -> Result<(), StoreError> {
        todo!()
    }
    /// The cached robots.txt, whatever its age.
    pub async fn robots(&self, _host_key: &str) -> Result<Option<RobotsRecord>, StoreError> {
        todo!()
    }
    /// Stores robots.txt.
    pub async fn put_robots(&self, _host_key: &str, _record: &RobotsRecord) -> Result<(), StoreError> {
        todo!()
    }
}
