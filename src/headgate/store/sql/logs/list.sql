SELECT * FROM (
    SELECT l.* FROM headgate.log_line l JOIN headgate.stream s ON s.id = l.stream
    WHERE s.datasource = $1 AND l.id > $2 ORDER BY l.id DESC LIMIT $3
) AS last ORDER BY id
