-- Stops older programs.
-- Older programs would treat the file of an expired video as stored.
--
-- Videos and retention: when a file was last found, and that retention deleted a part of it.

alter table videos
    -- When the file was last found: by a crawl, a scan or an upload. For the original of a file.
    add column found_at timestamptz not null default now(),
    -- Set when retention deletes frames of the video. Its file can then be read again.
    add column expired_at timestamptz;

update videos v set found_at = greatest(
    v.created_at, v.finished_at, (select max(o.created_at) from videos o where o.original_id = v.id));

drop index videos_sha256;
create unique index videos_sha256 on videos (collection_id, sha256)
    where sha256 is not null and state not in ('cancelled', 'failed') and expired_at is null;
