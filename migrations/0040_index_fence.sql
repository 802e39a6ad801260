-- Numbers the transactions that change a search index outside this database. Such a transaction
-- takes its number after it has acquired the lock, and before it reads rows. An index that several
-- machines can reach ignores an update of a face whose number is smaller than that of an earlier
-- update. A process that was paused, or a request that was delayed, then changes nothing.
create sequence index_fence;
