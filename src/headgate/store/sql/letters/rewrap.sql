-- If it is still what was read: somebody may have edited it since.
UPDATE headgate.dead_letter SET key_id = $2, payload = $3 WHERE id = $1 AND payload = $4 RETURNING id
