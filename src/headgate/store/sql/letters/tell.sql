UPDATE headgate.dead_letter SET told_at = now() WHERE id = ANY ($1::uuid[]) AND outcome <> 'open'
