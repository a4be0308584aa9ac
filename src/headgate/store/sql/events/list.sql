SELECT * FROM headgate.datasource_events
WHERE ($1::uuid IS NULL OR datasource = $1) AND id > $2
ORDER BY id LIMIT $3
