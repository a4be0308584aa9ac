SELECT id, name, role, datasources, groups, author, created_at, expires_at, used_at
FROM headgate.token WHERE ended_at IS NULL AND coalesce(expires_at > now(), true) ORDER BY created_at, id
