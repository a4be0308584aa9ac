INSERT INTO headgate.node (id, name, lease_s, address, version) VALUES ($1, $2, $3, $4, $5)
