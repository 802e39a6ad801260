-- A job that ends its process takes the jobs beside it along. These columns tell the one from the others.

alter table jobs
    -- How often the lease ran out while the job ran: its process ended, or could not reach the database for so long.
    add column crashes smallint not null default 0,
    -- The present run has its process to itself, so if the process ends, it is this job that ended it.
    add column alone boolean not null default false;

-- The claim's way to the jobs that have to run alone, of which it takes one at a time. Few at any time: jobs_ready holds them too, and the
-- scan of a claim passes over them there.
create index jobs_suspects on jobs (kind, priority, scheduled_at, id) where crashes > 1 and state <> 'running' and not held;
