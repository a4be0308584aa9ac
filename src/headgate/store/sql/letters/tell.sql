UPDATE headgate.dead_letter SET told = true WHERE id = ANY ($1::uuid[]) AND outcome <> 'open'
