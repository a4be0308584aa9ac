-- A publish ends a quarantine.
UPDATE headgate.datasource SET published_version = $2, revision = $3, quarantine = NULL WHERE id = $1
