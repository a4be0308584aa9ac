SELECT s.*, d.name, n.name AS node, n.draining AS node_draining
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource
LEFT JOIN headgate.node n ON n.id = s.owner
WHERE NOT d.deleted AND (s.id = $1 OR (d.name = $2 AND coalesce(s.label, s.index::text) = $3))
