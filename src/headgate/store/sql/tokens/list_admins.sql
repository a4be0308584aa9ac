SELECT id, expires_at IS NOT NULL AS ends
FROM headgate.token WHERE role = 'admin' AND ended_at IS NULL AND coalesce(expires_at > now(), true) ORDER BY id
