-- How often a crawl found a new address and did not add it, because of a limit.
alter table crawls
    add column pages_over_limit bigint not null default 0,
    add column images_over_limit bigint not null default 0,
    add column videos_over_limit bigint not null default 0;
