-- Cameras. Their addresses and credentials are only in the file STREAMS_FILE, never in the
-- database.
create table streams (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    name text not null unique,
    -- What the file says, for the processes that show it.
    kind text not null check (kind in ('rtsp', 'hls', 'mjpeg')),
    purpose text not null,
    store text not null check (store in ('matches', 'alerts', 'all')),
    retention_hours integer not null check (retention_hours between 1 and 720),
    fps real not null check (fps > 0),
    -- Whether a worker should watch it. Only users change it.
    wanted boolean not null default true,
    state text not null default 'waiting'
        check (state in ('stopped', 'waiting', 'connecting', 'running', 'failing', 'off_schedule')),
    detail text,
    -- The worker that watches it, or watched it last.
    holder text,
    width integer,
    height integer,
    -- Counts since the current worker took it over.
    received bigint not null default 0,
    analysed bigint not null default 0,
    dropped bigint not null default 0,
    connections bigint not null default 0,
    -- Time from the arrival of the last analysed frame to the end of its analysis.
    lag_ms integer,
    last_frame_at timestamptz,
    updated_at timestamptz not null default now(),
    unique (collection_id, id)
);

-- The faces of a stream that are stored in one day (UTC) are the tracks of one video, so that
-- search, erasure, export and the page treat them like those of other videos.
alter table videos
    add column stream text,
    -- Midnight of this day. The times of its tracks count from here.
    add column started_at timestamptz,
    -- Hours after which its frames are deleted.
    add column retention_hours integer,
    add check (stream is null or (started_at is not null and retention_hours is not null and state = 'completed'));

create unique index videos_stream on videos (collection_id, stream, started_at)
    where stream is not null and expired_at is null;

alter table videos alter column stream set statistics 0;
