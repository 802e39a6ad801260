-- Collections as tenants: their end, and ways into the audit log.

alter table collections
    -- Set when the collection was deleted: from then on it is not there for the API, its name is free, and a job erases what is in it.
    add column deleting_at timestamptz;

create index audit_log_key on audit_log (api_key_id, id) where api_key_id is not null;
create index audit_log_action on audit_log (action, id);
