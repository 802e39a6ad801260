//! Limits how many jobs of one partition key are ready, so that a million jobs for one slow host do
//! not delay other jobs.
//!
//! At most `Config::partition_window` jobs with the same kind, group and partition key are
//! unparked. Over all partition keys of one kind and group the limit is `Config::group_window`.
//! Jobs beyond these limits are parked when they are enqueued. A parked job carries the held flag,
//! so claims, holds and releases never read it. When half of a key's window is free, its best
//! parked jobs are unparked. Their scheduled time becomes the current time. They therefore run
//! after jobs that were enqueued while they were parked.
//!
//! A group can have a million partition keys. One pass visits a bounded number of groups, and a
//! bounded number of keys in the groups that have free places. The process's next pass continues
//! with the groups that follow. Within each group, it continues after the last key that was visited
//! in that group. So groups do not delay each other, and no key is skipped.
use crate::queue::wake;
use crate::{Queue, QueueError};
use sqlx::{FromRow, PgConnection};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use uuid::Uuid;

/// A partition key with parked jobs, and the number of its free places.
#[derive(FromRow)]
struct PartitionRoom {
    kind: String,
    group_id: Uuid,
    /// `None` if the group has no key after the one at which the pass starts.
    partition_key: Option<String>,
    room: i64,
    /// Free places of the group before this pass.
    group_room: i64,
    /// Maximum number of keys that this pass visits in each group.
    most: i64,
}

/// Numbers of groups per pass and of keys per pass over all groups, and minimum of keys per group.
const GROUPS: i64 = 16;
const PARTITIONS: i64 = 500;
const MIN_PARTITIONS: i64 = 20;
/// Number of places per partition key once half of the group's window is used.
pub(crate) const PLACES_WHEN_CROWDED: i64 = 8;

/// Maximum number of groups whose position is remembered. Above it, all positions are removed.
/// Entries of cancelled crawls' groups would otherwise be kept forever, because no pass visits
/// these groups again.
const MAX_POSITIONS: usize = 10_000;

impl Queue {
    /// Unparks jobs of partition keys that have free places. Returns the number of unparked jobs.
    ///
    /// Skips groups that another transaction is holding, releasing or cancelling. Any number of
    /// processes may call this concurrently. The cost is bounded: if there are very many partition
    /// keys, each call visits only some of them, and later calls visit the others.
    pub async fn unpark(&self) -> Result<u64, QueueError> {
        let mut tx = self.pool.begin().await?;
        let (kinds, groups, after) = self.next_groups(&mut tx).await?;
        if groups.is_empty() {
            return Ok(0);
        }
        // The locks and the update must be two statements. The update takes its snapshot after the
        // locks are held, so it sees whether a group was held in the meantime.
        let visited: Vec<PartitionRoom> = sqlx::query_as(ROOMS)
            .bind(self.config.partition_window)
            .bind(kinds)
            .bind(groups)
            .bind(after)
            .bind(PARTITIONS)
            .bind(MIN_PARTITIONS)
            .bind(self.config.group_window)
            .bind(PLACES_WHEN_CROWDED)
            .fetch_all(&mut *tx)
            .await?;
        self.store_positions(&visited);
        let rooms: Vec<&PartitionRoom> = visited.iter().filter(|room| room.room > 0).collect();
        if rooms.is_empty() {
            return Ok(0);
        }
        let unparked: Vec<bool> = sqlx::query_scalar(UNPARK)
            .bind(rooms.iter().map(|room| room.kind.as_str()).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.group_id).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.partition_key.as_deref()).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.room).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;
        if unparked.contains(&false) {
            wake(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(unparked.len() as u64)
    }

    /// Returns the next groups with parked jobs: kinds, ids, and keys after which the pass starts.
    async fn next_groups(
        &self,
        conn: &mut PgConnection,
    ) -> Result<(Vec<String>, Vec<Uuid>, Vec<String>), QueueError> {
        let from = self.partition_cursor.lock().unwrap_or_else(PoisonError::into_inner).group.clone();
        let mut groups = self.groups_after(conn, &from).await?;
        if groups.is_empty() {
            groups = self.groups_after(conn, &Default::default()).await?;
        }
        let mut positions = self.partition_cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let are_all = (groups.len() as i64) < GROUPS;
        positions.group = groups.last().filter(|_| !are_all).cloned().unwrap_or_default();
        let after =
            groups.iter().map(|group| positions.partitions.get(group).cloned().unwrap_or_default()).collect();
        let (kinds, ids) = groups.into_iter().unzip();
        Ok((kinds, ids, after))
    }

    async fn groups_after(
        &self,
        conn: &mut PgConnection,
        (kind, group): &(String, Uuid),
    ) -> Result<Vec<(String, Uuid)>, QueueError> {
        Ok(sqlx::query_as(NEXT_GROUPS).bind(kind).bind(group).bind(GROUPS).fetch_all(conn).await?)
    }

    /// Stores the start of each group's next pass, which is after the keys of this pass. If all
    /// places of a group are taken, its next pass starts after the last key that got places.
    fn store_positions(&self, visited: &[PartitionRoom]) {
        let mut groups: BTreeMap<(&str, Uuid), Vec<&PartitionRoom>> = BTreeMap::new();
        for room in visited {
            groups.entry((&room.kind, room.group_id)).or_default().push(room);
        }
        let mut positions = self.partition_cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if positions.partitions.len() > MAX_POSITIONS {
            positions.partitions.clear();
        }
        for ((kind, group), partitions) in groups {
            let is_full = partitions.iter().map(|room| room.room).sum::<i64>() >= partitions[0].group_room;
            let last =
                if is_full { partitions.iter().rfind(|room| room.room > 0) } else { partitions.last() };
            let is_end = !is_full && (partitions.len() as i64) < partitions[0].most;
            let key = (kind.to_owned(), group);
            match last.filter(|_| !is_end).and_then(|last| last.partition_key.clone()) {
                Some(partition_key) => positions.partitions.insert(key, partition_key),
                None => positions.partitions.remove(&key),
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

/// Visits each key once, by a skip scan of the index `jobs_parked`. Counts along `jobs_line` only
/// as far as needed.
///
/// Groups without free places are not visited. The keys of a group share its free places, and
/// earlier keys get places first. A key whose group is locked gets no places. A group with no key
/// after the start position yields one row without a key.
const ROOMS: &str = "
with crowds as materialized (
    select g.kind, g.group_id, g.after, crowd.size
    from unnest($2::text[], $3::uuid[], $4::text[]) as g(kind, group_id, after)
    cross join lateral (
        select count(*) as size from (
            select 1 from jobs j
            where j.group_id = g.group_id and j.kind = g.kind and j.partition_key is not null and not j.parked
            limit $7
        ) standing
    ) crowd
    where crowd.size < $7
), share as materialized (
    select greatest($5 / greatest(count(*), 1), $6) as most from crowds
), looked as materialized (
    select c.kind, c.group_id, c.size, l.partition_key
    from crowds c left join lateral (
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
        select partition_key from partitions limit (select most from share)
    ) l on true
), rooms as (
    select l.*, case when l.partition_key is not null and line.length <= places / 2 then places - line.length else 0 end as room
    from (select *, count(*) over (partition by kind, group_id) as partitions from looked) l
    cross join lateral (
        select least($1::bigint, case when l.size >= $7 / 2 then $8 else $1::bigint end, greatest(1, ($7 - l.size) / l.partitions)) as places
    ) p
    cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.partition_key = l.partition_key and not j.parked
            limit places / 2 + 1
        ) standing
    ) line
), shared as materialized (
    select kind, group_id, partition_key, $7 - size as group_room,
           greatest(0, least(room, $7 - size - coalesce(sum(room) over before, 0)::bigint)) as room
    from rooms
    window before as (partition by kind, group_id order by partition_key rows between unbounded preceding and 1 preceding)
)
select kind, group_id, partition_key, group_room, (select most from share) as most,
       case when room > 0 and pg_try_advisory_xact_lock_shared(job_group_lock(group_id)) then room else 0 end as room
from shared order by kind, group_id, partition_key";

const UNPARK: &str = "
with wanted as (
    select * from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[]) as w(kind, group_id, partition_key, room)
), picked as materialized (
    select p.id from wanted w cross join lateral (
        select j.id from jobs j
        where j.parked and j.kind = w.kind and j.group_id = w.group_id and j.partition_key = w.partition_key
        order by j.kind, j.group_id, j.partition_key, j.priority, j.id limit w.room
        for update skip locked
    ) p
)
update jobs
set parked = false, held = group_id in (select id from job_groups), scheduled_at = greatest(scheduled_at, clock_timestamp())
where id = any(array(select id from picked))
returning held";
