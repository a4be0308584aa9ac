-- A publish ends a quarantine. Until a version has proved itself, the published one says how many streams there are.
UPDATE headgate.datasource SET published_version = $2, revision = $3, quarantine = NULL,
    partitions = CASE WHEN running_version IS NULL THEN headgate.partitions_of($1, $2) ELSE partitions END
WHERE id = $1
