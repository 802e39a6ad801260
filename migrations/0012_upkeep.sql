-- Periodic tasks that one process at a time does.
create table upkeep (
    task text primary key,
    -- Whoever asks first from this moment on has the turn.
    due_at timestamptz not null
);
