SELECT id, key_id, payload FROM headgate.dead_letter WHERE payload IS NOT NULL AND key_id IS NOT NULL AND key_id <> $1 AND id > $2
ORDER BY id LIMIT 500
