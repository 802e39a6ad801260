//! Lanes: a million jobs for one slow host do not stand in the way of others.
//!
//! Of the jobs of one kind, group and lane at most `Config::lane_window` stand in line, and of those of one kind and group, over all lanes, at most
//! `Config::group_window`; further ones are parked when they are enqueued. A parked job is held, so claims, holds and releases never meet
//! it. When half of a lane's line has ended, its best parked jobs join the line, at its end: jobs that were enqueued in the meantime
//! are not overtaken by those that waited aside.
//!
//! A group can have a million lanes. A look visits a bounded number of groups, and of lanes in those that have room; the next look of the process
//! goes on from there, in each group from where its last one ended: groups do not wait for each other, and no lane is passed by.
use crate::queue::wake;
use crate::{Queue, QueueError};
use sqlx::{FromRow, PgConnection};
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use uuid::Uuid;

/// A lane with parked jobs, and the room in its line.
#[derive(FromRow)]
struct Room {
    kind: String,
    group_id: Uuid,
    /// `None`: the group has no lane behind the one it is looked at from.
    lane: Option<String>,
    room: i64,
    /// Room of the group before this look.
    group_room: i64,
    /// The most lanes that this look visits of each group.
    most: i64,
}

/// Groups visited by one look; lanes over all of them, and the least of each.
const GROUPS: i64 = 16;
const LANES: i64 = 500;
const LEAST_LANES: i64 = 20;
/// Places of a lane in a group whose line is half full.
pub(crate) const FEW_PLACES: i64 = 8;

/// Where looks ended.
#[derive(Debug, Default)]
pub(crate) struct LanePositions {
    /// Kind and id of the last group of the last look; the default is before all others.
    group: (String, Uuid),
    /// The last lane of a group's last look; one that is not there is looked at from its first lane on.
    lanes: HashMap<(String, Uuid), String>,
}

/// Groups whose lanes are remembered, at most: those of crawls that were cancelled are never seen again.
const MOST_POSITIONS: usize = 10_000;

impl Queue {
    /// Lets parked jobs join the lines of lanes that have room; the number of jobs. Lanes of a group that is just being held, released or
    /// cancelled are left for the next time. Any number of processes may call this at any time. The cost is bounded: of very many lanes with
    /// parked jobs each call visits some, in turn.
    pub async fn unpark(&self) -> Result<u64, QueueError> {
        let mut tx = self.pool.begin().await?;
        let (kinds, groups, after) = self.next_groups(&mut tx).await?;
        if groups.is_empty() {
            return Ok(0);
        }
        // The locks and the update are two statements on purpose: the second one's snapshot is taken after the locks are had, so that it sees
        // whether a group was held in the meantime.
        let looked: Vec<Room> = sqlx::query_as(ROOMS)
            .bind(self.config.lane_window)
            .bind(kinds)
            .bind(groups)
            .bind(after)
            .bind(LANES)
            .bind(LEAST_LANES)
            .bind(self.config.group_window)
            .bind(FEW_PLACES)
            .fetch_all(&mut *tx)
            .await?;
        self.go_on_after(&looked);
        let rooms: Vec<&Room> = looked.iter().filter(|room| room.room > 0).collect();
        if rooms.is_empty() {
            return Ok(0);
        }
        let held: Vec<bool> = sqlx::query_scalar(UNPARK)
            .bind(rooms.iter().map(|room| room.kind.as_str()).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.group_id).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.lane.as_deref()).collect::<Vec<_>>())
            .bind(rooms.iter().map(|room| room.room).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;
        if held.contains(&false) {
            wake(&mut tx).await?;
        }
        tx.commit().await?;
        Ok(held.len() as u64)
    }

    /// Groups with parked jobs whose turn it is: kinds, ids, and the lanes after which they are looked at.
    async fn next_groups(
        &self,
        conn: &mut PgConnection,
    ) -> Result<(Vec<String>, Vec<Uuid>, Vec<String>), QueueError> {
        let from = self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner).group.clone();
        let mut groups = self.groups_after(conn, &from).await?;
        if groups.is_empty() {
            groups = self.groups_after(conn, &Default::default()).await?;
        }
        let mut positions = self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner);
        let are_all = (groups.len() as i64) < GROUPS;
        positions.group = groups.last().filter(|_| !are_all).cloned().unwrap_or_default();
        let after =
            groups.iter().map(|group| positions.lanes.get(group).cloned().unwrap_or_default()).collect();
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

    /// The next look at each group begins after the lanes of this one. Where a group ran out of room, it begins after the last lane that got some.
    fn go_on_after(&self, looked: &[Room]) {
        let mut groups: BTreeMap<(&str, Uuid), Vec<&Room>> = BTreeMap::new();
        for room in looked {
            groups.entry((&room.kind, room.group_id)).or_default().push(room);
        }
        let mut positions = self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner);
        if positions.lanes.len() > MOST_POSITIONS {
            positions.lanes.clear();
        }
        for ((kind, group), lanes) in groups {
            let is_full = lanes.iter().map(|lane| lane.room).sum::<i64>() >= lanes[0].group_room;
            let last = if is_full { lanes.iter().rfind(|lane| lane.room > 0) } else { lanes.last() };
            let is_end = !is_full && (lanes.len() as i64) < lanes[0].most;
            let key = (kind.to_owned(), group);
            match last.filter(|_| !is_end).and_then(|last| last.lane.clone()) {
                Some(lane) => positions.lanes.insert(key, lane),
                None => positions.lanes.remove(&key),
            };
        }
    }
}

/// Hops from group to group along `jobs_parked`.
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

/// Hops from lane to lane along `jobs_parked`; counts no further than it has to along `jobs_line`. Groups whose line is full are not looked at. The lanes
/// of a group share its room; those before have theirs first. The room of a lane whose group is locked is 0. A group
/// with no lane behind the one it is looked at from has one row without a lane.
const ROOMS: &str = "
with crowds as materialized (
    select g.kind, g.group_id, g.after, crowd.size
    from unnest($2::text[], $3::uuid[], $4::text[]) as g(kind, group_id, after)
    cross join lateral (
        select count(*) as size from (
            select 1 from jobs j
            where j.group_id = g.group_id and j.kind = g.kind and j.lane is not null and not j.parked
            limit $7
        ) standing
    ) crowd
    where crowd.size < $7
), share as materialized (
    select greatest($5 / greatest(count(*), 1), $6) as most from crowds
), looked as materialized (
    select c.kind, c.group_id, c.size, l.lane
    from crowds c left join lateral (
        with recursive lanes as (
            (select j.lane from jobs j
             where j.parked and j.kind = c.kind and j.group_id = c.group_id and j.lane > c.after
             order by j.lane limit 1)
            union all
            select n.lane from lanes l cross join lateral (
                select j.lane from jobs j
                where j.parked and j.kind = c.kind and j.group_id = c.group_id and j.lane > l.lane
                order by j.lane limit 1
            ) n
        )
        select lane from lanes limit (select most from share)
    ) l on true
), rooms as (
    select l.*, case when l.lane is not null and line.length <= places / 2 then places - line.length else 0 end as room
    from (select *, count(*) over (partition by kind, group_id) as lanes from looked) l
    cross join lateral (
        select least($1, case when l.size >= $7 / 2 then $8 else $1 end, greatest(1, ($7 - l.size) / l.lanes)) as places
    ) p
    cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.lane = l.lane and not j.parked
            limit places / 2 + 1
        ) standing
    ) line
), shared as materialized (
    select kind, group_id, lane, $7 - size as group_room,
           greatest(0, least(room, $7 - size - coalesce(sum(room) over before, 0)::bigint)) as room
    from rooms
    window before as (partition by kind, group_id order by lane rows between unbounded preceding and 1 preceding)
)
select kind, group_id, lane, group_room, (select most from share) as most,
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
