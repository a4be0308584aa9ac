WITH back AS (
    DELETE FROM headgate.lost_node WHERE name = $2
)
INSERT INTO headgate.node (id, name, lease_s, address, version, draining, process)
VALUES ($1, $2, $3, $4, $5, $6, $7)
