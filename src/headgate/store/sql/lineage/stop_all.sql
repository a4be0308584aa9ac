-- What would still act on the outside: dumps under way, and replays that were asked for.
WITH stopped AS (
    UPDATE headgate.dump SET status = 'cancelled', owner = NULL, ended_at = now() WHERE status = 'running'
)
UPDATE headgate.dead_letter SET replay = NULL WHERE replay IS NOT NULL
