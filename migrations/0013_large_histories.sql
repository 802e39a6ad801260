-- Lists of ended jobs when there are ten million of them: by kind and by group, newest first. Without these a list that matches few of them reads them all.
-- On a table of that size each takes some half a minute to build, during which no job ends.
create index finished_jobs_kind_completed on finished_jobs (kind, id) where state = 'completed';
create index finished_jobs_group_completed on finished_jobs (group_id, id) where group_id is not null and state = 'completed';
