-- How many links the pages of a crawl did not follow, by reason.
alter table crawls add column links_left_out jsonb not null default '{}';
