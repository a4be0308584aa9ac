SELECT * FROM (
    SELECT * FROM headgate.datasource_events WHERE ($1::uuid IS NULL OR datasource = $1) ORDER BY id DESC LIMIT $2
) AS last ORDER BY id
