SELECT id, name, role, hash, datasources, groups,
       ended_at IS NOT NULL OR coalesce(expires_at <= now(), false) AS has_ended
FROM headgate.token WHERE hash = ANY($1)
