//! Per-host politeness shared by all processes: who may send the next request and when, and the
//! cached robots.txt.
//!
//! The basic rule is the permit. A host has at most one permit at a time. The next one is granted
//! no earlier than a delay after the previous request ended. The delay is the longer of those that
//! the previous and the next caller request. The other rules only determine when waiting callers
//! try again. All times are read from the database's clock while the host's row is locked.
//!
//! Retries of waiting callers are spread over time, so that a thousand callers do not all retry at
//! the same moment. Each caller is assigned a time one delay after that of the previous caller
//! (`cursor_at`), within a horizon of one minute; then the times start again from the beginning. So
//! callers that never retry delay the host by at most a minute. Requests take time in addition to
//! the delays, so the actual times gradually fall behind the assigned times. The time of the next
//! permit is known exactly while no permit is held. The first caller that requests a permit then is
//! assigned that time (`promised_at`).
use crate::StoreError;
use crate::store::Hosts;
use std::time::Duration;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PermitDecision {
    /// A permit. Call `finish_request` with the token when the response head has arrived or the
    /// request failed.
    Granted {
        /// Identifies the permit.
        token: i64,
    },
    /// No permit was granted. Try again after the given wait.
    Wait {
        /// Time until the next attempt. It is a duration, because the clocks of the caller and the
        /// database may differ.
        wait: Duration,
    },
}

impl PermitDecision {
    /// Returns `Wait` if there is a wait in seconds, otherwise a permit.
    fn from_row(token: i64, wait: Option<f64>) -> Self {
        wait.map_or(Self::Granted { token }, |wait| Self::Wait { wait: to_duration(wait) })
    }
}

/// The pace of a host, derived from its latest responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct HostPace {
    /// The delay derived from its responses, in milliseconds.
    pub pace_ms: i32,
    /// Number of consecutive 429 and 503 responses.
    pub refusals: i32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RobotsRecord {
    /// HTTP status; 0 for a network error.
    pub status: i32,
    /// The body of a 2xx response.
    pub body: Option<Vec<u8>>,
    /// Time since it was fetched.
    pub age: Duration,
}

/// Seconds after which an unfinished permit expires.
pub(crate) const PERMIT_EXPIRES_S: f64 = 60.0;
/// Seconds over which waiting callers are spread.
pub(crate) const HORIZON_S: f64 = 60.0;
/// The token of permits without a delay, which exclude no others and need no release.
const UNDELAYED_TOKEN: i64 = 0;

/// Requests a permit. $1 host, $2 delay in seconds, $3 expiry in seconds, $4 horizon in seconds. A
/// new host gets a permit immediately. The row is locked before the second half reads the row and
/// the clock. Returns the token, and the seconds to wait (null if the permit was granted).
const ACQUIRE_PERMIT: &str = "
    insert into hosts as h (host_key, last_token, grant_token, granted_at)
    -- Starts at the current time: hosts are pruned, but a token must not be issued twice.
    values ($1, extract(epoch from now())::bigint, extract(epoch from now())::bigint, clock_timestamp())
    on conflict (host_key) do update set
        (last_token, grant_token, granted_at, cursor_at, promised_at, told_until) = (
            select case when granted then h.last_token + 1 else h.last_token end,
                   case when granted then h.last_token + 1 else h.grant_token end,
                   case when granted then now else h.granted_at end,
                   case when granted or promise then h.cursor_at else slot end,
                   case when promise then ready_at else h.promised_at end,
                   case when granted then null when promise then ready_at else slot end
            from (select clock_timestamp() as now) clock
            cross join lateral (
                select h.grant_token is not null and h.granted_at > now - make_interval(secs => $3) as busy,
                       greatest(h.next_at, h.not_before, h.finished_at + make_interval(secs => $2), now) as ready_at) state
            cross join lateral (
                select not busy and ready_at <= now as granted,
                       not busy and ready_at > now and ready_at is distinct from h.promised_at as promise,
                       -- While a request is running, its end is unknown: assume that it ends now.
                       case when busy then greatest(ready_at, now + make_interval(secs => $2)) else ready_at end as earliest
                ) decision
            cross join lateral (
                select case when h.cursor_at > now
                             and h.cursor_at + make_interval(secs => $2) <= earliest + make_interval(secs => $4)
                            then greatest(earliest, h.cursor_at + make_interval(secs => $2))
                            else earliest end as slot) spread)
    returning last_token, extract(epoch from told_until - clock_timestamp())::float8";

/// Ends a permit. $1 host, $2 token, $3 delay and $4 pause in seconds, $5 and $6 the pace (null:
/// unchanged). A late call with an expired permit still updates the time of the last request, but
/// it cannot end another caller's permit.
const FINISH_REQUEST: &str = "
    insert into hosts as h (host_key, next_at, not_before, finished_at, pace_ms, refusals)
    select $1, now + make_interval(secs => $3), now + make_interval(secs => $4), now, coalesce($5, 0), coalesce($6, 0)
    -- Reads the clock once, so that all times of this row are consistent.
    from (select clock_timestamp() as now) clock
    on conflict (host_key) do update set
        finished_at = greatest(h.finished_at, excluded.finished_at),
        pace_ms = coalesce($5, h.pace_ms),
        refusals = coalesce($6, h.refusals),
        grant_token = case when h.grant_token = $2 then null else h.grant_token end,
        granted_at = case when h.grant_token = $2 then null else h.granted_at end,
        next_at = greatest(h.next_at, excluded.next_at),
        not_before = greatest(h.not_before, excluded.not_before)";

impl Hosts<'_> {
    /// Requests a permit for the host, at least `delay_ms` after the end of the previous request.
    ///
    /// With `delay_ms` 0, the permit is always granted, unless the host requested a pause. A host
    /// has one permit at a time. A permit that is not finished within 60 s expires, because its
    /// holder has presumably died.
    pub async fn acquire_permit(self, host_key: &str, delay_ms: i64) -> Result<PermitDecision, StoreError> {
        if delay_ms <= 0 {
            return self.acquire_undelayed_permit(host_key).await;
        }
        let (token, wait): (i64, Option<f64>) = sqlx::query_as(ACQUIRE_PERMIT)
            .bind(host_key)
            .bind(to_seconds(delay_ms))
            .bind(PERMIT_EXPIRES_S)
            .bind(HORIZON_S)
            .fetch_one(&self.0.pool)
            .await?;
        Ok(PermitDecision::from_row(token, wait))
    }

    /// Grants a permit without a delay. Such permits exclude no other permits, so no row is
    /// written. Only a pause is respected.
    async fn acquire_undelayed_permit(self, host_key: &str) -> Result<PermitDecision, StoreError> {
        let pause: Option<f64> = sqlx::query_scalar(
            "select extract(epoch from not_before - clock_timestamp())::float8 from hosts
             where host_key = $1 and not_before > clock_timestamp()",
        )
        .bind(host_key)
        .fetch_optional(&self.0.pool)
        .await?;
        Ok(PermitDecision::from_row(UNDELAYED_TOKEN, pause))
    }

    /// Returns the host's pace. A host that was never requested has the default pace.
    pub async fn pace(self, host_key: &str) -> Result<HostPace, StoreError> {
        let row = sqlx::query_as("select pace_ms, refusals from hosts where host_key = $1")
            .bind(host_key)
            .fetch_optional(&self.0.pool)
            .await?;
        Ok(row.unwrap_or_default())
    }

    /// Ends a permit. The next one is granted after `delay_ms`, or after `pause` if that is longer
    /// (Retry-After). `pace` is the host's new pace; `None` leaves it unchanged.
    pub async fn finish_request(
        self,
        host_key: &str,
        token: i64,
        delay_ms: i64,
        pause: Option<Duration>,
        pace: Option<HostPace>,
    ) -> Result<(), StoreError> {
        if token == UNDELAYED_TOKEN && delay_ms <= 0 && pause.is_none() && pace.is_none() {
            return Ok(());
        }
        sqlx::query(FINISH_REQUEST)
            .bind(host_key)
            .bind(token)
            .bind(to_seconds(delay_ms))
            .bind(pause.map(|pause| pause.as_secs_f64()))
            .bind(pace.map(|pace| pace.pace_ms))
            .bind(pace.map(|pace| pace.refusals))
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }

    /// Returns the cached robots.txt, regardless of its age.
    pub async fn robots(self, host_key: &str) -> Result<Option<RobotsRecord>, StoreError> {
        let row: Option<(i32, Option<Vec<u8>>, f64)> = sqlx::query_as(
            "select robots_status, robots_body, extract(epoch from clock_timestamp() - robots_fetched_at)::float8
             from hosts where host_key = $1 and robots_fetched_at is not null",
        )
        .bind(host_key)
        .fetch_optional(&self.0.pool)
        .await?;
        Ok(row.map(|(status, body, age)| RobotsRecord { status, body, age: to_duration(age) }))
    }

    /// Claims the fetch of robots.txt, for `lease` or until [`Self::put_robots`] or
    /// [`Self::release_robots`]. Returns `false` if another caller holds the claim. So if two
    /// processes find that robots.txt is missing, only one of them fetches it.
    pub async fn claim_robots(self, host_key: &str, lease: Duration) -> Result<bool, StoreError> {
        let claimed = sqlx::query(
            "insert into hosts as h (host_key, robots_asked_until) values ($1, clock_timestamp() + make_interval(secs => $2))
             on conflict (host_key) do update set robots_asked_until = excluded.robots_asked_until
             where h.robots_asked_until is null or h.robots_asked_until < clock_timestamp()",
        )
        .bind(host_key)
        .bind(lease.as_secs_f64())
        .execute(&self.0.pool)
        .await?;
        Ok(claimed.rows_affected() == 1)
    }

    /// Releases the claim of [`Self::claim_robots`] without a result.
    pub async fn release_robots(self, host_key: &str) -> Result<(), StoreError> {
        sqlx::query("update hosts set robots_asked_until = null where host_key = $1")
            .bind(host_key)
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }

    /// Stores robots.txt, unless a later fetch is stored already. The current time is recorded as
    /// the end of a request, even if it had no host permit.
    pub async fn put_robots(self, host_key: &str, record: &RobotsRecord) -> Result<(), StoreError> {
        sqlx::query(
            "insert into hosts as h (host_key, robots_status, robots_body, robots_fetched_at, finished_at)
             select $1, $2, $3, now - make_interval(secs => $4), now
             from (select clock_timestamp() as now) clock
             on conflict (host_key) do update set robots_status = $2, robots_body = $3,
                 robots_fetched_at = excluded.robots_fetched_at, robots_asked_until = null,
                 finished_at = excluded.finished_at
             where h.robots_fetched_at is null or h.robots_fetched_at <= excluded.robots_fetched_at",
        )
        .bind(host_key)
        .bind(record.status)
        .bind(&record.body)
        .bind(record.age.as_secs_f64())
        .execute(&self.0.pool)
        .await?;
        Ok(())
    }

    /// Deletes hosts that received no request, and for which no permit was requested, during
    /// `idle_time`. Their robots.txt and pace are outdated.
    ///
    /// Reads up to [`PRUNE_BATCH`] hosts after `after` in key order. Returns the last key read
    /// (`None` at the end) and the number of deleted hosts.
    pub async fn prune(
        self,
        after: Option<&str>,
        idle_time: Duration,
    ) -> Result<(Option<String>, u64), StoreError> {
        let (hosts_read, last, pruned): (i64, Option<String>, i64) = sqlx::query_as(PRUNE)
            .bind(after.unwrap_or_default())
            .bind(idle_time.as_secs_f64())
            .bind(PRUNE_BATCH)
            .fetch_one(&self.0.pool)
            .await?;
        Ok((last.filter(|_| hosts_read == PRUNE_BATCH), pruned.unsigned_abs()))
    }
}

/// Maximum number of hosts that one call of `store.hosts().prune` reads.
pub const PRUNE_BATCH: i64 = 5_000;

/// Reads along the primary key, because an index on the times would be written with every request.
/// A host with a current request is locked and therefore not deleted.
const PRUNE: &str = "
    with scanned as materialized (
        select host_key from hosts where host_key > $1 order by host_key limit $3
    ), idle as materialized (
        select h.host_key from scanned l cross join lateral (
            select host_key from hosts
            where host_key = l.host_key
              and coalesce(greatest(finished_at, granted_at, not_before, told_until, robots_asked_until), '-infinity')
                  < now() - make_interval(secs => $2)
            for update skip locked
        ) h
    ), deleted as (
        delete from hosts where host_key = any(array(select host_key from idle)) returning 1
    )
    select (select count(*) from scanned), (select max(host_key) from scanned), (select count(*) from deleted)";

/// Maximum delay that is respected: one hour.
const MAX_DELAY_MS: i64 = 3_600_000;

/// Converts seconds that the database computed. Returns zero for a negative number: the time passed
/// while the statement ran.
pub(crate) fn to_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

pub(crate) fn to_seconds(delay_ms: i64) -> f64 {
    delay_ms.clamp(0, MAX_DELAY_MS) as f64 / 1000.0
}

/// The delay that a crawl sets for its collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrawlDelay {
    pub collection: Uuid,
    /// Milliseconds from the end of one request to the start of the next.
    pub delay_ms: i64,
}

/// Requests the collection's permit. $1 collection, $2 host, $3 delay in seconds, $4 expiry in
/// seconds, $5 horizon in seconds. Returns null if the permit was granted, and otherwise the
/// seconds to wait. Waiting callers get different times, as in `hosts`.
const ACQUIRE_COLLECTION_PERMIT: &str = "
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

/// Ends a collection's permit. $1 collection, $2 host, $3 seconds until the next permit.
const END_COLLECTION_PERMIT: &str = "
    update host_delays
    set busy_until = null, next_at = greatest(next_at, clock_timestamp() + make_interval(secs => $3))
    where collection_id = $1 and host_key = $2";

impl Hosts<'_> {
    /// Requests a host permit like `store.hosts().acquire_permit`, after the collection's own
    /// longer delay. `delay_ms` is the delay that applies to every collection. When the request has
    /// ended, call `finish_request` and then `finish_collection_request`.
    ///
    /// # Errors
    /// Fails with the errors of the database. The collection's permit then expires after a minute.
    pub async fn acquire_collection_permit(
        self,
        host_key: &str,
        delay: CrawlDelay,
        delay_ms: i64,
    ) -> Result<PermitDecision, StoreError> {
        let wait: Option<f64> = sqlx::query_scalar(ACQUIRE_COLLECTION_PERMIT)
            .bind(delay.collection)
            .bind(host_key)
            .bind(to_seconds(delay.delay_ms))
            .bind(PERMIT_EXPIRES_S)
            .bind(HORIZON_S)
            .fetch_one(&self.0.pool)
            .await?;
        if let Some(wait) = wait {
            return Ok(PermitDecision::Wait { wait: to_duration(wait) });
        }
        let outcome = self.acquire_permit(host_key, delay_ms).await?;
        if let PermitDecision::Wait { wait } = outcome {
            self.end_collection_permit(host_key, delay, wait.as_secs_f64()).await?;
        }
        Ok(outcome)
    }

    /// Ends a request of a collection. The next request of the collection to this host waits until
    /// the collection's own delay is over.
    ///
    /// # Errors
    /// Fails with the errors of the database. The permit then expires within a minute.
    pub async fn finish_collection_request(
        self,
        host_key: &str,
        delay: CrawlDelay,
    ) -> Result<(), StoreError> {
        self.end_collection_permit(host_key, delay, to_seconds(delay.delay_ms)).await
    }

    async fn end_collection_permit(
        self,
        host_key: &str,
        delay: CrawlDelay,
        next_s: f64,
    ) -> Result<(), StoreError> {
        sqlx::query(END_COLLECTION_PERMIT)
            .bind(delay.collection)
            .bind(host_key)
            .bind(next_s)
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }

    /// Deletes delays that ended more than an hour ago, and returns their number.
    pub async fn prune_delays(self) -> Result<u64, StoreError> {
        let pruned = sqlx::query(
            "delete from host_delays
             where greatest(next_at, busy_until) < clock_timestamp() - interval '1 hour'",
        )
        .execute(&self.0.pool)
        .await?;
        Ok(pruned.rows_affected())
    }
}
