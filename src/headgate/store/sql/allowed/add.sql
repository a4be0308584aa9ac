INSERT INTO headgate.allowed (kind, value, author) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING value
