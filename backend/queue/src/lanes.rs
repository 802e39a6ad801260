//! Lanes: a million jobs for one slow host do not stand in the way of others.
//!
//! Of the jobs of one kind, group and lane at most `Config::lane_window` stand in line, and of those of one kind and group, over all lanes, at most
//! `Config::group_window`; further ones are parked when they are enqueued. A parked job is held, so claims, holds and releases never meet
//! it. When half of a lane's line has ended, its best parked jobs join the line, at its end: jobs that were enqueued in the meantime
//! are not overtaken by those that waited aside.
//!
//! A group can have a million lanes. A look visits a bounded number of them, and the next look of the process goes on from there.
use crate::queue::wake;
use crate::{Queue, QueueError};
use sqlx::FromRow;
use std::sync::PoisonError;
use uuid::Uuid;

/// A lane with parked jobs, and the room in its line.
#[derive(FromRow)]
struct Room {
    kind: String,
    group_id: Uuid,
    lane: String,
    room: i64,
}

/// Lanes visited by one look.
const LANES: i64 = 500;
/// Places of a lane in a group whose line is half full.
pub(crate) const FEW_PLACES: i64 = 8;

/// The lane that a look ended at: kind, group, lane. The default is before all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct LanePosition(String, Uuid, String);

impl Queue {
    /// Lets parked jobs join the lines of lanes that have room; the number of jobs. Lanes of a group that is just being held, released or
    /// cancelled are left for the next time. Any number of processes may call this at any time. The cost is bounded: of very many lanes with
    /// parked jobs each call visits some, in turn.
    pub async fn unpark(&self) -> Result<u64, QueueError> {
        let mut tx = self.pool.begin().await?;
        let from = self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The locks and the update are two statements on purpose: the second one's snapshot is taken after the locks are had, so that it sees
        // whether a group was held in the meantime.
        let looked: Vec<Room> = sqlx::query_as(ROOMS)
            .bind(self.config.lane_window)
            .bind(from.0)
            .bind(from.1)
            .bind(from.2)
            .bind(LANES)
            .bind(self.config.group_window)
            .bind(FEW_PLACES)
            .fetch_all(&mut *tx)
            .await?;
        let all = (looked.len() as i64) < LANES;
        let next = looked.last().filter(|_| !all).map_or_else(LanePosition::default, |last| {
            LanePosition(last.kind.clone(), last.group_id, last.lane.clone())
        });
        *self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner) = next;
        let rooms: Vec<&Room> = looked.iter().filter(|room| room.room > 0).collect();
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

/// Hops from lane to lane along `jobs_parked`; counts no further than it has to along `jobs_line`. A lane gets its room only as far as its
/// group has some, those before it in the same look first; the room of a lane whose group is locked is 0.
const ROOMS: &str = "
with recursive lanes as (
    (select kind, group_id, lane from jobs where parked and (kind, group_id, lane) > ($2, $3, $4)
     order by kind, group_id, lane limit 1)
    union all
    select n.kind, n.group_id, n.lane from lanes l cross join lateral (
        select j.kind, j.group_id, j.lane from jobs j
        where j.parked and (j.kind, j.group_id, j.lane) > (l.kind, l.group_id, l.lane)
        order by j.kind, j.group_id, j.lane limit 1
    ) n
), looked as materialized (
    select * from lanes limit $5
), crowds as materialized (
    select g.kind, g.group_id, crowd.size
    from (select distinct kind, group_id from looked) g cross join lateral (
        select count(*) as size from (
            select 1 from jobs j
            where j.group_id = g.group_id and j.kind = g.kind and j.lane is not null and not j.parked
            limit $6
        ) standing
    ) crowd
), rooms as (
    select l.*, c.size, case when line.length <= places / 2 then places - line.length else 0 end as room
    from looked l join crowds c using (kind, group_id)
    cross join lateral (select case when c.size >= $6 / 2 then least($1, $7) else $1 end as places) p
    cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.lane = l.lane and not j.parked
            limit places / 2 + 1
        ) standing
    ) line
), shared as materialized (
    select kind, group_id, lane, greatest(0, least(room, $6 - size - coalesce(sum(room) over before, 0)::bigint)) as room
    from rooms
    window before as (partition by kind, group_id order by lane rows between unbounded preceding and 1 preceding)
)
select kind, group_id, lane,
       case when room > 0 and pg_try_advisory_xact_lock_shared(job_group_lock(group_id)) then room else 0 end as room
from shared order by kind, group_id, lane";

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
