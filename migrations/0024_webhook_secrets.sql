-- What makes the secrets of a collection's webhooks. A secret is an HMAC of its salt under the service's WEBHOOK_SECRET, which is not in the
-- database: neither a dump nor a backup has what messages are signed with.
create table webhook_secrets (
    id uuid primary key,
    collection_id uuid not null references collections on delete cascade,
    salt bytea not null check (octet_length(salt) = 32),
    created_at timestamptz not null default now(),
    -- Until when the one before it signs messages, too; where there is none, the service's own.
    overlaps_until timestamptz not null
);

create index webhook_secrets_collection on webhook_secrets (collection_id, created_at);
