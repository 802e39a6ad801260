-- How many pages of a crawl lie in one directory, for crawls that bound it. Lock order: after crawls, with pages.
create table crawl_directories (
    crawl_id uuid not null references crawls on delete cascade,
    -- First 128 bits of the SHA-256 of the directory's name, which can be as long as a URL.
    directory_hash uuid not null,
    pages bigint not null,
    primary key (crawl_id, directory_hash)
);
