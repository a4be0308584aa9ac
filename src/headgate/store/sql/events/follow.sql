SELECT * FROM headgate.datasource_events
WHERE ($1::text IS NULL OR name = $1) AND ($2::text IS NULL OR type = $2) AND id > $3
ORDER BY id LIMIT $4
