-- Lanes: of the jobs of one kind, group and lane only so many stand in line at a time; the rest is parked, where no claim sees it.

alter table jobs
    -- What the job would crowd out others for, such as a host; only with a group.
    add column lane text,
    -- Waits until the lane has room. A parked job is held, so it is in none of the indexes that claims read.
    add column parked boolean not null default false,
    add constraint jobs_lanes_have_a_group check (lane is null or group_id is not null),
    add constraint jobs_parked_are_held check (held or not parked);

-- The parked jobs of a lane in the order in which they join the line, and the lanes that have some.
create index jobs_parked on jobs (kind, group_id, lane, priority, id) where parked;

-- How many of a lane stand in line, and a group without its parked jobs.
create index jobs_line on jobs (group_id, kind, lane) where group_id is not null and not parked;
