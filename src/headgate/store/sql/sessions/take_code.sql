DELETE FROM headgate.session WHERE hash = $1 AND is_code AND expires_at > now() RETURNING token
