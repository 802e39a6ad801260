//! Limits the requests per minute of each key with a token bucket. The bucket holds the tokens of
//! one minute and refills evenly.
//!
//! Every process counts requests separately. A key can therefore use up to three times its rate if
//! a load balancer distributes its requests to three processes.
use crate::{ApiError, Code};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::keys::ApiKey;
use uuid::Uuid;

type Bucket = RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>;

/// Time after which a bucket without requests is full again, so that it can be removed.
const MINUTE: Duration = Duration::from_secs(60);

/// The buckets of keys that have a limit.
#[derive(Default)]
pub(crate) struct Rates(Mutex<HashMap<Uuid, Entry>>);

struct Entry {
    rate: NonZeroU32,
    bucket: Arc<Bucket>,
    used: Instant,
}

/// The remaining quota of a key, which is sent in the response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemainingQuota {
    rate: u32,
    remaining: u32,
}

impl Rates {
    /// Takes a token and returns the remaining quota. Returns `None` for a key without a limit.
    ///
    /// # Errors
    /// Fails with 429, which contains the time until the next token, and the quota for the headers.
    pub(crate) fn acquire(&self, key: &ApiKey) -> Result<Option<RemainingQuota>, (ApiError, RemainingQuota)> {
        let rate =
            key.requests_per_minute.and_then(|rate| u32::try_from(rate).ok()).and_then(NonZeroU32::new);
        let Some(rate) = rate else { return Ok(None) };
        let quota = |remaining| RemainingQuota { rate: rate.get(), remaining };
        match self.bucket(key.id, rate).check() {
            Ok(state) => Ok(Some(quota(state.remaining_burst_capacity()))),
            Err(not_until) => {
                let wait = not_until.wait_time_from(DefaultClock::default().now());
                let message = format!("the key has used all of its {rate} requests per minute");
                Err((ApiError::new(Code::RateLimited, message).retry_after(wait), quota(0)))
            }
        }
    }

    fn bucket(&self, id: Uuid, rate: NonZeroU32) -> Arc<Bucket> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(entry) = entries.get_mut(&id).filter(|entry| entry.rate == rate) {
            entry.used = now;
            return entry.bucket.clone();
        }
        entries.retain(|_, entry| entry.used.elapsed() < MINUTE);
        let bucket =
            RateLimiter::direct(Quota::per_minute(rate)).with_middleware::<StateInformationMiddleware>();
        let bucket = Arc::new(bucket);
        entries.insert(id, Entry { rate, bucket: bucket.clone(), used: now });
        bucket
    }
}

impl RemainingQuota {
    /// Writes `RateLimit` and `RateLimit-Policy` as draft-ietf-httpapi-ratelimit-headers defines
    /// them: `q` requests are allowed per `w` seconds, `r` requests remain, and the full quota is
    /// available again after `t` seconds.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        let Self { rate, remaining } = self;
        let full_in = (u64::from(rate - remaining.min(rate)) * MINUTE.as_secs()).div_ceil(u64::from(rate));
        let fields = [
            ("ratelimit-policy", format!("\"key\";q={rate};w={}", MINUTE.as_secs())),
            ("ratelimit", format!("\"key\";r={remaining};t={full_in}")),
        ];
        for (name, text) in fields {
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use time::OffsetDateTime;

    fn key(rate: Option<i32>) -> ApiKey {
        ApiKey {
            id: Uuid::now_v7(),
            collection_id: None,
            collection: None,
            name: String::new(),
            prefix: String::new(),
            scopes: Vec::new(),
            requests_per_minute: rate,
            created_at: OffsetDateTime::UNIX_EPOCH,
            last_used_at: None,
            expires_at: None,
            revoked_at: None,
            made_by: None,
        }
    }

    #[test]
    fn each_key_has_own_token_bucket() {
        let rates = Rates::default();
        let (first, second) = (key(Some(3)), key(Some(1)));
        let remaining = |key: &ApiKey| {
            rates.acquire(key).map(|quota| quota.unwrap().remaining).map_err(|(_, quota)| quota.remaining)
        };
        assert_eq!([remaining(&first), remaining(&first), remaining(&first)], [Ok(2), Ok(1), Ok(0)]);
        assert_eq!(remaining(&first), Err(0));
        assert_eq!([remaining(&second), remaining(&second)], [Ok(0), Err(0)]);
        assert_eq!(rates.acquire(&key(None)).map_err(|_| ()), Ok(None));
        // A new rate takes effect immediately.
        assert_eq!(remaining(&ApiKey { requests_per_minute: Some(5), ..first }), Ok(4));
    }

    #[test]
    fn rate_limit_headers_state_remaining_and_reset() {
        let mut headers = HeaderMap::new();
        RemainingQuota { rate: 120, remaining: 117 }.write(&mut headers);
        assert_eq!(headers["ratelimit-policy"], "\"key\";q=120;w=60");
        assert_eq!(headers["ratelimit"], "\"key\";r=117;t=2");
    }
}
