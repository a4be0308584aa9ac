-- Nodes that cannot run a stream of this datasource, or of any, as it is wanted now; another key is another chance.
SELECT d.id AS datasource, u.stream, u.node AS id, n.name AS node, u.reason, u.at
FROM headgate.unable u
JOIN headgate.stream s ON s.id = u.stream
JOIN headgate.datasource d ON d.id = s.datasource
JOIN headgate.node n ON n.id = u.node
WHERE ($1::uuid IS NULL OR d.id = $1) AND NOT d.deleted AND u.wanted_key = headgate.wanted_key(d, s.index)
ORDER BY u.stream, n.started_at, n.id
