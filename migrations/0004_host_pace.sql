-- What several crawler processes have to know of a host together, besides its turns.

alter table hosts
    -- End of the last request, whoever sent it: a delay that is learnt later (Crawl-delay, in the answer to that very request) counts from
    -- here too.
    add column finished_at timestamptz,
    -- A process is fetching robots.txt, until this time at the latest; the others wait for what it brings.
    add column robots_asked_until timestamptz,
    -- How the host bears up: the delay that its answers led to, and its refusals (429, 503) in a row.
    add column pace_ms integer not null default 0,
    add column refusals integer not null default 0;
