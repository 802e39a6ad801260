-- People: who said that a face shows somebody, what clustering has looked at, and which pictures were enrolled.

alter table subject_faces
    -- A person's word, or the clustering's guess.
    add column assigned_by text not null default 'user' check (assigned_by in ('user', 'clustering'));

-- Listing, and "is there somebody of this name".
create index subjects_origin on subjects (collection_id, origin, id);
create index subjects_name on subjects (collection_id, lower(name)) where name is not null;

-- "This face is not that person", said by somebody: clustering never says otherwise.
create table subject_refusals (
    collection_id uuid not null,
    subject_id uuid not null,
    face_id uuid not null,
    created_at timestamptz not null default now(),
    primary key (face_id, subject_id),
    foreign key (collection_id, subject_id) references subjects (collection_id, id) on delete cascade,
    foreign key (collection_id, face_id) references faces (collection_id, id) on delete cascade
);

create index subject_refusals_subject on subject_refusals (collection_id, subject_id);

-- Faces whose neighbours a clustering has looked at. A table of its own: a column of `faces` would rewrite index entries with every mark.
create table clustered_faces (
    collection_id uuid not null,
    face_id uuid primary key,
    foreign key (collection_id, face_id) references faces (collection_id, id) on delete cascade
);

-- Runs of the clustering; at most one of a collection is under way.
create table clusterings (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    state text not null default 'queued' check (state in ('queued', 'running', 'completed', 'failed')),
    -- Least mean similarity within a cluster, and whether faces that failed their quality profile take part.
    threshold real not null,
    any_quality boolean not null,
    model_id integer not null references embedding_models,
    -- Faces to look at when it began, and how many of them have been.
    faces bigint not null default 0,
    looked bigint not null default 0,
    -- Faces that were given a subject, clusters that were made, and clusters that became part of another subject.
    assigned bigint not null default 0,
    made bigint not null default 0,
    joined bigint not null default 0,
    error text,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    check ((finished_at is null) = (state in ('queued', 'running')))
);

create index clusterings_collection on clusterings (collection_id, id);
create unique index clusterings_live on clusterings (collection_id) where finished_at is null;

alter table image_sources
    -- Found by a crawl or a scan, or sent in to enrol somebody.
    add column kind text not null default 'crawl' check (kind in ('crawl', 'enrolment'));
