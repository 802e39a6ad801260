-- The schema version that every running program must know, in one row. A migration that older
-- programs cannot work with raises it before it runs; see `store::schema`.
create table required_schema (
    only_row boolean primary key default true check (only_row),
    version bigint not null
);
insert into required_schema (version) values (0);
