-- A camera that a process does not find in its STREAMS_FILE. The row remains for a day: another
-- process may still have the camera in its file, and a stop by a user must not be forgotten.
alter table streams add column removed_at timestamptz;
