-- The job queue. The state machine and the reasons for its locks are in docs/QUEUE.md.

create type job_state as enum ('available', 'running', 'retryable', 'completed', 'discarded', 'cancelled');

-- Live jobs only: a job leaves this table in the statement that ends it, so its size follows the work that is
-- left and not the work that was ever done. Fixed-width columns first, for short rows.
create table jobs (
    id uuid primary key,                        -- UUIDv7, made by the enqueuer: ids of one process order by time
    group_id uuid,                              -- what the job belongs to; see job_groups
    fence bigint not null default 0,            -- bumped by every claim; a word under an older fence does not count
    scheduled_at timestamptz not null,          -- not before this time
    created_at timestamptz not null,
    lease_until timestamptz,                    -- by the database's clock; set exactly while running
    priority smallint not null,                 -- lower runs first
    attempt smallint not null default 0,        -- runs so far, the present one included
    max_attempts smallint not null,
    state job_state not null default 'available',
    held boolean not null default false,        -- its group is held; a copy, so that a claim never looks at held jobs
    kind text not null,                         -- names the handler
    unique_key text,                            -- at most one live job for each kind and key
    locked_by text,                             -- the worker that holds the lease, for people
    last_error text,
    payload jsonb not null,
    constraint jobs_are_live check (state in ('available', 'running', 'retryable')),
    constraint jobs_running_have_a_lease check ((state = 'running') = (lease_until is not null)),
    constraint jobs_attempts_in_range check (attempt between 0 and max_attempts and max_attempts > 0)
) with (
    -- Room on each page for the next version of a row, so that heartbeats and claims stay near it.
    fillfactor = 80,
    -- Every job dies twice here (claim, completion). Vacuum by count instead of by share of the table, and soon:
    -- dead entries at the head of jobs_ready are what slows a claim. Never give pages back at the end: that takes an
    -- exclusive lock, and the table will grow again.
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_threshold = 20000,
    autovacuum_analyze_scale_factor = 0.05,
    vacuum_truncate = false
);

-- The claim's only way in. Within one kind and priority the due jobs are one contiguous range in the order in which they
-- run, whatever waits for a later time, is held, runs, or belongs to other kinds.
create index jobs_ready on jobs (kind, priority, scheduled_at, id) where state <> 'running' and not held;

-- The rescuer's way in. Not "where state = 'running'", which says the same: the planner would then take this index, small as
-- it seems, to find one running job by its id, and read all the running ones for each.
create index jobs_leases on jobs (lease_until) where lease_until is not null;

-- All rows here are live, so the key needs no condition on the state.
create unique index jobs_unique_key on jobs (kind, unique_key) where unique_key is not null;

-- Hold, release, cancel, count and list a group.
create index jobs_group on jobs (group_id, id) where group_id is not null;

-- Few at any time, and what an operator looks for.
create index jobs_retryable on jobs (id) where state = 'retryable';

-- Ended jobs: completed and cancelled ones for a while, discarded ones until they are retried or purged by hand.
create table finished_jobs (
    id uuid primary key,
    group_id uuid,
    fence bigint not null,
    scheduled_at timestamptz not null,
    created_at timestamptz not null,
    finished_at timestamptz not null,
    priority smallint not null,
    attempt smallint not null,
    max_attempts smallint not null,
    state job_state not null,
    kind text not null,
    unique_key text,
    locked_by text,                             -- the worker of the last run
    last_error text,
    payload jsonb not null,
    constraint finished_jobs_are_over check (state in ('completed', 'discarded', 'cancelled'))
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);

-- The purge, oldest first. Grows at its right end only, which is the cheapest index to keep.
create index finished_jobs_purge on finished_jobs (finished_at) where state <> 'discarded';

-- Lists of what went wrong, over all and by group; completed jobs, the many, are not in these.
create index finished_jobs_discarded on finished_jobs (id) where state = 'discarded';
create index finished_jobs_cancelled on finished_jobs (id) where state = 'cancelled';
create index finished_jobs_group on finished_jobs (group_id, id) where group_id is not null and state <> 'completed';

-- Held groups; a group that may run has no row.
create table job_groups (
    id uuid primary key,
    held_at timestamptz not null default now()
);

-- The advisory lock of a group. Shared: jobs of the group are being added, completed or failed in a transaction.
-- Exclusive: the whole group is being held, released or cancelled, and must miss none of those.
create function job_group_lock(group_id uuid) returns bigint
    language sql immutable strict parallel safe
    return hashtextextended('job group ' || group_id::text, 0);
