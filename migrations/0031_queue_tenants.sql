-- Jobs of several tenants share the places of a worker, so that one tenant's slow jobs do not keep all of them.

alter table jobs
    -- Who the job is done for; nil for nobody in particular. Jobs enqueued before this migration have none.
    add column tenant uuid not null default '00000000-0000-0000-0000-000000000000';

-- The claim's way to the jobs of each tenant, for the last places of a worker.
create index jobs_tenants on jobs (kind, tenant, priority, scheduled_at, id) where state <> 'running' and not held;
