-- Secrets that all processes of a service share and that nobody chooses.

create table service_secrets (
    -- What it is for.
    name text primary key,
    secret bytea not null check (length(secret) >= 32),
    created_at timestamptz not null default now()
);

-- Signs the tokens of dry runs, which confirm deletions. Two random UUIDs have 244 random bits.
insert into service_secrets (name, secret)
values ('confirmations', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
