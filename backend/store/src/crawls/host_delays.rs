//! Delays that crawls set for their own collection, between its requests to a host. Delays that
//! apply to every collection are in [`hosts`](crate::crawls::hosts).
use crate::crawls::hosts::{HORIZON_S, PERMIT_EXPIRES_S, PermitOutcome, duration, seconds};
use crate::{Store, StoreError};
use uuid::Uuid;

/// The delay that a crawl sets for its collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnDelay {
    pub collection: Uuid,
    /// Milliseconds from the end of one request to the start of the next.
    pub delay_ms: i64,
}

/// Requests the collection's permit. $1 collection, $2 host, $3 delay in seconds, $4 expiry in
/// seconds, $5 horizon in seconds. Returns null if the permit was granted, and otherwise the
/// seconds to wait. Waiting callers get different times, as in `hosts`.
const ACQUIRE: &str = "
    insert into host_delays as d (collection_id, host_key, next_at, busy_until)
    values ($1, $2, clock_timestamp(), clock_timestamp() + make_interval(secs => $4))
    on conflict (collection_id, host_key) do update set (busy_until, told_until) = (
        select case when earliest <= now then now + make_interval(secs => $4) else d.busy_until end,
               case when earliest > now then
                   case when d.told_until > now
                         and d.told_until + make_interval(secs => $3) <= earliest + make_interval(secs => $5)
                        then greatest(earliest, d.told_until + make_interval(secs => $3))
                        else earliest end
               end
        from (select clock_timestamp() as now) clock
        cross join lateral (
            -- While a request is running, its end is unknown: assume that it ends now.
            select case when d.busy_until > now then greatest(d.next_at, now + make_interval(secs => $3))
                        else d.next_at end as earliest) state)
    returning extract(epoch from told_until - clock_timestamp())::float8";

/// Ends the collection's permit. $1 collection, $2 host, $3 seconds until the next permit.
const FINISH: &str = "
    update host_delays
    set busy_until = null, next_at = greatest(next_at, clock_timestamp() + make_interval(secs => $3))
    where collection_id = $1 and host_key = $2";

impl Store {
    /// Requests a host permit like [`Store::acquire_host_permit`], after the collection's own
    /// longer delay. `delay_ms` is the delay that applies to every collection. Call
    /// [`Store::finish_own_request`] after `finish_request`.
    ///
    /// # Errors
    /// Fails with the errors of the database. The collection's permit then expires after a minute.
    pub async fn acquire_collection_permit(
        &self,
        host_key: &str,
        own: OwnDelay,
        delay_ms: i64,
    ) -> Result<PermitOutcome, StoreError> {
        let wait: Option<f64> = sqlx::query_scalar(ACQUIRE)
            .bind(own.collection)
            .bind(host_key)
            .bind(seconds(own.delay_ms))
            .bind(PERMIT_EXPIRES_S)
            .bind(HORIZON_S)
            .fetch_one(&self.pool)
            .await?;
        if let Some(wait) = wait {
            return Ok(PermitOutcome::Wait { wait: duration(wait) });
        }
        let outcome = self.acquire_host_permit(host_key, delay_ms).await?;
        if let PermitOutcome::Wait { wait } = outcome {
            self.end_collection_permit(host_key, own, wait.as_secs_f64()).await?;
        }
        Ok(outcome)
    }

    /// Ends a request of a collection. The collection's own delay begins now; its next request to
    /// the host waits until that delay is over.
    ///
    /// # Errors
    /// Fails with the errors of the database. The permit then expires within a minute.
    pub async fn finish_own_request(&self, host_key: &str, own: OwnDelay) -> Result<(), StoreError> {
        self.end_collection_permit(host_key, own, seconds(own.delay_ms)).await
    }

    async fn end_collection_permit(
        &self,
        host_key: &str,
        own: OwnDelay,
        next_s: f64,
    ) -> Result<(), StoreError> {
        sqlx::query(FINISH).bind(own.collection).bind(host_key).bind(next_s).execute(&self.pool).await?;
        Ok(())
    }

    /// Deletes delays that ended more than an hour ago, and returns their number.
    pub async fn prune_host_delays(&self) -> Result<u64, StoreError> {
        let pruned = sqlx::query(
            "delete from host_delays
             where greatest(next_at, busy_until) < clock_timestamp() - interval '1 hour'",
        )
        .execute(&self.pool)
        .await?;
        Ok(pruned.rows_affected())
    }
}
