INSERT INTO headgate.datasource (id, name, enabled, revision) VALUES ($1, $2, $3, $4)
