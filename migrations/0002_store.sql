-- Collections, crawls, images, faces and search. The queue has its own migration (0001); nothing here refers to it.
--
-- Ids are UUIDv7 and made by the service, so that "newest first" and keyset pagination need no second column.
-- Lock order, for everything that changes several of them in one transaction: crawls, pages, image_urls, image_sources.

create extension if not exists vector;

-- ---------------------------------------------------------------------------------------------------------------------
-- Collections: the unit of isolation. Every row that search or listing can reach carries its collection.

create table collections (
    id uuid primary key,
    name text not null unique check (name ~ '^[a-z0-9_-]{1,64}$'),
    -- Null in the next three: the service's own setting (for retention: keep for ever).
    quality_profile text check (quality_profile in ('off', 'standard', 'strict')),
    match_threshold real check (match_threshold between -1 and 1),
    retention_days integer check (retention_days > 0),
    created_at timestamptz not null default now()
);

insert into collections (id, name) values ('00000000-0000-7000-8000-000000000001', 'default');

-- ---------------------------------------------------------------------------------------------------------------------
-- Crawls and their two ledgers. Progress is counted from the ledgers, never kept beside them.

create table crawls (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    kind text not null check (kind in ('web', 'scan')),
    state text not null default 'running' check (state in ('running', 'paused', 'completed', 'cancelled', 'failed')),
    seeds text[] not null,
    options jsonb not null,
    error text,
    -- Rows admitted to each ledger so far; only the limits read them, under this row's lock.
    pages_admitted bigint not null default 0,
    images_admitted bigint not null default 0,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    check ((finished_at is null) = (state in ('running', 'paused')))
);

create index crawls_collection on crawls (collection_id, id);
create index crawls_live on crawls (state) where state in ('running', 'paused');

-- Every page URL of a crawl once. url_hash is the first 128 bits of the URL's SHA-256: URLs can be longer than an index entry may be.
create table pages (
    id uuid primary key,
    crawl_id uuid not null references crawls on delete cascade,
    url text not null,
    url_hash uuid not null,
    depth integer not null check (depth >= 0),
    state text not null default 'queued' check (state in ('queued', 'fetched', 'skipped', 'failed')),
    reason text,
    detail text,
    status integer,
    final_url text,
    title text,
    -- Validators for a conditional next visit.
    etag text,
    last_modified text,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    unique (crawl_id, url_hash)
);

-- Progress, reasons and "is anything still queued" without touching the rows.
create index pages_progress on pages (crawl_id, state, reason);

create table embedding_models (
    id integer generated always as identity primary key,
    -- SHA-256 of the model file and its preprocessing: two models are the same only if these are.
    identity text not null unique,
    name text not null,
    -- halfvec can be indexed up to 4,000; plain storage of the column asks for a row within one page.
    dimensions integer not null check (dimensions between 1 and 2000),
    -- Similarity from which two faces count as one person, and the false-match rate it was set for.
    match_threshold real,
    match_fmr double precision,
    created_at timestamptz not null default now()
);

create table images (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    sha256 bytea not null check (octet_length(sha256) = 32),
    phash bigint not null,
    dhash bigint not null,
    ahash bigint not null,
    width integer not null check (width > 0),
    height integer not null check (height > 0),
    format text not null,
    bytes bigint not null check (bytes >= 0),
    rotation integer not null check (rotation in (0, 90, 180, 270)),
    face_count integer not null default 0,
    thumbnail_key text,
    created_at timestamptz not null default now(),
    unique (collection_id, sha256),
    -- Listing newest first, and the target of the faces' composite key.
    unique (collection_id, id)
);

-- Near-duplicate lookup: the 64 bits of phash as four bands of 16. Two hashes at most 11 bits apart have, by the pigeonhole principle, at
-- least one band that differs in at most two bits (four bands with three or more would make 12), so probing the 137 values of each
-- band finds every one of them. The whole hash is in the index too: the distance is judged there, and only near rows are read.
create index images_phash_band_0 on images (collection_id, ((phash >> 48) & 65535)) include (phash, id);
create index images_phash_band_1 on images (collection_id, ((phash >> 32) & 65535)) include (phash, id);
create index images_phash_band_2 on images (collection_id, ((phash >> 16) & 65535)) include (phash, id);
create index images_phash_band_3 on images (collection_id, (phash & 65535)) include (phash, id);
-- "Does another row still use this blob?"
create index images_thumbnail_key on images (thumbnail_key) where thumbnail_key is not null;

-- Every image URL of a crawl once, with what became of it.
create table image_urls (
    id uuid primary key,
    crawl_id uuid not null references crawls on delete cascade,
    url text not null,
    url_hash uuid not null,
    state text not null default 'queued'
        check (state in ('queued', 'processed', 'duplicate', 'skipped', 'failed', 'suppressed')),
    reason text,
    detail text,
    -- The stored image it turned out to be (its own, or the one it duplicates).
    image_id uuid references images on delete set null,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    unique (crawl_id, url_hash)
);

create index image_urls_progress on image_urls (crawl_id, state, reason);
-- "The images of a crawl", in id order, and the reverse way round.
create index image_urls_crawl_image on image_urls (crawl_id, image_id) where image_id is not null;
create index image_urls_image on image_urls (image_id) where image_id is not null;

-- The permanent record of where an image was found: outlives the crawl and its ledger.
create table image_sources (
    id bigint generated always as identity primary key,
    -- Null until the file has been fetched.
    image_id uuid references images on delete cascade,
    image_url_id uuid references image_urls on delete set null,
    crawl_id uuid references crawls on delete set null,
    page_url text,
    -- First 128 bits of the page URL's SHA-256; the nil UUID when there is no page.
    page_hash uuid not null,
    image_url text not null,
    alt text,
    found_at timestamptz not null default now(),
    -- The same picture on the same page is one sighting, however often the page is read.
    unique (image_url_id, page_hash)
);

create index image_sources_image on image_sources (image_id, id) where image_id is not null;
create index image_sources_crawl on image_sources (crawl_id) where crawl_id is not null;

-- ---------------------------------------------------------------------------------------------------------------------
-- Faces. Each embedding model gets a partial HNSW index of its own when it is registered, so models are never mixed.

create table faces (
    id uuid primary key,
    collection_id uuid not null,
    image_id uuid not null,
    -- x, y, width, height in pixels of the upright image.
    bbox real[] not null check (cardinality(bbox) = 4),
    det_score real not null,
    -- Five points: x, y, x, y, …
    landmarks real[] not null check (cardinality(landmarks) = 10),
    quality jsonb,
    quality_overall real,
    quality_passed boolean,
    embedding halfvec not null,
    model_id integer not null references embedding_models,
    chip_key text,
    crop_key text,
    created_at timestamptz not null default now(),
    -- A face is always in its image's collection; the service cannot get this wrong.
    foreign key (collection_id, image_id) references images (collection_id, id) on delete cascade,
    unique (collection_id, id)
);

-- Keep the embedding in the row: exact search reads it for every face in scope.
alter table faces alter column embedding set storage plain;

create index faces_image on faces (image_id);
create index faces_scope on faces (model_id, collection_id);
create index faces_chip_key on faces (chip_key) where chip_key is not null;
create index faces_crop_key on faces (crop_key) where crop_key is not null;

-- ---------------------------------------------------------------------------------------------------------------------
-- Hosts: politeness shared by all crawler processes. All times are this database's clock.

create table hosts (
    host_key text primary key,
    -- Counts grants; a token is never given twice.
    last_token bigint not null default 0,
    -- The grant that is out, if any. It expires 60 s after granted_at.
    grant_token bigint,
    granted_at timestamptz,
    -- End of the last request plus its delay.
    next_at timestamptz,
    -- A pause that the host asked for (Retry-After); also holds those who need no delay.
    not_before timestamptz,
    -- The latest moment told to somebody who has to wait, so that the next one gets a later moment.
    cursor_at timestamptz,
    -- The ready moment (next_at or not_before) that has already been told to somebody.
    promised_at timestamptz,
    -- The answer to the last call: null is "granted".
    told_until timestamptz,
    -- robots.txt as last fetched; status 0 is a network error.
    robots_status integer,
    robots_body bytea,
    robots_fetched_at timestamptz
) with (fillfactor = 70);

-- ---------------------------------------------------------------------------------------------------------------------
-- People who were enrolled by name, what must not come back, who asked what, and who may ask. Filled by their own operations.

create table subjects (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    name text,
    -- The caller's own key for this person.
    external_id text,
    metadata jsonb not null default '{}',
    -- `enrolled` by a person, or a `cluster` the service made.
    origin text not null default 'enrolled' check (origin in ('enrolled', 'cluster')),
    created_at timestamptz not null default now(),
    unique (collection_id, id),
    unique (collection_id, external_id)
);

-- Both sides in one collection by construction; a face shows at most one subject.
create table subject_faces (
    collection_id uuid not null,
    subject_id uuid not null,
    face_id uuid not null,
    created_at timestamptz not null default now(),
    primary key (face_id),
    foreign key (collection_id, subject_id) references subjects (collection_id, id) on delete cascade,
    foreign key (collection_id, face_id) references faces (collection_id, id) on delete cascade
);

create index subject_faces_subject on subject_faces (collection_id, subject_id);

-- What an erasure leaves behind so that the next crawl does not bring it back: hashes, never the picture, the URL or the embedding.
create table suppressions (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    -- Of the erased file.
    sha256 bytea check (octet_length(sha256) = 32),
    phash bigint,
    dhash bigint,
    ahash bigint,
    -- First 128 bits of the erased URL's SHA-256.
    url_hash uuid,
    -- Sign bits of projections of the embedding, keyed with a server secret (named by sketch_key): one-way.
    sketch bytea,
    sketch_key text,
    model_id integer references embedding_models,
    reason text,
    created_at timestamptz not null default now(),
    check (sha256 is not null or phash is not null or url_hash is not null or sketch is not null),
    check ((sketch is null) = (sketch_key is null) and (sketch is null) = (model_id is null))
);

create index suppressions_sha256 on suppressions (collection_id, sha256) where sha256 is not null;
create index suppressions_url on suppressions (collection_id, url_hash) where url_hash is not null;
create index suppressions_sketch on suppressions (collection_id, model_id) where sketch is not null;
-- The same four bands as for images.
create index suppressions_phash_band_0 on suppressions (collection_id, ((phash >> 48) & 65535)) include (phash, id) where phash is not null;
create index suppressions_phash_band_1 on suppressions (collection_id, ((phash >> 32) & 65535)) include (phash, id) where phash is not null;
create index suppressions_phash_band_2 on suppressions (collection_id, ((phash >> 16) & 65535)) include (phash, id) where phash is not null;
create index suppressions_phash_band_3 on suppressions (collection_id, (phash & 65535)) include (phash, id) where phash is not null;

-- Keys are shown once and stored as their SHA-256; the prefix lets a person tell them apart.
create table api_keys (
    id uuid primary key,
    -- Null: every collection (operators).
    collection_id uuid references collections on delete cascade,
    name text not null,
    prefix text not null,
    key_sha256 bytea not null unique check (octet_length(key_sha256) = 32),
    scopes text[] not null,
    requests_per_minute integer check (requests_per_minute > 0),
    created_at timestamptz not null default now(),
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz
);

create index api_keys_collection on api_keys (collection_id);

-- Searches, erasures and key use. No foreign keys: the record outlives what it speaks of.
create table audit_log (
    id bigint generated always as identity primary key,
    at timestamptz not null default now(),
    collection_id uuid,
    api_key_id uuid,
    request_id text,
    action text not null,
    detail jsonb not null default '{}'
);

create index audit_log_collection on audit_log (collection_id, id);
