-- Crawls that start again: every run is a crawl of its own, and the runs of one request form a series.

alter table crawls
    -- The id of the series' first run; null for a crawl that runs once.
    add column series_id uuid,
    -- When the next run begins. Set on an ended run until then; null when there will be none. A job of the queue keeps the time;
    -- this is what makes its word count, and what a cancellation takes back.
    add column next_run_at timestamptz,
    add constraint crawls_next_run_of_an_ended_run check (next_run_at is null or (series_id is not null and finished_at is not null));

create index crawls_series on crawls (series_id, id) where series_id is not null;
