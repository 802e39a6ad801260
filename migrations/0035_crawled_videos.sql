-- Stops older programs.
-- Older workers would fetch the videos of a crawl without its rules, such as robots.txt.
--
-- Videos that crawls found. A video of a crawl is also a row of its ledger.

alter table crawls
    -- How many videos were admitted. Deleted ones still count.
    add column videos_admitted integer not null default 0;

alter table videos
    add column crawl_id uuid references crawls on delete set null,
    -- Of `source_url`: first 128 bits of its SHA-256. Set for videos of crawls.
    add column url_hash uuid,
    -- Host and port of `source_url`. Set for videos of crawls.
    add column host text,
    -- Of the address after redirects, if it differs from `source_url`.
    add column final_hash uuid,
    -- The video of the same file that the collection had before this one.
    add column original_id uuid references videos on delete set null,
    -- Validators of the response with the file, for the next conditional request.
    add column etag text,
    add column last_modified text,
    add check (crawl_id is null or url_hash is not null);

-- A crawl reads an address once.
create unique index videos_crawl on videos (crawl_id, url_hash) where crawl_id is not null;
create index videos_final on videos (final_hash) where final_hash is not null;
create index videos_original on videos (original_id) where original_id is not null;

-- The pages on which a crawl found a video.
create table video_sources (
    id bigint generated always as identity primary key,
    video_id uuid not null references videos on delete cascade,
    page_url text not null,
    -- Of `page_url`: first 128 bits of its SHA-256.
    page_hash uuid not null,
    -- Of the page's address before redirects, if it differs.
    page_asked_hash uuid,
    found_at timestamptz not null default now(),
    unique (video_id, page_hash)
);

create index video_sources_page on video_sources (page_hash);
create index video_sources_page_asked on video_sources (page_asked_hash) where page_asked_hash is not null;

-- Erased values must not stay in the planner's statistics.
alter table videos alter column host set statistics 0;
alter table video_sources alter column page_url set statistics 0;
