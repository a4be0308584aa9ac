SELECT * FROM headgate.datasource_events
WHERE ($1::text IS NULL OR name = $1) AND ($2::text IS NULL OR type = $2) AND id < $3
    AND ($4::timestamptz IS NULL OR (
        at >= $4
        -- Ids rise with the time, so whatever is older need not be looked at.
        AND id >= (SELECT id FROM headgate.datasource_events WHERE at >= $4 ORDER BY at LIMIT 1)
    ))
    AND ($5::timestamptz IS NULL OR (
        at < $5
        -- And nothing that is younger than the last one before it.
        AND id <= (SELECT id FROM headgate.datasource_events WHERE at < $5 ORDER BY at DESC LIMIT 1)
    ))
ORDER BY id DESC LIMIT $6
