-- Stops older programs.
-- Older programs cannot read images without perceptual hashes, and would delete the files of
-- waiting videos, because they do not know which row refers to them.
--
-- Videos, their tracks, and the frames that contain a best shot of a track. Times are microseconds
-- from the first frame.

create table videos (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    state text not null default 'queued'
        check (state in ('queued', 'running', 'paused', 'completed', 'cancelled', 'failed')),
    -- Of the file. Null until the file is known.
    sha256 bytea check (octet_length(sha256) = 32),
    bytes bigint check (bytes >= 0),
    -- Where the file is: its address, or the blob of an upload, which is deleted when the video
    -- has ended.
    source_url text,
    source_key text,
    -- The scan that reads the file, or read it last. It has no job: the video ends with the scan.
    scan_id uuid references crawls on delete set null,
    options jsonb not null,
    -- What the file says about itself. Null until it was opened.
    codec text,
    width integer,
    height integer,
    duration_us bigint,
    -- Everything up to this time is stored. A worker continues here.
    checkpoint_us bigint,
    frames bigint not null default 0,
    -- Highest number of a track. Some tracks are not stored.
    last_track integer not null default 0,
    -- Tracks without a face that can be recognised. They are counted, not stored.
    unidentified bigint not null default 0,
    people integer,
    reason text,
    detail text,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    check ((finished_at is null) = (state in ('queued', 'running', 'paused'))),
    unique (collection_id, id)
);

-- A file is stored once in a collection, unless the earlier attempt was of no use.
create unique index videos_sha256 on videos (collection_id, sha256)
    where sha256 is not null and state not in ('cancelled', 'failed');
create index videos_source_key on videos (source_key) where source_key is not null;
create index videos_live on videos (id) where state in ('queued', 'running', 'paused');
create index videos_scan on videos (scan_id) where scan_id is not null;
create index videos_source_url on videos (md5(source_url)) where source_url is not null;

-- A frame with a best shot is an image without a file of its own.
create table video_frames (
    image_id uuid primary key references images on delete cascade,
    video_id uuid not null references videos on delete cascade,
    at_us bigint not null,
    unique (video_id, at_us)
);

alter table images
    -- Null for frames: a frame is never the duplicate of a picture.
    alter column phash drop not null,
    alter column dhash drop not null,
    alter column ahash drop not null;

-- A face in successive frames of one shot.
create table tracks (
    id uuid primary key,
    collection_id uuid not null,
    video_id uuid not null,
    -- Counts from 1 in the order of the starts.
    number integer not null,
    -- Number of the person in this video, from 1. Null until the whole video was read.
    person integer,
    started_us bigint not null,
    ended_us bigint not null check (ended_us >= started_us),
    samples integer not null,
    -- `tracking::boxes`, version 1.
    boxes bytea not null check (octet_length(boxes) <= 16384),
    foreign key (collection_id, video_id) references videos (collection_id, id) on delete cascade,
    unique (collection_id, id),
    unique (video_id, number)
);

create index tracks_time on tracks (video_id, started_us, id);

-- The best shots of a track; rank 0 is the best.
create table track_faces (
    collection_id uuid not null,
    track_id uuid not null,
    face_id uuid primary key,
    at_us bigint not null,
    rank smallint not null,
    foreign key (collection_id, track_id) references tracks (collection_id, id) on delete cascade,
    foreign key (collection_id, face_id) references faces (collection_id, id) on delete cascade
);

create index track_faces_track on track_faces (collection_id, track_id);

-- A track ends with its last face. A trigger, so that no way of deleting a face can forget it.
create function delete_tracks_without_faces() returns trigger language plpgsql as $$
begin
    -- Two transactions may each delete one of the last two faces. The second one waits here.
    perform 1 from tracks where id in (select track_id from gone) order by id for update;
    delete from tracks t
    where t.id in (select track_id from gone)
      and not exists (select 1 from track_faces f where f.track_id = t.id);
    return null;
end
$$;

create trigger track_faces_deleted after delete on track_faces
    referencing old table as gone
    for each statement execute function delete_tracks_without_faces();

alter table suppressions
    -- The time of an erased face in the video with this sha256.
    add column at_us bigint check (at_us is null or (sha256 is not null and region is not null));

-- Erased values must not stay in the planner's statistics.
alter table videos
    alter column source_url set statistics 0, alter column detail set statistics 0;
alter index videos_source_url alter column 1 set statistics 0;
alter table tracks alter column boxes set statistics 0;
