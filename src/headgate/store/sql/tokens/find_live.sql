SELECT id, name, role, hash, datasources, groups, false AS has_ended
FROM headgate.token WHERE id = ANY($1) AND ended_at IS NULL AND coalesce(expires_at > now(), true)
