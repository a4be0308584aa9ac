-- To start and to stop both end a pause.
UPDATE headgate.datasource SET enabled = $2, paused = false, revision = $3 WHERE id = $1
