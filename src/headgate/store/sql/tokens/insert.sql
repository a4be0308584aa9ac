INSERT INTO headgate.token (id, name, role, hash) VALUES ($1, $2, $3, $4)
