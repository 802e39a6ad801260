-- Stops older programs.
-- They would remove a person from its watchlists when they merge it into another person.

-- Watchlists: people and faces that are compared with every new face of a collection, and the
-- alerts about these faces. docs/explanation/WATCH.md describes why no match is missed, and why no
-- match has two alerts.

create table watchlists (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    name text not null,
    -- Why these people are watched.
    purpose text not null,
    notify text not null check (notify in ('match', 'unknown')),
    -- Null: the threshold of the collection, of the service or of the embedding model.
    threshold real check (threshold between -1 and 1),
    -- Null: the result of the assessment when the face was stored.
    quality_profile text check (quality_profile in ('off', 'standard', 'strict')),
    webhook text,
    cooldown_seconds integer not null default 0 check (cooldown_seconds >= 0),
    expires_at timestamptz,
    -- When it was ended after its expiry. It watches nobody any more, and its alerts are kept.
    ended_at timestamptz,
    -- The last entry of `watch_outbox` when it was created. It applies to later entries.
    created_entry bigint not null,
    created_at timestamptz not null default now(),
    unique (collection_id, id),
    unique (collection_id, name)
);

create table watched_people (
    watchlist_id uuid not null,
    collection_id uuid not null,
    subject_id uuid not null,
    primary key (watchlist_id, subject_id),
    foreign key (collection_id, watchlist_id) references watchlists (collection_id, id) on delete cascade,
    foreign key (collection_id, subject_id) references subjects (collection_id, id) on delete cascade
);

create index watched_people_subject on watched_people (collection_id, subject_id);

create table watched_faces (
    watchlist_id uuid not null,
    collection_id uuid not null,
    face_id uuid not null,
    primary key (watchlist_id, face_id),
    foreign key (collection_id, watchlist_id) references watchlists (collection_id, id) on delete cascade,
    foreign key (collection_id, face_id) references faces (collection_id, id) on delete cascade
);

create index watched_faces_face on watched_faces (collection_id, face_id);

-- New faces of collections with a watchlist, in the transaction that stores them. A face that is
-- deleted meanwhile leaves its entry, which the next comparison deletes.
create table watch_outbox (
    id bigint generated always as identity primary key,
    face_id uuid not null,
    collection_id uuid not null,
    stored_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

create index watch_outbox_collection on watch_outbox (collection_id, id);

-- Changes of what the watchlists of a collection watch. The set of numbers is the version of the
-- watchlists in memory. No row is locked, so concurrent changes do not wait for each other.
create table watch_changes (
    change bigint generated always as identity primary key,
    collection_id uuid not null
);

create index watch_changes_collection on watch_changes (collection_id, change);

-- The last number of an alert of a collection. Its row is locked until the alerts are committed, so
-- they become visible in the order of their numbers.
create table alert_sequences (
    collection_id uuid primary key references collections on delete cascade,
    last bigint not null default 0
);

create table alerts (
    id uuid primary key,
    collection_id uuid not null,
    watchlist_id uuid not null,
    -- The new face.
    face_id uuid not null,
    -- The watched person; null for a watched face, and for a face that resembles nobody.
    subject_id uuid,
    -- The most similar watched face; null for a face that resembles nobody.
    watched_face_id uuid,
    -- Cosine similarity to the most similar watched face.
    similarity real,
    sequence bigint not null,
    state text not null default 'new' check (state in ('new', 'acknowledged')),
    note text,
    delivery text not null check (delivery in ('none', 'suppressed', 'pending', 'delivered', 'failed')),
    attempts integer not null default 0,
    -- When the next attempt is due; null: immediately.
    next_attempt_at timestamptz,
    -- When the delivery fails.
    deliver_until timestamptz,
    delivered_at timestamptz,
    -- Why the last attempt failed.
    error text,
    -- When the face was stored.
    stored_at timestamptz not null,
    created_at timestamptz not null default clock_timestamp(),
    unique (watchlist_id, face_id),
    unique (collection_id, sequence),
    foreign key (collection_id, watchlist_id) references watchlists (collection_id, id) on delete cascade,
    foreign key (collection_id, face_id) references faces (collection_id, id) on delete cascade,
    foreign key (collection_id, subject_id) references subjects (collection_id, id) on delete cascade,
    foreign key (collection_id, watched_face_id) references faces (collection_id, id) on delete cascade
);

create index alerts_face on alerts (collection_id, face_id);
create index alerts_subject on alerts (collection_id, subject_id) where subject_id is not null;
create index alerts_watched_face on alerts (collection_id, watched_face_id) where watched_face_id is not null;
create index alerts_pending on alerts (watchlist_id, sequence) where delivery = 'pending';
create index alerts_recent on alerts (watchlist_id, created_at) where delivery <> 'suppressed';
create index alerts_created on alerts (collection_id, created_at);

-- `analyze` copies samples of a column into the statistics of the planner, where an erased value
-- would stay.
alter table watchlists
    alter column name set statistics 0, alter column purpose set statistics 0, alter column webhook set statistics 0;
alter table alerts alter column note set statistics 0, alter column error set statistics 0;

-- Without a watchlist, a statement that inserts faces runs one look-up in an empty table.
create function enqueue_watched_faces() returns trigger language plpgsql as $$
begin
    if not exists (select from watchlists) then
        return null;
    end if;
    insert into watch_outbox (face_id, collection_id)
    select i.id, i.collection_id from inserted i
    where exists (
        select from watchlists w
        where w.collection_id = i.collection_id and w.ended_at is null
          and (w.expires_at is null or w.expires_at > clock_timestamp()));
    if found then
        perform pg_notify('facecrawl_watch', '');
    end if;
    return null;
end
$$;

create trigger watch_faces_inserted after insert on faces
    referencing new table as inserted
    for each statement execute function enqueue_watched_faces();

-- Records a change of watchlists or of their people and faces.
create function record_watch_changes() returns trigger language plpgsql as $$
begin
    -- A cascade runs the trigger for each deleted face or person, mostly without rows.
    if not exists (select from changed) then
        return null;
    end if;
    insert into watch_changes (collection_id) select distinct collection_id from changed;
    perform pg_notify('facecrawl_watch', '');
    return null;
end
$$;

create trigger watch_watchlists_inserted after insert on watchlists
    referencing new table as changed for each statement execute function record_watch_changes();
create trigger watch_watchlists_updated after update on watchlists
    referencing new table as changed for each statement execute function record_watch_changes();
create trigger watch_watchlists_deleted after delete on watchlists
    referencing old table as changed for each statement execute function record_watch_changes();
create trigger watch_people_inserted after insert on watched_people
    referencing new table as changed for each statement execute function record_watch_changes();
create trigger watch_people_updated after update on watched_people
    referencing new table as changed for each statement execute function record_watch_changes();
create trigger watch_people_deleted after delete on watched_people
    referencing old table as changed for each statement execute function record_watch_changes();
create trigger watch_faces_added after insert on watched_faces
    referencing new table as changed for each statement execute function record_watch_changes();
create trigger watch_faces_removed after delete on watched_faces
    referencing old table as changed for each statement execute function record_watch_changes();

-- Records a change of the faces of watched people.
create function record_watched_assignments() returns trigger language plpgsql as $$
begin
    if not exists (select from watchlists) then
        return null;
    end if;
    insert into watch_changes (collection_id)
    select distinct c.collection_id from changed c
    join watched_people p on p.collection_id = c.collection_id and p.subject_id = c.subject_id;
    if found then
        perform pg_notify('facecrawl_watch', '');
    end if;
    return null;
end
$$;

create trigger watch_assignments_inserted after insert on subject_faces
    referencing new table as changed for each statement execute function record_watched_assignments();
create trigger watch_assignments_before after update on subject_faces
    referencing old table as changed for each statement execute function record_watched_assignments();
create trigger watch_assignments_after after update on subject_faces
    referencing new table as changed for each statement execute function record_watched_assignments();
create trigger watch_assignments_deleted after delete on subject_faces
    referencing old table as changed for each statement execute function record_watched_assignments();

-- Records a new embedding of a watched face.
create function record_watched_embedding() returns trigger language plpgsql as $$
begin
    if exists (
        select from watched_faces w where w.collection_id = new.collection_id and w.face_id = new.id
        union all
        select from subject_faces s
            join watched_people p on p.collection_id = s.collection_id and p.subject_id = s.subject_id
        where s.face_id = new.id) then
        insert into watch_changes (collection_id) values (new.collection_id);
    end if;
    return null;
end
$$;

create trigger watch_embedding_updated after update of model_id on faces
    for each row when (old.model_id is distinct from new.model_id)
    execute function record_watched_embedding();

-- Records a change of a collection that changes what its watchlists match.
create function record_watched_collection() returns trigger language plpgsql as $$
begin
    insert into watch_changes (collection_id) values (new.id);
    return null;
end
$$;

create trigger watch_collection_updated after update of match_threshold, deleting_at on collections
    for each row when (old.match_threshold is distinct from new.match_threshold
                       or old.deleting_at is distinct from new.deleting_at)
    execute function record_watched_collection();
