SELECT n.*, (SELECT count(*) FROM headgate.stream s WHERE s.owner = n.id) AS streams
FROM headgate.node n WHERE n.id::text = $1 OR n.name = $1 OR (length($1) >= 4 AND starts_with(n.id::text, $1))
ORDER BY n.started_at, n.id
