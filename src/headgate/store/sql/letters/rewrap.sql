UPDATE headgate.dead_letter SET key_id = $2, payload = $3 WHERE id = $1 AND payload IS NOT NULL
