UPDATE headgate.token SET ended_at = expires_at WHERE ended_at IS NULL AND expires_at <= now() RETURNING id, name, role
