SELECT id, name, role, hash, datasources, groups, NULL::uuid AS session,
       ended_at IS NOT NULL OR coalesce(expires_at <= now(), false) AS has_ended
FROM headgate.token WHERE hash = ANY($1)
UNION ALL
SELECT t.id, t.name, t.role, s.hash, t.datasources, t.groups, s.id AS session,
       t.ended_at IS NOT NULL OR coalesce(t.expires_at <= now(), false)
       OR s.expires_at <= now() OR s.idle_at <= now() AS has_ended
FROM headgate.session s JOIN headgate.token t ON t.id = s.token WHERE s.hash = ANY($1)
