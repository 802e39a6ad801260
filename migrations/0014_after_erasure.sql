-- What comes after an erasure: doing it again in a database that was restored from an older backup, and taking back what it keeps out.

-- What was deleted on purpose: faces, images, people and collections; not what retention or a larger version of a picture took away, which a
-- restored database does by itself.
create table tombstones (
    -- SHA-256 of the id. Whoever has the row, in a backup, knows that it must go; from here nothing leads back to what it was (an id has 74
    -- random bits).
    digest bytea primary key check (octet_length(digest) = 32),
    created_at timestamptz not null default now()
);

-- Smaller versions whose place an image took: when it is erased, so are they, in a backup that still has them.
create table superseded_images (
    image_id uuid not null references images on delete cascade,
    digest bytea not null check (octet_length(digest) = 32),
    primary key (image_id, digest)
);

alter table erasures
    -- When what it kept out was let in again.
    add column lifted_at timestamptz;

-- `analyze` copies samples of a column into the planner's statistics, where an erased value would stay until the next one. The planner needs none of these.
alter table faces alter column embedding set statistics 0;
alter table subjects alter column name set statistics 0, alter column external_id set statistics 0, alter column metadata set statistics 0;
alter index subjects_name alter column 2 set statistics 0;
alter table image_sources
    alter column image_url set statistics 0, alter column page_url set statistics 0, alter column alt set statistics 0;
alter index image_sources_image_url alter column 1 set statistics 0;
alter table image_urls alter column url set statistics 0, alter column detail set statistics 0;
alter table image_visits alter column final_url set statistics 0;
