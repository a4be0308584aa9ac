UPDATE headgate.datasource SET enabled = $2, revision = $3 WHERE id = $1
