-- Not while somebody wants it replayed: a run may have read the payload already.
UPDATE headgate.dead_letter SET key_id = $2, payload = $3, size_bytes = $4, key = CASE WHEN $5 THEN key END
WHERE id = $1 AND outcome = 'open' AND replay IS NULL RETURNING stream
