//! Lanes: a million jobs for one slow host do not stand in the way of others.
//!
//! Of the jobs of one kind, group and lane at most `Config::lane_window` stand in line; further ones are parked when they are enqueued. A
//! parked job is held, so claims, holds and releases never meet it. When half of a lane's line has ended, its best parked jobs join the
//! line, at its end: jobs that were enqueued in the meantime are not overtaken by those that waited aside.
use crate::queue::wake;
use crate::{Queue, QueueError};
use sqlx::FromRow;
use uuid::Uuid;

/// A lane with parked jobs and room in its line.
#[derive(FromRow)]
struct Room {
    kind: String,
    group_id: Uuid,
    lane: String,
    room: i64,
}

impl Queue {
    /// Lets parked jobs join the lines of lanes that have room; the number of jobs. Lanes of a group that is just being held, released or
    /// cancelled are left for the next time. Any number of processes may call this at any time; the cost grows with the lanes that have
    /// parked jobs, not with the jobs.
    pub async fn unpark(&self) -> Result<u64, QueueError> {
        let mut tx = self.pool.begin().await?;
        // The locks and the update are two statements on purpose: the second one's snapshot is taken after the locks are had, so that it sees
        // whether a group was held in the meantime.
        let rooms: Vec<Room> =
            sqlx::query_as(ROOMS).bind(self.config.lane_window).fetch_all(&mut *tx).await?;
        if rooms.is_empty() {
            return Ok(0);
        }
        let held: Vec<bool> = sqlx::query_scalar(UNPARK)
            .bind(rooms.iter().map(|room| room.kind.as_str()).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.group_id).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.lane.as_str()).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.room).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;
        if held.contains(&false) {
            wake(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(held.len() as u64)
    }
}

/// Hops from lane to lane along `jobs_parked`; counts no further than it has to along `jobs_line`.
const ROOMS: &str = "
with recursive lanes as (
    (select kind, group_id, lane from jobs where parked order by kind, group_id, lane limit 1)
    union all
    select n.kind, n.group_id, n.lane from lanes l cross join lateral (
        select j.kind, j.group_id, j.lane from jobs j
        where j.parked and (j.kind, j.group_id, j.lane) > (l.kind, l.group_id, l.lane)
        order by j.kind, j.group_id, j.lane limit 1
    ) n
), rooms as materialized (
    select l.kind, l.group_id, l.lane, $1 - line.length as room
    from lanes l cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.lane = l.lane and not j.parked
            limit $1 / 2 + 1
        ) standing
    ) line
    where line.length <= $1 / 2
)
select kind, group_id, lane, room from rooms where pg_try_advisory_xact_lock_shared(job_group_lock(group_id))";

const UNPARK: &str = "
with wanted as (
    select * from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[]) as w(kind, group_id, lane, room)
), picked as materialized (
    select p.id from wanted w cross join lateral (
        select j.id from jobs j
        where j.parked and j.kind = w.kind and j.group_id = w.group_id and j.lane = w.lane
        order by j.kind, j.group_id, j.lane, j.priority, j.id limit w.room
        for update skip locked
    ) p
)
update jobs
set parked = false, held = group_id in (select id from job_groups), scheduled_at = greatest(scheduled_at, clock_timestamp())
where id = any(array(select id from picked))
returning held";
