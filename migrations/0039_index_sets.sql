-- The sets of faces of a search index outside this database. Such an index has one set for each
-- embedding model. While a set is built again, there are two.
create table index_sets (
    -- The name of the set in the index. It is new for each set, so an index whose files were
    -- deleted or exchanged has no set with this name.
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
    -- When the remains of deleted faces were last removed from its files.
    purged_at timestamptz not null default now(),
    -- A request to compare the set with the rows, and the result of the last comparison.
    check_requested_at timestamptz,
    checked_at timestamptz,
    check_result jsonb
);

create unique index index_sets_building on index_sets (index_name, model_id) where state = 'building';
create unique index index_sets_serving on index_sets (index_name, model_id) where state = 'serving';
