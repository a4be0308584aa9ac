INSERT INTO headgate.token (id, name, role, hash, datasources, groups, expires_at, author)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (name) WHERE ended_at IS NULL DO NOTHING
RETURNING created_at
