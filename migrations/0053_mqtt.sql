-- Alerts by MQTT (MQTT_URL). docs/explanation/WATCH.md describes the guarantees.

-- The number of the last alert of a collection that the broker acknowledged.
create table mqtt_positions (
    collection_id uuid primary key references collections on delete cascade,
    sequence bigint not null
);

-- Topics that have, or may have, a retained message in the broker. A topic contains the id of a
-- person or a watchlist, or the name of a camera. The row is written before the message is
-- published, and deleted after the broker has removed the message.
create table mqtt_retained (
    topic text primary key
);

alter table mqtt_retained alter column topic set statistics 0;

-- The last alert about each watched person.
create index alerts_subject_sequence on alerts (collection_id, subject_id, sequence) where subject_id is not null;
drop index alerts_subject;
