-- How often a crawl found an address that a limit kept it from adding.
alter table crawls
    add column pages_over_limit bigint not null default 0,
    add column images_over_limit bigint not null default 0,
    add column videos_over_limit bigint not null default 0;
