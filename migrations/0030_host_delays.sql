-- Delays that crawls name for themselves. They bind the requests of their own collection to a host, not those of others,
-- so they cannot be in hosts, which all collections share.

create table host_delays (
    collection_id uuid not null references collections on delete cascade,
    host_key text not null,
    -- End of the collection's last request to the host plus its delay.
    next_at timestamptz not null,
    -- A request is out, until this time at the latest.
    busy_until timestamptz,
    -- The latest time told to somebody who has to wait; null is "the turn is taken by whoever asked last".
    told_until timestamptz,
    primary key (collection_id, host_key)
) with (fillfactor = 70);
