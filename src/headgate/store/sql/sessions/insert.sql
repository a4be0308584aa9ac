INSERT INTO headgate.session (id, hash, token, is_code, idle_at, expires_at)
SELECT $1, $2, t.id, $4, now() + make_interval(secs => $5), now() + make_interval(secs => $6)
FROM headgate.token t
WHERE t.id = $3 AND t.ended_at IS NULL AND coalesce(t.expires_at > now(), true)
RETURNING id
