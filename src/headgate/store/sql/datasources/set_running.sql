UPDATE headgate.datasource SET running_version = $2, revision = $3
WHERE id = $1 AND running_version IS DISTINCT FROM $2 AND NOT deleted
