-- Numbers the transactions that change a search index outside this database. Such a transaction
-- takes its number after it has acquired the advisory lock of the index, and before it reads rows.
-- An index that several processes can reach leaves a face unchanged if an update with the same or a
-- greater number has already changed it. A paused process or a delayed request then cannot
-- overwrite a newer state.
create sequence index_fence;

-- Returns the next number. It is also at least the time in microseconds, so that numbers continue
-- to grow when a crash, a failover or a restored backup sets the sequence back.
create function next_index_fence() returns bigint language sql as $$
    select setval('index_fence', greatest(nextval('index_fence'), (extract(epoch from clock_timestamp()) * 1e6)::bigint))
$$;

-- A process has begun to delete the index. No other process may change it any more.
alter table index_folders add column released boolean not null default false;
