-- Open letters whose copy in a sink needs another master key than this one.
SELECT count(*) FROM headgate.dead_letter l JOIN headgate.datasource d ON d.id = l.datasource AND NOT d.deleted
WHERE l.outcome = 'open' AND l.sink_key_id IS NOT NULL AND (l.sink_key_id < $1 OR l.sink_key_id > $1)
