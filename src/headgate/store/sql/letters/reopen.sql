-- The sink went back in time: what it had replayed, or what had superseded a letter, is not there any more. Returns which.
UPDATE headgate.dead_letter l SET outcome = 'open', outcome_at = NULL, actor = NULL, told_at = NULL, replay = NULL, key_id = u.key_id,
    sink_key_id = u.key_id, payload = u.payload, size_bytes = u.size_bytes
FROM unnest($2::uuid[], $3::text[], $4::bytea[], $5::bigint[]) AS u (id, key_id, payload, size_bytes)
WHERE l.id = u.id AND l.stream = $1 AND l.in_sink AND l.outcome IN ('replayed', 'superseded') AND NOT l.is_elsewhere
RETURNING l.id
