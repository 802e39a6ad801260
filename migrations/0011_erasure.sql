-- Erasures, what they leave behind, and blobs on their way out.

-- Blobs that lost a row: written in the transaction that deletes the row, so that no crash can forget them. Whoever removes them first
-- looks whether another row names the blob. A row with deleted_at stays for a day: a picture that wrote the same blob just before
-- finds it when it stores its own row, and writes the blob again.
create table blob_deletions (
    key text primary key,
    requested_at timestamptz not null default now(),
    deleted_at timestamptz
);

create index blob_deletions_pending on blob_deletions (requested_at) where deleted_at is null;
create index blob_deletions_done on blob_deletions (deleted_at) where deleted_at is not null;

-- What was erased, in numbers; nothing that says who.
create table erasures (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    kind text not null check (kind in ('likeness', 'face', 'image', 'subject', 'url')),
    suppress boolean not null,
    suppress_person boolean not null,
    -- Lowest similarity of what went, for a likeness.
    threshold real,
    faces bigint not null,
    images bigint not null,
    suppressions bigint not null,
    created_at timestamptz not null default now()
);

create index erasures_collection on erasures (collection_id, id);

alter table suppressions
    add column erasure_id uuid references erasures on delete set null,
    -- x, y, width, height of an erased face as fractions of the picture: only this face of the picture is kept out. Null: the whole picture.
    add column region real[] check (cardinality(region) = 4),
    -- Compared by the database itself, so bits; nothing was ever stored in the column before.
    alter column sketch type bit(256) using null;

create index suppressions_erasure on suppressions (erasure_id) where erasure_id is not null;

-- "What was found at this address?" Addresses can be longer than an index entry may be.
create index image_sources_image_url on image_sources (md5(image_url)) where image_id is not null;
create index image_sources_page on image_sources (page_hash) where image_id is not null;
