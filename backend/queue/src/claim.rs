//! Claims jobs and extends their leases. No statement here waits for a row lock while it holds
//! another one. Rows that another transaction has locked are skipped, so these statements can never
//! be part of a deadlock.
use crate::{Claim, ClaimedJob, Queue, QueueError};
use sqlx::postgres::PgQueryResult;
use sqlx::postgres::types::PgInterval;
use std::time::Duration;
use uuid::Uuid;

impl Queue {
    /// Claims up to `limit` due jobs of `kinds`: lowest priority value first, then earliest
    /// scheduled time, then oldest job.
    ///
    /// Skips jobs that another worker is claiming, so under contention the result can be shorter.
    /// At most one of the returned jobs must run alone ([`ClaimedJob::must_run_alone`]).
    pub async fn claim(
        &self,
        kinds: &[String],
        limit: i64,
        worker: &str,
    ) -> Result<Vec<ClaimedJob>, QueueError> {
        let slots: Vec<(&str, i64)> = kinds.iter().map(|kind| (kind.as_str(), limit)).collect();
        self.claim_slots(&slots, limit, worker, &[]).await
    }

    /// Works like [`claim`](Self::claim), with limits per kind (`slots`) besides the total one.
    /// Jobs of the kinds `never_alone` never have to run alone.
    pub async fn claim_slots(
        &self,
        slots: &[(&str, i64)],
        limit: i64,
        worker: &str,
        never_alone: &[String],
    ) -> Result<Vec<ClaimedJob>, QueueError> {
        let (kinds, counts): (Vec<&str>, Vec<i64>) =
            slots.iter().filter(|(_, count)| *count > 0).copied().unzip();
        if kinds.is_empty() || limit < 1 {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_as(CLAIM)
            .bind(kinds)
            .bind(counts)
            .bind(limit)
            .bind(interval(self.config.lease))
            .bind(worker)
            .bind(self.config.schema_version)
            .bind(never_alone)
            .fetch_all(&self.pool)
            .await?)
    }

    /// Claims due jobs of other tenants. For each `(kind, tenant, limit)` of `slots`, claims up to
    /// `limit` jobs of the kind that do not belong to the tenant.
    ///
    /// Jobs of the tenant with the fewest running jobs are claimed first. `running` counts them by
    /// kind and tenant. The jobs of one tenant are ordered as in [`claim`](Self::claim). A runner
    /// calls this for its last free slots. Jobs that must run alone are claimed only by
    /// [`claim`](Self::claim).
    pub(crate) async fn claim_of_other_tenants(
        &self,
        slots: &[(&str, Uuid, i64)],
        running: &[(&str, Uuid, i64)],
        worker: &str,
        never_alone: &[String],
    ) -> Result<Vec<ClaimedJob>, QueueError> {
        let kinds = |rows: &[(&str, Uuid, i64)]| rows.iter().map(|row| row.0.to_owned()).collect::<Vec<_>>();
        let tenants = |rows: &[(&str, Uuid, i64)]| rows.iter().map(|row| row.1).collect::<Vec<_>>();
        let counts = |rows: &[(&str, Uuid, i64)]| rows.iter().map(|row| row.2).collect::<Vec<_>>();
        Ok(sqlx::query_as(CLAIM_OTHER_TENANTS)
            .bind(kinds(slots))
            .bind(tenants(slots))
            .bind(counts(slots))
            .bind(interval(self.config.lease))
            .bind(worker)
            .bind(kinds(running))
            .bind(tenants(running))
            .bind(counts(running))
            .bind(self.config.schema_version)
            .bind(never_alone)
            .fetch_all(&self.pool)
            .await?)
    }

    /// Returns `true` if a job of the kind is due that belongs to a tenant other than `tenant`. A
    /// long job can then end its run early.
    pub async fn has_other_waiting_tenants(&self, kind: &str, tenant: Uuid) -> Result<bool, QueueError> {
        Ok(sqlx::query_scalar(HAS_OTHER_TENANTS).bind(kind).bind(tenant).fetch_one(&self.pool).await?)
    }

    /// Records that a job is the only one in its process. If its lease expires, it counts as the
    /// cause of the crash. Call it before the job starts, when no other job runs in the process.
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held.
    pub async fn begin_alone(&self, claim: Claim) -> Result<(), QueueError> {
        self.set_alone(claim, true).await
    }

    /// Returns `true` if the job is marked as the only one in its process. The mark ends with
    /// progress ([`Self::record_progress`]) and with [`Self::end_alone`].
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held.
    pub(crate) async fn is_alone(&self, claim: Claim) -> Result<bool, QueueError> {
        let sql = "select alone from jobs where id = $1 and fence = $2 and state = 'running'";
        let alone =
            sqlx::query_scalar(sql).bind(claim.id).bind(claim.fence).fetch_optional(&self.pool).await?;
        alone.ok_or(QueueError::Stale(claim.id))
    }

    /// Removes the mark of [`Self::begin_alone`]. Call it before other jobs start in the process.
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held.
    pub(crate) async fn end_alone(&self, claim: Claim) -> Result<(), QueueError> {
        self.set_alone(claim, false).await
    }

    async fn set_alone(&self, claim: Claim, alone: bool) -> Result<(), QueueError> {
        let sql = "update jobs set alone = $3 where id = $1 and fence = $2 and state = 'running'";
        let done = sqlx::query(sql).bind(claim.id).bind(claim.fence).bind(alone).execute(&self.pool).await?;
        ensure_changed(&done, claim)
    }

    /// Extends the leases and returns the lost claims. A claim whose row is locked by another
    /// transaction, for example to complete or hold the job, is neither extended nor lost. A locked
    /// row cannot be rescued.
    pub async fn heartbeat(&self, claims: &[Claim]) -> Result<Vec<Claim>, QueueError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, fences) = ids_and_fences(claims);
        Ok(sqlx::query_as(HEARTBEAT)
            .bind(ids)
            .bind(fences)
            .bind(interval(self.config.lease))
            .fetch_all(&self.pool)
            .await?)
    }

    /// Returns the time until a job of `kinds` is due: zero if one is due now, `None` if none is
    /// scheduled.
    pub async fn next_due(&self, kinds: &[String]) -> Result<Option<Duration>, QueueError> {
        let seconds: Option<f64> = sqlx::query_scalar(NEXT_DUE)
            .bind(kinds)
            .bind(self.config.schema_version)
            .fetch_one(&self.pool)
            .await?;
        // The limit avoids an overflow for times in the distant future.
        Ok(seconds.map(|s| Duration::from_secs_f64(s.clamp(0.0, 1e9))))
    }
}

/// Fails with `Stale` if the statement changed nothing, because the claim is no longer held.
pub(crate) fn ensure_changed(result: &PgQueryResult, claim: Claim) -> Result<(), QueueError> {
    if result.rows_affected() == 0 { Err(QueueError::Stale(claim.id)) } else { Ok(()) }
}

/// Splits claims into ids and fences, as `unnest` expects them.
pub(crate) fn ids_and_fences(claims: &[Claim]) -> (Vec<Uuid>, Vec<i64>) {
    claims.iter().map(|claim| (claim.id, claim.fence)).unzip()
}

/// Converts a duration to a Postgres interval of at most 100 years, so that adding it to a
/// timestamp does not overflow.
pub(crate) fn interval(duration: Duration) -> PgInterval {
    const CENTURY: u128 = 100 * 365 * 86_400 * 1_000_000;
    let microseconds = duration.as_micros().min(CENTURY) as i64;
    PgInterval { months: 0, days: 0, microseconds }
}

/// Finds the (kind, priority) pairs ("bands") with at least one job, each with its first job.
///
/// This is a skip scan of the index `jobs_ready`, so the cost depends on the number of bands, not
/// of jobs. The due jobs of a band are a contiguous range of the index. A scan that starts at the
/// first job skips the dead index entries that earlier claims left before it. `kind` and `slots`
/// come from the preceding CTE `wanted`.
macro_rules! bands {
    () => {
        "bands as (
    select w.kind, w.slots, f.priority, f.first_at, f.first_id
    from wanted w cross join lateral (
        select j.priority, j.scheduled_at as first_at, j.id as first_id from jobs j
        where j.kind = w.kind and j.state <> 'running' and not j.held
        order by j.kind, j.priority, j.scheduled_at, j.id limit 1
    ) f
    union all
    select b.kind, b.slots, f.priority, f.first_at, f.first_id
    from bands b cross join lateral (
        select j.priority, j.scheduled_at as first_at, j.id as first_id from jobs j
        where j.kind = b.kind and j.priority > b.priority and j.state <> 'running' and not j.held
        order by j.kind, j.priority, j.scheduled_at, j.id limit 1
    ) f
)"
    };
}
pub(crate) use bands;

/// Builds the end of a claim statement. `$ids` selects the locked jobs, `$4` is the lease, and `$5`
/// is the worker.
macro_rules! claimed {
    ($ids:literal) => {
        concat!(
            "claimed as (
    update jobs
    set state = 'running', fence = fence + 1, attempt = attempt + 1,
        lease_until = clock_timestamp() + $4, locked_by = $5, alone = false
    where id = any(array(",
            $ids,
            "))
    returning id, fence, kind, payload, attempt, max_attempts, crashes, group_id, tenant, priority, scheduled_at
)
select id, fence, kind, payload, attempt, max_attempts, crashes, group_id, tenant
from claimed order by priority, scheduled_at, id"
        )
    };
}

/// Claims jobs in two passes over the index. The first pass acquires no locks and counts how many
/// of the best `limit` jobs over all kinds each band contributes. The second pass locks that many
/// jobs of each band and skips rows locked by other transactions. A single locking pass could not
/// merge several bands in order and lock only the rows that it returns.
///
/// At most one job that must run alone (`crashes > 1`) is claimed, before all others. The index
/// `jobs_suspects` makes this check cheap.
///
/// This statement uses `id = any(array(...))`, and the other batches use `cross join lateral (...
/// limit 1)`, instead of plain joins. The planner cannot know how few rows a batch has, and might
/// scan the whole table or compare every pair. These two forms always use the primary key.
const CLAIM: &str = concat!(
    "with recursive wanted as (
    select kind, slots from unnest($1::text[], $2::bigint[]) as w(kind, slots)
    where $6 >= coalesce((select version from required_schema), 0)
), ",
    bands!(),
    ", suspect as materialized (
    select j.id, j.kind from jobs j
    where (select count(*) from wanted) > 0 and j.kind = any($1) and j.crashes > 1 and j.kind <> all($7) and j.state <> 'running' and not j.held and j.scheduled_at <= now()
    order by j.priority, j.scheduled_at, j.id limit 1
    for update skip locked
), due as (
    select b.kind, b.slots, b.priority, b.first_at, b.first_id, d.scheduled_at, d.id
    from bands b cross join lateral (
        select j.scheduled_at, j.id from jobs j
        where j.kind = b.kind and j.priority = b.priority
          and (j.scheduled_at, j.id) >= (b.first_at, b.first_id) and j.scheduled_at <= now()
          and j.state <> 'running' and not j.held and (j.crashes <= 1 or j.kind = any($7))
        order by j.kind, j.priority, j.scheduled_at, j.id limit b.slots
    ) d
), placed as (
    select d.*, row_number() over (partition by kind order by priority, scheduled_at, id) as place from due d
), best as (
    select kind, priority, first_at, first_id from placed
    where place <= slots - (select count(*) from suspect where suspect.kind = placed.kind)
    order by priority, scheduled_at, id limit $3 - (select count(*) from suspect)
), shares as (
    select kind, priority, first_at, first_id, count(*) as share from best
    group by kind, priority, first_at, first_id
), picked as materialized (
    select p.id from shares s cross join lateral (
        select j.id from jobs j
        where j.kind = s.kind and j.priority = s.priority
          and (j.scheduled_at, j.id) >= (s.first_at, s.first_id) and j.scheduled_at <= now()
          and j.state <> 'running' and not j.held and (j.crashes <= 1 or j.kind = any($7))
        order by j.kind, j.priority, j.scheduled_at, j.id limit s.share
        for update skip locked
    ) p
), ",
    claimed!("select id from suspect union all select id from picked")
);

/// A skip scan of the index `jobs_tenants` visits each tenant once, so the cost depends on the
/// number of tenants, not of jobs. As in [`CLAIM`], the first pass chooses without locks; the
/// second locks the chosen rows and skips those locked by other transactions.
const CLAIM_OTHER_TENANTS: &str = concat!(
    "with recursive wanted as (
    select kind, busy, slots from unnest($1::text[], $2::uuid[], $3::bigint[]) as w(kind, busy, slots)
    where $9 >= coalesce((select version from required_schema), 0)
), running as (
    select kind, tenant, jobs from unnest($6::text[], $7::uuid[], $8::bigint[]) as r(kind, tenant, jobs)
), tenants as (
    select w.kind, w.busy, w.slots, f.tenant
    from wanted w cross join lateral (
        select j.tenant from jobs j where j.kind = w.kind and j.state <> 'running' and not j.held
        order by j.kind, j.tenant limit 1
    ) f
    union all
    select t.kind, t.busy, t.slots, f.tenant
    from tenants t cross join lateral (
        select j.tenant from jobs j
        where j.kind = t.kind and j.tenant > t.tenant and j.state <> 'running' and not j.held
        order by j.kind, j.tenant limit 1
    ) f
), due as (
    select t.kind, t.slots, d.id, d.scheduled_at, coalesce(r.jobs, 0)
           + row_number() over (partition by t.kind, t.tenant order by d.priority, d.scheduled_at, d.id) as rank
    from tenants t
    left join running r on r.kind = t.kind and r.tenant = t.tenant
    cross join lateral (
        select j.id, j.priority, j.scheduled_at from jobs j
        where j.kind = t.kind and j.tenant = t.tenant and j.scheduled_at <= now()
          and j.state <> 'running' and not j.held and (j.crashes <= 1 or j.kind = any($10))
        order by j.kind, j.tenant, j.priority, j.scheduled_at, j.id limit t.slots
    ) d
    where t.tenant <> t.busy
), placed as (
    select *, row_number() over (partition by kind order by rank, scheduled_at) as place from due
), chosen as materialized (
    select id from placed where place <= slots
), picked as materialized (
    select p.id from chosen c cross join lateral (
        select j.id from jobs j
        where j.id = c.id and j.state <> 'running' and not j.held and j.scheduled_at <= now()
        limit 1 for update skip locked
    ) p
), ",
    claimed!("select id from picked")
);

/// Reads two ranges of the index `jobs_tenants`, so that the jobs of the tenant are not read.
const HAS_OTHER_TENANTS: &str = "
select exists (
    select 1 from jobs where kind = $1 and tenant < $2 and scheduled_at <= now() and state <> 'running' and not held
) or exists (
    select 1 from jobs where kind = $1 and tenant > $2 and scheduled_at <= now() and state <> 'running' and not held
)";

const HEARTBEAT: &str = "
with claims as (
    select id, fence from unnest($1::uuid[], $2::bigint[]) as m(id, fence)
), picked as materialized (
    select j.id from claims m cross join lateral (
        select id from jobs where id = m.id and fence = m.fence and state = 'running' limit 1 for update skip locked
    ) j
), extended as (
    update jobs set lease_until = clock_timestamp() + $3 where id = any(array(select id from picked))
)
select m.id, m.fence from claims m
where (m.id, m.fence) not in (select id, fence from jobs where id = any($1) and state = 'running')";

const NEXT_DUE: &str = concat!(
    "with recursive wanted as (
    select kind, 1::bigint as slots from unnest($1::text[]) as w(kind)
    where $2 >= coalesce((select version from required_schema), 0)
), ",
    bands!(),
    "
select extract(epoch from min(first_at) - clock_timestamp())::float8 from bands"
);
