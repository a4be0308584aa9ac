-- One letter, or those whose ids begin alike, with the record.
SELECT l.id, l.datasource, l.stream, l.place, l.stage, l.field, l.reason, l.cause, l.version, l.key, l.attempts, l.first_at, l.last_at,
       l.size_bytes, l.outcome, l.outcome_at, l.actor, l.replay, d.name, coalesce(s.label, s.index::text) AS part, l.key_id, l.payload
FROM headgate.dead_letter l
JOIN headgate.datasource d ON d.id = l.datasource AND NOT d.deleted
JOIN headgate.stream s ON s.id = l.stream
WHERE l.id BETWEEN $1 AND $2 LIMIT 2
