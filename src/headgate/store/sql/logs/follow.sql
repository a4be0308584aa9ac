SELECT l.*, d.name FROM headgate.log_line l
JOIN headgate.stream s ON s.id = l.stream
JOIN headgate.datasource d ON d.id = s.datasource
WHERE l.id > $1 AND ($2::text IS NULL OR d.name = $2)
ORDER BY l.id LIMIT $3
