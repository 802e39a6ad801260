-- The person whom a proxy named (AUTH=proxy) for an action. The name is that of the proxy.
alter table audit_log add column person text;
create index audit_log_person on audit_log (person, id) where person is not null;
