use crate::partitions::REDUCED_PLACES;
use crate::queue::{lock_groups_shared, notify_workers};
use crate::{NewJob, Queue, QueueError};
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use std::collections::BTreeSet;
use uuid::Uuid;

/// Maximum length, in bytes, of a unique key that is stored unchanged. Longer keys are stored as
/// their SHA-256, because a Postgres index entry is limited to 2.7 kB and a URL can be longer.
const MAX_PLAIN_KEY_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A job was added with this id.
    New(Uuid),
    /// A live job with the same kind and unique key exists already.
    Duplicate,
}

impl Queue {
    /// Adds jobs inside the caller's transaction. Returns one result per job, in input order. Jobs
    /// of a held group are held. Waiting workers notify_workers up when the transaction commits.
    ///
    /// # Errors
    /// Fails with `Invalid` if a job cannot be stored. The text contains its index. No job is
    /// added.
    pub async fn enqueue(
        &self,
        conn: &mut PgConnection,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>, QueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        for (index, job) in jobs.iter().enumerate() {
            check_job(job).map_err(|reason| QueueError::Invalid(format!("job {index}: {reason}")))?;
        }
        // The lock and the insert must be two statements. The insert takes its snapshot after the
        // lock is held, so it sees whether the group was held in the meantime.
        let groups: Vec<Uuid> =
            jobs.iter().filter_map(|job| job.group_id).collect::<BTreeSet<_>>().into_iter().collect();
        if !groups.is_empty() {
            lock_groups_shared(conn, &groups).await?;
        }

        let ids: Vec<Uuid> = jobs.iter().map(|_| Uuid::now_v7()).collect();
        let keys: Vec<Option<String>> =
            jobs.iter().map(|job| job.unique_key.as_deref().map(stored_key)).collect();
        // All callers insert unique keys in the same order, so two of them never deadlock.
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by(|&a, &b| (&jobs[a].kind, &keys[a]).cmp(&(&jobs[b].kind, &keys[b])));
        fn column<'a, T>(order: &'a [usize], value: impl Fn(usize) -> T + 'a) -> Vec<T> {
            order.iter().map(|&index| value(index)).collect()
        }
        let added: Vec<(Uuid, bool)> = sqlx::query_as(ENQUEUE)
            .bind(column(&order, |i| ids[i]))
            .bind(column(&order, |i| jobs[i].kind.as_str()))
            .bind(column(&order, |i| &jobs[i].payload))
            .bind(column(&order, |i| jobs[i].priority))
            .bind(column(&order, |i| jobs[i].max_attempts))
            .bind(column(&order, |i| jobs[i].scheduled_at))
            .bind(column(&order, |i| keys[i].as_deref()))
            .bind(column(&order, |i| jobs[i].group_id))
            .bind(column(&order, |i| jobs[i].partition_key.as_deref()))
            .bind(self.config.partition_window)
            .bind(self.config.group_window)
            .bind(REDUCED_PLACES)
            .bind(column(&order, |i| jobs[i].tenant))
            .fetch_all(&mut *conn)
            .await?;
        if added.iter().any(|&(_, due)| due) {
            notify_workers(conn).await?;
        }
        let added: BTreeSet<Uuid> = added.into_iter().map(|(id, _)| id).collect();
        Ok(ids
            .into_iter()
            .map(|id| if added.contains(&id) { Enqueued::New(id) } else { Enqueued::Duplicate })
            .collect())
    }
}

/// Inserts jobs in input order. A job is parked if its partition key has `partition_window`
/// unparked jobs, or if its group has `group_window` unparked jobs over all keys. Jobs earlier in
/// the same call are also counted.
const ENQUEUE: &str = "
with n as materialized (
    select *, row_number() over (partition by kind, group_id, partition_key order by priority, position) as place
    from unnest($1::uuid[], $2::text[], $3::jsonb[], $4::smallint[], $5::smallint[], $6::timestamptz[], $7::text[],
                $8::uuid[], $9::text[], $13::uuid[])
         with ordinality
         as n(id, kind, payload, priority, max_attempts, scheduled_at, unique_key, group_id, partition_key, tenant, position)
), key_sizes as materialized (
    select l.kind, l.group_id, l.partition_key, key_size.length
    from (select distinct kind, group_id, partition_key from n where partition_key is not null) l cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.partition_key = l.partition_key and not j.parked
            limit $10
        ) unparked
    ) key_size
), group_sizes as materialized (
    select g.kind, g.group_id, group_size.size
    from (select distinct kind, group_id from n where partition_key is not null) g cross join lateral (
        select count(*) as size from (
            select 1 from jobs j
            where j.group_id = g.group_id and j.kind = g.kind and j.partition_key is not null and not j.parked
            limit $11
        ) unparked
    ) group_size
), in_partition as (
    select n.*, c.size,
           coalesce(l.length + n.place > case when c.size >= $11 / 2 then least($10, $12) else $10 end, false) as partition_full
    from n left join key_sizes l on l.kind = n.kind and l.group_id = n.group_id and l.partition_key = n.partition_key
           left join group_sizes c on c.kind = n.kind and c.group_id = n.group_id
), placed as (
    select i.*, partition_full or (partition_key is not null and size + count(*) filter (where partition_key is not null and not partition_full)
               over (partition by kind, group_id order by priority, position) > $11) as parked,
           group_id is not null and group_id in (select id from job_groups) as group_held
    from in_partition i
)
insert into jobs (id, kind, payload, priority, max_attempts, scheduled_at, unique_key, group_id, tenant, created_at, partition_key, parked, held)
select id, kind, payload, priority, max_attempts, coalesce(scheduled_at, statement_timestamp()),
       unique_key, group_id, tenant, statement_timestamp(), partition_key, parked, parked or group_held
from placed order by position
on conflict (kind, unique_key) where unique_key is not null do nothing
returning id, not held and scheduled_at <= clock_timestamp()";

/// Rejects, with a readable reason, a job that Postgres would reject.
fn check_job(job: &NewJob) -> Result<(), String> {
    if job.kind.is_empty() || job.kind.contains('\0') {
        return Err(format!("the kind is {:?}; it must be a non-empty string without NUL", job.kind));
    }
    if job.max_attempts < 1 {
        return Err(format!("max_attempts is {}; it must be at least 1", job.max_attempts));
    }
    if let Some(partition_key) = &job.partition_key
        && (job.group_id.is_none()
            || partition_key.is_empty()
            || partition_key.contains('\0')
            || partition_key.len() > MAX_PLAIN_KEY_BYTES)
    {
        return Err(format!(
            "a partition key requires a group and must have 1 to {MAX_PLAIN_KEY_BYTES} bytes without NUL"
        ));
    }
    if has_nul(&job.payload) {
        return Err(format!(
            "the payload of kind {:?} contains a NUL character, which jsonb cannot store",
            job.kind
        ));
    }
    Ok(())
}

fn has_nul(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns the key, or its digest if the key cannot be stored in an index entry or a text column.
pub(crate) fn stored_key(key: &str) -> String {
    if key.len() <= MAX_PLAIN_KEY_BYTES && !key.contains('\0') {
        key.to_owned()
    } else {
        format!("sha256:{}", hex::encode(Sha256::digest(key)))
    }
}
