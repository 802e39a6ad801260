-- Which key made which: whoever revokes one that leaked sees what it made, and can revoke that too.

alter table api_keys
    -- The key of the `POST /keys` that made it. Null: made at the command line.
    add column made_by uuid references api_keys on delete set null;

create index api_keys_made_by on api_keys (made_by) where made_by is not null;

-- So far only the audit log knew.
update api_keys k set made_by = maker.id
from audit_log a join api_keys maker on maker.id = a.api_key_id
where a.action = 'key.create' and a.detail ->> 'key_id' = k.id::text;
