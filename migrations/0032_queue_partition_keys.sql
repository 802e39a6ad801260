-- A standard term: the key by which the jobs of one group are partitioned, such as the host that
-- they ask.
alter table jobs rename column lane to partition_key;
