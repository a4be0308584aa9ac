-- Letters whose copy in the sink is wrapped by one of these master keys.
SELECT id FROM headgate.dead_letter WHERE stream = $1 AND outcome = 'open' AND sink_key_id = ANY ($2::text[]) ORDER BY id LIMIT $3
