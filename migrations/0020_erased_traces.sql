-- What is needed to find every trace of an erased picture: its address, its alternative text, and the titles of the pages that show it.

-- The memory of a page is compressed, so that no statement can see which addresses it mentions. What is remembered so far cannot be
-- searched for what was erased already, so all of it goes: the next crawl fetches these pages in full, once.
truncate page_visits;

alter table page_visits
    -- Addresses of links and images in the content: the first 32 bits of each one's SHA-256. Two addresses that share them cost one page its memory.
    add column mentions integer[] not null;

create index page_visits_mentions on page_visits using gin (mentions);

-- Pages that answered under another address than the one asked for, by the one that answered.
create index pages_moved on pages (crawl_id, md5(final_url)) where final_url is not null and final_url <> url;
-- Sightings of pictures that were never stored, by page.
create index image_sources_page_unstored on image_sources (page_hash) where image_id is null;

-- As in 0014: the planner's statistics hold no addresses and no titles. A server may name a picture in its ETag.
alter table page_visits
    alter column final_url set statistics 0, alter column mentions set statistics 0, alter column etag set statistics 0,
    alter column last_modified set statistics 0;
alter table image_visits alter column etag set statistics 0, alter column last_modified set statistics 0;
alter table pages
    alter column url set statistics 0, alter column final_url set statistics 0, alter column title set statistics 0,
    alter column detail set statistics 0, alter column etag set statistics 0, alter column last_modified set statistics 0;
alter index pages_moved alter column 2 set statistics 0;
alter table crawls alter column seeds set statistics 0;
alter table jobs alter column payload set statistics 0, alter column last_error set statistics 0;
alter table finished_jobs alter column payload set statistics 0, alter column last_error set statistics 0;
