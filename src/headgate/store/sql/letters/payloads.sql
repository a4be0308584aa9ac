SELECT id, key_id, payload FROM headgate.dead_letter WHERE id = ANY ($1::uuid[])
