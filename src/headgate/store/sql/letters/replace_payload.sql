UPDATE headgate.dead_letter SET key_id = $2, payload = $3, size_bytes = $4, key = $5 WHERE id = $1 AND outcome = 'open' RETURNING stream
