UPDATE headgate.datasource SET quarantine = $2, revision = $3 WHERE id = $1 AND NOT deleted
