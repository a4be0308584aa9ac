DELETE FROM headgate.datasource_events WHERE id IN (
    SELECT id FROM headgate.datasource_events WHERE at < now() - $1::interval ORDER BY at LIMIT $2
)
