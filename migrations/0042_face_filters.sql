-- Stops older programs.
-- Older programs would store faces in a search index without the time at which they were stored,
-- and a search that is limited to a period would not find these faces.
--
-- Indexes for searches that are limited to a host or to a period.

-- Returns the host of an http or https URL in lower case, without the port and the final dot. Null
-- for other texts, such as paths of files. The host has at most 253 characters, because the length
-- of an index entry is limited.
create function url_host(url text) returns text language sql immutable strict parallel safe
return rtrim(lower(substring(url from '^https?://(?:[^/?#@]*@)?(\[[0-9a-fA-F:.]{2,45}\]|[^][/?#:@]{1,253})(?:[:/?#]|$)')), '.');

-- Returns the site where an image or a video was found, with its characters in reverse order. All
-- subdomains of a host are then in one range of an index. The site is the host of the page. For
-- a file that was not found on a page, it is the host of the file.
create function site_key(page_url text, file_url text) returns text language sql immutable parallel safe
return reverse(url_host(coalesce(page_url, file_url)));

create index image_sources_site on image_sources ((site_key(page_url, image_url) collate "C")) where image_id is not null;
-- A search tests with it whether one image was found on a site.
create index image_sources_image_site on image_sources (image_id, (site_key(page_url, image_url) collate "C"))
    where image_id is not null;
create index video_sources_site on video_sources ((site_key(page_url, null) collate "C"));
create index videos_site on videos ((site_key(null, source_url) collate "C")) where source_url is not null;

-- Times increase with the position of a row in the table, so an index of block ranges is enough. It
-- has a few kilobytes and costs an insertion almost nothing.
create index faces_created on faces using brin (created_at) with (autosummarize = on);

-- Erased values must not stay in the planner's statistics.
alter index image_sources_site alter column 1 set statistics 0;
alter index image_sources_image_site alter column 2 set statistics 0;
alter index video_sources_site alter column 1 set statistics 0;
alter index videos_site alter column 1 set statistics 0;

-- True if the set lacks a field that the program now stores for each face. Such a set is replaced.
-- Until the new set is complete, searches use the old one, except searches that need the field.
alter table index_sets add column outdated boolean not null default false;
update index_sets set outdated = true where state = 'serving';
delete from index_sets where state = 'building';
