-- What would still act on the outside: dumps under way, replays that were asked for, and removals from sinks.
WITH stopped AS (
    UPDATE headgate.dump SET status = 'cancelled', owner = NULL, ended_at = now() WHERE status = 'running'
), kept AS (
    DELETE FROM headgate.removal
)
UPDATE headgate.dead_letter SET replay = NULL WHERE replay IS NOT NULL
