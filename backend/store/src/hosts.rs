//! Per-host politeness shared by every process: who may send the next request, and when; robots.txt as last fetched.
//!
//! The hard rule is the grant: at most one is out per host, and the next is given no earlier than the delay after the previous one
//! ended: the delay of the one that ended and of the one that asks, whichever is longer. Everything else only decides when those who have to wait come back. Every moment is the database's clock, read while the
//! host's row is locked.
//!
//! Waiting callers are spread, so that a thousand of them do not all come back at once. Each is told a moment one delay after the one
//! told before it (`cursor_at`), within a horizon of a minute, after which the moments begin anew: so callers that never come back cost
//! the host a minute at most. As requests take time of their own, moments told that way drift ahead of the real turns; so the first
//! caller that asks while the next turn is known exactly (nothing is out) is told that very turn (`promised_at`).
use crate::{Store, StoreError};
use std::time::Duration;
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

/// How a host bears up, as its last answers showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct HostPace {
    /// The delay that its answers led to, in milliseconds.
    pub pace_ms: i32,
    /// Answers 429 and 503 in a row.
    pub refusals: i32,
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

/// Seconds after which a grant that was not finished counts as lost.
pub(crate) const GRANT_EXPIRES_S: f64 = 60.0;
/// Seconds over which waiting callers are spread.
pub(crate) const HORIZON_S: f64 = 60.0;
/// The token of grants that exclude nobody (no delay): there is nothing to give back.
const FREE_TOKEN: i64 = 0;

/// $1 host, $2 delay in seconds, $3 expiry, $4 horizon. A host that is new is granted at once. The row is locked before the second half
/// reads it and the clock; `told_until` null in the answer means granted.
const TAKE_TURN: &str = "
    insert into hosts as h (host_key, last_token, grant_token, granted_at)
    -- Not from 1 on: hosts are pruned, and a token is never given twice.
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
                       -- While a request is out, its end is unknown: assume now.
                       case when busy then greatest(ready_at, now + make_interval(secs => $2)) else ready_at end as earliest
                ) decision
            cross join lateral (
                select case when h.cursor_at > now
                             and h.cursor_at + make_interval(secs => $2) <= earliest + make_interval(secs => $4)
                            then greatest(earliest, h.cursor_at + make_interval(secs => $2))
                            else earliest end as slot) spread)
    returning last_token, told_until";

/// $1 host, $2 token, $3 delay in seconds, $4 pause until, $5 and $6 the pace, null where it stays. A late word from a holder whose grant expired still says when the host was last
/// asked; it only cannot end somebody else's grant.
const FINISH_REQUEST: &str = "
    insert into hosts as h (host_key, next_at, not_before, finished_at, pace_ms, refusals)
    select $1, now + make_interval(secs => $3), $4, now, coalesce($5, 0), coalesce($6, 0)
    -- One look at the clock: two would differ, and the two ways to the next turn with them.
    from (select clock_timestamp() as now) clock
    on conflict (host_key) do update set
        finished_at = greatest(h.finished_at, excluded.finished_at),
        pace_ms = coalesce($5, h.pace_ms),
        refusals = coalesce($6, h.refusals),
        grant_token = case when h.grant_token = $2 then null else h.grant_token end,
        granted_at = case when h.grant_token = $2 then null else h.granted_at end,
        next_at = greatest(h.next_at, excluded.next_at),
        not_before = greatest(h.not_before, $4)";

impl Store {
    /// Asks for the host's next turn with at least `delay_ms` after the end of the previous request. With `delay_ms` 0 always granted
    /// (unless the host asked for a pause). One grant at a time; a grant that is not finished within 60 s (its holder died) expires.
    pub async fn take_turn(&self, host_key: &str, delay_ms: i64) -> Result<Turn, StoreError> {
        if delay_ms <= 0 {
            return self.take_free_turn(host_key).await;
        }
        let (token, wait): (i64, Option<OffsetDateTime>) = sqlx::query_as(TAKE_TURN)
            .bind(host_key)
            .bind(seconds(delay_ms))
            .bind(GRANT_EXPIRES_S)
            .bind(HORIZON_S)
            .fetch_one(&self.pool)
            .await?;
        Ok(match wait {
            None => Turn::Granted { token },
            Some(until) => Turn::Wait { until },
        })
    }

    /// Without a delay nobody excludes anybody, so nothing is written: only a pause counts.
    async fn take_free_turn(&self, host_key: &str) -> Result<Turn, StoreError> {
        let pause: Option<OffsetDateTime> = sqlx::query_scalar(
            "select not_before from hosts where host_key = $1 and not_before > clock_timestamp()",
        )
        .bind(host_key)
        .fetch_optional(&self.pool)
        .await?;
        Ok(pause.map_or(Turn::Granted { token: FREE_TOKEN }, |until| Turn::Wait { until }))
    }

    /// How the host bears up; a host never asked bears up well.
    pub async fn host_pace(&self, host_key: &str) -> Result<HostPace, StoreError> {
        let found = sqlx::query_as("select pace_ms, refusals from hosts where host_key = $1")
            .bind(host_key)
            .fetch_optional(&self.pool)
            .await?;
        Ok(found.unwrap_or_default())
    }

    /// Ends a grant: the next turn is `delay_ms` from now (database clock), or at `not_before` if that is later (Retry-After).
    /// `pace`: how the host bears up now; `None` leaves what is known.
    pub async fn finish_request(
        &self,
        host_key: &str,
        token: i64,
        delay_ms: i64,
        not_before: Option<OffsetDateTime>,
        pace: Option<HostPace>,
    ) -> Result<(), StoreError> {
        if token == FREE_TOKEN && delay_ms <= 0 && not_before.is_none() && pace.is_none() {
            return Ok(());
        }
        sqlx::query(FINISH_REQUEST)
            .bind(host_key)
            .bind(token)
            .bind(seconds(delay_ms))
            .bind(not_before)
            .bind(pace.map(|pace| pace.pace_ms))
            .bind(pace.map(|pace| pace.refusals))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// The cached robots.txt, whatever its age.
    pub async fn robots(&self, host_key: &str) -> Result<Option<RobotsRecord>, StoreError> {
        Ok(sqlx::query_as(
            "select robots_status as status, robots_body as body, robots_fetched_at as fetched_at
             from hosts where host_key = $1 and robots_fetched_at is not null",
        )
        .bind(host_key)
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Makes the caller the one that fetches robots.txt, for `lease` or until [`Self::put_robots`] or [`Self::release_robots`]; `false`
    /// when another one is at it. Two processes that find it missing at the same time thus ask once.
    pub async fn claim_robots(&self, host_key: &str, lease: Duration) -> Result<bool, StoreError> {
        let claimed = sqlx::query(
            "insert into hosts as h (host_key, robots_asked_until) values ($1, clock_timestamp() + make_interval(secs => $2))
             on conflict (host_key) do update set robots_asked_until = excluded.robots_asked_until
             where h.robots_asked_until is null or h.robots_asked_until < clock_timestamp()",
        )
        .bind(host_key)
        .bind(lease.as_secs_f64())
        .execute(&self.pool)
        .await?;
        Ok(claimed.rows_affected() == 1)
    }

    /// Gives that up without a result.
    pub async fn release_robots(&self, host_key: &str) -> Result<(), StoreError> {
        sqlx::query("update hosts set robots_asked_until = null where host_key = $1")
            .bind(host_key)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Stores robots.txt, unless a later fetch is stored already. It counts as the end of a request now, also where none of the host's turns
    /// was taken for it.
    pub async fn put_robots(&self, host_key: &str, record: &RobotsRecord) -> Result<(), StoreError> {
        sqlx::query(
            "insert into hosts as h (host_key, robots_status, robots_body, robots_fetched_at, finished_at)
             values ($1, $2, $3, $4, clock_timestamp())
             on conflict (host_key) do update set robots_status = $2, robots_body = $3, robots_fetched_at = $4,
                 robots_asked_until = null, finished_at = clock_timestamp()
             where h.robots_fetched_at is null or h.robots_fetched_at <= $4",
        )
        .bind(host_key)
        .bind(record.status)
        .bind(&record.body)
        .bind(record.fetched_at)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

impl Store {
    /// Forgets hosts that nobody has asked, or asked for a turn of, for `unasked`: what is known of them (robots.txt, pace) holds no longer. Looks at up to
    /// [`HOSTS_LOOKED_AT`] hosts after `after` in the order of their keys; the last of those, `None` at the end, and how many were forgotten.
    pub async fn prune_hosts(
        &self,
        after: Option<&str>,
        unasked: Duration,
    ) -> Result<(Option<String>, u64), StoreError> {
        let (looked, last, pruned): (i64, Option<String>, i64) = sqlx::query_as(PRUNE)
            .bind(after.unwrap_or_default())
            .bind(unasked.as_secs_f64())
            .bind(HOSTS_LOOKED_AT)
            .fetch_one(&self.pool)
            .await?;
        Ok((last.filter(|_| looked == HOSTS_LOOKED_AT), pruned.unsigned_abs()))
    }
}

/// Hosts that one call of [`Store::prune_hosts`] looks at.
pub const HOSTS_LOOKED_AT: i64 = 5_000;

/// Along the primary key: an index on the times would be written with every request to a host. A host that is asked at this very moment is locked,
/// and stays.
const PRUNE: &str = "
    with looked as materialized (
        select host_key from hosts where host_key > $1 order by host_key limit $3
    ), unasked as materialized (
        select h.host_key from looked l cross join lateral (
            select host_key from hosts
            where host_key = l.host_key
              and coalesce(greatest(finished_at, granted_at, not_before, told_until, robots_asked_until), '-infinity')
                  < now() - make_interval(secs => $2)
            for update skip locked
        ) h
    ), gone as (
        delete from hosts where host_key = any(array(select host_key from unasked)) returning 1
    )
    select (select count(*) from looked), (select max(host_key) from looked), (select count(*) from gone)";

/// Longest delay that is obeyed: an hour.
const LONGEST_DELAY_MS: i64 = 3_600_000;

pub(crate) fn seconds(delay_ms: i64) -> f64 {
    delay_ms.clamp(0, LONGEST_DELAY_MS) as f64 / 1000.0
}
