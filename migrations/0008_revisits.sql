-- What a collection remembers of addresses, so that its next crawl need not fetch what has not changed; and what a crawl's directories yield.

create table page_visits (
    collection_id uuid not null references collections on delete cascade,
    -- First 128 bits of the SHA-256 of the address that was asked for.
    url_hash uuid not null,
    -- The last crawl that was there. What it remembers goes with it.
    crawl_id uuid not null references crawls on delete cascade,
    -- The address that answered, after redirects: the validators are its own.
    final_url text not null,
    etag text,
    last_modified text,
    -- Length of the body.
    bytes bigint not null,
    -- First 128 bits of the SHA-256 of what the page was read with: reader, product token, site recipe.
    reader uuid not null,
    -- Links and images as they were read, before any crawl's own rules; compressed, a quarter of a MiB at most.
    content bytea not null,
    primary key (collection_id, url_hash),
    constraint page_visits_have_a_validator check (etag is not null or last_modified is not null)
);

create index page_visits_crawl on page_visits (crawl_id);
-- Compressed already.
alter table page_visits alter column content set storage external;

create table image_visits (
    collection_id uuid not null references collections on delete cascade,
    url_hash uuid not null,
    -- What the address turned out to be. Erasing the image forgets the validators with it.
    image_id uuid not null references images on delete cascade,
    final_url text not null,
    etag text,
    last_modified text,
    bytes bigint not null,
    primary key (collection_id, url_hash),
    constraint image_visits_have_a_validator check (etag is not null or last_modified is not null)
);

create index image_visits_image on image_visits (image_id);

alter table crawl_directories
    -- Pages of the directory that were read, and images that were new to the crawl on them. A host has such a row, too, under its own name.
    add column pages_read bigint not null default 0,
    add column images_found bigint not null default 0;
