UPDATE headgate.dead_letter l SET sink_key_id = u.key_id FROM unnest($1::uuid[], $2::text[]) AS u (id, key_id) WHERE l.id = u.id
