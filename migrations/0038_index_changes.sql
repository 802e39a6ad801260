-- Changes that a vector index outside this database has yet to follow. Triggers write them, in the
-- transaction that changes the faces, so every change or deletion of a face is recorded.
--
-- Without such an index, the triggers do not exist, and storing a face costs nothing more.
-- `start_index_changes` creates them, and `stop_index_changes` drops them.

create table index_changes (
    -- Numbers of concurrent transactions may become visible in another order.
    change bigint generated always as identity primary key,
    face_id uuid not null,
    -- The model of the embedding that was stored, changed or deleted.
    model_id integer not null,
    collection_id uuid not null,
    -- Whether the face has no embedding of this model in this collection any more.
    deleted boolean not null,
    changed_at timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Deletions are applied first: an erased face must not wait for a million new ones.
create index index_changes_deleted on index_changes (change) where deleted;

create function record_inserted_faces() returns trigger language plpgsql as $$
begin
    insert into index_changes (face_id, model_id, collection_id, deleted)
    select id, model_id, collection_id, false from inserted;
    return null;
end
$$;

create function record_deleted_faces() returns trigger language plpgsql as $$
begin
    insert into index_changes (face_id, model_id, collection_id, deleted)
    select id, model_id, collection_id, true from gone;
    return null;
end
$$;

-- Only columns that an index contains. An update of the blob keys, for example, writes nothing.
create function record_updated_faces() returns trigger language plpgsql as $$
begin
    insert into index_changes (face_id, model_id, collection_id, deleted)
    select o.id, o.model_id, o.collection_id, true from before o
    where not exists (
        select 1 from after n
        where n.id = o.id and n.model_id = o.model_id and n.collection_id = o.collection_id);
    insert into index_changes (face_id, model_id, collection_id, deleted)
    select n.id, n.model_id, n.collection_id, false from after n
    where not exists (
        select 1 from before o
        where o.id = n.id and o.model_id = n.model_id and o.collection_id = n.collection_id
          and o.image_id = n.image_id and o.embedding = n.embedding
          and o.quality_overall is not distinct from n.quality_overall
          and o.quality_passed is not distinct from n.quality_passed);
    return null;
end
$$;

-- The subject of a face is a filter of a search. `record_deleted_faces` records deleted faces.
create function record_faces_of_subjects() returns trigger language plpgsql as $$
begin
    insert into index_changes (face_id, model_id, collection_id, deleted)
    select f.id, f.model_id, f.collection_id, false from changed c join faces f on f.id = c.face_id;
    return null;
end
$$;

-- Each of these functions waits for transactions that write to the two tables.
create function start_index_changes() returns void language plpgsql as $$
begin
    create or replace trigger index_faces_inserted after insert on faces
        referencing new table as inserted
        for each statement execute function record_inserted_faces();
    create or replace trigger index_faces_deleted after delete on faces
        referencing old table as gone
        for each statement execute function record_deleted_faces();
    create or replace trigger index_faces_updated after update on faces
        referencing old table as before new table as after
        for each statement execute function record_updated_faces();
    create or replace trigger index_subjects_inserted after insert on subject_faces
        referencing new table as changed
        for each statement execute function record_faces_of_subjects();
    create or replace trigger index_subjects_updated after update on subject_faces
        referencing new table as changed
        for each statement execute function record_faces_of_subjects();
    create or replace trigger index_subjects_deleted after delete on subject_faces
        referencing old table as changed
        for each statement execute function record_faces_of_subjects();
end
$$;

create function stop_index_changes() returns void language plpgsql as $$
begin
    drop trigger if exists index_faces_inserted on faces;
    drop trigger if exists index_faces_deleted on faces;
    drop trigger if exists index_faces_updated on faces;
    drop trigger if exists index_subjects_inserted on subject_faces;
    drop trigger if exists index_subjects_updated on subject_faces;
    drop trigger if exists index_subjects_deleted on subject_faces;
    delete from index_changes;
end
$$;
