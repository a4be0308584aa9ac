-- A publish ends a quarantine. Until a version has proved itself, the published one says how many streams there are.
UPDATE headgate.datasource SET published_version = $2, revision = $3, quarantine = NULL,
    streams = CASE WHEN running_version IS NULL THEN headgate.streams_of($1, $2) ELSE streams END
WHERE id = $1
