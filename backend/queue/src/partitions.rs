//! Limits how many jobs of one partition key are ready, so that a million jobs for one slow host do
//! not delay other jobs.
//!
//! At most `Config::partition_window` jobs with the same kind, group and partition key are
//! unparked. Over all partition keys of one kind and group the limit is `Config::group_window`.
//! Jobs beyond these limits are parked when they are enqueued. A parked job carries the held flag,
//! so claims, holds and releases never read it. When half of a key's window is free, its best
//! parked jobs are unparked and become due now. They therefore run after jobs that were enqueued
//! while they were parked.
//!
//! A group can have a million partition keys. One pass visits a bounded number of groups, and a
//! bounded number of keys in the groups that have free places. The process's next pass continues
//! with the groups that follow. Within each group, it continues after the last key that was visited
//! in that group. Groups therefore do not delay each other, and no key is skipped.
use crate::queue::notify_workers;
use crate::{Queue, QueueError};
use sqlx::FromRow;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use uuid::Uuid;

/// A partition key with parked jobs, and the number of its free places.
#[derive(FromRow)]
struct VisitedKey {
    kind: String,
    group_id: Uuid,
    /// `None` if the group has no key after the one at which the pass starts.
    partition_key: Option<String>,
    free: i64,
    /// Free places of the group before this pass.
    group_free: i64,
    /// Maximum number of keys that this pass visits in each group.
    max_keys: i64,
}

/// Limits of one pass: groups, keys of all groups together, and minimum limit of keys per group.
const MAX_GROUPS: i64 = 16;
const MAX_KEYS: i64 = 500;
const MIN_GROUP_KEYS: i64 = 20;
/// Number of places per partition key once half of the group's window is used.
pub(crate) const REDUCED_PLACES: i64 = 8;

/// Maximum number of groups whose position is stored. Above it, all positions are removed. No pass
/// visits the group of a cancelled crawl again, so its entry would otherwise never be removed.
const MAX_POSITIONS: usize = 10_000;

impl Queue {
    /// Unparks jobs of partition keys that have free places. Returns the number of unparked jobs.
    ///
    /// Skips groups that another transaction is holding, releasing or cancelling. Any number of
    /// processes may call this concurrently. The cost is bounded: if there are very many partition
    /// keys, each call visits only some of them, and later calls visit the others.
    pub async fn unpark(&self) -> Result<u64, QueueError> {
        let (kinds, groups, after) = self.next_groups().await?;
        if groups.is_empty() {
            return Ok(0);
        }
        let mut tx = self.pool.begin().await?;
        // The locks and the update must be two statements. The update takes its snapshot after the
        // locks are held, so it sees whether a group was held in the meantime.
        let visited: Vec<VisitedKey> = sqlx::query_as(VISIT_KEYS)
            .bind(self.config.partition_window)
            .bind(kinds)
            .bind(groups)
            .bind(after)
            .bind(MAX_KEYS)
            .bind(MIN_GROUP_KEYS)
            .bind(self.config.group_window)
            .bind(REDUCED_PLACES)
            .fetch_all(&mut *tx)
            .await?;
        self.store_positions(&visited);
        let unparkable: Vec<&VisitedKey> = visited.iter().filter(|key| key.free > 0).collect();
        if unparkable.is_empty() {
            return Ok(0);
        }
        let held_flags: Vec<bool> = sqlx::query_scalar(UNPARK)
            .bind(unparkable.iter().map(|key| key.kind.as_str()).collect::<Vec<_>>())
            .bind(unparkable.iter().map(|key| key.group_id).collect::<Vec<_>>())
            .bind(unparkable.iter().map(|key| key.partition_key.as_deref()).collect::<Vec<_>>())
            .bind(unparkable.iter().map(|key| key.free).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;
        if held_flags.contains(&false) {
            notify_workers(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(held_flags.len() as u64)
    }

    /// Returns the next groups with parked jobs: kinds, ids, and keys after which the pass starts.
    async fn next_groups(&self) -> Result<(Vec<String>, Vec<Uuid>, Vec<String>), QueueError> {
        let last_group = self.partition_cursor.lock().unwrap_or_else(PoisonError::into_inner).group.clone();
        let mut groups = self.groups_after(&last_group).await?;
        if groups.is_empty() && last_group != Default::default() {
            groups = self.groups_after(&Default::default()).await?;
        }
        let mut positions = self.partition_cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last_page = (groups.len() as i64) < MAX_GROUPS;
        positions.group = groups.last().filter(|_| !is_last_page).cloned().unwrap_or_default();
        let after =
            groups.iter().map(|group| positions.partitions.get(group).cloned().unwrap_or_default()).collect();
        let (kinds, ids) = groups.into_iter().unzip();
        Ok((kinds, ids, after))
    }

    async fn groups_after(&self, (kind, group): &(String, Uuid)) -> Result<Vec<(String, Uuid)>, QueueError> {
        Ok(sqlx::query_as(NEXT_GROUPS).bind(kind).bind(group).bind(MAX_GROUPS).fetch_all(&self.pool).await?)
    }

    /// Stores where the next pass starts in each group: after the keys of this pass. If all places
    /// of a group are used, the next pass starts after the last key that got places.
    fn store_positions(&self, visited: &[VisitedKey]) {
        let mut groups: BTreeMap<(&str, Uuid), Vec<&VisitedKey>> = BTreeMap::new();
        for key in visited {
            groups.entry((&key.kind, key.group_id)).or_default().push(key);
        }
        let mut positions = self.partition_cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if positions.partitions.len() > MAX_POSITIONS {
            positions.partitions.clear();
        }
        for ((kind, group), keys) in groups {
            let is_full = keys.iter().map(|key| key.free).sum::<i64>() >= keys[0].group_free;
            let last = if is_full { keys.iter().rfind(|key| key.free > 0) } else { keys.last() };
            let is_end = !is_full && (keys.len() as i64) < keys[0].max_keys;
            let group = (kind.to_owned(), group);
            match last.filter(|_| !is_end).and_then(|last| last.partition_key.clone()) {
                Some(partition_key) => positions.partitions.insert(group, partition_key),
                None => positions.partitions.remove(&group),
            };
        }
    }
}

/// Visits each group once, by a skip scan of the index `jobs_parked`.
const NEXT_GROUPS: &str = "
with recursive groups as (
    (select kind, group_id from jobs where parked and (kind, group_id) > ($1, $2)
     order by kind, group_id limit 1)
    union all
    select n.kind, n.group_id from groups g cross join lateral (
        select j.kind, j.group_id from jobs j
        where j.parked and (j.kind, j.group_id) > (g.kind, g.group_id)
        order by j.kind, j.group_id limit 1
    ) n
)
select kind, group_id from groups limit $3";

/// Visits each key once, by a skip scan of the index `jobs_parked`. Counts by the index
/// `jobs_line`, and only as far as needed.
///
/// Groups without free places are not visited. The keys of a group share its free places, and
/// earlier keys get places first. A key whose group is locked gets no places. For a group with no
/// key after the start position, there is one row without a key.
const VISIT_KEYS: &str = "
with group_sizes as materialized (
    select g.kind, g.group_id, g.after, group_size.size
    from unnest($2::text[], $3::uuid[], $4::text[]) as g(kind, group_id, after)
    cross join lateral (
        select count(*) as size from (
            select 1 from jobs j
            where j.group_id = g.group_id and j.kind = g.kind and j.partition_key is not null and not j.parked
            limit $7
        ) unparked
    ) group_size
    where group_size.size < $7
), key_limit as materialized (
    select greatest($5 / greatest(count(*), 1), $6) as max_keys from group_sizes
), visited as materialized (
    select c.kind, c.group_id, c.size, l.partition_key
    from group_sizes c left join lateral (
        with recursive partitions as (
            (select j.partition_key from jobs j
             where j.parked and j.kind = c.kind and j.group_id = c.group_id and j.partition_key > c.after
             order by j.partition_key limit 1)
            union all
            select n.partition_key from partitions l cross join lateral (
                select j.partition_key from jobs j
                where j.parked and j.kind = c.kind and j.group_id = c.group_id and j.partition_key > l.partition_key
                order by j.partition_key limit 1
            ) n
        )
        select partition_key from partitions limit (select max_keys from key_limit)
    ) l on true
), key_places as (
    select l.*, case when l.partition_key is not null and key_size.length <= places / 2 then places - key_size.length else 0 end as free
    from (select *, count(*) over (partition by kind, group_id) as partitions from visited) l
    cross join lateral (
        select least($1::bigint, case when l.size >= $7 / 2 then $8 else $1::bigint end, greatest(1, ($7 - l.size) / l.partitions)) as places
    ) p
    cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.partition_key = l.partition_key and not j.parked
            limit places / 2 + 1
        ) unparked
    ) key_size
), limited as materialized (
    select kind, group_id, partition_key, $7 - size as group_free,
           greatest(0, least(free, $7 - size - coalesce(sum(free) over before, 0)::bigint)) as free
    from key_places
    window before as (partition by kind, group_id order by partition_key rows between unbounded preceding and 1 preceding)
)
select kind, group_id, partition_key, group_free, (select max_keys from key_limit) as max_keys,
       case when free > 0 and pg_try_advisory_xact_lock_shared(job_group_lock(group_id)) then free else 0 end as free
from limited order by kind, group_id, partition_key";

const UNPARK: &str = "
with wanted as (
    select * from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[]) as w(kind, group_id, partition_key, free)
), picked as materialized (
    select p.id from wanted w cross join lateral (
        select j.id from jobs j
        where j.parked and j.kind = w.kind and j.group_id = w.group_id and j.partition_key = w.partition_key
        order by j.kind, j.group_id, j.partition_key, j.priority, j.id limit w.free
        for update skip locked
    ) p
)
update jobs
set parked = false, held = group_id in (select id from job_groups), scheduled_at = greatest(scheduled_at, clock_timestamp())
where id = any(array(select id from picked))
returning held";
