-- The sets of faces of a search index outside this database. Such an index has one set for each
-- embedding model. While a set is built again, there are two.
create table index_sets (
    -- The name of the set in the index. Each set gets a new id. If the files of the index are
    -- deleted or replaced, no set in them has this id, and the set is built again.
    id uuid primary key default gen_random_uuid(),
    -- The value of SEARCH_INDEX.
    index_name text not null,
    model_id integer not null references embedding_models (id) on delete cascade,
    state text not null default 'building' check (state in ('building', 'serving', 'retired')),
    -- All faces with ids up to this one were copied. Later changes are in `index_changes`.
    copied_to uuid not null default '00000000-0000-0000-0000-000000000000',
    -- Whether all faces were copied.
    copied boolean not null default false,
    created_at timestamptz not null default now(),
    -- When searches began to use it.
    served_at timestamptz,
    -- When the first face was deleted from it. Its files may hold remains of deleted faces.
    deleted_since timestamptz,
    -- Its size, and when that was measured: faces, faces in a graph, bytes on disk.
    measured_at timestamptz,
    faces bigint,
    in_graph bigint,
    bytes bigint,
    -- A request to compare the set with the rows, and the result of the last comparison.
    check_requested_at timestamptz,
    checked_at timestamptz,
    check_result jsonb
);

create unique index index_sets_building on index_sets (index_name, model_id) where state = 'building';
create unique index index_sets_serving on index_sets (index_name, model_id) where state = 'serving';

-- The folder whose sets are recorded in `index_sets`, identified by a random id that the folder
-- contains too. A process with another folder must not change the records until it takes over.
create table index_folders (
    index_name text primary key,
    folder_id uuid not null
);

-- For the query that reads the latest changes of a collection, whose faces every search compares.
create index index_changes_latest on index_changes (collection_id, model_id, change) where not deleted;
