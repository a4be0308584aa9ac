SELECT n.*, (SELECT count(*) FROM headgate.stream s WHERE s.owner = n.id) AS streams
FROM headgate.node n ORDER BY n.started_at, n.id
