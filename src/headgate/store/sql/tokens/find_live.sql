SELECT id FROM headgate.token WHERE id = ANY($1) AND ended_at IS NULL AND coalesce(expires_at > now(), true)
UNION ALL
SELECT s.id FROM headgate.session s JOIN headgate.token t ON t.id = s.token
WHERE s.id = ANY($1) AND s.expires_at > now() AND s.idle_at > now()
  AND t.ended_at IS NULL AND coalesce(t.expires_at > now(), true)
